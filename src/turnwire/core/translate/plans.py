"""Plans: one list of entries in v1, any number of named plans in several forms in v2.

Takes plan updates; gives those of the other version. For v1 the entries of all plans are one list, in the order in
which the plans appeared.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from msgspec import Raw

from turnwire.core.translate.members import entries, members, raw, text_of
from turnwire.core.view.latest import MAIN_PLAN

_STATUS: Final = frozenset({"pending", "in_progress", "completed"})
_PRIORITY: Final = frozenset({"high", "medium", "low"})


def plan_to_v2(update: dict[str, Raw]) -> Raw:
    """A v1 `plan`."""
    plan = {"type": "items", "planId": MAIN_PLAN, "entries": update.get("entries", Raw(b"[]"))}
    others = {name: value for name, value in update.items() if name not in {"sessionUpdate", "entries"}}
    return raw({"sessionUpdate": "plan_update", "plan": plan, **others})


class PlansToV1:
    """For a v1 client."""

    def __init__(self, losses: Counter[str]) -> None:
        self._losses = losses
        self._plans: dict[str, list[Raw]] = {}

    def take(self, update: dict[str, Raw]) -> list[Raw]:
        """`plan_update`."""
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
        """`plan_removed`."""
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
        if status in _STATUS and priority in _PRIORITY:
            return entry
        self._losses["plan_entry"] += 1
        if status == "cancelled":
            return None
        fitting = {
            "status": status if status in _STATUS else "in_progress",
            "priority": priority if priority in _PRIORITY else "medium",
        }
        return raw({**parts, **fitting})
