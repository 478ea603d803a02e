"""An open session and its store: what has changed here is kept, what changed elsewhere meanwhile is taken up.

Takes an open session; has the store keep its record and its history. A session that was only looked at is not
written. Of what another process saved since, everything is taken up that did not change here; if both changed the
state, the one that is in the store stays. Never changes the state of a turn that runs, never brings a deleted
session back.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio
import msgspec

from turnwire.agent.offers import MODE
from turnwire.agent.store import FIRST, Kept, OptionValue, encoded, unknown_session
from turnwire.errors import AppendConflict, ConfigError, SessionNotFound

if TYPE_CHECKING:
    from turnwire.agent.live import LiveSession

SAVE_S = 10.0
"""How long the beginning or the end of a turn waits for the store before it goes on all the same."""
TRIES = 3
"""How often a save begins again because another process was faster. The next save goes on from there."""

logger = logging.getLogger(__name__)


class Keeping:
    """Of one open session."""

    def __init__(self, live: LiveSession, kept: Kept) -> None:
        self._live = live
        self._revision = kept.revision
        self._stored = _plain(kept)
        """The record as the store has it, as far as is known here."""
        self._opened: bytes | None = None
        """The record after it was opened. What opening does is done again next time, so it is no change."""
        self._unsure: bytes | None = None
        """What the store was given last, without a word from it that it was kept."""
        self._turn = anyio.Lock()

    def only_looked_at(self) -> None:
        """It was brought back, and nothing has happened in it yet."""
        try:
            self._opened = encoded(self._live.record())
        except ConfigError:
            logger.exception("session %s cannot be kept", self._live.id)

    async def save(self) -> None:
        """Have the store keep everything, within a bound. A store that fails is logged: turns go on."""
        live = self._live
        with anyio.move_on_after(SAVE_S) as bound:
            async with self._turn:
                if not live.is_kept:
                    return
                try:
                    await self._save_record()
                    await self._save_history()
                except SessionNotFound:
                    live.is_kept = False
                    logger.warning("session %s was deleted meanwhile; nothing of it is kept any more", live.id)
                except Exception:  # a store may raise anything; the session is still good
                    logger.exception("the store did not keep session %s", live.id)
        if bound.cancelled_caught:
            logger.error("the store took longer than %s s for session %s", SAVE_S, live.id)

    async def _save_history(self) -> None:
        unsaved = self._live.history.unsaved
        if unsaved:
            await self._live.authored.store.append(self._live.id, unsaved)
            self._live.history.saved(len(unsaved))

    async def _save_record(self) -> None:
        for _ in range(TRIES):
            mine = encoded(self._live.record())
            if mine in (self._stored, self._opened):
                return
            before, self._unsure = self._unsure, mine
            record = msgspec.json.decode(mine, type=Kept)
            try:
                await self._live.authored.store.save(msgspec.structs.replace(record, revision=self._revision + 1))
            except AppendConflict:
                if not await self._take_up(before):
                    return
            else:
                self._know(mine, self._revision + 1)
                return
        logger.error("others save session %s all the time; it is tried again with the next change", self._live.id)

    def _know(self, stored: bytes, revision: int) -> None:
        self._stored, self._revision = stored, revision
        self._opened = self._unsure = None

    # -- what changed elsewhere ----------------------------------------------------------------------------------

    async def _take_up(self, unsure: bytes | None) -> bool:
        """Somebody saved it since. Whether a save on top of that can be tried now."""
        theirs = await self._live.authored.store.load(self._live.id)
        if theirs is None:
            raise unknown_session()
        stored = _plain(theirs)
        if stored == unsure:
            # It was this very session: its store was only too slow, or failed after it had written.
            self._know(stored, theirs.revision)
            return True
        known = [msgspec.json.decode(each, type=Kept) for each in (self._stored, self._opened) if each is not None]
        if self._live.session.running is not None and theirs.state != known[0].state:
            # A turn works with the state that it has. It is looked at again after the turn.
            self._unsure = None
            return False
        self._know(stored, theirs.revision)
        self._merge(theirs, known)
        return True

    def _merge(self, theirs: Kept, known: list[Kept]) -> None:
        """`known`: how it was here before anything changed."""
        live, mine = self._live, msgspec.json.decode(encoded(self._live.record()), type=Kept)
        live.history.take_up(theirs.history)
        if theirs.state != known[0].state:
            if all(mine.state != each.state for each in known):
                logger.error(
                    "two processes changed the state of session %s at the same time; the change of this one came"
                    " second and is not kept. The history has both; prompt it in one process only",
                    live.id,
                )
            # In place: an author may hold on to it.
            live.session.state.clear()
            live.session.state.update(theirs.state)
        ours, before = _choices(mine), [_choices(each) for each in known]
        taken = {
            name: value
            for name, value in _choices(theirs).items()
            if any(ours.get(name) == each.get(name) for each in before)
        }
        if live.offers.take_up(taken):
            live.tell_options()
        if mine.title == known[0].title and theirs.title != mine.title:
            live.rename(theirs.title)


def _plain(kept: Kept) -> bytes:
    """A record by what it says: without its history, and whatever its revision."""
    return encoded(msgspec.structs.replace(kept, history=(), revision=FIRST))


def _choices(kept: Kept) -> dict[str, OptionValue]:
    return kept.options if kept.mode is None else {**kept.options, MODE: kept.mode}
