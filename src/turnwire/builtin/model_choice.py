"""Which model is asked, where, and with which key: from `provider:name` and the environment to a `ModelChoice`.

Takes the text of `--model`, the URL of `--model-url` and environment variables. What cannot be used is a
`ConfigError` that says what to do. Never imports a model library and reaches no network: the first request does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias, cast, get_args
from urllib.parse import urlsplit

from turnwire.errors import ConfigError

ProviderName: TypeAlias = Literal["openai", "ollama", "anthropic", "google"]


class ModelProvider(NamedTuple):
    """What the environment holds for one provider."""

    keys: tuple[str, ...]
    """The variables that may hold its key; the first that is set counts."""
    url: str
    """The variable that may hold another root of its API."""
    module: str
    """The library that speaks its API."""


PROVIDERS: Mapping[ProviderName, ModelProvider] = {
    "openai": ModelProvider(("OPENAI_API_KEY",), "OPENAI_BASE_URL", "openai"),
    "ollama": ModelProvider(("OLLAMA_API_KEY",), "OLLAMA_BASE_URL", "openai"),
    "anthropic": ModelProvider(("ANTHROPIC_API_KEY",), "ANTHROPIC_BASE_URL", "anthropic"),
    "google": ModelProvider(("GOOGLE_API_KEY", "GEMINI_API_KEY"), "GOOGLE_GEMINI_BASE_URL", "google.genai"),
}

OLLAMA_URL = "http://localhost:11434/v1"

Thinking: TypeAlias = bool | Literal["minimal", "low", "medium", "high"]
"""Whether the model thinks before it answers, and how much."""

THINKING = "TURNWIRE_AGENT_THINKING"

_THINKING: Mapping[str, Thinking] = {
    "off": False,
    "on": True,
    "minimal": "minimal",
    "low": "low",
    "medium": "medium",
    "high": "high",
}

VARIABLES: tuple[str, ...] = (
    *(name for provider in PROVIDERS.values() for name in (*provider.keys, provider.url)),
    THINKING,
)
"""The environment variables that configure a model; an agent that asks one needs them."""


class ModelChoice(NamedTuple):
    """A model of a provider. Holds a secret, so its own text is its name."""

    provider: ProviderName
    model: str
    key: str | None
    key_variable: str
    """Where the key comes from, for messages to people."""
    url: str | None = None
    """The root of the API; `None` is the provider's own."""
    thinking: Thinking | None = None
    """`None` leaves it to the provider."""

    @property
    def name(self) -> str:
        return f"{self.provider}:{self.model}"

    def __repr__(self) -> str:
        return f"ModelChoice({self.name})"

    __str__ = __repr__


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
