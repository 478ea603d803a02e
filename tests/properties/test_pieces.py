"""Lines that are read together give the same updates in the same order as each of them alone, and different lines
are never confused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from turnwire.wire.peek import FEW, TOGETHER, PieceReader, Pieces, UpdatePeek, peek_update, read_update_line

Seen = tuple[str, bytes] | bytes

KINDS = ("agent_message_chunk", "agent_thought_chunk")


def frame(update: Any, session_id: str = "a1", *, spaces: bool = False, **beside: Any) -> bytes:
    params = {"sessionId": session_id, "update": update}
    message = {"jsonrpc": "2.0", "method": "session/update", "params": params, **beside}
    text = json.dumps(message, separators=None if spaces else (",", ":"), ensure_ascii=not spaces)
    return text.encode(errors="surrogatepass")


def piece(text: str, kind: str = KINDS[0], session_id: str = "a1", *, spaces: bool = False) -> bytes:
    content = {"type": "text", "text": text}
    return frame({"sessionUpdate": kind, "content": content}, session_id, spaces=spaces)


PIECE = piece("hi")
HEAD, TAIL = PIECE.partition(b'{"sessionUpdate"')[0], b"}}"
texts = st.sampled_from(["hi", "é😀", '","update":{', "}}\\u0000{", "\ud800", "x" * 400])
pieces = st.builds(
    piece, texts, st.sampled_from(KINDS), st.sampled_from(["a1", "a1", "a2", 'q"é']), spaces=st.booleans()
)
ANSWER = b'{"jsonrpc":"2.0","id":1,"result":{"stopReason":"end_turn"}}'
CALL = frame({"sessionUpdate": "tool_call", "toolCallId": "t"})
ODD = [
    b"",
    b"{",
    b"\xff",
    b"[1]",
    HEAD + TAIL,
    HEAD + b"{}" + TAIL,
    HEAD + b"7" + TAIL,
    # Two that together are one, and one that is two.
    HEAD + b'{"sessionUpdate":"agent_message_chunk","x":[{}' + TAIL,
    HEAD + b'{}],"y":{"sessionUpdate":"agent_message_chunk"}}' + TAIL,
    HEAD + b'{"sessionUpdate":"agent_message_chunk","x":"}' + TAIL,
    HEAD + b'{"}' + TAIL,
    HEAD + b'{"sessionUpdate":"agent_message_chunk"} {"sessionUpdate":"agent_message_chunk"}' + TAIL,
    HEAD + b'{"sessionUpdate":"agent_message_chunk"},{"sessionUpdate":"agent_message_chunk"}' + TAIL,
    HEAD + b'{"sessionUpdate":"agent_message_chunk"}' + TAIL + b"\0" + HEAD + b"{}" + TAIL,
    # As it should not be, or not only.
    HEAD + b'{"sessionUpdate":"tool_call","sessionUpdate":"agent_message_chunk"}' + TAIL,
    HEAD + b'{"sessionUpdate":"agent_message_chunk","sessionUpdate":"tool_call"}' + TAIL,
    HEAD + b'{"sessionUpdate":"agent_message_chunk","status":7,"messageId":[]}' + TAIL,
    HEAD + b'{"sessionUpdate":"agent_message_chunk",\r"x":1}' + TAIL,
    HEAD + b'{"sessionUpdate":"agent_message_chunk",\n"x":1}' + TAIL,
    HEAD + b'{"sessionUpdate":"agent_message_chunk","x":"\xff"}' + TAIL,
    HEAD + b'{"sessionUpdate":"agent_message_chunk","x":"\\ud800"}' + TAIL,
    PIECE + b" ",
    b" " + PIECE,
    PIECE[:-1] + b',"id":1}',
    PIECE[:-1] + b',"extra":{}}',
    PIECE[:-2] + b',"_meta":{}}}',
    PIECE.replace(b'"update":', b'"update":{},"update":'),
    PIECE[:-1] + b',"params":{"sessionId":"a2","update":{"sessionUpdate":"plan"}}}',
    CALL,
    frame({"sessionUpdate": "state_update", "state": "idle"}),
    frame({"sessionUpdate": "turn_complete", "stopReason": "end_turn"}),
    frame({"sessionUpdate": "user_message_chunk"}),
    frame({"content": 1}),
    b'{"jsonrpc":"2.0","id":1,"method":"session/request_permission","params":{"sessionId":"a1"}}',
    ANSWER,
]
TWO_AS_ONE = [HEAD + each + TAIL for each in (b'{"sessionUpdate":"agent_message_chunk","x":[{},', b"{}]}")]
ELSEWHERE = b'{"extra":{"sessionUpdate":"agent_message_chunk","x":"%b"},' + (
    HEAD[1:] + b'{"sessionUpdate":"agent_message_chunk","x":"a"}' + TAIL
)
"""Lines in which text like the update also appears in another position."""
ODD.extend([*TWO_AS_ONE, ELSEWHERE % b"a", ELSEWHERE % b"b"])
runs = st.tuples(st.integers(1, 9), pieces | st.sampled_from(ODD))
bursts = st.lists(runs, max_size=8).map(lambda some: [line for count, line in some for _ in range(count)])


def alone(line: bytes) -> Seen:
    """Return the result of a line alone."""
    params = read_update_line(line)
    return line if params is None else (params.session_id, bytes(params.update))


def together(found: Iterable[Pieces | bytes]) -> list[Seen]:
    seen: list[Seen] = []
    for each in found:
        if isinstance(each, bytes):
            seen.append(alone(each))
            continue
        for update in each.updates:
            peek = peek_update(update)
            assert peek == UpdatePeek(each.kind, peek.message_id), "there is nothing else to know of it"
            assert each.kind in KINDS
            seen.append((each.session_id, bytes(update)))
    return seen


@settings(deadline=None, max_examples=400)
@given(bursts, st.lists(st.integers(0, 80), max_size=4))
@example([PIECE] * 4 + TWO_AS_ONE + ODD[11:12] + [PIECE] * 4, [])
@example([ELSEWHERE % b"a", ELSEWHERE % b"b", ELSEWHERE % b"b", ELSEWHERE % b"b"], [])
@example([PIECE] * 5 + ODD[7:9] + [PIECE] * 5 + ODD[11:12], [])
@example([PIECE] * 4 + ODD[9:11] + ODD[11:12] + [PIECE] * 4, [])
def test_lines_are_the_same_together_and_alone_however_they_come(lines: list[bytes], cuts: list[int]) -> None:
    reader = PieceReader()
    seen: list[Seen] = []
    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), len(lines)], strict=True):
        seen += together(reader.read(lines[start:stop]))
    assert seen == [alone(line) for line in lines]


def read(*lines: bytes) -> list[Pieces | bytes]:
    return list(PieceReader().read(lines))


@pytest.mark.parametrize("spaces", [False, True])
def test_pieces_of_one_message_come_together(spaces: bool) -> None:
    lines = [piece(f"é {number}", spaces=spaces) for number in range(TOGETHER + FEW)]
    assert [len(each.updates) for each in read(*lines) if isinstance(each, Pieces)] == [TOGETHER, FEW]


def test_a_thought_and_what_is_said_then_are_apart_and_what_is_none_of_both_is_a_line() -> None:
    thought = [piece("so", KINDS[1])] * 4
    found = read(*thought, *[PIECE] * 4, ANSWER)
    assert [each.kind if isinstance(each, Pieces) else each for each in found] == [*reversed(KINDS), ANSWER]


def test_what_is_said_around_a_tool_call_comes_together_on_both_sides_of_it() -> None:
    found = read(*[PIECE] * 4, CALL, CALL, *[PIECE] * 4)
    assert [len(each.updates) if isinstance(each, Pieces) else each for each in found] == [4, CALL, CALL, 4]


def test_lines_of_another_session_are_not_taken_for_those_of_the_first() -> None:
    other = piece("hi", session_id="a2")
    found = read(*[PIECE] * 5, *[other] * 5)
    update = read_update_line(PIECE).update  # pyright: ignore[reportOptionalMemberAccess]
    assert found[0] == ("a1", KINDS[0], [update] * 5)
    assert found[1:] == [other] * 5


DEEP = HEAD + b'{"sessionUpdate":"agent_message_chunk","x":' + b"[" * 3000 + b"]" * 3000 + b"}" + TAIL


@pytest.mark.parametrize("odd", [*(ODD[index] for index in (7, 8, 9, 10, 11, 13, 16, 17, 18)), DEEP])
def test_an_odd_line_among_pieces_is_left_to_whoever_takes_it_alone(odd: bytes) -> None:
    lines = [*[PIECE] * 9, odd, *[PIECE] * 9]
    assert together(read(*lines)) == [alone(each) for each in lines]
