"""One event stream of a remote agent: the frames that it sends for one scope, over as many connections as it takes.

Takes a scope, which is the whole connection or one session; gives the data of each event to `arrived`, in order.
Comes back where it was cut, if the agent numbers its events; nothing is given twice and nothing left out. Without a
number it comes back only if its owner expects nothing from it; else nobody knows what was lost, and it ends as
lost. Never decides what that means: its owner does.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from enum import StrEnum
from typing import Final, TypeAlias, cast

import anyio
import httpx

from turnwire.errors import FrameTooLarge
from turnwire.limits import Limits
from turnwire.link.acp_http import GONE, AcpHttp
from turnwire.wire.sse import SseReader

HEADERS_S: Final = 10.0
"""A stream begins at once, whether or not there is anything to say."""
AT_ONCE_S: Final = 0.05
RETRY_S, RETRY_MOST_S = 0.5, 10.0

Arrived: TypeAlias = Callable[["EventStream", bytes], Awaitable[None]]
Expecting: TypeAlias = Callable[["EventStream"], bool]
"""Whether a cut that is not numbered may have cost something."""


class Standing(StrEnum):
    """What has become of a stream."""

    OPENING = "opening"
    OPEN = "open"
    ABSENT = "absent"
    """The agent does not have it (yet)."""
    REFUSED = "refused"
    """For this session only: somebody else reads it, or it must be loaded anew."""
    LOST = "lost"


class EventStream:
    """The frames of one scope."""

    def __init__(
        self, session_id: str | None, http: AcpHttp, limits: Limits, arrived: Arrived, expecting: Expecting
    ) -> None:
        self.session_id = session_id
        self.standing = Standing.OPENING
        self.settled = anyio.Event()
        """Set once it is known whether the stream can be had."""
        self._http = http
        self._limits = limits
        self._arrived = arrived
        self._expecting = expecting
        self._last_event_id: str | None = None
        self._retry_s = RETRY_S
        self._away_s = 0.0
        """How long has been waited since a connection was last good for something."""
        self._has_brought = False
        self._moved = anyio.Event()
        self._is_hopeless = False
        self._scope = anyio.CancelScope()

    @property
    def is_numbered(self) -> bool:
        """Whether it has brought an event with a number, and so can go on from there."""
        return self._last_event_id is not None

    async def run(self) -> None:
        """Read until the stream cannot be had any more; `standing` then says why."""
        with self._scope:
            while True:
                was_good = await self._read()
                if self.standing in (Standing.ABSENT, Standing.REFUSED):
                    break
                is_safe = self.is_numbered or (self.settled.is_set() and not self._expecting(self))
                if not is_safe or self._is_hopeless or not await self._come_back(was_good=was_good):
                    self.standing = Standing.LOST
                    break
        if self._scope.cancelled_caught:
            self.standing = Standing.ABSENT
        self.settled.set()
        self._moved.set()

    def end(self) -> None:
        """Nobody needs it any more."""
        self._scope.cancel()

    async def quiet(self, quiet_s: float, most_s: float) -> None:
        """Return once nothing has come for `quiet_s`, and after `most_s` in any case."""
        with anyio.move_on_after(most_s):
            while True:
                with anyio.move_on_after(quiet_s) as waiting:
                    await self._move()
                if waiting.cancelled_caught or self.standing is not Standing.OPEN:
                    return

    async def reached(self, event_id: int, most_s: float) -> None:
        """Return once everything up to this event has come, or the stream is lost; after `most_s` in any case."""
        with anyio.move_on_after(most_s):
            while self.standing is Standing.OPEN and not _is_behind(self._last_event_id, event_id):
                await self._move()

    async def _move(self) -> None:
        """Wait for the next thing that comes. Any number may wait."""
        if self._moved.is_set():
            self._moved = anyio.Event()
        await self._moved.wait()

    async def _come_back(self, *, was_good: bool) -> bool:
        """Wait before the next try; False if it has been tried for long enough."""
        if was_good:
            self._away_s = 0.0
            wait_s = AT_ONCE_S
        else:
            wait_s = min(RETRY_MOST_S, max(self._retry_s, self._away_s))
        if self._away_s + wait_s > self._limits.reconnect_s:
            return False
        self._away_s += wait_s
        await anyio.sleep(wait_s)
        return True

    async def _read(self) -> bool:
        """What one connection brings; whether it was good for something: an event, or some time."""
        opened_at = anyio.current_time()
        self._has_brought = False
        response: httpx.Response | None = None
        try:
            with anyio.fail_after(HEADERS_S):
                response = await self._http.stream(self.session_id, self._last_event_id)
            if response.status_code != 200:
                self._refused(response.status_code)
                return False
            self.standing = Standing.OPEN
            self.settled.set()
            await self._follow(response)
        except (httpx.HTTPError, httpx.StreamError, TimeoutError, FrameTooLarge):
            pass
        finally:
            if response is not None:
                with anyio.CancelScope(shield=True):
                    await response.aclose()
        lived_s = anyio.current_time() - opened_at
        return self._has_brought or (self.standing is Standing.OPEN and lived_s > self._limits.heartbeat_s)

    async def _follow(self, response: httpx.Response) -> None:
        reader = SseReader(self._limits.sse_event_bytes)
        async with aclosing(cast("AsyncGenerator[bytes]", response.aiter_bytes())) as pieces:
            async for piece in pieces:
                for event in reader.feed(piece):
                    # Before the cursor moves: a frame that was not taken is asked for again.
                    await self._arrived(self, event.data.encode())
                    self._has_brought = True
                    self._last_event_id = event.id or self._last_event_id
                self._last_event_id = reader.last_event_id or self._last_event_id
                if reader.retry is not None:
                    self._retry_s = reader.retry / 1000
                self._moved.set()

    def _refused(self, status: int) -> None:
        if status in GONE:
            self.standing = Standing.ABSENT
        elif status == 409 and self._last_event_id is None:
            self.standing = Standing.REFUSED
        else:
            self._is_hopeless = status < 500 and status not in (409, 429)


def _is_behind(last_event_id: str | None, event_id: int) -> bool:
    """Whether a cursor stands at this event or behind it."""
    return last_event_id is not None and last_event_id.isdecimal() and int(last_event_id) >= event_id
