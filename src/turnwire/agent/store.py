"""Where an agent keeps its sessions: the contract, and a store in memory.

Takes sessions as `Kept` and their histories as JSON, one update each; gives them back for load, resume, fork and
list. Never looks into a state or an update. `turnwire.agent.folder_store` keeps the same on disk.

Obligations of a store:

T1  What `save` took is what `load` gives, whole: the old record or the new one, never a mixture.
T2  Updates come back in the order of their appends, each once; those of one append together, or a first part of
    them after a crash.
T3  `append` to a session that was never saved, or was deleted, raises `SessionNotFound` and brings nothing back; so
    does `save` of any revision but the first.
T4  `delete` is final and may be repeated.
T5  `list` gives the newest first, without history and state. Pages follow each other without a gap and without a
    repetition, unless a session changes in between; such a session may be given again.
T6  `save` takes the first revision of a session that is not there, and of one that is there only the revision after
    the one that it has. Any other raises `AppendConflict` and changes nothing, so that nobody writes over what they
    have not seen. Looking and writing are one step, for all who share the store.
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
    """One session as a store keeps it."""

    id: str
    cwd: str
    directories: tuple[str, ...] = ()
    title: str | None = None
    updated_at: str = ""
    """When it last changed, in ISO 8601 and UTC, always with the same number of digits."""
    mode: str | None = None
    options: dict[str, OptionValue] = {}
    """The chosen value of each config option."""
    state: dict[str, Any] = {}
    """The author's own memory. Anything that JSON can hold."""
    revision: int = FIRST
    """How often it was saved, this time included: whoever saves adds one to what was loaded or saved last."""
    history: tuple[bytes, ...] = ()
    """Only `load` fills it. `save` does not look at it."""


class Page(Struct, frozen=True):
    """Some sessions, and the cursor of those behind them; `None` when there are no more."""

    sessions: list[Kept]
    next_cursor: str | None = None


class SessionStore(Protocol):
    """Keeps the sessions of an agent. See the obligations above."""

    async def save(self, record: Kept) -> None:
        """Keep a session, or what has changed of it. Its history stays as it is.

        Raises `AppendConflict` if somebody else saved it since, `SessionNotFound` if it was deleted, `ConfigError`
        if JSON cannot hold its state; then the old record stays.
        """
        ...

    async def append(self, session_id: str, updates: Sequence[bytes]) -> None:
        """Add to the end of a history. Raises `SessionNotFound`."""
        ...

    async def load(self, session_id: str) -> Kept | None:
        """A session with its history; `None` if there is none."""
        ...

    async def list(self, cwd: str | None = None, cursor: str | None = None, limit: int = PAGE) -> Page:
        """A page of sessions, all or those of one working directory. Raises `RequestRefused` for a bad cursor."""
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
        """Keep a copy: what the author changes later is not saved yet. Raises as `SessionStore` says."""
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
        """A session with its history; `None` if there is none."""
        record = self._records.get(session_id)
        if record is None:
            return None
        copied = msgspec.json.decode(msgspec.json.encode(record.state))
        return msgspec.structs.replace(record, state=copied, history=tuple(self._histories[session_id]))

    async def list(self, cwd: str | None = None, cursor: str | None = None, limit: int = PAGE) -> Page:
        """A page of sessions. Raises `RequestRefused` for a bad cursor."""
        return page_of(self._records.values(), cwd, cursor, limit)

    async def delete(self, session_id: str) -> None:
        """Forget a session."""
        self._records.pop(session_id, None)
        self._histories.pop(session_id, None)


def encoded(value: object) -> bytes:
    """As JSON. Raises `ConfigError` if it cannot be that."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError):
        raise ConfigError("the session's state holds something that JSON cannot; keep plain values") from None


def unknown_session() -> SessionNotFound:
    """What `append` raises."""
    return SessionNotFound("the store has no such session; save it first")


def check_revision(revision: int, known: int | None) -> None:
    """Hold T6 and T3. `known`: of the record that is there. Raises `AppendConflict`, `SessionNotFound`."""
    if known is None and revision > FIRST:
        raise unknown_session()
    if revision != (known or 0) + 1:
        raise AppendConflict("somebody else has saved the session since; load it, and save on top of that")


def page_of(records: Iterable[Kept], cwd: str | None, cursor: str | None, limit: int) -> Page:
    """The page behind a cursor, newest first. For any store that can name all its sessions."""
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
