"""The facts a session is made of. State, views and everything shown to clients are folds over these.

A fact is in the past tense. It never carries an intention (that is an effect) and never changes meaning: a changed
shape gets a new tag and an up-caster (`core.codec`). Fields are camelCase once encoded. `at` is wall time in
milliseconds, stamped on the input that led here. Payloads of peers are `Raw`: stored and shown byte for byte. One
that is not there is `UNSET`: `null` is one too. What a peer said `beside` the members that we read is one object,
with the peer's `_meta` and what no version of ACP has.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType

from turnwire.ids import (
    AgentName,
    AgentSessionId,
    ChildId,
    ClientId,
    MessageId,
    PermissionId,
    PromptId,
    RequestId,
    SessionId,
)


class Origin(StrEnum):
    """Who began a turn."""

    CLIENT = "client"
    AGENT = "agent"


class TurnEnd(StrEnum):
    """What ends a turn of this agent. Fixed by the handshake, recorded with `AgentStarted`."""

    RESPONSE = "response"
    """v1: the answer to `session/prompt`."""
    MARKER = "marker"
    """v1 with `turnComplete`: the `turn_complete` update."""
    IDLE = "idle"
    """v2, and v1 with the lifecycle draft: a state that says idle. Such an agent answers a prompt when it has it in
    its conversation, and shows where."""


class Ending(StrEnum):
    """Which fact ended a completed turn."""

    RESPONSE = "response"
    MARKER = "marker"
    IDLE = "idle"
    REMOVED = "removed"
    """It was taken out of the queue, or its session closed, before it started."""
    JOINED = "joined"
    """It had been injected into a running turn and ended with it."""
    SETTLED = "settled"
    """A person said that it is over."""
    CANCELLED = "cancelled"
    """A cancel was asked for, and the agent failed, exited or was stopped instead of answering."""


class QueueExit(StrEnum):
    """How a waiting prompt left the queue for good."""

    COMPLETED = "completed"
    REMOVED = "removed"


class SteerRefusal(StrEnum):
    """Why a steering prompt did not go into a running turn."""

    NO_TURN = "no_turn"
    """None ran."""
    NOT_AT_WORK = "not_at_work"
    """One ran that its agent was not at: it is being cancelled, or no agent has the session."""
    NOT_OFFERED = "not_offered"
    """The agent offers no steering."""
    DECLINED = "declined"
    """The agent did not take it."""
    TURN_ENDED = "turn_ended"
    """The turn ended before the agent took it."""
    AGENT_GONE = "agent_gone"
    """The agent went before it said whether it takes it."""


class PermissionEnd(StrEnum):
    """Why a permission request is no longer open."""

    ANSWERED = "answered"
    CANCELLED = "cancelled"
    """The turn was cancelled."""
    WITHDRAWN = "withdrawn"
    """The agent took the permission request back, ended the turn, or is gone."""


class CancelRung(StrEnum):
    """The cancel ladder, softest first."""

    NOTIFY = "session_cancel"
    REQUEST = "cancel_request"
    TERMINATE = "terminate"
    KILL = "kill"


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", tag_field="type", gc=False):
    """A stored fact."""

    at: int


class TurnEvent(Event, frozen=True, kw_only=True):
    """A fact about one turn."""

    prompt_id: PromptId


# -- the session ---------------------------------------------------------------------------------------------


class SessionCreated(Event, frozen=True, tag="session_created"):
    session_id: SessionId
    cwd: str
    mcp_servers: Raw = Raw(b"[]")
    fork_of: SessionId | None = None
    """The session whose conversation this one goes on from, at the agent."""
    title: str | None = None
    author: str | None = None
    client_id: ClientId | None = None
    additional_directories: tuple[str, ...] = ()
    meta: Raw | UnsetType = UNSET
    """The `_meta` that its agent is asked with to open it."""
    agent_name: AgentName | None = None
    """The agent that serves it, for life; the node's default one if none is named."""
    context: str | None = None
    """A conversation with another agent that this one goes on from, as text for its own agent."""


class SetupChanged(Event, frozen=True, tag="session_setup_changed"):
    """What the agent is given when it next has to open the session."""

    mcp_servers: Raw = Raw(b"[]")
    additional_directories: tuple[str, ...] = ()
    meta: Raw | UnsetType = UNSET
    author: str | None = None
    client_id: ClientId | None = None


