"""One session at its agent: everything between the session loop and the agent connection.

Theory of operation
-------------------
A `HostedSession` exists as long as the session is loaded or an agent serves it. It is called from two sides, and no
call waits:

* The session loop calls `perform` with each effect, after the events that explain it are stored.
* The agent connection calls the methods of `AttachedSession`, frame by frame in the agent's order.

Everything that happens becomes an input in the loop's inbox, in the order it happened. While the session is
unloaded, inputs are parked and the host is asked to load it again. The session is opened at an agent when the first
prompt needs it, and again at the next agent when that one is gone. No effect fails silently: one that cannot be
sent comes back as an input. This module decides nothing about a turn.

An agent may outlive this process (`hosting.holder`). Then the next process continues the session (`adopt`):

    A1  The state that it needs is noted with the agent whenever it changes, in the same round as the frame that
        goes with the change (H2 of the holder). A session has a note only while it is open, its choices are
        restored and no history is being compared: otherwise the next process opens it again.
    A2  Before an append, the note gets the agent's frame and the head that the log will have (`record`). An append
        is made as a whole or not at all, so the head of the log tells the next process which frames are in it.
    A3  Frames that the log does not have are received again. Of those that it has, only the inputs are dropped;
        everything else about them happens again, so the state here follows (J2 of the peer).
    A4  A permission request that the log has resolved, and that was not answered, is answered now.

`Attachment` is the state at one connection. It is dropped as a whole, and the connection forgets the session at the
same moment, so a late frame or answer of an old agent cannot be attributed to the new agent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum, auto
from functools import partial
from sys import maxsize
from typing import NamedTuple, Protocol

import anyio
from anyio.abc import TaskGroup
from msgspec import UNSET, Raw, Struct, UnsetType, json
from msgspec.structs import replace

from turnwire import new_ids
from turnwire.clock import Clock
from turnwire.errors import (
    AgentError,
    ContentRefused,
    LimitExceeded,
    LinkError,
    ProtocolError,
    RemoteProtocolError,
    TurnwireError,
)
from turnwire.hosting.agent_connection import AgentConnection
from turnwire.hosting.agent_exit import agent_gone, manner, one_line
from turnwire.hosting.agent_pool import AgentPool
from turnwire.hosting.base import Journal
from turnwire.hosting.client_requests import ClientRequests
from turnwire.hosting.last_frames import KEPT_FRAMES, LastFrames
from turnwire.hosting.peer import Answer
from turnwire.hosting.permission_rules import Rules, SessionRules
from turnwire.hosting.process import Exit
from turnwire.ids import AgentSessionId, Epoch, PromptId, RequestId, SessionId
from turnwire.limits import Limits
from turnwire.projections.dialect import (
    AgentProfile,
    opening_params,
    prompt_params,
    read_permission_request,
    read_prompt_result,
    read_session_id,
    read_steer_result,
    session_params,
    steering_params,
)
from turnwire.projections.repeats import Repeats, Said, compare
from turnwire.projections.translate.sessions import (
    NO_SYSTEM_PROMPT,
    has_system_prompt,
    mcp_servers,
    takes_system_prompt,
    unwanted_servers,
)
from turnwire.projections.view import View
from turnwire.session import effects as fx
from turnwire.session.child_names import ANNOUNCES, read_announcement
from turnwire.session.choices import Setting, current_values, mode_update, options_update, settings_of, undone
from turnwire.session.content import check_content, content_types, with_context
from turnwire.session.correlation import names, same_id
from turnwire.session.events import CancelRung, LostChoice, OpeningRefused, SessionUpdated, TurnEnd
from turnwire.session.inputs import (
    Adopt,
    AgentAnswered,
    AgentAsks,
    AgentHasPrompt,
    AgentPieces,
    AgentReady,
    AgentRefused,
    AgentReplayed,
    AgentUpdate,
    AgentWithdraws,
    AnswerOverdue,
    AnyInput,
    Barrier,
    ChoicesTold,
    DeadlinePassed,
    SteerAnswered,
    SteerOutcome,
    TimeLimitPassed,
)
from turnwire.session.json_members import members
from turnwire.session.permissions import NOT_ANSWERED
from turnwire.session.state import SessionState, find_turn
from turnwire.wire.jsonrpc import AUTH_REQUIRED, REQUEST_CANCELLED, Failure, Request, Result, raw
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
from turnwire.wire.peek import UpdatePeek, peek_update
from turnwire.wire.schema.update import CURRENT_STATE, MARKERS

logger = logging.getLogger(__name__)

NO_OFFERS = Raw(b"{}")

_UNKNOWN_PROMPT = PromptId("")
"""The prompt of an end marker that matches none of our open requests."""

_GONE = {
    "agent_exited": "the agent is gone",
    "agent_unresponsive": "the agent does not read what it is sent",
    "agent_recycled": "the agent was let go because nobody used it",
}


class SessionInbox(Protocol):
    """The inbox of a session loop."""

    def put(self, input: AnyInput | Barrier, frame: int = 0, /) -> None: ...

    async def room(self) -> None:
        """Wait until the loop has room for more agent inputs."""
        ...


class SessionLoop(Protocol):
    """The port to the loop of a loaded session (`runtime.session.Session`)."""

    state: SessionState
    head: int

    @property
    def inbox(self) -> SessionInbox: ...


class SessionHost(Protocol):
    """The port to the node that has the session."""

    def reload(self, session_id: SessionId) -> None:
        """Load an unloaded session because its agent sent something. Does not wait."""
        ...

    async def view(self, session_id: SessionId) -> View:
        """Return the session's transcript. Raises `TurnwireError`."""
        ...


class OwedBy(Enum):
    """The frame that an agent still owes before it accepts the next prompt."""

    ANSWER = auto()
    """The response to `session/prompt` (v1)."""
    IDLE = auto()
    """A `state_update` to idle (v2); the response alone only acknowledges the prompt."""


class Owed(NamedTuple):
    """A prompt that the agent has not finished, for whatever reason its turn ended here."""

    prompt_id: PromptId
    by: OwedBy


SESSION = "session:"
"""Name of a session's note, before its id: `SessionNote`."""
FRAMES = "frames:"
"""Name of the note about the frames of a session: `FramesNote`."""


