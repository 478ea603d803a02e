"""Texts that come in pieces, joined to be redacted: an agent may spell a secret over several updates.

Takes pieces with the number of the line that each is in; gives the lines whose piece must have another text. What
stands for a secret is in the piece in which that begins; of the others what belongs to it is gone. So the pieces
together are what the redacted whole is. Keeps of a text only as much as a secret may be long.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, cast

from turnwire.recording.spans import Span, merged, shown
from turnwire.wire.methods import SESSION_PROMPT, SESSION_UPDATE

WINDOW: Final = 256 * 1024
"""Characters of a text that wait to be looked at."""
TAIL: Final = 32 * 1024
"""Characters that are looked at again with what follows: a secret may have begun there."""
MOST_TEXTS: Final = 64
"""Texts that are kept open; of more, the one that has rested longest is settled."""
_IDS: Final = ("messageId", "toolCallId", "terminalId", "compactionId")
_PLACES: Final = (("content", "text"), ("content", "content", "text"), ("data",))
"""Where an update has its piece."""

Key: TypeAlias = tuple[object, ...]
"""Pieces with the same one are of the same text."""


class Piece(NamedTuple):
    """A text in a line, and where in it."""

    key: Key
    holder: dict[str, Any]
    """The object that has it."""
    name: str

    @property
    def text(self) -> str:
        return self.holder[self.name]


class Pieces:
    """The texts of a file."""

    def __init__(self, find: Callable[[str], Sequence[Span]]) -> None:
        self._find = find
        self._texts: dict[Key, _Text] = {}
        self._turns: dict[object, int] = {}
        """Prompts of a session: a piece without an id is of a text that a prompt ends."""
        self._changed: dict[int, str] = {}

    def take(self, number: int, message: Any) -> None:
        """A line, as JSON: a frame, or an event of an export."""
        session = _prompted(message)
        if session is not None:
            self._turns[session] = self._turns.get(session, 0) + 1
        piece = piece_of(message)
        if piece is not None:
            self._add(number, (*piece.key, self._turns.get(piece.key[0])), piece.text)

    def changed(self) -> dict[int, str]:
        """The lines whose piece is another one, with its text. All texts are over."""
        while self._texts:
            self._settle_oldest()
        return self._changed

    def _add(self, number: int, key: Key, text: str) -> None:
        found = self._texts.pop(key, None) or _Text()
        self._texts[key] = found
        if found.add(number, text):
            self._changed.update(found.look(self._find, TAIL))
        if len(self._texts) > MOST_TEXTS:
            self._settle_oldest()

    def _settle_oldest(self) -> None:
        oldest = self._texts.pop(next(iter(self._texts)))
        self._changed.update(oldest.look(self._find, 0))


class _Text:
    """One text, as far as it is not settled."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._pieces: list[str] = []
        self._found: list[Span] = []
        """What was found in these pieces when more of the text before them was there."""
        self._length = 0
        self._most = WINDOW

    def add(self, number: int, piece: str) -> bool:
        """Whether it is time to look."""
        self._numbers.append(number)
        self._pieces.append(piece)
        self._length += len(piece)
        return self._length > self._most

    def look(self, find: Callable[[str], Sequence[Span]], tail: int) -> Iterator[tuple[int, str]]:
        """The pieces that change. What is before the tail is settled, and forgotten."""
        whole = "".join(self._pieces)
        spans = merged([*self._found, *find(whole)])
        starts = [0]
        for each in self._pieces:
            starts.append(starts[-1] + len(each))
        for place in sorted({at for span in spans for at in _touched(starts, span)}):
            text = shown(whole, spans, starts[place], starts[place + 1])
            if text != self._pieces[place]:
                yield self._numbers[place], text
        keep = max(bisect_right(starts, len(whole) - tail) - 1, 0)
        # A secret that is still going on is not cut.
        while keep and any(span.start < starts[keep] < span.end for span in spans):
            keep -= 1
        begin = starts[keep]
        self._numbers, self._pieces = self._numbers[keep:], self._pieces[keep:]
        self._found = [span.moved(-begin) for span in spans if span.start >= begin]
        self._length -= begin
        self._most = max(WINDOW, 2 * self._length)


def _touched(starts: Sequence[int], span: Span) -> range:
    """The places of the pieces that have something of this span."""
    return range(bisect_right(starts, span.start) - 1, bisect_right(starts, span.end - 1))


def piece_of(message: Any) -> Piece | None:
    """The piece of a text that a line has; none if it has none."""
    told = _told(message)
    update = told.get("update") if told is not None else None
    if told is None or not isinstance(update, dict):
        return None
    members = cast("dict[str, Any]", update)
    kind = members.get("sessionUpdate")
    if not (isinstance(kind, str) and kind.endswith("_chunk")):
        return None
    ids = tuple(str(members.get(each)) for each in _IDS)
    key = (_session(told), kind, *ids, told.get("promptId"))
    for *way, name in _PLACES:
        holder: Any = members
        for each in way:
            holder = cast("dict[str, Any]", holder).get(each) if isinstance(holder, dict) else None
        if isinstance(holder, dict) and isinstance(cast("dict[str, Any]", holder).get(name), str):
            return Piece(key, cast("dict[str, Any]", holder), name)
    return None


def _told(message: Any) -> dict[str, Any] | None:
    """The params of an update, or the data of its event."""
    if not isinstance(message, dict):
        return None
    members = cast("Mapping[str, Any]", message)
    told = members.get("params") if members.get("method") == SESSION_UPDATE else members.get("data")
    return cast("dict[str, Any]", told) if isinstance(told, dict) else None


def _session(told: Mapping[str, Any]) -> str:
    return str(told.get("child") or told.get("sessionId"))


def _prompted(message: Any) -> str | None:
    """The session that a line prompts."""
    if not isinstance(message, dict) or cast("dict[str, Any]", message).get("method") != SESSION_PROMPT:
        return None
    params = cast("dict[str, Any]", message).get("params")
    return _session(cast("dict[str, Any]", params)) if isinstance(params, dict) else None
