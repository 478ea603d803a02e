"""Laws of views whose older part is stored: however they are saved, dropped and read, they equal the fold of the
log.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from tests.properties.test_view import LOGS, fold

from turnwire.ids import AgentSessionId, ChildId, MessageId, PromptId, SessionId
from turnwire.limits import Limits
from turnwire.log import MemoryEventLog
from turnwire.projections.translate.views import items_in
from turnwire.projections.view import View, encode_view, paged
from turnwire.projections.view import view as view_module
from turnwire.runtime import folds
from turnwire.runtime.folds import KeptViews
from turnwire.server.endpoint import ShapeName
from turnwire.server.routes.transcripts import TranscriptQuery, earlier_of, page_of
from turnwire.session import events as ev
from turnwire.session.codec import encode

SESSION = SessionId("s1")
PROMPTS = [PromptId(name) for name in ("p1", "p2", "p3", "t0", "t1", "t2", "t5", "t9", "none")]
SAID: list[dict[str, Any]] = [
    {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "a"}},
    {"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": "b"}},
    {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "c"}, "messageId": "@"},
    {"sessionUpdate": "agent_message", "content": [{"type": "text", "text": "d"}], "messageId": "@"},
    {"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": "e"}, "messageId": "@"},
    {"sessionUpdate": "tool_call", "toolCallId": "@", "title": "f", "status": "in_progress"},
    {"sessionUpdate": "tool_call_update", "toolCallId": "@", "status": "completed"},
    {"sessionUpdate": "tool_call_content_chunk", "toolCallId": "@", "content": {"type": "content"}},
    {"sessionUpdate": "compaction_update", "compactionId": "@", "status": "in_progress"},
    {"sessionUpdate": "compaction_update", "compactionId": "@", "status": "completed"},
    {"sessionUpdate": "subagent_update", "sessionId": "@", "title": "g"},
]


@st.composite
def said(draw: st.DrawFn, prompt_id: PromptId | None, after: PromptId | None) -> ev.SessionUpdated:
    """Something of an agent that names few things, so that it comes back to them."""
    update = draw(st.sampled_from(SAID))
    named = draw(st.sampled_from(["1", "2", "3", "4"]))
    body = msgspec.json.encode(update).replace(b"@", named.encode())
    return ev.SessionUpdated(
        at=1,
        kind=update["sessionUpdate"],
        update=Raw(body),
        prompt_id=prompt_id,
        after=after,
        child=draw(st.sampled_from([None, None, None, ChildId("s1.1")])),
        names={AgentSessionId("x"): ChildId("s1.1")} if update["sessionUpdate"] == "subagent_update" else {},
        echo=draw(st.integers(0, 9)) == 0,
    )


@st.composite
def turns(draw: st.DrawFn) -> list[list[ev.AnyEvent]]:
    """Generate turns one after the other, with late output, background work and other agents in between."""
    parts: list[list[ev.AnyEvent]] = []
    agents = st.builds(
        ev.AgentStarted,
        at=st.just(1),
        agent_session_id=st.sampled_from([AgentSessionId("s1"), AgentSessionId("s2")]),
        protocol_version=st.sampled_from([1, 2]),
        turn_end=st.just(ev.TurnEnd.RESPONSE),
    )
    for number in range(draw(st.integers(1, 10))):
        turn, last = PromptId(f"t{number}"), PromptId(f"t{number - 1}") if number else None
        parts.append(
            [
                *draw(st.lists(agents, max_size=1) if not draw(st.integers(0, 3)) else st.just([])),
                *draw(st.lists(said(None, last), max_size=2)),
                ev.PromptAccepted(at=1, prompt_id=turn, after_offset=0),
                ev.UserMessage(at=1, prompt_id=turn, message_id=MessageId("u"), content=Raw(b'["x"]')),
                ev.TurnStarted(at=2, prompt_id=turn),
                *draw(st.lists(said(turn, None), max_size=4)),
                *draw(st.sampled_from([[], [ev.PromptInserted(at=1, prompt_id=turn, agent_message_id="1")]])),
                *draw(st.sampled_from([[], [ev.CancelAsked(at=1, prompt_id=turn)]])),
                ev.TurnCompleted(at=3, prompt_id=turn, stop_reason="end_turn", ending=ev.Ending.RESPONSE),
            ]
        )
        parts += draw(st.lists(LOGS, max_size=1)) if not draw(st.integers(0, 5)) else []
    return parts


STORY = turns()


@pytest.fixture(autouse=True, scope="module")
def small() -> Generator[None]:
    """Pages so small that a few events fill several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folds, "PAGE_ENTRIES", 2)
        patch.setattr(folds, "SAVED_EVENTS", 3)
        patch.setattr(folds, "LONG_EVENTS", 5)
        patch.setattr(folds, "FOLDED_AT_ONCE", 4)
        patch.setattr(view_module, "KEPT_ITEMS", 1)
        patch.setattr(view_module, "KEPT_TURNS", 1)
        patch.setattr(paged, "KEYS", 3)
        patch.setattr(paged, "LOADED", 1)
        yield


