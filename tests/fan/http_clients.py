"""HTTP for a bare client: POST a message, read a stream."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx
from tests.fan.programs import TOKEN
from tests.support.heard import WAIT_S

PATH = "/acp"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
_TLS = ssl.create_default_context()
"""Creating one takes longer than a test does; none of them uses it."""


class Posted(NamedTuple):
    """The answer to a POST."""

    status: int
    headers: dict[str, str]
    body: bytes


def http_client(url: str) -> httpx.AsyncClient:
    """HTTP/1.1 with the owner's token."""
    timeout = httpx.Timeout(WAIT_S, read=None)
    return httpx.AsyncClient(base_url=url, headers=HEADERS, timeout=timeout, verify=_TLS, trust_env=False)


class Web:
    """HTTP to one daemon."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def post(self, message: Any, headers: dict[str, str]) -> Posted:
        answer = await self._client.post(PATH, json=message, headers=headers)
        return Posted(answer.status_code, dict(answer.headers), answer.content)

    @asynccontextmanager
    async def stream(self, headers: dict[str, str]) -> AsyncGenerator[AsyncIterator[bytes]]:
        async with self._client.stream("GET", PATH, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            yield response.aiter_raw()


@asynccontextmanager
async def open_web(url: str) -> AsyncGenerator[Web]:
    """HTTP to a daemon; the connections are dropped at the end of the block."""
    async with http_client(url) as client:
        yield Web(client)
