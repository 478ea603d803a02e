"""Agents that run elsewhere, behind Streamable HTTP or a WebSocket.

An agent here has no process: it is gone when its link is, and the next one that is needed is a new connection, on
which its sessions are resumed or loaded. `async with` the source: what carries the frames lives inside. Whether
another connection is tried is for `runtime.agent_pool` to decide.
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

from turnwire.errors import LocalProtocolError
from turnwire.limits import Limits
from turnwire.link.address import (
    agent_headers,
    checked_agent_url,
    is_loopback,
    is_secure,
    is_socket,
)
from turnwire.link.network import NetworkLink
from turnwire.link.streamable import StreamableLink
from turnwire.link.websocket import WebSocketLink, open_websocket, refused, unreachable
from turnwire.runtime.clock import Clock, SystemClock
from turnwire.runtime.source import LinkedAgent

CONNECT_S = 10.0
CONNECT_RETRIES = 2
IDLE_S = 2.0
"""Shorter than any server keeps an idle connection, so that none is used while it is being closed."""


class RemoteSource:
    """Connects to one URL for each agent. Cookies are kept from one to the next."""

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
        """A new connection. Raises `AgentLaunchFailed`."""
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
        """Whether somebody is there who lets us in, so that a wrong address or token is told as such.

        Without a connection's id there is nothing to get, so the expected answer is a refusal of the request.
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
                # The program's own error goes past the task group, which would wrap it.
                await tasks.__aexit__(None, None, None)
        finally:
            with anyio.CancelScope(shield=True):
                await self._client.aclose()
        return None


def _http_client(url: str, headers: Mapping[str, str], limits: Limits) -> httpx.AsyncClient:
    secure = is_secure(url)
    return httpx.AsyncClient(
        # A stream that is compressed on the way is held back until enough of it is there.
        headers={"Accept-Encoding": "identity", **headers},
        transport=httpx.AsyncHTTPTransport(
            # No certificates are read for plain HTTP: that takes longer than the request.
            verify=httpx.create_ssl_context() if secure else False,
            # On one HTTP/2 connection, what has come for one stream can stay unread while another is waited for.
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
    """The proxy that the environment names for this address."""
    parts = urlsplit(url)
    if is_loopback(url) or proxy_bypass(parts.netloc):
        return None
    return getproxies().get(parts.scheme)


def _keep_alive(beat_s: float) -> list[Any]:
    """Let the system find out that a peer is dead: an event stream may be silent for good reasons."""
    options: list[Any] = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    beats = max(1, int(beat_s))
    for name, value in (("TCP_KEEPIDLE", beats), ("TCP_KEEPINTVL", beats), ("TCP_KEEPCNT", 2)):
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options


def _web_address(url: str) -> str:
    """The address of a WebSocket as the one that cookies belong to."""
    return "http" + url[2:]
