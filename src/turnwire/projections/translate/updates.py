"""Translation of updates of an agent of one version, for a client of the other.

A translator maps each update, in log order, to the updates for the client: one, several, or an empty list. One
translator serves one incarnation of an agent's session for one client. It loses only information that `LOSSES`
lists, and counts that.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, TypeAlias

from msgspec import Raw

from turnwire.ids import PromptId
from turnwire.projections.meta_terminals import terminal_updates, without_terminals
from turnwire.projections.translate.messages import CHUNKS, WHOLE, MessagesToV1, MessagesToV2
from turnwire.projections.translate.offers import Modes, Options, commands_to_v1, commands_to_v2
from turnwire.projections.translate.tools import Terminals, ToolsToV1, ToolsToV2, block_to_v1
from turnwire.projections.view.latest import MAIN_PLAN
from turnwire.session.choices import mode_update
from turnwire.session.json_members import entries, is_null, members, named, raw, text_of
from turnwire.wire.schema.update import MARKERS, TOOL_CALLS

NO_OFFERS: Final = Raw(b"{}")
_NULL: Final = Raw(b"null")
_V1_ALONE: Final = frozenset({"tool_call", "plan", "current_mode_update"})
_IN_BOTH: Final = frozenset(
    {
        *("session_info_update", "notice", "compaction_update", "plan_update", "plan_removed"),
        *("subagent_update", "session_message", "session_message_chunk"),
    }
)
"""Kinds that mean the same in both versions and are forwarded unchanged."""


def translator_for(
    agent_version: int,
    client_version: int,
    offers: Raw,
    *,
    life: int = 1,
    boolean_options: bool = True,
    terminals: bool = False,
    losses: Counter[str] | None = None,
) -> Translator | None:
    """Return a translator; `None` if the versions are equal: then updates are forwarded byte for byte.

    `life` numbers the incarnations of the agent's session, within which its ids retain their meaning. `losses` is
    incremented.
    """
    if agent_version == client_version:
        return None
    if client_version == 2:
        return UpdatesV1ToV2(offers, life=life, losses=losses)
    return UpdatesV2ToV1(offers, boolean_options=boolean_options, terminals=terminals, losses=losses)


class UpdatesV1ToV2:
    """Translator from a v1 agent to a v2 client."""

    def __init__(self, offers: Raw = NO_OFFERS, *, life: int = 1, losses: Counter[str] | None = None) -> None:
        self.losses = Counter[str]() if losses is None else losses
        self._messages = MessagesToV2(life)
        self._tools = ToolsToV2(self.losses)
        self._options = Modes(self.losses, offers)
        self._compactions: set[str] = set()

    def offers(self, offers: Raw) -> None:
        """Replace the offers after the agent reopened the session."""
        self._options.offers(offers)

    def mode(self, mode: str) -> list[Raw]:
        """Handle a mode that a client set and the agent accepted."""
        self._options.mode(mode)
        return [self._listed({})]

    def part(self) -> list[Raw]:
        """Return withheld updates, before an event that is not an update, such as a prompt or the end of a turn."""
        self._messages.part()
        return []

    def take(self, update: Raw, *, turn: PromptId | None) -> list[Raw]:
        """Return the client's updates for an update. `turn`: the turn that it belongs to, or that it followed."""
        fields = members(update)
        kind = text_of(fields, "sessionUpdate") or ""
        if kind in CHUNKS:
            return [self._messages.take(kind, fields, turn)]
        if kind in TOOL_CALLS:
            terminals = [each for _, each in terminal_updates(fields)]
            if terminals:
                fields = without_terminals(fields)
                self._tools.terminals |= {named(each, "terminalId") or "" for each in terminals}
            told, is_new = self._tools.take(fields, announced=kind == "tool_call")
            return self._behind([*terminals, *told], is_new=is_new)
        return self._state(kind, fields, update)

    def _state(self, kind: str, fields: dict[str, Raw], update: Raw) -> list[Raw]:
        match kind:
            case "plan":
                return [plan_to_v2(fields)]
            case "available_commands_update" if "availableCommands" in fields:
                return [raw({**fields, "availableCommands": commands_to_v2(fields["availableCommands"])})]
            case "config_option_update" if "configOptions" in fields:
                self._options.options(fields["configOptions"])
                return [self._listed(fields)]
            case "current_mode_update":
                return self._current_mode(fields, update)
            case "usage_update":
                # v1 omits the cost if there is no cost; in v2 an absent cost would retain the old one.
                return [raw({**fields, "cost": fields.get("cost", _NULL)})]
            case _:
                return self._other(kind, fields, update)

    def _current_mode(self, fields: dict[str, Raw], update: Raw) -> list[Raw]:
        # ACP's page shows `modeId`, its schema has `currentModeId`.
        mode = text_of(fields, "currentModeId") or text_of(fields, "modeId")
        if mode is None:
            return [update]
        self._options.mode(mode)
        others = {name: value for name, value in fields.items() if name not in {"currentModeId", "modeId"}}
        return [self._listed(others)]

    def _listed(self, others: dict[str, Raw]) -> Raw:
        return raw({**others, "sessionUpdate": "config_option_update", "configOptions": self._options.listed()})

    def _other(self, kind: str, fields: dict[str, Raw], update: Raw) -> list[Raw]:
        if kind in MARKERS:
            return []
        if kind in {"compaction_update", "compaction_summary_chunk"}:
            named = text_of(fields, "compactionId") or ""
            is_new = named not in self._compactions
            self._compactions.add(named)
            return self._behind([update], is_new=is_new)
        # The union of v2 is open: kinds of neither version are forwarded as well.
        return self._behind([update], is_new=kind not in _IN_BOTH)

    def _behind(self, told: list[Raw], *, is_new: bool) -> list[Raw]:
        """End the last message if a new item follows it."""
        if is_new:
            self._messages.part()
        return told


