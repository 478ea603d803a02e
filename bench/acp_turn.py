"""Messages per second of one long turn over `/acp`: turnwire, and the servers of the official SDKs.

Prints one table, with a row for each server and a column for each transport. One client measures all of them
(`bench/acp_client.py`); each server is started for its measurement and ended after it, so they never run at the
same time. turnwire is started as its users start it, with an agent in a process of its own and a log on the disk;
the SDKs' servers have the agent inside and keep nothing. Of several runs the fastest counts. A peer that is not
installed is skipped, and its row says why.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import uvloop

from bench.acp_client import Server, Turn, over_http, over_websocket
from bench.daemon_http import HOST
from bench.daemon_targets import TURNWIRE, Running, cpu_s, running
from bench.stdio import CHUNKS, PEERS, PROGRAMS, ROUNDS, Client

STOP_S = 10
TRANSPORTS: Mapping[str, Callable[[Server, int], Coroutine[Any, Any, Turn]]] = {
    "Streamable HTTP": over_http,
    "WebSocket": over_websocket,
}
OURS = "turnwire"
SDKS = (
    Client(
        "TypeScript SDK 2.4.0",
        (
            "node",
            "--preserve-symlinks",
            "--preserve-symlinks-main",
            str(PEERS / "node" / "bench" / "acp_typescript.mjs"),
        ),
        PEERS / "node" / ".installed",
    ),
    Client(
        "Python SDK 0.12.1",
        (
            str(PEERS / "py-v1" / "bin" / "python"),
            str(PROGRAMS / "acp_python.py"),
            sysconfig.get_path("purelib"),
        ),
        PEERS / "py-v1" / ".installed",
    ),
)


class Found(NamedTuple):
    """The best of several turns."""

    per_second: float
    cpu_us: float
    """What the server's own process used of the processors for a message."""


@contextmanager
def ours() -> Generator[tuple[Server, int]]:
    with running(TURNWIRE) as daemon:
        yield served(daemon), daemon.pid


def served(daemon: Running) -> Server:
    """The `/acp` of a daemon."""
    return Server(daemon.port, "/acp", daemon.headers, daemon.cwd)


@contextmanager
def sdk(client: Client) -> Generator[tuple[Server, int]]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        process = subprocess.Popen(client.command, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            yield Server(port, "/acp", {"Host": f"{HOST}:{port}"}, folder), process.pid
        finally:
            process.kill()
            process.communicate(timeout=STOP_S)


def measured(name: str, transport: str, chunks: int) -> Found:
    print(f"… {transport}: {name}", file=sys.stderr, flush=True)
    client = next((each for each in SDKS if each.name == name), None)
    with ours() if client is None else sdk(client) as (server, pid):
        return turn_of(server, pid, transport, chunks)


def turn_of(server: Server, pid: int, transport: str, chunks: int) -> Found:
    """One turn with a server that runs as this process."""
    before = cpu_s(pid)
    turn = uvloop.run(TRANSPORTS[transport](server, chunks))
    used = cpu_s(pid) - before
    assert turn.chunks == chunks, f"{turn.chunks} of {chunks} came over {transport}"
    return Found(chunks / turn.seconds, used / chunks * 1e6)


def main(chunks: int = CHUNKS) -> None:
    names = [OURS, *(each.name for each in SDKS if each.missing is None)]
    best: dict[tuple[str, str], Found] = {}
    for _ in range(ROUNDS):
        for transport in TRANSPORTS:
            for name in names:
                found = measured(name, transport, chunks)
                key = name, transport
                best[key] = max(best.get(key, found), found)
    print(f"{chunks} chunks of one turn over /acp; fastest of {ROUNDS} runs each")
    columns = "".join(f"{f'{each}, messages/s':>30}{'ours is':>10}{'CPU µs':>8}" for each in TRANSPORTS)
    print(f"{'':22}{columns}")
    for name in names:
        cells = ""
        for transport in TRANSPORTS:
            found, our = best[name, transport], best[OURS, transport]
            cells += f"{found.per_second:30,.0f}{our.per_second / found.per_second:8.1f} x{found.cpu_us:8.1f}"
        print(f"{name:22}{cells}")
    for each in SDKS:
        if each.missing is not None:
            print(f"{each.name:22}{each.missing}")


if __name__ == "__main__":
    main()
