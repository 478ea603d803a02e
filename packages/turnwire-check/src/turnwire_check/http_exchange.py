"""One HTTP request and its response: a head, and a body that grows until it ends, even as a stream of events.

It adds nothing and follows nothing: no redirects, no cookies, no retries, no compression. Each wait has a timeout,
and data that did not arrive by then is reported as missing.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from typing import NamedTuple, Protocol, TypeAlias

import anyio
import httpx
from anyio.abc import TaskGroup

OPENING_S = 10.0


class HttpCall(NamedTuple):
    """A complete request."""

    method: str
    path: str
    """With its query."""
    headers: Mapping[str, str]
    body: bytes | None

    def shown(self) -> bytes:
        """Return the request for the reader of a report, without credentials."""
        hidden = {"authorization", "cookie"}
        told = "".join(f" [{name}: {value}]" for name, value in self.headers.items() if name.lower() not in hidden)
        return f"{self.method} {self.path}{told} ".encode() + (self.body or b"")


class HttpBody(Protocol):
    """A response whose head has arrived."""

    status: int
    headers: Mapping[str, str]
    """By names in small letters."""
    received: bytearray
    """The received part of the body."""
    is_whole: bool
    """It has ended as HTTP ends a body."""
    is_over: bool
    """Nothing more comes, whether it is whole or not."""

    async def more(self, length: int, within_s: float) -> bool:
        """Wait until more than that has come; false when it has not by then, or will not."""
        ...

    async def cut(self) -> None:
        """Disconnect."""
        ...


class HttpPeer(Protocol):
    """The server under judgement."""

    async def open(self, call: HttpCall, within_s: float) -> HttpBody | None:
        """Return the response as soon as its head has arrived; `None` if it has not arrived in time."""
        ...


Opener: TypeAlias = Callable[[], AbstractAsyncContextManager[HttpPeer]]
"""Opens separate connections for each case."""


class _Received:
    """A response body that a separate task fills."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.received = bytearray()
        self.is_whole = self.is_over = False
        self._scope = anyio.CancelScope()
        self._grown = anyio.Event()

    def _tell(self) -> None:
        self._grown.set()
        self._grown = anyio.Event()

    async def read(self, http: httpx.AsyncClient, request: httpx.Request) -> None:
        with self._scope:
            try:
                answer = await http.send(request, stream=True)
                try:
                    self.status, self.headers = answer.status_code, dict(answer.headers)
                    self._tell()
                    async for piece in answer.aiter_raw():
                        self.received += piece
                        self._tell()
                    self.is_whole = True
                finally:
                    with anyio.CancelScope(shield=True):
                        await answer.aclose()
            except (httpx.HTTPError, httpx.StreamError):
                pass  # What is there is there; the case says what it makes of the rest.
        self.is_over = True
        self._tell()

    async def begun(self) -> bool:
        while not self.status and not self.is_over:
            await self._grown.wait()
        return bool(self.status)

    async def more(self, length: int, within_s: float) -> bool:
        with anyio.move_on_after(within_s):
            while len(self.received) <= length and not self.is_over:
                await self._grown.wait()
        return len(self.received) > length

    async def cut(self) -> None:
        self._scope.cancel()
        while not self.is_over:
            await self._grown.wait()


class _Connections:
    """Over sockets."""

    def __init__(self, http: httpx.AsyncClient, tasks: TaskGroup) -> None:
        self._http = http
        self._tasks = tasks

    async def open(self, call: HttpCall, within_s: float) -> HttpBody | None:
        found = _Received()
        request = self._http.build_request(call.method, call.path, headers=call.headers, content=call.body)
        self._tasks.start_soon(found.read, self._http, request)
        with anyio.move_on_after(within_s):
            if await found.begun():
                return found
        await found.cut()
        return None


@cache
def _certificates() -> ssl.SSLContext:
    return ssl.create_default_context()


def http_opener(url: str) -> Opener:
    """The server at this address."""

    @asynccontextmanager
    async def opened() -> AsyncGenerator[HttpPeer]:
        async with (
            httpx.AsyncClient(
                base_url=url,
                timeout=httpx.Timeout(OPENING_S, read=None),
                verify=_certificates(),
                trust_env=False,
                headers={"Accept-Encoding": "gzip"},
            ) as http,
            anyio.create_task_group() as tasks,
        ):
            yield _Connections(http, tasks)
            tasks.cancel_scope.cancel()

    return opened
