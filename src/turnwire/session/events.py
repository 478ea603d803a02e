"""The events of a session. State, views and everything shown to clients are folds over these.

An event is in the past tense. It never carries an intention (that is an effect) and never changes meaning: a
changed shape gets a new tag and an up-caster (`session.codec`). Fields are camelCase once encoded. `at` is wall
time in milliseconds, stamped on the input that caused the event. Payloads of peers are `Raw`: stored and shown byte
for byte. An absent payload is `UNSET`, because `null` is a payload. `beside` holds all members that we do not read
as one object, including the peer's `_meta` and members that no version of ACP has.
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
    """The initiator of a turn."""

    CLIENT = "client"
    AGENT = "agent"


class TurnEnd(StrEnum):
    """The signal that ends a turn of this agent. Fixed by the handshake, recorded with `AgentStarted`."""

    RESPONSE = "response"
    """v1: the answer to `session/prompt`."""
    MARKER = "marker"
    """v1 with `turnComplete`: the `turn_complete` update."""
    IDLE = "idle"
    """v2, and v1 with the lifecycle draft: an idle state. Such an agent answers a prompt once the prompt is in its
    conversation, and shows its position.
    """


class Ending(StrEnum):
    """The fact that ended a completed turn."""

    RESPONSE = "response"
    MARKER = "marker"
    IDLE = "idle"
    REMOVED = "removed"
    """Removed from the queue, or its session was closed, before it started."""
    JOINED = "joined"
    """Injected into a running turn, and ended with it."""
    SETTLED = "settled"
    """Ended by a person."""
    CANCELLED = "cancelled"
    """Cancelled by a client; the agent then failed, exited or was stopped instead of answering."""


class QueueExit(StrEnum):
    """The outcome of a queued prompt."""

    COMPLETED = "completed"
    REMOVED = "removed"


class SteerRefusal(StrEnum):
    """Reason for which a steering prompt was not injected into a running turn."""

    NO_TURN = "no_turn"
    """No turn ran."""
    NOT_AT_WORK = "not_at_work"
    """A turn ran that its agent was not working on: it is being cancelled, or no agent has the session."""
    NOT_OFFERED = "not_offered"
    """The agent offers no steering."""
    NOT_ON_V2 = "not_on_v2"
    """The agent offers no steering on v2; it may on v1 (`protocol = 1`)."""
    DECLINED = "declined"
    """The agent declined it."""
    TURN_ENDED = "turn_ended"
    """The turn ended before the agent accepted it."""
    AGENT_GONE = "agent_gone"
    """The agent exited before it accepted or declined it."""


class PermissionEnd(StrEnum):
    """Reason for which a permission request is no longer open."""

    ANSWERED = "answered"
    CANCELLED = "cancelled"
    """The turn was cancelled."""
    WITHDRAWN = "withdrawn"
    """The agent withdrew the permission request, ended the turn, or is gone."""


class CancelRung(StrEnum):
    """The steps of the cancel escalation, softest first."""

    NOTIFY = "session_cancel"
    REQUEST = "cancel_request"
    TERMINATE = "terminate"
    KILL = "kill"


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", tag_field="type", gc=False):
    """A stored event."""

    at: int


class TurnEvent(Event, frozen=True, kw_only=True):
    """An event of one turn."""

    prompt_id: PromptId


# -- the session ---------------------------------------------------------------------------------------------


class SessionCreated(Event, frozen=True, tag="session_created"):
    session_id: SessionId
    cwd: str
    mcp_servers: Raw = Raw(b"[]")
    fork_of: SessionId | None = None
    """The session whose conversation the agent forked for this one."""
    title: str | None = None
    author: str | None = None
    client_id: ClientId | None = None
    additional_directories: tuple[str, ...] = ()
    meta: Raw | UnsetType = UNSET
    """The `_meta` of the request that opens the session at its agent."""
    extra: Raw | UnsetType = UNSET
    """Further members of that request."""
    agent_name: AgentName | None = None
    """The agent that serves the session, fixed for its lifetime; the node's default one if absent."""
    context: str | None = None
    """An earlier conversation with another agent, as text for this session's agent."""


class SetupChanged(Event, frozen=True, tag="session_setup_changed"):
    """The parameters with which the agent next opens the session."""

    mcp_servers: Raw = Raw(b"[]")
    additional_directories: tuple[str, ...] = ()
    meta: Raw | UnsetType = UNSET
    extra: Raw | UnsetType = UNSET
    author: str | None = None
    client_id: ClientId | None = None


class SessionRenamed(Event, frozen=True, tag="session_metadata_updated"):
    title: str | None
    author: str | None = None