class SessionRenamed(Event, frozen=True, tag="session_metadata_updated"):
    title: str | None
    author: str | None = None


class SessionArchived(Event, frozen=True, tag="session_archived"):
    """A user put the session away: lists leave it out, and nothing else changes."""

    author: str | None = None
    client_id: ClientId | None = None


class SessionUnarchived(Event, frozen=True, tag="session_unarchived"):
    """A user took it back, or prompted it."""

    author: str | None = None
    client_id: ClientId | None = None


class SessionClosed(Event, frozen=True, tag="session_closed"):
    reason: str
    author: str | None = None


class ModeChanged(Event, frozen=True, tag="approval_mode_changed"):
    """A client set the agent's mode, and the agent took it."""

    mode: str
    previous: str | None = None
    author: str | None = None
    client_id: ClientId | None = None
    config_id: str | None = None
    """The option by which it was set, if the agent has one for its modes."""


class ModelSwitched(Event, frozen=True, tag="model_switched"):
    """A client set the agent's model, and the agent took it."""

    model_id: str
    previous: str | None = None
    author: str | None = None
    client_id: ClientId | None = None
    config_id: str | None = None
    """The option by which it was set, if the agent has one for its models."""


class OptionSet(Event, frozen=True, tag="config_option_set"):
    """A client set an option of the agent, and the agent took it."""

    config_id: str
    value: str | bool
    author: str | None = None
    client_id: ClientId | None = None


class ChoicesRestored(Event, frozen=True, tag="choices_restored"):
    """An agent that opened the session anew has taken all that users had chosen before."""


class LostChoice(Struct, frozen=True):
    """What a user had chosen and an agent does not take any more."""

    name: str
    """`mode`, `model`, or the id of an option."""
    wanted: str | bool
    why: str


class ChoicesLost(Event, frozen=True, tag="choices_lost"):
    """An agent that opened the session anew has not taken what users had chosen. The queue is held for it."""

    lost: tuple[LostChoice, ...]


class QueueHeld(Event, frozen=True, tag="queue_held"):
    """Nothing starts from the queue until it is released."""

    reason: str
    author: str | None = None
    client_id: ClientId | None = None


class QueueReleased(Event, frozen=True, tag="queue_released"):
    author: str | None = None
    client_id: ClientId | None = None


class ClientAttached(Event, frozen=True, tag="client_attached"):
    client_id: ClientId
    role: str
    author: str | None = None


class ClientDetached(Event, frozen=True, tag="client_detached"):
    client_id: ClientId
    reason: str = "left"


# -- the agent -----------------------------------------------------------------------------------------------


class OpeningRefused(Struct, frozen=True, rename="camel"):
    """A way to open a session that an agent offers and did not go."""

    how: str
    """`load` or `resume`."""
    agent_error: Raw
    """The error object of the agent, as it came."""


class AgentStarted(Event, frozen=True, tag="agent_started"):
    agent_session_id: AgentSessionId
    protocol_version: int
    turn_end: TurnEnd
    steering: bool = False
    how: str = "new"
    """`new`, `load`, `resume`, `fork`; `lost` when an agent came back without its memory of the session."""
    capabilities: Raw = Raw(b"{}")
    offers: Raw = Raw(b"{}")
    """The agent's answer that opened the session: its modes, models and config options."""
    refused: tuple[OpeningRefused, ...] | None = None
    """What was tried before `how`, and why it is not that; none if nothing was."""


class AgentExited(Event, frozen=True, tag="agent_exited"):
    """The agent is gone, or could not be had at all."""

    reason: str
    message: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    stderr_tail: str | None = None
    agent_error: Raw | UnsetType = UNSET
    """The error object of the agent, as it came."""


class HistoryCompared(Event, frozen=True, tag="history_compared"):
    """An agent that loaded the session replayed its history, and it was held against the log."""

    replayed: int
    """Messages and tool calls that the agent replayed."""
    matched: int
    """How many of them, from the first on, are in the log."""
    missing: int
    """How many of the log's the agent did not replay."""
    first_difference: str | None = None
    """What differs first, in words; none if nothing does."""


