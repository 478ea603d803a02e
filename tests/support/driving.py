"""A node with a scripted agent, driven by a test: short functions for clients' actions and for reading the log.

The input is a log, a profile and options of the agent; the result is a `World` with one session. It never inspects
the node: all observations come from answers, from following and from the log. Every wait is bounded.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar, cast

import anyio
import msgspec
from msgspec import Raw

from turnwire.ids import ClientId, PermissionId, PromptId, SessionId
from turnwire.limits import Limits
from turnwire.log import EventLog
from turnwire.log.base import Position, Stored
from turnwire.log.owners import Owners
from turnwire.runtime.follow import Page
from turnwire.runtime.node import Node, open_node
from turnwire.session import events as ev
from turnwire.session.codec import decode
from turnwire.session.ending import Cancelled
from turnwire.session.inputs import AnswerPermission, Cancel, Prompt, Settle, WhenBusy
from turnwire.session.queue import Accepted
from turnwire_testing import AgentOptions, ManualClock, Profile
from turnwire_testing.patience import WAIT_S, quiet
from turnwire_testing.scripted.agent import ScriptedSource

IDLE_S = Limits().idle_unload_s

Event = TypeVar("Event", bound=ev.Event)
Terminal = ev.TurnCompleted | ev.TurnFailed


def content(text: str) -> Raw:
    return Raw(msgspec.json.encode([{"type": "text", "text": text}]))


def prompt(text: str, prompt_id: str = "p1", when: WhenBusy = WhenBusy.QUEUE, key: str | None = None) -> Prompt:
    return Prompt(at=1, prompt_id=PromptId(prompt_id), content=content(text), when_busy=when, key=key, digest=key)


async def fall_idle(clock: ManualClock) -> None:
    """Advance the time until idle sessions are unloaded."""
    for _ in range(3):
        await quiet()
        clock.advance(IDLE_S / 2)
    await quiet()


async def stored(log: EventLog, session_id: SessionId) -> list[Stored]:
    """Return all stored events of a session; its owner may append between the two reads."""
    head = await log.head(session_id)
    page = await log.read(session_id, Position(head.epoch, head.first - 1), max_events=1_000_000, max_bytes=1 << 30)
    assert len(page) > head.head - head.first
    assert [each.offset for each in page] == list(range(head.first, head.first + len(page)))
    return page


async def events_of(log: EventLog, session_id: SessionId) -> list[ev.AnyEvent]:
    return [decode(each.body) for each in await stored(log, session_id)]


def of(events: list[ev.AnyEvent], kind: type[Event]) -> list[Event]:
    return [each for each in events if isinstance(each, kind)]


def texts(events: list[ev.AnyEvent], prompt_id: str | None = None) -> list[str]:
    """Return the agent's text, of one turn or of all."""
    return [
        msgspec.json.decode(each.update)["content"]["text"]
        for each in of(events, ev.SessionUpdated)
        if each.kind == "agent_message_chunk" and prompt_id in (None, each.prompt_id)
    ]


def check_ends(events: list[ev.AnyEvent]) -> None:
    """G3: each accepted prompt has one end, and nothing of the turn follows it."""
    ended: set[str] = set()
    for event in events:
        prompt_id = getattr(event, "prompt_id", None)
        assert prompt_id not in ended, f"{event} comes after the end of its turn"
        if isinstance(event, Terminal):
            ended.add(event.prompt_id)
    accepted = [each.prompt_id for each in of(events, ev.PromptAccepted)]
    assert len(set(accepted)) == len(accepted)
    assert ended.issuperset(accepted), f"{set(accepted) - ended} did not end"


class World:
    """One session on one node with scripted agents."""

    def __init__(self, node: Node, log: EventLog, source: ScriptedSource, clock: ManualClock) -> None:
        self.node = node
        self.log = log
        self.source = source
        self.clock = clock
        self.session_id = SessionId("s1")

    async def create(self, session_id: str = "s1") -> SessionId:
        with anyio.fail_after(WAIT_S):
            self.session_id = await self.node.create("/work", session_id=SessionId(session_id))
        return self.session_id

    async def prompt(
        self, text: str, prompt_id: str = "p1", when: WhenBusy = WhenBusy.QUEUE, key: str | None = None
    ) -> Accepted:
        with anyio.fail_after(WAIT_S):
            return cast("Accepted", await self.node.submit(self.session_id, prompt(text, prompt_id, when, key)))

    async def cancel(self, prompt_id: str | None = None) -> Cancelled:
        given = Cancel(at=2, prompt_id=None if prompt_id is None else PromptId(prompt_id), author="ann")
        with anyio.fail_after(WAIT_S):
            return cast("Cancelled", await self.node.submit(self.session_id, given))

    async def settle(self, prompt_id: str = "p1") -> None:
        with anyio.fail_after(WAIT_S):
            await self.node.submit(self.session_id, Settle(at=3, prompt_id=PromptId(prompt_id)))

    async def answer(self, request_id: PermissionId, option: str, client: str = "c1") -> object:
        chosen = Raw(msgspec.json.encode({"outcome": {"outcome": "selected", "optionId": option}}))
        given = AnswerPermission(
            at=4, request_id=request_id, answer=chosen, option_id=option, client_id=ClientId(client)
        )
        with anyio.fail_after(WAIT_S):
            return await self.node.submit(self.session_id, given)

    async def events(self) -> list[ev.AnyEvent]:
        return await events_of(self.log, self.session_id)

    async def pages(self, after: int = 0) -> AsyncGenerator[Page]:
        """Follow the session; the caller stops."""
        head = await self.log.head(self.session_id)
        async with aclosing(self.node.follow(self.session_id, Position(head.epoch, after))) as pages:
            async for page in pages:
                yield page

    async def until(
        self, is_last: Callable[[ev.AnyEvent], bool], session_id: SessionId | None = None
    ) -> ev.AnyEvent:
        """Follow from the start to the first event of which this is true."""
        session_id = session_id or self.session_id
        head = await self.log.head(session_id)
        start = Position(head.epoch, head.first - 1)
        with anyio.fail_after(WAIT_S):
            async with aclosing(self.node.follow(session_id, start)) as pages:
                async for page in pages:
                    for event in map(decode, page.frames):
                        if is_last(event):
                            return event
        raise AssertionError("the session ended first")

    async def until_kind(self, kind: type[Event], session_id: SessionId | None = None) -> Event:
        return cast("Event", await self.until(lambda event: isinstance(event, kind), session_id))

    async def until_update(self, text: str) -> None:
        """Until an update with this text in it has been stored."""
        await self.until(
            lambda event: isinstance(event, ev.SessionUpdated) and text.encode() in bytes(event.update)
        )

    async def end(self, prompt_id: str = "p1", session_id: SessionId | None = None) -> Terminal:
        """The end of a turn, waited for."""
        ended = await self.until(
            lambda event: isinstance(event, Terminal) and event.prompt_id == prompt_id, session_id
        )
        return cast("Terminal", ended)


@asynccontextmanager
async def open_world(
    log: EventLog,
    profile: Profile = "v1",
    options: AgentOptions | None = None,
    limits: Limits | None = None,
    *,
    created: bool = True,
    clock: ManualClock | None = None,
    owners: Owners | None = None,
) -> AsyncGenerator[World]:
    """Open a node over `log`, with stopped time and one session in it."""
    clock = clock or ManualClock()
    async with (
        ScriptedSource(profile, options) as source,
        open_node(log, source, owners=owners, clock=clock, limits=limits) as node,
    ):
        world = World(node, log, source, clock)
        if created:
            await world.create()
        yield world
