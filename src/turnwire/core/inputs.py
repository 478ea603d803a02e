"""Everything that can happen to a session, as values: what clients ask, what the agent says, what time and
the machine do.

Takes what the edges learned (time, new ids and randomness included, so that deciding stays pure); gives one
frozen struct per kind of happening. Never says what follows from it: that is `core.decide`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType

from turnwire.core.events import CancelRung, LostChoice, OpeningRefused, TurnEnd
from turnwire.core.state import NO_SETUP, Setup
from turnwire.ids import AgentName, AgentSessionId, ChildId, ClientId, PermissionId, PromptId, RequestId, SessionId
from turnwire.wire.peek import UpdatePeek


class WhenBusy(StrEnum):
    """What a prompt wants when a turn is already running."""

    QUEUE = "queue"
    REJECT = "reject"
    INTERRUPT = "interrupt"
    """Cancel what runs, then go next."""
    STEER = "steer"
    """Go into what runs, if the agent can; else go next."""
    AGENT = "agent"
    """Go to the agent at once, if it is one that decides where a prompt goes; else wait."""


class Input(Struct, frozen=True, kw_only=True, gc=False):
    at: int
    """Wall time in milliseconds."""


class Asked(Input, frozen=True, kw_only=True):
    """Something a client wants. `author` comes from the credential, never from the body."""

    author: str | None = None
    client_id: ClientId | None = None

    @property
    def who(self) -> str | None:
        """The name of whoever wants it, or at least of the client."""
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
    """What the agent is to be given when it next has to open the session. Changes nothing if it is the same."""

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
    """When the turn is cancelled if it has not ended by then, in wall time as `at`."""


class UpdatePrompt(Asked, frozen=True):
    prompt_id: PromptId
    content: Raw | None = None
    position: int | None = None


class RemovePrompt(Asked, frozen=True):
    prompt_id: PromptId


class Cancel(Asked, frozen=True):
    prompt_id: PromptId | None = None
    """Only this turn; none means whichever runs."""


class CancelChild(Asked, frozen=True):
    """Stop what a child session does. Its agent decides whether that may be asked."""

    child: ChildId


class AnswerPermission(Asked, frozen=True):
    request_id: PermissionId
    answer: Raw
    """The JSON-RPC result for the agent."""
    option_id: str | None = None
    """The selected option, none if the answer selects none."""


class Settle(Asked, frozen=True):
    prompt_id: PromptId


class HoldQueue(Asked, frozen=True):
    """Let nothing start from the queue."""

    reason: str = "asked"


class ReleaseQueue(Asked, frozen=True):
    pass


class ModeSet(Asked, frozen=True):
    """The agent took a mode that a client chose."""

    mode: str
    previous: str | None = None
    config_id: str | None = None
    """The option by which it was set, if any."""


class ModelSet(Asked, frozen=True):
    """The agent took a model that a client chose."""

    model_id: str
    previous: str | None = None
    config_id: str | None = None
    """The option by which it was set, if any."""


class OptionChosen(Asked, frozen=True):
    """The agent took a value of an option that a client chose."""

    config_id: str
    value: str | bool


class Rename(Asked, frozen=True):
    title: str | None


class Archive(Asked, frozen=True):
    """Put the session away, or take it back."""

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
    """The agent has this session and can be prompted."""

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
    """What the params have beside the session and the update, as an object."""
    child: str | None = None
    """The agent's id of the child session that it is of."""


class AgentPieces(Input, frozen=True):
    """Pieces of text that the agent wrote in one go: the same as an `AgentUpdate` for each."""

    kind: str
    updates: Sequence[Raw]
    """Objects without line ends."""
    lines: bytes = b""
    """The updates again, with a line end behind each, if somebody has joined them already."""


class AgentHasPrompt(Input, frozen=True):
    """`session/prompt` was handed to the agent's link."""

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
    """An error answer to our `session/prompt`, or `unsent`: the agent takes no such content, and heard nothing."""

    prompt_id: PromptId
    error: Raw | None = None
    unsent: str | None = None


class Verdict(Struct, frozen=True):
    """An answer by rule."""

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
    """What a rule of the operator says to it; none leaves it to the users."""
    child: str | None = None
    """The agent's id of the child session that asks."""


class AgentWithdraws(Input, frozen=True):
    """`$/cancel_request` for a permission request."""

    agent_request_id: RequestId


class SteerAnswered(Input, frozen=True):
    prompt_id: PromptId
    injected: bool


class AgentGone(Input, frozen=True):
    """The agent's process or connection ended, could not start, or does not take what we write."""

    code: str
    """`agent_exited`, `agent_launch_failed`, `agent_unresponsive`, `auth_required`, `daemon_restarted`,
    `node_lost`."""
    message: str
    exit_code: int | None = None
    signal: str | None = None
    stderr_tail: str | None = None
    error: Raw | None = None
    """The agent's own word for it, if it gave one."""


# -- the runtime ---------------------------------------------------------------------------------------------


class DeadlinePassed(Input, frozen=True):
    """A rung of the cancel ladder had its time."""

    prompt_id: PromptId
    rung: CancelRung


class AnswerOverdue(Input, frozen=True):
    """The agent has marked the end of a turn and did not answer its prompt soon after."""

    prompt_id: PromptId


class TimeLimitPassed(Input, frozen=True):
    """A prompt has reached its own deadline."""

    prompt_id: PromptId


class ChoicesTold(Input, frozen=True):
    """An agent that opened the session anew was told what users had chosen before."""

    lost: tuple[LostChoice, ...] = ()
    """What it did not take."""


class Recover(Input, frozen=True):
    """The session was opened by a new owner; whatever the old one left open is now owed."""

    code: str = "daemon_restarted"
    """How the old one was lost: by a restart, or with its node (`node_lost`)."""
    holds: str | None = None
    """Why what waits in the queue goes on waiting; none if it goes on."""


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
)
