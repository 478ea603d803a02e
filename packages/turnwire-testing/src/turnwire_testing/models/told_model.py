"""A model that follows commands in the newest prompt, so that every turn of every agent is the same.

The commands `[[say WORD]]`, `[[hang WORD]]`, `[[run WORD]]` (the agent's tool creates a file of that name) and
`[[call TOOL {"its": "arguments"}]]` may appear anywhere in a prompt. A prompt without a command gets a short
answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from turnwire_testing.models.recipes import Recipe
from turnwire_testing.models.server import CallTool, Hang, Reply, Say, Script

TOLD = re.compile(r"\[\[(?:(say|run|hang) ([\w.-]+)|(call) ([\w.-]+) (\{.*?\}))\]\]")
RESULTS = ('"tool_result"', '"role": "tool"', "_call_output", '"functionResponse"')
"""Texts that mark a tool result in the requests of each API."""
PROMPTS: Final[Mapping[str, str]] = {"plain": "[[say hello]]", "wait": "[[hang here]]"}
TOOL_PROMPTS: Final[Mapping[str, str]] = {"tool": "[[run made-{n}]]", "ask": "[[run made-{n}]]"}


def prompts(recipe: Recipe) -> Mapping[str, str]:
    """Return the prompts that the model understands, by the scenes of the conformance suite."""
    return {**PROMPTS, **TOOL_PROMPTS} if recipe.tool else PROMPTS


def told_model(recipe: Recipe) -> Script:
    """The script of such a model. An agent with tools that asks without them wants a title and the like."""

    def reply(body: dict[str, Any]) -> Reply:
        text = json.dumps(body.get("messages") or body.get("input") or body.get("contents"))
        found = list(TOLD.finditer(text))
        if not found or (recipe.tool and not body.get("tools")):
            return [Say("Nothing to do.")]
        told = found[-1]
        has_result = any(each in text[told.end() :] for each in RESULTS)
        match told[1] or told[3]:
            case "hang":
                return [Say("I begin."), Hang()]
            case "run" if recipe.tool and not has_result:
                return [Say("I make a file."), recipe.call(told[2])]
            case "call" if not has_result:
                return [Say("I call a tool."), CallTool(told[4], _arguments(told[5]))]
            case _:
                return [Say(f"said {told[2] or told[4]}")]

    return reply


def _arguments(quoted: str) -> dict[str, Any] | str:
    """The arguments of a tool as they stood in the prompt, where they were text inside of JSON."""
    text: str = json.loads(f'"{quoted}"')
    try:
        return json.loads(text)
    except ValueError:
        return text
