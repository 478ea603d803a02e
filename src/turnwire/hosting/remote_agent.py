"""Remote agents, behind Streamable HTTP or a WebSocket.

A remote agent has no local process: it ends with its link, and the next one is a new connection, on which its
sessions are resumed or loaded. Enter the source with `async with`: the transport runs inside. `hosting.agent_pool`
decides about further connections.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import anyio
import httpx
from anyio.abc import TaskGroup

from turnwire.clock import Clock, SystemClock
from turnwire.errors import LocalProtocolError
from turnwire.hosting.address import (
    agent_headers,
    checked_agent_url,
    is_loopback,
    is_secure,
    is_socket,
)
from turnwire.hosting.network import NetworkLink
from turnwire.hosting.source import LinkedAgent
from turnwire.hosting.streamable import StreamableLink
from turnwire.hosting.websocket import WebSocketLink, open_websocket, refused, unreachable
from turnwire.limits import Limits

CONNECT_S = 10.0
CONNECT_RETRIES = 2
IDLE_S = 2.0
"""Shorter than the idle timeout of any server, so that no connection is used while it is being closed."""


class RemoteSource:
    """A source that connects to one URL for each agent. Cookies are shared by its connections."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.url = checked_agent_url(url)
        self._headers = agent_headers(token, headers)
        self._limits = limits or Limits()
        self._clock = clock or SystemClock()
        self._client = _http_client(self.url, self._headers, self._limits)
        self._tasks: TaskGroup | None = None

    async def connect(self) -> LinkedAgent:
        """Return a new connection. Raises `AgentLaunchFailed`."""
        if self._tasks is None:
            raise LocalProtocolError("the source is not open; use it inside `async with`")
        link: NetworkLink
        if is_socket(self.url):
            link = await self._open_socket()
        else:
            await self._look()
            link = StreamableLink(self.url, self._client, self._limits, self._clock.sleep)
        self._tasks.start_soon(link.run)
        return LinkedAgent(link)

    async def _open_socket(self) -> WebSocketLink:
        asking = self._client.build_request("GET", _web_address(self.url))
        headers = dict(self._headers)
        if (cookie := asking.headers.get("Cookie")) is not None:
            headers["Cookie"] = cookie
        link = await open_websocket(self.url, headers, self._limits)
        if link.answer is not None:
            answer = httpx.Response(101, headers=list(link.answer.headers.raw_items()), request=asking)
            self._client.cookies.extract_cookies(answer)
        return link

    async def _look(self) -> None:
        """Check that a server answers and accepts us, so that a wrong address or token is reported as such.

        Without a connection's id there is nothing to get, so the expected answer is a rejection of the request.
        """
        try:
            with anyio.fail_after(self._limits.launch_s):
                answer = await self._client.get(self.url, headers={"Accept": "text/event-stream"})
        except (httpx.HTTPError, TimeoutError) as error:
            raise unreachable(self.url, error) from None
        if answer.status_code in (401, 403):
            raise refused(self.url, answer.status_code)

    async def __aenter__(self) -> Self:
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        tasks, self._tasks = self._tasks, None
        try:
            if tasks is not None:
                tasks.cancel_scope.cancel()
                if isinstance(error, anyio.get_cancelled_exc_class()):
                    return await tasks.__aexit__(kind, error, trace)
                # The program's own error bypasses the task group, which would wrap it.
                await tasks.__aexit__(None, None, None)
        finally:
            with anyio.CancelScope(shield=True):
                await self._client.aclose()
        return None


def _http_client(url: str, headers: Mapping[str, str], limits: Limits) -> httpx.AsyncClient:
    secure = is_secure(url)
    return httpx.AsyncClient(
        # A proxy that compresses a stream delays events until its buffer is full.
        headers={"Accept-Encoding": "identity", **headers},
        transport=httpx.AsyncHTTPTransport(
            # Certificates are not loaded for plain HTTP: loading them is slower than the request.
            verify=httpx.create_ssl_context() if secure else False,
            # On one HTTP/2 connection, data of one stream can stay unread while another is waited for.
            http2=False,
            retries=CONNECT_RETRIES,
            proxy=_proxy(url),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=IDLE_S),
            socket_options=_keep_alive(limits.heartbeat_s),
        ),
        trust_env=False,
        timeout=httpx.Timeout(CONNECT_S, pool=None),
    )


def _proxy(url: str) -> str | None:
    """Return the proxy that the environment sets for this address."""
    parts = urlsplit(url)
    if is_loopback(url) or proxy_bypass(parts.netloc):
        return None
    return getproxies().get(parts.scheme)


def _keep_alive(beat_s: float) -> list[Any]:
    """Enable TCP keep-alive to detect a dead peer: an event stream may be silent for good reasons."""
    options: list[Any] = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    beats = max(1, int(beat_s))
    for name, value in (("TCP_KEEPIDLE", beats), ("TCP_KEEPINTVL", beats), ("TCP_KEEPCNT", 2)):
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options


def _web_address(url: str) -> str:
    """Return the web address for the cookies of a WebSocket address."""
    return "http" + url[2:]
