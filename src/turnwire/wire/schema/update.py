"""Update kinds of `session/update`, grouped by meaning, and updates as typed views."""

from __future__ import annotations

from typing import Any, Final, TypeAlias, cast

from msgspec import Raw, json

from turnwire.errors import LocalProtocolError
from turnwire.wire.methods import SESSION_UPDATE
from turnwire.wire.schema import v1, v2
from turnwire.wire.schema.common import TurnCompleteUpdate
from turnwire.wire.schema.reading import read

Update: TypeAlias = v1.Update | v2.Update

_KINDS: Final[dict[int, Any]] = {1: v1.Update, 2: v2.Update}

FULL_STATE: Final = frozenset(
    {"available_commands_update", "config_option_update", "current_mode_update", "usage_update"}
)
"""Kinds that carry a complete state, so that a later update replaces an earlier one."""
STATES: Final = frozenset({"state_update", "state_change"})
"""Kinds that report the foreground state. The second is the lifecycle draft's name for the first."""
CURRENT_STATE: Final = FULL_STATE | STATES | {"session_info_update"}
"""Kinds that report a current state. In a replay they are news; all other kinds are history."""

TOOL_CALLS: Final = frozenset({"tool_call", "tool_call_update"})
"""Kinds that announce or change a tool call, and so may carry its status."""
ABOUT_TOOL_CALLS: Final = TOOL_CALLS | {"tool_call_content_chunk"}
"""Kinds that name a tool call. The third adds content and never a status."""
FINAL_TOOL_STATUS: Final = frozenset({"completed", "failed", "cancelled"})
"""Statuses that end a tool call. v1 has no `cancelled`."""
USER_MESSAGES: Final = frozenset({"user_message", "user_message_chunk"})
"""Kinds in which an agent repeats a user's message."""
AGENT_SPEECH: Final = frozenset({"agent_message", "agent_message_chunk", "agent_thought", "agent_thought_chunk"})
"""Kinds that carry an agent's messages and thoughts, whole or in chunks."""
MARKERS: Final = frozenset({"turn_complete", "_turn_complete"})
"""Kinds that mark the end of a turn; the second is the extension spelling."""


def update_head(session_id: str) -> bytes:
    """Return a `session/update` frame up to its update; append the update and `}}`."""
    return b'{"jsonrpc":"2.0","method":"%b","params":{"sessionId":%b,"update":' % (
        SESSION_UPDATE.encode(),
        json.encode(session_id),
    )


def decode_update(raw: Raw, version: int) -> Update:
    """Return the update as that version of ACP defines it; `Unknown` for an unknown kind.

    Raises:
        RemoteProtocolError: a required field of a known kind is missing or malformed.
        LocalProtocolError: the version does not exist.
    """
    kind = _KINDS.get(version)
    if kind is None:
        raise LocalProtocolError(f"ACP has no version {version}; give 1 or 2", version=version)
    update = cast("Update", read(raw, kind, name="session update"))
    is_end = isinstance(update, v2.StateUpdate | TurnCompleteUpdate)
    if is_end and update.stop_reason is None and b"stop_reason" in bytes(raw):
        return cast("Update", read(raw, kind, name="session update", seek_aliases=True))
    return update
