"""A log with one damaged byte is rejected or reported; no reader ever gets an event that was not appended.

The damage is at a random position of each page of the database, and of each frame of its write-ahead log.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple

import anyio
import pytest
from tests.power.cuts import MEMORY, SEED

from turnwire.errors import LogCorrupt, LogVersionMismatch
from turnwire.ids import SessionId
from turnwire.limits import Limits, MiB
from turnwire.log.base import Position, SessionHead, Snapshot
from turnwire.log.sqlite import SqliteEventLog
from turnwire.log.sqlite_writer import Durability
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

ROUNDS = int(os.environ.get("FLIP_ROUNDS", "6"))
"""Flips of each page."""
PAGE, FRAME, WAL_HEADER = 4096, 4096 + 24, 32


class Content(NamedTuple):
    """All content of the log about one session."""

    head: SessionHead
    events: list[bytes]
    snapshot: Snapshot | None


async def fill(log: SqliteEventLog) -> None:
    """Create a session of each kind: with many small events, with large ones, trimmed, unsettled, empty,
    deleted.
    """
    chance = Random(1)
    for number, kind in enumerate(("small", "large", "trimmed", "unsettled", "empty", "deleted")):
        name, head = SessionId(kind), 0
        await log.create(name)
        while kind != "empty" and head < 60:
            size = chance.randint(2000, 20_000) if kind == "large" else chance.randint(1, 300)
            bodies = [b'{"text":"%b"}' % chance.randbytes(size // 2).hex().encode() for _ in range(1 + head % 4)]
            head = await log.append(name, bodies, expected=head, unsettled=True, durable=False)
        # An append that changes nothing else is found missing only if one comes after it that does.
        await log.append(name, [], expected=head, unsettled=False, durable=False)
        if kind == "unsettled":
            head = await log.append(name, [b"{}"], expected=head, unsettled=True, durable=False)
        await log.save_snapshot(name, Snapshot("fold", head, 1, chance.randbytes(100 * number)))
    await log.trim(SessionId("trimmed"), upto=33)
    await log.delete(SessionId("deleted"))


async def content_of(path: Path) -> dict[str, Content]:
    """Read all of a log. Raises `LogCorrupt` or `LogVersionMismatch` if the log reports its damage."""
    content: dict[str, Content] = {}
    async with opened(path) as log:
        for head in await log.sessions():
            events: list[bytes] = []
            while head.first + len(events) <= head.head:
                after = Position(head.epoch, head.first - 1 + len(events))
                events += [
                    each.body for each in await log.read(head.session_id, after, max_events=50, max_bytes=MiB)
                ]
            snapshot = await log.load_snapshot(head.session_id, "fold")
            content[head.session_id] = Content(head, events, snapshot)
    return content


@asynccontextmanager
async def opened(path: Path) -> AsyncGenerator[SqliteEventLog]:
    async with await SqliteEventLog.open(path, limits=Limits(), durability=Durability.NORMAL) as log:
        yield log


def flipped(source: Path, target: Path, suffix: str, offset: int, mask: int) -> None:
    """Copy the files of a log, with one byte changed."""
    for each in ("", "-wal"):
        if Path(f"{source}{each}").exists():
            shutil.copyfile(f"{source}{each}", f"{target}{each}")
    with Path(f"{target}{suffix}").open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ mask]))


async def wrong_after(source: Path, suffix: str, offset: int, mask: int) -> dict[str, Content] | None:
    """Return the content of the log with one byte changed; None if the log reports the damage."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        target = Path(place, "log.db")
        flipped(source, target, suffix, offset, mask)
        with anyio.fail_after(WAIT_S):
            try:
                return await content_of(target)
            except (LogCorrupt, LogVersionMismatch):
                return None


async def test_a_flipped_byte_in_the_database_is_reported_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with opened(path) as log:
        await fill(log)
    original = await content_of(path)
    chance = Random(SEED)
    reported = harmless = 0
    for page in range(path.stat().st_size // PAGE):
        for _ in range(ROUNDS):
            offset, mask = page * PAGE + chance.randrange(PAGE), chance.randrange(1, 256)
            found = await wrong_after(path, "", offset, mask)
            reported += found is None
            harmless += found is not None
            complaint = difference(original, found)
            assert not complaint, f"byte {offset} ^ {mask:#x} of POWER_SEED={SEED}: {complaint}"
    assert reported > 50, (reported, harmless)


def difference(original: dict[str, Content], found: dict[str, Content] | None) -> str:
    """Return the error in a log that reported nothing."""
    if found is None:
        return ""
    if found.keys() != original.keys():
        return f"there are the sessions {sorted(found)}"
    for name, (head, events, snapshot) in found.items():
        if (head, events) != original[name][:2]:
            return f"session {name} is {head}, or has other events"
        # A snapshot is a cache: one that is lost is made again.
        if snapshot not in (None, original[name].snapshot):
            return f"session {name} has another snapshot"
    return ""


async def test_a_flipped_byte_in_the_write_ahead_log_leaves_a_prefix(tmp_path: Path) -> None:
    """As after a power cut, SQLite treats the damaged frame as the end of the log."""
    path, copy = tmp_path / "log.db", tmp_path / "copy.db"
    async with opened(path) as log:
        await fill(log)
        for each in ("", "-wal"):
            shutil.copyfile(f"{path}{each}", f"{copy}{each}")
    original = await content_of(path)
    size = os.stat(f"{copy}-wal").st_size
    chance = Random(SEED)
    for begin in [0, *range(WAL_HEADER, size, FRAME)]:
        length = min(FRAME if begin else WAL_HEADER, size - begin)
        offset, mask = begin + chance.randrange(length), chance.randrange(1, 256)
        found = await wrong_after(copy, "-wal", offset, mask)
        for name, (head, events, _) in (found or {}).items():
            before = original.get(name)
            if before is None or before.head.epoch != head.epoch:
                assert name == "deleted", f"byte {offset} ^ {mask:#x} of POWER_SEED={SEED}: session {name}"
                continue
            kept = events[before.head.first - head.first :]
            assert kept == before.events[: len(kept)], f"byte {offset} ^ {mask:#x} of POWER_SEED={SEED}: {head}"
