"""The agent's view of its client: notifications, answers, and requests that wait for theirs.

A request that is cancelled is withdrawn with `$/cancel_request`, and an answer that comes for it later is
ignored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
from msgspec import UNSET, Raw

from turnwire.errors import LimitExceeded, LinkError
from turnwire.ids import RequestId
from turnwire.link.base import FrameLink
from turnwire.wire.jsonrpc import ErrorObject, Failure, Frame, Notification, Request, Result, encode, raw
from turnwire.wire.methods import CANCEL_REQUEST


class Refused(Exception):
    """A request that got or gets an error as its answer."""

    def __init__(self, code: int, message: str, data: Any = UNSET) -> None:
        super().__init__(f"{code} {message}")
        self.error = ErrorObject(code, message, data if data is UNSET else raw(data))


class _Pending:
    __slots__ = ("answer", "settled")

    def __init__(self) -> None:
        self.settled = anyio.Event()
        self.answer: Result | Failure | None = None


class Peer:
    """The client at the other end of a link."""

    def __init__(self, link: FrameLink) -> None:
        self.link = link
        self._next_id = 0
        self._pending: dict[RequestId, _Pending] = {}

    async def send_line(self, line: bytes) -> None:
        """Put bytes on the wire that may be no frame at all."""
        await self.link.send(line)

    async def notify(self, method: str, params: Any) -> None:
        await self._send(Notification(method, raw(params)))

    async def respond(self, request_id: RequestId, result: Any) -> None:
        await self._send(Result(request_id, raw(result)))

    async def refuse(self, request_id: RequestId | None, error: ErrorObject) -> None:
        await self._send(Failure(request_id, error))

    async def request(self, method: str, params: Any, once_sent: Callable[[], Awaitable[None]]) -> Raw:
        """Ask the client, call `once_sent`, wait for the answer. Raises `Refused` if that is an error."""
        request_id, pending = self._next_id, _Pending()
        self._next_id += 1
        self._pending[request_id] = pending
        try:
            await self._send(Request(request_id, method, raw(params)))
            await once_sent()
            await pending.settled.wait()
        except anyio.get_cancelled_exc_class():
            self._withdraw(request_id)
            raise
        finally:
            self._pending.pop(request_id, None)
        if isinstance(pending.answer, Result):
            return pending.answer.result
        assert pending.answer is not None, "an answer is stored before the request is settled"
        raise Refused(pending.answer.error.code, pending.answer.error.message)

    def settle(self, answer: Result | Failure) -> None:
        """Give an answer to the request it belongs to; one that nobody waits for is ignored."""
        pending = None if answer.id is None else self._pending.get(answer.id)
        if pending is not None:
            pending.answer = answer
            pending.settled.set()

    def _withdraw(self, request_id: RequestId) -> None:
        # Withdrawing is a courtesy: a client that takes nothing or is gone must not hold up the cancel.
        with suppress(LimitExceeded, LinkError):
            withdrawal = Notification(CANCEL_REQUEST, raw({"requestId": request_id}))
            self.link.send_nowait(encode(withdrawal))

    async def _send(self, frame: Frame) -> None:
        await self.link.send(encode(frame))