class UpdatesV2ToV1:
    """Translator from a v2 agent to a v1 client."""

    def __init__(
        self,
        offers: Raw = NO_OFFERS,
        *,
        boolean_options: bool = True,
        terminals: bool = False,
        losses: Counter[str] | None = None,
    ) -> None:
        """`terminals`: the client shows an agent's terminals by the `_meta` of tool calls."""
        self.losses = Counter[str]() if losses is None else losses
        self._terminals = Terminals()
        self._messages = MessagesToV1(self.losses)
        self._tools = ToolsToV1(self.losses, self._terminals, shows=terminals)
        self._plans = PlansToV1(self.losses)
        self._booleans = boolean_options
        self._options = Options(self.losses, offers, booleans=boolean_options)
        self._cost = _NULL

    def offers(self, offers: Raw) -> None:
        self._options = Options(self.losses, offers, booleans=self._booleans)

    def mode(self, mode: str) -> list[Raw]:
        self._options.mode(mode)
        return [mode_update(mode), self._listed({})]

    def part(self) -> list[Raw]:
        return self._tools.flush()

    def take(self, update: Raw, *, turn: PromptId | None) -> list[Raw]:
        fields = members(update)
        kind = text_of(fields, "sessionUpdate") or ""
        if kind in CHUNKS:
            return [self._messages.take(kind, fields)]
        if kind in WHOLE:
            return self._messages.whole(kind, fields)
        match kind:
            case "tool_call_update":
                return self._tools.take(fields)
            case "tool_call_content_chunk":
                return self._tools.append(fields)
            case "terminal_update" | "terminal_output_chunk":
                return self._terminal(kind, fields, update)
            case _:
                return self._state(kind, fields, update)

    def _terminal(self, kind: str, fields: dict[str, Raw], update: Raw) -> list[Raw]:
        if not self._tools.shows_terminals:
            self.losses["terminal_of_agent"] += 1
        if "capabilities" in fields:
            self.losses["item_capabilities"] += 1
        terminal_id = self._terminals.take(kind, update)
        if terminal_id is None:
            return []
        return self._tools.changed(terminal_id, is_final=kind == "terminal_update")

    def _state(self, kind: str, fields: dict[str, Raw], update: Raw) -> list[Raw]:
        match kind:
            case "plan_update":
                return self._plans.take(fields)
            case "plan_removed":
                return self._plans.remove(fields)
            case "available_commands_update" if "availableCommands" in fields:
                commands = commands_to_v1(fields["availableCommands"], self.losses)
                return [raw({**fields, "availableCommands": commands})]
            case "config_option_update" if "configOptions" in fields:
                return self._new_options(fields)
            case "usage_update":
                return [self._usage(fields)]
            case "compaction_summary_chunk" if "content" in fields:
                return [raw({**fields, "content": block_to_v1(fields["content"], self.losses)})]
            case _:
                return self._other(kind, fields, update)

    def _new_options(self, fields: dict[str, Raw]) -> list[Raw]:
        before = self._options.current
        self._options.options(fields["configOptions"])
        told, mode = [self._listed(fields)], self._options.current
        if mode is not None and mode != before:
            told.append(mode_update(mode))
        return told

    def _listed(self, others: dict[str, Raw]) -> Raw:
        return raw({**others, "sessionUpdate": "config_option_update", "configOptions": self._options.listed()})

    def _usage(self, fields: dict[str, Raw]) -> Raw:
        # v2 omits an unchanged cost; in v1 an absent cost would mean that there is no cost.
        self._cost = fields.get("cost", self._cost).copy()
        others = {name: value for name, value in fields.items() if name != "cost"}
        return raw(others if is_null(self._cost) else {**others, "cost": self._cost})

    def _other(self, kind: str, fields: dict[str, Raw], update: Raw) -> list[Raw]:
        if kind in MARKERS:
            return []
        if kind in {"state_update", "state_change"}:
            # The turn's events report the foreground.
            if "background" in fields and not is_null(fields["background"]):
                self.losses["background"] += 1
            return []
        if kind not in _IN_BOTH and kind not in _V1_ALONE and not kind.startswith("_"):
            self.losses["unknown_update"] += 1
        return [update]


