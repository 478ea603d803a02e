"""Laws of receipts: what was stored in whatever batches proves itself, and nothing can be altered unseen."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from tests.properties.test_kept_views import STORY

from turnwire.core import events as ev
from turnwire.core import inputs as i
from turnwire.core import receipts
from turnwire.core.codec import decode, decode_chain, encode_all, encode_state
from turnwire.core.decide import take
from turnwire.core.draft import Draft
from turnwire.core.receipts import Chain
from turnwire.core.state import NOTHING
from turnwire.core.stored_file import Fault, Head, Report, StoredFile, check
from turnwire.ids import AgentSessionId, Epoch, PromptId, SessionId
from turnwire.limits import Limits
from turnwire.wire.peek import as_lines, peek_update

Stored: TypeAlias = list[tuple[int, bytes]]


@pytest.fixture(autouse=True, scope="module")
def short_links() -> Generator[None]:
    """Links so short that a turn has several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(receipts, "LINK", 4)
        yield


def opened_again(chain: Chain, bodies: list[bytes]) -> Chain:
    """The chain as who opens the session from a snapshot finds it."""
    mark = decode_chain(encode_state(NOTHING, chain))
    assert mark is not None
    again = Chain.at(mark)
    again.take(bodies[mark.offset :])
    return again


@st.composite
def logs(draw: st.DrawFn) -> list[bytes]:
    """A session as it is stored: in batches, with openings from snapshots in between."""
    bodies: list[bytes] = []
    chain = Chain()
    events = [each for part in draw(STORY) for each in part]
    while events:
        count = draw(st.integers(1, 9))
        batch, events = events[:count], events[count:]
        stored = encode_all(batch)
        chain.seal(batch, stored)
        assert encode_all(batch) == stored, "what is told of an event is what is stored"
        bodies += stored
        if draw(st.booleans()):
            chain = opened_again(chain, bodies)
    return bodies


def file_of(stored: Stored, last: int) -> list[bytes]:
    file = StoredFile(Head(session_id=SessionId("s1"), epoch=Epoch("e"), first=1, last=last))
    return [file.head, *file.lines(stored).splitlines()]


def checked(lines: list[bytes], last: int) -> Report:
    head = Head(session_id=SessionId("s1"), epoch=Epoch("e"), first=1, last=last)
    return check(head, lambda: lines)


def last_end(bodies: list[bytes]) -> int:
    ends = [number for number, body in enumerate(bodies, 1) if isinstance(decode(body), ev.TerminalEvent)]
    return ends[-1]


def changed(body: bytes) -> bytes:
    """The same event a while later."""
    return re.sub(rb'"at":', b'"at":1', body)


@settings(max_examples=40, deadline=None)
@given(bodies=logs())
def test_what_was_stored_is_proven_up_to_the_last_end(bodies: list[bytes]) -> None:
    report = checked(file_of(list(enumerate(bodies, 1)), len(bodies)), len(bodies))
    end = last_end(bodies)
    assert report.problem is None
    assert report.proven == ((1, end),)
    assert report.unproven == (((end + 1, len(bodies)),) if end < len(bodies) else ())
    last = decode(bodies[end - 1])
    assert isinstance(last, ev.TerminalEvent)
    assert last.receipt is not None
    assert report.hash == last.receipt.hash


def _change(lines: list[bytes], at: int) -> None:
    lines[at] = changed(lines[at])


def _drop(lines: list[bytes], at: int) -> None:
    del lines[at]


def _add(lines: list[bytes], at: int) -> None:
    lines.insert(at, lines[at])


def _swap(lines: list[bytes], at: int) -> None:
    lines[at], lines[at + 1] = lines[at + 1], lines[at]