class SessionArchived(Event, frozen=True, tag="session_archived"):
    """A user archived the session: lists omit it, and nothing else changes."""

    author: str | None = None
    client_id: ClientId | None = None


class SessionUnarchived(Event, frozen=True, tag="session_unarchived"):
    """A user unarchived the session, or prompted it."""

    author: str | None = None
    client_id: ClientId | None = None


class SessionClosed(Event, frozen=True, tag="session_closed"):
    reason: str
    author: str | None = None


class ModeChanged(Event, frozen=True, tag="approval_mode_changed"):
    """A client set the agent's mode, and the agent accepted it."""

    mode: str
    previous: str | None = None
    author: str | None = None
    client_id: ClientId | None = None
    config_id: str | None = None
    """The option by which it was set, if the agent has one for its modes."""


class ModelSwitched(Event, frozen=True, tag="model_switched"):
    """A client set the agent's model, and the agent accepted it."""

    model_id: str
    previous: str | None = None
    author: str | None = None
    client_id: ClientId | None = None
    config_id: str | None = None
    """The option by which it was set, if the agent has one for its models."""


class OptionSet(Event, frozen=True, tag="config_option_set"):
    """A client set an option of the agent, and the agent accepted it."""

    config_id: str
    value: str | bool
    author: str | None = None
    client_id: ClientId | None = None


class ChoicesRestored(Event, frozen=True, tag="choices_restored"):
    """An agent that reopened the session has accepted all choices that users had made."""


class LostChoice(Struct, frozen=True):
    """A user's choice that an agent no longer accepts."""

    name: str
    """`mode`, `model`, or the id of an option."""
    wanted: str | bool
    why: str


class ChoicesLost(Event, frozen=True, tag="choices_lost"):
    """An agent that reopened the session has rejected choices of users. The queue is held for it."""

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
    """A way to open a session that an agent offers and that failed."""

    how: str
    """`load` or `resume`."""
    agent_error: Raw
    """The agent's error object, unchanged."""


class AgentStarted(Event, frozen=True, tag="agent_started"):
    agent_session_id: AgentSessionId
    protocol_version: int
    turn_end: TurnEnd
    steering: bool = False
    how: str = "new"
    """`new`, `load`, `resume`, `fork`; `lost` if an agent returned without its memory of the session."""
    capabilities: Raw = Raw(b"{}")
    offers: Raw = Raw(b"{}")
    """The agent's answer that opened the session: its modes, models and config options."""
    refused: tuple[OpeningRefused, ...] | None = None
    """The attempts before `how`, and why they failed; `None` without such attempts."""


class AgentExited(Event, frozen=True, tag="agent_exited"):
    """The agent exited, or could not be started."""

    reason: str
    message: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    stderr_tail: str | None = None
    agent_error: Raw | UnsetType = UNSET
    """The agent's error object, unchanged."""


class HistoryCompared(Event, frozen=True, tag="history_compared"):
    """An agent that loaded the session replayed its history, which was compared with the log."""

    replayed: int
    """Messages and tool calls that the agent replayed."""
    matched: int
    """The number of leading replayed items that are in the log."""
    missing: int
    """The number of items in the log that the agent did not replay."""
    first_difference: str | None = None
    """The first difference as text; `None` if there is no difference."""


class SessionUpdated(Event, frozen=True, tag="session_update"):
    kind: str
    update: Raw
    prompt_id: PromptId | None = None
    """The turn it belongs to; `None` for background and late updates."""
    after: PromptId | None = None
    """The ended turn that the update followed; set exactly on late updates."""
    echo: bool = False
    """The agent's copy of a user message that is in the log already."""
    beside: Raw | UnsetType = UNSET
    """The other members of the notification's params."""
    child: ChildId | None = None
    """The child session of the update; `None` for the session itself."""
    names: dict[str, str] = {}
    """Our ids of the sessions that it names, by the agent's ids."""


# -- the prompt, from acceptance to start --------------------------------------------------------------------


class PromptAccepted(TurnEvent, frozen=True, tag="prompt_accepted"):
    after_offset: int
    """The log's head just before this event: the offset from which a reader sees the whole turn."""
    author: str | None = None
    client_id: ClientId | None = None
    prompt_request_id: RequestId | None = None
    """The client's JSON-RPC id with its JSON type."""
    key: str | None = None
    """Idempotency key, with the digest of its request body."""
    digest: str | None = None
    meta: Raw | UnsetType = UNSET
    """The prompt's `_meta`, sent to the agent with it."""
    deadline_at: int | None = None
    """The time at which the turn is cancelled unless it has ended."""
    content: Raw | UnsetType = UNSET
    """The prompt's content, if neither its message nor its queue position is recorded with it: the agent places the
    message.
    """


