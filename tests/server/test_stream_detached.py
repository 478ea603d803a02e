"""A stream over HTTP/1.1 continues without its request: no task, the same bytes, and the connection after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest
from tests.patience import SOON_S
from tests.server.reading import WAIT_S, ended, open_session, prompt
from tests.support.daemons import Running, running_daemon

from turnwire.limits import Limits
from turnwire.session.inputs import Close
from turnwire_testing.patience import quiet

pytestmark = pytest.mark.anyio

END = b"0\r\n\r\n"


class Bare:
    """A bare connection, and all its received bytes."""

    def __init__(self, running: Running, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._running = running
        self._reader, self.writer = reader, writer
        self.came = b""

    def ask(self, path: str, *more: str) -> None:
        lines = [f"GET {path} HTTP/1.1", f"Host: {urlsplit(self._running.url).netloc}", *more]
        lines += [f"{name}: {value}" for name, value in self._running.headers.items()]
        self.writer.write("\r\n".join([*lines, "", ""]).encode())

    async def until(self, what: bytes) -> None:
        with anyio.fail_after(WAIT_S):
            while what not in self.came:
                part = await self._reader.read(65_536)
                assert part, self.came
                self.came += part

    async def to_the_end(self) -> None:
        with anyio.fail_after(WAIT_S):
            self.came += await self._reader.read()


@asynccontextmanager
async def bare(running: Running) -> AsyncGenerator[Bare]:
    address = urlsplit(running.url)
    assert address.hostname
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        yield Bare(running, reader, writer)
    finally:
        writer.transport.abort()


def readers(running: Running) -> int:
    return len(running.daemon.metrics.subscribers)


async def until_none_reads(running: Running) -> None:
    with anyio.fail_after(SOON_S):
        while readers(running):
            await anyio.lowlevel.checkpoint()


async def close(running: Running, session_id: str) -> None:
    await running.daemon.node.submit(session_id, Close(at=1, reason="over"))  # pyright: ignore[reportArgumentType]


async def test_a_reader_that_has_everything_is_no_task(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running:
        session_id = await open_session(running)
        path = f"/session/{session_id}/events"
        async with bare(running) as first, bare(running) as second:
            await quiet()
            before = len(asyncio.all_tasks())
            first.ask(f"{path}?after=0")
            await first.until(b"replay_complete")
            second.ask(path)
            await second.until(b"retry:")
            await quiet()
            assert len(asyncio.all_tasks()) == before
            assert readers(running) == 2
            await prompt(running, session_id, "say 1 word")
            await first.until(b"turn_complete")
            await second.until(b"turn_complete")
        await until_none_reads(running)


async def test_the_connection_of_a_stream_that_ended_takes_the_next_request(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running:
        session_id = await open_session(running)
        async with bare(running) as connection:
            connection.ask(f"/session/{session_id}/events")
            await connection.until(b"retry:")
            await close(running, session_id)
            await connection.until(END)
            connection.ask("/health")
            await connection.until(b'"ok"')
        assert readers(running) == 0


async def test_a_request_behind_an_open_stream_is_answered_after_its_end(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running:
        session_id = await open_session(running)
        async with bare(running) as connection:
            connection.ask(f"/session/{session_id}/events")
            await connection.until(b"retry:")
            connection.ask("/health")
            await prompt(running, session_id, "say 1 word")
            await connection.until(b"turn_complete")
            assert b'"ok"' not in connection.came
            await close(running, session_id)
            await connection.until(b'"ok"')
            assert connection.came.index(END) < connection.came.index(b'"ok"')


async def test_a_stream_whose_client_asked_for_the_end_of_the_connection_closes_it(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running:
        session_id = await open_session(running)
        async with bare(running) as connection:
            connection.ask(f"/session/{session_id}/events", "Connection: close")
            await connection.until(b"retry:")
            await close(running, session_id)
            await connection.to_the_end()
            assert connection.came.endswith(END)


async def test_a_stream_whose_request_has_a_body_to_come_is_written_by_its_task(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running:
        session_id = await open_session(running)
        async with bare(running) as connection:
            connection.ask(f"/session/{session_id}/events", "Content-Length: 1000000")
            await connection.until(b"retry:")
            connection.writer.write(b"x" * 300_000)
            await prompt(running, session_id, "say 1 word")
            await connection.until(b"turn_complete")
            await close(running, session_id)
            await connection.until(END)


async def test_a_reader_that_takes_nothing_when_the_daemon_stops_does_not_hold_it_up(tmp_path: Path) -> None:
    limits = Limits(write_timeout_s=60.0)
    async with running_daemon(tmp_path / "d", limits=limits) as running:
        session_id = await open_session(running)
        async with bare(running) as connection, bare(running) as other:
            connection.ask(f"/session/{session_id}/events")
            other.ask(f"/session/{session_id}/events", "Connection: close")
            await connection.until(b"retry:")
            await other.until(b"retry:")
            # The other is read from while this one is not.
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(other.to_the_end)
                await prompt(running, session_id, "flood 40000 400")
                await ended(running, session_id)
                assert readers(running) == 2
                running.daemon.stopping.set()
                await until_none_reads(running)
            assert b"the daemon is about to stop" in other.came
