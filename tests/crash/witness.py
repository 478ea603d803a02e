"""The independent reader of the crash test: reads a log file with plain `sqlite3` and `json`, trusts nothing else.

The input is a log file in its state after a kill, and the process's reports about it before its death; the result
is complaints, empty if all guarantees hold. It imports nothing of turnwire, so that one mistake cannot hide in
both.

A witness sees one file over all its generations. It stores a checksum of every event it has seen, so an event that
changed or vanished between two reads is found; and it folds each event once.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

HEAD = "coalesce((SELECT max(offset) FROM events WHERE session = sessions.id), first - 1)"
TERMINALS = frozenset({"turn_complete", "turn_error"})


class Accepted(NamedTuple):
    """A client's acknowledgement that its prompt is accepted."""

    session: str
    prompt_id: str
    key: str | None
    after_offset: int


class Seen(NamedTuple):
    """An event delivered to a follower."""

    session: str
    offset: int
    crc: int


class Asked(NamedTuple):
    """The agent was asked to work on a prompt."""

    prompt_id: str


Claim = Accepted | Seen | Asked


class Head(NamedTuple):
    """A row of the table `sessions`."""

    key: int
    name: str
    epoch: str
    first: int
    head: int
    unsettled: int


@dataclass
class SessionRecord:
    """One session as far as the witness has read it."""

    name: str
    epoch: str
    crcs: list[int] = field(default_factory=list[int])
    """Checksums of the events 1, 2, 3 …"""
    kinds: Counter[str] = field(default_factory=Counter[str])
    accepted: dict[str, int] = field(default_factory=dict[str, int])
    """Prompt id → offset of its `prompt_accepted`."""
    keys: dict[str, str] = field(default_factory=dict[str, str])
    """Idempotency key → prompt id."""
    open: set[str] = field(default_factory=set[str])
    """Turns without an end."""
    handed: set[str] = field(default_factory=set[str])
    """Prompts that the agent may have: their turn started, or they were offered to it while another ran."""
    ended: set[str] = field(default_factory=set[str])
    active: str | None = None
    unsettled: bool = False
    """The value in the table `sessions` at the last read."""

    def take(self, event: dict[str, Any]) -> Iterator[str]:
        """Fold the next event. Return the error in it."""
        offset = len(self.crcs)
        kind: str = event["type"]
        prompt_id: str | None = event.get("promptId")
        self.kinds[kind] += 1
        if kind == "session_created" and offset != 1:
            yield f"G1 created again at {offset}"
        if prompt_id is None:
            return
        if prompt_id in self.ended:
            yield f"G3 {kind!r} at {offset} comes after the end of {prompt_id}"
        if kind == "prompt_accepted":
            yield from self._accept(prompt_id, event, offset)
        elif kind == "turn_started":
            yield from self._start(prompt_id, event, offset)
        elif kind == "prompt_offered" and prompt_id in self.open:
            self.handed.add(prompt_id)
        elif prompt_id not in self.open and prompt_id not in self.ended:
            yield f"G3 {kind!r} at {offset} is of {prompt_id}, which was never accepted"
        if kind in TERMINALS:
            self.open.discard(prompt_id)
            self.ended.add(prompt_id)
            if self.active == prompt_id:
                self.active = None

    def _accept(self, prompt_id: str, event: dict[str, Any], offset: int) -> Iterator[str]:
        key = event.get("key")
        if prompt_id in self.accepted:
            yield f"G7 {prompt_id} is accepted again at {offset}"
        if event["afterOffset"] != offset - 1:
            yield f"G7 {prompt_id} at {offset} says that it follows {event['afterOffset']}"
        if key is not None and self.keys.setdefault(key, prompt_id) != prompt_id:
            yield f"G7 key {key!r} is {self.keys[key]} and, at {offset}, {prompt_id}"
        self.accepted[prompt_id] = offset
        self.open.add(prompt_id)

    def _start(self, prompt_id: str, event: dict[str, Any], offset: int) -> Iterator[str]:
        if self.active is not None:
            yield f"G3 {prompt_id} starts at {offset} while {self.active} is active"
        if event.get("origin", "client") == "client" and prompt_id not in self.accepted:
            yield f"G3 {prompt_id} starts at {offset} and was never accepted"
        self.active = prompt_id
        self.open.add(prompt_id)
        self.handed.add(prompt_id)


def copied(path: Path) -> sqlite3.Connection:
    """Copy the current file: a read changes nothing for the next owner. Empty if there is none."""
    copy = path.with_name(f"{path.name}.copy")
    for suffix in ("", "-wal"):
        source, target = Path(f"{path}{suffix}"), Path(f"{copy}{suffix}")
        target.unlink(missing_ok=True)
        if source.exists():
            shutil.copyfile(source, target)
    Path(f"{copy}-shm").unlink(missing_ok=True)
    return sqlite3.connect(copy)


