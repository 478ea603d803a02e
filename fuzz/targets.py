"""Fuzz targets: functions of bytes that return for every input.

A target raises `AssertionError`, or an exception of the code under test, when an input breaks it. Requests to the
REST routes are generated from the OpenAPI document by `tests/server/test_schemathesis.py`.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import anyio
from anyio.lowlevel import checkpoint
from msgspec import Raw

from turnwire.errors import RemoteProtocolError
from turnwire.hosting.last_frames import KEPT_BYTES, LastFrames
from turnwire.limits import Limits
from turnwire.server.access.tokens import Identity, Role
from turnwire.server.acp.connection import AcpConnection
from turnwire.server.acp.subscription import Wake
from turnwire.server.daemon import open_daemon
from turnwire.server.settings.declared import Settings
from turnwire.session.policy import KnownCall, amended, judge, read_request, read_rules
from turnwire.wire.jsonrpc import Batch, Frame, Notification, Request, decode, encode
from turnwire.wire.methods import SESSION_REQUEST_PERMISSION
from turnwire.wire.ndjson import LineReader
from turnwire.wire.peek import (
    PieceReader,
    Pieces,
    UpdateParams,
    peek_session_id,
    peek_update,
    peek_update_params,
    read_update_line,
)
from turnwire_testing.scripted.agent import ScriptedSource

MAX_BYTES = 64
"""Small limit of a line, so that short inputs exceed it."""


def jsonrpc(data: bytes) -> None:
    """Check that a line is a frame that survives encoding, or is rejected with a reason and a code."""
    frame = _decoded(data)
    if isinstance(frame, RemoteProtocolError):
        assert frame.context["reason"]
        assert frame.context["jsonrpc"] in {-32700, -32600}
    elif not isinstance(frame, Batch):
        line = encode(frame)
        assert b"\n" not in line
        assert decode(line) == frame


def ndjson(data: bytes) -> None:
    """Check that lines do not depend on how the bytes are split, and none exceeds the limit."""
    whole = LineReader(MAX_BYTES)
    lines = [*whole.feed(data), *whole.end()]
    step = data[0] % 7 + 1 if data else 1
    cut = LineReader(MAX_BYTES)
    pieces = [line for at in range(0, len(data), step) for line in cut.feed(data[at : at + step])]
    assert [*pieces, *cut.end()] == lines
    assert all(len(line) <= MAX_BYTES for line in lines if isinstance(line, bytes))


def peek(data: bytes) -> None:
    """The params of any frame can be inspected, or are rejected with a reason."""
    frame = _decoded(data)
    if isinstance(frame, Request | Notification):
        peek_session_id(frame.params)
        kind = _kind(frame.params)
        assert isinstance(kind, str) or kind.context["reason"]


def pieces(data: bytes) -> None:
    """Check that reading lines together gives the same updates as reading each alone."""
    lines = data.split(b"\n")
    alone = [
        line if update is None else update for line, update in zip(lines, map(read_update_line, lines), strict=True)
    ]
    together: list[bytes | UpdateParams] = []
    for each in PieceReader().read(lines):
        if isinstance(each, Pieces):
            together += [UpdateParams(each.session_id, update) for update in each.updates]
            assert all(peek_update(update).kind == each.kind for update in each.updates)
        else:
            together.append(read_update_line(each) or each)
    assert together == alone


def _decoded(data: bytes) -> Frame | Batch | RemoteProtocolError:
    try:
        return decode(data)
    except RemoteProtocolError as error:
        return error


def _kind(params: Raw) -> str | RemoteProtocolError:
    try:
        return peek_update(peek_update_params(params).update).kind
    except RemoteProtocolError as error:
        return error


def policy(data: bytes) -> None:
    """Check that permission rules allow nothing but the exact command, whatever the agent reports."""
    request = read_request(SESSION_REQUEST_PERMISSION, Raw(data))
    if request is None:
        return
    call = amended(KnownCall(), request.tool_call, null_clears=False)
    if call is not None and judge(RULES, request, call, cwd="/w", attended=False) is not None:
        is_line = isinstance(call.command, str) and call.command.strip(" ") == "git status"
        assert is_line or call.command == ("git", "status")
        assert not call.has_more


def frames(data: bytes) -> None:
    """Any frame of a session can be stored as evidence, within the limit."""
    frame = _decoded(data)
    if not isinstance(frame, RemoteProtocolError | Batch):
        last = LastFrames()
        last.heard(frame)
        [shown] = last.received
        assert len(shown) <= KEPT_BYTES


def acp(data: bytes) -> None:
    """Each line of an ACP client is accepted or rejected, and the daemon sends only valid frames."""
    errors = _Errors(logging.ERROR)
    logging.getLogger("turnwire").addHandler(errors)
    try:
        for frame in asyncio.run(_answers(data.split(b"\n"))):
            decode(frame)
    finally:
        logging.getLogger("turnwire").removeHandler(errors)
    assert errors.found == []


class _Errors(logging.Handler):
    """Log records with an exception: failures of the daemon itself."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info is not None:
            self.found.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


