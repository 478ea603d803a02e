"""Updates whose latest value replaces earlier ones: commands, mode, options, usage, plans, the agent's session
title.

Values stay raw. The history is only in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType, json

from turnwire.projections.view.patch import Patch
from turnwire.session.choices import MODE, MODEL, mode_update, options_update
from turnwire.session.json_members import (
    entries,
    is_null,
    is_object,
    members,
    read_entries,
    read_members,
    read_text,
    text_of,
)
from turnwire.wire.jsonrpc import raw
from turnwire.wire.peek import beside
from turnwire.wire.schema.update import FULL_STATE

MAIN_PLAN: Final = "main"
"""The id of the one plan of a v1 agent."""


class Usage(Struct, omit_defaults=True):
    """The fill level of the agent's context, and the cost of the session."""

    used: Raw
    size: Raw
    cost: Raw | UnsetType = UNSET


class Latest(Struct, omit_defaults=True, rename="camel"):
    """The state that a late client needs besides the transcript."""

    commands: Raw | UnsetType = UNSET
    mode: str | None = None
    modes: Raw | UnsetType = UNSET
    """The modes that the agent offers, as it listed them when it opened the session."""
    model: str | None = None
    models: Raw | UnsetType = UNSET
    """The models that the agent offers, likewise."""
    config_options: Raw | UnsetType = UNSET
    usage: Usage | None = None
    plans: dict[str, Raw] = {}
    """Plans by id, each in the form of the `plan` of a v2 `plan_update`."""
    beside: Raw | UnsetType = UNSET
    """All other members of the answer that opened the session, as an object."""
    title: str | None = None
    """The agent's name for the session; the one to show is `Session.title`."""
    updated_at: str | None = None
    meta: dict[str, Raw] = {}


LatestFold: TypeAlias = Callable[[Latest, dict[str, Raw], bool], bool]
"""Applies the members of an update to the values; the flag is True if null clears."""


def take_offers(latest: Latest, offers: Raw) -> None:
    """Set modes, models, options and commands from the agent's answer that opened the session."""
    members = read_members(offers) or {}
    latest.mode, latest.modes = _choice(members.get("modes"), "currentModeId", "availableModes")
    latest.model, latest.models = _choice(members.get("models"), "currentModelId", "availableModels")
    _set_config_options(latest, members, True)
    _set_commands(latest, members, True)
    latest.beside = beside(offers, _OF_OFFERS)


_OF_OFFERS: Final = frozenset({"sessionId", "modes", "models", "configOptions", "availableCommands"})


def _choice(offered: Raw | None, current: str, available: str) -> tuple[str | None, Raw | UnsetType]:
    members = (read_members(offered) if offered is not None else None) or {}
    listed = members.get(available)
    if listed is None or read_entries(listed) is None:
        return None, UNSET
    return read_text(members.get(current)), listed.copy()


def _set_commands(latest: Latest, members: dict[str, Raw], null_clears: bool) -> bool:
    commands = members.get("availableCommands")
    if commands is None or read_entries(commands) is None:
        return False
    latest.commands = commands.copy()
    return True


def _set_config_options(latest: Latest, members: dict[str, Raw], null_clears: bool) -> bool:
    options = members.get("configOptions")
    if options is None or read_entries(options) is None:
        return False
    latest.config_options = options.copy()
    for option in map(read_members, read_entries(options) or ()):
        category, value = (read_text((option or {}).get(name)) for name in ("category", "currentValue"))
        # An option of these categories supersedes the agent's separate list, which may be older.
        if category == MODE and value is not None and latest.modes is not UNSET:
            latest.mode = value
        elif category == MODEL and value is not None and latest.models is not UNSET:
            latest.model = value
    return True


def offered_choice(latest: Latest, category: str) -> tuple[str | None, Raw | UnsetType]:
    """Return the current mode or model (`category`) and the offered ones, also those of an option."""
    current, offered = (latest.mode, latest.modes) if category == MODE else (latest.model, latest.models)
    if offered is not UNSET or latest.config_options is UNSET:
        return current, offered
    for option in map(members, entries(latest.config_options)):
        if text_of(option, "category") == category and (values := _values(option.get("options"))):
            key = "id" if category == MODE else "modelId"
            listed = [{(key if name == "value" else name): item for name, item in each.items()} for each in values]
            return text_of(option, "currentValue"), raw(listed)
    return current, offered


