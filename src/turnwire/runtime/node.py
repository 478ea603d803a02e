"""A node: the sessions of one process, assembled. It has no rules itself.

A session is opened from the log on first use and unloaded after a time without use. On start the node opens the
sessions that the log marks as unsettled, several in parallel, so that turns interrupted by a crash get their end
without a request. The node serves meanwhile: a caller that wants a session which is not recovered yet waits for
that session, so no caller sees an unrecovered state. A failure of one session does not affect others. `Placing`
tracks which sessions the node has.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, cast
from weakref import WeakValueDictionary

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from turnwire import new_ids
from turnwire.clock import Clock, SystemClock
from turnwire.errors import (
    AgentError,
    LifeOver,
    LimitExceeded,
    LocalProtocolError,
    LogUnavailable,
    NotOwner,
    QueueTooLarge,
    SessionClosed,
    SessionExists,
    SessionNotFound,
    ShuttingDown,
    TurnwireError,
)
from turnwire.hosting.agent_exit import failure_of
from turnwire.hosting.agent_pool import AgentPolicy, AgentPool, AgentPools, HostedAgent
from turnwire.hosting.held import Holders
from turnwire.hosting.hosted_session import SESSION, HostedSession
from turnwire.hosting.permission_rules import Rules
from turnwire.hosting.source import AgentSource
from turnwire.ids import AgentName, AgentSessionId, Epoch, SessionId
from turnwire.limits import KiB, Limits
from turnwire.log.base import EventLog, Position, SessionHead
from turnwire.log.bell import Bell, NoBell
from turnwire.log.owners import Owners, SoleOwner
from turnwire.projections.envelope import Parties
from turnwire.projections.view import View
from turnwire.runtime.folds import KeptViews, kept_chain, open_state
from turnwire.runtime.follow import Page, follow, start_of
from turnwire.runtime.node_agents import Find, LocalAgents, NodeAgents
from turnwire.runtime.placing import Debt, Placing
from turnwire.runtime.remote_sessions import RemoteSessions
from turnwire.runtime.session import STATE, Opened, Readable, Session, Watch
from turnwire.runtime.session_owner import End, NewSession, SessionOwner
from turnwire.runtime.shadow import Shadows
from turnwire.runtime.tail import Tail
from turnwire.session.background import AllWork, still_running
from turnwire.session.codec import check_asked, decode_all
from turnwire.session.events import AgentExited, AgentStarted
from turnwire.session.inputs import AnyInput, Asked, Close, CreateSession, Prompt, Recover
from turnwire.session.queue import PLACE_GONE, Accepted, queued_bytes
from turnwire.session.receipts import Chain
from turnwire.session.state import NO_SETUP, NOTHING, Phase, SessionState, Setup

logger = logging.getLogger(__name__)

T = TypeVar("T")

LARGE_PROMPT = 64 * KiB
"""Size from which a prompt is checked against the bound of all queues. For smaller ones `queue_length` is
sufficient.
"""


class Fork(NamedTuple):
    """The session that a new one continues."""

    of: SessionId
    context: str | None = None
    """The conversation as text, for an agent that does not know it; without it the session's own agent makes the
    fork.
    """


class Node:
    """The sessions of this process. Create one with `open_node`."""

    def __init__(
        self,
        log: EventLog,
        owners: Owners,
        agents: Sequence[HostedAgent],
        tasks: TaskGroup,
        clock: Clock,
        limits: Limits,
        rules: Rules,
        watch: Watch | None,
        bell: Bell,
        holders: Holders | None = None,
    ) -> None:
        self._holders = holders
        self._log = log
        self._tasks = tasks
        self._clock = clock
        self._limits = limits
        self._pools = AgentPools(agents, tasks, clock, limits)
        self._loaded: dict[SessionId, Session] = {}
        self.loaded: Mapping[SessionId, Session] = MappingProxyType(self._loaded)
        """Sessions that are in memory."""
        self._hosted: dict[SessionId, HostedSession] = {}
        self._opening: dict[SessionId, anyio.Lock] = {}
        self._placing = Placing(owners, log, clock, opens=self.session, concludes=self._conclude, later=self.reload)
        self.local = LocalSessions(self, self._find_hosted, clock, limits)
        """Operations on this node's own sessions; they raise `NotOwner` for others."""
        self.remote: RemoteSessions | None = None
        """Sessions of other nodes of the same log; `None` if there are no other nodes."""
        self.agents = NodeAgents(self, self._pools)
        self.views = KeptViews(log, limits, tasks, is_shared=not bell.is_alone)
        """Views for readers that read in pages."""
        self._rules = rules
        self._watch = watch
        self._tails: WeakValueDictionary[SessionId, Tail] = WeakValueDictionary()
        """Rings live as long as a loop or a follower holds them."""
        self._bell = bell
        self._shadows = Shadows(log, limits, tasks, self._tails, self._loaded, self._alone)
        bell.set_follower(self._shadows)

    @property
    def log(self) -> EventLog:
        """The log with the events of the node's sessions."""
        return self._log

    @property
    def limits(self) -> Limits:
        return self._limits

    @property
    def is_recovering(self) -> bool:
        """True while sessions interrupted by a crash still wait for recovery."""
        return self._placing.is_recovering

    async def recovered(self) -> None:
        """Return once recovery of every interrupted session has been tried."""
        await self._placing.recovered()

    async def settle(self, session_id: SessionId) -> None:
        """Recover an interrupted session first. For callers that read the log directly, not through the session."""
        if self._placing.is_owed(session_id):
            await self.session(session_id)

    def join(self, remote: RemoteSessions) -> None:
        """Send operations on sessions of other nodes to those nodes from now on."""
        remote.join(self.local, self._tasks, self.reach)
        self.remote = remote

    # -- for clients ---------------------------------------------------------------------------------------

    async def create(
        self,
        cwd: str,
        *,
        session_id: SessionId | None = None,
        setup: Setup = NO_SETUP,
        fork: Fork | None = None,
        author: str | None = None,
        title: str | None = None,
        agent_name: AgentName | None = None,
    ) -> SessionId:
        """Create a session, new or forked; its agent's side is still being opened when this returns.

        Raises `SessionExists`, `LimitExceeded`, `UnknownAgent`; for a fork also `SessionNotFound`, and
        `LocalProtocolError` if no agent has had that session yet.
        """
        self._placing.check()
        session_id = session_id or new_ids.session_id()
        if fork is None or fork.context is not None:
            of, context = (None, None) if fork is None else fork
            new = NewSession(session_id, cwd, setup, of, context, author, title)
            await self._create(new, self._pools.named(agent_name))
            return session_id
        new = NewSession(session_id, cwd, setup, fork.of, None, author, title)
        await self.at_owner(fork.of, lambda owner: owner.fork(new), repeatable=False)
        return session_id

    async def fork(self, new: NewSession, fork_of: SessionId) -> None:
        """Create a session that continues one of this node, at its agent. Raises `NotOwner`, and as `create`."""
        self._placing.check()
        state = (await self.session(fork_of)).state
        if state.known_as is None:
            raise LocalProtocolError("no agent has had this session yet; prompt it first", session_id=fork_of)
        await self._create(new, self._pools.of(state.agent_name), state.known_as)

    async def _create(self, new: NewSession, pool: AgentPool, parent: AgentSessionId | None = None) -> None:
        """Record the session and start opening it at its agent; as a fork of `parent`, unless that is `None`."""
        session_id = new.session_id
        if len(self._loaded) >= self._limits.loaded_sessions:
            raise LimitExceeded(
                "too many sessions are open; close one, or raise the limit", limit="loaded_sessions"
            )
        async with self._alone(session_id):
            head = await self._begin_log(session_id)
            self._placing.paid(session_id)
            session = self._load(Opened(session_id, head.epoch, NOTHING, 0, Chain()), pool.recorded_name)
            await session.submit(
                CreateSession(
                    at=self._clock.now_ms(),
                    session_id=session_id,
                    cwd=new.cwd,
                    setup=new.setup,
                    fork_of=new.fork_of,
                    title=new.title,
                    author=new.author,
                    agent_name=pool.recorded_name,
                    context=new.context,
                )
            )
            self._hosted[session_id].open(parent)

    async def _begin_log(self, session_id: SessionId) -> SessionHead:
        """Create an empty log, or reuse one that a crash left without events. Raises `SessionExists`."""
        try:
            return await self._log.create(session_id)
        except SessionExists:
            head = await self._log.head(session_id)
            if head.head or not await self._is_free(session_id):
                raise
            session = self._loaded.get(session_id)
            if session is not None:
                self._put_away(session)
            return head

    async def _is_free(self, session_id: SessionId) -> bool:
        """Return true unless another node is creating the session now."""
        try:
            await self._placing.claim(session_id)
        except NotOwner:
            return False
        return True

    async def accept(self, session_id: SessionId, prompt: Prompt) -> tuple[Accepted, Callable[[], None]]:
        """Submit a prompt. It goes to the agent only after the client has its answer.

        Call the second part of the result once the answer is written, or cannot be. Raises as `submit` does.
        """
        check_asked(prompt)
        if self.remote is None:
            return await self.local.accept(session_id, prompt)
        here = partial(self.local.accept, session_id, prompt)
        return await self.remote.accept(session_id, prompt, here, self.session)

    async def submit(self, session_id: SessionId, input: AnyInput) -> object:
        """Pass an input to a session and return its answer.

        Raises `SessionNotFound`, `NotOwner` and the session's rejection errors.
        """
        if isinstance(input, Asked):
            check_asked(input)
        if self.remote is None:
            return await self.local.submit(session_id, input)
        here = partial(self.local.submit, session_id, input)
        return await self.remote.submit(session_id, input, here, self.session)

    async def at_owner(
        self, session_id: SessionId, operation: Callable[[SessionOwner], Awaitable[T]], *, repeatable: bool
    ) -> T:
        """Run an operation at the owner of a session, here or at another node. `repeatable`: it may run twice."""
        if self.remote is None:
            return await operation(self.local)
        return await self.remote.at_owner(session_id, operation, repeatable=repeatable)

    async def lasting(
        self, session_id: SessionId, operation: Callable[[SessionOwner], Awaitable[End | None]]
    ) -> End | None:
        """Run an operation at the owner of a session, and at each later owner until its end."""
        if self.remote is None:
            return await operation(self.local)
        return await self.remote.lasting(session_id, operation)

    async def follow(self, session_id: SessionId, after: Position) -> AsyncGenerator[Page]:
        """Yield all events after a position, then new events as they arrive. Raises `SessionNotFound`,
        `PositionLost`.
        """
        tail = await self.tail(session_id)
        async for page in follow(self._log, tail, session_id, after, self._limits):
            yield page

    async def tail(self, session_id: SessionId) -> Tail:
        """Return the ring of the session's newest events. Raises `SessionNotFound`."""
        tail = self._tails.get(session_id) if self._bell.is_alone else None
        # Only the session knows if there will be more events.
        return (await self.peek(session_id)).tail if tail is None else tail

    async def peek(self, session_id: SessionId) -> Readable:
        """Return the session for reading only; changes go through `submit`. Raises `SessionNotFound`.

        If nodes share the log the session is not claimed: a session that is not loaded here is read from the log.
        """
        if self._bell.is_alone:
            return await self.session(session_id)
        await self.settle(session_id)
        return await self._shadows.peek(session_id)

    def known(self, session_id: SessionId) -> Readable | None:
        """Return the same for a session in memory, without waiting."""
        return self._loaded.get(session_id) if self._bell.is_alone else self._shadows.known(session_id)

    async def reach(self, session_id: SessionId, head: int) -> None:
        """Return once readers of the session on this node can see this event, which its owner has stored."""
        await self._shadows.reach(session_id, head)

    async def active(self) -> list[SessionId]:
        """Return the sessions that may have an open turn, a queued prompt or a pending permission request."""
        found = dict.fromkeys(self._loaded)
        after: SessionId | None = None
        while not self._bell.is_alone and (heads := await self._log.sessions(unsettled_only=True, after=after)):
            after = heads[-1].session_id
            found |= dict.fromkeys(each.session_id for each in heads)
        return list(found)

    async def view(self, session_id: SessionId) -> View:
        """Return the session's complete view: transcript and latest values. `look` is faster. Raises
        `SessionNotFound`.
        """
        await self.settle(session_id)
        return await self.views.whole(session_id)

    async def newest(self, session_id: SessionId) -> tuple[View, Epoch]:
        """Return the cached view and its epoch; old turns and items are not in memory.

        The view is shared and grows: copy the data you need before the next await.
        """
        await self.settle(session_id)
        return await self.views.newest(session_id)

    async def look(self, session_id: SessionId, look: Callable[[View], T]) -> T:
        """Return the result of `look` on the same view, with evicted parts loaded as needed. Raises
        `SessionNotFound`.
        """
        await self.settle(session_id)
        return await self.views.read(session_id, look)

    def still_running(self, state: SessionState) -> AllWork:
        """Return the part of a session's background work that counts as running now."""
        return still_running(state.work, self._clock.now_ms())

    async def head(self, session_id: SessionId, *, anew: bool = False) -> SessionHead:
        """Return the head of the session's log; see `EventLog.head`. Raises `SessionNotFound`."""
        await self.settle(session_id)
        return await self._log.head(session_id, anew=anew)

    async def retain(self, session_id: SessionId, *, keep_events: int) -> int:
        """Trim all but the newest events and return the oldest remaining offset. Their fold is preserved."""
        return await self.at_owner(session_id, lambda owner: owner.retain(session_id, keep_events), repeatable=True)

    async def delete(self, session_id: SessionId) -> None:
        """Remove a session with all its events; followers come to an end. Raises `SessionNotFound`."""
        await self.at_owner(session_id, lambda owner: owner.delete(session_id), repeatable=True)

    # -- opening and unloading -----------------------------------------------------------------------------

    async def session(self, session_id: SessionId) -> Session:
        """Return the session, opened from the log if needed. This node owns it from then on.

        Raises `SessionNotFound`, and `NotOwner` if another node has it (its `owner` is in the context), or if the
        session belongs to a place without a node.
        """
        session = self._loaded.get(session_id)
        if session is not None and not self._placing.is_owed(session_id):
            return session
        async with self._alone(session_id):
            session = self._loaded.get(session_id)
            if session is None:
                session = await self._open(session_id)
            self._placing.paid(session_id)
        return session

    async def _open(self, session_id: SessionId) -> Session:
        debt = await self._placing.claim(session_id)
        try:
            opened = await open_state(self._log, session_id, self._limits, None if debt is None else debt.head)
            hosted = self._hosted.get(session_id)
            is_adopted = hosted is not None and hosted.is_adopted
            if hosted is not None and is_adopted and not hosted.continues(opened.state):
                self._abandon(session_id)
                is_adopted = False
            session = self._load(opened, opened.state.agent_name)
            if debt is not None and not is_adopted:
                holds = self._hosted[session_id].pool.agent.policy.holds_after_restart
                await self._pay(session, debt.code, holds=debt.code if holds else None)
        except LogUnavailable:
            self._placing.unpaid()
            raise
        return session

    @asynccontextmanager
    async def _alone(self, session_id: SessionId) -> AsyncGenerator[None]:
        """Serialize creating, opening and deleting a session."""
        lock = self._opening.setdefault(session_id, anyio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                self._opening.pop(session_id, None)

    async def _pay(self, session: Session, code: str, *, holds: str | None) -> None:
        """Record the debt, once. If that fails the session is not open, and the next caller tries again."""
        try:
            with anyio.CancelScope(shield=True):
                await session.submit(Recover(at=self._clock.now_ms(), code=code, holds=holds))
        except TurnwireError:
            self._put_away(session)
            raise

    async def _conclude(self, session_id: SessionId, debt: Debt) -> None:
        """Record the debt of a session that no live node can host, then release it."""
        async with self._alone(session_id):
            opened = await open_state(self._log, session_id, self._limits, debt.head)
            session = self._load(opened, opened.state.agent_name)
            try:
                await self._pay(session, debt.code, holds=PLACE_GONE)
                self._placing.paid(session_id)
            finally:
                self._put_away(session)
                self._abandon(session_id)
            await self._placing.release(session_id)

    def _load(self, opened: Opened, agent_name: AgentName | None) -> Session:
        # The incarnation may have ended while the log was read.
        self._placing.check_life()
        parties = Parties.of(opened.state)
        tail = self._tails.setdefault(opened.session_id, Tail(self._limits, opened.epoch, opened.head, parties))
        tail.reopen(opened.head, parties)
        if opened.state.phase is Phase.CLOSED:
            tail.end()
        session = Session(opened, self._log, tail, self._clock, self._limits)
        session.watch = self._watch or session.watch
        hosted = self._hosted.get(opened.session_id) or self._host(opened.session_id, self._pools.of(agent_name))
        session.perform, session.journal = hosted.perform, hosted
        hosted.attach(session)
        self._loaded[opened.session_id] = session
        self._shadows.arrived(session)
        self._tasks.start_soon(self._run, session)
        return session

    def _host(self, session_id: SessionId, pool: AgentPool) -> HostedSession:
        hosted = HostedSession(session_id, pool, self, self._rules, self._clock, self._tasks, self._limits)
        self._hosted[session_id] = hosted
        return hosted

    async def _adopt_agents(self, holders: Holders) -> None:
        """Continue the agents that have outlived the previous process of this data folder, and their sessions."""
        for connection, pool in await self._pools.adopt(holders):
            assert connection.journal is not None, "only an agent with notes outlives its process"
            for name in [each for each in connection.journal.notes if each.startswith(SESSION)]:
                session_id = SessionId(name.removeprefix(SESSION))
                try:
                    head = await self._log.head(session_id)
                except SessionNotFound:
                    connection.journal.note(name, None)
                    continue
                self._host(session_id, pool).adopt(connection, head.epoch, head.head)
            await connection.journal.stored()
            connection.peer.deliver_noted()
            pool.serve(connection)

    def leave_agents(self) -> None:
        """Let the agents continue without this process, for the next one of its data folder."""
        self._stop()
        self._pools.leave()

    async def _run(self, session: Session) -> None:
        try:
            await session.run()
        except NotOwner:
            extra = {"event": "session_moved", "session": session.session_id}
            logger.info("another node has a session that was here", extra=extra)
            self._placing.forget(session.session_id)
            self._abandon(session.session_id)
        except LifeOver:
            self.lose()
        except Exception:  # any error: other sessions continue
            extra = {"event": "session_failed", "session": session.session_id}
            logger.exception("a session's loop failed; it is opened anew when next needed", extra=extra)
            # Effects that were decided may not have been performed, so the next opening recovers as after a
            # restart.
            self._placing.failed(session.session_id)
            self._abandon(session.session_id)
        finally:
            if self._loaded.get(session.session_id) is session:
                del self._loaded[session.session_id]
            self._shadows.left(session)

    def _put_away(self, session: Session) -> None:
        """Unload a session. There is no await, so no input can reach it in between."""
        if self._loaded.get(session.session_id) is not session:
            return
        del self._loaded[session.session_id]
        hosted = self._hosted[session.session_id]
        hosted.detach()
        if not hosted.has_agent:
            del self._hosted[session.session_id]
        session.stop()
        self._shadows.left(session)

    def _abandon(self, session_id: SessionId) -> None:
        hosted = self._hosted.pop(session_id, None)
        if hosted is not None:
            hosted.abandon()

    async def erase(self, session_id: SessionId) -> None:
        """Remove a closed session of this node with its log."""
        async with self._alone(session_id):
            session = self._loaded.get(session_id)
            if session is not None:
                self._put_away(session)
            self._abandon(session_id)
            try:
                await self._log.delete(session_id)
            finally:
                # A later session with this id is a different one and gets a new debt and ring.
                self._placing.forget(session_id)
                self._shadows.end(session_id)

    async def _release(self, session_id: SessionId) -> None:
        """Release an unloaded session, unless it has been loaded again or an agent serves it."""
        if self._placing.is_shared:
            async with self._alone(session_id):
                if session_id not in self._loaded and session_id not in self._hosted:
                    await self._placing.release(session_id)

    def reload(self, session_id: SessionId) -> None:
        """Load a session because its agent sent something; without waiting."""
        self._tasks.start_soon(self._bring_back, session_id)

    async def _bring_back(self, session_id: SessionId) -> None:
        """Open a session because its agent sent something, which waits until the log can load the session."""
        while True:
            try:
                await self.session(session_id)
                return
            except LogUnavailable:
                await self._clock.sleep(self._limits.log_retry_s)
            except (NotOwner, LifeOver, ShuttingDown):
                # The session belongs to another node, or to this node's next incarnation.
                self._abandon(session_id)
                return
            except TurnwireError as error:
                extra = {"event": "session_not_opened", "session": session_id, "code": error.code}
                logger.exception("a session could not be opened for its agent", extra=extra)
                self._abandon(session_id)
                return

    async def _find_hosted(self, session_id: SessionId) -> tuple[Session, HostedSession]:
        session = await self.session(session_id)
        return session, self._hosted[session_id]

    # -- the node's own tasks ------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        """Unload sessions that have not been used for a while, repeatedly."""
        while True:
            await self._clock.sleep(min(self._limits.idle_unload_s, self._limits.agent_idle_s) / 2)
            for session in self._loaded.values():
                if not session.is_idle or self._is_at_work(session):
                    # A v2 turn runs without an open request, so only the session knows that its agent works; and a
                    # prompt that is being stored will need the agent in a moment.
                    self._hosted[session.session_id].pool.used(session.session_id)
            await self._pools.recycle()
            now = self._clock.monotonic()
            for session in list(self._loaded.values()):
                if self._loaded.get(session.session_id) is not session:
                    continue  # it was unloaded during an await below
                is_kept = self._hosted[session.session_id].requests.has_offers or self._is_at_work(session)
                if session.is_idle and not is_kept and now - session.busy_at >= self._limits.idle_unload_s:
                    self._put_away(session)
                    await session.save_snapshot()
                    await self._release(session.session_id)

    def _is_at_work(self, session: Session) -> bool:
        """Return true if its agent works in the background, or one of its child sessions is working."""
        return bool(self.still_running(session.state) or session.state.running_children)

    def _stop(self) -> None:
        """End every loop. Sessions are not closed: the next owner recovers open turns."""
        for session in self._loaded.values():
            session.stop()

    # -- other nodes ---------------------------------------------------------------------------------------

    async def inherit(self, life: int, *, is_ours: bool = False) -> None:
        """Take over the unsettled sessions of a dead incarnation. `is_ours`: it was an earlier one of this node."""
        await self._placing.inherit(life, is_ours=is_ours)

    async def adopt(self) -> None:
        """Take over unsettled sessions of this node's place that have no owner."""
        await self._placing.adopt()

    async def leave(self) -> list[SessionId]:
        """Stop claiming sessions; return those that other nodes wait for, to be passed to `let_go`."""
        await self._placing.leave()
        return list(self._placing.held) if self._placing.is_shared else []

    async def let_go(self, session_id: SessionId) -> bool:
        """Release a session to other nodes, unless it is working. Its agent is disconnected as well.

        Return false if an input is being stored: its result is not known yet, so call again.
        """
        if not self._placing.is_shared:
            return True
        async with self._alone(session_id):
            session = self._loaded.get(session_id)
            if session is not None:
                if not session.is_at_rest:
                    return False
                if session.state.turn is not None or self._is_at_work(session):
                    return True
                self._put_away(session)
            # Before the first await: a message from the agent would load the session again.
            self._abandon(session_id)
            if session is not None:
                await session.save_snapshot()
            await self._placing.release(session_id)
            return True

    def lose(self) -> None:
        """End all agents and loops now: this incarnation is over, and other nodes may act for its sessions.

        Nothing is recorded. From here on `session` raises `LifeOver`.
        """
        self._placing.lose()
        self._pools.kill()
        self._stop()
        self._loaded.clear()
        for session_id in list(self._hosted):
            self._abandon(session_id)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Recover sessions and run the background tasks until the end."""
        if self._holders is not None:
            await self._adopt_agents(self._holders)
        if await self._placing.list_owed():
            self._tasks.start_soon(self._placing.run)
        self._tasks.start_soon(self._sweep)
        try:
            yield
        finally:
            # Do this first, so that no session treats the end of its agent as an event and starts a queued prompt.
            self._stop()
            # The log stays open and still receives notifications from other nodes.
            self._bell.set_follower(None)
            self._tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await self._pools.aclose()


class LocalSessions(LocalAgents):
    """The sessions of this node. Implements `SessionOwner` and the submissions of this node's clients."""

    def __init__(self, node: Node, find: Find, clock: Clock, limits: Limits) -> None:
        super().__init__(find, clock, limits)
        self._node = node

    async def submit(self, session_id: SessionId, input: AnyInput) -> object:
        """Pass an input to a session and return its answer. Raises `NotOwner` and the session's rejection
        errors.
        """
        while True:
            session = await self._node.session(session_id)
            if isinstance(input, Prompt) and len(input.content) >= LARGE_PROMPT:
                self._check_queued_bytes(session.state, input)
            try:
                return await session.submit(input)
            except (SessionClosed, NotOwner):
                # The session was unloaded after it was found: reopen it from the log. A closed session reports that
                # itself. Or another node has claimed it and nothing was stored: opening it names that node.
                if not session.inbox.is_closed:
                    raise
                await anyio.lowlevel.checkpoint()

    async def accept(self, session_id: SessionId, prompt: Prompt) -> tuple[Accepted, Callable[[], None]]:
        """Submit a prompt that goes to the agent only after the second part of the result is called."""
        session = await self._node.session(session_id)
        session.hold(prompt.prompt_id)
        acknowledge = partial(session.answered, prompt.prompt_id)
        try:
            accepted = cast("Accepted", await self.submit(session_id, prompt))
        except BaseException:
            acknowledge()
            raise
        return accepted, acknowledge

    def _check_queued_bytes(self, state: SessionState, input: Prompt) -> None:
        """Raise `QueueTooLarge` for a prompt that would be queued, if the queued prompts of all sessions use too
        much memory.
        """
        if state.turn is None and not state.queue and state.held is None:
            return
        waiting = sum(queued_bytes(each.state) for each in self._node.loaded.values())
        if waiting + len(input.content) > self._limits.all_queue_bytes:
            raise QueueTooLarge(
                "the queued prompts of all sessions are too large together; wait for turns to end",
                limit=self._limits.all_queue_bytes,
            )

    async def fork(self, new: NewSession) -> None:
        assert new.fork_of is not None, "a fork continues a session"
        await self._node.fork(new, new.fork_of)

    async def retain(self, session_id: SessionId, keep_events: int) -> int:
        node = self._node
        session = await node.session(session_id)
        await session.save_snapshot()
        folded = await node.views.keep(session_id)
        # The session continues meanwhile, and saving a snapshot may have failed: only the log's content counts.
        stored = await node.log.load_snapshot(session_id, STATE)
        upto = min(session.head - keep_events, folded, 0 if stored is None else kept_chain(stored).offset)
        return await node.log.trim(session_id, upto=max(upto, 0))

    async def delete(self, session_id: SessionId) -> None:
        await self.submit(session_id, Close(at=self._clock.now_ms(), reason="deleted"))
        await self._node.erase(session_id)


@asynccontextmanager
async def open_node(
    log: EventLog,
    agents: AgentSource | Sequence[HostedAgent],
    *,
    owners: Owners | None = None,
    clock: Clock | None = None,
    limits: Limits | None = None,
    policy: AgentPolicy | None = None,
    rules: Rules | None = None,
    watch: Watch | None = None,
    bell: Bell | None = None,
    holders: Holders | None = None,
) -> AsyncGenerator[Node]:
    """Run a node over a log and recover its sessions. On exit its tasks end; the caller closes the log.

    `agents`: the hosted agents, the default one first; or the source of the only one, with `policy`. `owners`: the
    ownership of sessions, if other nodes use the log as well. `rules` answer permission requests of agents before
    users are asked; `watch` receives every batch of events after it is published. `bell`: the notifications of a
    shared log. `holders`: the agents that an earlier node over this log has left.
    """
    mark_asyncio()
    clock, limits = clock or SystemClock(), limits or Limits()
    hosted = (
        agents if isinstance(agents, Sequence) else [HostedAgent(source=agents, policy=policy or AgentPolicy())]
    )
    async with anyio.create_task_group() as tasks:
        node = Node(
            log,
            owners or SoleOwner(log),
            hosted,
            tasks,
            clock,
            limits,
            rules or Rules(),
            watch,
            bell or NoBell(),
            holders,
        )
        async with node.running():
            yield node


async def opening_failure(node: Node, session_id: SessionId) -> AgentError | None:
    """Wait until the agent has opened a new session or failed; return the failure as recorded in the log, if any.

    The caller sets a timeout. Raises `SessionNotFound`.
    """
    start = start_of((await node.head(session_id)).epoch)
    async with aclosing(node.follow(session_id, start)) as pages:
        async for page in pages:
            for event in decode_all(page.frames):
                if isinstance(event, AgentStarted):
                    return None
                if isinstance(event, AgentExited):
                    return failure_of(event)
    return None


def _library() -> ContextVar[Any] | None:
    try:
        return import_module("sniffio").current_async_library_cvar
    except ModuleNotFoundError:
        # anyio then asks for the running loop, which callbacks have as well.
        return None


_LIBRARY = _library()


def mark_asyncio() -> None:
    """Mark this context, and those that are copied from it, as run by asyncio."""
    if _LIBRARY is not None:
        _LIBRARY.set("asyncio")
