"""Search over a log: results, the time of indexing, and the display of matches."""

from __future__ import annotations

import re
import sqlite3
import unicodedata
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.json import encode as to_json

from turnwire.clock import Clock, SystemClock
from turnwire.ids import Epoch, MessageId, PromptId, SessionId
from turnwire.limits import Limits
from turnwire.log import EventLog, MemoryEventLog
from turnwire.projections.view import AnyItem, Message, MessageRole, ToolCall
from turnwire.projections.view.transcript import join_text
from turnwire.runtime.folds import KeptViews
from turnwire.server.daemon import search as module
from turnwire.server.daemon.search import (
    FAILED_S,
    PAUSE_S,
    Search,
    open_search,
    unmarked,
)
from turnwire.server.daemon.text_index import TextIndex
from turnwire.session import events as ev
from turnwire.session.codec import encode
from turnwire_testing import ManualClock
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

ONE, TWO = SessionId("one"), SessionId("two")
TURN = PromptId("p1")
LIMITS = Limits(page_events=16)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a search wait without limit on a busy machine."""
    monkeypatch.setattr(module, "CATCH_UP_S", WAIT_S)


class Hurried(SystemClock):
    """A search that never waits."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await anyio.lowlevel.checkpoint()


def created(session_id: SessionId, title: str | None = None) -> ev.AnyEvent:
    return ev.SessionCreated(at=1, session_id=session_id, cwd="/work/There", title=title)


def asked(text: str, prompt_id: PromptId = TURN) -> ev.AnyEvent:
    content = Raw(to_json([{"type": "text", "text": text}]))
    return ev.UserMessage(at=1, prompt_id=prompt_id, message_id=MessageId(f"m-{prompt_id}"), content=content)


def update(kind: str, prompt_id: PromptId | None = TURN, **members: Any) -> ev.AnyEvent:
    body = Raw(to_json({"sessionUpdate": kind, **members}))
    return ev.SessionUpdated(at=1, kind=kind, update=body, prompt_id=prompt_id)


def chunk(text: str, kind: str = "agent_message_chunk", **members: Any) -> ev.AnyEvent:
    return update(kind, content={"type": "text", "text": text}, **members)


def ended(prompt_id: PromptId = TURN) -> ev.AnyEvent:
    return ev.TurnCompleted(at=1, prompt_id=prompt_id, stop_reason="end_turn", ending=ev.Ending.RESPONSE)


class World:
    """A log, and a search over it that can be stopped and restarted."""

    def __init__(self, path: Path | None = None, clock: Clock | None = None) -> None:
        self.log: EventLog = MemoryEventLog()
        self.path = path
        self.hurried = Hurried()
        self.clock: Clock = clock or self.hurried
        self.views = KeptViews(self.log, LIMITS)
        self.search: Search | None = None
        self._prompts: set[tuple[SessionId, PromptId]] = set()

    @asynccontextmanager
    async def searching(self) -> AsyncGenerator[Search]:
        async with AsyncExitStack() as stack:
            stack.enter_context(anyio.fail_after(WAIT_S))
            search = await stack.enter_async_context(open_search(self.path, self.log, self.clock, LIMITS))
            tasks = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(tasks.cancel_scope.cancel)
            self.views = KeptViews(self.log, LIMITS)
            tasks.start_soon(search.run, self.views)
            self.search = search
            yield search
            self.search = None

    async def happen(self, session_id: SessionId, *events: ev.AnyEvent) -> None:
        """Append events to the log, and notify watchers."""
        known = {each.session_id: each.head for each in await self.log.sessions()}
        if session_id not in known:
            await self.log.create(session_id)
        events = tuple(each for event in events for each in self._accepted(session_id, event))
        bodies = [encode(each) for each in events]
        expected = known.get(session_id, 0)
        await self.log.append(session_id, bodies, expected=expected, unsettled=False, durable=False)
        if self.search is not None:
            self.search.take(session_id, events)

    def _accepted(self, session_id: SessionId, event: ev.AnyEvent) -> list[ev.AnyEvent]:
        """Add the acceptance of each prompt before it, once."""
        if not isinstance(event, ev.UserMessage) or (session_id, event.prompt_id) in self._prompts:
            return [event]
        self._prompts.add((session_id, event.prompt_id))
        return [ev.PromptAccepted(at=1, prompt_id=event.prompt_id, after_offset=0), event]


