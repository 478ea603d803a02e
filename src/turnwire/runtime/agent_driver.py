"""A session's side of its agent: the effects that the machine wants are performed here.

Effects come from the session's loop and are handed over without waiting. What the agent does goes into the
session's inbox in the order it was done; what happens while the session is put away is kept, and brings it back.
The session is opened at an agent when the first prompt needs it, and anew when that agent is gone. No effect
fails silently: what cannot be sent comes back as an input.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial

import anyio
from anyio.abc import TaskGroup
from msgspec import Raw, UnsetType

from turnwire.core import effects as fx
from turnwire.core.events import CancelRung
from turnwire.core.inputs import (
    AgentGone,
    AgentRefused,
    AgentReplayed,
    AnswerOverdue,
    AnyInput,
    DeadlinePassed,
    SteerAnswered,
    TimeLimitPassed,
)
from turnwire.core.repeats import compare
from turnwire.core.state import SessionState, find_turn
from turnwire.core.view import View
from turnwire.errors import AgentError, LimitExceeded, LinkError, ProtocolError, TurnwireError
from turnwire.ids import AgentSessionId, PromptId, SessionId
from turnwire.link.process import Exit
from turnwire.runtime.agent_connection import AgentConnection
from turnwire.runtime.agent_exit import agent_gone
from turnwire.runtime.agent_inbound import AgentInbound
from turnwire.runtime.agent_pool import AgentPool
from turnwire.runtime.agent_session import AgentSession
from turnwire.runtime.client_requests import ClientRequests
from turnwire.runtime.clock import Clock
from turnwire.runtime.permission_rules import Rules, SessionRules
from turnwire.runtime.session import Place, Session
from turnwire.wire.jsonrpc import REQUEST_CANCELLED, raw

ReadView = Callable[[SessionId], Awaitable[View]]


class AgentDriver:
    """One session and its agent, for as long as either is there."""

    def __init__(
        self,
        session_id: SessionId,
        pool: AgentPool,
        clock: Clock,
        tasks: TaskGroup,
        *,
        reopen: Callable[[], None],
        view: ReadView,
        requests: ClientRequests,
        rules: Rules,
    ) -> None:
        self._rules = SessionRules(rules, session_id)
        self._session_id = session_id
        self._session: Session | None = None
        self._cwd = ""
        """The session's directory, as it was when the session was put away."""
        self._head = 0
        """The end of its log, as it was then."""
        self._parked: list[AnyInput | Place] = []
        """What happened while the session was put away."""
        self._reopen = reopen
        self._back = anyio.Event()
        """Set when the session is loaded, or will not be again."""
        self._is_left = False
        """The session is over here. Asked again after every wait: an agent may be starting meanwhile."""
        self._pool = pool
        self._clock = clock
        self._tasks = tasks
        self._view = view
        self.requests = requests
        """What the agent wants of its client; attached clients make their offers here."""
        self._time_limits = TimeLimits(clock, tasks, is_open=self._is_open_turn, passed=self._time_passed)
        self._agent_session: AgentSession | None = None
        self._is_opening = False
        """A task opens the session, or the agent has yet to say that it can be prompted. One at a time: two
        openings would be two sessions there. Whether it is open the agent session says, which may lose it."""
        self._fork_of: AgentSessionId | None = None
        self._waiting: list[fx.AskAgent] = []
        """Prompts to ask once the session is open at the agent; the machine allows one at a time."""

    # -- the session comes and goes, its agent stays -------------------------------------------------------

    @property
    def has_agent(self) -> bool:
        """Whether an agent serves the session, or is about to."""
        return self._agent_session is not None or self._is_opening

    @property
    def agent_session(self) -> AgentSession | None:
        """The session at its agent, open there or about to be."""
        return self._agent_session

    @property
    def pool(self) -> AgentPool:
        """Where its agent comes from."""
        return self._pool

    def used(self) -> None:
        """The session works with its agent, whatever is on its way to it."""
        self._pool.used(self._session_id)

    def attach(self, session: Session) -> None:
        """The session is loaded: it hears what it missed, in order, and acts through here."""
        self._session = session
        session.perform = self.perform
        self._back.set()
        parked, self._parked = self._parked, []
        for happened in parked:
            session.inbox.put(happened)

    def detach(self) -> None:
        """The session is put away. If the agent speaks meanwhile, it is asked to come back."""
        if self._session is not None:
            self._cwd, self._head = self._session.state.cwd, self._session.head
        self._session = None
        self._back = anyio.Event()

    def leave(self) -> None:
        """The session is over here: its agent's side is forgotten, and nothing is heard from it any more."""
        self._is_left = True
        agent_session, self._agent_session = self._agent_session, None
        if agent_session is not None:
            agent_session.leave()
        self._pool.release(self._session_id)
        self.requests.withdraw_all()
        self._time_limits.drop_all()
        self._waiting.clear()
        self._parked.clear()
        self._back.set()

    def abandon(self) -> None:
        """The session cannot be served from here any more: its agent is told to stop, and left."""
        if self._agent_session is not None and self._session is not None and (turn := self._session.state.turn):
            with suppress(LinkError, LimitExceeded):
                self._agent_session.cancel(turn.prompt_id, CancelRung.NOTIFY)
        self.leave()

    # -- effects -------------------------------------------------------------------------------------------

    def perform(self, effect: fx.AnyEffect) -> None:
        """Hand one effect over."""
        with self._reaching(self._agent_session):
            self._perform(effect, self._agent_session)

    @contextmanager
    def _reaching(self, agent_session: AgentSession | None) -> Generator[None]:
        """A peer that does not read, or is gone, comes back as `AgentGone`."""
        try:
            yield
        except LimitExceeded:
            self._drop(agent_session, "agent_unresponsive", "the agent does not read what it is sent")
            if agent_session is not None:
                # Every session of this agent is in the same trouble, so the connection goes; that takes a while.
                self._tasks.start_soon(agent_session.connection.aclose, "agent_unresponsive")
        except LinkError:
            self._drop(agent_session, "agent_exited", "the agent is gone")

    def _perform(self, effect: fx.AnyEffect, agent_session: AgentSession | None) -> None:
        match effect:
            case fx.AskAgent():
                self._waiting.append(effect)
                self._ask_or_open()
            case fx.SteerAgent(prompt_id, content, meta):
                self._steer(prompt_id, content, meta)
            case fx.CancelAgent(prompt_id, rung):
                if not self._unask(prompt_id) and agent_session is not None:
                    agent_session.cancel(prompt_id, rung)
            case fx.ArmDeadline() | fx.AwaitAnswer():
                self._tasks.start_soon(self._wait_for, effect)
            case fx.ArmTimeLimit(prompt_id, after_s):
                self._time_limits.arm(prompt_id, after_s)
            case fx.AnswerAgent() | fx.CancelChildWork():
                if agent_session is not None:
                    agent_session.tell(effect)
            case fx.CloseAgentSession():
                self._close()

    def _steer(self, prompt_id: PromptId, content: Raw, meta: Raw | UnsetType) -> None:
        if self._agent_session is not None and self._agent_session.is_open:
            self._agent_session.steer(prompt_id, content, meta)
        else:
            self.put(SteerAnswered(at=self._clock.now_ms(), prompt_id=prompt_id, injected=False))

    def _close(self) -> None:
        if self._agent_session is not None:
            self._agent_session.close()
        self.leave()

    def open(self, fork_of: AgentSessionId | None = None) -> None:
        """Open the session at the agent now, without waiting for a prompt; as a fork of another if one is named."""
        self._fork_of = fork_of
        self._ask_or_open()

    def _ask_or_open(self) -> None:
        if self._is_opening:
            return
        agent_session = self._agent_session
        if agent_session is None or not agent_session.is_open:
            assert self._session is not None, "effects come from a loaded session"
            self._is_opening = True
            self._tasks.start_soon(self._open, self._session.state)
            return
        # What was decided before the loss of an agent was known is wanted after it, and its turn is over by now.
        self._waiting = [each for each in self._waiting if self._is_open_turn(each.prompt_id)]
        is_free = agent_session.takes_prompts(hurry=any(not each.offered for each in self._waiting))
        # What the agent is offered it gets while it is at another turn; that is the point of it.
        ready = [each for each in self._waiting if is_free or each.offered]
        if not ready:
            return
        self._pool.used(self._session_id)
        self._waiting = [each for each in self._waiting if each not in ready]
        for each in ready:
            agent_session.ask(each.prompt_id, each.content, each.meta, offered=each.offered)

    def _unask(self, prompt_id: PromptId) -> bool:
        """Take back a prompt that the agent has not heard of; then it is over at once."""
        waiting = [each for each in self._waiting if each.prompt_id != prompt_id]
        if len(waiting) == len(self._waiting):
            return False
        self._waiting = waiting
        error = raw({"code": REQUEST_CANCELLED, "message": "cancelled before the agent was asked"})
        self.put(AgentRefused(at=self._clock.now_ms(), prompt_id=prompt_id, error=error))
        return True

    async def _wait_for(self, effect: fx.ArmDeadline | fx.AwaitAnswer) -> None:
        await self._clock.sleep(effect.after_s)
        now = self._clock.now_ms()
        if isinstance(effect, fx.ArmDeadline):
            self.put(DeadlinePassed(at=now, prompt_id=effect.prompt_id, rung=effect.rung))
        else:
            self.put(AnswerOverdue(at=now, prompt_id=effect.prompt_id))

    def _is_open_turn(self, prompt_id: PromptId) -> bool:
        # A session with an open turn is not put away.
        return self._session is not None and find_turn(self._session.state, prompt_id) is not None

    def _time_passed(self, prompt_id: PromptId) -> None:
        self.put(TimeLimitPassed(at=self._clock.now_ms(), prompt_id=prompt_id))

    async def _open(self, state: SessionState) -> None:
        try:
            connection = await self._pool.connection(self._session_id)
            if self._is_left:
                # Closed while the agent was started; it stays for other sessions, or goes with `release`.
                return
            history = await self._history(state, connection)
            if self._is_left:
                return
            self.requests.settle(state.cwd, state.setup.additional_directories)
            inbound = AgentInbound(
                self._session_id,
                self.requests,
                self._clock,
                put=self.put,
                room=self.room,
                ready=self._ready,
                lost=self._lost,
            )
            self._agent_session = AgentSession(
                connection,
                inbound,
                self._clock,
                self._tasks,
                replayed=self._replayed,
                refused=self._pool.keep_idle,
            )
            fork_of, self._fork_of = self._fork_of, None
            self._agent_session.begin(state, fork_of, history)
        except (AgentError, LinkError, LimitExceeded, ProtocolError) as error:
            code = error.code if isinstance(error, AgentError) else "agent_launch_failed"
            self._drop(self._agent_session, code, str(error), self._pool.last_exit(self._session_id))
        finally:
            if self._is_left or self._agent_session is None:
                self._is_opening = False

    async def _history(self, state: SessionState, connection: AgentConnection) -> View | None:
        """What the log has, for an agent that will bring the session back. Without it what it repeats is news."""
        profile = connection.profile
        if state.known_as is None or profile is None or not (profile.resume or profile.load):
            return None
        try:
            return await self._view(self._session_id)
        except TurnwireError:
            return None

    # -- what happens at the agent: `AgentInbound` and `AgentSession` call these -------------------------------

    def put(self, happened: AnyInput | Place) -> None:
        """Hand it to the session, or keep it until the session is back."""
        if self._is_left:
            return
        if isinstance(happened, Place):
            if self._session is None and not self._parked:
                # All that came before it is published, so nobody has to come back for it.
                happened.reached(self._head)
                return
        else:
            cwd = self._cwd if self._session is None else self._session.state.cwd
            happened = self._rules.judged(happened, cwd)
        if self._session is not None:
            self._session.inbox.put(happened)
            return
        self._parked.append(happened)
        if len(self._parked) == 1:
            self._reopen()

    async def room(self) -> None:
        """Wait until the session can take more. While it is put away the agent is held back after one burst."""
        if self._session is not None:
            await self._session.inbox.room()
        elif self._parked:
            await self._back.wait()

    def _ready(self) -> None:
        """The agent can be prompted: the session was opened there, or what it owed has come."""
        if self._is_opening:
            # Whether the agent before this one took a turn with it is known once the session has heard of both.
            self.put(Place(partial(self._opened, self._agent_session)))
        elif self._waiting:
            self._ask_or_open()

    def _opened(self, agent_session: AgentSession | None, offset: int) -> None:
        if self._agent_session is agent_session:
            self._is_opening = False
            with self._reaching(agent_session):
                self._ask_or_open()

    def _lost(self, gone: AgentGone) -> None:
        self._agent_session = None
        self._is_opening = False
        # The session ends their turns when it hears of it, and decides by itself what is asked next.
        self._waiting.clear()
        self.requests.withdraw_all()
        self.put(gone)

    def _drop(self, agent_session: AgentSession | None, code: str, message: str, how: Exit | None = None) -> None:
        if agent_session is not None:
            agent_session.leave()
        self._lost(agent_gone(self._clock.now_ms(), code, message, how))

    def _replayed(self, replay: View) -> None:
        turn = self._session.state.turn if self._session is not None else None
        self._tasks.start_soon(self._compare, replay, None if turn is None else turn.prompt_id)

    async def _compare(self, replay: View, untold: PromptId | None) -> None:
        """Hold the agent's history against the log, without the turn that it has not been told of yet."""
        try:
            view = await self._view(self._session_id)
        except TurnwireError:
            return
        found = compare(view, replay, without=untold or view.active)
        self.put(AgentReplayed(at=self._clock.now_ms(), **found._asdict()))


