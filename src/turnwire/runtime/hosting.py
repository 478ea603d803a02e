"""A session's side of its agent: carries out effects, and hears what the agent does.

Takes effects from the session's loop and hands them over without waiting; puts into the session's inbox what
the agent says, in the order it said it, also while the session is put away. Opens the session at an agent when
the first prompt needs it, and anew when that agent is gone. Never lets an effect fail silently: what cannot be
sent comes back as an input.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskGroup
from msgspec import Raw, UnsetType

from turnwire.core import effects as fx
from turnwire.core.history import compare
from turnwire.core.inputs import (
    AgentGone,
    AgentRefused,
    AgentReplayed,
    AnyInput,
    DeadlinePassed,
    SteerAnswered,
    TimeLimitPassed,
)
from turnwire.core.state import SessionState, find_turn
from turnwire.core.view import View
from turnwire.errors import AgentError, LimitExceeded, LinkError, ProtocolError, TurnwireError
from turnwire.ids import AgentSessionId, PromptId, SessionId
from turnwire.link.process import Exit
from turnwire.runtime.agents import Agents
from turnwire.runtime.clock import Clock
from turnwire.runtime.errands import Errands
from turnwire.runtime.hearing import gone
from turnwire.runtime.residence import Residence
from turnwire.runtime.rules import Rules, SessionRules
from turnwire.runtime.session import Session
from turnwire.runtime.time_limits import TimeLimits
from turnwire.wire.jsonrpc import raw

ReadView = Callable[[SessionId], Awaitable[View]]


class Hosting:
    """One session and its agent. Implements `residence.Household`."""

    def __init__(
        self,
        session_id: SessionId,
        agents: Agents,
        clock: Clock,
        tasks: TaskGroup,
        *,
        reopen: Callable[[], None],
        view: ReadView,
        errands: Errands,
        rules: Rules,
    ) -> None:
        self._rules = SessionRules(rules, session_id)
        self._session_id = session_id
        self._session: Session | None = None
        self._cwd = ""
        """The session's directory, as it was when the session was put away."""
        self._parked: list[AnyInput] = []
        """What happened while the session was put away."""
        self._reopen = reopen
        self._back = anyio.Event()
        """Set when the session is loaded, or will not be again."""
        self._is_left = False
        self._agents = agents
        self._clock = clock
        self._tasks = tasks
        self._view = view
        self.errands = errands
        """What the agent wants of its client; attached clients make their offers here."""
        self._time_limits = TimeLimits(clock, tasks, is_open=self._is_open_turn, passed=self._time_passed)
        self._residence: Residence | None = None
        self._is_opening = False
        self._fork_of: AgentSessionId | None = None
        self._waiting: list[fx.AskAgent] = []
        """Prompts to ask once the session is open at the agent; the machine allows one at a time."""

    # -- the session comes and goes, its agent stays -------------------------------------------------------

    @property
    def has_agent(self) -> bool:
        """Whether an agent serves the session, or is about to."""
        return self._residence is not None or self._is_opening

    @property
    def residence(self) -> Residence | None:
        """The session at its agent, open there or about to be."""
        return self._residence

    def attach(self, session: Session) -> None:
        """The session is loaded: it hears what it missed, in order, and acts through here."""
        self._session = session
        session.perform = self.perform
        self._back.set()
        parked, self._parked = self._parked, []
        for given in parked:
            session.inbox.put(given)

    def detach(self) -> None:
        """The session is put away. If the agent speaks meanwhile, it is asked to come back."""
        if self._session is not None:
            self._cwd = self._session.state.cwd
        self._session = None
        self._back = anyio.Event()

    def leave(self) -> None:
        """The session is over here: its agent's side is forgotten, and nothing is heard from it any more."""
        self._is_left = True
        residence, self._residence = self._residence, None
        if residence is not None:
            residence.leave()
        self._agents.release(self._session_id)
        self.errands.withdraw_all()
        self._time_limits.drop_all()
        self._waiting.clear()
        self._parked.clear()
        self._back.set()

    # -- effects -------------------------------------------------------------------------------------------

    def perform(self, effect: fx.AnyEffect) -> None:
        """Hand one effect over. A peer that does not read, or is gone, comes back as `AgentGone`."""
        residence = self._residence
        try:
            self._perform(effect, residence)
        except LimitExceeded:
            self._drop(residence, "agent_unresponsive", "the agent does not read what it is sent")
            if residence is not None:
                self._tasks.start_soon(residence.connection.aclose, "agent_unresponsive")
        except LinkError:
            self._drop(residence, "agent_exited", "the agent is gone")

    def _perform(self, effect: fx.AnyEffect, residence: Residence | None) -> None:
        match effect:
            case fx.AskAgent():
                self._waiting.append(effect)
                self._ask_or_open()
            case fx.SteerAgent(prompt_id, content, meta):
                self._steer(prompt_id, content, meta)
            case fx.CancelAgent(prompt_id, rung):
                if not self._unask(prompt_id) and residence is not None:
                    residence.cancel(prompt_id, rung)
            case fx.ArmDeadline():
                self._tasks.start_soon(self._deadline, effect)
            case fx.ArmTimeLimit(prompt_id, after_s):
                self._time_limits.arm(prompt_id, after_s)
            case fx.AnswerAgent(request_id, answer):
                if residence is not None:
                    residence.answer(request_id, answer)
            case fx.CloseAgentSession():
                self._close()

    def _steer(self, prompt_id: PromptId, content: Raw, meta: Raw | UnsetType) -> None:
        if self._residence is not None and self._residence.is_open:
            self._residence.steer(prompt_id, content, meta)
        else:
            self.put(SteerAnswered(at=self._clock.now_ms(), prompt_id=prompt_id, injected=False))

    def _close(self) -> None:
        if self._residence is not None:
            self._residence.close()
        self.leave()

    def open(self, fork_of: AgentSessionId | None = None) -> None:
        """Open the session at the agent now, without waiting for a prompt; as a fork of another if one is named."""
        self._fork_of = fork_of
        self._ask_or_open()

    def _ask_or_open(self) -> None:
        residence = self._residence
        if residence is None or not residence.is_open:
            if not self._is_opening:
                assert self._session is not None, "effects come from a loaded session"
                self._is_opening = True
                self._tasks.start_soon(self._open, self._session.state)
            return
        if not residence.takes_prompts(hurry=bool(self._waiting)):
            return
        self._agents.used(self._session_id)
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            residence.ask(each.prompt_id, each.content, each.meta)

    def _unask(self, prompt_id: PromptId) -> bool:
        """Take back a prompt that the agent has not heard of; then it is over at once."""
        waiting = [each for each in self._waiting if each.prompt_id != prompt_id]
        if len(waiting) == len(self._waiting):
            return False
        self._waiting = waiting
        error = raw({"code": -32800, "message": "cancelled before the agent was asked"})
        self.put(AgentRefused(at=self._clock.now_ms(), prompt_id=prompt_id, error=error))
        return True

    async def _deadline(self, effect: fx.ArmDeadline) -> None:
        await self._clock.sleep(effect.after_s)
        self.put(DeadlinePassed(at=self._clock.now_ms(), prompt_id=effect.prompt_id, rung=effect.rung))

    def _is_open_turn(self, prompt_id: PromptId) -> bool:
        # A session with an open turn is not put away.
        return self._session is not None and find_turn(self._session.state, prompt_id) is not None

    def _time_passed(self, prompt_id: PromptId) -> None:
        self.put(TimeLimitPassed(at=self._clock.now_ms(), prompt_id=prompt_id))

    async def _open(self, state: SessionState) -> None:
        try:
            connection = await self._agents.connection(self._session_id)
            if self._is_left:
                return
            self.errands.settle(state.cwd, state.setup.additional_directories)
            self._residence = Residence(connection, self, self.errands, self._clock, self._tasks)
            fork_of, self._fork_of = self._fork_of, None
            self._residence.begin(state, fork_of)
        except (AgentError, LinkError, LimitExceeded, ProtocolError) as error:
            code = error.code if isinstance(error, AgentError) else "agent_launch_failed"
            self._drop(self._residence, code, str(error), self._agents.last_words(self._session_id))
        finally:
            if self._is_left or self._residence is None:
                self._is_opening = False

    # -- what happens at the agent: `residence.Household` --------------------------------------------------

    def put(self, given: AnyInput) -> None:
        if self._is_left:
            return
        given = self._rules.hear(given, self._cwd if self._session is None else self._session.state.cwd)
        if self._session is not None:
            self._session.inbox.put(given)
            return
        self._parked.append(given)
        if len(self._parked) == 1:
            self._reopen()

    async def room(self) -> None:
        if self._session is not None:
            await self._session.inbox.room()
        elif self._parked:
            await self._back.wait()

    def ready(self) -> None:
        self._is_opening = False
        self._ask_or_open()

    def lost(self, gone: AgentGone) -> None:
        self._residence = None
        self._is_opening = False
        self._waiting.clear()
        self.errands.withdraw_all()
        self.put(gone)

    def _drop(self, residence: Residence | None, code: str, message: str, how: Exit | None = None) -> None:
        if residence is not None:
            residence.leave()
        self.lost(gone(self._clock.now_ms(), code, message, how))

    def replayed(self, replay: View) -> None:
        turn = self._session.state.turn if self._session is not None else None
        self._tasks.start_soon(self._compare, replay, None if turn is None else turn.prompt_id)

    async def _compare(self, replay: View, untold: PromptId | None) -> None:
        """Hold the agent's history against the log, without the turn that it has not been told of yet."""
        try:
            view = await self._view(self._session_id)
        except TurnwireError:
            return
        found = compare(view, replay, without=untold or view.active)
        self.put(
            AgentReplayed(
                at=self._clock.now_ms(),
                replayed=found.replayed,
                matched=found.matched,
                missing=found.missing,
                first_difference=found.first_difference,
            )
        )
