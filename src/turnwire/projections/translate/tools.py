"""Translation of tool calls: announced and then patched in v1, only patched in v2, where content also has chunks.

The known calls are stored and, for v1, their content, because v1 can only send the whole content of a call. Growing
content is resent when it has grown by a fraction, and at the latest when `flush` is called, so the final content is
never withheld. A terminal of a v2 agent is shown to a v1 client as text, without control sequences, and only the
end of a long output.
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections import Counter
from collections.abc import Callable, Container
from typing import Final, TypeAlias

from msgspec import Raw

from turnwire.projections import meta_terminals
from turnwire.projections.translate.diffs import as_text, changed_file, fenced
from turnwire.projections.view import tools
from turnwire.projections.view.tools import Terminal
from turnwire.session.ending import CANCELLED, CLOSED
from turnwire.session.events import SessionUpdated
from turnwire.session.json_members import entries, is_null, members, named, raw, text_of, without_nulls
from turnwire.wire.methods import VENDOR

_ALWAYS: Final = 4096
"""Content up to this many bytes is resent with every chunk; larger content when it has grown by an eighth. So the
total sent stays within a small multiple of the content, even for small chunks.
"""
_NULL: Final = Raw(b"null")
PATCHED: Final = ("name", "title", "kind", "status", "content", "locations", "rawInput", "rawOutput")
"""Members of a tool call that an update can change, in both versions."""
V1_KINDS: Final = frozenset(
    {"read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"}
)
V1_STATUS: Final = frozenset({"pending", "in_progress", "completed", "failed"})
V1_BLOCKS: Final = frozenset({"text", "image", "audio", "resource_link", "resource"})

# -- calls, for a v2 client -------------------------------------------------------------------------------------


class ToolsToV2:
    """Translator of tool calls for a v2 client."""

    def __init__(self, losses: Counter[str]) -> None:
        self._losses = losses
        self._seen: set[str] = set()
        self.terminals: set[str] = set()
        """Terminals that the agent shows itself; other ones are the client's."""

    def take(self, update: dict[str, Raw], *, announced: bool) -> tuple[list[Raw], bool]:
        """Return the updates for the client, and True if the call is new to it. `announced`: it is a v1
        `tool_call`.
        """
        tool_call_id = text_of(update, "toolCallId")
        if tool_call_id is None:
            return [raw(update)], True
        is_new = tool_call_id not in self._seen
        self._seen.add(tool_call_id)
        patch = patch_to_v2(update, self._losses, self.terminals)
        if announced:
            patch = self._defaults(patch, is_new=is_new)
        told = [raw({**patch, "sessionUpdate": "tool_call_update"})]
        if announced and not is_new:
            # A repeated announcement resets the call; one update cannot both clear the metadata and set keys.
            told.insert(0, raw(_empty(tool_call_id, _meta=None)))
        return told, is_new

    def _defaults(self, patch: dict[str, Raw], *, is_new: bool) -> dict[str, Raw]:
        """Add the defaults to an announcement, which is complete: an omitted member has its default from
        here on.
        """
        blank: dict[str, Raw] = {"kind": raw("other"), "status": raw("pending")}
        if not is_new:
            blank = dict.fromkeys(PATCHED, _NULL) | blank
        return {**patch, **{name: value for name, value in blank.items() if name not in patch}}


# -- calls, for a v1 client -------------------------------------------------------------------------------------


class _Call:
    """A call that the client knows."""

    def __init__(self, content: list[Raw]) -> None:
        self.content: list[Raw] = []
        """In the form of v2."""
        self.terminals: set[str] = set()
        """The terminals among it."""
        self.bytes = 0
        self.sent = 0
        """The size with its terminals when it was last sent."""
        self.is_behind = False
        """True if the client has not been sent all content."""
        for each in content:
            self.add(each)

    def add(self, item: Raw) -> None:
        # A copy, because the item is a view of its whole frame and would pin it in memory.
        self.content.append(item.copy())
        self.bytes += len(memoryview(item))
        parts = members(item)
        if text_of(parts, "type") == "terminal":
            self.terminals.add(text_of(parts, "terminalId") or "")

    def replace(self, content: list[Raw]) -> None:
        self.content, self.terminals, self.bytes = [], set(), 0
        for each in content:
            self.add(each)


