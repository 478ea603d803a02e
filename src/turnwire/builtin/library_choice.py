"""Which model is asked, where, and with which key.

Takes what `choosing_model` has read; gives it to the library. Holds a secret, so it is never shown: its own text is
its name.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

ProviderName: TypeAlias = Literal["openai", "ollama", "anthropic", "google"]

Thinking: TypeAlias = bool | Literal["minimal", "low", "medium", "high"]
"""Whether the model thinks before it answers, and how much."""


class ModelChoice(NamedTuple):
    """A model of a provider."""

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
