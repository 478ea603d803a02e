"""Updates in ACP v2, the SDK's internal form, with v1 forms where v1 can express more.

A content item of a tool call may carry its v1 form in `_meta.turnwire.v1`, because v1 has whole texts in diffs and
client terminals, which no v2 item can hold. `for_v1` replaces the item by that form, `for_v2` removes the form.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import Any, Final, TypeAlias, cast

import msgspec
from msgspec import Raw

from turnwire.projections.translate.diffs import git_patch
from turnwire.session.json_members import child
from turnwire.wire.jsonrpc import raw
from turnwire.wire.methods import VENDOR
from turnwire.wire.schema.update import ABOUT_TOOL_CALLS

Json: TypeAlias = dict[str, Any]

MESSAGE: Final = "agent_message_chunk"
THOUGHT: Final = "agent_thought_chunk"
_OWN: Final = f'"{VENDOR}"'.encode()


def text_block(text: str) -> Json:
    return {"type": "text", "text": text}


def as_block(content: str | Json) -> Json:
    """Return a content block from text or a block. Raises `TypeError` or `ValueError` for anything else."""
    if isinstance(content, str):
        return text_block(content)
    if not isinstance(content, dict):  # pyright: ignore[reportUnnecessaryIsInstance]  authors pass anything
        raise TypeError(f"give text or a content block, not {shown(content)}; str(…) makes text of it")
    if not isinstance(content.get("type"), str):
        raise ValueError(f"a content block has a `type`, such as text or image; this has none: {shown(content)}")
    return content


def shown(value: object) -> str:
    """Return an author's argument for an error message."""
    return f"{type(value).__name__} {reprlib.repr(value)}"


def content_item(content: str | Json) -> Json:
    """Text or a block as an item of a tool call's content."""
    return {"type": "content", "content": as_block(content)}


def diff_item(path: str, old: str | None, new: str) -> Json:
    """Return the diff item of a file change. Without an old text the file is new."""
    change = {"operation": "add" if old is None else "modify", "path": path}
    patch = {"format": "git_patch", "text": git_patch(path, old, new)}
    whole = {"type": "diff", "path": path, "oldText": old, "newText": new}
    item: Json = {"type": "diff", "changes": [change]}
    if old != new:
        item["patch"] = patch
    return {**item, "_meta": {VENDOR: {"v1": whole}}}


def client_terminal_item(terminal_id: str) -> Json:
    """Return the item of a client's terminal, which v1 clients show as it runs."""
    own = {"type": "terminal", "terminalId": terminal_id}
    return {**own, "_meta": {VENDOR: {"v1": own}}}


def user_message(message_id: str, blocks: list[Any]) -> Json:
    return {"sessionUpdate": "user_message", "messageId": message_id, "content": blocks}


def called(update: Json) -> str | None:
    """The tool call that an update is about."""
    call_id = update.get("toolCallId")
    return call_id if update["sessionUpdate"] in ABOUT_TOOL_CALLS and isinstance(call_id, str) else None


def call_ended(call_id: str, status: str) -> Json:
    """Return the update with a tool call's final status."""
    return {"sessionUpdate": "tool_call_update", "toolCallId": call_id, "status": status}


def marked_late(update: Json) -> Json:
    """Mark an update as sent after the end of its turn."""
    meta = child(update, "_meta")
    return {**update, "_meta": {**meta, VENDOR: {**child(meta, VENDOR), "late": True}}}


# -- the v1 form of an item -----------------------------------------------------------------------------------


def for_v1(update: Raw) -> Raw:
    """Each item that has a v1 form as that."""
    return _with_items(update, _own_form) if _OWN in bytes(update) else update


def for_v2(update: Raw) -> Raw:
    """Return the update without v1 forms."""
    return _with_items(update, _bare) if _OWN in bytes(update) else update


def from_v1(update: Json) -> Json:
    """Return a v1 update as v2 whose diffs and terminals carry their v1 form."""
    items = update.get("content")
    if update.get("sessionUpdate") not in ABOUT_TOOL_CALLS or not isinstance(items, list):
        return update
    return {**update, "content": [_carrying(each) for each in cast("list[Any]", items)]}


def _carrying(item: Any) -> Any:
    fields: Json = cast("Json", item) if isinstance(item, dict) else {}
    if fields.get("type") not in {"diff", "terminal"}:
        return cast("Any", item)
    meta = child(fields, "_meta")
    return {**fields, "_meta": {**meta, VENDOR: {**child(meta, VENDOR), "v1": fields}}}


def _with_items(update: Raw, change: Callable[[Json, Json], Json]) -> Raw:
    fields: Json = msgspec.json.decode(update)
    content = fields.get("content")
    if fields.get("sessionUpdate") not in ABOUT_TOOL_CALLS or content is None:
        return update
    if isinstance(content, list):
        fields["content"] = [_changed(each, change) for each in cast("list[Any]", content)]
    else:
        fields["content"] = _changed(content, change)
    return raw(fields)


def _changed(item: Any, change: Callable[[Json, Json], Json]) -> Any:
    fields: Json = cast("Json", item) if isinstance(item, dict) else {}
    own = child(fields, "_meta", VENDOR, "v1")
    return change(own, fields) if own else cast("Any", item)


def _own_form(own: Json, item: Json) -> Json:
    return own


def _bare(own: Json, item: Json) -> Json:
    meta = dict(child(item, "_meta"))
    own = {name: value for name, value in child({"own": meta.pop(VENDOR)}, "own").items() if name != "v1"}
    left = {**meta, **({VENDOR: own} if own else {})}
    plain = {name: value for name, value in item.items() if name != "_meta"}
    return {**plain, "_meta": left} if left else plain
