"""One session on one agent connection: from opening it there to the end of either.

This is the outbound half: it opens the session at the agent, in the best way that the agent offers, and hands over
prompts, cancels and answers without waiting. What the agent says comes through its other half, `AgentInbound`. Both
are made anew for each connection. Nothing about a turn is decided here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial

import anyio
from anyio.abc import TaskGroup
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from turnwire.core.choices import (
    Setting,
    current_values,
    mode_update,
    options_update,
    settings_of,
    undone,
)
from turnwire.core.content import check_content, content_types, with_context
from turnwire.core.dialect import (
    AgentProfile,
    opening_params,
    prompt_params,
    read_prompt_result,
    read_session_id,
    read_steer_result,
    session_params,
)
from turnwire.core.effects import AnswerAgent, CancelChildWork
from turnwire.core.events import CancelRung, LostChoice, OpeningRefused, TurnEnd
from turnwire.core.inputs import AgentHasPrompt, AgentReady, AgentRefused, ChoicesTold, SteerAnswered
from turnwire.core.json_members import members
from turnwire.core.repeats import Repeats
from turnwire.core.state import SessionState
from turnwire.core.translate.sessions import mcp_servers, unwanted_servers
from turnwire.core.view import View
from turnwire.errors import ContentRefused, LinkError
from turnwire.ids import AgentSessionId, PromptId
from turnwire.runtime.agent_connection import AgentConnection
from turnwire.runtime.agent_exit import one_line
from turnwire.runtime.agent_inbound import AgentInbound, Owed, OwedBy
from turnwire.runtime.clock import Clock
from turnwire.runtime.last_frames import LastFrames
from turnwire.wire.jsonrpc import AUTH_REQUIRED, Failure, Result, raw
from turnwire.wire.methods import (
    CANCEL_REQUEST,
    SESSION_CANCEL,
    SESSION_CLOSE,
    SESSION_NEW,
    SESSION_PROMPT,
    SESSION_SET_CONFIG_OPTION,
    SESSION_SET_MODE,
    SESSION_STEERING,
)

logger = logging.getLogger(__name__)

NO_OFFERS = Raw(b"{}")


class AgentSession:
    """A session at one agent."""

    def __init__(
        self,
        connection: AgentConnection,
        inbound: AgentInbound,
        clock: Clock,
        tasks: TaskGroup,
        *,
        replayed: Callable[[View], None],
        refused: Callable[[], None],
    ) -> None:
        """`replayed` hears the history of the session as the agent remembers it, if it tells one. `refused` hears
        that the agent does not bring the session back, although it offers that."""
        self._connection = connection
        self._inbound = inbound
        self._clock = clock
        self._tasks = tasks
        self._replayed = replayed
        self._tell_refused = refused
        self._refusals: list[OpeningRefused] = []
        self._is_restoring = False
        """The agent is being told what users had chosen, or nobody has heard yet what it made of that."""
        self._context: str | None = None
        """What an agent without a memory of the session is told with its first prompt."""
        self._history: View | None = None
        self._hurried: PromptId | None = None
        """The prompt whose answer somebody waits for already."""

    @property
    def is_open(self) -> bool:
        return self._inbound.agent_session_id is not None

    def takes_prompts(self, *, hurry: bool = False) -> bool:
        """Whether the agent can be prompted. A turn can end before its answer: by a mark, or settled by a person.

        With `hurry` a prompt waits for that answer: an agent that never gives it is prompted after a while.
        """
        owed = self._inbound.owed
        if hurry and owed is not None and owed.prompt_id != self._hurried:
            self._hurried = owed.prompt_id
            self._tasks.start_soon(self._forgive, owed.prompt_id)
        return self.is_open and owed is None and not self._is_restoring

    @property
    def connection(self) -> AgentConnection:
        return self._connection

    @property
    def frames(self) -> LastFrames:
        """The newest frames of this session, both ways."""
        return self._inbound.frames

    @property
    def _profile(self) -> AgentProfile:
        profile = self._connection.profile
        assert profile is not None, "a session opens after the handshake"
        return profile

    def has_answered(self, prompt_id: PromptId) -> bool:
        """Whether the agent has answered this `session/prompt`, whatever that means in its dialect."""
        return self._inbound.answered == prompt_id

    # -- opening -------------------------------------------------------------------------------------------

    def begin(
        self, state: SessionState, fork_of: AgentSessionId | None = None, history: View | None = None
    ) -> None:
        """Open the session at the agent: the one it knows, if it can bring that back, else a new one.

        With `fork_of` it goes on from another session; an agent that cannot do that opens none. `history` is what
        the log has, by which it is known what an agent repeats that resumes.
        """
        self._history = history
        profile, known_as = self._profile, state.known_as
        if state.setup.additional_directories and not profile.directories:
            # Roots are granted or refused, never left out.
            self._inbound.lost("agent_launch_failed", "this agent takes no additional directories; load without")
            return
        unwanted = unwanted_servers(state.setup.mcp_servers, profile)
        if unwanted is not None:
            # A daemon has refused them before; a program with its agent inside has asked nobody.
            self._inbound.lost("agent_launch_failed", unwanted)
            return
        ways = ["new"]
        if fork_of is not None:
            ways, known_as = ["fork"], fork_of
        elif known_as is not None:
            ways = [way for way, offered in (("resume", profile.resume), ("load", profile.load)) if offered]
            ways.append("lost")
        self._context = state.context
        self._try(ways, state, known_as)

    def _try(
        self,
        ways: list[str],
        state: SessionState,
        named: AgentSessionId | None,
        taken: frozenset[AgentSessionId] = frozenset(),
    ) -> None:
        """Open it the first way; if the agent refuses, the next. `named` is what load, resume and fork name.

        `taken` are ids that the agent has given it before and that other sessions have. An agent that counts anew
        comes to a free one; one that gives the same id again does not.
        """
        if named is not None and self._connection.has(named):
            # An id that another session has here is not ours: this agent counts anew, and knows nothing of us.
            ways = [way for way in ways if way not in {"load", "resume"}]
        how = self._inbound.how = ways[0]
        # Only a load should tell history, and some agents do on a resume; a second way must not begin with what the
        # first has told.
        self._inbound.replay = View() if how == "load" else None
        self._inbound.repeats = self._repeats(state) if how == "resume" else None
        self._inbound.news = []
        self._inbound.children = frozenset(state.children if how in {"load", "resume"} else ())
        known_as = named if how in {"load", "resume"} else None
        servers = mcp_servers(state.setup.mcp_servers, self._profile.version)
        setup = replace(state.setup, mcp_servers=servers)
        method = SESSION_NEW if how in {"new", "lost"} or named is None else f"session/{how}"
        params = opening_params(None if method == SESSION_NEW else named, state.cwd, setup)

        def answered(frame: Result | Failure) -> AgentSessionId | None:
            if self._inbound.is_over:
                return None
            agent_session_id = (known_as or read_session_id(frame.result)) if isinstance(frame, Result) else None
            if agent_session_id is not None and self._connection.has(agent_session_id):
                # It is the other session's id, so it is not closed there.
                if agent_session_id in taken:
                    self._inbound.lost(
                        "agent_launch_failed", "the agent gave the session an id that another one has"
                    )
                else:
                    self._try(ways, state, named, taken | {agent_session_id})
                return None
            if agent_session_id is not None:
                offers = frame.result if isinstance(frame, Result) else NO_OFFERS
                self._opened(agent_session_id, offers, state)
            elif isinstance(frame, Failure) and frame.error.code != AUTH_REQUIRED and len(ways) > 1:
                self._note_refusal(how, frame)
                self._try(ways[1:], state, named)
            else:
                self._refused(frame if isinstance(frame, Failure) else None)
            return agent_session_id

        self._connection.open_session(self._inbound, method, params, answered, known_as)

    def _note_refusal(self, how: str, failure: Failure) -> None:
        self._refusals.append(OpeningRefused(how, raw(failure.error)))
        self._tell_refused()
        said = one_line(failure.error.message)
        extra = {"event": "session_not_brought_back", "session": self._inbound.session_id, "how": how}
        logger.warning("the agent refused session/%s: %s (%d)", how, said, failure.error.code, extra=extra)

    def _repeats(self, state: SessionState) -> Repeats | None:
        history = self._history
        if history is None:
            return None
        untold = history.active if state.turn is None else state.turn.prompt_id
        echoes = state.echoes or self._profile.turn_end is TurnEnd.IDLE
        return Repeats(history, untold, echoes=echoes)

    def _opened(self, agent_session_id: AgentSessionId, offers: Raw, state: SessionState) -> None:
        profile, choices = self._profile, state.choices
        self._inbound.agent_session_id = agent_session_id
        self._inbound.put(
            AgentReady(
                at=self._clock.now_ms(),
                agent_session_id=agent_session_id,
                protocol_version=profile.version,
                turn_end=profile.turn_end,
                steering=profile.steering,
                how=self._inbound.how,
                capabilities=profile.capabilities,
                offers=offers,
                refused=tuple(self._refusals),
            )
        )
        # After `AgentReady`, which says who speaks; and history before news, as the agent told them.
        if self._inbound.replay is not None:
            replay, self._inbound.replay = self._inbound.replay, None
            self._replayed(replay)
            if not replay.items:
                # Some agents tell the history behind the answer that says that they have told it.
                self._inbound.repeats = self._repeats(state)
        if self._inbound.repeats is not None:
            self._inbound.repeats.pause()
        news, self._inbound.news = self._inbound.news, []
        for said in news:
            self._inbound.tell(said)
        if choices:
            self._is_restoring = True
            self._tasks.start_soon(self._restore, settings_of(choices, profile.version))

    async def _restore(self, settings: list[Setting]) -> None:
        """Tell an agent that opened the session anew what users had chosen, before it is told any prompt."""
        lost: list[LostChoice] = []
        taken: list[Setting] = []
        options = NO_OFFERS
        try:
            for each in settings:
                answer = await self._set(each)
                if not isinstance(answer, Result):
                    why = "the agent did not answer" if answer is None else one_line(answer.error.message)
                    lost.append(each.lost(why or "the agent refused it"))
                    continue
                taken.append(each)
                if each.method == SESSION_SET_CONFIG_OPTION:
                    options = answer.result
                elif each.method == SESSION_SET_MODE:
                    self._inbound.updated(mode_update(str(each.wanted)))
        except LinkError:
            # The session hears of it by itself, and the next agent is told again.
            return
        values = current_values(options)
        lost += undone(taken, values)
        if values:
            self._inbound.updated(options_update(members(options)["configOptions"]))
        self._inbound.put(ChoicesTold(at=self._clock.now_ms(), lost=tuple(lost)))
        # Nothing is asked before the session has heard of it.
        self._inbound.place(partial(self._restored, is_kept=not lost))

    async def _set(self, setting: Setting) -> Result | Failure | None:
        """Tell the agent one choice; none if it does not answer in time. Raises `LinkError`."""
        with anyio.move_on_after(self._connection.limits.initialize_s):
            return await self.call(setting.method, setting.params)
        return None

    def _restored(self, offset: int, *, is_kept: bool) -> None:
        self._is_restoring = False
        if is_kept:
            self._inbound.ready()
        # Else the prompt that waits is about to be taken back, and what comes later is asked when it comes.

    def _refused(self, failure: Failure | None) -> None:
        """The agent does not open the session: it said so, or its answer names none."""
        profile = self._connection.profile
        if failure is not None and failure.error.code == AUTH_REQUIRED and profile is not None:
            methods = {"authMethods": profile.auth_methods}
            error = raw({"code": AUTH_REQUIRED, "message": failure.error.message, "data": methods})
            self._inbound.lost("auth_required", "the agent wants its user to authenticate first", error=error)
        elif failure is not None:
            self._inbound.lost(
                "agent_launch_failed", "the agent refused to open the session", error=raw(failure.error)
            )
        else:
            self._inbound.lost("agent_launch_failed", "the agent opened a session without an id")

    # -- to the agent; raises `LinkError`, `LimitExceeded` -------------------------------------------------

    def ask(
        self, prompt_id: PromptId, content: Raw, meta: Raw | UnsetType = UNSET, *, offered: bool = False
    ) -> None:
        """`session/prompt`. `offered`: the agent is at another turn, and decides where the prompt goes."""
        profile = self._profile
        accepts = content_types(profile.capabilities, profile.version)
        try:
            # A prompt accepted before any agent was there meets what this agent takes only now.
            check_content(content, accepts)
        except ContentRefused as refusal:
            self._inbound.put(AgentRefused(at=self._clock.now_ms(), prompt_id=prompt_id, unsent=str(refusal)))
            return
        if self._inbound.repeats is not None:
            self._inbound.repeats.ask(content)
        if not offered:
            content = self._in_context(content, accepts)
        answered = partial(self._prompt_answered, prompt_id)
        request_id = self._connection.ask(self._inbound, SESSION_PROMPT, self._prompt(content, meta), answered)
        if not offered:
            self._inbound.asked.clear()
            self._inbound.owed = Owed(prompt_id, OwedBy.IDLE if profile.turn_end is TurnEnd.IDLE else OwedBy.ANSWER)
        self._inbound.asked[prompt_id] = request_id
        self._inbound.put(AgentHasPrompt(at=self._clock.now_ms(), prompt_id=prompt_id, agent_request_id=request_id))

    def _prompt_answered(self, prompt_id: PromptId, frame: Result | Failure | None) -> None:
        """The answer to `session/prompt`; none if the agent went instead."""
        inbound, now = self._inbound, self._clock.now_ms()
        # Of an agent that only has the prompt (v2) more may come, and its first state ends the replay.
        if self._profile.turn_end is not TurnEnd.IDLE:
            inbound.end_repeats(answered=frame is not None)
        inbound.answered = prompt_id
        # An agent that refuses the prompt owes nothing; one that takes it may owe more than the answer.
        owed = inbound.owed
        is_enough = not isinstance(frame, Result) or (owed is not None and owed.by is OwedBy.ANSWER)
        if owed is not None and owed.prompt_id == prompt_id and is_enough:
            inbound.owed = None
        if isinstance(frame, Result):
            self._context = None
            inbound.put(read_prompt_result(now, prompt_id, frame.result))
        elif frame is not None:
            inbound.put(AgentRefused(at=now, prompt_id=prompt_id, error=raw(frame.error)))
        if frame is not None:
            inbound.ready()

    def _in_context(self, content: Raw, accepts: Collection[str]) -> Raw:
        """A prompt for an agent that has not had the session: behind what it is to know of it, if there is any."""
        if self._context is None or self._inbound.how not in {"new", "lost"}:
            return content
        return with_context(content, self._context, accepts)

    async def _forgive(self, prompt_id: PromptId) -> None:
        await self._clock.sleep(self._connection.limits.cancel_grace_s)
        owed = self._inbound.owed
        if owed is not None and owed.prompt_id == prompt_id:
            self._inbound.owed = None
            self._inbound.ready()

    async def call(self, method: str, params: dict[str, object]) -> Result | Failure:
        """A request about the open session. Raises `LinkError` if the agent goes instead of answering."""
        return await self._connection.call(self._inbound, method, self._named(params))

    def notify(self, method: str, params: dict[str, Raw]) -> None:
        """A notification about the open session."""
        self._connection.notify(self._inbound, method, self._named(params))

    def _named(self, params: Mapping[str, object]) -> Raw:
        return raw({"sessionId": self._inbound.agent_session_id, **params})

    def steer(self, prompt_id: PromptId, content: Raw, meta: Raw | UnsetType = UNSET) -> None:
        """`_session/steering`."""

        def answered(frame: Result | Failure | None) -> None:
            # An agent that is gone has said nothing of it, and the session hears of that by itself.
            if frame is not None:
                injected = isinstance(frame, Result) and read_steer_result(frame.result)
                self._inbound.put(SteerAnswered(at=self._clock.now_ms(), prompt_id=prompt_id, injected=injected))

        self._connection.ask(self._inbound, SESSION_STEERING, self._prompt(content, meta), answered)

    def cancel(self, prompt_id: PromptId, rung: CancelRung) -> None:
        """One rung of the ladder."""
        if self._inbound.agent_session_id is None:
            return
        if rung is CancelRung.NOTIFY:
            self._connection.notify(self._inbound, SESSION_CANCEL, session_params(self._inbound.agent_session_id))
        elif rung is CancelRung.REQUEST:
            if (request_id := self._inbound.asked.get(prompt_id)) is not None:
                self._connection.notify(self._inbound, CANCEL_REQUEST, raw({"requestId": request_id}))
        elif not self._connection.end_now(kill=rung is CancelRung.KILL):
            self._tasks.start_soon(self._connection.aclose)

    def tell(self, effect: AnswerAgent | CancelChildWork) -> None:
        """The users' answer to a permission request, or that a child session is to stop."""
        if isinstance(effect, AnswerAgent):
            self._connection.answer(effect.agent_request_id, effect.answer)
        else:
            named = session_params(AgentSessionId(effect.agent_id))
            self._connection.notify(self._inbound, SESSION_CANCEL, named)

    def leave(self) -> None:
        """The session is over, or lives elsewhere now. Nothing is heard from here any more."""
        self._inbound.is_over = True
        if self._inbound.agent_session_id is not None:
            self._connection.forget(self._inbound.agent_session_id, self._inbound)

    def close(self) -> None:
        """Tell the agent that it may forget the session, and leave."""
        profile = self._connection.profile
        if profile is not None and profile.close and self._inbound.agent_session_id is not None:
            named = session_params(self._inbound.agent_session_id)
            self._connection.ask(self._inbound, SESSION_CLOSE, named, _unheard)
        self.leave()

    def _prompt(self, content: Raw, meta: Raw | UnsetType) -> Raw:
        assert self._inbound.agent_session_id is not None, "prompts go to an open session"
        return prompt_params(self._inbound.agent_session_id, content, meta)


def _unheard(frame: Result | Failure | None) -> None:
    """Nobody waits for this answer."""
