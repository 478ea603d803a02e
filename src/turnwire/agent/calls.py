"""Requests to the client, and their answers.

Takes answers as they arrive; gives each to whoever waits for it. Never sends: who asks puts the frame on its way.
"""

from __future__ import annotations

import anyio

from turnwire.core.correlation import Correlation
from turnwire.errors import LinkBroken
from turnwire.ids import RequestId
from turnwire.wire.jsonrpc import Failure, Result


class Answer:
    """An answer that is waited for."""

    def __init__(self) -> None:
        self._frame: Result | Failure | None = None
        self._came = anyio.Event()

    def give(self, frame: Result | Failure | None) -> None:
        self._frame = frame
        self._came.set()

    async def wait(self) -> Result | Failure:
        """The answer. Raises `LinkBroken` if the client left first."""
        await self._came.wait()
        if self._frame is None:
            raise LinkBroken("the client left before it answered")
        return self._frame


class Calls:
    """The open requests of one connection, in both directions."""

    def __init__(self) -> None:
        self._open: Correlation[Answer, None] = Correlation()

    def begin(self) -> tuple[RequestId, Answer]:
        """A new request."""
        answer = Answer()
        return self._open.open(answer), answer

    def settle(self, frame: Result | Failure) -> None:
        """An answer came. One that nobody waits for is ignored."""
        answer = self._open.close(frame.id)
        if answer is not None:
            answer.give(frame)

    def withdraw(self, request_id: RequestId) -> bool:
        """Nobody waits for it any more; whether it was open."""
        return self._open.close(request_id) is not None

    def end(self) -> None:
        """The client is gone."""
        for answer in self._open.end():
            answer.give(None)
