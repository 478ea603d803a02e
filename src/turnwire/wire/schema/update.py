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
