"""The tools as described to a model, and the plan."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from agent_kit.tool_kit import refused, use
from turnwire_agent.agent import offered_tools
from turnwire_agent.tools.plan import PlanEntry, UpdatePlan

TOOLS = offered_tools(fetch=True)


@pytest.mark.parametrize("name", sorted(TOOLS))
def test_each_tool_has_a_schema_that_every_provider_takes(name: str) -> None:
    spec = TOOLS[name].spec
    assert re.fullmatch(r"[a-z_]{1,64}", spec.name)
    assert spec.schema["type"] == "object"
    assert "$ref" not in json.dumps(spec.schema)
    jsonschema_rs.validator_for(spec.schema)
    assert all(each.get("description") for each in spec.schema["properties"].values())


def test_only_what_changes_or_leaves_the_machine_asks() -> None:
    kinds = {name: (tool.kind, tool.asks, tool.edits) for name, tool in TOOLS.items()}
    assert kinds == {
        "read": ("read", False, False),
        "list": ("read", False, False),
        "search": ("search", False, False),
        "write": ("edit", True, True),
        "edit": ("edit", True, True),
        "run": ("execute", True, False),
        "update_plan": ("think", False, False),
        "fetch": ("fetch", True, False),
    }


def test_fetch_is_offered_only_when_allowed() -> None:
    assert "fetch" not in offered_tools()


def test_without_fetch_no_http_client_is_loaded() -> None:
    code = "import sys; import turnwire_agent.agent as a; a.offered_tools(); print('httpx' in sys.modules)"
    # The package itself offers `connect`, which may load one; what counts is what the tools add.
    before = "import sys; import turnwire; print('httpx' in sys.modules)"
    found = [
        subprocess.run([sys.executable, "-c", each], capture_output=True, text=True, check=True).stdout
        for each in (before, code)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("name", sorted(TOOLS))
@pytest.mark.parametrize("arguments", [{}, {"path": None}, {"path": ["x"]}, {"command": {}}, {"entries": 3}])
def test_a_title_can_be_made_of_any_arguments(name: str, arguments: dict[str, Any]) -> None:
    title = TOOLS[name].title(arguments)
    assert title
    assert "\n" not in title


@pytest.mark.anyio
async def test_a_plan_is_checked_and_given_to_the_loop(tmp_path: Path) -> None:
    entries = [{"content": "look", "status": "completed"}, {"content": "do", "priority": "high"}]
    assert UpdatePlan().entries({"entries": entries}) == (
        PlanEntry(content="look", status="completed"),
        PlanEntry(content="do", priority="high"),
    )
    assert await use(UpdatePlan(), tmp_path, entries=entries) == "The plan is shown.\n"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (None, "Expected `array`"),
        ([{"content": "x", "status": "done"}], "Invalid enum value 'done' - at `$.entries[0].status`"),
        ([{"content": "  "}], "is empty"),
        ([{"text": "x"}], "`text`"),
        ([{"content": "x"}] * 51, "length <= 50"),
    ],
)
async def test_a_plan_that_is_none_is_told_in_words(tmp_path: Path, entries: Any, words: str) -> None:
    assert words in str(await refused(UpdatePlan(), tmp_path, entries=entries))
