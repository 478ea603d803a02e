"""A real nginx in front of a daemon, for tests: a foreground process of this user, with a port of its own.

Takes the daemon's URL and what the configuration says beyond nginx's defaults; gives the URL that goes through it.
It needs no moment to get ready: the test listens for it and hands the socket over.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import anyio

from turnwire.testing.plugin import find_tool

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
"""An nginx that touches nothing but its folder."""
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
"""What streams and WebSockets need."""
SERVER = "server {{ listen {address}; location / {{ proxy_pass {upstream}; {settings} }} }}"


class Nginx(NamedTuple):
    """A proxy that runs."""

    url: str
    folder: Path

    @property
    def errors(self) -> str:
        """What it had to complain about so far."""
        return (self.folder / "error.log").read_text()

    @property
    def served(self) -> list[str]:
        """Which address served each request that has ended, where there are several."""
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
    """The whole file, for what stands in `http`."""
    file = folder / "nginx.conf"
    # As root it would give up its rights, and with them those to the test's folder.
    user = "user root;" if os.geteuid() == 0 else ""
    file.write_text(FRAME.format(user=user, folder=folder, inside=inside), encoding="utf-8")
    return file


@asynccontextmanager
async def nginx_before(upstreams: str | Sequence[str], folder: Path, settings: str = "") -> AsyncGenerator[Nginx]:
    """An nginx that passes everything on, to several in turn. Skips the test without the program: `find_tool`."""
    program = find_tool("nginx")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        upstreams = [upstreams] if isinstance(upstreams, str) else upstreams
        configuration = _configure(folder, address, upstreams, settings)
        process = await anyio.open_process(
            [program, "-p", str(folder), "-e", f"{folder}/error.log", "-c", str(configuration)],
            # How nginx gives its sockets to its own successor; it takes ours for such.
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
