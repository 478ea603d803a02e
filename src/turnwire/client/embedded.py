"""The daemon inside this process: a node over a log in memory or over the caller's log.

It is the second implementation of `client.port`. A session behaves as in a separate daemon: the same loop, the same
log, the same ends. Old events are released only in a private log, never in the caller's.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import cast

import anyio
from msgspec import Raw

from turnwire import new_ids
from turnwire.client.port import Accepted, EventPage, NewPrompt
from turnwire.clock import Clock, SystemClock
from turnwire.errors import ClientClosed
from turnwire.hosting.source import AgentSource
from turnwire.ids import AgentName, ClientId, Epoch, PermissionId, PromptId, SessionId
from turnwire.limits import Limits
from turnwire.log import EventLog, MemoryEventLog
from turnwire.log.base import Position, SessionHead
from turnwire.projections.view import View
from turnwire.runtime.follow import Page
from turnwire.runtime.node import Node, open_node, opening_failure
from turnwire.session.codec import decode_all
from turnwire.session.events import AnyEvent
from turnwire.session.inputs import (
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
from turnwire.session.permissions import PermissionAnswer
from turnwire.session.queue import Accepted as Recorded
from turnwire.session.state import Setup

KEPT = 4096
"""Number of events that a follower may lag before it reads the log."""

_US = ClientId("sdk")
"""The client that answers and cancels, as recorded in the log: a node of this kind has one client."""


class Newest:
    """The newest events of a session as they were before storage, so that local followers need not decode them.

    Older events are in the log, so only a few are held, and none once all followers have them.
    """

    def __init__(self) -> None:
        self.followers = 0
        self._head = 0
        """The offset of the newest event."""
        self._events: list[AnyEvent] = []

    def publish(self, head: int, events: Sequence[AnyEvent]) -> None:
        """Add events that are now in the log, the last one at `head`."""
        # A page is located by counting back from the head, so there must be no gap.
        if self._head + len(events) != head or not self.followers:
            self._events.clear()
        self._head = head
        if self.followers:
            self._events += events
            if len(self._events) > 2 * KEPT:
                del self._events[:-KEPT]

    def read(self, page: Page) -> list[AnyEvent]:
        """Return the events of a page of the log. Raises `LogCorrupt`, `LogVersionMismatch`."""
        end = len(self._events) - (self._head - page.offset)
        start = end - len(page.frames)
        if not 0 <= start < end <= len(self._events):
            return decode_all(page.frames)
        read = self._events[start:end]
        if self.followers == 1:
            # With several followers, the position of the slowest is unknown here.
            del self._events[:end]
        return read

    @contextmanager
    def followed(self) -> Generator[None]:
        """Count a follower of the session inside the block."""
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
        # Each reader needs its own cancel scope (`Attachment.next_page`): one cannot be held across a `yield`.
        newest = self._daemon.newest.setdefault(self.session_id, Newest())
        pages = self._daemon.node.follow(self.session_id, Position(self.epoch, after))
        with newest.followed():
            async for page in pages:
                yield EventPage(page.offset, newest.read(page))

    async def forget(self, upto: int) -> None:
        """Release memory. There is no await between the two calls, so the head is still the same in the second."""
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
        """Events of each session that is or was followed."""
        self._is_closed = False
        self._calls: set[anyio.CancelScope] = set()
        """Calls that wait for an answer."""

    @contextmanager
    def open(self) -> Generator[Node]:
        """Yield the node for one call. Raises `ClientClosed` if it is closed before or meanwhile."""
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
        """Return the node. Raises `ClientClosed` if it is closed."""
        if self._is_closed:
            raise _closed()
        return self._node

    def published(self, session_id: SessionId, events: Sequence[AnyEvent]) -> None:
        """Record new events of a session. Used as a node's `watch`."""
        newest = self.newest.get(session_id)
        if newest is not None:
            newest.publish(self._node.loaded[session_id].head, events)

    def close(self) -> None:
        """Close the node: current and later calls raise `ClientClosed`."""
        self._is_closed = True
        for scope in self._calls:
            scope.cancel()

    async def create(self, cwd: str, setup: Setup, agent: str | None = None) -> EmbeddedSession:
        agent_name = None if agent is None else AgentName(agent)
        with self.open() as node:
            created = await node.create(cwd, setup=setup, agent_name=agent_name)
            session = await self._session(created, 0)
            failure = await opening_failure(node, session.session_id)
            if failure is not None:
                # As in a daemon, a session that its agent rejected is removed.
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
    """Run a node with its agent. On exit the agent is stopped, and a private log is discarded."""
    kept, clock = log or MemoryEventLog(), clock or SystemClock()
    daemon: EmbeddedDaemon | None = None

    def watch(session_id: SessionId, events: Sequence[AnyEvent]) -> None:
        # A node that opens a stored log records the ends of open turns before it has a client to notify.
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
