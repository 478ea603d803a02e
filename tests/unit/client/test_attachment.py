"""A session attached to a daemon that a test plays: only the port is between them."""

from __future__ import annotations

import gc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from random import Random

import anyio
import msgspec
import pytest
from anyio.lowlevel import checkpoint
from msgspec import Raw
from msgspec.structs import replace

from turnwire.client import Session, Update
from turnwire.client.attachment import Attachment
from turnwire.client.dispatch import Listeners
from turnwire.client.port import Accepted, EventPage, NewPrompt
from turnwire.client.progress import Wakeup, current_call
from turnwire.errors import LogCorrupt
from turnwire.ids import Epoch, MessageId, PermissionId, PromptId, SessionId
from turnwire.limits import Limits
from turnwire.projections.view import View
from turnwire.session import events as ev
from turnwire.wire.jsonrpc import raw
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio


class PlayedSession:
    """A `DaemonSession` whose events and answers the test provides."""

    has_other_clients = True

    def __init__(self) -> None:
        self.session_id = SessionId("s1")
        self.epoch = Epoch("e1")
        self.start = 0
        self.asked: list[str] = []
        self.accepts = [anyio.Event(), anyio.Event()]
        self.is_broken = False
        self.fault: Exception | None = None
        self.log: list[ev.AnyEvent] = []
        self._changed = Wakeup()

    def tell(self, *events: ev.AnyEvent) -> None:
        self.log.extend(events)
        self._changed.wake()

    async def prompt(self, new_prompt: NewPrompt) -> Accepted:
        number = len(self.asked)
        self.asked.append(msgspec.json.decode(new_prompt.content)[0]["text"])
        await self.accepts[number].wait()
        if self.fault is not None:
            raise self.fault
        after = len(self.log)
        prompt_id = PromptId(f"p{number}")
        self.tell(
            ev.PromptAccepted(at=1, prompt_id=prompt_id, after_offset=after),
            ev.UserMessage(
                at=1, prompt_id=prompt_id, message_id=MessageId(f"m{number}"), content=new_prompt.content
            ),
            ev.TurnStarted(at=1, prompt_id=prompt_id),
        )
        return Accepted(prompt_id, after)

    async def follow(self, after: int) -> AsyncGenerator[EventPage]:
        while True:
            while len(self.log) <= after:
                await self._changed.wait()
            if self.is_broken:
                raise LogCorrupt("the log is broken")
            events = self.log[after:]
            after += len(events)
            yield EventPage(after, events)

    async def cancel(self, prompt_id: PromptId | None) -> None: ...

    async def edit(self, prompt_id: PromptId, content: Raw | None, place: int | None) -> None: ...

    async def remove(self, prompt_id: PromptId) -> None: ...

    async def settle(self, prompt_id: PromptId) -> None: ...

    async def answer(self, request_id: PermissionId, answer: Raw, option_id: str | None) -> bool:
        return True

    async def close(self) -> None: ...

    async def view(self) -> View:
        return View()

    async def forget(self, upto: int) -> None: ...


def said(prompt_id: str, text: str) -> ev.SessionUpdated:
    update = raw({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}})
    return ev.SessionUpdated(at=1, kind="agent_message_chunk", update=update, prompt_id=PromptId(prompt_id))


def ended(prompt_id: str) -> ev.TurnCompleted:
    return ev.TurnCompleted(at=1, prompt_id=PromptId(prompt_id), stop_reason="end_turn", ending=ev.Ending.RESPONSE)


@asynccontextmanager
async def attached(
    played: PlayedSession | None = None, limits: Limits | None = None
) -> AsyncGenerator[tuple[Session, PlayedSession]]:
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            played, wakeup = played or PlayedSession(), Wakeup()
            yield Session(Attachment(played, tasks, wakeup, Listeners(), limits or Limits()), wakeup), played
            tasks.cancel_scope.cancel()


async def test_a_prompt_is_submitted_when_the_one_before_it_is_accepted() -> None:
    async with attached() as (session, played):
        first, second = session.prompt("one"), session.prompt("two")
        await quiet()
        assert played.asked == ["one"]
        played.accepts[1].set()
        await quiet()
        assert played.asked == ["one"]
        played.accepts[0].set()
        assert (await first.accepted).prompt_id == "p0"
        assert (await second.accepted).prompt_id == "p1"


async def test_a_plain_handler_is_in_no_call_even_after_another_was_released() -> None:
    async with attached() as (session, played):
        inside: list[tuple[str, bool]] = []
        for accept in played.accepts:
            accept.set()

        @session.on_update
        async def wait(update: Update) -> None:
            if update.text == "a":
                await session.prompt("two")

        session.on_update(lambda update: inside.append((update.text, current_call() is not None)))
        turn = session.prompt("one")
        await turn.accepted
        played.tell(said("p0", "a"), said("p0", "b"), ended("p0"))
        await quiet()
        played.tell(said("p1", "c"), ended("p1"))
        assert (await turn).text == "ab"
        assert inside == [("a", False), ("b", False), ("c", False)]


async def test_a_log_that_breaks_fails_the_turns_and_what_is_asked_afterwards() -> None:
    async with attached() as (session, played):
        played.accepts[0].set()
        turn = session.prompt("one")
        await turn.accepted
        await quiet()
        played.is_broken = True
        played.tell(said("p0", "a"))
        with pytest.raises(LogCorrupt):
            await turn
        with pytest.raises(LogCorrupt):
            await session.prompt("two")
        with pytest.raises(LogCorrupt):
            await session.completed("mine")