def events_of(connection: sqlite3.Connection, key: int) -> list[tuple[int, bytes]]:
    """Return a session's events, in the order of their offsets."""
    return connection.execute("SELECT offset, body FROM events WHERE session = ? ORDER BY offset", [key]).fetchall()


class Witness:
    """Everything ever seen of one log file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sessions: dict[str, SessionRecord] = {}

    @property
    def kinds(self) -> Counter[str]:
        """Return the number of events of each kind in the file."""
        return sum((each.kinds for each in self.sessions.values()), Counter[str]())

    def active(self) -> list[tuple[str, str]]:
        """Session and prompt id of every turn that is active now."""
        return [(each.name, each.active) for each in self.sessions.values() if each.active is not None]

    # -- the file ------------------------------------------------------------------------------------------

    def look(self) -> list[str]:
        """Read the file as it is now."""
        with closing(copied(self.path)) as connection:
            if not connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'sessions'").fetchone()[0]:
                return [f"G1 session {name} is gone" for name in self.sessions]
            rows = connection.execute(f"SELECT id, name, epoch, first, {HEAD}, unsettled FROM sessions")

            def events(head: Head) -> Sequence[tuple[int, bytes]]:
                return events_of(connection, head.key)

            return list(self.compare([*map(Head._make, rows)], events))

    def compare(
        self, found: Sequence[Head], events: Callable[[Head], Sequence[tuple[int, bytes]]]
    ) -> Iterator[str]:
        """Compare the sessions of a log, and the events of each, with the earlier state."""
        heads = {head.name: head for head in found}
        for name in self.sessions.keys() - heads.keys():
            yield f"G1 session {name} is gone"
        for head in heads.values():
            record = self.sessions.setdefault(head.name, SessionRecord(head.name, head.epoch))
            yield from (f"{head.name}: {problem}" for problem in _read(record, head, events(head)))

    # -- what the dead process said --------------------------------------------------------------------------

    def hear(self, claims: Sequence[Claim]) -> list[str]:
        """Compare the reports before the kill with the file at the last read."""
        return [problem for claim in claims for problem in self._hear(claim)]

    def _hear(self, claim: Claim) -> Iterator[str]:
        if isinstance(claim, Asked):
            if not any(claim.prompt_id in each.handed for each in self.sessions.values()):
                yield f"G2 the agent was asked {claim.prompt_id}, and the log does not say that it has it"
            return
        record = self.sessions.get(claim.session, SessionRecord(claim.session, ""))
        if isinstance(claim, Seen):
            if claim.offset > len(record.crcs) or record.crcs[claim.offset - 1] != claim.crc:
                yield f"{claim.session}: G2 event {claim.offset} was seen and is not in the log"
        elif record.accepted.get(claim.prompt_id) != claim.after_offset + 1:
            yield f"{claim.session}: G7 {claim.prompt_id} was accepted after {claim.after_offset} and is not there"
        elif claim.key is not None and record.keys.get(claim.key) != claim.prompt_id:
            yield f"{claim.session}: G7 key {claim.key!r} was accepted as {claim.prompt_id}"

    def recovered(self, active: Sequence[tuple[str, str]]) -> list[str]:
        """Check a new owner's report that it has recovered: the turns that were active before it have ended."""
        return [
            f"{session}: G3 {prompt_id} was interrupted and recovery did not end it"
            for session, prompt_id in active
            if prompt_id not in self.sessions[session].ended
        ]

    def settled(self) -> list[str]:
        """Check after a clean exit of the last owner that nothing is owed any more."""
        found: list[str] = []
        for record in self.sessions.values():
            found += [f"{record.name}: G3 {prompt_id} has no end" for prompt_id in sorted(record.open)]
            if record.unsettled and not record.open:
                found.append(f"{record.name}: G3 the session is still marked as unsettled")
        return found


def _read(record: SessionRecord, head: Head, rows: Sequence[tuple[int, bytes]]) -> Iterator[str]:
    """Read one session: new events are folded, known ones must not have changed."""
    offsets = [offset for offset, _ in rows]
    if head.first != 1 or offsets != list(range(1, head.head + 1)):
        yield f"G1 offsets are not 1..{head.head}: {len(offsets)} of them, first {offsets[:1]}, last {offsets[-1:]}"
    if head.epoch != record.epoch:
        yield f"G1 the epoch was {record.epoch} and is {head.epoch}"
    if len(rows) < len(record.crcs):
        yield f"G1 the log had {len(record.crcs)} events and has {len(rows)}"
    for (offset, body), crc in zip(rows, record.crcs, strict=False):
        if crc32(body) != crc:
            yield f"G1 event {offset} has changed"
    for _, body in rows[len(record.crcs) :]:
        record.crcs.append(crc32(body))
        yield from record.take(json.loads(body))
    record.unsettled = bool(head.unsettled)
    if record.open and not record.unsettled:
        yield f"G3 {sorted(record.open)} are open in a session that is not marked as unsettled"
