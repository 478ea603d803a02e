"""Translation of messages: v1 has chunks whose message may be unnamed, v2 names every message and can replace one.

Generated ids consist of the turn and a count, so that every client of one log receives the same. No text is stored:
of the output to a v1 client only the length and a digest are stored, which suffices to send only the rest of a
message that is repeated.
"""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from typing import Final, NamedTuple

from msgspec import Raw

from turnwire.ids import PromptId
from turnwire.projections.translate.tools import block_to_v1
from turnwire.projections.view.transcript import nested_under, read_plain
from turnwire.session.json_members import entries, is_null, members, raw, text_of

WHOLE: Final = {
    "user_message": "user_message_chunk",
    "agent_message": "agent_message_chunk",
    "agent_thought": "agent_thought_chunk",
}
"""The kinds of whole messages in v2, with the kind of their chunks."""
CHUNKS: Final = frozenset(WHOLE.values())


# -- for a v2 client -----------------------------------------------------------------------------------------


class _Last(NamedTuple):
    """The message at the end of the transcript, which an unnamed chunk continues."""

    kind: str
    turn: PromptId | None
    message_id: str
    nested: str | None
    """The tool call that it is nested in."""


class MessagesToV2:
    """Translator for a v2 client. `life` separates the ids of one incarnation of the agent's session from the
    others.
    """

    def __init__(self, life: int) -> None:
        self._life = life
        self._made: Counter[PromptId | None] = Counter()
        self._known: set[tuple[str, str]] = set()
        self._last: _Last | None = None

    def take(self, kind: str, update: dict[str, Raw], turn: PromptId | None) -> Raw:
        """Return a chunk with the id of its message."""
        named = text_of(update, "messageId")
        nested = nested_under(members(update.get("_meta")))
        message_id = self._made_id(kind, turn, nested) if named is None else self._lived(named)
        if (kind, message_id) not in self._known:
            self._known.add((kind, message_id))
            self._last = _Last(kind, turn, message_id, nested)
        elif self._is_late(kind, message_id, turn):
            # An unnamed chunk does not belong to it any more.
            self._last = None
        return raw({**update, "messageId": message_id})

    def part(self) -> None:
        """Record that another item is at the end of the transcript now."""
        self._last = None

    def _is_late(self, kind: str, message_id: str, turn: PromptId | None) -> bool:
        """True if the last message continues in another turn."""
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
    """Rename a message of a v2 agent that lost its session before and may restart its ids at one."""
    fields = members(update)
    named = text_of(fields, "messageId")
    return update if named is None else raw({**fields, "messageId": lived(named, life)})


def lived(message_id: str, life: int) -> str:
    """Return an id that is unique in the session, as v2 requires."""
    return message_id if life <= 1 else f"{message_id}~{life}"


# -- for a v1 client -----------------------------------------------------------------------------------------


class _Shown:
    """The part of one message that a client was sent."""

    __slots__ = ("digest", "size")

    def __init__(self) -> None:
        self.size = 0
        self.digest = blake2b(digest_size=16)

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        self.digest.update(piece)

    def rest(self, blocks: list[Raw]) -> list[Raw] | None:
        """Return the blocks after the sent ones; `None` if they do not begin with those."""
        probe, left, rest = blake2b(digest_size=16), self.size, list[Raw]()
        for block in blocks:
            piece = _piece(block)
            probe.update(piece[:left])
            if len(piece) > left:
                rest.append(_behind(block, piece, left))
            left = max(0, left - len(piece))
        return rest if left == 0 and probe.digest() == self.digest.digest() else None


class MessagesToV1:
    """Translator for a v1 client."""

    def __init__(self, losses: Counter[str]) -> None:
        self._losses = losses
        self._shown: dict[tuple[str, str], _Shown] = {}
        self._owner: dict[str, str] = {}

    def take(self, kind: str, update: dict[str, Raw]) -> Raw:
        """Return a chunk in the form of v1."""
        message_id, block = text_of(update, "messageId"), update.get("content")
        if message_id is None or block is None:
            return raw(update)
        self._find(kind, message_id).add(_piece(block))
        return self._chunk(kind, message_id, block, update)

    def whole(self, kind: str, update: dict[str, Raw]) -> list[Raw]:
        """Return the part of a whole message that the client has not been sent yet."""
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
    """Return a block as bytes: plain text is its text, so that chunk boundaries do not matter."""
    text = read_plain(block)
    # Between zero bytes, so that no text equals a block.
    return b"\0%b\0" % bytes(block) if text is None else text.encode()


def _behind(block: Raw, piece: bytes, sent: int) -> Raw:
    """Return the part of a block after the sent bytes; only text is ever sent in part."""
    if sent == 0 or read_plain(block) is None:
        return block
    return raw({"type": "text", "text": piece[sent:].decode(errors="replace")})
