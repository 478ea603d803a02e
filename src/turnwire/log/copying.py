"""Copying a log into another one, of any engine: every session with its epoch and its offsets, verified by hash.

Both logs are open; the source is read through the contract and written to the target. So cursors of clients,
webhooks and indexes stay valid. A copy may be interrupted at any time and restarted: events that exist already are
not copied again. No other process may write to either log meanwhile.

Beyond the contract it needs one method, `restore`: it creates a session with a given epoch that begins after the
events its log no longer stores.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import NamedTuple, Protocol, runtime_checkable

from turnwire.errors import AppendConflict, LogCorrupt, SessionNotFound
from turnwire.ids import Epoch, SessionId
from turnwire.log.base import EventLog, Position, SessionHead, Stored

PAGE_EVENTS, PAGE_BYTES = 1024, 4 << 20
"""Bounds of the events held in memory, which are stored with one append."""


@runtime_checkable
class RestorableLog(EventLog, Protocol):
    """A log into which another one can be copied. All engines of turnwire are."""

    async def restore(self, session_id: SessionId, epoch: Epoch, first: int) -> SessionHead:
        """Create a log with this epoch, whose first event will have the offset `first`. Raises `SessionExists`."""
        ...


class Progress(NamedTuple):
    """The progress of a copy."""

    sessions: int
    """Number of finished sessions."""
    events: int
    """Number of copied events, without those that existed already."""
    session_id: SessionId
    """The current session."""


class Copied(NamedTuple):
    """The result of a copy."""

    sessions: int
    events: int
    """Number of events copied now."""
    digest: str
    """SHA-256 over all sessions of the source with all their events; the target's is the same."""


async def copy_log(
    source: EventLog, target: RestorableLog, snapshots: Sequence[str], tell: Callable[[Progress], None]
) -> Copied:
    """Copy the complete source into the target. `snapshots` names the folds that are stored for a session.

    Raises:
        AppendConflict: The target has another session of the same id, or has newer events.
        LogCorrupt: The data read back differ from the data written.
    """
    sessions = events = 0
    whole = hashlib.sha256()
    async with aclosing(every_session(source)) as heads:
        async for head in heads:
            tell(Progress(sessions, events, head.session_id))
            await _begin(target, head)
            async for count in _copy_events(source, target, head):
                events += count
                tell(Progress(sessions, events, head.session_id))
            for name in snapshots:
                snapshot = await source.load_snapshot(head.session_id, name)
                if snapshot is not None:
                    await target.save_snapshot(head.session_id, snapshot)
            digest = await session_digest(source, head)
            if digest != await session_digest(target, await target.head(head.session_id)):
                raise LogCorrupt(
                    f"session {head.session_id!r} reads differently from the copy; delete the copy and begin again",
                    session=head.session_id,
                )
            whole.update(digest)
            sessions += 1
    return Copied(sessions, events, whole.hexdigest())


async def every_session(log: EventLog) -> AsyncGenerator[SessionHead]:
    """Yield all sessions, in order of their id."""
    after: SessionId | None = None
    while page := await log.sessions(after=after):
        for head in page:
            yield head
        after = page[-1].session_id


async def session_digest(log: EventLog, head: SessionHead) -> bytes:
    """Return the SHA-256 of a session: its id, epoch, offsets, mark, and every event with its length."""
    digest = hashlib.sha256("\0".join(map(str, head)).encode())
    async with aclosing(_pages(log, head, head.first - 1)) as pages:
        async for page in pages:
            for each in page:
                digest.update(b"%d %d\0" % (each.offset, len(each.body)))
                digest.update(each.body)
    return digest.digest()


async def _begin(target: RestorableLog, head: SessionHead) -> None:
    try:
        there = await target.head(head.session_id)
    except SessionNotFound:
        await target.restore(head.session_id, head.epoch, head.first)
        return
    if there.epoch != head.epoch or there.head > head.head:
        raise AppendConflict(
            f"the target has a session {head.session_id!r} that is not the source's, or has gone on;"
            " delete it there, or give an empty target",
            session=head.session_id,
        )
    if there.first < head.first and there.head < head.first - 1:
        # The source has trimmed the events with which the copy would continue.
        await target.delete(head.session_id)
        await target.restore(head.session_id, head.epoch, head.first)
    elif there.first < head.first:
        await target.trim(head.session_id, upto=head.first - 1)


async def _copy_events(source: EventLog, target: EventLog, head: SessionHead) -> AsyncGenerator[int]:
    there = await target.head(head.session_id)
    at = there.head
    async with aclosing(_pages(source, head, at)) as pages:
        async for page in pages:
            at = await _append(target, head, [each.body for each in page], at)
            yield len(page)
    if (await target.head(head.session_id)).unsettled != head.unsettled:
        await _append(target, head, [], at)


async def _append(target: EventLog, head: SessionHead, bodies: Sequence[bytes], at: int) -> int:
    return await target.append(head.session_id, bodies, expected=at, unsettled=head.unsettled, durable=False)


async def _pages(log: EventLog, head: SessionHead, after: int) -> AsyncGenerator[list[Stored]]:
    while after < head.head:
        position = Position(head.epoch, after)
        page = await log.read(head.session_id, position, max_events=PAGE_EVENTS, max_bytes=PAGE_BYTES)
        yield page
        after = page[-1].offset
