"""The parts of a tool call that differ between v1 and v2: content, locations, kind, status.

Takes single values; gives them in the words of the other version and counts what is lost. Keeps no state, so that
tool calls in updates and in permission requests are translated by the same rules.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Protocol

from msgspec import Raw

from turnwire.core.translate.diffs import as_text, changed_file
from turnwire.core.translate.members import entries, members, named, raw, text_of, without_nulls
from turnwire.core.view.patch import is_null

PATCHED: Final = ("name", "title", "kind", "status", "content", "locations", "rawInput", "rawOutput")
"""Members of a tool call that an update can change, in both versions."""
V1_KINDS: Final = frozenset(
    {"read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"}
)
V1_STATUS: Final = frozenset({"pending", "in_progress", "completed", "failed"})
V1_BLOCKS: Final = frozenset({"text", "image", "audio", "resource_link", "resource"})


class Shows(Protocol):
    """What a terminal shows now."""

    def __call__(self, terminal_id: str, /) -> str: ...


# -- for a v2 client -----------------------------------------------------------------------------------------


def patch_to_v2(given: dict[str, Raw], losses: Counter[str]) -> dict[str, Raw]:
    """The members of a v1 patch that change something: null says nothing there."""
    patch = without_nulls(given)
    # It says what a client may cancel, and there is nobody behind it who could.
    patch.pop("capabilities", None)
    if "content" in patch:
        patch["content"] = raw([content_to_v2(each, losses) for each in entries(patch["content"])])
    if "locations" in patch:
        patch["locations"] = raw([_location_to_v2(each, losses) for each in entries(patch["locations"])])
    return patch


def content_to_v2(item: Raw, losses: Counter[str]) -> Raw:
    """One item of a tool call's content."""
    kind = named(item, "type")
    if kind == "diff":
        losses["diff_texts"] += 1
        return changed_file(members(item))
    if kind == "terminal":
        losses["terminal_of_client"] += 1
        return text_item(f"[terminal {named(item, 'terminalId')}]", members(item).get("_meta"))
    return item


def _location_to_v2(location: Raw, losses: Counter[str]) -> Raw:
    parts = members(location)
    if parts.get("line") is None or bytes(parts["line"]) != b"0":
        return location
    losses["line_zero"] += 1
    return raw({name: value for name, value in parts.items() if name != "line"})


# -- for a v1 client -----------------------------------------------------------------------------------------


def patch_to_v1(given: dict[str, Raw], losses: Counter[str], shows: Shows) -> dict[str, Raw]:
    """The members of a v2 patch, as far as v1 can say them. A cleared list is an empty one."""
    patch = dict(given)
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


def content_to_v1(item: Raw, losses: Counter[str], shows: Shows) -> Raw:
    """One item of a tool call's content."""
    parts = members(item)
    match text_of(parts, "type"):
        case "content":
            block = parts.get("content")
            return item if block is None else raw({**parts, "content": block_to_v1(block, losses)})
        case "diff":
            losses["diff_changes"] += 1
            return text_item(as_text(parts), parts.get("_meta"))
        case "terminal":
            losses["terminal_of_agent"] += 1
            return text_item(shows(text_of(parts, "terminalId") or ""), parts.get("_meta"))
        case other:
            losses["content_unknown"] += 1
            return text_item(f"[{other}: content that this version of ACP cannot show]", parts.get("_meta"))


def block_to_v1(block: Raw, losses: Counter[str]) -> Raw:
    """A content block: v1 has five types and no others."""
    kind = named(block, "type")
    if kind in V1_BLOCKS:
        return block
    losses["content_unknown"] += 1
    return raw({"type": "text", "text": f"[{kind}: content that this version of ACP cannot show]"})


def text_item(text: str, meta: Raw | None) -> Raw:
    """Text as content of a tool call."""
    item: dict[str, object] = {"type": "content", "content": {"type": "text", "text": text}}
    return raw(item if meta is None else {**item, "_meta": meta})
