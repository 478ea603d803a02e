"""Child sessions in what an agent says: how they are announced, where they are named, and what we call them.

A child is a session that the agent runs for another one of its sessions. It is announced there by
`subagent_update`, and then speaks under an id of its own. Its events stand in the log of the session that clients
know, tagged with our id of the child. What an update names by the agent's ids is stored beside it, so that whoever
shows an update needs no other to say it in ours.

    C1  Our id of a child is the session's id, a dot and a number: unique, safe in a URL, and it says whose child
        it is.
    C2  Payloads are stored as the agent wrote them. `renamed` gives them with our ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from turnwire.core.state import ChildState
from turnwire.ids import ChildId, SessionId
from turnwire.wire.jsonrpc import UNREADABLE, raw
from turnwire.wire.schema.update import STATES

ANNOUNCES: Final = "subagent_update"
"""The update that announces a child, and later says what has changed of it."""
SESSION_MESSAGES: Final = frozenset({"session_message", "session_message_chunk"})
"""Updates that are messages from one session to another."""
NAMING: Final = SESSION_MESSAGES | STATES | {ANNOUNCES}
"""Kinds of updates that may name sessions."""
_ENDS: Final = ("senderSessionId", "recipientSessionId")

_read_members = msgspec.json.Decoder(dict[str, Raw]).decode
_read_items = msgspec.json.Decoder(list[dict[str, Raw]]).decode
_read_text = msgspec.json.Decoder(str).decode
_Naming: TypeAlias = Callable[[str], str]
"""Another name for a session that an update names."""


# -- ids -----------------------------------------------------------------------------------------------------


def child_id(session_id: SessionId, number: int) -> ChildId:
    """What we call a child of this session."""
    return ChildId(f"{session_id}.{number}")


def number_of(name: str) -> int:
    """The number in the id of a child; 0 if it is none."""
    number = name.rpartition(".")[2]
    return int(number) if number.isdecimal() else 0


def session_of(name: str) -> SessionId | None:
    """The session whose child has this id; none if it is no child's."""
    session_id, dot, number = name.rpartition(".")
    return SessionId(session_id) if dot and session_id and number.isdecimal() else None


# -- announcements -------------------------------------------------------------------------------------------


class Announcement(Struct, rename="camel"):
    """What a `subagent_update` says that decisions depend on."""

    session_id: str | None = None
    """The agent's id of the child."""
    state: Raw | UnsetType = UNSET
    capabilities: Raw | UnsetType = UNSET

    def state_after(self, before: ChildState) -> ChildState:
        """What the child does now. Left out it is as before, and null leaves it unconfirmed."""
        if self.state is UNSET:
            return before
        return read_state(_text(_members(self.state).get("state")))

    def can_cancel_after(self, before: bool) -> bool:
        """Whether the child's work can be cancelled now."""
        if self.capabilities is UNSET:
            return before
        return bytes(_members(self.capabilities).get("cancel", Raw(b"null")))[:1] == b"{"


_read_announcement = msgspec.json.Decoder(Announcement).decode


def read_announcement(update: Raw) -> Announcement:
    """What is announced; nothing if it cannot be read."""
    try:
        return _read_announcement(update)
    except UNREADABLE:
        return Announcement()


def read_state(state: str | None) -> ChildState:
    """A state in ACP's words. One that is not known is not idle."""
    if state is None or state == ChildState.UNKNOWN:
        return ChildState.UNKNOWN
    return ChildState(state) if state in set(ChildState) else ChildState.RUNNING


# -- names ---------------------------------------------------------------------------------------------------


def ids_in(kind: str, update: Raw) -> list[str]:
    """The agent's ids of sessions that an update names."""
    found: list[str] = []

    def seen(named: str) -> str:
        found.append(named)
        return named

    _rename(kind, _members(update), seen)
    return found


def renamed(kind: str, update: Raw, names: Mapping[str, str]) -> Raw:
    """The update with our ids in the place of the agent's."""
    if not names:
        return update
    members = _members(update)
    return raw({**members, **_rename(kind, members, lambda named: names.get(named, named))})


def _rename(kind: str, members: dict[str, Raw], ours: _Naming) -> dict[str, object]:
    """The members that name sessions, with other names."""
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
    """A list of background work with other names for the children in it."""
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
