"""From `provider:name` and the environment to a model.

Takes the text of `--model`, the URL of `--model-url` and environment variables; gives a `Model`, or a `ConfigError`
that says what to do. Never imports a model library and reaches no network: the first request does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import NamedTuple, cast, get_args
from urllib.parse import urlsplit

from turnwire.builtin.library import LibraryModel
from turnwire.builtin.library_choice import ModelChoice, ProviderName, Thinking
from turnwire.errors import ConfigError
from turnwire.runtime.clock import Clock

OLLAMA_URL = "http://localhost:11434/v1"

THINKING = "TURNWIRE_AGENT_THINKING"
_THINKING: Mapping[str, Thinking] = {
    "off": False,
    "on": True,
    "minimal": "minimal",
    "low": "low",
    "medium": "medium",
    "high": "high",
}


class Provider(NamedTuple):
    """What the environment holds for one provider."""

    keys: tuple[str, ...]
    """The variables that may hold its key; the first that is set counts."""
    url: str
    """The variable that may hold another root of its API."""
    module: str
    """The library that speaks its API."""


PROVIDERS: Mapping[ProviderName, Provider] = {
    "openai": Provider(("OPENAI_API_KEY",), "OPENAI_BASE_URL", "openai"),
    "ollama": Provider(("OLLAMA_API_KEY",), "OLLAMA_BASE_URL", "openai"),
    "anthropic": Provider(("ANTHROPIC_API_KEY",), "ANTHROPIC_BASE_URL", "anthropic"),
    "google": Provider(("GOOGLE_API_KEY", "GEMINI_API_KEY"), "GOOGLE_GEMINI_BASE_URL", "google.genai"),
}

VARIABLES: tuple[str, ...] = (
    *(name for provider in PROVIDERS.values() for name in (*provider.keys, provider.url)),
    THINKING,
)
"""The environment variables that configure a model; an agent that asks one needs them."""


def choose_model(
    text: str,
    *,
    url: str | None = None,
    environment: Mapping[str, str] | None = None,
    clock: Clock | None = None,
) -> LibraryModel:
    """The model that `text` names, such as `anthropic:NAME`. Raises `ConfigError`."""
    choice = read_choice(text, url=url, environment=environment)
    if not _is_installed(PROVIDERS[choice.provider].module):
        raise ConfigError(
            f"the model {choice.name} needs libraries that are not installed; run: pip install 'turnwire[models]'"
        )
    return LibraryModel(choice, clock=clock)


def read_choice(text: str, *, url: str | None = None, environment: Mapping[str, str] | None = None) -> ModelChoice:
    """What `text` and the environment say. An empty variable is as good as none. Raises `ConfigError`."""
    found = {name: value for name, value in (environment or os.environ).items() if value}
    provider, model = _names(text)
    own = PROVIDERS[provider]
    key = next((found[name] for name in own.keys if name in found), None)
    root = url or found.get(own.url) or (OLLAMA_URL if provider == "ollama" else None)
    if root is not None:
        _check_url(root)
    if key is None and (root is None or provider not in ("openai", "ollama")):
        names = " or ".join(own.keys)
        raise ConfigError(f"the model {provider}:{model} needs a key; set {names} in the environment")
    return ModelChoice(provider, model, key, own.keys[0], root, _thinking(found.get(THINKING)))


def _names(text: str) -> tuple[ProviderName, str]:
    provider, colon, model = text.strip().partition(":")
    if provider not in get_args(ProviderName) or not colon or not model:
        known = ", ".join(f"{name}:NAME" for name in PROVIDERS)
        raise ConfigError(f"{text!r} names no model; write one of {known}")
    return cast("ProviderName", provider), model


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise ConfigError("the URL of the model is none; write it as http://HOST:PORT/v1 or https://HOST/v1")


def _thinking(text: str | None) -> Thinking | None:
    if text is not None and text not in _THINKING:
        raise ConfigError(f"{THINKING} is {text!r}; it takes one of {', '.join(_THINKING)}")
    return None if text is None else _THINKING[text]


def _is_installed(module: str) -> bool:
    try:
        return find_spec("pydantic_ai") is not None and find_spec(module) is not None
    except ModuleNotFoundError:  # the package around `module` is missing
        return False
