"""The rules of the contract that are the same for every engine: when to refuse, and with what.

Takes a session's head and what a caller asks; raises the error of the contract or returns. Never reads or
writes a log. The engines call these before they touch anything.
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
    """An epoch that no other life of any session has had."""
    return Epoch(secrets.token_hex(8))


def is_session_id(session_id: SessionId) -> bool:
    """Whether an id can be written as UTF-8 text, has no NUL, and is one. PostgreSQL keeps no NUL in text."""
    try:
        encoded = session_id.encode()
    except UnicodeEncodeError:
        return False
    return bool(encoded) and b"\0" not in encoded


def check_session_id(session_id: SessionId) -> None:
    """Refuse what is no id."""
    if not is_session_id(session_id):
        raise LocalProtocolError("a session id is text that is not empty and has no NUL and no lone surrogates")


def check_append(current: SessionHead, expected: int) -> None:
    """L3: an append follows the head or is refused."""
    if expected != current.head:
        raise AppendConflict(
            f"append to session {current.session_id!r} expected head {expected}, the log is at"
            f" {current.head}; read the head and decide again",
            session=current.session_id,
            expected=expected,
            head=current.head,
        )


def why_lost(current: SessionHead, after: Position) -> str | None:
    """Why a position cannot be honoured, as `PositionLost` names it; none if it can."""
    if after.epoch != current.epoch:
        return "epoch"
    if after.offset > current.head:
        return "ahead"
    return "trimmed" if after.offset < current.first - 1 else None


def check_position(current: SessionHead, after: Position) -> None:
    """L7: a position that this log cannot honour is refused, never bent to the nearest one."""
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
    """L8: a fold of events that are not in the log is no fold."""
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
