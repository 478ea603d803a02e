"""The recipes of `turnwire_testing.models`, and agents that ask for a login: no fake model is known to them yet."""

from __future__ import annotations

from turnwire_testing.models.openai import FakeOpenAI
from turnwire_testing.models.recipes import RECIPES, Recipe, Texts


def _login_env(url: str) -> Texts:
    return {
        "AUGMENT_DISABLE_AUTO_UPDATE": "1",
        "COPILOT_AUTO_UPDATE": "false",
        "DROID_DISABLE_AUTO_UPDATE": "true",
        "FACTORY_DROID_AUTO_UPDATE_ENABLED": "false",
    }


BY_LOGIN = Recipe(FakeOpenAI, env=_login_env)
"""Such an agent is started and no more."""

TOURED = {**RECIPES, **dict.fromkeys(("copilot", "cline", "auggie", "qoder", "droid"), BY_LOGIN)}
