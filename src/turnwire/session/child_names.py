"""Child sessions in an agent's updates: their announcements, their names, and our ids of them.

A child is a session that the agent runs for another one of its sessions. `subagent_update` announces it there, and
its updates then have a separate session id. Its events are in the log of the session that clients know, tagged with
our id of the child. The ids that an update names are stored with it, so any projection can translate that update to
our ids without reading another one.

  C1  Our id of a child is the session's id, a dot and a number: unique, safe in a URL, and it names the parent.
  C2  Payloads are stored as the agent wrote them. `renamed` returns them with our ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from turnwire.ids import ChildId, SessionId
from turnwire.session.state import ChildState
from turnwire.wire.jsonrpc import UNREADABLE, raw
from turnwire.wire.schema.update import STATES

ANNOUNCES: Final = "subagent_update"
"""The update that announces a child, and later reports changes of it."""
SESSION_MESSAGES: Final = frozenset({"session_message", "session_message_chunk"})
"""Updates that are messages from one session to another."""
NAMING: Final = SESSION_MESSAGES | STATES | {ANNOUNCES}
"""Kinds of updates that may name sessions."""
_ENDS: Final = ("senderSessionId", "recipientSessionId")

_read_members = msgspec.json.Decoder(dict[str, Raw]).decode
_read_items = msgspec.json.Decoder(list[dict[str, Raw]]).decode
_read_text = msgspec.json.Decoder(str).decode
_Naming: TypeAlias = Callable[[str], str]
"""A function that maps the name of a session to another name."""


# -- ids -----------------------------------------------------------------------------------------------------


def child_id(session_id: SessionId, number: int) -> ChildId:
    """Return our id of a child of this session."""
    return ChildId(f"{session_id}.{number}")


def number_of(name: str) -> int:
    """Return the number in a child's id; 0 if it is not a child's id."""
    number = name.rpartition(".")[2]
    return int(number) if number.isdecimal() else 0


def session_of(name: str) -> SessionId | None:
    """Return the session whose child has this id; `None` if it is not a child's id."""
    session_id, dot, number = name.rpartition(".")
    return SessionId(session_id) if dot and session_id and number.isdecimal() else None


# -- announcements -------------------------------------------------------------------------------------------


class Announcement(Struct, rename="camel"):
    """The members of a `subagent_update` that decisions depend on."""

    session_id: str | None = None
    """The agent's id of the child."""
    state: Raw | UnsetType = UNSET
    capabilities: Raw | UnsetType = UNSET

    def state_after(self, before: ChildState) -> ChildState:
        """Return the child's new state. An absent state is unchanged; null means unknown."""
        if self.state is UNSET:
            return before
        return read_state(_text(_members(self.state).get("state")))

    def can_cancel_after(self, before: bool) -> bool:
        """True if the child's work can be cancelled after this announcement."""
        if self.capabilities is UNSET:
            return before
        return bytes(_members(self.capabilities).get("cancel", Raw(b"null")))[:1] == b"{"


_read_announcement = msgspec.json.Decoder(Announcement).decode


def read_announcement(update: Raw) -> Announcement:
    """Decode an announcement; an empty one if it cannot be decoded."""
    try:
        return _read_announcement(update)
    except UNREADABLE:
        return Announcement()


def read_state(state: str | None) -> ChildState:
    """Decode a state of ACP. An unknown one is not idle."""
    if state is None or state == ChildState.UNKNOWN:
        return ChildState.UNKNOWN
    return ChildState(state) if state in set(ChildState) else ChildState.RUNNING


# -- names ---------------------------------------------------------------------------------------------------


def ids_in(kind: str, update: Raw) -> list[str]:
    """Return the agent's ids of the sessions that an update names."""
    found: list[str] = []

    def seen(named: str) -> str:
        found.append(named)
        return named

    _rename(kind, _members(update), seen)
    return found


def renamed(kind: str, update: Raw, names: Mapping[str, str]) -> Raw:
    """Return the update with our ids in place of the agent's."""
    if not names:
        return update
    members = _members(update)
    return raw({**members, **_rename(kind, members, lambda named: names.get(named, named))})


def _rename(kind: str, members: dict[str, Raw], ours: _Naming) -> dict[str, object]:
    """Return the members that name sessions, with other names."""
    changed: dict[str, object] = {}
    if kind == ANNOUNCES:
        changed |= _with_name(members, "sessionId", ours)
        state = _members(members["state"]) if "state" in members else {}
        listed = _background(state, ours)
        return changed | ({"state": {**state, **listed}} if listed else {})
    if kind in STATES:
        return _background(members, ours)
    for end in _ENDS if kind in SESSION_MESSAGES else ():
        changed |= _with_name(members, end, ours)
    return changed


def _with_name(members: dict[str, Raw], name: str, ours: _Naming) -> dict[str, object]:
    named = _text(members.get(name))
    return {} if named is None else {name: ours(named)}


def _background(state: dict[str, Raw], ours: _Naming) -> dict[str, object]:
    """Return a list of background work with other names for its children."""
    try:
        items = _read_items(state["background"]) if "background" in state else []
    except UNREADABLE:
        return {}
    listed = [{**each, **(_with_name(each, "sessionId", ours))} for each in items]
    return {"background": listed} if listed != items else {}


def _members(value: Raw) -> dict[str, Raw]:
    try:
        return _read_members(value)
    except UNREADABLE:
        return {}


def _text(value: Raw | None) -> str | None:
    try:
        return None if value is None else _read_text(value)
    except UNREADABLE:
        return None
