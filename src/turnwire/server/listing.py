"""Lists of sessions: name, directory, age and standing, without opening each of them.

Takes what a caller wants to see; gives entries in the order of the session ids, a page at a time. Never loads a
session into memory: one that is not there has no turn.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct

from turnwire.core.state import NOTHING, Phase, SessionState
from turnwire.errors import PositionLost, SessionNotFound
from turnwire.ids import SessionId
from turnwire.server.daemon import Daemon
from turnwire.server.door.identity import Identity

MOST_LOOKED_AT = 1000
"""Sessions that one page looks at; a page that found too few says where to go on."""

Standing: TypeAlias = Literal["idle", "running", "requires_action", "cancelling", "closed"]

_STANDINGS: dict[str, Standing] = {
    "running": "running",
    "requires_action": "requires_action",
    "cancelling": "cancelling",
}


class SessionEntry(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A session in a list. `title` and `displayName` are the same."""

    session_id: SessionId
    workspace_cwd: str
    cwd: str
    title: str | None = None
    display_name: str | None = None
    created_at: str
    updated_at: str
    state: Standing
    has_active_prompt: bool
    is_waiting_for_permission: bool
    client_count: int
    """Attached clients, there or not."""
    closed: bool
    additional_directories: list[str] = []


class Wanted(NamedTuple):
    """Which sessions are listed."""

    cwd: str | None = None
    below: bool = False
    """Also those in directories below `cwd`."""
    state: Standing | Literal["open"] | None = None

    def takes(self, entry: SessionEntry) -> bool:
        if self.cwd is not None and entry.cwd != self.cwd and not (self.below and _is_below(entry.cwd, self.cwd)):
            return False
        if self.state is None:
            return True
        return not entry.closed if self.state == "open" else entry.state == self.state


def _is_below(path: str, directory: str) -> bool:
    return path.startswith(directory.rstrip("/") + "/")


def iso(at_ms: int) -> str:
    """A time as clients of this contract read it."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def page(
    daemon: Daemon, who: Identity, wanted: Wanted, after: SessionId | None, size: int
) -> tuple[list[SessionEntry], SessionId | None]:
    """Entries after a session id, and the id to go on after; none when there are no more."""
    found: list[SessionEntry] = []
    looked_at = 0
    async with aclosing(_entries(daemon, who, after)) as entries:
        async for session_id, entry in entries:
            if len(found) == size or looked_at == MOST_LOOKED_AT:
                return found, after
            looked_at += 1
            after = session_id
            if entry is not None and wanted.takes(entry):
                found.append(entry)
    return found, None


async def newest(daemon: Daemon, who: Identity, wanted: Wanted) -> SessionEntry | None:
    """The one that was created last."""
    found: SessionEntry | None = None
    async for _, entry in _entries(daemon, who, None):
        if entry is not None and wanted.takes(entry) and (found is None or entry.created_at >= found.created_at):
            found = entry
    return found


async def _entries(
    daemon: Daemon, who: Identity, after: SessionId | None
) -> AsyncGenerator[tuple[SessionId, SessionEntry | None]]:
    """Every session that the caller may touch; none for one that is being deleted."""
    if who.session_id is not None:
        if after is None or who.session_id > after:
            yield who.session_id, await _entry_or_none(daemon, who.session_id)
        return
    while heads := await daemon.log.sessions(after=after):
        for head in heads:
            yield head.session_id, await _entry_or_none(daemon, head.session_id)
        after = heads[-1].session_id


async def _entry_or_none(daemon: Daemon, session_id: SessionId) -> SessionEntry | None:
    try:
        return await entry_of(daemon, session_id)
    except (SessionNotFound, PositionLost):
        return None


async def entry_of(daemon: Daemon, session_id: SessionId) -> SessionEntry:
    """One session in short. Raises `SessionNotFound`."""
    session, updated_at, clients = await daemon.summaries.of(session_id)
    loaded = daemon.node.loaded.get(session_id)
    state = NOTHING if loaded is None else loaded.state
    return SessionEntry(
        session_id=session_id,
        workspace_cwd=session.cwd,
        cwd=session.cwd,
        title=session.title,
        display_name=session.title,
        created_at=iso(session.created_at),
        updated_at=iso(updated_at),
        state="closed" if session.phase is Phase.CLOSED else standing_of(state),
        has_active_prompt=state.turn is not None,
        is_waiting_for_permission=bool(state.questions),
        client_count=clients,
        closed=session.phase is Phase.CLOSED,
        additional_directories=list(session.additional_directories),
    )


def standing_of(state: SessionState) -> Standing:
    """What the session does now."""
    if state.phase is Phase.CLOSED:
        return "closed"
    return "idle" if state.turn is None else _STANDINGS.get(state.turn.state.value, "idle")