async def _answers(lines: list[bytes]) -> list[bytes]:
    """Send lines to a daemon with a scripted agent, and return its frames."""
    sent: list[bytes] = []
    with tempfile.TemporaryDirectory(prefix="turnwire-fuzz-") as folder:
        settings = replace(Settings(), log="memory", cwd=(Path(folder),))
        async with (
            ScriptedSource() as source,
            open_daemon(settings, Limits(), source) as daemon,
            anyio.create_task_group() as tasks,
        ):
            connection = AcpConnection(daemon, Identity("fuzz", Role.OWNER), tasks)

            async def read() -> None:
                wake = Wake()
                reader = connection.join_all(wake)
                while (found := connection.take(reader)) is not None:
                    sent.extend(found)
                    if not found:
                        await wake.wait()

            tasks.start_soon(read)
            for line in lines:
                await connection.receive(line)
            for _ in range(20):
                await checkpoint()
            await connection.aclose(ends_work=True)
            tasks.cancel_scope.cancel()
    return sent


RULES = read_rules([{"answer": "allow_once", "argv": ["git", "status"]}])
JSON_SEEDS = (
    b'{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{"sessionId":"s","prompt":[]}}',
    b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"plan"}}}',
    b'{"jsonrpc":"2.0","id":"1","result":{"stopReason":"end_turn"}}',
    b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"\\ud800"}}',
    b'[{"jsonrpc":"2.0","method":"m"}]\n\r\n{}\n',
)
_HEAD = b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":'
_SAID = [
    _HEAD + update + b"}}"
    for update in (
        b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"hi"}}',
        b'{"sessionUpdate":"agent_thought_chunk","x":[{},{"a":"}"}]}',
        b'{"sessionUpdate":"tool_call","toolCallId":"t"}',
        b'{"sessionUpdate":"agent_message_chunk"} {"sessionUpdate":"agent_message_chunk"}',
    )
]
PIECE_SEEDS = (b"\n".join(_SAID[:1] * 6), b"\n".join(_SAID[:2] * 3), b"\n".join(_SAID[:1] * 5 + _SAID))
FRAME_SEEDS = (
    b'{"jsonrpc":"2.0","id":1,"method":"session/new","params":{"mcpServers":[{"env":[{"value":"x"}]}]}}',
    b'{"jsonrpc":"2.0","id":1,"method":"terminal/create","params":{"command":"x","env":[{"name":"a","value":"b"}]}}',
    b'{"jsonrpc":"2.0","id":1,"result":{"_meta":{"a":["x"]},"headers":{"x":"y"}}}',
)
POLICY_SEEDS = tuple(
    b'{"options":[{"optionId":"y","kind":"allow_once"}],"toolCall":{"toolCallId":"t","kind":"execute",'
    b'"locations":[{"path":"file:///w/%2e"}],"rawInput":' + each + b"}}"
    for each in (
        b'{"command":"git status"}',
        b'{"command":"git status","cwd":"/w","env":{}}',
        b'{"command":["git","status"]}',
        b'{"command":"git","args":["status"]}',
    )
)
_INITIALIZE = (
    b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{}}}\n'
)
ACP_SEEDS = (
    _INITIALIZE + b'{"jsonrpc":"2.0","id":1,"method":"session/new","params":{"cwd":"/tmp","mcpServers":[]}}',
    _INITIALIZE.replace(b":1", b":2") + b'{"jsonrpc":"2.0","id":1,"method":"session/list","params":{}}',
    _INITIALIZE + b'{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s1"}}\n[]\n{}',
    _INITIALIZE + b'{"jsonrpc":"2.0","id":1,"method":"_vendor/x","params":{"sessionId":"s1"}}',
    _INITIALIZE + b'{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":0}}',
)

TARGETS: dict[str, Callable[[bytes], None]] = {
    "jsonrpc": jsonrpc,
    "ndjson": ndjson,
    "peek": peek,
    "pieces": pieces,
    "frames": frames,
    "policy": policy,
    "acp": acp,
}
SEEDS: dict[str, Sequence[bytes]] = {
    **dict.fromkeys(("jsonrpc", "ndjson", "peek"), JSON_SEEDS),
    "pieces": PIECE_SEEDS,
    "frames": FRAME_SEEDS,
    "policy": POLICY_SEEDS,
    "acp": ACP_SEEDS,
}
"""Inputs from which the fuzzer starts."""
