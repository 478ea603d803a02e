"""The history of a session as its author's agent told it, in the words of v2.

It is replayed to clients, and kept by the store. Pieces of one message that follow each other become one. What is
only of the moment is not kept: states, notices, and what the answer that opens a session says anyway. The end of
each turn is, with the names by which its prompt was known.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw, Struct

from turnwire.agent.v2_updates import Json, call_ended, text_block
from turnwire.core.encoder.encoder import EndedTurn, idle_update
from turnwire.core.json_members import as_object, child
from turnwire.ids import RequestId
from turnwire.wire.jsonrpc import raw
from turnwire.wire.methods import VENDOR
from turnwire.wire.schema.update import CURRENT_STATE, TOOL_CALLS

_OF_THE_MOMENT: Final = CURRENT_STATE - {"usage_update"} | {"notice"}
_PIECE: Final = frozenset({"sessionUpdate", "messageId", "content"})
_TEXT: Final = frozenset({"type", "text"})
_UNFINISHED: Final = frozenset({"pending", "in_progress"})


class History:
    """Of one session."""

    def __init__(self, kept: Iterable[bytes] = ()) -> None:
        self._updates = list(kept)
        self._saved = self._brought = len(self._updates)
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

    def keep_end(self, ended: EndedTurn) -> None:
        """The end of a turn, with the names by which its prompt was known."""
        named = {"promptId": ended.prompt_id, "promptRequestId": ended.request_id}
        self.keep(raw({**idle_update(ended), "_meta": {VENDOR: named}}))

    @property
    def updates(self) -> tuple[bytes, ...]:
        """All of it."""
        self._close()
        return tuple(self._updates)

    @property
    def replayed(self) -> tuple[bytes, ...]:
        """All of it, with an end for each tool call that lost its own."""
        lost = (call_ended(each, "failed") for each in self._lost())
        return (*self.updates, *(bytes(raw(each)) for each in lost))

    def _lost(self) -> list[str]:
        """Tool calls that were open when the session was brought back: whoever ran them is gone."""
        is_open: dict[str, bool] = {}
        for number, each in enumerate(self._updates):
            if b'"toolCallId"' not in each:
                continue
            call = _read_call(each)
            if call.session_update not in TOOL_CALLS or (call.status is None and call.tool_call_id in is_open):
                continue
            # What is told now has somebody who can end it.
            is_unfinished = call.status is None or call.status in _UNFINISHED
            is_open[call.tool_call_id] = is_unfinished and number < self._brought
        return [name for name, still in is_open.items() if still]

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

    def take_up(self, stored: Iterable[bytes]) -> None:
        """What the store has, of which others may have written a part; ours that it has not got comes behind."""
        unsaved = self.unsaved
        self._updates = list(stored)
        self._saved = len(self._updates)
        self._updates += unsaved

    def _close(self) -> None:
        if self._growing is None:
            return
        kind, message_id = self._growing
        update = {"sessionUpdate": kind, "messageId": message_id, "content": text_block("".join(self._texts))}
        self._updates.append(bytes(raw(update)))
        self._growing, self._texts = None, []


class KeptEnd(NamedTuple):
    """A kept end of a turn."""

    prompt_id: str
    request_id: RequestId | None
    stop_reason: str | None


def read_end(kept: Raw) -> KeptEnd:
    """The names of a turn that ended long ago, and how it did."""
    idle = as_object(kept)
    names, reason = child(idle, "_meta", VENDOR), idle.get("stopReason")
    return KeptEnd(names.get("promptId", ""), names.get("promptRequestId"), None if reason == "error" else reason)


class _Call(Struct, rename="camel"):
    session_update: str = ""
    tool_call_id: str = ""
    status: str | None = None


_read_call = msgspec.json.Decoder(_Call).decode


def _message(update: Json) -> tuple[str, str] | None:
    """The message of a piece that is nothing but text."""
    content: Any = update.get("content")
    if update.keys() != _PIECE or not isinstance(content, dict) or content.keys() != _TEXT:
        return None
    return update["sessionUpdate"], update["messageId"]
