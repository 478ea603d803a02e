"""The model's plan: `update_plan`.

Only checked here. Showing it is the loop's: the plan belongs to the turn, not to a tool call.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from turnwire_agent.tools.tool import Arguments, checked, tool_spec, wrong
from turnwire_agent.tools.workplace import ShownCall, Workplace

MOST_ENTRIES = 50


class PlanEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One step, with ACP's values."""

    content: Annotated[str, Meta(description="The step in a few words.", min_length=1, max_length=2000)]
    status: Literal["pending", "in_progress", "completed"] = "pending"
    priority: Literal["high", "medium", "low"] = "medium"


class PlanArguments(Arguments):
    entries: Annotated[
        tuple[PlanEntry, ...],
        Meta(description="All steps of the plan; they replace what was shown before.", max_length=MOST_ENTRIES),
    ]


class UpdatePlan:
    """The plan as the user sees it."""

    spec = tool_spec(
        "update_plan",
        "Show the user the steps of a longer task, and later which of them are done. Always give the whole plan. "
        "Have at most one step in progress. Not for small tasks.",
        PlanArguments,
    )
    kind = "think"
    asks = False
    edits = False

    def title(self, arguments: dict[str, Any]) -> str:
        return "Update the plan"

    def entries(self, arguments: dict[str, Any]) -> tuple[PlanEntry, ...]:
        """Return the entries for the loop to show. Raises `RequestRefused`."""
        asked = checked(arguments, PlanArguments, self.spec.name)
        if any(not entry.content.strip() for entry in asked.entries):
            raise wrong("a step of the plan is empty; say what it is")
        return asked.entries

    async def prepare(self, workplace: Workplace, arguments: dict[str, Any], call: ShownCall) -> None:
        self.entries(arguments)

    async def run(self, workplace: Workplace, arguments: dict[str, Any], call: ShownCall) -> str:
        self.entries(arguments)
        return "The plan is shown.\n"
