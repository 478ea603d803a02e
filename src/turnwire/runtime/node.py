"""A node: the sessions of one process, assembled. No rules of its own.

A session is opened from the log when it is first touched, and put away when nobody has touched it for a while. On
start the node opens what the log marks as unsettled, some side by side, so that what a crash left open gets its end
without anybody asking. It works meanwhile: whoever wants a session that is not recovered yet waits for that one, so
nobody sees what is owed. One session's failure is its own.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar, cast
from weakref import WeakValueDictionary

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from turnwire.core.background import AllWork, still_running
from turnwire.core.codec import check_asked, decode_all
from turnwire.core.events import AgentExited, AgentStarted
from turnwire.core.inputs import AgentGone, AnyInput, Asked, Close, CreateSession, HoldQueue, Prompt, Recover
from turnwire.core.parties import Parties
from turnwire.core.queue import STOPPING, Accepted
from turnwire.core.state import NO_SETUP, NOTHING, Phase, SessionState, Setup
from turnwire.core.view import View
from turnwire.errors import (
    AgentError,
    LimitExceeded,
    LocalProtocolError,
    LogUnavailable,
    SessionClosed,
    SessionExists,
    TurnwireError,
)
from turnwire.ids import AgentName, AgentSessionId, Epoch, SessionId
from turnwire.limits import Limits
from turnwire.log.base import EventLog, Position, SessionHead
from turnwire.runtime import new_ids
from turnwire.runtime.agent_driver import AgentDriver
from turnwire.runtime.agent_exit import failure_of
from turnwire.runtime.agent_pool import AgentPolicy, AgentPools, HostedAgent
from turnwire.runtime.client_requests import ClientRequests
from turnwire.runtime.clock import Clock, SystemClock
from turnwire.runtime.folds import KeptViews, open_state
from turnwire.runtime.follow import Page, follow, start_of
from turnwire.runtime.node_agents import NodeAgents
from turnwire.runtime.permission_rules import Rules
from turnwire.runtime.session import STATE, Opened, Session, Watch
from turnwire.runtime.source import AgentSource
from turnwire.runtime.tail import Tail

logger = logging.getLogger(__name__)

T = TypeVar("T")

STOPPED = "daemon_stopped"
RECOVERED_AT_ONCE: Final = 64
"""Sessions that are recovered side by side: as many as share one commit of the log."""


class Fork(NamedTuple):
    """The session that a new one goes on from."""

    of: SessionId
    context: str | None = None
    """Its conversation as text, for an agent that has not had it; else the one that has it makes the fork."""


class Node:
    """Sessions of this process. Make one with `open_node`."""

    def __init__(
        self,
        log: EventLog,
        agents: Sequence[HostedAgent],
        tasks: TaskGroup,
        clock: Clock,
        limits: Limits,
        rules: Rules,
        watch: Watch | None,
    ) -> None:
        self._log = log
        self._tasks = tasks
        self._clock = clock
        self._limits = limits
        self._pools = AgentPools(agents, tasks, clock, limits)
        self._loaded: dict[SessionId, Session] = {}
        self.loaded: Mapping[SessionId, Session] = MappingProxyType(self._loaded)
        """Sessions that are in memory."""
        self._drivers: dict[SessionId, AgentDriver] = {}
        self._opening: dict[SessionId, anyio.Lock] = {}
        self._owned: set[SessionId] = set()
        """Sessions that this process has opened before: what was owed to them has been paid."""
        self._owed: dict[SessionId, SessionHead] = {}
        """Sessions that an earlier process left open and that are not recovered yet, as the log knows them."""
        self._recovered = anyio.Event()
        self.agents = NodeAgents(self._driver, self._pools, clock, limits)
        """What can be asked of and for a session's agent."""
        self.views = KeptViews(log, limits)
        """Views for those who read them in pages."""
        self._rules = rules
        self._watch = watch
        self._tails: WeakValueDictionary[SessionId, Tail] = WeakValueDictionary()
        """Rings live as long as a loop or a follower holds them."""

    @property
    def log(self) -> EventLog:
        """Where the events of its sessions are."""
        return self._log

    @property
    def limits(self) -> Limits:
        return self._limits

    @property
    def is_recovering(self) -> bool:
        """Whether sessions that a crash left open wait for their end."""
        return not self._recovered.is_set()

    async def recovered(self) -> None:
        """Return once every session that was left open has been looked at."""
        await self._recovered.wait()

    async def settle(self, session_id: SessionId) -> None:
        """Let a session that was left open get its end first. For whoever reads the log past the session."""
        if session_id in self._owed:
            await self.session(session_id)

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
        """A new session, or one that goes on from another; its agent's side is being opened when this returns.

        Raises `SessionExists`, `LimitExceeded`, `UnknownAgent`; for a fork also `SessionNotFound`, and
        `LocalProtocolError` if no agent has had that session yet.
        """
        parent = None
        pool = self._pools.named(agent_name)
        if fork is not None and fork.context is None:
            parent = await self._known_as(fork.of)
            pool = self._pools.of((await self.session(fork.of)).state.agent_name)
        if len(self._loaded) >= self._limits.loaded_sessions:
            raise LimitExceeded(
                "too many sessions are open; close one, or raise the limit", limit="loaded_sessions"
            )
        session_id = session_id or new_ids.session_id()
        async with self._alone(session_id):
            head = await self._begin_log(session_id)
            self._owned.add(session_id)
            session = self._load(Opened(session_id, head.epoch, NOTHING, 0), pool.recorded_name)
            now = self._clock.now_ms()
            await session.submit(
                CreateSession(
                    at=now,
                    session_id=session_id,
                    cwd=cwd,
                    setup=setup,
                    fork_of=None if fork is None else fork.of,
                    title=title,
                    author=author,
                    agent_name=pool.recorded_name,
                    context=None if fork is None else fork.context,
                )
            )
            self._drivers[session_id].open(parent)
        return session_id

    async def _begin_log(self, session_id: SessionId) -> SessionHead:
        """An empty log; also one that a crash left before its first event. Raises `SessionExists`."""
        try:
            return await self._log.create(session_id)
        except SessionExists:
            head = await self._log.head(session_id)
            if head.head:
                raise
            session = self._loaded.get(session_id)
            if session is not None:
                self._put_away(session)
            return head

    async def _known_as(self, session_id: SessionId) -> AgentSessionId:
        known_as = (await self.session(session_id)).state.known_as
        if known_as is None:
            raise LocalProtocolError("no agent has had this session yet; prompt it first", session_id=session_id)
        return known_as

    async def accept(self, session_id: SessionId, prompt: Prompt) -> tuple[Accepted, Callable[[], None]]:
        """`submit` for a prompt whose agent is not asked before its client was told: the second part says that.

        Call it once the answer is written, or cannot be. Raises what `submit` raises.
        """
        session = await self.session(session_id)
        session.hold(prompt.prompt_id)

        def told() -> None:
            session.answered(prompt.prompt_id)

        try:
            accepted = cast("Accepted", await self.submit(session_id, prompt))
        except BaseException:
            told()
            raise
        return accepted, told

    async def submit(self, session_id: SessionId, input: AnyInput) -> object:
        """Hand an input to a session and give its answer. Raises `SessionNotFound` and what the session refuses."""
        if isinstance(input, Asked):
            check_asked(input)
        while True:
            session = await self.session(session_id)
            try:
                return await session.submit(input)
            except SessionClosed:
                # Put away between finding it and asking it: the log brings it back. A closed one says so itself.
                if not session.inbox.is_closed:
                    raise
                await anyio.lowlevel.checkpoint()

    async def follow(self, session_id: SessionId, after: Position) -> AsyncGenerator[Page]:
        """Everything after a position, then whatever comes. Raises `SessionNotFound`, `PositionLost`."""
        tail = await self.tail(session_id)
        async for page in follow(self._log, tail, session_id, after, self._limits):
            yield page

    async def tail(self, session_id: SessionId) -> Tail:
        """The ring of the session's newest events. Raises `SessionNotFound`."""
        tail = self._tails.get(session_id)
        # Only the session knows whether there will be more.
        return (await self.session(session_id)).tail if tail is None else tail

    async def view(self, session_id: SessionId) -> View:
        """The session's transcript and latest values, all of it: `look` is quicker. Raises `SessionNotFound`."""
        await self.settle(session_id)
        return await self.views.whole(session_id)

    async def newest(self, session_id: SessionId) -> tuple[View, Epoch]:
        """The view that is kept in memory, and the life of the log it is of; old turns and items are put away.

        It is shared and grows: what is taken of it is taken before the next await.
        """
        await self.settle(session_id)
        return await self.views.newest(session_id)

    async def look(self, session_id: SessionId, look: Callable[[View], T]) -> T:
        """What a function finds in the same view, also among what is put away. Raises `SessionNotFound`."""
        await self.settle(session_id)
        return await self.views.read(session_id, look)

    def still_running(self, state: SessionState) -> AllWork:
        """What of a session's background work counts as running now."""
        return still_running(state.work, self._clock.now_ms(), self._limits.unlisted_work_s)

    async def head(self, session_id: SessionId) -> SessionHead:
        """Where the session's log stands. Raises `SessionNotFound`."""
        await self.settle(session_id)
        return await self._log.head(session_id)

    async def retain(self, session_id: SessionId, *, keep_events: int) -> int:
        """Forget all but the newest events; what they folded to is kept. Returns the oldest kept offset."""
        session = await self.session(session_id)
        await session.save_snapshot()
        folded = await self.views.keep(session_id)
        # The session goes on meanwhile, and a snapshot may not have been kept: only what the log holds counts.
        kept = await self._log.load_snapshot(session_id, STATE)
        upto = min(session.head - keep_events, folded, 0 if kept is None else kept.offset)
        return await self._log.trim(session_id, upto=max(upto, 0))

    async def delete(self, session_id: SessionId) -> None:
        """Remove a session with all its events; followers come to an end. Raises `SessionNotFound`."""
        await self.submit(session_id, Close(at=self._clock.now_ms(), reason="deleted"))
        async with self._alone(session_id):
            session = self._loaded.get(session_id)
            if session is not None:
                self._put_away(session)
            self._abandon(session_id)
            try:
                await self._log.delete(session_id)
            finally:
                # A session that gets this id again is another one, with debts and a ring of its own.
                self._owned.discard(session_id)
                tail = self._tails.pop(session_id, None)
                if tail is not None:
                    tail.end()

    # -- opening and putting away --------------------------------------------------------------------------

    async def session(self, session_id: SessionId) -> Session:
        """The session, opened from the log if need be. Raises `SessionNotFound`."""
        session = self._loaded.get(session_id)
        if session is not None and session_id not in self._owed:
            return session
        async with self._alone(session_id):
            session = self._loaded.get(session_id)
            if session is None:
                opened = await open_state(self._log, session_id, self._limits, self._owed.get(session_id))
                session = self._load(opened, opened.state.agent_name)
                if session_id not in self._owned:
                    await self._own(session)
            self._owed.pop(session_id, None)
        return session

    @asynccontextmanager
    async def _alone(self, session_id: SessionId) -> AsyncGenerator[None]:
        """One at a time creates, opens or deletes a session."""
        lock = self._opening.setdefault(session_id, anyio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                self._opening.pop(session_id, None)

    async def _own(self, session: Session) -> None:
        """Pay what is owed, once per process. Without it the session is not open: the next one tries again."""
        try:
            with anyio.CancelScope(shield=True):
                holds = self._drivers[session.session_id].pool.agent.policy.holds_after_restart
                await session.submit(Recover(at=self._clock.now_ms(), holds=holds))
        except TurnwireError:
            self._put_away(session)
            raise
        self._owned.add(session.session_id)

    def _load(self, opened: Opened, agent_name: AgentName | None) -> Session:
        parties = Parties.of(opened.state)
        tail = self._tails.setdefault(opened.session_id, Tail(self._limits, opened.epoch, opened.head, parties))
        tail.reopen(opened.head, parties)
        if opened.state.phase is Phase.CLOSED:
            tail.end()
        session = Session(opened, self._log, tail, self._clock, self._limits)
        session.watch = self._watch or session.watch
        driver = self._drivers.get(opened.session_id)
        if driver is None:
            pool = self._pools.of(agent_name)
            driver = AgentDriver(
                opened.session_id,
                pool,
                self._clock,
                self._tasks,
                reopen=partial(self._come_back, opened.session_id),
                view=self.view,
                requests=ClientRequests(self._tasks, self._limits, own=pool.agent.policy.services),
                rules=self._rules,
            )
            self._drivers[opened.session_id] = driver
        driver.attach(session)
        self._loaded[opened.session_id] = session
        self._tasks.start_soon(self._run, session)
        return session

    async def _run(self, session: Session) -> None:
        try:
            await session.run()
        except Exception:  # whatever it is, other sessions go on
            extra = {"event": "session_failed", "session": session.session_id}
            logger.exception("a session's loop failed; it is opened anew when next needed", extra=extra)
            # What was decided and not done is unknown now, so the next opening owes what a restart owes.
            self._owned.discard(session.session_id)
            self._abandon(session.session_id)
        finally:
            if self._loaded.get(session.session_id) is session:
                del self._loaded[session.session_id]

    def _put_away(self, session: Session) -> None:
        """Forget a session. Without an await, so nobody can hand it anything in between."""
        if self._loaded.get(session.session_id) is not session:
            return
        del self._loaded[session.session_id]
        driver = self._drivers[session.session_id]
        driver.detach()
        if not driver.has_agent:
            del self._drivers[session.session_id]
        session.stop()

    def _abandon(self, session_id: SessionId) -> None:
        driver = self._drivers.pop(session_id, None)
        if driver is not None:
            driver.leave()

    def _come_back(self, session_id: SessionId) -> None:
        self._tasks.start_soon(self._bring_back, session_id)

    async def _bring_back(self, session_id: SessionId) -> None:
        """Open a session because its agent spoke; what it said waits until the log can give the session."""
        while True:
            try:
                await self.session(session_id)
                return
            except LogUnavailable:
                await self._clock.sleep(self._limits.log_retry_s)
            except TurnwireError as error:
                extra = {"event": "session_not_opened", "session": session_id, "code": error.code}
                logger.exception("a session could not be opened for its agent", extra=extra)
                self._abandon(session_id)
                return

    async def _driver(self, session_id: SessionId) -> tuple[Session, AgentDriver]:
        session = await self.session(session_id)
        return session, self._drivers[session_id]

    # -- the node's own tasks ------------------------------------------------------------------------------

    async def _list_owed(self) -> None:
        """Note every session that the log marks as unsettled."""
        after: SessionId | None = None
        while heads := await self._log.sessions(unsettled_only=True, after=after):
            after = heads[-1].session_id
            self._owed.update((head.session_id, head) for head in heads)

    async def _recover(self) -> None:
        """Open all of them; opening pays what is owed."""
        waiting = iter(list(self._owed))
        async with anyio.create_task_group() as tasks:
            for _ in range(min(RECOVERED_AT_ONCE, len(self._owed))):
                tasks.start_soon(self._recover_each, waiting)
        self._recovered.set()

    async def _recover_each(self, waiting: Iterator[SessionId]) -> None:
        for session_id in waiting:
            try:
                await self.session(session_id)
            except LogUnavailable:
                self._tasks.start_soon(self._bring_back, session_id)
            except TurnwireError as error:
                extra = {"event": "recovery_failed", "session": session_id, "code": error.code}
                logger.exception("a session could not be recovered", extra=extra)
                # It is read as it was left: nothing better will come.
                self._owed.pop(session_id, None)

    async def _sweep(self) -> None:
        """Put away what nobody has touched for a while, for ever."""
        while True:
            await self._clock.sleep(min(self._limits.idle_unload_s, self._limits.agent_idle_s) / 2)
            for session in self._loaded.values():
                if session.state.unsettled or self._is_at_work(session):
                    # A v2 turn runs without an open request, so only the session knows that its agent works.
                    self._drivers[session.session_id].used()
            await self._pools.recycle()
            now = self._clock.monotonic()
            for session in list(self._loaded.values()):
                is_kept = self._drivers[session.session_id].requests.has_offers or self._is_at_work(session)
                if session.is_idle and not is_kept and now - session.busy_at >= self._limits.idle_unload_s:
                    self._put_away(session)
                    await session.save_snapshot()

    def _is_at_work(self, session: Session) -> bool:
        """Whether its agent does something in the background, or one of its children is at work."""
        return bool(self.still_running(session.state) or session.state.running_children)

    def _stop(self) -> None:
        """End every loop. Sessions are not ended: what is open is owed by the next owner."""
        for session in self._loaded.values():
            session.stop()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Recover and keep house until the end."""
        await self._list_owed()
        if self._owed:
            self._tasks.start_soon(self._recover)
        else:
            self._recovered.set()
        self._tasks.start_soon(self._sweep)
        try:
            yield
        finally:
            # First of all, so that no session takes the end of its agent for news and starts what waits.
            self._stop()
            self._tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await self._pools.aclose()


@asynccontextmanager
async def open_node(
    log: EventLog,
    agents: AgentSource | Sequence[HostedAgent],
    *,
    clock: Clock | None = None,
    limits: Limits | None = None,
    policy: AgentPolicy | None = None,
    rules: Rules | None = None,
    watch: Watch | None = None,
) -> AsyncGenerator[Node]:
    """A running node over a log, which it recovers. On exit its tasks end; the log stays the caller's to close.

    `agents`: those it hosts, the default one first; or the source of the only one, for which `policy` is.
    `rules` answer permission requests of agents before users are asked; `watch` hears every batch of events once it
    is seen.
    """
    clock, limits = clock or SystemClock(), limits or Limits()
    hosted = (
        agents if isinstance(agents, Sequence) else [HostedAgent(source=agents, policy=policy or AgentPolicy())]
    )
    async with anyio.create_task_group() as tasks:
        node = Node(log, hosted, tasks, clock, limits, rules or Rules(), watch)
        async with node.running():
            yield node


# -- waiting for an opening, and stopping ------------------------------------------------------------------------


async def opening_failure(node: Node, session_id: SessionId) -> AgentError | None:
    """Wait until the agent has a new session, or cannot have it; then why, as the log tells it.

    Whoever asks puts a bound around it. Raises `SessionNotFound`.
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


async def drain(node: Node, clock: Clock, seconds: float) -> None:
    """Hold every queue, let running turns end, then end the rest with `daemon_stopped`.

    What waits stays in the queue for the next start. The caller has stopped taking prompts.
    """
    async with anyio.create_task_group() as tasks:
        for session_id in list(node.loaded):
            tasks.start_soon(_drain_session, node, clock, session_id, seconds)


async def _drain_session(node: Node, clock: Clock, session_id: SessionId, seconds: float) -> None:
    with suppress(TurnwireError):
        session = await node.session(session_id)
        if not session.state.unsettled:
            return
        await node.submit(session_id, HoldQueue(at=clock.now_ms(), reason=STOPPING))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_stop_at, clock, seconds, tasks.cancel_scope)
            await _until_quiet(node, session_id)
            tasks.cancel_scope.cancel()
        if (await node.session(session_id)).state.turn is not None:
            message = "the daemon was stopped before the turn ended"
            gone = AgentGone(at=clock.now_ms(), code=STOPPED, message=message)
            await node.submit(session_id, gone)


async def _stop_at(clock: Clock, seconds: float, scope: anyio.CancelScope) -> None:
    await clock.sleep(seconds)
    scope.cancel()


async def _until_quiet(node: Node, session_id: SessionId) -> None:
    """Until no turn is active. Every step of a turn is an event, so the session's tail tells."""
    while True:
        session = await node.session(session_id)
        head = session.tail.head
        if session.state.turn is None:
            return
        await session.tail.wait(head)