async def told(log: MemoryEventLog, parts: list[list[ev.AnyEvent]], restarts: set[int]) -> KeptViews:
    """Views over a log that grows part by part and is read in between, by several processes."""
    await log.create(SESSION)
    views, head = KeptViews(log, Limits()), 0
    for number, part in enumerate(parts):
        head = await log.append(SESSION, [*map(encode, part)], expected=head, unsettled=False, durable=False)
        if number in restarts:
            views = KeptViews(log, Limits())
        await views.read(SESSION, lambda view: [view.turn(each) for each in PROMPTS])
        if number % 2:
            await views.keep(SESSION)
    return views


@settings(max_examples=60, deadline=None)
@given(parts=STORY, restarts=st.sets(st.integers(0, 5)))
def test_what_is_put_away_and_what_is_in_memory_are_the_fold_of_the_whole_log(
    parts: list[list[ev.AnyEvent]], restarts: set[int]
) -> None:
    async def check() -> None:
        log = MemoryEventLog()
        views = await told(log, parts, restarts)
        plain = fold([event for part in parts for event in part])
        assert encode_view(await views.whole(SESSION)) == encode_view(plain)
        assert encode_view(await KeptViews(log, Limits()).whole(SESSION)) == encode_view(plain)

    anyio.run(check)


@settings(max_examples=60, deadline=None)
@given(
    parts=STORY, restarts=st.sets(st.integers(0, 5)), size=st.integers(1, 4), version=st.sampled_from([None, 1, 2])
)
def test_every_page_and_every_turn_is_as_in_a_view_that_is_all_in_memory(
    parts: list[list[ev.AnyEvent]], restarts: set[int], size: int, version: int | None
) -> None:
    words: ShapeName = "agent" if version is None else "1" if version == 1 else "2"

    def pages(view: View) -> list[Callable[[View], object]]:
        places = range(view.transcript.count, 0, -size)
        queries = [TranscriptQuery(acp=words, limit=size, before=place) for place in places]
        return [
            *(lambda view, query=query: page_of(view, query, 1 << 20) for query in queries),
            *(lambda view, query=query: earlier_of(view, page_of(view, query, 1 << 20)) for query in queries),
            lambda view: earlier_of(view, page_of(view, TranscriptQuery(acp=words, limit=size), 1 << 20)),
            lambda view: items_in(view, version),
            *(lambda view, each=each: (view.turn(each), view.place_of_turn(each)) for each in PROMPTS),
            *(lambda view, each=each: (view.user_text(each), view.result_text(each)) for each in PROMPTS),
            lambda view: view.turns_between(0, view.turn_count),
            lambda view: view.turns_between(1, 2),
            lambda view: (view.state, view.active, view.turn_count, view.transcript.count),
        ]

    async def check() -> None:
        views = await told(MemoryEventLog(), parts, restarts)
        plain = fold([event for part in parts for event in part])
        for look in pages(plain):
            # Encoded at once: the view is shared.
            found = await views.read(SESSION, lambda view, look=look: msgspec.json.encode(look(view)))
            assert found == msgspec.json.encode(look(plain))

    anyio.run(check)


@settings(max_examples=40, deadline=None)
@given(parts=STORY, data=st.data())
def test_a_cache_that_was_emptied_or_damaged_costs_time_only(
    parts: list[list[ev.AnyEvent]], data: st.DataObject
) -> None:
    async def check() -> None:
        log = MemoryEventLog()
        views = await told(log, parts, set())
        await views.keep(SESSION)
        kept = log._sessions[SESSION].snapshots  # pyright: ignore[reportPrivateUsage]
        for name in data.draw(st.sets(st.sampled_from(sorted(kept)))) if kept else ():
            if data.draw(st.booleans()):
                del kept[name]
            else:
                kept[name] = kept[name]._replace(body=b"damaged")
        plain = fold([event for part in parts for event in part])
        fresh = KeptViews(log, Limits())
        for each in PROMPTS:
            assert await views.read(SESSION, lambda view, each=each: view.turn(each)) == plain.turn(each)
            assert await fresh.read(SESSION, lambda view, each=each: view.turn(each)) == plain.turn(each)
        assert encode_view(await fresh.whole(SESSION)) == encode_view(plain)

    anyio.run(check)
