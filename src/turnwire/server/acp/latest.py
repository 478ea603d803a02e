"""What is now, for a client that has not heard how it came about.

Takes a session's view; gives the latest value of each state-like update, in the words of the session's agent: the
commands, the mode, the options, what is used up, the title, the plans. Never tells history.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Raw, json

from turnwire.core.view import MAIN_PLAN, View
from turnwire.wire.jsonrpc import raw


def latest_updates(view: View, agent_version: int) -> list[Raw]:
    """One update for each thing that is known."""
    latest = view.latest
    updates: list[dict[str, Any]] = []
    if latest.commands is not UNSET:
        updates.append({"sessionUpdate": "available_commands_update", "availableCommands": latest.commands})
    if latest.mode is not None and agent_version == 1:
        updates.append({"sessionUpdate": "current_mode_update", "currentModeId": latest.mode})
    if latest.config_options is not UNSET:
        updates.append({"sessionUpdate": "config_option_update", "configOptions": latest.config_options})
    if latest.usage is not None:
        updates.append(
            {"sessionUpdate": "usage_update", **json.decode(json.encode(latest.usage), type=dict[str, Raw])}
        )
    if view.session.title is not None:
        updates.append({"sessionUpdate": "session_info_update", "title": view.session.title})
    updates += [_plan(plan_id, plan, agent_version) for plan_id, plan in latest.plans.items()]
    return [raw(each) for each in updates]


def _plan(plan_id: str, plan: Raw, agent_version: int) -> dict[str, Any]:
    if agent_version == 1 and plan_id == MAIN_PLAN:
        return {"sessionUpdate": "plan", "entries": json.decode(plan, type=dict[str, Raw]).get("entries", [])}
    return {"sessionUpdate": "plan_update", "plan": plan}