Translator: TypeAlias = UpdatesV1ToV2 | UpdatesV2ToV1
"""The translator of one agent's updates for one client, in order."""


# -- plans: one list of entries in v1, any number of named plans in several forms in v2 -------------------------


_PLAN_STATUS: Final = frozenset({"pending", "in_progress", "completed"})
_PLAN_PRIORITY: Final = frozenset({"high", "medium", "low"})


def plan_to_v2(update: dict[str, Raw]) -> Raw:
    """Translate a v1 `plan`."""
    plan = {"type": "items", "planId": MAIN_PLAN, "entries": update.get("entries", Raw(b"[]"))}
    others = {name: value for name, value in update.items() if name not in {"sessionUpdate", "entries"}}
    return raw({"sessionUpdate": "plan_update", "plan": plan, **others})


class PlansToV1:
    """Translator of plans for a v1 client."""

    def __init__(self, losses: Counter[str]) -> None:
        self._losses = losses
        self._plans: dict[str, list[Raw]] = {}

    def take(self, update: dict[str, Raw]) -> list[Raw]:
        """Translate `plan_update`."""
        plan = members(update.get("plan"))
        plan_id = text_of(plan, "planId")
        if plan_id is None:
            return [raw(update)]
        if text_of(plan, "type") != "items":
            self._losses["plan_form"] += 1
            return self._forget(plan_id)
        self._plans[plan_id] = [each for each in map(self._entry, entries(plan.get("entries"))) if each]
        if len(self._plans) > 1:
            self._losses["plan_several"] += 1
        return [self._all(update)]

    def remove(self, update: dict[str, Raw]) -> list[Raw]:
        """Translate `plan_removed`."""
        plan_id = text_of(update, "planId")
        return [raw(update)] if plan_id is None else self._forget(plan_id)

    def _forget(self, plan_id: str) -> list[Raw]:
        return [] if self._plans.pop(plan_id, None) is None else [self._all({})]

    def _all(self, update: dict[str, Raw]) -> Raw:
        listed = [entry for plan in self._plans.values() for entry in plan]
        others = {name: value for name, value in update.items() if name not in {"sessionUpdate", "plan"}}
        return raw({"sessionUpdate": "plan", "entries": listed, **others})

    def _entry(self, entry: Raw) -> Raw | None:
        parts = members(entry)
        status, priority = text_of(parts, "status"), text_of(parts, "priority")
        if status in _PLAN_STATUS and priority in _PLAN_PRIORITY:
            return entry
        self._losses["plan_entry"] += 1
        if status == "cancelled":
            return None
        fitting = {
            "status": status if status in _PLAN_STATUS else "in_progress",
            "priority": priority if priority in _PLAN_PRIORITY else "medium",
        }
        return raw({**parts, **fitting})
