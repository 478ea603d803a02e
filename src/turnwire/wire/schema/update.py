"""Updates: the payload of `session/update`. What their kinds have in common, and one as a typed view."""

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
"""Kinds of updates that say all there is to say of something, so that a later one replaces an earlier one."""
STATES: Final = frozenset({"state_update", "state_change"})
"""Kinds of updates that say what the foreground does. The second is the lifecycle draft's name for the first."""
CURRENT_STATE: Final = FULL_STATE | STATES | {"session_info_update"}
"""Kinds of updates that say what is now. In a replay they are news; everything else in it is history."""

TOOL_CALLS: Final = frozenset({"tool_call", "tool_call_update"})
"""Kinds of updates that announce a tool call or change it, and so may say its status."""
ABOUT_TOOL_CALLS: Final = TOOL_CALLS | {"tool_call_content_chunk"}
"""Kinds of updates that name a tool call. The third brings it content and never a status."""
FINAL_TOOL_STATUS: Final = frozenset({"completed", "failed", "cancelled"})
"""Statuses that end a tool call. v1 has no `cancelled`."""
USER_MESSAGES: Final = frozenset({"user_message", "user_message_chunk"})
"""Kinds of updates in which an agent says what a user said."""
AGENT_SPEECH: Final = frozenset({"agent_message", "agent_message_chunk", "agent_thought", "agent_thought_chunk"})
"""Kinds of updates that are an agent's own words, whole or in pieces: its messages and its thoughts."""
MARKERS: Final = frozenset({"turn_complete", "_turn_complete"})
"""Kinds of updates that mark the end of a turn; the second is the spelling of an extension."""


def update_head(session_id: str) -> bytes:
    """A `session/update` up to its update, for who splices updates into frames; `}}` ends it."""
    return b'{"jsonrpc":"2.0","method":"%b","params":{"sessionId":%b,"update":' % (
        SESSION_UPDATE.encode(),
        json.encode(session_id),
    )


def decode_update(raw: Raw, version: int) -> Update:
    """The update as that version of ACP defines it; `Unknown` for a kind that it does not have.

    Raises:
        RemoteProtocolError: a kind that is known has a required field missing or malformed.
        LocalProtocolError: there is no such version.
    """
    kind = _KINDS.get(version)
    if kind is None:
        raise LocalProtocolError(f"ACP has no version {version}; give 1 or 2", version=version)
    update = cast("Update", read(raw, kind, name="session update"))
    is_end = isinstance(update, v2.StateUpdate | TurnCompleteUpdate)
    if is_end and update.stop_reason is None and b"stop_reason" in bytes(raw):
        return cast("Update", read(raw, kind, name="session update", seek_aliases=True))
    return update