class SessionUpdated(Event, frozen=True, tag="session_update"):
    kind: str
    update: Raw
    prompt_id: PromptId | None = None
    """The turn it belongs to; none for background and late updates."""
    after: PromptId | None = None
    """Set exactly on a late update: the ended turn that it followed."""
    echo: bool = False
    """The agent's own copy of a user message that is in the log already."""
    beside: Raw | UnsetType = UNSET
    """Beside the update, in the params of the agent's notification."""
    child: ChildId | None = None
    """The child session that it is of; none if it is of the session itself."""
    names: dict[str, str] = {}
    """Our ids of the sessions that it names, by the agent's."""


# -- the prompt, from acceptance to start --------------------------------------------------------------------


class PromptAccepted(TurnEvent, frozen=True, tag="prompt_accepted"):
    after_offset: int
    """The log's head just before this event: where a reader starts who wants all of the turn."""
    author: str | None = None
    client_id: ClientId | None = None
    prompt_request_id: RequestId | None = None
    """The client's JSON-RPC id, JSON type kept."""
    key: str | None = None
    """Idempotency key, with the digest of the body it came with."""
    digest: str | None = None
    meta: Raw | UnsetType = UNSET
    """The prompt's `_meta`, which the agent gets with it."""
    deadline_at: int | None = None
    """When the turn is cancelled if it has not ended by then."""
    content: Raw | UnsetType = UNSET
    """What it asks, if neither its message nor its place in the queue is recorded with it: the agent says where the
    message goes."""


class PromptQueued(TurnEvent, frozen=True, tag="pending_prompt_added"):
    content: Raw
    position: int
    """Place in the queue, 0 is next."""
    steering: bool = False
    """The agent is asked to take it into the running turn; until it answers, the prompt does not start."""


class PromptUpdated(TurnEvent, frozen=True, tag="pending_prompt_updated"):
    content: Raw | UnsetType = UNSET
    position: int | None = None
    author: str | None = None


class PromptOffered(TurnEvent, frozen=True, tag="prompt_offered"):
    """A waiting prompt is handed to the agent while a turn runs: the agent decides where it goes."""


class PromptDequeued(TurnEvent, frozen=True, tag="pending_prompt_started"):
    pass


class PromptFinished(TurnEvent, frozen=True, tag="pending_prompt_completed"):
    state: QueueExit


class UserMessage(TurnEvent, frozen=True, tag="user_message"):
    message_id: MessageId
    content: Raw
    author: str | None = None
    client_id: ClientId | None = None


class PromptSent(TurnEvent, frozen=True, tag="prompt_sent"):
    """The agent was asked. Its own names for the prompt are in what it answers."""

    agent_request_id: RequestId


class PromptAnswered(TurnEvent, frozen=True, tag="prompt_answered"):
    """An agent that marks its ends has answered the prompt; its marker is still to come."""

    stop_reason: str | None = None
    usage: Raw | UnsetType = UNSET
    beside: Raw | UnsetType = UNSET


class PromptInserted(TurnEvent, frozen=True, tag="prompt_inserted"):
    """The agent answered that the message is in its conversation. Where it is, `UserMessage` tells."""

    agent_message_id: str
    beside: Raw | UnsetType = UNSET


class PromptInjected(TurnEvent, frozen=True, tag="prompt_injected"):
    """The agent took a steering prompt into the running turn."""

    into: PromptId


class SteerDeclined(TurnEvent, frozen=True, tag="prompt_steer_declined"):
    """A steering prompt did not go into the running turn; it waits for its own."""

    reason: SteerRefusal = SteerRefusal.DECLINED


# -- the turn ------------------------------------------------------------------------------------------------


class TurnStarted(TurnEvent, frozen=True, tag="turn_started"):
    origin: Origin = Origin.CLIENT


class Awaited(Struct, frozen=True, rename="camel"):
    """Something that a turn waits for: a permission request that is open."""

    request_id: PermissionId
    kind: str
    """`permission` or `elicitation`."""


class TurnBlocked(TurnEvent, frozen=True, tag="turn_blocked"):
    waits_for: tuple[Awaited, ...] | None = None
    """What is open now; none if nothing is yet, because an agent may say that it waits before it says for what."""


class TurnUnblocked(TurnEvent, frozen=True, tag="turn_unblocked"):
    pass