def _values(options: Raw | None) -> list[dict[str, Raw]]:
    """Return the values of a select, which may be in groups."""
    found: list[dict[str, Raw]] = []
    for each in map(members, entries(options)):
        found += [each] if "value" in each else _values(each.get("options"))
    return found


def _set_mode(latest: Latest, members: dict[str, Raw], null_clears: bool) -> bool:
    # ACP's page shows `modeId`, its schema has `currentModeId`.
    mode = read_text(members.get("currentModeId")) or read_text(members.get("modeId"))
    if mode is None:
        return False
    latest.mode = mode
    return True


def _set_usage(latest: Latest, members: dict[str, Raw], null_clears: bool) -> bool:
    used, size = members.get("used"), members.get("size")
    if used is None or size is None or is_null(used) or is_null(size):
        return False
    known = latest.usage.cost if latest.usage is not None and null_clears else UNSET
    cost = Patch(members, null_clears=True).raw("cost", known)
    latest.usage = Usage(used.copy(), size.copy(), cost)
    return True


def _set_plan(latest: Latest, members: dict[str, Raw], null_clears: bool) -> bool:
    """Set the v1 plan, replaced as a whole. Stored in the form of v2, so that readers know only one."""
    entries = members.get("entries")
    if entries is None or read_entries(entries) is None:
        return False
    latest.plans[MAIN_PLAN] = Raw(b'{"type":"items","planId":"main","entries":%b}' % bytes(entries))
    return True


def _update_plan(latest: Latest, members: dict[str, Raw], null_clears: bool) -> bool:
    plan = members.get("plan")
    if plan is None or not is_object(plan):
        return False
    plan_id = read_text((read_members(plan) or {}).get("planId"))
    if plan_id is None:
        return False
    latest.plans[plan_id] = plan.copy()
    return True


def _remove_plan(latest: Latest, members: dict[str, Raw], null_clears: bool) -> bool:
    plan_id = read_text(members.get("planId"))
    if plan_id is None:
        return False
    latest.plans.pop(plan_id, None)
    return True


def _describe_session(latest: Latest, members: dict[str, Raw], null_clears: bool) -> bool:
    patch = Patch(members, null_clears=True)
    latest.title = patch.text("title", latest.title)
    latest.updated_at = patch.text("updatedAt", latest.updated_at)
    latest.meta = patch.meta(latest.meta)
    return True


LATEST_FOLDS: Mapping[str, LatestFold] = {
    "available_commands_update": _set_commands,
    "config_option_update": _set_config_options,
    "current_mode_update": _set_mode,
    "usage_update": _set_usage,
    "plan": _set_plan,
    "plan_update": _update_plan,
    "plan_removed": _remove_plan,
    "session_info_update": _describe_session,
}
"""The fold of each kind of update."""

# A reader that joins late is sent the latest value of each from here.
assert LATEST_FOLDS.keys() >= FULL_STATE, "a kind that replaces what came before has a latest value"


def latest_updates(latest: Latest, title: str | None, agent_version: int) -> list[Raw]:
    """Return the current values for a client without the history: one update for each known value.

    The inverse of the folds above. `title` is the name to show, which need not be the agent's.
    """
    updates: list[Raw] = []
    if latest.commands is not UNSET:
        updates.append(raw({"sessionUpdate": "available_commands_update", "availableCommands": latest.commands}))
    if latest.mode is not None and agent_version == 1:
        updates.append(mode_update(latest.mode))
    if latest.config_options is not UNSET:
        updates.append(options_update(latest.config_options))
    if latest.usage is not None:
        usage = json.decode(json.encode(latest.usage), type=dict[str, Raw])
        updates.append(raw({"sessionUpdate": "usage_update", **usage}))
    if title is not None:
        updates.append(raw({"sessionUpdate": "session_info_update", "title": title}))
    updates += [_plan_now(plan_id, plan, agent_version) for plan_id, plan in latest.plans.items()]
    return updates


def _plan_now(plan_id: str, plan: Raw, agent_version: int) -> Raw:
    if agent_version == 1 and plan_id == MAIN_PLAN:
        entries = json.decode(plan, type=dict[str, Raw]).get("entries", [])
        return raw({"sessionUpdate": "plan", "entries": entries})
    return raw({"sessionUpdate": "plan_update", "plan": plan})
