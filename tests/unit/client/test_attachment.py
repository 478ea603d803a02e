"""A session attached to a daemon that a test plays: only the port is between them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import msgspec
import pytest
from msgspec import Raw

from turnwire.client import Session, Update
from turnwire.client.attachment import Attachment
from turnwire.client.calls import current_call
from turnwire.client.dispatch import Listeners
from turnwire.client.port import Accepted, Asking, EventPage
from turnwire.client.progress import Bell
from turnwire.core import events as ev
from turnwire.core.view import View
from turnwire.errors import LogCorrupt
from turnwire.ids import Epoch, MessageId, PermissionId, PromptId, SessionId
from turnwire.limits import Limits
from turnwire.wire.jsonrpc import raw

pytestmark = pytest.mark.anyio

WAIT_S = 10.0


class PlayedSession:
    """A `DaemonSession` whose events and answers the test gives."""

    def __init__(self) -> None:
        self.session_id = SessionId("s1")
        self.epoch = Epoch("e1")
        self.start = 0
        self.asked: list[str] = []
        self.accepts = [anyio.Event(), anyio.Event()]
        self.is_broken = False
        self._events: list[ev.AnyEvent] = []
        self._bell = Bell()

    def tell(self, *events: ev.AnyEvent) -> None:
        self._events.extend(events)
        self._bell.ring()

    async def prompt(self, asking: Asking) -> Accepted:
        number = len(self.asked)
        self.asked.append(msgspec.json.decode(asking.content)[0]["text"])
        await self.accepts[number].wait()
        after = len(self._events)
        prompt_id = PromptId(f"p{number}")
        self.tell(
            ev.PromptAccepted(at=1, prompt_id=prompt_id, after_offset=after),
            ev.UserMessage(at=1, prompt_id=prompt_id, message_id=MessageId(f"m{number}"), content=asking.content),
            ev.TurnStarted(at=1, prompt_id=prompt_id),
        )
        return Accepted(prompt_id, after)

    async def follow(self, after: int) -> AsyncGenerator[EventPage]:
        while True:
            while len(self._events) <= after:
                await self._bell.wait()
            if self.is_broken:
                raise LogCorrupt("the log is broken")
            events = self._events[after:]
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
async def attached() -> AsyncGenerator[tuple[Session, PlayedSession]]:
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            played, bell = PlayedSession(), Bell()
            yield Session(Attachment(played, tasks, bell, Listeners(), Limits()), bell), played
            tasks.cancel_scope.cancel()


async def test_a_prompt_is_submitted_when_the_one_before_it_is_accepted() -> None:
    async with attached() as (session, played):
        first, second = session.prompt("one"), session.prompt("two")
        await anyio.wait_all_tasks_blocked()
        assert played.asked == ["one"]
        played.accepts[1].set()
        await anyio.wait_all_tasks_blocked()
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
        await anyio.wait_all_tasks_blocked()
        played.tell(said("p1", "c"), ended("p1"))
        assert (await turn).text == "ab"
        assert inside == [("a", False), ("b", False), ("c", False)]


async def test_a_log_that_breaks_fails_the_turns_and_what_is_asked_afterwards() -> None:
    async with attached() as (session, played):
        played.accepts[0].set()
        turn = session.prompt("one")
        await turn.accepted
        await anyio.wait_all_tasks_blocked()
        played.is_broken = True
        played.tell(said("p0", "a"))
        with pytest.raises(LogCorrupt):
            await turn
        with pytest.raises(LogCorrupt):
            await session.prompt("two")
        with pytest.raises(LogCorrupt):
            await session.completed("mine")