class _Live:
    """A terminal that the client shows, and how much of it was sent."""

    def __init__(self, tool_call_id: str) -> None:
        self.tool_call_id = tool_call_id
        self.is_ended = False
        self._sent = 0
        self._tail = b""
        """The end of what was sent, by which a replacement is recognized."""
        self._decoder = _DECODER(errors="replace")

    def text(self, output: bytearray) -> str:
        """Return the text to append. Output that was replaced begins with a reset of the terminal."""
        reset = ""
        if bytes(output[self._sent - len(self._tail) : self._sent]) != self._tail:
            reset, self._sent = "\x1bc", 0
            self._decoder.reset()
        new = bytes(output[self._sent :])
        self._sent, self._tail = len(output), bytes(output[-_TAIL:])
        return reset + self._decoder.decode(new)


_TAIL: Final = 256
_DECODER: Final = getincrementaldecoder("utf-8")


def _terminal_of(item: Raw) -> str | None:
    parts = members(item)
    return text_of(parts, "terminalId") if text_of(parts, "type") == "terminal" else None


class ToolsToV1:
    """Translator of tool calls for a v1 client."""

    def __init__(self, losses: Counter[str], terminals: Terminals, *, shows: bool = False) -> None:
        """`shows`: the client shows terminals, which it is sent in the `_meta` of the calls."""
        self._losses = losses
        self._terminals = terminals
        self._calls: dict[str, _Call] = {}
        self.shows_terminals = shows
        self._as_text = None if shows else terminals.as_text
        self._live: dict[str, _Live] = {}

    def take(self, update: dict[str, Raw]) -> list[Raw]:
        """Translate `tool_call_update`."""
        return self._with_terminals(self._take(update))

    def _take(self, update: dict[str, Raw]) -> list[Raw]:
        tool_call_id = text_of(update, "toolCallId")
        if tool_call_id is None:
            return [raw(update)]
        call = self._calls.get(tool_call_id)
        patch = patch_to_v1(update, self._losses, self._as_text)
        if call is None:
            return [self._announce(tool_call_id, update, patch)]
        if "content" in update:
            call.replace(entries(update["content"]))
        elif call.is_behind:
            patch["content"] = self._content(call)
        if "content" in patch:
            self._sent(call)
        # An update with only members that v1 cannot express is dropped; an empty one is forwarded unchanged.
        says_nothing = patch.keys() <= {"toolCallId", "sessionUpdate"} and len(update) > len(patch)
        return [] if says_nothing else [raw(patch)]

    def append(self, update: dict[str, Raw]) -> list[Raw]:
        """Translate `tool_call_content_chunk`."""
        return self._with_terminals(self._append(update))

    def _append(self, update: dict[str, Raw]) -> list[Raw]:
        tool_call_id, item = text_of(update, "toolCallId"), update.get("content")
        if tool_call_id is None or item is None:
            return [raw(update)]
        call = self._calls.get(tool_call_id)
        if call is None:
            # v1 clients know only announced calls.
            told = self._announce(tool_call_id, {}, {"toolCallId": raw(tool_call_id)})
            self._calls[tool_call_id].add(item)
            return [told, self._content_update(tool_call_id, self._calls[tool_call_id])]
        call.add(item)
        return self._grown(tool_call_id, call)

    def changed(self, terminal_id: str, *, is_final: bool) -> list[Raw]:
        """Return updates of the calls that show a changed terminal."""
        if self.shows_terminals:
            return self._output(terminal_id)
        told: list[Raw] = []
        for tool_call_id, call in self._calls.items():
            if terminal_id in call.terminals:
                told += [self._content_update(tool_call_id, call)] if is_final else self._grown(tool_call_id, call)
        return told

    def flush(self) -> list[Raw]:
        """Return all withheld content."""
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
        fields = {"content": raw(call.content)}
        return patch_to_v1(fields, self._losses, self._as_text)["content"]

    def _with_terminals(self, told: list[Raw]) -> list[Raw]:
        """Announce the terminals that appear in these updates, and send their output so far."""
        if not self.shows_terminals:
            return told
        shown: list[Raw] = []
        for each in told:
            fields = members(each)
            new = [name for name in map(_terminal_of, entries(fields.get("content"))) if name not in self._live]
            found = [name for name in dict.fromkeys(new) if name]
            for name in found:
                self._live[name] = _Live(text_of(fields, "toolCallId") or "")
                meta = {**members(fields.get("_meta")), meta_terminals.INFO: self._terminals.info(name)}
                fields = {**fields, "_meta": raw(meta)}
            shown.append(raw(fields))
            for name in found:
                shown += self._output(name)
        return shown

    def _output(self, terminal_id: str) -> list[Raw]:
        """Return the output and the end of a terminal that the client was not sent yet."""
        live = self._live.get(terminal_id)
        if live is None:
            return []
        meta: dict[str, object] = {}
        if data := live.text(self._terminals.output(terminal_id)):
            meta[meta_terminals.OUTPUT] = {"terminal_id": terminal_id, "data": data}
        status = self._terminals.exit_status(terminal_id)
        if status is not None and not live.is_ended:
            live.is_ended = True
            ended = {"exit_code": status.get("exitCode"), "signal": status.get("signal")}
            meta[meta_terminals.EXIT] = {"terminal_id": terminal_id, **ended}
        return [raw(_empty(live.tool_call_id, _meta=meta))] if meta else []

    def _sent(self, call: _Call) -> None:
        call.sent, call.is_behind = self._size(call), False

    def _size(self, call: _Call) -> int:
        return call.bytes + sum(map(self._terminals.size, call.terminals))


