"""The ready gate alone: order is preserved, nothing is lost and nothing is sent twice, in any order of events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwire.agent.session_client import Gate, GateStage
from turnwire.errors import LimitExceeded
from turnwire.wire.schema.update import FULL_STATE

STEPS = st.lists(st.sampled_from(["update", "answered", "ready"]), max_size=60)


@given(STEPS, st.booleans())
def test_everything_passes_once_in_order_and_nothing_before_the_answer_and_ready(
    steps: list[str], waits: bool
) -> None:
    gate, put, out = Gate(1000), list[bytes](), list[bytes]()
    is_answered = is_ready = False
    for step in steps:
        if step == "update":
            frame = b"%d" % len(put)
            put.append(frame)
            if gate.take("agent_message_chunk", frame):
                out.append(frame)
        elif step == "answered":
            out += gate.answered(waits=waits)
            is_ready = is_ready or (not is_answered and not waits)
            is_answered = True
        else:
            out += gate.open()
            is_ready = is_ready or is_answered
        # The output is a prefix of the input, and all of it once the client is ready.
        assert out == put[: len(out)]
        assert gate.holds == len(put) - len(out)
        if is_ready:
            assert out == put
        else:
            assert out == []


def test_ready_before_the_answer_has_no_effect() -> None:
    gate = Gate(10)
    assert not gate.take("x", b"1")
    assert gate.open() == []
    assert gate.stage is GateStage.OPENING
    assert gate.answered(waits=True) == []
    assert gate.answered(waits=False) == []
    assert gate.open() == [b"1"]
    assert gate.open() == []


@given(st.lists(st.sampled_from([*sorted(FULL_STATE), "agent_message_chunk"]), max_size=40), st.integers(1, 10))
def test_too_many_are_coalesced_by_full_state_and_others_are_never_dropped(kinds: list[str], bound: int) -> None:
    gate, taken = Gate(bound), list[tuple[str, bytes]]()
    for number, kind in enumerate(kinds):
        try:
            gate.check(kind)
        except LimitExceeded:
            is_full = gate.holds >= bound
            assert is_full
            continue
        frame = b"%d" % number
        gate.take(kind, frame)
        taken.append((kind, frame))
    gate.answered(waits=True)
    out = gate.open()
    assert len(out) <= max(bound, 1)
    assert [frame for kind, frame in taken if kind not in FULL_STATE] == [
        frame for frame in out if {each: kind for kind, each in taken}[frame] not in FULL_STATE
    ]
    # The newest of each full state is included, and all are in order.
    assert [int(each) for each in out] == sorted(int(each) for each in out)
    for kind in FULL_STATE & {kind for kind, _ in taken}:
        assert [frame for each, frame in taken if each == kind][-1] in out


def test_a_client_that_left_holds_nothing_and_an_end_is_held_whatever_the_bound() -> None:
    gate = Gate(1)
    gate.take("agent_message_chunk", b"1")
    with pytest.raises(LimitExceeded):
        gate.check("agent_message_chunk")
    assert not gate.take("", b"the end")
    gate.discard()
    assert gate.holds == 0
    assert gate.take("agent_message_chunk", b"2")
