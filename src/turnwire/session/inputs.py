"""Inputs of a session: client requests, agent messages, timeouts, and events of the runtime.

Each kind is a frozen struct with all that the edges know, including time, new ids and randomness, so that deciding
stays pure. The consequences are decided in `session.decide`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType

from turnwire.ids import AgentName, AgentSessionId, ChildId, ClientId, PermissionId, PromptId, RequestId, SessionId
from turnwire.session.events import CancelRung, LostChoice, OpeningRefused, TurnEnd
from turnwire.session.state import NO_SETUP, Setup
from turnwire.wire.peek import UpdatePeek


class WhenBusy(StrEnum):
    """Behaviour of a prompt that arrives while a turn is running."""

    QUEUE = "queue"
    REJECT = "reject"
    INTERRUPT = "interrupt"
    """Cancel the running turn, then run next."""
    STEER = "steer"
    """Inject into the running turn if the agent can; else run next."""
    AGENT = "agent"
    """Send to the agent at once if it places prompts itself; else queue."""


class Input(Struct, frozen=True, kw_only=True, gc=False):
    at: int
    """Wall time in milliseconds."""


class Asked(Input, frozen=True, kw_only=True):
    """A client's request. `author` comes from the credential, never from the body."""

    author: str | None = None
    client_id: ClientId | None = None

    @property
    def who(self) -> str | None:
        """The author's name, or else the client's id."""
        return self.author or self.client_id


# -- clients -------------------------------------------------------------------------------------------------


class CreateSession(Asked, frozen=True):
    session_id: SessionId
    cwd: str
    setup: Setup = NO_SETUP
    fork_of: SessionId | None = None
    title: str | None = None
    agent_name: AgentName | None = None
    context: str | None = None


class ChangeSetup(Asked, frozen=True):
    """Parameters with which the agent next opens the session. Equal ones change nothing."""

    setup: Setup


class Prompt(Asked, frozen=True):
    prompt_id: PromptId
    content: Raw
    when_busy: WhenBusy = WhenBusy.QUEUE
    prompt_request_id: RequestId | None = None
    key: str | None = None
    digest: str | None = None
    meta: Raw | None = None
    """The prompt's `_meta`, for the agent."""
    deadline_at: int | None = None
    """Wall time, as `at`, at which the turn is cancelled unless it has ended."""


class UpdatePrompt(Asked, frozen=True):
    prompt_id: PromptId
    content: Raw | None = None
    position: int | None = None


class RemovePrompt(Asked, frozen=True):
    prompt_id: PromptId


class Cancel(Asked, frozen=True):
    prompt_id: PromptId | None = None
    """Cancels only this turn; `None` cancels the running one."""


class CancelChild(Asked, frozen=True):
    """Stop the work of a child session. Its agent decides whether that is allowed."""

    child: ChildId


class AnswerPermission(Asked, frozen=True):
    request_id: PermissionId
    answer: Raw
    """The JSON-RPC result for the agent."""
    option_id: str | None = None
    """The selected option; `None` if the answer selects no option."""


class Settle(Asked, frozen=True):
    prompt_id: PromptId


class HoldQueue(Asked, frozen=True):
    """Stop starting prompts from the queue."""

    reason: str = "asked"


class ReleaseQueue(Asked, frozen=True):
    pass


class ModeSet(Asked, frozen=True):
    """The agent accepted a mode that a client chose."""

    mode: str
    previous: str | None = None
    config_id: str | None = None
    """The option by which it was set, if any."""


class ModelSet(Asked, frozen=True):
    """The agent accepted a model that a client chose."""

    model_id: str
    previous: str | None = None
    config_id: str | None = None
    """The option by which it was set, if any."""


class OptionChosen(Asked, frozen=True):
    """The agent accepted a value of an option that a client chose."""

    config_id: str
    value: str | bool


class Rename(Asked, frozen=True):
    title: str | None


class Archive(Asked, frozen=True):
    """Archive or unarchive the session."""

    archived: bool


class Attach(Input, frozen=True):
    client_id: ClientId
    role: str = "controller"
    author: str | None = None


class Detach(Input, frozen=True):
    client_id: ClientId
    reason: str = "left"


class Close(Asked, frozen=True):
    reason: str = "closed"


# -- the agent -----------------------------------------------------------------------------------------------


class AgentReady(Input, frozen=True):
    """The agent has opened this session and can be prompted."""

    agent_session_id: AgentSessionId
    protocol_version: int
    turn_end: TurnEnd
    steering: bool = False
    how: str = "new"
    capabilities: Raw = Raw(b"{}")
    offers: Raw = Raw(b"{}")
    refused: tuple[OpeningRefused, ...] = ()


class AgentUpdate(Input, frozen=True):
    update: Raw
    peek: UpdatePeek
    ends: PromptId | None = None
    """The turn that a `turn_complete` marker names by our request id."""
    beside: Raw | UnsetType = UNSET
    """The members of the params except the session and the update, as an object."""
    child: str | None = None
    """The agent's id of the child session that sent it."""


class AgentPieces(Input, frozen=True):
    """Text chunks that the agent wrote as one batch: equivalent to an `AgentUpdate` for each."""

    kind: str
    updates: Sequence[Raw]
    """Objects without line ends."""


