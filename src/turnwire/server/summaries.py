"""Sessions in short: names, clients and age, folded from the few events that tell of them.

Takes a log; gives one summary per session and remembers it, so that the next look reads only what came since. A
session that is looked at for the first time starts from the view that is kept of it, of which everything but names
and clients is skipped. Never folds a transcript, and never loads a session into memory.
"""

from __future__ import annotations

from typing import NamedTuple

import anyio
import msgspec
from msgspec import Struct

from turnwire.core import events as ev
from turnwire.core.codec import decode
from turnwire.core.state import Phase
from turnwire.core.view import VIEW_VERSION, Latest, Session, View
from turnwire.core.view.transcript import Speaker
from turnwire.core.view.view import Stored
from turnwire.errors import SessionNotFound
from turnwire.ids import ClientId, Epoch, SessionId
from turnwire.limits import Limits
from turnwire.log.base import EventLog, Position, SessionHead
from turnwire.runtime.hydrate import VIEW, open_view

REMEMBERED = 2048
"""Summaries that are kept, those asked for last; each takes some kilobytes."""


class Summary(NamedTuple):
    """What the log says of a session, in short."""

    session: Session
    updated_at: int
    """When its newest event happened."""
    clients: int


class _Known:
    """A summary as far as it is folded."""

    def __init__(self, epoch: Epoch, offset: int, view: View) -> None:
        self.epoch = epoch
        self.offset = offset
        self.view = view
        """Right in `session` and `clients` only."""
        self.updated_at = 0


class Summaries:
    """The summaries of a log's sessions."""

    def __init__(self, log: EventLog, limits: Limits) -> None:
        self._log = log
        self._limits = limits
        self._known: dict[SessionId, _Known] = {}
        self.choosing = anyio.Lock()
        """Held while somebody looks for a session to share, and makes one if there is none."""

    async def of(self, session_id: SessionId) -> Summary:
        """The summary up to the newest event. Raises `SessionNotFound`."""
        head = await self._log.head(session_id)
        known = self._known.pop(session_id, None)
        if known is None or known.epoch != head.epoch:
            known = await self._begin(head)
        self._remember(session_id, known)
        while known.offset < head.head or not known.updated_at:
            await self._go_on(known, head)
        session = known.view.session
        if session.phase is Phase.NEW:
            raise SessionNotFound("the session is being created", session_id=session_id)
        return Summary(session, known.updated_at, len(known.view.clients))

    def _remember(self, session_id: SessionId, known: _Known) -> None:
        self._known[session_id] = known
        while len(self._known) > REMEMBERED:
            self._known.pop(next(iter(self._known)))

    async def _begin(self, head: SessionHead) -> _Known:
        if head.first == 1 and head.head < self._limits.snapshot_events:
            return _Known(head.epoch, 0, View())  # too short for a view to be kept of it
        kept = await self._log.load_snapshot(head.session_id, VIEW)
        if kept is not None and kept.version == VIEW_VERSION:
            try:
                return _Known(head.epoch, kept.offset, _short(_read_kept(kept.body)))
            except msgspec.DecodeError:
                pass  # the log is folded anew
        view, offset = await open_view(self._log, head.session_id, self._limits)
        return _Known(head.epoch, offset, _short(_Kept(view.session, _Title(view.latest.title), view.clients)))

    async def _go_on(self, known: _Known, head: SessionHead) -> None:
        """Fold the next page. Whoever else asks folds the same summary, so only what still follows is taken."""
        after = known.offset if known.offset < head.head else head.head - 1
        if after < head.first - 1:
            known.updated_at = known.view.session.created_at or 1  # every event is forgotten
            return
        events = await self._log.read(
            head.session_id,
            Position(head.epoch, after),
            max_events=self._limits.page_events,
            max_bytes=self._limits.page_bytes,
        )
        for each in events:
            if each.offset > known.offset and _tells(each.body):
                known.view.apply(decode(each.body))
        known.offset = max(known.offset, events[-1].offset)
        known.updated_at = max(known.updated_at, decode(events[-1].body).at, 1)


# -- a view of names and clients only ------------------------------------------------------------------------


class _Title(Struct):
    title: str | None = None


class _Kept(Struct):
    """The parts of a kept view that are needed here; the rest is skipped unread."""

    session: Session
    latest: _Title
    clients: dict[ClientId, ev.ClientAttached] = {}


_read_kept = msgspec.json.Decoder(_Kept).decode


def _short(kept: _Kept) -> View:
    return View(Stored(kept.session, Speaker(), Latest(title=kept.latest.title), clients=kept.clients))


_TELLING = tuple(
    b'{"type":"%b"' % str(each.__struct_config__.tag).encode()
    for each in (
        *(ev.SessionCreated, ev.SetupChanged, ev.SessionRenamed, ev.SessionClosed),
        *(ev.ClientAttached, ev.ClientDetached),
    )
)
_AN_UPDATE = b'{"type":"session_update"'
_NAMES_SESSION = b'"session_info_update"'
_HEAD_BYTES = 128
"""Where the kind of a stored update is, at the latest."""


def _tells(body: bytes) -> bool:
    """Whether an event is about names, directories, clients or the session's end."""
    if body.startswith(_AN_UPDATE):
        return _NAMES_SESSION in body[:_HEAD_BYTES]
    return body.startswith(_TELLING)
