"""What is fuzzed of the daemon: a request to any route, and messages to `/acp`, in a daemon without a listener.

Takes any bytes; returns, or raises `AssertionError`. A daemon with a scripted agent is made for the first input and
stays, so that inputs meet what others left behind. It is never closed: a fuzzer ends its process.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Awaitable, Coroutine
from contextlib import aclosing, suppress
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint
from sniffio import current_async_library_cvar
from starlette.types import Message, Scope

from turnwire.limits import Limits
from turnwire.server.access.identity import Identity, Role
from turnwire.server.acp.connection import AcpConnection
from turnwire.server.app import create_app
from turnwire.server.daemon import Daemon, open_daemon
from turnwire.server.settings.declared import Settings
from turnwire.testing.scripted.agent import ScriptedSource
from turnwire.wire.jsonrpc import decode

TOKEN = "the-token-of-the-fuzzer-0123456789"
PATIENT = Limits(failed_logins=100_000, request_rate=100_000)
LONGEST_S = 0.2
"""A request that waits for the end of a turn may wait for ever; nothing is learned from it."""
TURNS_OF_THE_LOOP = 20
"""After the last message of a client: enough for every answer that waits for nobody."""
OWN_FAILURES = frozenset({500})


class Stage:
    """A daemon that lives on the loop of this process."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.failures: list[str] = []
        # As where a program is run by anyio: callbacks start tasks, too.
        self._context = copy_context()
        self._context.run(current_async_library_cvar.set, "asyncio")
        self._ready = asyncio.Event()
        self._serving = self._context.run(self.loop.create_task, self._serve())
        self.run(self._ready.wait())
        logging.getLogger("turnwire").addHandler(_Failures(self.failures))
        logging.getLogger("turnwire").propagate = False

    def run(self, do: Coroutine[Any, Any, object]) -> None:
        """Run it to its end."""
        self._context.run(self.loop.run_until_complete, do)

    async def _serve(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="turnwire-fuzz-"))
        settings = replace(Settings(), log="memory", token=TOKEN, cwd=(folder,))
        async with (
            ScriptedSource() as source,
            open_daemon(settings, PATIENT, source) as daemon,
            anyio.create_task_group() as tasks,
        ):
            self.daemon: Daemon = daemon
            self.tasks: TaskGroup = tasks
            self.app = create_app(daemon)
            self._ready.set()
            await anyio.sleep_forever()

    async def bounded(self, work: Awaitable[None]) -> None:
        with anyio.move_on_after(LONGEST_S):
            await work


class _Failures(logging.Handler):
    """What the daemon itself calls a failure is one."""

    def __init__(self, found: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info is not None:
            self._found.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


_stages: list[Stage] = []


def _stage() -> Stage:
    if not _stages:
        _stages.append(Stage())
    return _stages[0]


def rest(data: bytes) -> None:
    """A request gets an answer that the daemon meant to give: `METHOD PATH`, headers, an empty line, a body."""
    stage = _stage()
    head, _, body = data.partition(b"\n\n")
    first, *lines = head.split(b"\n")
    method, _, target = first.partition(b" ")
    path, _, query = target.partition(b"?")
    given = [
        (name.strip().lower(), value.strip())
        for name, colon, value in (each.partition(b":") for each in lines)
        if colon
    ]
    usual = {
        b"host": b"127.0.0.1",
        b"authorization": b"Bearer " + TOKEN.encode(),
        b"content-type": b"application/json",
    }
    named = {name for name, _ in given}
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method.decode("ascii", "replace").upper() or "GET",
        "scheme": "http",
        "path": unquote_to_bytes(path).decode("utf-8", "replace") or "/",
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": [*given, *((name, value) for name, value in usual.items() if name not in named)],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 4170),
    }  # fmt: skip
    statuses: list[int] = []
    stage.run(stage.bounded(_request(stage, scope, body, statuses)))
    assert not OWN_FAILURES.intersection(statuses), statuses
    _check(stage)