@settings(max_examples=40, deadline=None)
@given(bodies=logs(), data=st.data())
def test_a_line_that_was_altered_is_named(bodies: list[bytes], data: st.DataObject) -> None:
    lines = file_of(list(enumerate(bodies, 1)), len(bodies))
    ways = {Fault.CHANGED: _change, Fault.DROPPED: _drop, Fault.ADDED: _add, Fault.SWAPPED: _swap}
    fault = data.draw(st.sampled_from(list(ways)))
    at = data.draw(st.integers(1, len(bodies) - (fault is Fault.SWAPPED)))
    ways[fault](lines, at)
    problem = checked(lines, len(bodies)).problem
    assert problem is not None
    assert (problem.fault, problem.event) == (fault, at)


@settings(max_examples=40, deadline=None)
@given(bodies=logs(), data=st.data())
def test_an_event_that_was_altered_is_found_also_when_numbers_and_sums_are_made_anew(
    bodies: list[bytes], data: st.DataObject
) -> None:
    """Up to the last end, whose receipt is what all of it is held against."""
    way: Callable[[list[bytes], int], None] = data.draw(st.sampled_from([_change, _drop, _add, _swap]))
    end = last_end(bodies)
    at = data.draw(st.integers(0, end - 1 if way in (_change, _add) else end - 2))
    altered = list(bodies)
    way(altered, at)
    report = checked(file_of(list(enumerate(altered, 1)), len(altered)), len(altered))
    assert (report.problem is None) == (altered == bodies)


KINDS = st.sampled_from(["agent_message_chunk", "agent_thought_chunk"])
TEXTS = st.sampled_from([b"a", b"b", b',\\"update\\":{', b',\\"promptId\\":\\"p\\"', b"\\u0000"])
BATCHES = st.lists(
    st.lists(
        st.tuples(st.integers(1, 2), KINDS, st.lists(TEXTS, min_size=1, max_size=9), st.booleans()), max_size=4
    ),
    max_size=5,
)


@settings(max_examples=60, deadline=None)
@given(batches=BATCHES)
def test_pieces_that_came_together_are_the_same_hash_as_each_by_itself(
    batches: list[list[tuple[int, str, list[bytes], bool]]],
) -> None:
    """What a draft knows of its runs saves time alone: who opens the log, or a file of it, knows of none."""
    draft = Draft(NOTHING, 0, Limits())
    take(draft, i.CreateSession(at=1, session_id=SessionId("s1"), cwd="/"))
    take(draft, i.Prompt(at=1, prompt_id=PromptId("p"), content=Raw(b'[{"type":"text","text":"x"}]')))
    agent_session_id = AgentSessionId("a")
    turn_end = ev.TurnEnd.RESPONSE
    take(draft, i.AgentReady(at=1, agent_session_id=agent_session_id, protocol_version=1, turn_end=turn_end))
    state, chain, stored = draft.state, Chain(), list[bytes]()
    for number, batch in enumerate([*batches, []]):
        draft = Draft(state, len(stored), Limits())
        for at, kind, texts, is_together in batch:
            updates = [
                Raw(b'{"sessionUpdate":"%b","content":{"type":"text","text":"%b"}}' % (kind.encode(), each))
                for each in texts
            ]
            if is_together:
                take(draft, i.AgentPieces(at=at, kind=kind, updates=updates, lines=as_lines(updates)))
            else:
                for each in updates:
                    take(draft, i.AgentUpdate(at=at, update=each, peek=peek_update(each)))
        assert sum(len(each.payloads) for each in draft.runs) == sum(len(each[2]) for each in batch if each[3])
        if number == len(batches):
            take(draft, i.AgentAnswered(at=3, prompt_id=PromptId("p"), stop_reason="end_turn"))
        bodies = encode_all(draft.events)
        chain.seal(draft.events, bodies, draft.runs)
        state = draft.state
        stored += bodies
    report = checked(file_of(list(enumerate(stored, 1)), len(stored)), len(stored))
    assert (report.problem, report.proven, report.receipts) == (None, ((1, len(stored)),), 1)
