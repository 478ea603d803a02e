"""A node: the sessions of one process, assembled. No rules of its own.

A session is opened from the log when it is first touched, and put away when nobody has touched it for a while. On
start the node opens what the log marks as unsettled, some side by side, so that what a crash left open gets its end
without anybody asking. It works meanwhile: whoever wants a session that is not recovered yet waits for that one, so
nobody sees what is owed. One session's failure is its own. Which sessions it has is kept by `Placing`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, TypeVar, cast
from weakref import WeakValueDictionary

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from turnwire.core.background import AllWork, still_running
from turnwire.core.codec import check_asked, decode_all
from turnwire.core.events import AgentExited, AgentStarted
from turnwire.core.inputs import AnyInput, Asked, Close, CreateSession, Prompt, Recover
from turnwire.core.parties import Parties
from turnwire.core.queue import PLACE_GONE, Accepted
from turnwire.core.receipts import Chain
from turnwire.core.state import NO_SETUP, NOTHING, Phase, SessionState, Setup
from turnwire.core.view import View
from turnwire.errors import (
    AgentError,
    LifeOver,
    LimitExceeded,
    LocalProtocolError,
    LogUnavailable,
    NotOwner,
    SessionClosed,
    SessionExists,
    ShuttingDown,
    TurnwireError,
)
from turnwire.ids import AgentName, AgentSessionId, Epoch, SessionId
from turnwire.limits import Limits
from turnwire.log.base import EventLog, Position, SessionHead
from turnwire.log.bell import Bell, NoBell
from turnwire.log.owners import Owners, SoleOwner
from turnwire.runtime import new_ids
from turnwire.runtime.agent_driver import AgentDriver
from turnwire.runtime.agent_exit import failure_of
from turnwire.runtime.agent_pool import AgentPolicy, AgentPool, AgentPools, HostedAgent
from turnwire.runtime.asyncio_mark import mark_asyncio
from turnwire.runtime.client_requests import ClientRequests
from turnwire.runtime.clock import Clock, SystemClock
from turnwire.runtime.elsewhere import AgentsAnywhere, Birth, Elsewhere
from turnwire.runtime.folds import KeptViews, kept_chain, open_state
from turnwire.runtime.follow import Page, follow, start_of
from turnwire.runtime.node_agents import NodeAgents
from turnwire.runtime.permission_rules import Rules
from turnwire.runtime.placing import Debt, Placing
from turnwire.runtime.session import STATE, Opened, Readable, Session, Watch
from turnwire.runtime.shadow import Shadows
from turnwire.runtime.source import AgentSource
from turnwire.runtime.tail import Tail

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Fork(NamedTuple):
    """The session that a new one goes on from."""

    of: SessionId
    context: str | None = None
    """Its conversation as text, for an agent that has not had it; else the one that has it makes the fork."""


class Node:
    """Sessions of this process. Make one with `open_node`."""

    def __init__(  # noqa: PLR0913  what a node is made of; `open_node` names each
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
        self._placing = Placing(
            owners, log, clock, opens=self.session, concludes=self._conclude, later=self._come_back
        )
        self.elsewhere: Elsewhere | None = None
        """Sessions that other nodes of the same log have; none if there are no others."""
        self.agents_here = self.agents = NodeAgents(self._driver, self._pools, clock, limits)
        """What can be asked of and for a session's agent; `agents_here` refuses sessions of other nodes."""
        self.views = KeptViews(log, limits, tasks, is_shared=not bell.is_alone)
        """Views for those who read them in pages."""
        self._rules = rules
        self._watch = watch
        self._tails: WeakValueDictionary[SessionId, Tail] = WeakValueDictionary()
        """Rings live as long as a loop or a follower holds them."""
        self._bell = bell
        self._shadows = Shadows(log, limits, tasks, self._tails, self._loaded, self._alone)
        bell.set_follower(self._shadows)

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
        return self._placing.is_recovering

    async def recovered(self) -> None:
        """Return once every session that was left open has been looked at."""
        await self._placing.recovered()

    async def settle(self, session_id: SessionId) -> None:
        """Let a session that was left open get its end first. For whoever reads the log past the session."""
        if self._placing.is_owed(session_id):
            await self.session(session_id)

    def join(self, elsewhere: Elsewhere) -> None:
        """From now on what is wanted of a session that another node has is asked of that one."""
        self.elsewhere = elsewhere
        elsewhere.reach = self.reach
        self.agents = AgentsAnywhere(self._driver, self._pools, self._clock, self._limits, elsewhere, self._tasks)

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
        self._placing.check()
        session_id = session_id or new_ids.session_id()
        if fork is None or fork.context is not None:
            of, context = (None, None) if fork is None else fork
            birth = Birth(session_id, cwd, setup, of, context, author, title)
            await self._create(birth, self._pools.named(agent_name))
            return session_id
        birth = Birth(session_id, cwd, setup, fork.of, None, author, title)
        here = partial(self.fork_here, birth)
        if self.elsewhere is None:
            await here()
        else:
            await self.elsewhere.act(fork.of, here, lambda node: node.fork(birth), repeatable=False)
        return session_id

    async def fork_here(self, birth: Birth) -> None:
        """A new session that goes on from one of this node, at its agent. Raises `NotOwner`, and as `create`."""
        assert birth.fork_of is not None, "a fork goes on from something"
        self._placing.check()
        state = (await self.session(birth.fork_of)).state
        if state.known_as is None:
            raise LocalProtocolError("no agent has had this session yet; prompt it first", session_id=birth.fork_of)
        await self._create(birth, self._pools.of(state.agent_name), state.known_as)

    async def _create(self, birth: Birth, pool: AgentPool, parent: AgentSessionId | None = None) -> None:
        """Record the session, and let its agent open it; as a fork of `parent`, if that is given."""
        session_id = birth.session_id
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
                    cwd=birth.cwd,
                    setup=birth.setup,
                    fork_of=birth.fork_of,
                    title=birth.title,
                    author=birth.author,
                    agent_name=pool.recorded_name,
                    context=birth.context,
                )
            )
            self._drivers[session_id].open(parent)

    async def _begin_log(self, session_id: SessionId) -> SessionHead:
        """An empty log; also one that a crash left before its first event. Raises `SessionExists`."""
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
        """Whether nobody else is just making the session."""
        try:
            await self._placing.claim(session_id)
        except NotOwner:
            return False
        return True

    async def accept(self, session_id: SessionId, prompt: Prompt) -> tuple[Accepted, Callable[[], None]]:
        """`submit` for a prompt whose agent is not asked before its client was told: the second part says that.

        Call it once the answer is written, or cannot be. Raises what `submit` raises.
        """
        here = partial(self.accept_here, session_id, prompt)
        if self.elsewhere is None:
            return await here()
        check_asked(prompt)
        return await self.elsewhere.accept(session_id, prompt, here, self.session)

    async def accept_here(self, session_id: SessionId, prompt: Prompt) -> tuple[Accepted, Callable[[], None]]:
        """`accept` for a session of this node. Raises `NotOwner`."""
        session = await self.session(session_id)
        session.hold(prompt.prompt_id)

        def told() -> None:
            session.answered(prompt.prompt_id)

        try:
            check_asked(prompt)
            accepted = cast("Accepted", await self._submit(session, prompt))
        except BaseException:
            told()
            raise
        return accepted, told

    async def submit(self, session_id: SessionId, input: AnyInput) -> object:
        """Hand an input to a session and give its answer.

        Raises `SessionNotFound`, `NotOwner` and what the session refuses.
        """
        here = partial(self.submit_here, session_id, input)
        if self.elsewhere is None:
            return await here()
        if isinstance(input, Asked):
            check_asked(input)
        return await self.elsewhere.submit(session_id, input, here, self.session)

    async def submit_here(self, session_id: SessionId, input: AnyInput) -> object:
        """`submit` for a session of this node. Raises `NotOwner`."""
        if isinstance(input, Asked):
            check_asked(input)
        return await self._submit(await self.session(session_id), input)

    async def _submit(self, session: Session, input: AnyInput) -> object:
        while True:
            try:
                return await session.submit(input)
            except (SessionClosed, NotOwner):
                # Put away between finding it and asking it: the log brings it back. A closed one says so itself. Or
                # it was not ours any more, and nothing was stored: whose it is comes out when it is opened.
                if not session.inbox.is_closed:
                    raise
                await anyio.lowlevel.checkpoint()
            session = await self.session(session.session_id)

    async def follow(self, session_id: SessionId, after: Position) -> AsyncGenerator[Page]:
        """Everything after a position, then whatever comes. Raises `SessionNotFound`, `PositionLost`."""
        tail = await self.tail(session_id)
        async for page in follow(self._log, tail, session_id, after, self._limits):
            yield page

    async def tail(self, session_id: SessionId) -> Tail:
        """The ring of the session's newest events. Raises `SessionNotFound`."""
        tail = self._tails.get(session_id) if self._bell.is_alone else None
        # Only the session knows whether there will be more.
        return (await self.peek(session_id)).tail if tail is None else tail

    async def peek(self, session_id: SessionId) -> Readable:
        """The session for who only reads it; what changes it goes through `submit`. Raises `SessionNotFound`.

        Where nodes share the log it is not claimed: one that is not here is read from the log.
        """
        if self._bell.is_alone:
            return await self.session(session_id)
        await self.settle(session_id)
        return await self._shadows.peek(session_id)

    def known(self, session_id: SessionId) -> Readable | None:
        """The same without waiting, of a session that is in memory."""
        return self._loaded.get(session_id) if self._bell.is_alone else self._shadows.known(session_id)

    async def reach(self, session_id: SessionId, head: int) -> None:
        """Return once whoever reads the session here can see this event, which its owner has stored."""
        await self._shadows.reach(session_id, head)

    async def active(self) -> list[SessionId]:
        """The sessions in which something may be open: a turn, a prompt that waits, a permission request."""
        found = dict.fromkeys(self._loaded)
        after: SessionId | None = None
        while not self._bell.is_alone and (heads := await self._log.sessions(unsettled_only=True, after=after)):
            after = heads[-1].session_id
            found |= dict.fromkeys(each.session_id for each in heads)
        return list(found)

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

    async def head(self, session_id: SessionId, *, anew: bool = False) -> SessionHead:
        """Where the session's log stands; see `EventLog.head`. Raises `SessionNotFound`."""
        await self.settle(session_id)
        return await self._log.head(session_id, anew=anew)

    async def retain(self, session_id: SessionId, *, keep_events: int) -> int:
        """Forget all but the newest events; what they folded to is kept. Returns the oldest kept offset."""
        here = partial(self.retain_here, session_id, keep_events)
        if self.elsewhere is None:
            return await here()
        return await self.elsewhere.act(
            session_id, here, lambda node: node.retain(session_id, keep_events), repeatable=True
        )

    async def retain_here(self, session_id: SessionId, keep_events: int) -> int:
        """`retain` for a session of this node. Raises `NotOwner`."""
        session = await self.session(session_id)
        await session.save_snapshot()
        folded = await self.views.keep(session_id)
        # The session goes on meanwhile, and a snapshot may not have been kept: only what the log holds counts.
        kept = await self._log.load_snapshot(session_id, STATE)
        upto = min(session.head - keep_events, folded, 0 if kept is None else kept_chain(kept).offset)
        return await self._log.trim(session_id, upto=max(upto, 0))

    async def delete(self, session_id: SessionId) -> None:
        """Remove a session with all its events; followers come to an end. Raises `SessionNotFound`."""
        here = partial(self.delete_here, session_id)
        if self.elsewhere is None:
            await here()
        else:
            await self.elsewhere.act(session_id, here, lambda node: node.delete(session_id), repeatable=True)

    async def delete_here(self, session_id: SessionId) -> None:
        """`delete` for a session of this node. Raises `NotOwner`."""
        await self.submit_here(session_id, Close(at=self._clock.now_ms(), reason="deleted"))
        async with self._alone(session_id):
            session = self._loaded.get(session_id)
            if session is not None:
                self._put_away(session)
            self._abandon(session_id)
            try:
                await self._log.delete(session_id)
            finally:
                # A session that gets this id again is another one, with debts and a ring of its own.
                self._placing.forget(session_id)
                self._shadows.end(session_id)

    # -- opening and putting away --------------------------------------------------------------------------

    async def session(self, session_id: SessionId) -> Session:
        """The session, opened from the log if need be: this node has it then.

        Raises `SessionNotFound`, and `NotOwner` if another node has it (its `owner` is in the context), or none of
        its place is there.
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
            session = self._load(opened, opened.state.agent_name)
            if debt is not None:
                holds = self._drivers[session_id].pool.agent.policy.holds_after_restart
                await self._pay(session, debt.code, holds=debt.code if holds else None)
        except LogUnavailable:
            self._placing.unpaid()
            raise
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

    async def _pay(self, session: Session, code: str, *, holds: str | None) -> None:
        """Record what is owed, once. Without it the session is not open: the next one tries again."""
        try:
            with anyio.CancelScope(shield=True):
                await session.submit(Recover(at=self._clock.now_ms(), code=code, holds=holds))
        except TurnwireError:
            self._put_away(session)
            raise

    async def _conclude(self, session_id: SessionId, debt: Debt) -> None:
        """Record what is owed to a session that no node can host which is there; then it is nobody's again."""
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
        # It may have been lost since the log was asked.
        self._placing.check_life()
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
        self._shadows.arrived(session)
        self._tasks.start_soon(self._run, session)
        return session

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
        except Exception:  # whatever it is, other sessions go on
            extra = {"event": "session_failed", "session": session.session_id}
            logger.exception("a session's loop failed; it is opened anew when next needed", extra=extra)
            # What was decided and not done is unknown now, so the next opening owes what a restart owes.
            self._placing.failed(session.session_id)
            self._abandon(session.session_id)
        finally:
            if self._loaded.get(session.session_id) is session:
                del self._loaded[session.session_id]
            self._shadows.left(session)

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
        self._shadows.left(session)

    def _abandon(self, session_id: SessionId) -> None:
        driver = self._drivers.pop(session_id, None)
        if driver is not None:
            driver.abandon()

    async def _release(self, session_id: SessionId) -> None:
        """Let anybody have a session that was put away, unless it is back, or an agent serves it."""
        if self._placing.is_shared:
            async with self._alone(session_id):
                if session_id not in self._loaded and session_id not in self._drivers:
                    await self._placing.release(session_id)

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
            except (NotOwner, LifeOver, ShuttingDown):
                # It is for another node, or for the next life of this one.
                self._abandon(session_id)
                return
            except TurnwireError as error:
                extra = {"event": "session_not_opened", "session": session_id, "code": error.code}
                logger.exception("a session could not be opened for its agent", extra=extra)
                self._abandon(session_id)
                return

    async def _driver(self, session_id: SessionId) -> tuple[Session, AgentDriver]:
        session = await self.session(session_id)
        return session, self._drivers[session_id]

    # -- the node's own tasks ------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        """Put away what nobody has touched for a while, for ever."""
        while True:
            await self._clock.sleep(min(self._limits.idle_unload_s, self._limits.agent_idle_s) / 2)
            for session in self._loaded.values():
                if not session.is_idle or self._is_at_work(session):
                    # A v2 turn runs without an open request, so only the session knows that its agent works; and
                    # a prompt that is being stored will want the agent in a moment.
                    self._drivers[session.session_id].used()
            await self._pools.recycle()
            now = self._clock.monotonic()
            for session in list(self._loaded.values()):
                if self._loaded.get(session.session_id) is not session:
                    continue  # it went while another one was put away
                is_kept = self._drivers[session.session_id].requests.has_offers or self._is_at_work(session)
                if session.is_idle and not is_kept and now - session.busy_at >= self._limits.idle_unload_s:
                    self._put_away(session)
                    await session.save_snapshot()
                    await self._release(session.session_id)

    def _is_at_work(self, session: Session) -> bool:
        """Whether its agent does something in the background, or one of its children is at work."""
        return bool(self.still_running(session.state) or session.state.running_children)

    def _stop(self) -> None:
        """End every loop. Sessions are not ended: what is open is owed by the next owner."""
        for session in self._loaded.values():
            session.stop()

    # -- other nodes ---------------------------------------------------------------------------------------

    async def inherit(self, life: int, *, is_ours: bool = False) -> None:
        """Take over what a life left unsettled that is gone. `is_ours`: it was an earlier one of this node."""
        await self._placing.inherit(life, is_ours=is_ours)

    async def adopt(self) -> None:
        """Take over what is of our place, unsettled and free."""
        await self._placing.adopt()

    async def leave(self) -> list[SessionId]:
        """Come to no more sessions; gives those that other nodes are waiting for, which is for `let_go`."""
        await self._placing.leave()
        return list(self._placing.held) if self._placing.is_shared else []

    async def let_go(self, session_id: SessionId) -> bool:
        """Leave a session to other nodes, if nothing is at work for it. Its agent is left, too.

        False if something is just being stored for it: what comes of that is not known yet, so ask again.
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
            # Before anything is waited for: an agent that speaks now would bring the session back.
            self._abandon(session_id)
            if session is not None:
                await session.save_snapshot()
            await self._placing.release(session_id)
            return True

    def lose(self) -> None:
        """This life is over, and others may act for its sessions: end all agents and loops, now.

        Nothing is recorded. From here on `session` raises `LifeOver`.
        """
        self._placing.lose()
        self._pools.kill()
        self._stop()
        self._loaded.clear()
        for session_id in list(self._drivers):
            self._abandon(session_id)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Recover and keep house until the end."""
        if await self._placing.list_owed():
            self._tasks.start_soon(self._placing.run)
        self._tasks.start_soon(self._sweep)
        try:
            yield
        finally:
            # First of all, so that no session takes the end of its agent for news and starts what waits.
            self._stop()
            # The log goes on, and hears the others.
            self._bell.set_follower(None)
            self._tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await self._pools.aclose()


@asynccontextmanager
async def open_node(  # noqa: PLR0913  all but two have a default
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
) -> AsyncGenerator[Node]:
    """A running node over a log, which it recovers. On exit its tasks end; the log stays the caller's to close.

    `agents`: those it hosts, the default one first; or the source of the only one, for which `policy` is. `owners`:
    who has which session, if other nodes use the log too.
    `rules` answer permission requests of agents before users are asked; `watch` hears every batch of events once it
    is seen. `bell`: that of a log which several nodes share.
    """
    mark_asyncio()
    clock, limits = clock or SystemClock(), limits or Limits()
    hosted = (
        agents if isinstance(agents, Sequence) else [HostedAgent(source=agents, policy=policy or AgentPolicy())]
    )
    async with anyio.create_task_group() as tasks:
        node = Node(
            log, owners or SoleOwner(log), hosted, tasks, clock, limits, rules or Rules(), watch, bell or NoBell()
        )
        async with node.running():
            yield node


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