async def _request(stage: Stage, scope: Scope, body: bytes, statuses: list[int]) -> None:
    is_sent = False
    is_left = anyio.Event()

    async def receive() -> Message:
        nonlocal is_sent
        if is_sent:
            await is_left.wait()
            return {"type": "http.disconnect"}
        is_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])
        elif message.get("more_body"):
            # A stream has begun; nobody reads it to its end.
            is_left.set()

    await stage.app(scope, receive, send)


def acp(data: bytes) -> None:
    """Lines of a client are each taken or refused, and all that it is sent are frames."""
    stage = _stage()
    sent: list[bytes] = []
    stage.run(stage.bounded(_client(stage, data.split(b"\n"), sent)))
    for each in sent:
        decode(each)
    _check(stage)


async def _client(stage: Stage, lines: list[bytes], sent: list[bytes]) -> None:
    connection = AcpConnection(stage.daemon, Identity("fuzz", Role.OWNER), stage.tasks)

    async def read() -> None:
        async with aclosing(connection.all_frames()) as frames:
            async for some in frames:
                sent.extend(some)

    async with anyio.create_task_group() as reading:
        reading.start_soon(read)
        for line in lines:
            await connection.receive(line)
        for _ in range(TURNS_OF_THE_LOOP):
            await checkpoint()
        with suppress(Exception):
            await connection.aclose(ends_work=True)
        reading.cancel_scope.cancel()


def _check(stage: Stage) -> None:
    assert not stage.failures, stage.failures
    assert not stage.loop.is_closed()


INITIALIZE = (
    b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{}}}'
)
REST_SEEDS = (
    b'POST /session\n\n{"sessionId":"s1"}',
    b'POST /session/s1/prompt\nPrefer: wait=1\n\n{"prompt":[{"type":"text","text":"say 1 hello"}]}',
    b'POST /session/s1/prompt\nIdempotency-Key: k\n\n{"prompt":[{"type":"text","text":"ask t1 allow_once"}]}',
    b"GET /session/s1/events\nLast-Event-ID: 1\n\n",
    b"GET /events?sessions=s1&after=0\n\n",
    b"GET /session?size=3&cursor=x\n\n",
    b"GET /session/s1/explain\n\n",
    b'PATCH /session/s1/metadata\nX-Turnwire-Client-Id: c\n\n{"title":"t"}',
    b'POST /tokens\n\n{"name":"x","role":"observer","expiresInS":1}',
    b'POST /login\nAuthorization: Bearer x\nOrigin: http://127.0.0.1\n\n{"code":"x"}',
    b"POST /acp\nAccept: application/json, text/event-stream\n\n" + INITIALIZE,
    b"DELETE /session/%2e%2e\nHost: evil\n\n",
)
_ON_S1 = b'"params":{"sessionId":"s1"'
_PROMPT = (
    b'{"jsonrpc":"2.0","id":2,"method":"session/prompt",' + _ON_S1 + b',"prompt":[{"type":"text","text":"x"}]}}'
)
ACP_SEEDS = tuple(
    b"\n".join(lines)
    for lines in (
        (
            INITIALIZE,
            b'{"jsonrpc":"2.0","id":1,"method":"session/load",' + _ON_S1 + b',"cwd":"/","mcpServers":[]}}',
            b'{"jsonrpc":"2.0","id":2,"method":"session/prompt",'
            + _ON_S1
            + b',"prompt":[{"type":"text","text":"x"}]}}',
        ),
        (
            INITIALIZE.replace(b':1,"c', b':2,"c'),
            b'{"jsonrpc":"2.0","id":1,"method":"session/list","params":{}}',
        ),
        (INITIALIZE, b'{"jsonrpc":"2.0","id":1,"method":"session/new","params":{"cwd":"/tmp","mcpServers":[]}}'),
        (INITIALIZE, b'{"jsonrpc":"2.0","method":"session/cancel",' + _ON_S1 + b"}}", b"[]", b"{}"),
        (
            INITIALIZE,
            b'{"jsonrpc":"2.0","id":1,"method":"_vendor/x",' + _ON_S1 + b"}}",
            b'{"id":1,"jsonrpc":"2.0","result":{}}',
        ),
        (
            INITIALIZE,
            b'{"jsonrpc":"2.0","id":1,"method":"session/attach",' + _ON_S1 + b"}}",
            b'{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}',
        ),
    )
)