async def said(search: Search, *words: str) -> set[SessionId]:
    await search.catch_up()
    found = await search.candidates(words)
    assert found is not None
    return found.said


async def test_prompts_messages_and_titles_of_tools_are_found_and_thoughts_and_output_are_not() -> None:
    world = World()
    async with world.searching() as search:
        await world.happen(
            ONE,
            created(ONE),
            asked("Please mend the parser"),
            chunk("I will lo"),
            chunk("ok at it"),
            chunk("secretly", "agent_thought_chunk"),
            update("tool_call", toolCallId="t", title="Read grammar.py", rawInput={"path": "inputted"}),
            update("tool_call_update", toolCallId="t", rawOutput="outputted", status="completed"),
            ended(),
        )
        for words in ("parser", "will look", "grammar"):
            assert await said(search, *words.split()) == {ONE}, words
        for words in ("secretly", "inputted", "outputted", "lo ok"):
            assert await said(search, *words.split()) == set(), words


async def test_a_match_tells_where_it_was_said_and_in_which_turn() -> None:
    world = World()
    async with world.searching() as search:
        await world.happen(
            ONE, created(ONE), asked("the wanted word"), chunk("a wan"), chunk("ted answer"), ended()
        )
        assert await said(search, "wanted") == {ONE}
        agents, users = (await search.matches(["wanted"], [ONE]))[ONE]
        assert (agents.role, agents.event_id, agents.prompt_id, agents.child_id) == ("agent", 4, TURN, None)
        assert (agents.snippet, agents.marks) == ("a wanted answer", [(2, 8)])
        assert (users.role, users.event_id, users.snippet) == ("user", 3, "the wanted word")


async def test_what_a_message_and_a_title_become_later_is_what_is_found() -> None:
    world = World()
    async with world.searching() as search:
        await world.happen(ONE, created(ONE), update("tool_call", toolCallId="t", title="early"), chunk("first "))
        await world.happen(ONE, ended())
        assert await said(search, "early") == {ONE}
        await world.happen(ONE, update("tool_call_update", toolCallId="t", title="renamed"), chunk("second "))
        await world.happen(ONE, update("agent_message", messageId="m", content=[{"type": "text", "text": "draft"}]))
        await world.happen(ONE, ended())
        assert await said(search, "renamed") == await said(search, "second") == await said(search, "draft") == {ONE}
        assert await said(search, "early") == set()
        await world.happen(ONE, update("agent_message", messageId="m", content=[{"type": "text", "text": "final"}]))
        await world.happen(ONE, ended())
        assert await said(search, "final") == {ONE}
        assert await said(search, "draft") == set()


async def test_names_are_candidates_at_once_and_by_themselves_later(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    async with world.searching() as search:
        await world.happen(ONE, created(ONE, "Größe"))
        with monkeypatch.context() as hurried:
            hurried.setattr(module, "CATCH_UP_S", 0)
            early = await search.candidates(["anything"])
        assert early is not None
        assert early.named == {ONE}
        await search.catch_up()
        for words, expected in (
            ("GRÖSSE", {ONE}),
            ("there", {ONE}),
            ("her", {ONE}),
            ("anything", set[SessionId]()),
        ):
            found = await search.candidates([words])
            assert found is not None
            assert (found.named, found.said) == (expected, set())
        await world.happen(ONE, ev.SessionRenamed(at=1, title="Other"))
        await search.catch_up()
        found = await search.candidates(["größe"])
        assert found is not None
        assert found.named == set()


async def test_a_log_that_had_no_index_is_found_and_a_restart_reads_only_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / "search.db")
    for number in range(100):
        await world.happen(SessionId(f"s{number}"), created(SessionId(f"s{number}")), asked(f"word{number}"))
    async with world.searching() as search:
        assert await said(search, "word") == {SessionId(f"s{number}") for number in range(100)}
    await world.happen(SessionId("s7"), chunk("meanwhile"), ended())
    await world.happen(SessionId("s8"), ev.ClientDetached(at=1, client_id="c"))  # pyright: ignore[reportArgumentType]
    looked_at: list[SessionId] = []

    async def newest(self: KeptViews, session_id: SessionId) -> Any:
        looked_at.append(session_id)
        return await before(self, session_id)

    before = KeptViews.newest
    monkeypatch.setattr(KeptViews, "newest", newest)
    async with world.searching() as search:
        assert await said(search, "meanwhile") == {"s7"}
    assert looked_at == ["s7"], "what says nothing needs no view"


