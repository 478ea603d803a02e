"""The daemon inside this process: a node of its own, over a log in memory or one that the caller gives.

It is the other implementation of `client.port`. Everything that a session does here is what it does in a daemon:
the same loop, the same log, the same ends. Old events are forgotten only in a log of its own: one that the caller
gives is the caller's.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import cast

import anyio
from msgspec import Raw

from turnwire.client.port import Accepted, EventPage, NewPrompt
from turnwire.core.codec import decode_all
from turnwire.core.events import AnyEvent
from turnwire.core.inputs import (
    AnswerPermission,
    AnyInput,
    Cancel,
    Close,
    Prompt,
    RemovePrompt,
    Settle,
    UpdatePrompt,
    WhenBusy,
)
from turnwire.core.permissions import PermissionAnswer
from turnwire.core.queue import Accepted as Recorded
from turnwire.core.state import Setup
from turnwire.core.view import View
from turnwire.errors import ClientClosed
from turnwire.ids import AgentName, ClientId, Epoch, PermissionId, PromptId, SessionId
from turnwire.limits import Limits
from turnwire.log import EventLog, MemoryEventLog
from turnwire.log.base import Position, SessionHead
from turnwire.runtime import new_ids
from turnwire.runtime.clock import Clock, SystemClock
from turnwire.runtime.follow import Page
from turnwire.runtime.node import Node, open_node, opening_failure
from turnwire.runtime.source import AgentSource

KEPT = 4096
"""Events that a follower may be behind before it reads the log."""

_US = ClientId("sdk")
"""Who answers and cancels, as the log tells it: a node of this kind has one client."""


class Newest:
    """The newest events of a session, as they were before they were stored: who follows it here decodes none.

    What is not here any more is in the log, so little is kept, and nothing once all have it.
    """

    def __init__(self) -> None:
        self.followers = 0
        self._head = 0
        """The offset of the newest."""
        self._events: list[AnyEvent] = []

    def publish(self, head: int, events: Sequence[AnyEvent]) -> None:
        """Events that are in the log now, the last at `head`."""
        # A page is found here by counting back from the head, so there must be no gap.
        if self._head + len(events) != head or not self.followers:
            self._events.clear()
        self._head = head
        if self.followers:
            self._events += events
            if len(self._events) > 2 * KEPT:
                del self._events[:-KEPT]

    def read(self, page: Page) -> list[AnyEvent]:
        """The events of a page of the log. Raises `LogCorrupt`, `LogTooNew`."""
        end = len(self._events) - (self._head - page.offset)
        start = end - len(page.frames)
        if not 0 <= start < end <= len(self._events):
            return decode_all(page.frames)
        read = self._events[start:end]
        if self.followers == 1:
            # Of several nobody knows here who is behind.
            del self._events[:end]
        return read

    @contextmanager
    def followed(self) -> Generator[None]:
        """Somebody follows the session meanwhile."""
        self.followers += 1
        try:
            yield
        finally:
            self.followers -= 1
            self._events.clear()


class EmbeddedSession:
    """A session of the node in this process. See `turnwire.client.port.DaemonSession`."""

    has_other_clients = False

    def __init__(self, daemon: EmbeddedDaemon, clock: Clock, head: SessionHead, start: int) -> None:
        self.session_id: SessionId = head.session_id
        self.epoch: Epoch = head.epoch
        self.start = start
        self._daemon = daemon
        self._clock = clock

    async def prompt(self, new_prompt: NewPrompt) -> Accepted:
        digest = None if new_prompt.key is None else hashlib.sha256(new_prompt.content).hexdigest()
        session_input = Prompt(
            at=self._clock.now_ms(),
            client_id=_US,
            prompt_id=new_ids.prompt_id(),
            content=new_prompt.content,
            when_busy=new_prompt.when_busy or WhenBusy.QUEUE,
            prompt_request_id=new_prompt.request_id,
            key=new_prompt.key,
            digest=digest,
        )
        recorded = cast("Recorded", await self._submit(session_input))
        return Accepted(recorded.prompt_id, recorded.after_offset, recorded.repeated)

    async def cancel(self, prompt_id: PromptId | None) -> None:
        session_input = Cancel(at=self._clock.now_ms(), client_id=_US, prompt_id=prompt_id)
        await self._submit(session_input)

    async def edit(self, prompt_id: PromptId, content: Raw | None, place: int | None) -> None:
        now = self._clock.now_ms()
        session_input = UpdatePrompt(at=now, client_id=_US, prompt_id=prompt_id, content=content, position=place)
        await self._submit(session_input)

    async def remove(self, prompt_id: PromptId) -> None:
        session_input = RemovePrompt(at=self._clock.now_ms(), client_id=_US, prompt_id=prompt_id)
        await self._submit(session_input)

    async def settle(self, prompt_id: PromptId) -> None:
        session_input = Settle(at=self._clock.now_ms(), client_id=_US, prompt_id=prompt_id)
        await self._submit(session_input)

    async def answer(self, request_id: PermissionId, answer: Raw, option_id: str | None) -> bool:
        session_input = AnswerPermission(
            at=self._clock.now_ms(), client_id=_US, request_id=request_id, answer=answer, option_id=option_id
        )
        return cast("PermissionAnswer", await self._submit(session_input)).won

    async def close(self) -> None:
        await self._submit(Close(at=self._clock.now_ms(), client_id=_US))

    async def view(self) -> View:
        with self._daemon.open() as node:
            return await node.view(self.session_id)

    async def follow(self, after: int) -> AsyncGenerator[EventPage]:
        # Readers have scopes of their own (`Attachment.next_page`): one cannot be held across a `yield`.
        newest = self._daemon.newest.setdefault(self.session_id, Newest())
        pages = self._daemon.node.follow(self.session_id, Position(self.epoch, after))
        with newest.followed():
            async for page in pages:
                yield EventPage(page.offset, newest.read(page))

    async def forget(self, upto: int) -> None:
        """Give memory back. Nothing between the two calls waits, so the head is still the same in the second."""
        if self._daemon.forgets:
            with self._daemon.open() as node:
                head = (await node.session(self.session_id)).head
                await node.retain(self.session_id, keep_events=head - upto)

    async def _submit(self, session_input: AnyInput) -> object:
        with self._daemon.open() as node:
            return await node.submit(self.session_id, session_input)


class EmbeddedDaemon:
    """The node of this process. See `turnwire.client.port.Daemon`."""

    def __init__(self, node: Node, log: EventLog, clock: Clock, *, forgets: bool) -> None:
        self._node = node
        self._log = log
        self._clock = clock
        self.forgets = forgets
        self.newest: dict[SessionId, Newest] = {}
        """Of each session that is followed, or was."""
        self._is_closed = False
        self._calls: set[anyio.CancelScope] = set()
        """Calls that wait for an answer."""

    @contextmanager
    def open(self) -> Generator[Node]:
        """Where the sessions are, for one call. Raises `ClientClosed` when they are gone, or go meanwhile."""
        node = self.node
        with anyio.CancelScope() as scope:
            self._calls.add(scope)
            try:
                yield node
            finally:
                self._calls.discard(scope)
        if scope.cancelled_caught:
            raise _closed()

    @property
    def node(self) -> Node:
        """Where the sessions are. Raises `ClientClosed` when they are gone."""
        if self._is_closed:
            raise _closed()
        return self._node

    def published(self, session_id: SessionId, events: Sequence[AnyEvent]) -> None:
        """A session has new events. A node's `watch`."""
        newest = self.newest.get(session_id)
        if newest is not None:
            newest.publish(self._node.loaded[session_id].head, events)

    def close(self) -> None:
        """The node ends: whoever waits for an answer of it hears so, and whoever asks from now on."""
        self._is_closed = True
        for scope in self._calls:
            scope.cancel()

    async def create(self, cwd: str, mcp_servers: Raw, agent: str | None = None) -> EmbeddedSession:
        agent_name = None if agent is None else AgentName(agent)
        with self.open() as node:
            created = await node.create(cwd, setup=Setup(mcp_servers), agent_name=agent_name)
            session = await self._session(created, 0)
            failure = await opening_failure(node, session.session_id)
            if failure is not None:
                # As at a daemon: what no agent has taken does not stay.
                await node.delete(session.session_id)
                raise failure
            return session

    async def authenticate(self, method_id: str) -> None:
        with self.open() as node:
            await node.agents.authenticate(method_id)

    async def find(self, session_id: SessionId) -> EmbeddedSession:
        with self.open() as node:
            await node.session(session_id)
            return await self._session(session_id, None)

    async def sessions(self) -> list[SessionId]:
        found: list[SessionId] = []
        while heads := await self._log.sessions(after=found[-1] if found else None):
            found.extend(head.session_id for head in heads)
        return found

    async def _session(self, session_id: SessionId, start: int | None) -> EmbeddedSession:
        head = await self._log.head(session_id)
        return EmbeddedSession(self, self._clock, head, head.head if start is None else start)


def _closed() -> ClientClosed:
    return ClientClosed("the client is closed; open another with `connect`, and attach to the session there")


@asynccontextmanager
async def open_embedded(
    source: AgentSource, log: EventLog | None, limits: Limits, clock: Clock | None
) -> AsyncGenerator[EmbeddedDaemon]:
    """A running node with its agent. On exit the agent is stopped, and a log of our own is gone."""
    kept, clock = log or MemoryEventLog(), clock or SystemClock()
    daemon: EmbeddedDaemon | None = None

    def watch(session_id: SessionId, events: Sequence[AnyEvent]) -> None:
        # A node that opens a kept log records what was left open before there is a client to tell.
        if daemon is not None:
            daemon.published(session_id, events)

    try:
        async with open_node(kept, source, clock=clock, limits=limits, watch=watch) as node:
            daemon = EmbeddedDaemon(node, kept, clock, forgets=log is None)
            try:
                yield daemon
            finally:
                daemon.close()
    finally:
        # Also if the program was cancelled: its agent must not outlive it.
        with anyio.CancelScope(shield=True):
            aclose = getattr(source, "aclose", None)
            if aclose is not None:
                await aclose()
            if log is None:
                await kept.aclose()
