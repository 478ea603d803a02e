"""The requests, notifications and waits that every raw ACP client of the tests shares. Every wait is bounded."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from itertools import count
from typing import Any

from tests.support.heard import Heard, Json


class AcpClient(Heard):
    """A client that sends frames over any transport. The received frames are in `frames`, in order."""

    def __init__(self, ids: Iterator[int | str] | None = None) -> None:
        super().__init__()
        self.ids: Iterator[int | str] = ids or count(1)
        """Ids of the next requests."""

    @abstractmethod
    async def send(self, message: Any) -> None:
        """Send a message; bytes are sent as they are."""

    async def notify(self, method: str, **params: Any) -> None:
        await self.send({"jsonrpc": "2.0", "method": method, "params": params})

    async def ask(self, method: str, /, request_id: int | str | None = None, **params: Any) -> int | str:
        """Send a request and return its id without waiting for the answer."""
        chosen = next(self.ids) if request_id is None else request_id
        await self.send({"jsonrpc": "2.0", "id": chosen, "method": method, "params": params})
        return chosen

    async def answer(self, request_id: int | str, after: int = 0) -> Json:
        """Wait for the answer to a request. Its id has the same JSON type."""
        return await self.until(lambda each: is_answer(each, request_id), after)

    async def call(self, method: str, /, **params: Any) -> Any:
        """Send a request and return its result."""
        answer = await self.answer(await self.ask(method, **params))
        assert "result" in answer, answer
        return answer["result"]

    async def fails(self, method: str, /, **params: Any) -> Json:
        """Send a request and return its error."""
        answer = await self.answer(await self.ask(method, **params))
        assert "error" in answer, answer
        return answer["error"]


def is_answer(frame: Json, request_id: int | str) -> bool:
    found = frame.get("id")
    return "method" not in frame and found == request_id and type(found) is type(request_id)


def update_of(frame: Json, session_id: str | None = None) -> Json:
    """Return the update in a frame, for this session if one is named; empty if there is none."""
    if frame.get("method") != "session/update" or session_id not in (None, frame["params"]["sessionId"]):
        return {}
    return frame["params"]["update"]


def is_update(frame: Json, kind: str, members: Json, session_id: str | None = None) -> bool:
    """Return True if a frame is an update of this kind with these members."""
    update = update_of(frame, session_id)
    return update.get("sessionUpdate") == kind and members.items() <= update.items()
