"""What is fuzzed: functions of bytes that must hold for every input, each with its rule.

Takes any bytes; returns, or raises `AssertionError` or whatever the code under test should not have raised. Never
needs a fuzzer: `python -m fuzz` gives the bytes, and so does a test.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Raw

from turnwire.errors import RemoteProtocolError
from turnwire.wire.jsonrpc import Batch, Frame, Notification, Request, decode, encode
from turnwire.wire.ndjson import LineReader
from turnwire.wire.peek import peek_session_id, peek_update, peek_update_params

MAX_BYTES = 64
"""A line may have so many bytes here, so that short inputs reach the bound."""


def jsonrpc(data: bytes) -> None:
    """A line is a frame, which is the same once it is encoded, or is refused with a reason and a code."""
    frame = _decoded(data)
    if isinstance(frame, RemoteProtocolError):
        assert frame.context["reason"]
        assert frame.context["jsonrpc"] in {-32700, -32600}
    elif not isinstance(frame, Batch):
        line = encode(frame)
        assert b"\n" not in line
        assert decode(line) == frame


def ndjson(data: bytes) -> None:
    """How the bytes are cut makes no difference, and no line is longer than the bound."""
    whole = LineReader(MAX_BYTES)
    lines = [*whole.feed(data), *whole.end()]
    step = data[0] % 7 + 1 if data else 1
    cut = LineReader(MAX_BYTES)
    pieces = [line for at in range(0, len(data), step) for line in cut.feed(data[at : at + step])]
    assert [*pieces, *cut.end()] == lines
    assert all(len(line) <= MAX_BYTES for line in lines if isinstance(line, bytes))


def peek(data: bytes) -> None:
    """The params of any frame can be looked into, and what they are not is refused."""
    frame = _decoded(data)
    if isinstance(frame, Request | Notification):
        peek_session_id(frame.params)
        kind = _kind(frame.params)
        assert isinstance(kind, str) or kind.context["reason"]


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


TARGETS: dict[str, Callable[[bytes], None]] = {"jsonrpc": jsonrpc, "ndjson": ndjson, "peek": peek}

SEEDS = (
    b'{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{"sessionId":"s","prompt":[]}}',
    b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"plan"}}}',
    b'{"jsonrpc":"2.0","id":"1","result":{"stopReason":"end_turn"}}',
    b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"\\ud800"}}',
    b'[{"jsonrpc":"2.0","method":"m"}]\n\r\n{}\n',
)
"""Where a fuzzer starts."""
