"""`make cluster`: three nodes on this machine, a private PostgreSQL, and nginx in front of them, without affinity.

Everything is in a temporary folder that is deleted at the end (Ctrl-C). The configuration of a real cluster is in
deploy/compose-cluster.yaml and docs/cluster.md.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.nginx import write_configuration
from tests.support.postgres import find_postgres, postgres_server

NODES = ("a", "b", "c")
FIRST_PORT = 4171
"""Port of the first node; the ports at which nodes reach each other are ten higher."""
FRONT_PORT = 4170
STOP_S = 40

FRONT = """
    map $http_upgrade $turnwire_connection {{ default upgrade; '' ''; }}
    upstream turnwire {{ {servers} keepalive 16; }}
    server {{
        listen 127.0.0.1:{port};
        client_max_body_size 32m;
        location / {{
            proxy_pass http://turnwire;
            proxy_http_version 1.1;
            proxy_set_header Host $host:{port};
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $turnwire_connection;
            proxy_buffering off;
            proxy_request_buffering off;
            proxy_read_timeout 1h;
            proxy_next_upstream error timeout http_503;
        }}
    }}
"""


@contextmanager
def started(command: Sequence[str], **more: str) -> Generator[subprocess.Popen[bytes]]:
    """Run a process that is terminated at the end, and killed if it does not exit."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **more}, start_new_session=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()


def node_command(name: str, number: int, log: str, folder: Path, work: Path) -> list[str]:
    """The command line of one node."""
    options = {
        "--node": name,
        "--place": "this-machine",
        "--port": str(FIRST_PORT + number),
        "--cluster-listen": f"127.0.0.1:{FIRST_PORT + 10 + number}",
        "--log": log,
        "--data": str(folder / name),
        "--cwd": str(work),
        "--allow-origin": f"http://127.0.0.1:{FRONT_PORT}",
    }
    words = [word for option in options.items() for word in option]
    return [sys.executable, "-m", "turnwire", "serve", "--json", *words]


def main() -> None:
    """Start all processes, print their addresses, and wait for Ctrl-C."""
    nginx, programs = shutil.which("nginx"), find_postgres()
    if nginx is None or programs is None:
        sys.exit("make cluster needs nginx and PostgreSQL (Debian: apt-get install nginx-light postgresql)")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    token, key, work = secrets.token_urlsafe(24), secrets.token_hex(32), Path.cwd()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turnwire-cluster-")))
        server = stack.enter_context(postgres_server(programs))
        log = server.new_log()
        print(f"log       {log}")
        for number, name in enumerate(NODES):
            command = node_command(name, number, log, folder, work)
            process = stack.enter_context(started(command, TURNWIRE_TOKEN=token, TURNWIRE_CLUSTER_KEY=key))
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                sys.exit(f"node {name} did not start; it says why above")
            print(f"node {name}    {json.loads(line)['url']}")
        servers = " ".join(f"server 127.0.0.1:{FIRST_PORT + number};" for number in range(len(NODES)))
        configuration = write_configuration(folder, FRONT.format(servers=servers, port=FRONT_PORT))
        stack.enter_context(
            started([nginx, "-p", str(folder), "-e", f"{folder}/error.log", "-c", str(configuration)])
        )
        print(f"all       http://127.0.0.1:{FRONT_PORT}")
        print(f"token     {token}")
        print("end it with Ctrl-C; kill a node and see its sessions go on", flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            print("stopping")


if __name__ == "__main__":
    main()