async def test_a_log_that_lost_its_end_or_is_another_one_is_read_anew(tmp_path: Path) -> None:
    world = World(tmp_path / "search.db")
    await world.happen(ONE, created(ONE), asked("kept"), chunk("lost"), ended())
    await world.happen(TWO, created(TWO), asked("deleted"))
    async with world.searching() as search:
        assert await said(search, "lost") == {ONE}
    world.log = MemoryEventLog()
    await world.happen(ONE, created(ONE), asked("kept", PromptId("p2")))
    async with world.searching() as search:
        assert await said(search, "kept") == {ONE}
        assert await said(search, "lost") == await said(search, "deleted") == set()


async def test_a_log_that_lost_its_end_and_went_on_is_read_anew(tmp_path: Path) -> None:
    world = World(tmp_path / "search.db")
    world.log = MemoryEventLog(lambda: Epoch("same"))
    await world.happen(ONE, created(ONE), asked("kept"), chunk("lost"), ended())
    async with world.searching() as search:
        assert await said(search, "lost") == {ONE}
    world.log = MemoryEventLog(lambda: Epoch("same"))
    await world.happen(ONE, created(ONE), asked("kept", PromptId("p2")))
    async with world.searching() as search:
        await world.happen(ONE, chunk("instead"), ended(), ended(), ended())
        assert await said(search, "kept") == await said(search, "instead") == {ONE}
        assert await said(search, "lost") == set()


async def test_session_deleted_while_it_is_indexed_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    save = TextIndex.save

    async def late_save(self: TextIndex, session_id: SessionId, *rest: Any) -> None:
        # All of it was read before the session was deleted.
        await world.log.delete(session_id)
        assert world.search is not None
        await world.search.forget(session_id)
        await save(self, session_id, *rest)

    async with world.searching() as search:
        monkeypatch.setattr(TextIndex, "save", late_save)
        await world.happen(ONE, created(ONE), asked("word"))
        assert await said(search, "word") == set()
        monkeypatch.setattr(TextIndex, "save", save)
        await world.happen(ONE, created(ONE), asked("new", PromptId("p2")))
        assert await said(search, "word") == set()
        assert await said(search, "new") == {ONE}


async def test_index_that_fails_is_built_again_from_the_log(tmp_path: Path) -> None:
    world = World(tmp_path / "search.db")
    async with world.searching() as search:
        await world.happen(ONE, created(ONE), asked("word"), ended())
        assert await said(search, "word") == {ONE}
        with closing(sqlite3.connect(tmp_path / "search.db")) as file:
            file.execute("DELETE FROM texts_data WHERE id > 10")
            file.commit()
        assert await search.candidates(["word"]) is None, "titles are searched meanwhile"
        while (found := await search.candidates(["word"])) is None or not found.said:
            await anyio.lowlevel.checkpoint()
        assert found.said == {ONE}
    assert FAILED_S in world.hurried.slept


# -- when it is indexed --------------------------------------------------------------------------------------


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[SessionId]:
    """The sessions that are indexed, in order."""
    found: list[SessionId] = []

    async def read_on(self: Search, index: TextIndex, session_id: SessionId, views: KeptViews) -> None:
        found.append(session_id)
        await before(self, index, session_id, views)

    before = module.Search._read_on  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(Search, "_read_on", read_on)
    return found


