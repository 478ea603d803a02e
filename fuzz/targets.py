"""What is fuzzed: functions of bytes that must hold for every input, each with its rule.

Takes any bytes; returns, or raises `AssertionError` or whatever the code under test should not have raised. Never
needs a fuzzer: `python -m fuzz` gives the bytes, and so does a test.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from msgspec import Raw

from fuzz.connections import HTTP2_SEEDS, http2
from fuzz.requests import ACP_SEEDS, REST_SEEDS, acp, rest
from turnwire.core.policy import KnownCall, amended, judge, read_request, read_rules
from turnwire.core.shell_line import candidates, read_line
from turnwire.errors import RemoteProtocolError
from turnwire.runtime.last_frames import KEPT_BYTES, LastFrames
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


def pieces(data: bytes) -> None:
    """Lines that are read together are what each is alone."""
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


def shell(data: bytes) -> None:
    """Any text is taken apart, and a plain line is one command that reads the same when it is written anew."""
    line = data.decode(errors="replace")
    reading = read_line(line)
    list(candidates(reading))
    if reading.is_plain:
        [words] = reading.commands
        assert read_line(shlex.join(words)).commands == (words,)


def policy(data: bytes) -> None:
    """Whatever an agent says of a call, rules have a verdict, and nothing is allowed that is not plain."""
    request = read_request(SESSION_REQUEST_PERMISSION, Raw(data))
    if request is None:
        return
    call = amended(KnownCall(), request.tool_call, null_clears=False)
    if call is not None and judge(RULES, request, call, cwd="/w", attended=False) is not None:
        assert call.command is not None
        assert read_line(call.command).is_plain


def frames(data: bytes) -> None:
    """Whatever is said about a session can be shown, and no more of it is kept than is shown."""
    frame = _decoded(data)
    if not isinstance(frame, RemoteProtocolError | Batch):
        last = LastFrames()
        last.heard(frame)
        [shown] = last.received
        assert len(shown) <= KEPT_BYTES


RULES = read_rules([{"answer": "allow_once", "command": "*"}])
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
SHELL_SEEDS = (
    b"git status --short 'a b' \"c\"",
    b"A=1 if true; then rm -rf x; fi > out 2>&1 < in",
    b'echo $(rm x) `rm y` "$(rm z)" ${A:-b} {a,b} *.py ~/x # end',
    b"cat <<E | sh -c 'sudo rm x' && (a; b) || ! c &\nrm y\nE\n",
)
POLICY_SEEDS = tuple(
    b'{"options":[{"optionId":"y","kind":"allow_once"}],"toolCall":{"toolCallId":"t","kind":"execute",'
    b'"locations":[{"path":"file:///w/%2e"}],"rawInput":{"command":"'
    + each.replace(b"\\", b"").replace(b'"', b"").replace(b"\n", b"\\n")
    + b'"}}}'
    for each in SHELL_SEEDS
)

TARGETS: dict[str, Callable[[bytes], None]] = {
    "jsonrpc": jsonrpc,
    "ndjson": ndjson,
    "peek": peek,
    "pieces": pieces,
    "frames": frames,
    "shell": shell,
    "policy": policy,
    "rest": rest,
    "acp": acp,
    "http2": http2,
}
SEEDS: dict[str, Sequence[bytes]] = {
    **dict.fromkeys(("jsonrpc", "ndjson", "peek"), JSON_SEEDS),
    "pieces": PIECE_SEEDS,
    "frames": FRAME_SEEDS,
    "shell": SHELL_SEEDS,
    "policy": POLICY_SEEDS,
    "rest": REST_SEEDS,
    "acp": ACP_SEEDS,
    "http2": HTTP2_SEEDS,
}
"""Where a fuzzer starts."""
