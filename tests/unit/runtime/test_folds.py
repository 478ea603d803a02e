"""Opening a session from its log: only the newest snapshot and the tail after it are read."""

from __future__ import annotations

import pytest
from msgspec import Raw
from tests.support.driving import content

from turnwire.errors import LogCorrupt, SessionNotFound
from turnwire.ids import AgentSessionId, MessageId, PromptId, SessionId
from turnwire.limits import Limits
from turnwire.log import EventLog, MemoryEventLog
from turnwire.log.base import SessionHead, Snapshot
from turnwire.projections.view import VIEW_VERSION, View, encode_view
from turnwire.runtime import folds
from turnwire.runtime.folds import VIEW, KeptViews, open_state
from turnwire.runtime.session import STATE
from turnwire.session import events as ev
from turnwire.session.codec import encode, encode_state
from turnwire.session.evolve import fold
from turnwire.session.state import NOTHING, STATE_VERSION, SessionState
from turnwire_testing.faults import FaultyLog

pytestmark = pytest.mark.anyio

SESSION, PROMPT = SessionId("s1"), PromptId("p1")
LIMITS = Limits(page_events=16, snapshot_events=100)


def chunk(number: int) -> ev.SessionUpdated:
    text = (
        b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"%d "},"messageId":"m"}' % number
    )
    return ev.SessionUpdated(at=1, kind="agent_message_chunk", update=Raw(text), prompt_id=PROMPT)


def story(chunks: int) -> list[ev.AnyEvent]:
    return [
        ev.SessionCreated(at=1, session_id=SESSION, cwd="/work"),
        ev.AgentStarted(
            at=1, agent_session_id=AgentSessionId("a"), protocol_version=1, turn_end=ev.TurnEnd.RESPONSE
        ),
        ev.PromptAccepted(at=1, prompt_id=PROMPT, after_offset=2),
        ev.UserMessage(at=1, prompt_id=PROMPT, message_id=MessageId("u"), content=content("hello")),
        ev.TurnStarted(at=1, prompt_id=PROMPT),
        *map(chunk, range(chunks)),
    ]


async def written(events: list[ev.AnyEvent]) -> FaultyLog:
    log = FaultyLog(MemoryEventLog(), [])
    await log.create(SESSION)
    await log.append(SESSION, [encode(each) for each in events], expected=0, unsettled=False, durable=False)
    return log


def folded(events: list[ev.AnyEvent]) -> SessionState:
    return fold(events, NOTHING)


async def whole(log: EventLog) -> tuple[View, int]:
    """The whole view and its offset, without a cache."""
    view = await KeptViews(log, LIMITS).whole(SESSION)
    return view, view.offset


def viewed(events: list[ev.AnyEvent]) -> bytes:
    view = View()
    for event in events:
        view.apply(event)
    return encode_view(view)


async def test_without_a_snapshot_the_whole_log_is_folded_page_by_page() -> None:
    events = story(95)
    log = await written(events)
    opened = await open_state(log, SESSION, LIMITS)
    assert encode_state(opened.state) == encode_state(folded(events))
    assert (opened.session_id, opened.head) == (SESSION, 100)
    assert opened.epoch == (await log.head(SESSION)).epoch
    assert log.calls["read"] == 7


async def test_with_a_snapshot_only_the_tail_is_read() -> None:
    events = story(995)
    log = await written(events)
    snapshot = Snapshot(STATE, 990, STATE_VERSION, encode_state(folded(events[:990])))
    await log.save_snapshot(SESSION, snapshot)
    opened = await open_state(log, SESSION, LIMITS)
    assert encode_state(opened.state) == encode_state(folded(events))
    assert log.calls["read"] == 1


async def test_a_snapshot_at_the_head_reads_nothing() -> None:
    events = story(5)
    log = await written(events)
    await log.save_snapshot(SESSION, Snapshot(STATE, 10, STATE_VERSION, encode_state(folded(events))))
    assert (await open_state(log, SESSION, LIMITS)).head == 10
    assert log.calls["read"] == 0


@pytest.mark.parametrize(("version", "body"), [(STATE_VERSION + 1, None), (STATE_VERSION, b"damaged")])
async def test_a_snapshot_that_cannot_be_read_is_folded_anew(version: int, body: bytes | None) -> None:
    events = story(5)
    log = await written(events)
    kept = Snapshot(STATE, 10, version, body or encode_state(folded(events)))
    await log.save_snapshot(SESSION, kept)
    opened = await open_state(log, SESSION, LIMITS)
    assert encode_state(opened.state) == encode_state(folded(events))
    assert log.calls["read"] == 1


class MovingLog(MemoryEventLog):
    """A log whose owner, another node, appends and stores a snapshot while the session is opened here."""

    def __init__(self, events: list[ev.AnyEvent]) -> None:
        super().__init__()
        self._events = events

    async def load_snapshot(self, session_id: SessionId, name: str) -> Snapshot | None:
        at = (await self.head(session_id)).head
        for after, more in ((at, at + 3), (at + 3, len(self._events))):
            bodies = [encode(each) for each in self._events[after:more]]
            await self.append(session_id, bodies, expected=after, unsettled=False, durable=False)
            if after == at:
                body = encode_state(folded(self._events[:more]))
                await self.save_snapshot(session_id, Snapshot(STATE, more, STATE_VERSION, body))
        return await super().load_snapshot(session_id, name)