async def test_turn_is_indexed_once_at_its_end(reads: list[SessionId]) -> None:
    clock = ManualClock()
    world = World(clock=clock)
    async with world.searching() as search:
        clock.advance(PAUSE_S)
        await quiet()
        await world.happen(ONE, created(ONE), asked("word"))
        await search.catch_up()
        reads.clear()
        for _ in range(1000):
            await world.happen(ONE, chunk("more "))
        clock.advance(PAUSE_S)
        await quiet()
        assert reads == []
        await world.happen(ONE, ended())
        await quiet()
        assert reads == [], "the worker waits a moment"
        clock.advance(PAUSE_S)
        await quiet()
        assert reads == [ONE]
        assert await said(search, "more") == {ONE}
        assert reads == [ONE]


async def test_search_finds_a_turn_that_ended_just_now(reads: list[SessionId]) -> None:
    world = World(clock=ManualClock())
    async with world.searching() as search:
        for number in range(5):
            await world.happen(ONE, created(ONE), asked(f"word{number}", PromptId(f"p{number}")), ended())
            assert len(reads) == number
            found = await search.candidates([f"word{number}"])
            assert found is not None
            assert (found.said, found.named) == ({ONE}, set())
        assert await search.candidates(["absent"])
        assert len(reads) == 5


async def test_update_outside_of_a_turn_is_indexed() -> None:
    world = World()
    async with world.searching() as search:
        await world.happen(ONE, created(ONE), asked("go"), ended())
        await world.happen(ONE, update("agent_message_chunk", None, content={"type": "text", "text": "belated"}))
        assert await said(search, "belated") == {ONE}


async def test_search_is_not_delayed_by_an_index_that_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(clock=ManualClock())
    old = [SessionId(f"s{number}") for number in range(50)]
    for name in old:
        await world.happen(name, created(name), asked("word"))
    save, let = TextIndex.save, anyio.Semaphore(3)

    async def held(self: TextIndex, session_id: SessionId, *rest: Any) -> None:
        if session_id in old:
            await let.acquire()
        await save(self, session_id, *rest)

    monkeypatch.setattr(TextIndex, "save", held)
    async with world.searching() as search:
        monkeypatch.setattr(module, "CATCH_UP_S", 0.05)
        await world.happen(ONE, created(ONE), asked("word"))
        found = await search.candidates(["word"])
        assert found is not None
        assert ONE in found.said, "the newest comes first"
        assert len(found.said) <= 4, "three of the old ones are indexed at most"
        assert found.named, "sessions that are pending may have it in their names"
        for _ in old:
            let.release()
        assert await said(search, "word") == {ONE, *old}
        assert not any(map(world.views.has, old)), "views that nobody asked for are not cached"
        assert world.views.has(ONE)


async def test_search_before_the_worker_runs_does_not_wait() -> None:
    world = World()
    await world.happen(ONE, created(ONE, "named"), asked("word"))
    with anyio.fail_after(WAIT_S):
        async with open_search(None, world.log, world.clock, LIMITS) as search:
            search.take(ONE, [ended()])
            found = await search.candidates(["word"])
    assert found is not None
    assert (found.said, found.named) == (set(), {ONE})


async def test_session_that_another_node_wrote_to_is_indexed() -> None:
    world = World()
    async with world.searching() as search:
        watched, world.search = world.search, None
        await world.happen(ONE, created(ONE), asked("remote"))
        search.grown({ONE: 2})
        assert await said(search, "remote") == {ONE}
        await world.happen(TWO, created(TWO), asked("unnoticed"))
        search.missed()
        assert await said(search, "unnoticed") == {TWO}
        world.search = watched


# -- against a search without an index -----------------------------------------------------------------------