class PermissionRequested(Event, frozen=True, tag="permission_request"):
    request_id: PermissionId
    agent_request_id: RequestId
    method: str
    params: Raw
    options: tuple[str, ...] = ()
    """The option ids that may be selected; empty for permission requests that take free answers."""
    prompt_id: PromptId | None = None
    child: ChildId | None = None
    """The child session that asks; none if the session itself does."""


class PermissionResolved(Event, frozen=True, tag="permission_resolved"):
    request_id: PermissionId
    end: PermissionEnd
    answer: Raw
    author: str | None = None
    client_id: ClientId | None = None
    prompt_id: PromptId | None = None


class PermissionAnsweredLate(Event, frozen=True, tag="permission_already_resolved"):
    request_id: PermissionId
    author: str | None = None
    client_id: ClientId | None = None


class CancelAsked(TurnEvent, frozen=True, tag="prompt_cancelled"):
    author: str | None = None
    client_id: ClientId | None = None


class CancelEscalated(TurnEvent, frozen=True, tag="cancel_escalated"):
    rung: CancelRung


class ChildCancelAsked(Event, frozen=True, tag="child_cancelled"):
    """A client wants a child session to stop what it does. The turn of the session goes on."""

    child: ChildId
    author: str | None = None
    client_id: ClientId | None = None


class Receipt(Struct, frozen=True, omit_defaults=True, gc=False):
    """What the end of a turn proves of the events up to it (`core.receipts`)."""

    hash: str
    """SHA-256, in hexadecimal."""
    events: int
    first: int
    """The offset of the first of them, which follows the end before."""
    last: int
    """The offset of the end itself."""
    previous: str | None = None
    """The hash of the receipt before; none if there is none."""


class TerminalEvent(TurnEvent, frozen=True, kw_only=True):
    """The end of a turn. Its receipt is last in the stored form: that is made before there is one."""

    receipt: Receipt | None = None
    """None before it is about to be stored, and in what was stored before there were receipts."""


class TurnCompleted(TerminalEvent, frozen=True, tag="turn_complete"):
    stop_reason: str
    ending: Ending
    assumed: bool | None = None
    """True if the agent gave no reason: this one is what its silence amounts to."""
    prompt_request_id: RequestId | None = None
    usage: Raw | UnsetType = UNSET
    cancelled_by: str | None = None
    settled_by: str | None = None
    agent_stop_reason: str | None = None
    """What the agent itself said of a turn that was cancelled, if that is another reason."""
    agent_error: Raw | UnsetType = UNSET
    """The error with which the agent answered a cancel, as it came."""
    beside: Raw | UnsetType = UNSET
    """In what ended it: the agent's answer, or its state."""


class TurnFailed(TerminalEvent, frozen=True, tag="turn_error"):
    code: str
    message: str
    prompt_request_id: RequestId | None = None
    exit_code: int | None = None
    signal: str | None = None
    stderr_tail: str | None = None
    agent_error: Raw | UnsetType = UNSET
    """The error object of the agent, as it came."""
    beside: Raw | UnsetType = UNSET
    """In the state that ended it."""


AnyEvent: TypeAlias = (
    SessionCreated
    | SessionRenamed
    | SessionArchived
    | SessionUnarchived
    | SessionClosed
    | SetupChanged
    | ModeChanged
    | ModelSwitched
    | OptionSet
    | ChoicesRestored
    | ChoicesLost
    | QueueHeld
    | QueueReleased
    | ClientAttached
    | ClientDetached
    | AgentStarted
    | AgentExited
    | HistoryCompared
    | SessionUpdated
    | PromptAccepted
    | PromptQueued
    | PromptOffered
    | PromptUpdated
    | PromptDequeued
    | PromptFinished
    | UserMessage
    | PromptSent
    | PromptAnswered
    | PromptInserted
    | PromptInjected
    | SteerDeclined
    | TurnStarted
    | TurnBlocked
    | TurnUnblocked
    | PermissionRequested
    | PermissionResolved
    | PermissionAnsweredLate
    | CancelAsked
    | CancelEscalated
    | ChildCancelAsked
    | TurnCompleted
    | TurnFailed
)

RELAXED: frozenset[type[Event]] = frozenset(
    {SessionUpdated, HistoryCompared, PromptSent, ClientAttached, ClientDetached, UserMessage}
)
"""Events that the durability level may relax. All others are on disk before anybody hears of them."""
