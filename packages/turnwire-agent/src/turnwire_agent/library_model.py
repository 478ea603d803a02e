"""A language model through the model library, with retries that are reported to the caller.

`choose_model` creates one from `--model`. The library is imported with the first request, in a thread, because the
import needs seconds. Only transient failures (`RequestFailure.may_pass`) are retried, and only before the first
chunk was returned. No exception of the library escapes: each becomes a `ModelFailed`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from random import random
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from turnwire.clock import Clock, SystemClock
from turnwire.hosting.backoff import Backoff, Chance
from turnwire_agent.model import Message, ModelChoice, OnRetry, Piece, ToolSpec, read_choice

if TYPE_CHECKING:
    from turnwire_agent.library_request import LibraryConnection, LibraryRequest, RequestFailure

TRIES = 5
"""Maximum tries: a provider with this number of failures in a row has more than a hiccup."""

FIRST_WAIT_S = 1.0

LONGEST_WAIT_S = 30.0

LONGEST_ASKED_WAIT_S = 60.0
"""Longest retry delay a provider may ask for; beyond it the request fails and a person decides."""

_log = logging.getLogger(__name__)


def choose_model(
    text: str,
    *,
    url: str | None = None,
    environment: Mapping[str, str] | None = None,
    clock: Clock | None = None,
) -> LibraryModel:
    """The model that `text` names, such as `anthropic:NAME`. Raises `ConfigError`."""
    return LibraryModel(read_choice(text, url=url, environment=environment), clock=clock)


class LibraryModel:
    """A `turnwire_agent.model.Model`. Can be shared by sessions."""

    def __init__(self, choice: ModelChoice, *, clock: Clock | None = None, chance: Chance = random) -> None:
        self._choice = choice
        self._clock = clock or SystemClock()
        self._chance = chance
        self._loading = anyio.Lock()
        self._connection: LibraryConnection | None = None
        self._context_size: int | None = None
        self._takes_images = True

    @property
    def name(self) -> str:
        return self._choice.name

    @property
    def context_size(self) -> int | None:
        """Unknown before the first request."""
        return self._context_size

    @property
    def takes_images(self) -> bool:
        """Assumed True before the first request. A picture for a model without image support becomes a note."""
        return self._takes_images

    @asynccontextmanager
    async def stream(
        self,
        system: str,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        max_tokens: int | None = None,
        on_retry: OnRetry | None = None,
    ) -> AsyncGenerator[AsyncIterator[Piece]]:
        connection = await self._connect()
        request = connection.request(system, messages, tools, max_tokens)
        async with AsyncExitStack() as stack:
            first, rest = await self._first_piece(request, stack, on_retry)
            pieces = self._with_rest(first, rest, request)
            yield await stack.enter_async_context(aclosing(pieces))

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.aclose()

    async def _connect(self) -> LibraryConnection:
        async with self._loading:
            if self._connection is None:
                self._connection = await to_thread.run_sync(_connection, self._choice, abandon_on_cancel=True)
                self._context_size = self._connection.context_size
                self._takes_images = self._connection.takes_images
            return self._connection

    async def _first_piece(
        self, request: LibraryRequest, stack: AsyncExitStack, on_retry: OnRetry | None
    ) -> tuple[Piece, AsyncIterator[Piece]]:
        """Send the request until a first chunk arrives. The request stays open in `stack`."""
        backoff = Backoff(FIRST_WAIT_S, LONGEST_WAIT_S, self._chance)
        while True:
            async with AsyncExitStack() as attempt:
                try:
                    pieces = await attempt.enter_async_context(request.send())
                    first = await anext(pieces)
                except request.errors as error:
                    failure = request.failure(error, seen=False)
                else:
                    await stack.enter_async_context(attempt.pop_all())
                    return first, pieces
            wait_s = _wait_s(failure, backoff)
            if wait_s is None:
                raise self._told(failure)
            if on_retry is not None:
                on_retry(failure.reason, backoff.failures + 1, wait_s)
            await self._clock.sleep(wait_s)

    async def _with_rest(
        self, first: Piece, rest: AsyncIterator[Piece], request: LibraryRequest
    ) -> AsyncGenerator[Piece]:
        yield first
        try:
            async for piece in rest:
                yield piece
        except request.errors as error:
            raise self._told(request.failure(error, seen=True)) from None

    def _told(self, failure: RequestFailure) -> Exception:
        # The provider's message goes only to this program's log: it is third-party text and may contain user input.
        _log.warning("%s failed (%s): %s", self.name, failure.reason, failure.words)
        return failure.error()


def _wait_s(failure: RequestFailure, backoff: Backoff) -> float | None:
    """Return the delay before another try; `None` gives up."""
    waits_too_long = failure.asked_wait_s is not None and failure.asked_wait_s > LONGEST_ASKED_WAIT_S
    if not failure.may_pass or waits_too_long or backoff.failures + 1 >= TRIES:
        return None
    own = backoff.next_s()
    return own if failure.asked_wait_s is None else failure.asked_wait_s


def _connection(choice: ModelChoice) -> LibraryConnection:
    from turnwire_agent.library_request import LibraryConnection

    return LibraryConnection(choice)