class HastySession(PlayedSession):
    """Reports the turn's end, and another client's turn, before the prompt is answered."""

    async def prompt(self, new_prompt: NewPrompt) -> Accepted:
        for prompt_id in ("p0", "another"):
            accepted = ev.PromptAccepted(at=1, prompt_id=PromptId(prompt_id), after_offset=len(self.log))
            self.tell(accepted, said(prompt_id, prompt_id), ended(prompt_id))
        await self.accepts[0].wait()
        return Accepted(PromptId("p0"), 0)


async def test_a_turn_that_ends_before_its_prompt_is_answered_keeps_what_its_handlers_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("CRITICAL")  # A record holds what was raised, and with it the turn.
    async with attached(HastySession(), Limits(remembered_turns=1)) as (session, played):

        @session.on_update
        def fail(update: Update) -> None:
            raise ValueError(update.text)

        turn = session.prompt("one")
        await quiet()
        assert session.handler_errors == {"ValueError": 2}
        gc.collect()
        played.accepts[0].set()
        assert [str(error) for error in (await turn).handler_errors] == ["p0"]


async def test_whatever_a_prompt_is_refused_with_is_told_to_who_waits_and_ends_nothing_else() -> None:
    async with attached() as (session, played):
        for accept in played.accepts:
            accept.set()
        played.fault = ZeroDivisionError()
        first = session.prompt("one")
        with pytest.raises(ZeroDivisionError):
            await first.accepted
        with pytest.raises(ZeroDivisionError):
            await first
        played.fault = None
        second = session.prompt("two")
        played.tell(said((await second.accepted).prompt_id, "b"), ended((await second.accepted).prompt_id))
        assert (await second).text == "b"


class Audience:
    """Handlers of any kind: plain and waiting ones, one that raises and one that comes later."""

    def __init__(self, session: Session, coming: int) -> None:
        self.heard: list[tuple[str, int]] = []
        self._session = session
        self._coming = coming

    def plain(self, update: Update) -> None:
        self.heard.append(("plain", update.offset))
        if update.offset == self._coming:
            self._session.on_update(self.later)

    async def waiting(self, update: Update) -> None:
        self.heard.append(("waiting", update.offset))
        if update.offset % 3 == 0:
            await checkpoint()

    def raising(self, update: Update) -> None:
        self.heard.append(("raising", update.offset))
        if update.offset % 7 == 0:
            raise ValueError(update.offset)

    def later(self, update: Update) -> None:
        self.heard.append(("later", update.offset))


def anything(chance: Random, number: int) -> ev.AnyEvent:
    """Generate an update of one of two turns or of none, or no update."""
    kind = chance.choice(["p0", "p0", "p0", "p1", "nobody's", "tool", "fact"])
    if kind == "fact":
        return ev.QueueReleased(at=1)
    if kind == "tool":
        update = raw({"sessionUpdate": "tool_call", "toolCallId": f"t{number}", "title": "T"})
        return ev.SessionUpdated(at=1, kind="tool_call", update=update, prompt_id=PromptId("p0"))
    return replace(said(kind, f"{number} "), prompt_id=None if kind == "nobody's" else PromptId(kind))


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("seed", range(20))
async def test_handlers_of_any_kind_hear_every_update_in_order(seed: int) -> None:
    chance, played = Random(seed), PlayedSession()
    coming, names = chance.randrange(7, 60), ["plain", *chance.sample(["waiting", "raising"], chance.randrange(3))]
    async with attached(played) as (session, _):
        audience = Audience(session, coming)
        for name in names:
            session.on_update(getattr(audience, name))
        for each in played.accepts:
            each.set()
        turns = [session.prompt("one"), session.prompt("two")]
        for each in turns:
            await each.accepted
        begun = len(played.log)
        for _ in range(chance.randrange(8, 15)):
            played.tell(*(anything(chance, len(played.log)) for _ in range(chance.randrange(1, 12))))
            if chance.random() < 0.5:
                await quiet()
        updates = [offset for offset, each in enumerate(played.log, 1) if isinstance(each, ev.SessionUpdated)]
        played.tell(ended("p0"), ended("p1"))
        texts = [(await each).text for each in turns]
    assert begun < updates[0]
    later = coming if coming in updates else len(played.log)
    wanted = [(name, offset) for offset in updates for name in (*names, *(["later"] if offset > later else []))]
    assert audience.heard == wanted
    assert texts == [text_of(played.log, PromptId(each)) for each in ("p0", "p1")]


def text_of(log: list[ev.AnyEvent], prompt_id: PromptId) -> str:
    """The last message of a turn, by a view of its events one by one."""
    view = View()
    for event in log:
        if getattr(event, "prompt_id", None) == prompt_id:
            view.apply(event)
    return view.result_text(prompt_id) or ""


async def test_while_a_handler_waits_the_walk_stands_at_its_update() -> None:
    stood: list[tuple[int, int]] = []
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            played, listeners = PlayedSession(), Listeners()
            attachment = Attachment(played, tasks, Wakeup(), listeners, Limits())

            async def waiting(update: Update) -> None:
                await checkpoint()
                stood.append((update.offset, attachment.dispatch.offset))

            listeners.add_update(waiting)
            played.tell(said("p0", "a"), said("p0", "b"), ev.QueueReleased(at=1), said("p0", "c"))
            attachment.dispatch.start()
            await quiet()
            tasks.cancel_scope.cancel()
    assert stood == [(1, 1), (2, 2), (4, 4)]
