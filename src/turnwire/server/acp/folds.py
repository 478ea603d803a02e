"""Folds of sessions that readers have made, for the next reader who wants to begin behind them.

Takes a fold and where it stands; gives a copy of it to whoever begins there or later. What a client is told depends
on the events and on its dialect alone, so a fold is good for every client that speaks the same. Forgotten when the
session is put away. Never gives the same one to two readers: each goes on with its own.
"""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

from turnwire.core.encoder import Ask, SessionEncoder
from turnwire.core.encoder.encoder import Dialect
from turnwire.runtime.session import Session

WORTH = 1024
"""Events that are folded again rather than kept: they take some milliseconds."""


class Fold(NamedTuple):
    """What a reader knows of a session behind an event."""

    offset: int
    face: SessionEncoder
    open: dict[str, Ask]
    """Questions that nobody has answered."""

    def copy(self) -> Fold | None:
        """None for a client whose agent speaks another version: such a fold is as long as the session."""
        face = self.face.copy()
        return None if face is None else Fold(self.offset, face, dict(self.open))


_kept: WeakKeyDictionary[Session, dict[Dialect, Fold]] = WeakKeyDictionary()


def keep(session: Session, dialect: Dialect, fold: Fold) -> None:
    """A reader has come here without a word to its client. Kept if it went far enough beyond what is kept."""
    folds = _kept.setdefault(session, {})
    known = folds.get(dialect)
    if fold.offset - (0 if known is None else known.offset) >= WORTH and (copy := fold.copy()) is not None:
        folds[dialect] = copy


def begin(session: Session, dialect: Dialect, first: int, upto: int) -> Fold:
    """The furthest fold up to this event. `first`: the log reaches back to here; a fold before it leads nowhere."""
    known = _kept.get(session, {}).get(dialect)
    if known is not None and first <= known.offset <= upto and (copy := known.copy()) is not None:
        return copy
    return Fold(first, SessionEncoder(dialect, session.session_id), {})
