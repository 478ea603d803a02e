"""A real nginx in front of a daemon, for tests: a foreground process of this user, with a private port.

The input is the daemon's URL and the configuration beyond nginx's defaults; the result is the URL that passes
through it. It needs no time to get ready: the test listens for it and hands the socket over.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import anyio

from turnwire_testing.plugin import find_tool

STOP_S = 10.0

FRAME = """
{user}
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {inside}
}}
"""
"""The configuration of an nginx that uses only its folder."""
SEVERAL = """
log_format served "$upstream_addr";
upstream several {{ {servers} }}
"""
"""Each request, and each connection, goes to the next one. Nothing of a client is looked at."""
PASSED_ON = """
proxy_http_version 1.1;
proxy_set_header Host $http_host;
proxy_set_header Upgrade $http_upgrade;
proxy_set_header Connection $http_connection;
proxy_buffering off;
proxy_request_buffering off;
"""
"""Settings that streams and WebSockets need."""
SERVER = "server {{ listen {address}; location / {{ proxy_pass {upstream}; {settings} }} }}"


class Nginx(NamedTuple):
    """A running proxy."""

    url: str
    folder: Path

    @property
    def errors(self) -> str:
        """Return the error log so far."""
        return (self.folder / "error.log").read_text()

    @property
    def served(self) -> list[str]:
        """Return the address that served each completed request, where there are several."""
        return (self.folder / "served").read_text().split()


def _configure(folder: Path, address: str, upstreams: Sequence[str], settings: str) -> Path:
    folder.mkdir()
    upstream, several = upstreams[0], ""
    if len(upstreams) > 1:
        servers = " ".join(f"server {each.removeprefix('http://')};" for each in upstreams)
        upstream, several = "http://several", SEVERAL.format(servers=servers)
        settings += f"access_log {folder}/served served;"
    server = SERVER.format(address=address, upstream=upstream, settings=settings)
    return write_configuration(folder, several + server)


def write_configuration(folder: Path, inside: str) -> Path:
    """Write the whole file around the contents of `http`."""
    file = folder / "nginx.conf"
    # As root it would drop its privileges, and with them the access to the test's folder.
    user = "user root;" if os.geteuid() == 0 else ""
    file.write_text(FRAME.format(user=user, folder=folder, inside=inside), encoding="utf-8")
    return file


@asynccontextmanager
async def nginx_before(upstreams: str | Sequence[str], folder: Path, settings: str = "") -> AsyncGenerator[Nginx]:
    """Run an nginx that forwards everything, to several upstreams in turn. Skips the test without the program:
    `find_tool`.
    """
    program = find_tool("nginx")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        upstreams = [upstreams] if isinstance(upstreams, str) else upstreams
        configuration = _configure(folder, address, upstreams, settings)
        process = await anyio.open_process(
            [program, "-p", str(folder), "-e", f"{folder}/error.log", "-c", str(configuration)],
            # nginx passes its sockets to its own successor in this way; it accepts ours as such.
            env={**os.environ, "NGINX": f"{listener.fileno()};"},
            pass_fds=[listener.fileno()],
            stdin=None,
            stdout=None,
            stderr=None,
        )
    try:
        yield Nginx(f"http://{address}", folder)
    finally:
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(STOP_S):
                process.terminate()
                await process.wait()
            if process.returncode is None:
                process.kill()
                await process.wait()
