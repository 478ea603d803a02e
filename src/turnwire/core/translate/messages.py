"""Messages: v1 has pieces whose message may have no name, v2 names every message and can replace one.

Names that turnwire makes come from the turn and a count, so that every client of one log reads the same. Never
keeps text: of what a v1 client was sent it keeps the length and a digest, which is enough to send only the rest of
a message that comes again.
"""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from typing import Final, NamedTuple

from msgspec import Raw

from turnwire.core.json_members import entries, is_null, members, raw, text_of
from turnwire.core.translate.tools import block_to_v1
from turnwire.core.view.transcript import nested_under, read_plain
from turnwire.ids import PromptId

WHOLE: Final = {
    "user_message": "user_message_chunk",
    "agent_message": "agent_message_chunk",
    "agent_thought": "agent_thought_chunk",
}
"""Whole messages of v2, with the kind of their pieces."""
CHUNKS: Final = frozenset(WHOLE.values())


# -- for a v2 client -----------------------------------------------------------------------------------------


class _Last(NamedTuple):
    """The message at the end of the transcript; a piece without a name goes on with it."""

    kind: str
    turn: PromptId | None
    message_id: str
    nested: str | None
    """The tool call in which it was said."""


class MessagesToV2:
    """For a v2 client. `life` tells the ids of one life of the agent's session from those of another."""

    def __init__(self, life: int) -> None:
        self._life = life
        self._made: Counter[PromptId | None] = Counter()
        self._known: set[tuple[str, str]] = set()
        self._last: _Last | None = None

    def take(self, kind: str, update: dict[str, Raw], turn: PromptId | None) -> Raw:
        """A piece, with the name of its message."""
        named = text_of(update, "messageId")
        nested = nested_under(members(update.get("_meta")))
        message_id = self._made_id(kind, turn, nested) if named is None else self._lived(named)
        if (kind, message_id) not in self._known:
            self._known.add((kind, message_id))
            self._last = _Last(kind, turn, message_id, nested)
        elif self._is_late(kind, message_id, turn):
            # A piece without a name is not meant for it any more.
            self._last = None
        return raw({**update, "messageId": message_id})

    def part(self) -> None:
        """Something else is at the end of the transcript now."""
        self._last = None

    def _is_late(self, kind: str, message_id: str, turn: PromptId | None) -> bool:
        """Whether the last message goes on in another turn than its own."""
        last = self._last
        if last is None or (last.kind, last.message_id) != (kind, message_id):
            return False
        return turn is not None and last.turn is not None and last.turn != turn

    def _made_id(self, kind: str, turn: PromptId | None, nested: str | None) -> str:
        last = self._last
        if last is not None and (last.kind, last.turn, last.nested) == (kind, turn, nested):
            return last.message_id
        self._made[turn] += 1
        return self._lived(f"{turn or 'session'}.{self._made[turn]}")

    def _lived(self, message_id: str) -> str:
        return lived(message_id, self._life)


def in_life(update: Raw, life: int) -> Raw:
    """A message update of a v2 agent that lost its session before and may count from one again."""
    fields = members(update)
    named = text_of(fields, "messageId")
    return update if named is None else raw({**fields, "messageId": lived(named, life)})


def lived(message_id: str, life: int) -> str:
    """An id that is unique in the session, as v2 wants it."""
    return message_id if life <= 1 else f"{message_id}~{life}"


# -- for a v1 client -----------------------------------------------------------------------------------------


class _Shown:
    """What a client was sent of one message."""

    __slots__ = ("digest", "size")

    def __init__(self) -> None:
        self.size = 0
        self.digest = blake2b(digest_size=16)

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        self.digest.update(piece)

    def rest(self, blocks: list[Raw]) -> list[Raw] | None:
        """The blocks behind what was sent; none if they do not begin with that."""
        probe, left, rest = blake2b(digest_size=16), self.size, list[Raw]()
        for block in blocks:
            piece = _piece(block)
            probe.update(piece[:left])
            if len(piece) > left:
                rest.append(_behind(block, piece, left))
            left = max(0, left - len(piece))
        return rest if left == 0 and probe.digest() == self.digest.digest() else None


class MessagesToV1:
    """For a v1 client."""

    def __init__(self, losses: Counter[str]) -> None:
        self._losses = losses
        self._shown: dict[tuple[str, str], _Shown] = {}
        self._owner: dict[str, str] = {}

    def take(self, kind: str, update: dict[str, Raw]) -> Raw:
        """A piece."""
        message_id, block = text_of(update, "messageId"), update.get("content")
        if message_id is None or block is None:
            return raw(update)
        self._find(kind, message_id).add(_piece(block))
        return self._chunk(kind, message_id, block, update)

    def whole(self, kind: str, update: dict[str, Raw]) -> list[Raw]:
        """A whole message: what of it the client has not been sent yet."""
        chunk, message_id, content = WHOLE[kind], text_of(update, "messageId"), update.get("content")
        if message_id is None:
            return [raw(update)]
        shown = self._find(chunk, message_id)
        extra = {
            name: value for name, value in update.items() if name not in {"sessionUpdate", "messageId", "content"}
        }
        if "_meta" in extra:
            self._losses["message_meta"] += 1
        if content is None:
            return []
        rest = shown.rest([] if is_null(content) else entries(content))
        if rest is None:
            self._losses["message_replaced"] += 1
            return []
        told: list[Raw] = []
        for block in rest:
            shown.add(_piece(block))
            told.append(self._chunk(chunk, message_id, block, {} if told else extra))
        return told

    def _find(self, kind: str, message_id: str) -> _Shown:
        return self._shown.setdefault((kind, message_id), _Shown())

    def _chunk(self, kind: str, message_id: str, block: Raw, others: dict[str, Raw]) -> Raw:
        # v2 has one space of ids for each kind of message, v1 one for all.
        owner = self._owner.setdefault(message_id, kind)
        own = message_id if owner == kind else f"{kind.removesuffix('_chunk')}.{message_id}"
        named: dict[str, object] = {"sessionUpdate": kind, "messageId": own}
        return raw({**others, **named, "content": block_to_v1(block, self._losses)})


def _piece(block: Raw) -> bytes:
    """A block as a stretch of bytes: plain text is its text, so that it does not matter how it was cut."""
    text = read_plain(block)
    # Between zero bytes, so that no text is taken for a block.
    return b"\0%b\0" % bytes(block) if text is None else text.encode()


def _behind(block: Raw, piece: bytes, sent: int) -> Raw:
    """The part of a block behind what was sent of it; only text is ever sent in part."""
    if sent == 0 or read_plain(block) is None:
        return block
    return raw({"type": "text", "text": piece[sent:].decode(errors="replace")})