class PromptQueued(TurnEvent, frozen=True, tag="pending_prompt_added"):
    content: Raw
    position: int
    """Position in the queue; 0 is next."""
    steering: bool = False
    """The agent is asked to inject it into the running turn; until the agent answers, the prompt does not start."""


class PromptUpdated(TurnEvent, frozen=True, tag="pending_prompt_updated"):
    content: Raw | UnsetType = UNSET
    position: int | None = None
    author: str | None = None


class PromptOffered(TurnEvent, frozen=True, tag="prompt_offered"):
    """A queued prompt was offered to the agent while a turn runs: the agent places it."""


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
    """The prompt was sent to the agent. The agent's ids for it are in its answer."""

    agent_request_id: RequestId


class PromptAnswered(TurnEvent, frozen=True, tag="prompt_answered"):
    """An agent that ends turns with markers has answered the prompt; its marker is still to come."""

    stop_reason: str | None = None
    usage: Raw | UnsetType = UNSET
    beside: Raw | UnsetType = UNSET


class PromptInserted(TurnEvent, frozen=True, tag="prompt_inserted"):
    """The agent answered that the message is in its conversation. `UserMessage` has its position."""

    agent_message_id: str
    beside: Raw | UnsetType = UNSET


class PromptInjected(TurnEvent, frozen=True, tag="prompt_injected"):
    """The agent injected a steering prompt into the running turn."""

    into: PromptId


class SteerDeclined(TurnEvent, frozen=True, tag="prompt_steer_declined"):
    """A steering prompt was not injected into the running turn; it waits for a separate turn."""

    reason: SteerRefusal = SteerRefusal.DECLINED


# -- the turn ------------------------------------------------------------------------------------------------


class TurnStarted(TurnEvent, frozen=True, tag="turn_started"):
    origin: Origin = Origin.CLIENT


class Awaited(Struct, frozen=True, rename="camel"):
    """An open permission request that blocks a turn."""

    request_id: PermissionId
    kind: str
    """`permission` or `elicitation`."""


class TurnBlocked(TurnEvent, frozen=True, tag="turn_blocked"):
    waits_for: tuple[Awaited, ...] | None = None
    """Open requests. `None` if the agent reports that it is blocked before it sends a request; the request repeats
    the event.
    """


class TurnUnblocked(TurnEvent, frozen=True, tag="turn_unblocked"):
    pass


class PermissionRequested(Event, frozen=True, tag="permission_request"):
    request_id: PermissionId
    agent_request_id: RequestId
    method: str
    params: Raw
    options: tuple[str, ...] = ()
    """The option ids that may be selected; empty for permission requests with free answers."""
    prompt_id: PromptId | None = None
    child: ChildId | None = None
    """The child session that asks; `None` for the session itself."""


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
    """A client asked to cancel the work of a child session. The turn of the session continues."""

    child: ChildId
    author: str | None = None
    client_id: ClientId | None = None


class Receipt(Struct, frozen=True, omit_defaults=True, gc=False):
    """Proof of the events of a turn (`session.receipts`)."""

    hash: str
    """SHA-256 of their stored bytes, in hexadecimal."""


class TerminalEvent(TurnEvent, frozen=True, kw_only=True):
    """The end of a turn. Its receipt comes last in the stored form, because it is computed over the rest."""

    receipt: Receipt | None = None
    """`None` until the event is about to be stored."""


class TurnCompleted(TerminalEvent, frozen=True, tag="turn_complete"):
    stop_reason: str
    ending: Ending
    assumed: bool | None = None
    """True if the agent reported no reason, and `stop_reason` is the equivalent of that."""
    prompt_request_id: RequestId | None = None
    usage: Raw | UnsetType = UNSET
    cancelled_by: str | None = None
    settled_by: str | None = None
    agent_stop_reason: str | None = None
    """The agent's stop reason for a cancelled turn, if it differs."""
    agent_error: Raw | UnsetType = UNSET
    """The error with which the agent answered a cancel, unchanged."""
    beside: Raw | UnsetType = UNSET
    """The other members of the message that ended it: the agent's answer, or its state."""


class TurnFailed(TerminalEvent, frozen=True, tag="turn_error"):
    code: str
    message: str
    prompt_request_id: RequestId | None = None
    exit_code: int | None = None
    signal: str | None = None
    stderr_tail: str | None = None
    agent_error: Raw | UnsetType = UNSET
    """The agent's error object, unchanged."""
    beside: Raw | UnsetType = UNSET
    """The other members of the state that ended it."""


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
"""Events that the durability level may relax. All others are on disk before any subscriber receives them."""
