"""One request through the model library.

Takes a choice of a model; gives questions that can be asked, each any number of times. The only place that opens a
request. The library's own retries are off, so that every try is one that `library` counts and tells.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import NamedTuple

import httpx2
from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import InstructionPart, ModelMessage
from pydantic_ai.models import Model as LibraryModel
from pydantic_ai.models import ModelRequestParameters, create_async_httpx2_client
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from turnwire.builtin.library_choice import ModelChoice
from turnwire.builtin.library_failures import ERRORS, Failure, failure
from turnwire.builtin.library_messages import conversation
from turnwire.builtin.library_pieces import pieces_of
from turnwire.builtin.library_providers import library_model
from turnwire.builtin.model import Message, Piece, ToolSpec

CONNECT_S = 10.0
SILENCE_S = 600.0
"""How long a provider may say nothing. Some think for minutes before the first byte."""


class Question(NamedTuple):
    """A request that can be sent."""

    model: LibraryModel
    choice: ModelChoice
    messages: list[ModelMessage]
    parameters: ModelRequestParameters
    settings: ModelSettings

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What asking raises; `failure` says what each means."""
        return ERRORS

    def failure(self, error: Exception, *, seen: bool) -> Failure:
        return failure(error, self.choice, seen=seen)

    @asynccontextmanager
    async def ask(self) -> AsyncGenerator[AsyncIterator[Piece]]:
        """Send it. Leaving the context closes the stream, and with it the connection if the answer is not over."""
        request = model_request_stream(
            self.model,
            self.messages,
            model_settings=self.settings,
            model_request_parameters=self.parameters,
            instrument=False,
        )
        async with request as stream, aclosing(pieces_of(stream)) as pieces:
            yield pieces


class Asking:
    """A model of the library and its connections."""

    def __init__(self, choice: ModelChoice) -> None:
        self._choice = choice
        timeout = httpx2.Timeout(SILENCE_S, connect=CONNECT_S)
        self._connections = create_async_httpx2_client(timeout=timeout)
        self._model = library_model(choice, self._connections)

    @property
    def context_size(self) -> int | None:
        return self._model.profile.get("context_window")

    @property
    def takes_images(self) -> bool:
        return self._model.profile.get("supports_image_input", True)

    def question(
        self, system: str, messages: Sequence[Message], tools: Sequence[ToolSpec], max_tokens: int | None
    ) -> Question:
        definitions = [
            ToolDefinition(name=tool.name, description=tool.description, parameters_json_schema=tool.schema)
            for tool in tools
        ]
        instructions = [InstructionPart(content=system)] if system else []
        return Question(
            self._model,
            self._choice,
            conversation(messages, provider=self._model.system, takes_images=self.takes_images),
            ModelRequestParameters(function_tools=definitions, instruction_parts=instructions),
            self._settings(max_tokens),
        )

    async def aclose(self) -> None:
        await self._connections.aclose()

    def _settings(self, max_tokens: int | None) -> ModelSettings:
        settings = ModelSettings(max_retries=0, cache=True)
        if max_tokens is not None:
            settings["max_tokens"] = max_tokens
        if self._choice.thinking is not None:
            settings["thinking"] = self._choice.thinking
        return settings
