"""How far what was written has come, as the kernel tells it of a connection to a program on this machine."""

from __future__ import annotations

import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress

import pytest
from tests.process.starting import needs_linux

from turnwire.server import reached as module
from turnwire.server.reached import Reached, reached

pytestmark = needs_linux

WAYS = pytest.mark.parametrize(
    ("bound", "asked"),
    [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "127.0.0.1")],
    ids=["v4", "v6", "mapped"],
)


@contextmanager
def connection(
    bound: str = "127.0.0.1", asked: str = "127.0.0.1"
) -> Generator[tuple[socket.socket, socket.socket]]:
    family = socket.AF_INET6 if ":" in bound else socket.AF_INET
    with socket.create_server((bound, 0), family=family, dualstack_ipv6=bound == "::") as listener:
        client = socket.create_connection((asked, listener.getsockname()[1]))
        server, _ = listener.accept()
        with client, server:
            yield server, client


@WAYS
def test_what_a_program_has_not_read_whole_is_on_its_way(bound: str, asked: str) -> None:
    with connection(bound, asked) as (server, client):
        assert reached(server) is Reached.PROGRAM, "nothing was written"
        for _ in range(3):
            # From the second answer on the other machine says late that it has it.
            client.sendall(b"question")
            server.recv(100)
            server.sendall(b"x" * 100)
            assert reached(server) is Reached.WAY
            client.recv(99)
            assert reached(server) is Reached.WAY
            client.recv(1)
            assert reached(server) is Reached.PROGRAM


def test_more_than_the_kernel_takes_is_on_its_way() -> None:
    with connection() as (server, _):
        server.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                server.send(b"x" * 65_536)
        assert reached(server) is Reached.WAY


def test_of_a_program_that_cannot_be_seen_only_its_machine_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def unseen(connection: socket.socket) -> None:
        return None

    monkeypatch.setattr(module, "_read_by_peer", unseen)
    with connection() as (server, client):
        server.sendall(b"first")
        # The first answer of a connection is acknowledged at once.
        assert reached(server) is Reached.MACHINE
        assert client.recv(100) == b"first"


def test_where_nothing_may_be_asked_nothing_more_than_the_machine_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(connection: socket.socket) -> None:
        raise PermissionError

    monkeypatch.setattr(module, "_read_by_peer", refused)
    with connection() as (server, _):
        server.sendall(b"x")
        assert reached(server) is Reached.MACHINE


def test_a_connection_that_is_gone_is_no_error() -> None:
    with connection() as (server, client):
        server.sendall(b"x")
        client.close()
        assert reached(server) in Reached
        server.close()
        assert reached(server) is Reached.MACHINE
