"""The history of a session, in v2 updates, as its agent reported it.

It is replayed to clients and stored. Consecutive chunks of one message become one update. Momentary updates are not
stored: states, notices, and everything that the answer that opens a session contains. The end of each turn is
stored with the ids of its prompt.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw, Struct

from turnwire.agent.v2_updates import Json, call_ended, text_block
from turnwire.projections.encoder.encoder import EndedTurn, idle_update
from turnwire.session.json_members import as_object, child
from turnwire.wire.jsonrpc import raw
from turnwire.wire.methods import VENDOR
from turnwire.wire.schema.update import CURRENT_STATE, TOOL_CALLS

_OF_THE_MOMENT: Final = CURRENT_STATE - {"usage_update"} | {"notice"}
_PIECE: Final = frozenset({"sessionUpdate", "messageId", "content"})
_TEXT: Final = frozenset({"type", "text"})
_UNFINISHED: Final = frozenset({"pending", "in_progress"})


class History:
    """The history of one session."""

    def __init__(self, kept: Iterable[bytes] = ()) -> None:
        self._updates = list(kept)
        self._saved = self._brought = len(self._updates)
        self._growing: tuple[str, str] | None = None
        """The message whose chunks are being joined, by kind and id."""
        self._texts: list[str] = []

    def add(self, update: Json, told: Raw) -> None:
        """Add an update that was sent."""
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
        """Add an update of any kind."""
        self._close()
        self._updates.append(bytes(told))

    def keep_end(self, ended: EndedTurn) -> None:
        """Store the end of a turn with its prompt id. Its request id means nothing to a later connection."""
        self.keep(raw({**idle_update(ended), "_meta": {VENDOR: {"promptId": ended.prompt_id}}}))

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
        """Return the tool calls that were open when the session was restored; whoever ran them is gone."""
        is_open: dict[str, bool] = {}
        for number, each in enumerate(self._updates):
            if b'"toolCallId"' not in each:
                continue
            call = _read_call(each)
            if call.session_update not in TOOL_CALLS or (call.status is None and call.tool_call_id in is_open):
                continue
            # A call of this process can still be ended.
            is_unfinished = call.status is None or call.status in _UNFINISHED
            is_open[call.tool_call_id] = is_unfinished and number < self._brought
        return [name for name, still in is_open.items() if still]

    @property
    def waiting(self) -> int:
        """Return the number of whole updates that the store does not have yet."""
        return len(self._updates) - self._saved

    # -- for the store -------------------------------------------------------------------------------------------

    @property
    def unsaved(self) -> list[bytes]:
        """Return the updates that the store does not have yet."""
        self._close()
        return self._updates[self._saved :]

    def saved(self, count: int) -> None:
        """The store has got the next `count`."""
        self._saved += count

    def take_up(self, stored: Iterable[bytes]) -> None:
        """Adopt the stored history, which others may have extended; our unsaved updates follow it."""
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
    """The stored end of a turn."""

    prompt_id: str
    stop_reason: str | None


def read_end(kept: Raw) -> KeptEnd:
    """Read the prompt id and the stop reason of a stored turn."""
    idle = as_object(kept)
    names, reason = child(idle, "_meta", VENDOR), idle.get("stopReason")
    return KeptEnd(names.get("promptId", ""), None if reason == "error" else reason)


class _Call(Struct, rename="camel"):
    session_update: str = ""
    tool_call_id: str = ""
    status: str | None = None


_read_call = msgspec.json.Decoder(_Call).decode


def _message(update: Json) -> tuple[str, str] | None:
    """Return the message of a chunk that is only text."""
    content: Any = update.get("content")
    if update.keys() != _PIECE or not isinstance(content, dict) or content.keys() != _TEXT:
        return None
    return update["sessionUpdate"], update["messageId"]
