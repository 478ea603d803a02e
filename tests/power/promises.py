"""The log's promises at each moment of a run, and the check of a log found after a power cut.

Promises (`turnwire.log.base`, L1, L2, L4, L7 and the durability levels):

- The state of a session is the one after some prefix of its changes: no event missing, changed or torn.
- A change that was acknowledged as durable is there.
- The lost part is a suffix: if a change is there, everything acknowledged before it was called is also there, in
  all sessions.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from hashlib import sha256
from typing import NamedTuple

import msgspec


class Kind(StrEnum):
    CREATE = "create"
    APPEND = "append"
    TRIM = "trim"
    DELETE = "delete"
    CLOSE = "close"


class Call(NamedTuple):
    """One change of the log, with the state of the session after it."""

    kind: Kind
    session: str
    life: int = 0
    """Number of times the session was created."""
    first: int = 1
    head: int = 0
    unsettled: bool = False
    durable: bool = False
    """It is not lost once it is acknowledged."""


class Line(NamedTuple):
    """A line of the ledger."""

    number: int
    call: Call | None
    """None: the call of this number is acknowledged."""


class Found(NamedTuple):
    """A session as found in the log after the cut."""

    life: int | None
    """None: it has no event that identifies it."""
    first: int
    head: int
    unsettled: bool


class _Entry(NamedTuple):
    call: Call
    called_at: int


def body(session: str, life: int, offset: int, last: int, size: int) -> bytes:
    """Return an event that names its position, and its append (`last` is the append's last offset)."""
    start = f"{session} {life} {offset} {last} {size} ".encode()
    return (start + sha256(start).hexdigest().encode() * (size // 64 + 1))[: max(size, len(start))]


def complaint_about(event: bytes, session: str, offset: int) -> str | None:
    """Return the error in an event that was read at an offset of a session."""
    try:
        name, life, number, last, size = event.split(b" ", 5)[:5]
        expected = body(name.decode(), int(life), int(number), int(last), int(size))
    except ValueError:
        return f"{session}: event {offset} is not one that was appended: {event[:80]!r}"
    if event != expected or name.decode() != session or int(number) != offset:
        return f"{session}: event {offset} is another one: {event[:80]!r}"
    return None


def life_and_last(event: bytes) -> tuple[int, int]:
    """Return the session's creation number for an event, and the last offset of its append."""
    _, life, _, last, _ = event.split(b" ", 4)
    return int(life), int(last)


def is_acknowledgement(line: bytes) -> bool:
    """Return True if a line of the ledger acknowledges a call."""
    return msgspec.json.decode(line, type=tuple[int, object])[1] is None


class Promises:
    """The changes of a run up to some moment."""

    def __init__(self) -> None:
        self._calls: dict[int, _Entry] = {}
        self._sessions: dict[str, list[int]] = {}
        """The numbers of each session's changes, in their order."""
        self._acknowledged: dict[int, int] = {}
        """Time of each change's acknowledgement."""
        self._now = 0

    def note(self, line: bytes) -> None:
        """Process a line of the ledger."""
        number, call = msgspec.json.decode(line, type=Line)
        self._now += 1
        if call is None:
            self._acknowledged[number] = self._now
        else:
            self._calls[number] = _Entry(call, self._now)
            self._sessions.setdefault(call.session, []).append(number)

    def complaints(self, found: dict[str, Found]) -> Iterator[str]:
        """Return the errors of the log found after a cut at this moment."""
        for name in found.keys() - self._sessions.keys():
            yield f"{name}: the session was never created"
        states = {name: self._states(name, found.get(name)) for name in self._sessions if name}
        for name, fitting in states.items():
            if not fitting:
                yield f"{name}: {found.get(name)} is not a state that the session ever had"
        if not all(states.values()):
            return
        # Two states may look the same, for example before the first create and after a delete. Use the later one
        # where changes could be missing, the earlier one where it would prove that another change is missing.
        missing = [
            number
            for name, fitting in states.items()
            for number in self._sessions[name][max(fitting) :]
            if number in self._acknowledged
        ]
        there = [
            self._calls[number].called_at
            for name, fitting in states.items()
            for number in self._sessions[name][: min(fitting)]
        ]
        closed = [
            self._calls[number].called_at for number in self._sessions.get("", ()) if number in self._acknowledged
        ]
        newest = max([*there, *closed], default=0)
        for number in missing:
            call = self._calls[number].call
            if call.durable:
                yield f"{call.session}: lost, though acknowledged as durable: {call}"
            elif self._acknowledged[number] < newest:
                yield f"{call.session}: lost, though a later change is there: {call}"

    def _states(self, name: str, found: Found | None) -> list[int]:
        """The numbers of changes of the session after which it looks like this."""
        state: Found | None = None
        fitting = [0] if found is None else list[int]()
        for count, number in enumerate(self._sessions[name], 1):
            state = _after(self._calls[number].call, state)
            if _looks_like(state, found):
                fitting.append(count)
        return fitting


def _looks_like(state: Found | None, found: Found | None) -> bool:
    if state is None or found is None:
        return state is found
    return found == (state if found.life is not None else state._replace(life=None))


def _after(call: Call, state: Found | None) -> Found | None:
    if call.kind is Kind.CREATE:
        return Found(call.life, 1, 0, unsettled=False)
    if call.kind is Kind.DELETE:
        return None
    assert state is not None
    if call.kind is Kind.TRIM:
        return state._replace(first=call.first)
    return Found(call.life, call.first, call.head, call.unsettled)
