"""The contract's rules that are the same for every engine: the conditions for rejections, and their errors.

Each function receives a session's head and the caller's arguments and raises the error of the contract or returns.
It never reads or writes a log. The engines call these functions before any change.
"""

from __future__ import annotations

import secrets

from turnwire.errors import (
    AppendConflict,
    LocalProtocolError,
    LogUnavailable,
    PositionLost,
    SessionExists,
    SessionNotFound,
)
from turnwire.ids import Epoch, SessionId
from turnwire.log.base import Position, SessionHead, Snapshot


def random_epoch() -> Epoch:
    """Return a new epoch, unique among all sessions."""
    return Epoch(secrets.token_hex(8))


def is_session_id(session_id: SessionId) -> bool:
    """Return true if an id is a non-empty UTF-8 text without NUL. PostgreSQL stores no NUL in text."""
    try:
        encoded = session_id.encode()
    except UnicodeEncodeError:
        return False
    return bool(encoded) and b"\0" not in encoded


def check_session_id(session_id: SessionId) -> None:
    """Reject an invalid id."""
    if not is_session_id(session_id):
        raise LocalProtocolError("a session id is text that is not empty and has no NUL and no lone surrogates")


def check_append(current: SessionHead, expected: int) -> None:
    """Reject an append that does not follow the head (L3)."""
    if expected != current.head:
        raise AppendConflict(
            f"append to session {current.session_id!r} expected head {expected}, the log is at"
            f" {current.head}; read the head and decide again",
            session=current.session_id,
            expected=expected,
            head=current.head,
        )


def why_lost(current: SessionHead, after: Position) -> str | None:
    """Return the reason for `PositionLost`, or `None` if the position is valid."""
    if after.epoch != current.epoch:
        return "epoch"
    if after.offset > current.head:
        return "ahead"
    return "trimmed" if after.offset < current.first - 1 else None


def check_position(current: SessionHead, after: Position) -> None:
    """Reject a position that this log cannot honour (L7); it is never moved to the nearest one."""
    why = why_lost(current, after)
    if why is None:
        return
    raise PositionLost(
        f"session {current.session_id!r} cannot be read after offset {after.offset} ({why});"
        f" it keeps {current.first} to {current.head}, start again from a snapshot of the session",
        session=current.session_id,
        why=why,
        first=current.first,
        head=current.head,
    )


def check_snapshot(current: SessionHead, snapshot: Snapshot) -> None:
    """Reject a snapshot beyond the head (L8)."""
    if not 0 <= snapshot.offset <= current.head:
        raise LocalProtocolError(
            f"snapshot {snapshot.name!r} of session {current.session_id!r} is at offset {snapshot.offset},"
            f" the log ends at {current.head}",
            session=current.session_id,
            head=current.head,
        )


def not_found(session_id: SessionId) -> SessionNotFound:
    return SessionNotFound(f"no session {session_id!r} in this log", session=session_id)


def exists(session_id: SessionId) -> SessionExists:
    return SessionExists(f"session {session_id!r} is already in this log", session=session_id)


def closed() -> LogUnavailable:
    return LogUnavailable("the event log is closed; open it again")
