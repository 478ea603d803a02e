"""The history of a session as its author's agent told it, in the words of v2.

Takes updates in order; gives them for a replay and for the store. Pieces of one message that follow each other
become one. Never keeps what is only of the moment: states, notices, and what the answer that opens a session says
anyway.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from msgspec import Raw

from turnwire.agent.words import Json, text_block
from turnwire.wire.jsonrpc import raw

_OF_THE_MOMENT: Final = frozenset(
    {
        *("state_update", "notice", "session_info_update"),
        *("available_commands_update", "config_option_update", "current_mode_update"),
    }
)
_PIECE: Final = frozenset({"sessionUpdate", "messageId", "content"})
_TEXT: Final = frozenset({"type", "text"})


class History:
    """Of one session."""

    def __init__(self, kept: Iterable[bytes] = ()) -> None:
        self._updates = list(kept)
        self._saved = len(self._updates)
        self._growing: tuple[str, str] | None = None
        """The message whose pieces are being joined, by kind and id."""
        self._texts: list[str] = []

    def add(self, update: Json, told: Raw) -> None:
        """An update that was told."""
        if update["sessionUpdate"] in _OF_THE_MOMENT:
            return
        message = _message(update)
        if message is None:
            self.keep(told)
            return
        if message != self._growing:
            self._close()
            self._growing = message
        self._texts.append(update["content"]["text"])

    def keep(self, told: Raw) -> None:
        """An update, whatever it is."""
        self._close()
        self._updates.append(bytes(told))

    @property
    def updates(self) -> tuple[bytes, ...]:
        """All of it."""
        self._close()
        return tuple(self._updates)

    @property
    def waiting(self) -> int:
        """How many whole updates the store has not got yet."""
        return len(self._updates) - self._saved

    # -- for the store -------------------------------------------------------------------------------------------

    @property
    def unsaved(self) -> list[bytes]:
        """What the store has not got yet."""
        self._close()
        return self._updates[self._saved :]

    def saved(self, count: int) -> None:
        """The store has got the next `count`."""
        self._saved += count

    def _close(self) -> None:
        if self._growing is None:
            return
        kind, message_id = self._growing
        update = {"sessionUpdate": kind, "messageId": message_id, "content": text_block("".join(self._texts))}
        self._updates.append(bytes(raw(update)))
        self._growing, self._texts = None, []


def _message(update: Json) -> tuple[str, str] | None:
    """The message of a piece that is nothing but text."""
    content: Any = update.get("content")
    if update.keys() != _PIECE or not isinstance(content, dict) or content.keys() != _TEXT:
        return None
    return update["sessionUpdate"], update["messageId"]