async def test_a_snapshot_newer_than_the_head_that_was_asked_for_gives_the_state_of_its_own_place() -> None:
    events = story(5)
    log = MovingLog(events)
    await log.create(SESSION)
    await log.append(SESSION, [encode(each) for each in events[:4]], expected=0, unsettled=False, durable=False)
    opened = await open_state(log, SESSION, LIMITS)
    assert opened.head >= 7, "behind the snapshot nothing is to be folded twice"
    assert encode_state(opened.state) == encode_state(folded(events[: opened.head]))


async def test_a_session_that_is_not_there_is_not_found() -> None:
    with pytest.raises(SessionNotFound):
        await open_state(MemoryEventLog(), SESSION, LIMITS)
    with pytest.raises(SessionNotFound):
        await whole(MemoryEventLog())


async def test_a_damaged_event_is_told() -> None:
    log = await written(story(1))
    await log.append(SESSION, [b"{"], expected=6, unsettled=False, durable=False)
    with pytest.raises(LogCorrupt):
        await open_state(log, SESSION, LIMITS)


async def test_a_view_is_the_fold_of_the_log_with_and_without_a_snapshot() -> None:
    events = story(295)
    log = await written(events)
    view, head = await whole(log)
    assert (encode_view(view), head) == (viewed(events), 300)
    kept = await log.load_snapshot(SESSION, VIEW)
    assert kept is not None
    assert (kept.offset, kept.version) == (300, VIEW_VERSION)
    reads = log.calls["read"]
    more = [*map(chunk, range(10))]
    await log.append(SESSION, [encode(each) for each in more], expected=300, unsettled=False, durable=False)
    view, head = await whole(log)
    assert (encode_view(view), head) == (viewed([*events, *more]), 310)
    assert log.calls["read"] == reads + 1


async def test_a_view_that_was_quick_to_fold_is_not_kept() -> None:
    log = await written(story(50))
    await whole(log)
    assert log.calls["save_snapshot"] == 0


async def test_a_long_view_is_kept_again_only_after_the_log_has_grown_by_so_many_events() -> None:
    events = story(395)
    log = await written(events)
    kept: list[int] = []
    for head in range(400, 1000, 50):
        await whole(log)
        snapshot = await log.load_snapshot(SESSION, VIEW)
        assert snapshot is not None
        kept.append(snapshot.offset)
        more = [encode(chunk(number)) for number in range(50)]
        await log.append(SESSION, more, expected=head, unsettled=False, durable=False)
    assert sorted(set(kept)) == [400, 500, 600, 700, 800, 900]


async def test_keeping_a_view_keeps_it_whatever_its_length_and_once() -> None:
    log = await written(story(5))
    views = KeptViews(log, LIMITS)
    assert await views.keep(SESSION) == 10
    assert await views.keep(SESSION) == 10
    assert log.calls["save_snapshot"] == 1


async def test_a_view_newer_than_the_head_that_was_read_says_its_own_offset() -> None:
    events = story(50)
    log = await written(events)

    class Moving(FaultyLog):
        """While the head is being read, another node appends and stores a view."""

        async def head(self, session_id: SessionId, *, anew: bool = False) -> SessionHead:
            before = await super().head(session_id, anew=anew)
            more = [*map(chunk, range(10))]
            await self.append(
                session_id, [*map(encode, more)], expected=before.head, unsettled=False, durable=False
            )
            await self.save_snapshot(session_id, Snapshot(VIEW, 65, VIEW_VERSION, viewed([*events, *more])))
            return before

    view, offset = await whole(Moving(log, []))
    more = [*map(chunk, range(10))]
    assert (offset, encode_view(view)) == (65, viewed([*events, *more]))


async def test_the_views_that_were_read_longest_ago_are_let_go_when_all_are_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = [encode(each) for each in story(200)]
    size = sum(map(len, events))
    log = FaultyLog(MemoryEventLog(), [])
    names = [SessionId(f"s{number}") for number in range(6)]
    for name in names:
        await log.create(name)
        await log.append(name, events, expected=0, unsettled=False, durable=False)
    monkeypatch.setattr(folds, "VIEW_BYTES", 3 * size)
    views = KeptViews(log, Limits())

    def kept() -> set[SessionId]:
        return {each for each in names if views.has(each)}

    for name in names[:4]:
        await views.newest(name)
    assert kept() == {*names[1:4]}
    await views.newest(names[1])
    await views.newest(names[4])
    assert kept() == {names[1], names[3], names[4]}, "one that was read again is new"
    await log.delete(names[3])
    with pytest.raises(SessionNotFound):
        await views.newest(names[3])
    views.forget(names[4])
    await views.newest(names[5])
    await views.newest(names[0])
    assert kept() == {names[0], names[1], names[5]}, "what is gone has no share"
    await log.append(names[1], events[5:] * 4, expected=len(events), unsettled=False, durable=False)
    await views.newest(names[1])
    assert kept() == {names[1]}, "the one that is read stays, however large"