class SessionNote(Struct, frozen=True, omit_defaults=True):
    """The state of a session at its agent, for the next process."""

    agent_session_id: AgentSessionId
    how: str
    cwd: str
    directories: tuple[str, ...] = ()
    context: str | None = None
    sent: tuple[tuple[PromptId, RequestId], ...] = ()
    """Prompts and their requests, the newest `session/prompt` and those that were offered during it."""
    steered: tuple[tuple[PromptId, RequestId], ...] = ()
    """The same for `_session/steering`."""
    answers: dict[PromptId, int] = {}
    """The frames in which the agent has answered some of both. They may be received again."""
    answered: PromptId | None = None
    owed: tuple[PromptId, str] | None = None
    children: tuple[str, ...] = ()


class FramesNote(Struct, frozen=True):
    """Which of the agent's frames are in the log (A2)."""

    epoch: Epoch
    head: int
    frame: int
    """The log has the frames up to this one if its head has reached `head`."""
    before: int
    """It has the frames up to this one in any case."""

    def recorded(self, epoch: Epoch, head: int) -> int:
        """Return the newest frame in a log that ends here."""
        if epoch != self.epoch:
            return 0
        return self.frame if head >= self.head else self.before


_session_note = json.Decoder(SessionNote).decode
_frames_note = json.Decoder(FramesNote).decode

_FROM_FRAMES = (
    AgentUpdate,
    AgentPieces,
    AgentAnswered,
    AgentRefused,
    AgentAsks,
    AgentWithdraws,
    SteerAnswered,
)
"""Inputs that frames become, and that the log may have already."""


class Attachment:
    """The state of a session at one agent connection."""

    def __init__(self, connection: AgentConnection, context: str | None, history: View | None) -> None:
        assert connection.profile is not None, "a session opens after the handshake"
        self.connection = connection
        self.profile: AgentProfile = connection.profile
        self.context = context
        """The conversation so far as text, for the first prompt to an agent without a memory of it."""
        self.history = history
        """The log's transcript, to recognize messages that a resumed agent repeats."""
        self.agent_session_id: AgentSessionId | None = None
        """The agent's id of the session, once it is open there."""
        self.how = "new"
        """The way in which it is opened: new, load, resume, fork or lost."""
        self.refusals: list[OpeningRefused] = []
        self.is_restoring = False
        """The agent is being sent the users' choices, or the loop has not recorded the outcome yet."""
        self.is_held = False
        """No prompt is sent until the agent has stopped replaying its history."""
        self.has_replayed = False
        """The agent sent an update since the last check whether it is quiet."""
        self.asked: dict[PromptId, RequestId] = {}
        """The newest `session/prompt`, and those that were offered to the agent during it."""
        self.answered: PromptId | None = None
        """The prompt of the last response to `session/prompt`."""
        self.owed: Owed | None = None
        """While something is owed, the agent gets no other prompt."""
        self.hurried: PromptId | None = None
        """The owed prompt that is given up after a grace period, because another one is waiting."""
        self.replay: View | None = None
        """The history that the agent sends on `session/load`, folded aside."""
        self.repeats: Repeats | None = None
        """The comparison of the agent's updates after `session/resume` with the history."""
        self.children: frozenset[str] = frozenset()
        """The agent's ids of child sessions in the log, if the agent is to restore this session."""
        self.news: list[Said] = []
        """New updates that arrived before the response to load or resume; they follow it."""
        self.steered: dict[PromptId, RequestId] = {}
        """The prompts that were sent by `_session/steering` since then."""
        self.answers: dict[PromptId, int] = {}
        """The frames in which the agent has answered some of both."""
        self.directories: tuple[str, ...] = ()
        self.cwd = ""

    @property
    def is_before_answer(self) -> bool:
        """True while the agent may send history of a session that it is restoring."""
        return self.agent_session_id is None and self.how in {"load", "resume"}


