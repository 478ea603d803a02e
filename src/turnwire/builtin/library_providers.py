"""The library's model for a choice.

Takes a choice and the connections to use; gives a model of the library. Imports only the provider that was chosen:
each costs time. Never reads the environment: `choosing_model` has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import httpx2
from pydantic_ai.models import Model

from turnwire.builtin.library_choice import ModelChoice, ProviderName

NO_KEY = "none"
"""Sent where a server needs no key, and its client wants one."""


def library_model(choice: ModelChoice, connections: httpx2.AsyncClient) -> Model:
    return _MODELS[choice.provider](choice, connections)


def _openai(choice: ModelChoice, connections: httpx2.AsyncClient) -> Model:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    key = choice.key or NO_KEY
    if choice.url is None:
        # OpenAI always says why an answer ended. An answer without it was cut.
        profile = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)
        own = OpenAIProvider(base_url="https://api.openai.com/v1", api_key=key, http_client=connections)
        return OpenAIChatModel(choice.model, provider=own, profile=profile)
    provider = OpenAICompatibleProvider(
        "openai-compatible", base_url=choice.url, api_key=key, http_client=connections
    )
    return OpenAIChatModel(choice.model, provider=provider)


def _ollama(choice: ModelChoice, connections: httpx2.AsyncClient) -> Model:
    from pydantic_ai.models.ollama import OllamaModel
    from pydantic_ai.providers.ollama import OllamaProvider

    provider = OllamaProvider(base_url=choice.url, api_key=choice.key or NO_KEY, http_client=connections)
    return OllamaModel(choice.model, provider=provider)


def _anthropic(choice: ModelChoice, connections: httpx2.AsyncClient) -> Model:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    provider = AnthropicProvider(api_key=choice.key, base_url=choice.url, http_client=connections)
    return AnthropicModel(choice.model, provider=provider)


def _google(choice: ModelChoice, connections: httpx2.AsyncClient) -> Model:
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    provider = GoogleProvider(api_key=choice.key, base_url=choice.url, http_client=connections)
    return GoogleModel(choice.model, provider=provider)


_MODELS: Mapping[ProviderName, Callable[[ModelChoice, httpx2.AsyncClient], Model]] = {
    "openai": _openai,
    "ollama": _ollama,
    "anthropic": _anthropic,
    "google": _google,
}