PIECES = st.sampled_from(["a", "ab", "b", "Ä", "é", "cab", " ", "-", "\n", "_", "0", "ba", '"', "*"])
PROSE = st.lists(PIECES, max_size=8).map("".join)
SAYING = st.one_of(
    st.builds(chunk, PROSE),
    st.builds(chunk, PROSE, messageId=st.sampled_from(["m1", "m2"])),
    st.builds(chunk, PROSE, st.just("agent_thought_chunk")),
    st.builds(asked, PROSE, st.sampled_from([TURN, PromptId("p2")])),
    st.builds(update, st.just("tool_call"), toolCallId=st.just("t"), title=PROSE),
    st.builds(update, st.just("tool_call_update"), toolCallId=st.just("t"), title=PROSE),
    st.builds(ended),
)


def fold(word: str) -> str:
    parts = unicodedata.normalize("NFD", word.lower())
    return "".join(each for each in parts if not unicodedata.combining(each))


def tokens(text: str) -> list[str]:
    return [fold(each) for each in re.findall(r"[^\W_]+", text)]


def has(text: str, words: Sequence[str]) -> bool:
    """Return the result of T2, computed in the simplest way."""
    found = tokens(text)
    wanted = [tokens(each) for each in words]
    if not any(wanted):
        return False
    for number, phrase in enumerate(wanted):
        is_last = number == len(wanted) - 1

        def fits(start: int, phrase: list[str] = phrase, is_last: bool = is_last) -> bool:
            part = found[start : start + len(phrase)]
            if len(part) < len(phrase) or part[:-1] != phrase[:-1]:
                return False
            return part[-1].startswith(phrase[-1]) if is_last else part[-1] == phrase[-1]

        if phrase and not any(fits(start) for start in range(len(found))):
            return False
    return True


def text_of(item: AnyItem) -> str:
    if isinstance(item, ToolCall):
        return item.title or ""
    if isinstance(item, Message) and item.role is not MessageRole.THOUGHT:
        return join_text(item.content)
    return ""


@settings(max_examples=60, deadline=None)
@given(
    lives=st.lists(st.lists(st.tuples(st.sampled_from([ONE, TWO]), SAYING), max_size=12), min_size=1, max_size=3),
    searches=st.lists(PROSE.map(str.split).filter(bool), min_size=1, max_size=5),
)
def test_it_finds_what_a_look_at_every_message_finds(
    tmp_path_factory: pytest.TempPathFactory,
    lives: list[list[tuple[SessionId, ev.AnyEvent]]],
    searches: list[list[str]],
) -> None:
    path = tmp_path_factory.mktemp("search") / "search.db"
    anyio.run(_compare, path, lives, searches)


async def _compare(path: Path, lives: list[list[tuple[SessionId, ev.AnyEvent]]], searches: list[list[str]]) -> None:
    world = World(path)
    for session_id in (ONE, TWO):
        await world.happen(session_id, created(session_id))
    for life in lives:
        async with world.searching() as search:
            for session_id, event in life:
                await world.happen(session_id, event)
            for session_id in (ONE, TWO):
                await world.happen(session_id, ended())
            views = {each: (await KeptViews(world.log, LIMITS).newest(each))[0] for each in (ONE, TWO)}
            for words in searches:
                plain = {each for each, view in views.items() for item in view.items if has(text_of(item), words)}
                assert await said(search, *words) == plain
                matches = await search.matches(words, [ONE, TWO])
                assert {each for each, found in matches.items() if found} == plain


# -- snippets ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("marked", "snippet", "marks"),
    [
        ("the \1parser\2 has a \1bug\2", "the parser has a bug", [(4, 10), (17, 20)]),
        ("\U0001f600 \1word\2", "\U0001f600 word", [(3, 7)]),
        ("two\n\n \1lines\2\twith", "two lines with", [(4, 9)]),
        ("nothing", "nothing", []),
        ("", "", []),
        ("x" * 500 + " \1word\2", "…" + "x" * 119 + " word", [(121, 125)]),
        ("\1" + "x" * 500 + "\2", "x" * 240, [(0, 240)]),
    ],
)
def test_snippet_is_short_and_marks_count_utf16_units(
    marked: str, snippet: str, marks: list[tuple[int, int]]
) -> None:
    assert unmarked(marked) == (snippet, marks)
