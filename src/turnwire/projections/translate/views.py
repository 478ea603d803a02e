"""Translation of a session's view to one version of ACP, independent of the agent's version.

The functions return parts of a view with the agent's payloads in the form for clients of that version. Parts in the
view's own format are unchanged: turns, plans, terminals. The version of an item is detected from its form, because
a session may have had agents of both versions.
"""

from __future__ import annotations

from collections import Counter

from msgspec import UNSET, Raw
from msgspec.structs import replace

from turnwire.ids import PromptId
from turnwire.projections.translate.messages import lived
from turnwire.projections.translate.offers import Modes, Options, commands_to_v1, commands_to_v2
from turnwire.projections.translate.permissions import translate_permission_request
from turnwire.projections.translate.sessions import current_offers
from turnwire.projections.translate.tools import (
    Terminals,
    block_to_v1,
    content_to_v1,
    content_to_v2,
    patch_to_v1,
    patch_to_v2,
)
from turnwire.projections.view import AnyItem, Compaction, Latest, Message, ToolCall, View
from turnwire.projections.view.transcript import Transcript, unnamed_key
from turnwire.session.events import PermissionRequested
from turnwire.session.json_members import as_object, entries, is_offered, members, raw, text_of

# -- options and permission requests -------------------------------------------------------------------------


def latest_in(view: View, version: int | None) -> Latest:
    """Return the latest values. Modes and models are selected by id, so both versions have them, in the form of v1.

    Without a version all values are in the agent's form, here and below.
    """
    latest, spoken = view.latest, view.transcript.speaker.protocol_version
    if version is None or version == spoken == 1:
        return latest
    offers, losses = current_offers(latest), Counter[str]()
    if spoken == 1:
        commands = UNSET if latest.commands is UNSET else commands_to_v2(latest.commands)
        has_any = latest.config_options is not UNSET or latest.modes is not UNSET
        listed = Modes(losses, offers).listed() if has_any else UNSET
        return replace(latest, commands=commands, config_options=listed)
    options = Options(losses, offers, booleans=True)
    modes = members(options.modes()).get("availableModes", UNSET)
    chosen = replace(latest, mode=options.current or latest.mode, modes=modes)
    if version == 2:
        return chosen
    commands = UNSET if latest.commands is UNSET else commands_to_v1(latest.commands, losses)
    listed = UNSET if latest.config_options is UNSET else options.listed()
    return replace(chosen, commands=commands, config_options=listed)


def can_cancel(view: View, item_id: str, *, is_tool: bool) -> bool:
    """True if the agent offers to cancel the tool call or terminal with this id."""
    item = view.transcript.tool(item_id) if is_tool else view.terminals.get(item_id)
    offered = UNSET if item is None else item.capabilities
    return offered is not UNSET and is_offered(as_object(offered), "cancel")


def permission_request_in(view: View, asked: PermissionRequested, version: int | None) -> PermissionRequested:
    """Return an open permission request in a version."""
    spoken = view.transcript.speaker.protocol_version
    if version is None or version == spoken:
        return asked
    params = translate_permission_request(
        asked.method, asked.params, spoken, version, asked.child or view.session.session_id
    )
    return replace(asked, params=params)


# -- the transcript ------------------------------------------------------------------------------------------


def items_in(view: View, version: int | None, first: int = 0, end: int | None = None) -> list[AnyItem]:
    """Return the items of the transcript from `first` up to, but excluding, `end`."""
    transcript, speaker = view.transcript, view.transcript.speaker
    items = transcript.span(first, transcript.count if end is None else end)
    if version is None or (version == speaker.protocol_version and speaker.life <= 1):
        return items
    terminals = Terminals(view.terminals)
    names = _Names(names_all=version == 2 and speaker.protocol_version == 1)
    names.begin(transcript, first, items)
    return [_item_in(names.named(each), version, terminals) for each in items]


class _Names:
    """Assigns message ids. v2 names every message: those of a v1 agent get the same ids as in updates."""

    def __init__(self, *, names_all: bool) -> None:
        self._names_all = names_all
        self._made: Counter[tuple[int, PromptId | None]] = Counter()

    def begin(self, transcript: Transcript, first: int, items: list[AnyItem]) -> None:
        """Count the unnamed messages before `items`, which begin at `first`, so that the ids continue."""
        if not self._names_all or not first:
            return
        wanted = {(each.life, each.prompt_id or each.after) for each in items if _is_unnamed(each)}
        before = transcript.past.end
        for each in transcript.span(before, first):
            self._count(each)
        for number in {page for pair in wanted for page in transcript.past.pages_with(unnamed_key(*pair))}:
            start = transcript.past.known.firsts[number]
            for each in transcript.past.page(number)[: max(first - start, 0)]:
                self._count(each)

    def _count(self, item: AnyItem) -> None:
        if _is_unnamed(item):
            self._made[item.life, item.prompt_id or item.after] += 1

    def named(self, item: AnyItem) -> AnyItem:
        if not self._names_all or not isinstance(item, Message) or item.is_prompt:
            return item
        name, turn = item.message_id, item.prompt_id or item.after
        if name is None:
            self._made[item.life, turn] += 1
            name = f"{turn or 'session'}.{self._made[item.life, turn]}"
        return replace(item, message_id=lived(name, item.life))


def _is_unnamed(item: AnyItem) -> bool:
    return isinstance(item, Message) and not item.is_prompt and item.message_id is None


def _item_in(item: AnyItem, version: int, terminals: Terminals) -> AnyItem:
    losses = Counter[str]()
    if isinstance(item, ToolCall):
        return _call_in(item, version, terminals, losses)
    if version == 2:
        return item
    if isinstance(item, Message):
        in_time = None if item.in_time is None else [block_to_v1(each, losses) for each in item.in_time]
        return replace(item, content=[block_to_v1(each, losses) for each in item.content], in_time=in_time)
    if isinstance(item, Compaction):
        return replace(item, summary=[block_to_v1(each, losses) for each in item.summary])
    return item


def _call_in(item: ToolCall, version: int, terminals: Terminals, losses: Counter[str]) -> ToolCall:
    content = [_content_in(each, version, terminals, losses) for each in item.content]
    fields = {"kind": raw(item.kind), "status": raw(item.status), "locations": raw(item.locations)}
    if version == 2:
        locations = entries(patch_to_v2(fields, losses)["locations"])
        return replace(item, content=content, locations=locations)
    patch = patch_to_v1(fields, losses, terminals.as_text)
    kind, status = text_of(patch, "kind") or item.kind, text_of(patch, "status") or item.status
    return replace(item, content=content, kind=kind, status=status, capabilities=UNSET)


def _content_in(content: Raw, version: int, terminals: Terminals, losses: Counter[str]) -> Raw:
    """Return one item of a tool call's content. A diff with whole texts and a terminal of the client have v1's
    form.
    """
    parts = members(content)
    match text_of(parts, "type"):
        case "diff":
            is_v1 = "newText" in parts
        case "terminal":
            is_v1 = (text_of(parts, "terminalId") or "") not in terminals
        case _:
            is_v1 = False
    if is_v1:
        return content_to_v2(content, losses) if version == 2 else content
    return content if version == 2 else content_to_v1(content, losses, terminals.as_text)