def _empty(tool_call_id: str, **patch: object) -> dict[str, object]:
    return {"sessionUpdate": "tool_call_update", "toolCallId": tool_call_id, **patch}


# -- parts of calls, for a v2 client; the rules for tool calls in permission requests are the same --------------


def patch_to_v2(
    fields: dict[str, Raw], losses: Counter[str], terminals: Container[str] = frozenset()
) -> dict[str, Raw]:
    """Return the members of a v1 patch that change a value: null means no change there. `terminals` are the
    agent's.
    """
    patch = without_nulls(fields)
    # It offers a cancel to clients that this agent does not support.
    patch.pop("capabilities", None)
    if _is_cancelled(patch):
        patch["status"] = raw(CANCELLED)
    if "content" in patch:
        patch["content"] = raw([content_to_v2(each, losses, terminals) for each in entries(patch["content"])])
    if "locations" in patch:
        patch["locations"] = raw([_location_to_v2(each, losses) for each in entries(patch["locations"])])
    return patch


def _is_cancelled(update: dict[str, Raw]) -> bool:
    """True if turnwire closed the call because its turn was cancelled: v1 has no such status."""
    return "_meta" in update and text_of(members(members(update["_meta"]).get(VENDOR)), CLOSED) == CANCELLED


def content_to_v2(item: Raw, losses: Counter[str], terminals: Container[str] = frozenset()) -> Raw:
    """Return one item of a tool call's content in the form of v2."""
    kind = named(item, "type")
    if kind == "diff":
        losses["diff_texts"] += 1
        return changed_file(members(item))
    if kind == "terminal" and (named(item, "terminalId") or "") not in terminals:
        losses["terminal_of_client"] += 1
        return text_item(_named(named(item, "terminalId")), members(item).get("_meta"))
    return item


def _location_to_v2(location: Raw, losses: Counter[str]) -> Raw:
    parts = members(location)
    if parts.get("line") is None or bytes(parts["line"]) != b"0":
        return location
    losses["line_zero"] += 1
    return raw({name: value for name, value in parts.items() if name != "line"})


# -- parts of calls, for a v1 client ----------------------------------------------------------------------------


Shows: TypeAlias = Callable[[str], str]
"""A function that returns the current text of a terminal by its id."""


def patch_to_v1(fields: dict[str, Raw], losses: Counter[str], shows: Shows | None) -> dict[str, Raw]:
    """Return the members of a v2 patch that v1 can express. A cleared list is an empty one."""
    patch = dict(fields)
    if patch.pop("capabilities", None) is not None:
        losses["item_capabilities"] += 1
    for name in ("name", "title", "rawInput", "rawOutput"):
        if name in patch and is_null(patch[name]):
            losses["scalar_clear"] += 1
            del patch[name]
    if "_meta" in patch and is_null(patch["_meta"]):
        losses["meta_clear"] += 1
        del patch["_meta"]
    if "kind" in patch:
        patch["kind"] = raw(_kind_to_v1(text_of(patch, "kind"), losses))
    if "status" in patch:
        patch["status"] = raw(_status_to_v1(text_of(patch, "status"), losses))
    if "content" in patch:
        patch["content"] = raw([content_to_v1(each, losses, shows) for each in entries(patch["content"])])
    if "locations" in patch:
        patch["locations"] = raw(entries(patch["locations"]))
    return patch


def _kind_to_v1(kind: str | None, losses: Counter[str]) -> str:
    if kind is None or kind in V1_KINDS:
        return kind or "other"
    losses["tool_kind"] += 1
    return "other"


def _status_to_v1(status: str | None, losses: Counter[str]) -> str:
    if status is None or status in V1_STATUS:
        return status or "pending"
    losses["tool_status"] += 1
    return "failed" if status == "cancelled" else "in_progress"


