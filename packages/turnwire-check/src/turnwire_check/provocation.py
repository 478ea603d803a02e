"""Prompts that make a peer perform each scene, by the agent's reported name.

An unknown agent gets the plain prompt only. Users can add prompts: `--provoke ask="…"`. In a text `{n}` is replaced
by a new number each time, for agents that create named objects on request.
"""

from __future__ import annotations

from collections.abc import Mapping

from turnwire.errors import ConfigError
from turnwire_check.case import SCENES, Scene

ANY: Mapping[Scene, str] = {"plain": "Say hello in one short sentence."}

RECIPES: Mapping[str, Mapping[Scene, str]] = {
    "turnwire-scripted-agent": {
        "wait": 'say 1 "waiting "\nnever',
        "tool": "tool call-{n} read Look",
        "ask": "ask call-{n} allow_once,reject_once",
        "fail": "say 1 oh\nerror -32603 no luck",
        "plan": "plan look; tell",
        "usage": "usage 5 1000",
        "read": "read /tmp/notes.txt",
        "terminal": "terminal true",
        "elicit": "elicit Who are you?",
        "background": "idle-speak say 1 later",
        "child": 'child helper say 1 "from a child"\nchild-rests helper',
    },
    "turnwire-agent": {
        "wait": "/demo long 600s",
        "tool": "/demo tools",
        "ask": "/demo permission",
        "fail": "/demo error",
        "plan": "/demo plan",
        "usage": "/demo usage",
        "read": "/demo tools",
        "terminal": "/demo command",
        "elicit": "/demo elicit",
        "background": "/demo background",
    },
}


def prompts_for(name: str, given: Mapping[Scene, str]) -> Mapping[Scene, str]:
    """Return the known prompts for an agent of this name, combined with the user's."""
    return {**ANY, **RECIPES.get(name, {}), **given}


def read_provocation(text: str) -> tuple[Scene, str]:
    """Parse `scene=words`. Raises `ConfigError`."""
    scene, separator, words = text.partition("=")
    for each in SCENES:
        if each == scene and separator and words.strip():
            return each, words
    raise ConfigError(f"--provoke {text!r} is not SCENE=TEXT; the scenes are {', '.join(SCENES)}")
