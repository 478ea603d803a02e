"""A connection is reused after every answer, and each answer is one write.

The client is a bare socket: it knows HTTP/1.1 and nothing of turnwire.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import anyio
import httpx
import pytest
from tests.patience import LONG_S
from tests.server.seats import blocks, seated
from tests.support.daemons import Running

from turnwire.server import listener
from turnwire.server.http_connection import HttpConnection
from turnwire.session import events as ev
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

_LENGTH = re.compile(rb"content-length: (\d+)")


class Bare:
    """A connection of a client that reuses it."""

    def __init__(self, running: Running, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._running = running
        self.reader = reader
        self.writer = writer
        self.transport = cast("asyncio.Transport", writer.transport)

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> None:
        """Send a request in one write, without waiting."""
        sent = b"" if body is None else json.dumps(body).encode()
        told = {"host": urlsplit(self._running.url).netloc} | self._running.headers | headers
        if body is not None:
            told |= {"content-type": "application/json", "content-length": str(len(sent))}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in told.items())]
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + sent)

    async def answer(self) -> tuple[int, bytes, bytes]:
        """Status, head and body."""
        async with asyncio.timeout(WAIT_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            body = await self.reader.readexactly(int(length[1])) if length else b""
        return int(head[9:12]), head, body


@asynccontextmanager
async def bare(running: Running) -> AsyncGenerator[Bare]:
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(running.url).port)
    try:
        yield Bare(running, reader, writer)
    finally:
        writer.close()


# -- one write -----------------------------------------------------------------------------------------------


class _Counted:
    """A transport that counts its writes."""

    def __init__(self, transport: asyncio.Transport, writes: list[bytes]) -> None:
        self._transport = transport
        self._writes = writes

    def write(self, data: bytes) -> None:
        self._writes.append(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """All writes to connections that are made meanwhile."""
    found: list[bytes] = []
    made = HttpConnection.connection_made

    def counted(self: Any, transport: Any) -> None:
        made(self, cast("asyncio.Transport", _Counted(transport, found)))

    monkeypatch.setattr(HttpConnection, "connection_made", counted)
    return found


async def test_every_answer_is_one_write(tmp_path: Path, writes: list[bytes]) -> None:
    async with seated(tmp_path / "d") as seat, bare(seat.running) as client:
        writes.clear()
        prompt = {"prompt": blocks("stop end_turn")}
        asked: list[tuple[int, tuple[Any, ...]]] = [
            (200, ("GET", "/health")),
            (200, ("HEAD", "/health")),
            (202, ("POST", seat.path("prompt"), prompt)),
            (204, ("POST", seat.path("cancel"), {})),
            (400, ("POST", seat.path("prompt"), {})),
            (404, ("GET", "/nowhere")),
            (404, ("GET", "/session/none")),
            (405, ("PUT", "/health")),
        ]
        for status, words in asked:
            client.ask(*words)
            if words[0] == "HEAD":
                async with asyncio.timeout(WAIT_S):
                    head = await client.reader.readuntil(b"\r\n\r\n")
                assert b"content-length: 15\r\n" in head
            else:
                assert (await client.answer())[0] == status
        assert [int(each[9:12]) for each in writes] == [status for status, _ in asked]
        client.ask("GET", "/session", Authorization="Bearer wrong")
        assert (await client.answer())[0] == 401
        assert len(writes) == len(asked) + 1


async def test_a_stream_begins_with_one_write(tmp_path: Path, writes: list[bytes]) -> None:
    async with seated(tmp_path / "d") as seat, bare(seat.running) as client:
        writes.clear()
        client.ask("GET", seat.path("events"))
        async with asyncio.timeout(WAIT_S):
            await client.reader.readuntil(b"retry: 3000")
        assert writes[0].startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"\r\n\r\n" in writes[0]
        assert b"retry: 3000" in writes[0]


async def test_a_header_that_would_be_two_is_never_written(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"a\r\nset-cookie: b")]})
        await send({"type": "http.response.body", "body": b"never"})

    stop, ready = anyio.Event(), anyio.Event()
    urls: list[str] = []
    async with anyio.create_task_group() as tasks:

        async def serve() -> None:
            await listener.listen(
                app, host="127.0.0.1", port=0, ready=lambda url: (urls.append(url), ready.set())[1], stop=stop
            )

        tasks.start_soon(serve)
        await ready.wait()
        with caplog.at_level(logging.CRITICAL, "turnwire"):
            async with httpx.AsyncClient() as client:
                answer = await client.get(urls[0])
        assert answer.status_code == 500
        assert "set-cookie" not in answer.headers
        stop.set()


# -- keeping the connection ------------------------------------------------------------------------------------


async def test_requests_that_come_together_are_answered_in_their_order(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat, bare(seat.running) as client:
        for number in range(20):
            client.ask("POST", seat.path("prompt"), {"prompt": blocks(f"say 1 n{number}")})
            client.ask("GET", "/health")
        prompts: list[str] = []
        for _ in range(20):
            status, head, body = await client.answer()
            assert status == 202
            assert b"connection: close" not in head
            prompts.append(json.loads(body)["promptId"])
            assert (await client.answer())[0] == 200
        for each in prompts:
            await seat.end(each)
        accepted = [each.prompt_id for each in await seat.events() if isinstance(each, ev.PromptAccepted)]
        assert accepted == prompts


# -- what is told behind an answer ---------------------------------------------------------------------------------


async def test_what_was_answered_is_audited_and_counted_in_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "turnwire.audit")
    async with seated(tmp_path / "d") as seat, bare(seat.running) as client:
        caplog.clear()
        for path in (*["cancel"] * 50, "nowhere", *["cancel"] * 50):
            client.ask("POST", seat.path(path), {})
        client.ask("GET", "/metrics")
        for status in (*[204] * 50, 404, *[204] * 50):
            assert (await client.answer())[0] == status
        body = (await client.answer())[2]
        template = "/session/{session_id}/cancel"
        count = f'turnwire_http_requests_total{{method="POST",route="{template}",status="204"}} 100.0'
        assert count in body.decode()
        await quiet()
        records = [each for each in caplog.records if each.name == "turnwire.audit"]
        assert [getattr(each, "route", None) for each in records] == [template] * 100


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
async def test_a_daemon_that_is_told_to_stop_has_written_the_audit_of_all_it_answered(tmp_path: Path) -> None:
    words = ("serve", "--json", "--port", "0", "--log", "memory", "--cwd", str(tmp_path), "--log-format", "json")
    agent = (sys.executable, "-m", "turnwire_testing.agent")
    command = [sys.executable, "-m", "turnwire", *words, "--", *agent]
    with (tmp_path / "stderr").open("wb") as stderr:
        process = await anyio.open_process(command, stderr=stderr, cwd=tmp_path)
    async with process:
        assert process.stdout is not None
        with anyio.fail_after(LONG_S):
            started = json.loads(await process.stdout.receive())
            headers = {"Authorization": f"Bearer {started['token']}"}
            async with httpx.AsyncClient(base_url=started["url"], headers=headers) as client:
                for _ in range(20):
                    session = (await client.post("/session", json={"sessionScope": "thread"})).json()
                    path = f"/session/{session['sessionId']}/prompt"
                    assert (await client.post(path, json={"prompt": blocks("stop end_turn")})).status_code == 202
                process.terminate()
            await process.wait()
    lines = [json.loads(each) for each in (tmp_path / "stderr").read_text().splitlines()]
    told = [each["route"] for each in lines if each.get("event") == "audit"]
    assert told == ["/session", "/session/{session_id}/prompt"] * 20
