"""Events to bytes and back: nothing changes on the way, and unreadable data raises with the reason."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from tests.unit.session.driving import (
    AT,
    SAMPLES,
    Session,
    answered,
    asks,
    cancel,
    prompt,
    said,
    steered,
    tool,
)

from turnwire.errors import LogCorrupt, LogVersionMismatch
from turnwire.ids import PromptId
from turnwire.session import events as ev
from turnwire.session.codec import (
    decode,
    decode_state,
    encode,
    encode_all,
    encode_state,
)
from turnwire.session.inputs import WhenBusy
from turnwire.session.state import NOTHING, STATE_VERSION

ids = pytest.mark.parametrize("event", SAMPLES, ids=lambda event: type(event).__name__)


@ids
def test_every_event_comes_back_as_it_was(event: ev.AnyEvent) -> None:
    assert decode(encode(event)) == event
    assert encode(decode(encode(event))) == encode(event)


def test_many_are_encoded_like_each() -> None:
    assert encode_all(SAMPLES) == [encode(each) for each in SAMPLES]


def test_a_payload_is_stored_byte_for_byte() -> None:
    odd = Raw(b'{"sessionUpdate":"x",  "n":1.50, "n":2e0,"u":"\\u00e9"}')
    event = ev.SessionUpdated(at=AT, kind="x", update=odd)
    assert bytes(odd) in encode(event)
    back = decode(encode(event))
    assert isinstance(back, ev.SessionUpdated)
    assert bytes(back.update) == bytes(odd)


@pytest.mark.parametrize("number", [2, "2", 0, "", -1, 2**63 - 1])
def test_a_request_id_keeps_its_json_type(number: int | str) -> None:
    event = ev.PromptAccepted(at=AT, prompt_id=PromptId("t1"), after_offset=0, prompt_request_id=number)
    back = decode(encode(event))
    assert isinstance(back, ev.PromptAccepted)
    assert back.prompt_request_id == number
    assert type(back.prompt_request_id) is type(number)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\x00\xff",
        b"[]",
        b"null",
        b"{}",
        b'{"type":null,"at":1}',
        b'{"type":5,"at":1}',
        b'{"type":"\xff","at":1}',
        b'{"type":"turn_started"}',
        b'{"type":"turn_started","at":"now","promptId":"t1"}',
        b'{"type":"turn_complete","at":1,"promptId":"t1","stopReason":"end_turn","ending":"boredom"}',
        b'{"a":' * 5_000,
        b"[" * 5_000,
    ],
)
def test_garbage_is_a_corrupt_log(body: bytes) -> None:
    with pytest.raises(LogCorrupt):
        decode(body)


def test_unknown_event_type_is_a_version_mismatch() -> None:
    with pytest.raises(LogVersionMismatch) as refusal:
        decode(b'{"type":"turn_paused","at":1,"promptId":"t1"}')
    assert refusal.value.context == {"type": "turn_paused"}
    with pytest.raises(LogVersionMismatch):
        decode(b'{"type":"turn_started@2","at":1,"promptId":"t1"}')


def test_a_field_that_a_newer_version_added_is_passed_over() -> None:
    assert decode(b'{"type":"turn_blocked","at":1,"promptId":"t1","why":"x"}') == ev.TurnBlocked(
        at=1, prompt_id=PromptId("t1")
    )


@given(st.binary(max_size=60))
def test_any_bytes_are_an_event_or_a_typed_error(body: bytes) -> None:
    try:
        decode(body)
    except (LogCorrupt, LogVersionMismatch):
        return


@given(st.sampled_from(SAMPLES), st.integers(0, 400), st.binary(min_size=1, max_size=3))
def test_a_damaged_event_is_an_event_or_a_typed_error(event: ev.AnyEvent, place: int, damage: bytes) -> None:
    body = encode(event)
    try:
        decode(body[:place] + damage + body[place + len(damage) :])
    except (LogCorrupt, LogVersionMismatch):
        return


def test_a_state_survives_its_snapshot() -> None:
    session = Session(ev.TurnEnd.RESPONSE, steering=True)
    session.take(prompt("p0"), tool("old"), answered("p0"))
    session.take(prompt("p1", key="k1", digest="d", request_id="7"), tool("t1"), asks("q1", "1"))
    session.take(prompt("p2", when=WhenBusy.STEER), steered("p2", injected=True), prompt("p3", request_id=7))
    assert decode_state(encode_state(session.state), STATE_VERSION) == session.state
    session.take(cancel(), said("user_message_chunk", messageId="m"))
    assert decode_state(encode_state(session.state), STATE_VERSION) == session.state
    assert decode_state(encode_state(NOTHING), STATE_VERSION) == NOTHING


@pytest.mark.parametrize("body", [b"", b"[]", b'{"phase":"half"}', b'{"cwd":"\xff"}', b'{"x":' * 5_000])
def test_a_snapshot_that_cannot_be_read_is_folded_anew(body: bytes) -> None:
    assert decode_state(body, STATE_VERSION) is None


def test_a_snapshot_of_another_version_is_folded_anew() -> None:
    assert decode_state(encode_state(NOTHING), STATE_VERSION + 1) is None


def test_a_line_of_the_log_is_readable_json() -> None:
    body = encode(ev.TurnStarted(at=AT, prompt_id=PromptId("t1")))
    assert msgspec.json.decode(body) == {"type": "turn_started", "at": AT, "promptId": "t1"}
