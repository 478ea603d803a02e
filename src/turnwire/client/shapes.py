"""What `DaemonClient` gives: the answers of the daemon's contract as structs.

Takes JSON as the contract names it, camelCase outside and snake_case here. Members that are not known are ignored,
and those that an older daemon does not send have a default.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from turnwire.ids import ClientId, PromptId, SessionId


class Envelope(Struct, rename="camel"):
    """One event of a session, or one frame that was made for this stream."""

    type: str
    data: dict[str, Any] = {}
    id: int | None = None
    """Its place in the session's log; none for a frame that was made for this stream."""
    v: int = 1
    prompt_id: PromptId | None = None
    late: bool = False
    author: str | None = None
    originator_client_id: ClientId | None = None
    meta: dict[str, Any] = field(name="_meta", default_factory=dict[str, Any])


class PromptResult(Struct, frozen=True, kw_only=True):
    """How a prompt's turn ended."""

    stop_reason: str
    prompt_id: PromptId | None = None
    """None from an old daemon, which gives prompts no id."""
    usage: dict[str, Any] | None = None
    ending: str | None = None
    """Which fact ended it, if the daemon says so."""
    event_id: int | None = None
    """Where its end is in the log; none if it was heard in another way than by the stream."""


class OpenedSession(Struct, rename="camel"):
    """A session that was created, loaded or resumed."""

    session_id: SessionId
    client_id: ClientId | None = None
    workspace_cwd: str | None = None
    attached: bool = False
    created_at: int | str | None = None
    has_active_prompt: bool = False
    last_event_id: int = 0
    event_epoch: str | None = None
    state: Any = None
    """Models, modes and config options, as the agent offers them."""
    compacted_replay: list[Envelope] = []
    live_journal: list[Envelope] = []
    prompt_terminals: list[dict[str, Any]] = []


class SessionStatus(Struct, rename="camel"):
    """What goes on in a session."""

    client_count: int = 0
    has_active_prompt: bool = False
    is_waiting_for_permission: bool = False
    pending_interactions: list[Any] = []
    has_turn_error: bool = False
    turn_error: Any = None
    created_at: int | str | None = None
    updated_at: int | str | None = None


class Failure(Struct, kw_only=True, rename="camel"):
    """Why a turn failed."""

    code: str = "turn_error"
    message: str = "no reason was given"
    exit_code: int | None = None
    signal: str | None = None
    stderr_tail: str | None = None
    agent_error: Any = None
    """The error object of the agent."""


class TurnStatus(Struct, rename="camel"):
    """One turn, as far as it has come."""

    state: str
    """`idle`, `queued`, `running`, `completed`, `cancelled`, `error`."""
    prompt_id: PromptId | None = None
    stop_reason: str | None = None
    prompt_text: str | None = None
    result_text: str | None = None
    usage: dict[str, Any] | None = None
    error: Failure | None = None
    queued_at: int | str | None = None
    started_at: int | str | None = None
    ended_at: int | str | None = None

    @property
    def is_over(self) -> bool:
        return self.state in ("completed", "cancelled", "error")