def content_to_v1(item: Raw, losses: Counter[str], shows: Shows | None) -> Raw:
    """Return one item of a tool call's content in the form of v1. Without `shows` terminals stay terminals."""
    parts = members(item)
    match text_of(parts, "type"):
        case "content":
            block = parts.get("content")
            return item if block is None else raw({**parts, "content": block_to_v1(block, losses)})
        case "diff":
            losses["diff_changes"] += 1
            return text_item(as_text(parts), parts.get("_meta"))
        case "terminal" if shows is not None:
            losses["terminal_of_agent"] += 1
            return text_item(shows(text_of(parts, "terminalId") or ""), parts.get("_meta"))
        case "terminal":
            return item
        case other:
            losses["content_unknown"] += 1
            return text_item(f"[{other}: content that this version of ACP cannot show]", parts.get("_meta"))


def block_to_v1(block: Raw, losses: Counter[str]) -> Raw:
    """Return a content block in the form of v1, which has exactly five types."""
    kind = named(block, "type")
    if kind in V1_BLOCKS:
        return block
    losses["content_unknown"] += 1
    return raw({"type": "text", "text": f"[{kind}: content that this version of ACP cannot show]"})


def text_item(text: str, meta: Raw | None) -> Raw:
    """Return text as content of a tool call."""
    item: dict[str, object] = {"type": "content", "content": {"type": "text", "text": text}}
    return raw(item if meta is None else {**item, "_meta": meta})


# -- terminals of a v2 agent, as text for a v1 client, which knows only its own terminals -----------------------


_SHOWN: Final = 64 * 1024
"""Maximum number of shown output bytes. All of it is resent with each change, so it must stay small."""
_CONTROLS: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)"  # OSC and other strings
    r"|\x1b[ -/]*[0-~]?"  # other escapes, and one that was cut
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]",
    re.DOTALL,
)
_LINE_ENDS: Final = re.compile(r"\r*\n|\r")
_NO_TIME: Final = 0


class Terminals:
    """The terminals of one session."""

    def __init__(self, known: dict[str, Terminal] | None = None) -> None:
        self._known = known or {}

    def __contains__(self, terminal_id: str) -> bool:
        return terminal_id in self._known

    def take(self, kind: str, update: Raw) -> str | None:
        """Apply an update. Return the id of its terminal; `None` if the update could not be applied.

        Bytes are joined before they are decoded, because a chunk may end inside a character.
        """
        event = SessionUpdated(at=_NO_TIME, kind=kind, update=update)
        fold = tools.update_terminal if kind == "terminal_update" else tools.append_output
        return text_of(members(update), "terminalId") if fold(self._known, event, 0) else None

    def output(self, terminal_id: str) -> bytearray:
        """Return all output."""
        terminal = self._known.get(terminal_id)
        return bytearray() if terminal is None else terminal.output

    def info(self, terminal_id: str) -> dict[str, str]:
        """Return the `terminal_info` of a terminal."""
        terminal = self._known.get(terminal_id)
        cwd = None if terminal is None else terminal.cwd
        return {"terminal_id": terminal_id} | ({} if cwd is None else {"cwd": cwd})

    def exit_status(self, terminal_id: str) -> dict[str, Raw] | None:
        """Return the members of the exit status; `None` while it runs."""
        terminal = self._known.get(terminal_id)
        return (
            None if terminal is None or not isinstance(terminal.exit_status, Raw) else members(terminal.exit_status)
        )

    def size(self, terminal_id: str) -> int:
        """Return the size of the output."""
        terminal = self._known.get(terminal_id)
        return 0 if terminal is None else len(terminal.output)

    def as_text(self, terminal_id: str) -> str:
        """Return the current text of a terminal."""
        terminal = self._known.get(terminal_id)
        if terminal is None:
            return _named(terminal_id)
        output = terminal.output[-_SHOWN:].decode(errors="replace")
        lines = [] if terminal.command is None else [f"$ {terminal.command}"]
        if len(terminal.output) > _SHOWN:
            lines.append("[earlier output is left out]")
        shown = sanitized(output)
        if shown:
            lines.append(shown.removesuffix("\n"))
        ended = _ended(terminal)
        told = lines if ended is None else [*lines, ended]
        return fenced("\n".join(told)) if told else _named(terminal_id)


def _named(terminal_id: str | None) -> str:
    """Return the text of a terminal without output."""
    return f"[terminal {terminal_id}]"


def sanitized(output: str) -> str:
    """Remove control characters that move the cursor, ring the bell or disguise text."""
    return _LINE_ENDS.sub("\n", _CONTROLS.sub("", output))


def _ended(terminal: Terminal) -> str | None:
    if not isinstance(terminal.exit_status, Raw):
        return None
    status = members(terminal.exit_status)
    signal = text_of(status, "signal")
    if signal is not None:
        return f"[ended by {signal}]"
    code = status.get("exitCode")
    return "[ended]" if code is None else f"[exit code {bytes(code).decode()}]"