class HostedSession:
    """A session and its agent. Implements `agent_connection.AttachedSession`."""

    def __init__(
        self,
        session_id: SessionId,
        pool: AgentPool,
        host: SessionHost,
        rules: Rules,
        clock: Clock,
        tasks: TaskGroup,
        limits: Limits,
    ) -> None:
        self.session_id = session_id
        self.pool = pool
        """The source of its agent."""
        self.frames = LastFrames()
        """The newest frames of this session, both ways."""
        self.requests = ClientRequests(tasks, limits, own=pool.agent.policy.services)
        """The agent's requests to its client; attached clients offer their services here."""
        self._host = host
        self._rules = rules
        self._session_rules = SessionRules(rules, session_id)
        self._clock = clock
        self._tasks = tasks
        self._loop: SessionLoop | None = None
        self._cwd = ""
        """The session's directory when it was unloaded."""
        self._head = 0
        """The end of its log when it was unloaded."""
        self._parked: list[tuple[AnyInput | Barrier, int]] = []
        """Inputs that arrived while the session is unloaded."""
        self._loaded = anyio.Event()
        """Set when the session is loaded, or will not be loaded again."""
        self._is_left = False
        """True if the session is over here. Checked again after every wait: an agent may be starting meanwhile."""
        self._attachment: Attachment | None = None
        self._is_opening = False
        """True while a task opens the session, or until the loop has recorded that it is open. One at a time: two
        openings would create two sessions at the agent.
        """
        self._fork_of: AgentSessionId | None = None
        self._waiting: list[fx.AskAgent] = []
        """Prompts to send once the session is open at the agent."""
        self._is_adopted = False
        """True until the loop knows that the agent has outlived the previous process."""
        self._adopted_frame = 0
        """The newest frame that was in the log then."""
        self._enqueued_frame = self._recorded_frame = 0
        """The newest frame that became an input; the newest one up to which all inputs are dealt with."""
        self._due: dict[PromptId, float] = {}
        """Time limits of prompts, by the monotonic clock; one timer serves all."""
        self._timer = anyio.CancelScope()

    @property
    def has_agent(self) -> bool:
        """True if an agent serves the session, or is about to."""
        return self._attachment is not None or self._is_opening

    @property
    def connection(self) -> AgentConnection | None:
        """The connection to its agent, if it has one."""
        return None if self._attachment is None else self._attachment.connection

    @property
    def agent_session_id(self) -> AgentSessionId | None:
        """The agent's id of the session; `None` unless it is open there."""
        return None if self._attachment is None else self._attachment.agent_session_id

    def has_answered(self, prompt_id: PromptId) -> bool:
        """Return whether the agent has responded to this `session/prompt`."""
        return self._attachment is not None and self._attachment.answered == prompt_id

    # -- loading and unloading the session, without ending its agent -----------------------------------------

    def attach(self, loop: SessionLoop) -> None:
        """Connect to the loop of the session that was loaded. It receives the parked inputs, in order."""
        self._loop = loop
        self._loaded.set()
        parked, self._parked = self._parked, []
        attachment = self._attachment
        if self._is_adopted and attachment is not None and attachment.agent_session_id is not None:
            adopt = Adopt(
                at=self._clock.now_ms(),
                agent_session_id=attachment.agent_session_id,
                sent=tuple(attachment.asked.items()),
                steered=tuple(attachment.steered),
            )
            loop.inbox.put(adopt)
        self._is_adopted = False
        for each, frame in parked:
            loop.inbox.put(each, frame)

    def detach(self) -> None:
        """The session is unloaded. An input from the agent will load it again."""
        if self._loop is not None:
            self._cwd, self._head = self._loop.state.cwd, self._loop.head
        self._loop = None
        self._loaded = anyio.Event()

    def leave(self) -> None:
        """End the agent's side: the session is over here, and ignores its agent from now on."""
        self._is_left = True
        self._detach_agent()
        self.pool.release(self.session_id)
        self.requests.withdraw_all()
        self._due.clear()
        self._timer.cancel()
        self._waiting.clear()
        self._parked.clear()
        self._loaded.set()

    # -- outliving this process ------------------------------------------------------------------------------

    @property
    def is_adopted(self) -> bool:
        """True if the agent has outlived the previous process, and the loop does not know it yet."""
        return self._is_adopted

    def adopt(self, connection: AgentConnection, epoch: Epoch, head: int) -> None:
        """Continue a session whose agent has outlived the previous process. Its log ends at `head`."""
        assert connection.journal is not None, "only an agent with notes outlives its process"
        notes = connection.journal.notes
        note = _session_note(notes[f"{SESSION}{self.session_id}"])
        frames = notes.get(f"{FRAMES}{self.session_id}")
        recorded = 0 if frames is None else _frames_note(frames).recorded(epoch, head)
        self._adopted_frame = self._enqueued_frame = self._recorded_frame = recorded
        # Later appends move the head, so the earlier note would be misread from now on.
        self._note_frames(connection.journal, FramesNote(epoch, head, recorded, recorded))
        self._is_adopted = True
        self._cwd, self._head = note.cwd, head
        attachment = self._attachment = Attachment(connection, note.context, None)
        attachment.agent_session_id, attachment.how = note.agent_session_id, note.how
        attachment.cwd, attachment.directories = note.cwd, note.directories
        attachment.asked, attachment.steered = dict(note.sent), dict(note.steered)
        attachment.answered, attachment.answers = note.answered, note.answers
        attachment.children = frozenset(note.children)
        attachment.owed = None if note.owed is None else Owed(note.owed[0], OwedBy[note.owed[1]])
        self.requests.settle(note.cwd, note.directories)
        answers: dict[RequestId, Answer] = {}
        for requests, answered in ((note.sent, self._prompt_answered), (note.steered, self._steer_answered)):
            for prompt_id, request_id in requests:
                if note.answers.get(prompt_id, maxsize) > connection.journal.acknowledged:
                    answers[request_id] = partial(answered, attachment, prompt_id)
        connection.continue_session(self, note.agent_session_id, answers)

    def _note(self) -> None:
        """Note the state at the agent, for the next process (A1)."""
        attachment = self._attachment
        if attachment is None or (journal := attachment.connection.journal) is None:
            return
        if attachment.agent_session_id is None or self._is_opening or attachment.is_restoring or attachment.repeats:
            return
        owed = attachment.owed
        note = SessionNote(
            attachment.agent_session_id,
            attachment.how,
            attachment.cwd,
            attachment.directories,
            attachment.context,
            tuple(attachment.asked.items()),
            tuple(attachment.steered.items()),
            attachment.answers,
            attachment.answered,
            None if owed is None else (owed.prompt_id, owed.by.name),
            tuple(attachment.children),
        )
        journal.note(f"{SESSION}{self.session_id}", json.encode(note))

    def _note_frames(self, journal: Journal, note: FramesNote) -> None:
        journal.note(f"{FRAMES}{self.session_id}", json.encode(note))

    def continues(self, state: SessionState) -> bool:
        """Return whether the log agrees that the session is open at this agent."""
        agent = state.agent
        return agent is not None and agent.agent_session_id == self.agent_session_id

    async def record(self, frame: int, epoch: Epoch, head: int) -> None:
        """Note that the log has the frames up to this one, if it reaches `head` (A2)."""
        journal = None if self._attachment is None else self._attachment.connection.journal
        if journal is not None:
            self._note_frames(journal, FramesNote(epoch, head, frame, self._recorded_frame))
            # The holder was killed: the agent is gone, and so is the question.
            with suppress(LinkError):
                await journal.stored()

    def recorded(self, frame: int) -> None:
        """The frames up to this one are dealt with."""
        self._recorded_frame = max(self._recorded_frame, frame)
        if self._attachment is not None:
            is_all = self._recorded_frame >= self._enqueued_frame
            self._attachment.connection.recorded(self, self._recorded_frame, is_all=is_all)

    def _answer_if_resolved(self, request: Request, offset: int) -> None:
        """Answer a permission request that the log has resolved, if the previous process did not (A4)."""
        attachment, loop = self._attachment, self._loop
        if attachment is None or loop is None:
            return
        if any(same_id(each.agent_request_id, request.id) for each in loop.state.permissions):
            return
        found = [each.answer for each in loop.state.resolved if same_id(each.agent_request_id, request.id)]
        with self._sending():
            attachment.connection.answer(request.id, found[-1] if found else NOT_ANSWERED[request.method])

    def abandon(self) -> None:
        """Cancel at the agent, then detach: the session cannot be served from here any more."""
        if self._loop is not None and (turn := self._loop.state.turn):
            with suppress(LinkError, LimitExceeded):
                self._cancel(turn.prompt_id, CancelRung.NOTIFY)
        self.leave()

    # -- effects ---------------------------------------------------------------------------------------------

    def perform(self, effect: fx.AnyEffect) -> None:
        """Perform one effect without waiting."""
        with self._sending():
            match effect:
                case fx.AskAgent():
                    self._waiting.append(effect)
                    self._ask_or_open()
                case fx.SteerAgent(prompt_id, content, meta):
                    self._steer(prompt_id, content, meta)
                case fx.CancelAgent(prompt_id, rung):
                    if not self._unask(prompt_id):
                        self._cancel(prompt_id, rung)
                case fx.ArmDeadline() | fx.AwaitAnswer():
                    self._tasks.start_soon(self._wait_for, effect)
                case fx.ArmTimeLimit(prompt_id, after_s):
                    self._arm_time_limit(prompt_id, after_s)
                case fx.AnswerAgent(agent_request_id, answer):
                    if self._attachment is not None:
                        self._attachment.connection.answer(agent_request_id, answer)
                case fx.CancelChildWork(agent_id):
                    if self._attachment is not None:
                        named = session_params(AgentSessionId(agent_id))
                        self._attachment.connection.notify(self, SESSION_CANCEL, named)
                case fx.CloseAgentSession():
                    self._close()

    @contextmanager
    def _sending(self) -> Generator[None]:
        """Report an agent that cannot be reached as `AgentGone`."""
        attachment = self._attachment
        try:
            yield
        except LimitExceeded:
            self._lose("agent_unresponsive", _GONE["agent_unresponsive"])
            if attachment is not None:
                # All sessions of this agent have the same problem, so the connection is closed; that lasts a while.
                self._tasks.start_soon(attachment.connection.aclose, "agent_unresponsive")
        except LinkError:
            self._lose("agent_exited", _GONE["agent_exited"])

    def open(self, fork_of: AgentSessionId | None = None) -> None:
        """Open the session at the agent now, without waiting for a prompt; as a fork of `fork_of` unless that is
        `None`.
        """
        self._fork_of = fork_of
        self._ask_or_open()

    def _ask_or_open(self) -> None:
        if self._is_opening:
            return
        attachment = self._attachment
        if attachment is None or attachment.agent_session_id is None:
            assert self._loop is not None, "effects come from a loaded session"
            self._is_opening = True
            self._tasks.start_soon(self._open, self._loop.state)
            return
        # The loss of an agent may have ended the turn of a prompt that was decided before.
        self._waiting = [each for each in self._waiting if self._is_open_turn(each.prompt_id)]
        owed = attachment.owed
        if (
            owed is not None
            and owed.prompt_id != attachment.hurried
            and not all(each.offered for each in self._waiting)
        ):
            # A turn can end before its response: by a marker, or settled by a person.
            attachment.hurried = owed.prompt_id
            self._tasks.start_soon(self._forgive, attachment, owed.prompt_id)
        is_free = owed is None and not attachment.is_restoring and not attachment.is_held
        # Offered prompts are for an agent that is busy with another turn.
        ready = [each for each in self._waiting if is_free or each.offered]
        if not ready:
            return
        self.pool.used(self.session_id)
        self._waiting = [each for each in self._waiting if each not in ready]
        for each in ready:
            self._ask(attachment, each)

    def _ask(self, attachment: Attachment, prompt: fx.AskAgent) -> None:
        """Send `session/prompt`."""
        profile, content = attachment.profile, prompt.content
        accepted = content_types(profile.capabilities, profile.version)
        try:
            # A prompt that was accepted before any agent was there is checked against this agent only now.
            check_content(content, accepted)
        except ContentRefused as refusal:
            self._put(AgentRefused(at=self._clock.now_ms(), prompt_id=prompt.prompt_id, unsent=str(refusal)))
            return
        if attachment.repeats is not None:
            attachment.repeats.ask(content)
        if not prompt.offered and attachment.context is not None and attachment.how in {"new", "lost"}:
            content = with_context(content, attachment.context, accepted)
        request_id = attachment.connection.ask(
            self,
            SESSION_PROMPT,
            self._prompt_params(attachment, content, prompt.meta),
            partial(self._prompt_answered, attachment, prompt.prompt_id),
        )
        if not prompt.offered:
            # The log has their answers, or no turn waits for them.
            attachment.asked.clear()
            attachment.steered = {
                each: one for each, one in attachment.steered.items() if each not in attachment.answers
            }
            attachment.answers.clear()
            by = OwedBy.IDLE if profile.turn_end is TurnEnd.IDLE else OwedBy.ANSWER
            attachment.owed = Owed(prompt.prompt_id, by)
        attachment.asked[prompt.prompt_id] = request_id
        self._note()
        now = self._clock.now_ms()
        self._put(AgentHasPrompt(at=now, prompt_id=prompt.prompt_id, agent_request_id=request_id))

    def _prompt_answered(self, attachment: Attachment, prompt_id: PromptId, frame: Result | Failure | None) -> None:
        """Handle the response to `session/prompt`; `None` if the agent ended instead."""
        if self._attachment is not attachment:
            return
        # An agent that only has the prompt (v2) may still repeat history; its first state ends that.
        if attachment.profile.turn_end is not TurnEnd.IDLE:
            self._end_repeats(answered=frame is not None)
        attachment.answered = prompt_id
        attachment.answers[prompt_id] = attachment.connection.peer.frame or 0
        # An agent that refuses the prompt owes nothing; one that accepts it may owe more than the response.
        owed = attachment.owed
        is_enough = not isinstance(frame, Result) or (owed is not None and owed.by is OwedBy.ANSWER)
        if owed is not None and owed.prompt_id == prompt_id and is_enough:
            attachment.owed = None
        if isinstance(frame, Result):
            attachment.context = None
            self._put(read_prompt_result(self._clock.now_ms(), prompt_id, frame.result))
        elif frame is not None:
            self._put(AgentRefused(at=self._clock.now_ms(), prompt_id=prompt_id, error=raw(frame.error)))
        self._note()
        if frame is not None:
            self._ready()

    async def _forgive(self, attachment: Attachment, prompt_id: PromptId) -> None:
        """Stop waiting for an owed response that another prompt waits for."""
        await self._clock.sleep(attachment.connection.limits.cancel_grace_s)
        owed = attachment.owed
        if self._attachment is attachment and owed is not None and owed.prompt_id == prompt_id:
            attachment.owed = None
            self._note()
            self._ready()

    def _unask(self, prompt_id: PromptId) -> bool:
        """Withdraw a prompt that the agent was not sent yet; its turn ends at once."""
        waiting = [each for each in self._waiting if each.prompt_id != prompt_id]
        if len(waiting) == len(self._waiting):
            return False
        self._waiting = waiting
        error = raw({"code": REQUEST_CANCELLED, "message": "cancelled before the agent was asked"})
        self._put(AgentRefused(at=self._clock.now_ms(), prompt_id=prompt_id, error=error))
        return True

    def _steer(self, prompt_id: PromptId, content: Raw, meta: Raw | UnsetType) -> None:
        """Send `_session/steering`."""
        attachment = self._attachment
        if attachment is None or attachment.agent_session_id is None:
            self._put(SteerAnswered(at=self._clock.now_ms(), prompt_id=prompt_id, outcome=SteerOutcome.FAILED))
            return
        params = steering_params(attachment.agent_session_id, content, meta)
        answered = partial(self._steer_answered, attachment, prompt_id)
        attachment.steered[prompt_id] = attachment.connection.ask(self, SESSION_STEERING, params, answered)
        self._note()

    def _steer_answered(self, attachment: Attachment, prompt_id: PromptId, frame: Result | Failure | None) -> None:
        # The loss of an agent is reported separately.
        if frame is not None and self._attachment is attachment:
            attachment.answers[prompt_id] = attachment.connection.peer.frame or 0
            self._note()
            outcome = read_steer_result(frame.result) if isinstance(frame, Result) else SteerOutcome.FAILED
            self._put(SteerAnswered(at=self._clock.now_ms(), prompt_id=prompt_id, outcome=outcome))

    def _cancel(self, prompt_id: PromptId, rung: CancelRung) -> None:
        """Perform one step of the cancel escalation."""
        attachment = self._attachment
        if attachment is None or attachment.agent_session_id is None:
            return
        connection = attachment.connection
        if rung is CancelRung.NOTIFY:
            connection.notify(self, SESSION_CANCEL, session_params(attachment.agent_session_id))
        elif rung is CancelRung.REQUEST:
            if (request_id := attachment.asked.get(prompt_id)) is not None:
                connection.notify(self, CANCEL_REQUEST, raw({"requestId": request_id}))
        elif not connection.end_now(kill=rung is CancelRung.KILL):
            self._tasks.start_soon(connection.aclose)

    def _close(self) -> None:
        """Notify the agent that it may forget the session, and detach."""
        attachment = self._attachment
        if attachment is not None and attachment.profile.close and attachment.agent_session_id is not None:
            named = session_params(attachment.agent_session_id)
            with suppress(LinkError, LimitExceeded):
                attachment.connection.ask(self, SESSION_CLOSE, named, _ignore_answer)
        self.leave()

    async def call(self, method: str, params: Mapping[str, object]) -> Result | Failure:
        """Send a request about the open session. Raises `LinkError` if the agent ends without an answer."""
        return await self._call(self._open_attachment(), method, params)

    async def _call(self, attachment: Attachment, method: str, params: Mapping[str, object]) -> Result | Failure:
        named = raw({"sessionId": attachment.agent_session_id, **params})
        return await attachment.connection.call(self, method, named)

    def notify(self, method: str, params: Mapping[str, object]) -> None:
        """Send a notification about the open session."""
        attachment = self._open_attachment()
        named = raw({"sessionId": attachment.agent_session_id, **params})
        attachment.connection.notify(self, method, named)

    def _open_attachment(self) -> Attachment:
        assert self._attachment is not None, "the session is open at an agent"
        return self._attachment

    def _prompt_params(self, attachment: Attachment, content: Raw, meta: Raw | UnsetType) -> Raw:
        assert attachment.agent_session_id is not None, "prompts go to an open session"
        return prompt_params(attachment.agent_session_id, content, meta)

    # -- deadlines -------------------------------------------------------------------------------------------

    async def _wait_for(self, effect: fx.ArmDeadline | fx.AwaitAnswer) -> None:
        await self._clock.sleep(effect.after_s)
        now = self._clock.now_ms()
        if isinstance(effect, fx.ArmDeadline):
            self._put(DeadlinePassed(at=now, prompt_id=effect.prompt_id, rung=effect.rung))
        else:
            self._put(AnswerOverdue(at=now, prompt_id=effect.prompt_id))

    def _arm_time_limit(self, prompt_id: PromptId, after_s: float) -> None:
        """Report this time limit when it passes and the turn is still open."""
        self._due = {each: due for each, due in self._due.items() if self._is_open_turn(each)}
        self._due[prompt_id] = self._clock.monotonic() + after_s
        self._timer.cancel()
        self._timer = anyio.CancelScope()
        self._tasks.start_soon(self._wait_for_time_limits, self._timer)

    async def _wait_for_time_limits(self, timer: anyio.CancelScope) -> None:
        with timer:
            # A cancelled timer may wake once more before the cancellation is delivered.
            while self._due and not timer.cancel_called:
                prompt_id = min(self._due, key=self._due.__getitem__)
                remaining_s = self._due[prompt_id] - self._clock.monotonic()
                if remaining_s > 0:
                    await self._clock.sleep(remaining_s)
                    continue
                del self._due[prompt_id]
                if self._is_open_turn(prompt_id):
                    self._put(TimeLimitPassed(at=self._clock.now_ms(), prompt_id=prompt_id))

    def _is_open_turn(self, prompt_id: PromptId) -> bool:
        # A session with an open turn is not unloaded.
        return self._loop is not None and find_turn(self._loop.state, prompt_id) is not None

    # -- opening the session at an agent ---------------------------------------------------------------------

    async def _open(self, state: SessionState) -> None:
        try:
            connection = await self.pool.connection(self.session_id)
            if self._is_left:
                # The session was closed while the agent was starting. The agent stays for other sessions, or ends
                # with `release`.
                return
            history = await self._history(state, connection)
            if self._is_left:
                return
            self.requests.settle(state.cwd, state.setup.additional_directories)
            attachment = self._attachment = Attachment(connection, state.context, history)
            attachment.cwd, attachment.directories = state.cwd, state.setup.additional_directories
            self._enqueued_frame = self._recorded_frame = self._adopted_frame = 0
            self.frames = LastFrames()
            self._begin(attachment, state)
        except (AgentError, LinkError, LimitExceeded, ProtocolError) as error:
            code = error.code if isinstance(error, AgentError) else "agent_launch_failed"
            self._lose(code, str(error), self.pool.last_exit(self.session_id))
        finally:
            if self._attachment is None:
                self._is_opening = False

    async def _history(self, state: SessionState, connection: AgentConnection) -> View | None:
        """Return the transcript in the log, for an agent that may repeat it; `None` if there is nothing to
        compare.
        """
        profile = connection.profile
        if state.known_as is None or profile is None or not (profile.resume or profile.load):
            return None
        try:
            return await self._host.view(self.session_id)
        except TurnwireError:
            return None

    def _begin(self, attachment: Attachment, state: SessionState) -> None:
        """Restore the session at an agent that knows it and can restore it; otherwise open a new one."""
        profile, known_as = attachment.profile, state.known_as
        fork_of, self._fork_of = self._fork_of, None
        if state.setup.additional_directories and not profile.directories:
            # Roots are granted or refused, never omitted.
            self._lose("agent_launch_failed", "this agent takes no additional directories; load without")
            return
        unwanted = unwanted_servers(state.setup.mcp_servers, profile)
        if has_system_prompt(state.setup) and not takes_system_prompt(profile):
            unwanted = NO_SYSTEM_PROMPT
        if unwanted is not None:
            # A daemon has checked this before; a program with an embedded agent has not.
            self._lose("agent_launch_failed", unwanted)
            return
        ways = ["new"]
        if fork_of is not None:
            ways, known_as = ["fork"], fork_of
        elif known_as is not None:
            ways = [way for way, is_offered in (("resume", profile.resume), ("load", profile.load)) if is_offered]
            ways.append("lost")
        self._try(attachment, ways, state, known_as)

    def _try(
        self,
        attachment: Attachment,
        ways: list[str],
        state: SessionState,
        named: AgentSessionId | None,
        used: frozenset[AgentSessionId] = frozenset(),
    ) -> None:
        """Open the session by the first method; if the agent rejects it, by the next.

        `named` is the session to load, resume or fork. `used` are ids that the agent assigned to it before and that
        other sessions have: an agent whose counter restarted reaches a free id, another one assigns the same id
        twice.
        """
        connection = attachment.connection
        if named is not None and connection.has(named):
            # Another session has this id here: the agent's counter started again, and it does not know us.
            ways = [way for way in ways if way not in {"load", "resume"}]
        how = attachment.how = ways[0]
        # Only a load should send history, and some agents do so on a resume. A second way starts without the
        # history of the first.
        attachment.replay = View() if how == "load" else None
        attachment.repeats = self._new_repeats(attachment, state) if how == "resume" else None
        attachment.news = []
        attachment.children = frozenset(state.children if how in {"load", "resume"} else ())
        known_as = named if how in {"load", "resume"} else None
        setup = replace(state.setup, mcp_servers=mcp_servers(state.setup.mcp_servers, attachment.profile.version))
        method = SESSION_NEW if how in {"new", "lost"} or named is None else f"session/{how}"
        params = opening_params(None if method == SESSION_NEW else named, state.cwd, setup)

        def answered(frame: Result | Failure) -> AgentSessionId | None:
            if self._attachment is not attachment:
                return None
            agent_session_id = (known_as or read_session_id(frame.result)) if isinstance(frame, Result) else None
            if agent_session_id is not None and connection.has(agent_session_id):
                # It is the other session's id, so it is not closed there.
                if agent_session_id in used:
                    self._lose("agent_launch_failed", "the agent gave the session an id that another one has")
                else:
                    self._try(attachment, ways, state, named, used | {agent_session_id})
                return None
            if agent_session_id is not None:
                offers = frame.result if isinstance(frame, Result) else NO_OFFERS
                self._opened(attachment, agent_session_id, offers, state)
            elif isinstance(frame, Failure) and frame.error.code != AUTH_REQUIRED and len(ways) > 1:
                attachment.refusals.append(OpeningRefused(how, raw(frame.error)))
                self.pool.keep_idle()
                extra = {"event": "session_not_brought_back", "session": self.session_id, "how": how}
                message = one_line(frame.error.message)
                logger.warning("the agent refused session/%s: %s (%d)", how, message, frame.error.code, extra=extra)
                self._try(attachment, ways[1:], state, named)
            else:
                self._opening_failed(attachment, frame if isinstance(frame, Failure) else None)
            return agent_session_id

        connection.open_session(self, method, params, answered, known_as)

    def _new_repeats(self, attachment: Attachment, state: SessionState) -> Repeats | None:
        history = attachment.history
        if history is None:
            return None
        unsent = history.active if state.turn is None else state.turn.prompt_id
        echoes = state.echoes or attachment.profile.turn_end is TurnEnd.IDLE
        return Repeats(history, unsent, echoes=echoes)

    def _opened(
        self, attachment: Attachment, agent_session_id: AgentSessionId, offers: Raw, state: SessionState
    ) -> None:
        profile = attachment.profile
        attachment.agent_session_id = agent_session_id
        self._put(
            AgentReady(
                at=self._clock.now_ms(),
                agent_session_id=agent_session_id,
                protocol_version=profile.version,
                turn_end=profile.turn_end,
                steering=profile.steering,
                how=attachment.how,
                capabilities=profile.capabilities,
                offers=offers,
                refused=tuple(attachment.refusals),
            )
        )
        # After `AgentReady`, which names the agent; and history before news, in the agent's order.
        is_replaying = self.pool.replays_late
        if attachment.replay is not None and attachment.history is not None:
            unsent = attachment.history.active if state.turn is None else state.turn.prompt_id
            found = compare(attachment.history, attachment.replay, without=unsent)
            self._put(AgentReplayed(at=self._clock.now_ms(), **found._asdict()))
            if found.missing:
                # Some agents send the history after the response.
                attachment.repeats = self._new_repeats(attachment, state)
                is_replaying = True
        attachment.replay = None
        if attachment.repeats is not None:
            attachment.repeats.pause()
            if is_replaying or attachment.repeats.is_replaying:
                self._hold_until_quiet(attachment)
        news, attachment.news = attachment.news, []
        for each in news:
            self._emit(attachment, each, peek_update(each.update))
        if state.choices:
            attachment.is_restoring = True
            settings = settings_of(state.choices, profile.version)
            self._tasks.start_soon(self._restore, attachment, settings)

    def _opening_failed(self, attachment: Attachment, failure: Failure | None) -> None:
        if failure is not None and failure.error.code == AUTH_REQUIRED:
            methods = {"authMethods": attachment.profile.auth_methods}
            error = raw({"code": AUTH_REQUIRED, "message": failure.error.message, "data": methods})
            self._lose("auth_required", "the agent wants its user to authenticate first", error=error)
        elif failure is not None:
            self._lose("agent_launch_failed", "the agent refused to open the session", error=raw(failure.error))
        else:
            self._lose("agent_launch_failed", "the agent opened a session without an id")

    def _hold_until_quiet(self, attachment: Attachment) -> None:
        """Send no prompt while the agent is replaying its history."""
        if not attachment.is_held:
            attachment.is_held = attachment.has_replayed = True
            self._tasks.start_soon(self._release_when_quiet, attachment)

    async def _release_when_quiet(self, attachment: Attachment) -> None:
        while attachment.has_replayed:
            attachment.has_replayed = False
            await self._clock.sleep(attachment.connection.limits.replay_quiet_s)
        attachment.is_held = False
        if self._attachment is attachment:
            # An agent that replays later than this is compared while it has the prompt.
            if attachment.repeats is not None and attachment.repeats.is_replaying:
                self._end_repeats()
            with self._sending():
                self._ready()

    async def _restore(self, attachment: Attachment, settings: list[Setting]) -> None:
        """Send the users' choices to an agent that opened the session again, before any prompt."""
        lost: list[LostChoice] = []
        accepted: list[Setting] = []
        options = NO_OFFERS
        try:
            for each in settings:
                answer: Result | Failure | None = None
                with anyio.move_on_after(attachment.connection.limits.initialize_s):
                    answer = await self._call(attachment, each.method, each.params)
                if not isinstance(answer, Result):
                    why = "the agent did not answer" if answer is None else one_line(answer.error.message)
                    lost.append(each.lost(why or "the agent refused it"))
                    continue
                accepted.append(each)
                if each.method == SESSION_SET_CONFIG_OPTION:
                    options = answer.result
                elif each.method == SESSION_SET_MODE and self._attachment is attachment:
                    self.on_update(mode_update(str(each.wanted)))
        except LinkError:
            # The loss is reported separately, and the next agent gets the choices again.
            return
        if self._attachment is not attachment:
            return
        values = current_values(options)
        lost += undone(accepted, values)
        if values:
            self.on_update(options_update(members(options)["configOptions"]))
        self._put(ChoicesTold(at=self._clock.now_ms(), lost=tuple(lost)))

        def recorded(offset: int) -> None:
            attachment.is_restoring = False
            self._note()
            # With a lost choice the waiting prompt is about to be withdrawn; a later one is sent when it comes.
            if not lost and self._attachment is attachment:
                self._ready()

        # No prompt is sent before the session has recorded the outcome.
        self.mark(recorded)

    def _ready(self) -> None:
        """The agent is ready for a prompt: the session was opened there, or the agent delivered the owed answer."""
        if self._is_opening:
            # The loop knows whether the previous agent took a turn with it only after both inputs.
            self._put(Barrier(partial(self._opening_recorded, self._attachment)))
        elif self._waiting:
            self._ask_or_open()

    def _opening_recorded(self, attachment: Attachment | None, offset: int) -> None:
        if self._attachment is attachment:
            self._is_opening = False
            self._note()
            with self._sending():
                self._ask_or_open()

    # -- frames from the agent: called by the connection, in the agent's order --------------------------------

    @property
    def children(self) -> frozenset[str]:
        """The agent's ids of child sessions that the agent is to restore with this one."""
        return frozenset() if self._attachment is None else self._attachment.children

    def on_registered(self) -> None:
        """The session is open at the agent and can be prompted."""
        if self._attachment is not None:
            self._ready()

    def on_update(self, update: Raw, child: str | None = None, extra: Raw | UnsetType = UNSET) -> str | None:
        """Handle a `session/update`, of the child session `child` unless that is `None`, with the members next to
        the update.

        Return the child session that it announces, if any. An unreadable update is dropped.
        """
        attachment = self._attachment
        if attachment is None:
            return None
        # Recorded before it is read: an unreadable frame is the best evidence of a stuck agent.
        self.frames.updated(update)
        try:
            peek = peek_update(update)
        except RemoteProtocolError:
            return None
        said = Said(update, extra, child)
        repeats, is_before_answer = attachment.repeats, attachment.is_before_answer
        # Current state is never a repetition. Updates of a child are not compared, because only the session's own
        # transcript could be repeated.
        if repeats is not None and child is None and (peek.kind not in CURRENT_STATE or not is_before_answer):
            self._compare_update(attachment, repeats, said, peek)
        elif not is_before_answer:
            self._emit(attachment, said, peek)
        elif attachment.replay is None or peek.kind in CURRENT_STATE or peek.kind == ANNOUNCES:
            # A load sends history first. Only current state is new to the log, and it follows the response.
            attachment.news.append(said)
        elif child is None:
            attachment.replay.apply(SessionUpdated(at=0, kind=peek.kind, update=update))
        if peek.kind != ANNOUNCES:
            return None
        announced = read_announcement(update).session_id
        if announced is not None and announced not in attachment.children:
            attachment.children |= {announced}
            self._note()
        return announced

    def on_chunks(self, kind: str, updates: Sequence[Raw]) -> None:
        """Handle a batch of text chunks of the session itself, one `session/update` each."""
        attachment = self._attachment
        if attachment is None:
            return
        if attachment.repeats is not None or attachment.is_before_answer:
            for each in updates:
                self.on_update(each)
            return
        for each in updates[-KEPT_FRAMES:]:
            self.frames.updated(each)
        if (newest := attachment.connection.peer.frame) is not None:
            # A batch that is received again may begin with chunks that the log has (A3).
            updates = updates[max(0, self._adopted_frame - (newest - len(updates))) :]
            if not updates:
                return
        self._put(AgentPieces(at=self._clock.now_ms(), kind=kind, updates=updates))

    def _emit(self, attachment: Attachment, said: Said, peek: UpdatePeek) -> None:
        """Pass an update on to the loop."""
        ends = None
        if peek.kind in MARKERS and peek.prompt_request_id is not None:
            named = (
                each for each, request_id in attachment.asked.items() if names(peek.prompt_request_id, request_id)
            )
            ends = next(named, _UNKNOWN_PROMPT)
        input = AgentUpdate(
            at=self._clock.now_ms(),
            update=said.update,
            peek=peek,
            ends=ends,
            beside=said.beside,
            child=said.child,
        )
        if self._is_in_log(input):
            # What follows from it was noted.
            return
        self._put(input)
        # After the input: a ready agent gets the next prompt, and this idle is the end of the previous one.
        owed = attachment.owed
        if said.child is None and peek.state == "idle" and owed is not None and owed.by is OwedBy.IDLE:
            attachment.owed = None
            self._note()
            self._ready()

    def _compare_update(self, attachment: Attachment, repeats: Repeats, said: Said, peek: UpdatePeek) -> None:
        """Emit an update after a resume unless the log has it already."""
        # The end of our own prompt is no repetition. Undecided updates precede it in the same turn.
        if attachment.asked and (peek.state == "idle" or peek.kind in MARKERS):
            self._end_repeats(answered=True)
            self._emit(attachment, said, peek)
            return
        new = repeats.take(said, peek)
        attachment.has_replayed = True
        if attachment.agent_session_id is not None and repeats.is_replaying:
            self.pool.replays_late = True
            if not attachment.asked:
                self._hold_until_quiet(attachment)
        for each in new:
            if attachment.agent_session_id is None:
                attachment.news.append(each)
            else:
                self._emit(attachment, each, peek_update(each.update))
        if repeats.is_over:
            self._end_repeats()

    def _end_repeats(self, *, answered: bool = False) -> None:
        """Treat all later updates as new, and emit the undecided ones."""
        attachment = self._attachment
        # Until `session/resume` is answered more of the history may come, and the log has no agent for it.
        if attachment is None or attachment.repeats is None or attachment.agent_session_id is None:
            return
        repeats, attachment.repeats = attachment.repeats, None
        for said in repeats.finish(answered=answered):
            self._emit(attachment, said, peek_update(said.update))
        if repeats.found is not None:
            self._put(AgentReplayed(at=self._clock.now_ms(), **repeats.found._asdict()))
        self._note()

    def on_permission_request(self, request: Request, child: str | None = None) -> None:
        """Handle a permission request for the users, of the child session `child` unless that is `None`."""
        if self._attachment is None:
            return
        # An agent that sends a request is at work and sends no history any more. Undecided updates came before
        # this.
        self._end_repeats()
        self.frames.heard(request)
        asks = read_permission_request(self._clock.now_ms(), request, new_ids.permission_id())
        if self._is_in_log(asks):
            self._put(Barrier(partial(self._answer_if_resolved, request)))
            return
        self._put(asks if child is None else replace(asks, child=child))

    def on_client_request(
        self,
        request: Request,
        answer: Callable[[Result | Failure], None],
        mark: Callable[[Callable[[int], None]], None] | None = None,
        refused: set[object] | None = None,
    ) -> bool:
        """Handle a request for a file, a terminal, or a custom method. Return false if no client serves it.

        `mark` replaces the mark of this session if the request concerns several. `refused` are clients that do not
        know the method.
        """
        if self._attachment is None:
            return False
        self._end_repeats()
        self.frames.heard(request)
        return self.requests.begin(request, mark or self.mark, answer, refused)

    def on_cancel_request(self, request_id: RequestId) -> None:
        """The agent withdraws a request."""
        if self._attachment is not None:
            self.requests.withdraw(request_id)
            self._put(AgentWithdraws(at=self._clock.now_ms(), agent_request_id=request_id))

    def on_gone(self, how: Exit | None, code: str) -> None:
        """The connection ended."""
        if self._attachment is None:
            return
        message = _GONE.get(code, _GONE["agent_exited"])
        # The exit code or signal matters only if it ended by itself.
        went = manner(how) if code == "agent_exited" else None
        self._lose(code, message if went is None else f"{message}: it ended {went}", how)

    def owners(self, method: str) -> set[str | None]:
        """Return the owners of the session's clients that serve this method."""
        return self.requests.owners(method)

    def mark(self, reached: Callable[[int], None]) -> None:
        """Call `reached` with the offset of the last event before this point, once that event is published."""
        if self._attachment is None:
            reached(0)
        else:
            self._put(Barrier(reached))

    async def room(self) -> None:
        """Wait until the session has room for more inputs. While it is unloaded the agent is held back after one
        batch.
        """
        if self._loop is not None:
            await self._loop.inbox.room()
        elif self._parked:
            await self._loaded.wait()

    # -- to the loop -----------------------------------------------------------------------------------------

    def _put(self, input: AnyInput | Barrier) -> None:
        """Enqueue an input at the loop, or park it until the session is loaded."""
        if self._is_left or self._is_in_log(input):
            return
        loop, attachment = self._loop, self._attachment
        frame = 0 if attachment is None else attachment.connection.peer.frame or 0
        if isinstance(input, Barrier):
            if loop is None and not self._parked and not self._is_adopted:
                # Everything before it is published already, so the session need not be loaded.
                input.reached(self._head)
                return
        elif self._rules.rules or isinstance(input, AgentAsks):
            input = self._session_rules.judged(input, self._cwd if loop is None else loop.state.cwd)
        if frame and attachment is not None and attachment.connection.journal is not None:
            attachment.connection.put(self, self._recorded_frame)
            self._enqueued_frame = frame
        if loop is not None:
            loop.inbox.put(input, frame)
            return
        self._parked.append((input, frame))
        if len(self._parked) == 1:
            self._host.reload(self.session_id)

    def _is_in_log(self, input: AnyInput | Barrier) -> bool:
        """Return true for an input from a frame that was in the log when the agent was adopted (A3)."""
        attachment = self._attachment
        if not self._adopted_frame or attachment is None or not isinstance(input, _FROM_FRAMES):
            return False
        if isinstance(input, AgentRefused) and input.unsent is not None:
            return False
        frame = attachment.connection.peer.frame
        return frame is not None and frame <= self._adopted_frame

    def _lose(self, code: str, message: str, how: Exit | None = None, error: Raw | None = None) -> None:
        """Report that the agent, or its connection to the session, is gone."""
        # First, while there is an attachment: otherwise undecided updates would be in no log.
        self._end_repeats()
        self._detach_agent()
        self._is_opening = False
        # The session ends their turns when it records the loss, and decides the next prompt.
        self._waiting.clear()
        self.requests.withdraw_all()
        self._put(agent_gone(self._clock.now_ms(), code, message, how, error))

    def _detach_agent(self) -> None:
        attachment, self._attachment = self._attachment, None
        self._is_adopted = False
        if attachment is not None:
            if (journal := attachment.connection.journal) is not None:
                journal.note(f"{SESSION}{self.session_id}", None)
                journal.note(f"{FRAMES}{self.session_id}", None)
            attachment.connection.forget(self, attachment.agent_session_id)


def _ignore_answer(frame: Result | Failure | None) -> None:
    """Ignore the answer: the session has been detached."""