class TimeLimits:
    """The deadlines that prompts of one session came with: one timer, however many they are.

    It tells when one has passed and its turn is still open. Whether that ends the turn is decided by the session.
    """

    def __init__(
        self,
        clock: Clock,
        tasks: TaskGroup,
        *,
        is_open: Callable[[PromptId], bool],
        passed: Callable[[PromptId], None],
    ) -> None:
        self._clock = clock
        self._tasks = tasks
        self._is_open = is_open
        self._passed = passed
        self._due: dict[PromptId, float] = {}
        self._timer = anyio.CancelScope()

    def arm(self, prompt_id: PromptId, after_s: float) -> None:
        """Tell `passed` of this prompt after so many seconds, if its turn is open then."""
        self._due = {each: due for each, due in self._due.items() if self._is_open(each)}
        self._due[prompt_id] = self._clock.monotonic() + after_s
        self._timer.cancel()
        self._timer = anyio.CancelScope()
        self._tasks.start_soon(self._wait, self._timer)

    def drop_all(self) -> None:
        """Nobody wants to hear of them any more."""
        self._due.clear()
        self._timer.cancel()

    async def _wait(self, timer: anyio.CancelScope) -> None:
        with timer:
            # A cancelled timer may wake once more before it hears of it.
            while self._due and not timer.cancel_called:
                prompt_id = min(self._due, key=self._due.__getitem__)
                left = self._due[prompt_id] - self._clock.monotonic()
                if left > 0:
                    await self._clock.sleep(left)
                    continue
                del self._due[prompt_id]
                if self._is_open(prompt_id):
                    self._passed(prompt_id)
