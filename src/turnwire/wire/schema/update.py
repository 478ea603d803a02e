"""Updates: the payload of `session/update` as a typed view.

Takes a raw update and the protocol version of its connection; gives the view, or `Unknown` for a kind that version
does not have. Never changes the payload.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias, cast

from msgspec import Raw

from turnwire.errors import LocalProtocolError
from turnwire.wire.schema import v1_update, v2_update
from turnwire.wire.schema.reading import read

Update: TypeAlias = v1_update.Update | v2_update.Update

_KINDS: Final[dict[int, Any]] = {1: v1_update.Update, 2: v2_update.Update}


def decode_update(raw: Raw, version: int) -> Update:
    """The update as that version of ACP defines it.

    Raises:
        RemoteProtocolError: a kind that is known has a required field missing or malformed.
        LocalProtocolError: there is no such version.
    """
    kind = _KINDS.get(version)
    if kind is None:
        raise LocalProtocolError(f"ACP has no version {version}; give 1 or 2", version=version)
    update = cast("Update", read(raw, kind, name="session update"))
    if isinstance(update, v2_update.StateUpdate) and update.stop_reason is None and b"stop_reason" in bytes(raw):
        return cast("Update", read(raw, kind, name="session update", seek_aliases=True))
    return update
