"""The contract of an agent's session store, and a store in memory.

Sessions are saved as `Kept` and their histories as JSON updates, for load, resume, fork and list. State and updates
are not inspected. `turnwire.agent.folder_store` stores them on disk.

Obligations of a store:

T1  `load` returns exactly what `save` stored: the old record or the new one, never a mixture.
T2  Updates are returned in the order of their appends, each once; those of one append together, or a prefix of
    them after a crash.
T3  `append` to a session that was never saved, or was deleted, raises `SessionNotFound` and restores nothing; so
    does `save` of any revision but the first.
T4  `delete` is final and may be repeated.
T5  `list` returns the newest first, without history and state. Pages follow each other without gaps and repeats,
    unless a session changes in between; such a session may be listed again.
T6  `save` accepts the first revision of a session that does not exist, and of an existing one only the revision
    after the stored one. Any other raises `AppendConflict` and changes nothing, so that no process overwrites a
    change that it has not seen. Check and write are one step, for all that share the store.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from turnwire.errors import AppendConflict, ConfigError, RequestRefused, SessionNotFound
from turnwire.wire.jsonrpc import INVALID_PARAMS

PAGE = 50
"""Sessions per page, unless asked otherwise: more than a person reads in a list."""

FIRST = 1
"""The revision of a record that was saved once."""

OptionValue: TypeAlias = str | bool


class Kept(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stored session."""

    id: str
    cwd: str
    directories: tuple[str, ...] = ()
    title: str | None = None
    updated_at: str = ""
    """Time of the last change, in ISO 8601 and UTC, always with the same number of digits."""
    mode: str | None = None
    options: dict[str, OptionValue] = {}
    """The chosen value of each config option."""
    state: dict[str, Any] = {}
    """The author's own memory. Anything that JSON can hold."""
    revision: int = FIRST
    """Number of saves including this one: the saver adds one to the revision that it loaded or saved last."""
    history: tuple[bytes, ...] = ()
    """Only `load` fills it. `save` does not look at it."""


class Page(Struct, frozen=True):
    """Some sessions, and the cursor of the next page; `None` at the end."""

    sessions: list[Kept]
    next_cursor: str | None = None


class SessionStore(Protocol):
    """Stores the sessions of an agent. See the obligations above."""

    async def save(self, record: Kept) -> None:
        """Save a new session, or the changes of one. Its history is unaffected.

        Raises `AppendConflict` if another process saved it since, `SessionNotFound` if it was deleted,
        `ConfigError` if its state is not JSON; then the old record stays.
        """
        ...

    async def append(self, session_id: str, updates: Sequence[bytes]) -> None:
        """Add to the end of a history. Raises `SessionNotFound`."""
        ...

    async def load(self, session_id: str) -> Kept | None:
        """Return a session with its history, or `None`."""
        ...

    async def list(self, cwd: str | None = None, cursor: str | None = None, limit: int = PAGE) -> Page:
        """Return a page of sessions, all or those of one working directory. Raises `RequestRefused` for a bad
        cursor.
        """
        ...

    async def delete(self, session_id: str) -> None:
        """Forget a session."""
        ...


class MemoryStore:
    """Sessions that end with the process. The default of an agent."""

    def __init__(self) -> None:
        self._records: dict[str, Kept] = {}
        self._histories: dict[str, list[bytes]] = {}

    async def save(self, record: Kept) -> None:
        """Save a copy, which later changes by the author do not affect. Raises as `SessionStore` states."""
        copied = msgspec.json.decode(encoded(record.state))
        known = self._records.get(record.id)
        check_revision(record.revision, None if known is None else known.revision)
        self._records[record.id] = msgspec.structs.replace(record, state=copied, history=())
        self._histories.setdefault(record.id, [])

    async def append(self, session_id: str, updates: Sequence[bytes]) -> None:
        """Add to the end of a history. Raises `SessionNotFound`."""
        history = self._histories.get(session_id)
        if history is None:
            raise unknown_session()
        history.extend(updates)

    async def load(self, session_id: str) -> Kept | None:
        """Return a session with its history, or `None`."""
        record = self._records.get(session_id)
        if record is None:
            return None
        copied = msgspec.json.decode(msgspec.json.encode(record.state))
        return msgspec.structs.replace(record, state=copied, history=tuple(self._histories[session_id]))

    async def list(self, cwd: str | None = None, cursor: str | None = None, limit: int = PAGE) -> Page:
        """Return a page of sessions. Raises `RequestRefused` for a bad cursor."""
        return page_of(self._records.values(), cwd, cursor, limit)

    async def delete(self, session_id: str) -> None:
        """Forget a session."""
        self._records.pop(session_id, None)
        self._histories.pop(session_id, None)


def encoded(value: object) -> bytes:
    """Encode as JSON. Raises `ConfigError` if that is impossible."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError):
        raise ConfigError("the session's state holds something that JSON cannot; keep plain values") from None


def unknown_session() -> SessionNotFound:
    """Return the error that `append` raises for an unknown session."""
    return SessionNotFound("the store has no such session; save it first")


def check_revision(revision: int, known: int | None) -> None:
    """Hold T6 and T3. `known`: of the record that is there. Raises `AppendConflict`, `SessionNotFound`."""
    if known is None and revision > FIRST:
        raise unknown_session()
    if revision != (known or 0) + 1:
        raise AppendConflict("somebody else has saved the session since; load it, and save on top of that")


def page_of(records: Iterable[Kept], cwd: str | None, cursor: str | None, limit: int) -> Page:
    """Return the page after a cursor, newest first, for any store that can list all its sessions."""
    behind = None if cursor is None else _read_cursor(cursor)
    found = [each for each in records if cwd is None or each.cwd == cwd]
    found.sort(key=_place, reverse=True)
    if behind is not None:
        found = [each for each in found if _place(each) < behind]
    shown = [msgspec.structs.replace(each, state={}, history=()) for each in found[: max(limit, 1)]]
    return Page(shown, _cursor(shown[-1]) if len(found) > len(shown) else None)


def _place(record: Kept) -> tuple[str, str]:
    return record.updated_at, record.id


def _cursor(record: Kept) -> str:
    return urlsafe_b64encode(msgspec.json.encode(_place(record))).decode()


def _read_cursor(cursor: str) -> tuple[str, str]:
    try:
        return msgspec.json.decode(urlsafe_b64decode(cursor.encode()), type=tuple[str, str])
    except (msgspec.MsgspecError, binascii.Error, UnicodeError):
        raise RequestRefused(
            "the cursor is not one of this agent; leave it out to begin with the newest session",
            jsonrpc=INVALID_PARAMS,
            reason="bad_cursor",
        ) from None
