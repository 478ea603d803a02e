"""What clients do for agents over HTTP: files and terminals, asked on a stream and answered by requests.

Takes a request of an agent; gives it to the stream of the client that offered its method, and waits for the answer
that comes in another request. A client that leaves, or an agent that takes its request back, ends the waiting; who
does the work then is decided in `runtime.errands`. Never keeps an answer that nobody waits for.
"""

from __future__ import annotations

import secrets

import anyio
from msgspec import Raw

from turnwire.core.envelope import stream_frame
from turnwire.errors import NotFound, RequestRefused
from turnwire.ids import SessionId
from turnwire.wire.jsonrpc import INTERNAL_ERROR

ASKED = "service_request"
TAKEN_BACK = "service_cancelled"

Answer = Raw | RequestRefused
"""What a client answers: a result, or that it cannot."""


class _Waiting:
    """A request that a client has been asked to do."""

    def __init__(self, session_id: SessionId) -> None:
        self.session_id = session_id
        self.answered = anyio.Event()
        self.answer: Answer | None = None


class Offers:
    """The requests that wait for answers of clients, by id."""

    def __init__(self) -> None:
        self._open: dict[str, _Waiting] = {}

    def offer(self, session_id: SessionId, methods: frozenset[str], most: int) -> Offer:
        """A client does these for a session's agent, `most` at a time."""
        return Offer(self._open, session_id, methods, most)

    def answer(self, session_id: SessionId, request_id: str, answer: Answer) -> None:
        """A client has done it, or cannot. Raises `NotFound` if nobody waits for this any more."""
        waiting = self._open.get(request_id)
        if waiting is None or waiting.session_id != session_id or waiting.answer is not None:
            raise NotFound("nobody waits for this answer; the agent took it back, or it was answered before")
        waiting.answer = answer
        waiting.answered.set()


class Offer:
    """One client's offer, while its stream is open. Implements `runtime.errands.Provider`."""

    def __init__(
        self, waiting: dict[str, _Waiting], session_id: SessionId, methods: frozenset[str], most: int
    ) -> None:
        self._waiting = waiting
        self._session_id = session_id
        self._methods = methods
        self._most = most
        self._open = 0
        self._frames: list[bytes] = []
        self._more = anyio.Event()

    @property
    def methods(self) -> frozenset[str]:
        return self._methods

    async def serve(self, method: str, params: Raw) -> Raw:
        """Ask the client and wait. Raises `RequestRefused`."""
        if self._open >= self._most:
            raise RequestRefused(
                "the client has too much to do; ask again later", jsonrpc=INTERNAL_ERROR, reason="too_many"
            )
        request_id = f"r_{secrets.token_hex(10)}"
        waiting = self._waiting[request_id] = _Waiting(self._session_id)
        self._open += 1
        self._write(ASKED, request_id, method=method, params=params if params else Raw(b"{}"))
        try:
            await waiting.answered.wait()
        finally:
            self._open -= 1
            del self._waiting[request_id]
            if waiting.answer is None:
                self._write(TAKEN_BACK, request_id)
        assert waiting.answer is not None, "whoever answers leaves an answer"
        if isinstance(waiting.answer, RequestRefused):
            raise waiting.answer
        return waiting.answer

    async def frames(self) -> bytes:
        """What to write to the client's stream next. Waits for something. Cancel-safe."""
        while not self._frames:
            self._more = anyio.Event()
            await self._more.wait()
        frames, self._frames = self._frames, []
        return b"".join(frames)

    def _write(self, kind: str, request_id: str, **members: object) -> None:
        data = {"requestId": request_id, "sessionId": self._session_id, **members}
        self._frames.append(stream_frame(kind, data))
        self._more.set()