class AgentHasPrompt(Input, frozen=True):
    """`session/prompt` was passed to the agent's link."""

    prompt_id: PromptId
    agent_request_id: RequestId


class AgentReplayed(Input, frozen=True):
    """The agent loaded the session, and its replay was compared with the log."""

    replayed: int
    matched: int
    missing: int
    first_difference: str | None = None


class AgentAnswered(Input, frozen=True):
    """The answer to our `session/prompt`: the end of the turn on v1, its insertion on v2."""

    prompt_id: PromptId
    stop_reason: str | None = None
    message_id: str | None = None
    usage: Raw | None = None
    beside: Raw | UnsetType = UNSET
    """The other members of the answer, as an object."""


class AgentRefused(Input, frozen=True):
    """An error answer to our `session/prompt`, or `unsent`: the agent does not accept such content and received
    nothing.
    """

    prompt_id: PromptId
    error: Raw | None = None
    unsent: str | None = None


class Verdict(Struct, frozen=True):
    """An answer by a rule."""

    rule: str
    answer: Raw
    """The JSON-RPC result for the agent."""


class AgentAsks(Input, frozen=True):
    """A permission request to the users: `session/request_permission`, `elicitation/create`."""

    request_id: PermissionId
    agent_request_id: RequestId
    method: str
    params: Raw
    options: tuple[str, ...] = ()
    verdict: Verdict | None = None
    """The answer of an operator's rule; `None` if users decide."""
    child: str | None = None
    """The agent's id of the child session that asks."""


class AgentWithdraws(Input, frozen=True):
    """`$/cancel_request` for a permission request."""

    agent_request_id: RequestId


class SteerOutcome(StrEnum):
    """The agent's answer to `_session/steering`."""

    INJECTED = "injected"
    STARTED = "startedNewTurn"
    """It runs the prompt as a new turn, so the prompt is never sent again."""
    PROMPT_REQUIRED = "promptRequired"
    """It runs no turn."""
    FAILED = "failed"
    """This, an error, or an unknown outcome: it does not have the prompt."""


class SteerAnswered(Input, frozen=True):
    prompt_id: PromptId
    outcome: SteerOutcome


class AgentGone(Input, frozen=True):
    """The agent's process or connection ended, could not start, or does not accept our writes."""

    code: str
    """`agent_exited`, `agent_launch_failed`, `agent_unresponsive`, `auth_required`, `daemon_restarted`,
    `node_lost`."""
    message: str
    exit_code: int | None = None
    signal: str | None = None
    stderr_tail: str | None = None
    error: Raw | None = None
    """The agent's error object, if it sent one."""


# -- the runtime ---------------------------------------------------------------------------------------------


class DeadlinePassed(Input, frozen=True):
    """The grace period of a cancel step has passed."""

    prompt_id: PromptId
    rung: CancelRung


class AnswerOverdue(Input, frozen=True):
    """The agent has marked the end of a turn and did not answer its prompt soon after."""

    prompt_id: PromptId


class TimeLimitPassed(Input, frozen=True):
    """A prompt has reached its deadline."""

    prompt_id: PromptId


class ChoicesTold(Input, frozen=True):
    """An agent that reopened the session has received the users' earlier choices."""

    lost: tuple[LostChoice, ...] = ()
    """The choices that it rejected."""


class Recover(Input, frozen=True):
    """The session was opened by a new owner, which records the consequences of the old one's end."""

    code: str = "daemon_restarted"
    """The loss of the old owner: by a restart, or with its node (`node_lost`)."""
    holds: str | None = None
    """The reason to hold the queue; `None` if it continues."""


class Adopt(Input, frozen=True):
    """The session was opened by a new owner, and its agent has outlived the old one."""

    agent_session_id: AgentSessionId
    sent: tuple[tuple[PromptId, RequestId], ...] = ()
    """The prompts that the agent was sent by `session/prompt`, with the ids of the requests."""
    steered: tuple[PromptId, ...] = ()
    """The prompts that it was sent by `_session/steering` and has not answered."""


AnyInput: TypeAlias = (
    CreateSession
    | ChangeSetup
    | Prompt
    | UpdatePrompt
    | RemovePrompt
    | Cancel
    | CancelChild
    | AnswerPermission
    | Settle
    | HoldQueue
    | ReleaseQueue
    | ModeSet
    | ModelSet
    | OptionChosen
    | Rename
    | Archive
    | Attach
    | Detach
    | Close
    | AgentReady
    | AgentUpdate
    | AgentPieces
    | AgentHasPrompt
    | AgentReplayed
    | AgentAnswered
    | AgentRefused
    | AgentAsks
    | AgentWithdraws
    | SteerAnswered
    | AgentGone
    | DeadlinePassed
    | AnswerOverdue
    | TimeLimitPassed
    | ChoicesTold
    | Recover
    | Adopt
)


class Barrier(NamedTuple):
    """An inbox entry that is not an event: the loop calls back when every event before it is published."""

    reached: Callable[[int], None]
    """Called with the offset of the last event before it. Must not wait and must not raise."""
