"""Tool calls: announced and then patched in v1, only patched in v2, where content also comes in pieces.

Takes a session's tool updates in order; gives those of the other version. Remembers which calls the client has
heard of and, for v1, what they hold, because v1 can only be sent all of a call's content. Never holds back the
last word: content that grows is sent again when it has grown by a part, and at the latest when `flush` is called.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from msgspec import Raw

from turnwire.core.translate.members import entries, members, raw, text_of
from turnwire.core.translate.terminals import Terminals
from turnwire.core.translate.tool_parts import PATCHED, patch_to_v1, patch_to_v2

_ALWAYS: Final = 4096
"""Content up to this many bytes is sent again with every piece; beyond it, when it has grown by an eighth. So all
that is sent stays within a small multiple of the content, however small the pieces are."""
_NULL: Final = Raw(b"null")


class ToolsToV2:
    """For a v2 client."""

    def __init__(self, losses: Counter[str]) -> None:
        self._losses = losses
        self._seen: set[str] = set()

    def take(self, update: dict[str, Raw], *, announced: bool) -> tuple[list[Raw], bool]:
        """The updates for the client, and whether the call is new to it. `announced`: it is a v1 `tool_call`."""
        tool_call_id = text_of(update, "toolCallId")
        if tool_call_id is None:
            return [raw(update)], True
        is_new = tool_call_id not in self._seen
        self._seen.add(tool_call_id)
        patch = patch_to_v2(update, self._losses)
        if announced:
            patch = self._defaults(patch, is_new=is_new)
        told = [raw({**patch, "sessionUpdate": "tool_call_update"})]
        if announced and not is_new:
            # Announced again it begins anew; one update cannot both clear the metadata and set some.
            told.insert(0, raw(_empty(tool_call_id, _meta=None)))
        return told, is_new

    def _defaults(self, patch: dict[str, Raw], *, is_new: bool) -> dict[str, Raw]:
        """An announcement says all of a call, so what it leaves out has its default from here on."""
        blank: dict[str, Raw] = {"kind": raw("other"), "status": raw("pending")}
        if not is_new:
            blank = dict.fromkeys(PATCHED, _NULL) | blank
        return {**patch, **{name: value for name, value in blank.items() if name not in patch}}


class _Call:
    """A call that the client has heard of."""

    def __init__(self, content: list[Raw]) -> None:
        self.content: list[Raw] = []
        """In the words of v2."""
        self.terminals: set[str] = set()
        """The terminals among it."""
        self.bytes = 0
        self.sent = 0
        """How large it was, with its terminals, when it was sent last."""
        self.is_behind = False
        """There is content that the client has not been sent."""
        for each in content:
            self.add(each)

    def add(self, item: Raw) -> None:
        self.content.append(item.copy())
        self.bytes += len(memoryview(item))
        parts = members(item)
        if text_of(parts, "type") == "terminal":
            self.terminals.add(text_of(parts, "terminalId") or "")

    def replace(self, content: list[Raw]) -> None:
        self.content, self.terminals, self.bytes = [], set(), 0
        for each in content:
            self.add(each)


class ToolsToV1:
    """For a v1 client."""

    def __init__(self, losses: Counter[str], terminals: Terminals) -> None:
        self._losses = losses
        self._terminals = terminals
        self._calls: dict[str, _Call] = {}

    def take(self, update: dict[str, Raw]) -> list[Raw]:
        """`tool_call_update`."""
        tool_call_id = text_of(update, "toolCallId")
        if tool_call_id is None:
            return [raw(update)]
        call = self._calls.get(tool_call_id)
        patch = patch_to_v1(update, self._losses, self._terminals.as_text)
        if call is None:
            return [self._announce(tool_call_id, update, patch)]
        if "content" in update:
            call.replace(entries(update["content"]))
        elif call.is_behind:
            patch["content"] = self._content(call)
        if "content" in patch:
            self._sent(call)
        says_nothing = patch.keys() <= {"toolCallId", "sessionUpdate"} and len(update) > len(patch)
        return [] if says_nothing else [raw(patch)]

    def append(self, update: dict[str, Raw]) -> list[Raw]:
        """`tool_call_content_chunk`."""
        tool_call_id, item = text_of(update, "toolCallId"), update.get("content")
        if tool_call_id is None or item is None:
            return [raw(update)]
        call = self._calls.get(tool_call_id)
        if call is None:
            told = self._announce(tool_call_id, {}, {"toolCallId": raw(tool_call_id)})
            self._calls[tool_call_id].add(item)
            return [told, self._content_update(tool_call_id, self._calls[tool_call_id])]
        call.add(item)
        return self._grown(tool_call_id, call)

    def changed(self, terminal_id: str, *, is_final: bool) -> list[Raw]:
        """A terminal shows something else: so do the calls that show it."""
        told: list[Raw] = []
        for tool_call_id, call in self._calls.items():
            if terminal_id in call.terminals:
                told += [self._content_update(tool_call_id, call)] if is_final else self._grown(tool_call_id, call)
        return told

    def flush(self) -> list[Raw]:
        """All content that was held back."""
        behind = [(name, call) for name, call in self._calls.items() if call.is_behind]
        return [self._content_update(name, call) for name, call in behind]

    def _announce(self, tool_call_id: str, update: dict[str, Raw], patch: dict[str, Raw]) -> Raw:
        call = self._calls[tool_call_id] = _Call(entries(update.get("content")))
        self._sent(call)
        if "title" not in patch:
            self._losses["tool_title"] += 1
            patch["title"] = raw(text_of(patch, "name") or text_of(patch, "kind") or tool_call_id)
        return raw({**patch, "sessionUpdate": "tool_call"})

    def _grown(self, tool_call_id: str, call: _Call) -> list[Raw]:
        size = self._size(call)
        if size > _ALWAYS and size < call.sent + call.sent // 8:
            call.is_behind = True
            return []
        return [self._content_update(tool_call_id, call)]

    def _content_update(self, tool_call_id: str, call: _Call) -> Raw:
        update = _empty(tool_call_id, content=self._content(call))
        self._sent(call)
        return raw(update)

    def _content(self, call: _Call) -> Raw:
        given = {"content": raw(call.content)}
        return patch_to_v1(given, self._losses, self._terminals.as_text)["content"]

    def _sent(self, call: _Call) -> None:
        call.sent, call.is_behind = self._size(call), False

    def _size(self, call: _Call) -> int:
        return call.bytes + sum(map(self._terminals.size, call.terminals))


def _empty(tool_call_id: str, **patch: object) -> dict[str, object]:
    return {"sessionUpdate": "tool_call_update", "toolCallId": tool_call_id, **patch}
