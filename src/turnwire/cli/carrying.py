"""Stdin and stdout carried to the `/acp` of a daemon, over a WebSocket that is opened again when it is lost.

Takes the daemon's address and credential; returns when the client's input ends. What the client sends while there
is no way waits in its pipe. What a loss means for the client is decided in `turnwire.cli.relay`. Never prints a
token.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import anyio

from turnwire.cli.flags import settings_from
from turnwire.cli.reaching import Reach, find_daemon
from turnwire.cli.relay import Relay
from turnwire.errors import (
    AgentLaunchFailed,
    ConfigError,
    DaemonRefused,
    DaemonUnreachable,
    LinkBroken,
    LinkError,
    Unauthenticated,
)
from turnwire.limits import Limits
from turnwire.link.address import agent_headers, shown
from turnwire.link.backoff import Backoff
from turnwire.link.stdio import StdioLink, open_pipes
from turnwire.link.websocket import WebSocketLink, open_websocket
from turnwire.runtime.clock import Clock, SystemClock
from turnwire.server.telemetry.logs import configure_logging

FIRST_S, MOST_S = 0.2, 10.0
"""The waits between two tries."""
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""What a daemon that starts or stops, or a proxy in front of it, says of a moment that passes."""
NOT_FOUND = 404

logger = logging.getLogger(__name__)


def carry_to_daemon(url: str, session_id: str | None, token_file: str | None, flags: dict[str, Any]) -> None:
    """Carry frames until the client's input ends. Raises `DaemonUnreachable`, `Unauthenticated`, `ConfigError`."""
    # Nothing is kept here, and no session works here.
    loaded = settings_from({**flags, "cwd": ("/",)}, ())
    settings = loaded.settings
    reach = find_daemon(url, token_file, flags.get("data"))
    secrets = [] if reach.token is None else [reach.token]
    configure_logging(settings.log_format, settings.log_level, secrets=secrets)
    anyio.run(partial(_run, reach, session_id, loaded.limits), backend_options={"use_uvloop": True})


async def _run(reach: Reach, session_id: str | None, limits: Limits) -> None:
    way = Way(socket_url(reach.url), reach.token, limits)
    near = open_pipes(limits)
    try:
        await Carrier(way, Relay(session_id), near, limits).run()
    finally:
        await near.aclose()


def socket_url(url: str) -> str:
    """Where a daemon's WebSocket is. Raises `ConfigError`."""
    parts = urlsplit(url)
    scheme = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}.get(parts.scheme)
    if scheme is None or not parts.hostname or parts.query:
        raise ConfigError("a daemon's address is like http://127.0.0.1:4170; give --daemon such a one")
    path = parts.path.rstrip("/")
    return urlunsplit((scheme, parts.netloc, path if path.endswith("/acp") else f"{path}/acp", "", ""))


class Way:
    """The connection to the daemon, opened as often as it takes."""

    def __init__(self, url: str, token: str | None, limits: Limits, clock: Clock | None = None) -> None:
        self._url = url
        self._headers = agent_headers(token, None)
        self._limits = limits
        self._clock = clock or SystemClock()

    async def open(self, within_s: float, connection_id: str | None = None) -> tuple[WebSocketLink, bool]:
        """A link, and whether the daemon goes on with that connection.

        Raises:
            DaemonUnreachable: Nobody answered in time.
            Unauthenticated: The daemon does not take the token.
            DaemonRefused: Something answers there that has no ACP for us.
        """
        pause, last = Backoff(FIRST_S, MOST_S), self._clock.monotonic() + within_s
        while True:
            try:
                return await self._dial(connection_id), connection_id is not None
            except AgentLaunchFailed as error:
                status = error.context.get("status")
                if status == NOT_FOUND and connection_id is not None:
                    connection_id = None
                    continue
                # Without a status it may be a daemon, or a proxy before it, that was cut while it answered.
                if isinstance(status, int) and status not in PASSING:
                    raise self._refused(status) from None
                if self._clock.monotonic() >= last:
                    words = f"no daemon answers at {shown(self._url)}; start it (turnwire serve), or check --daemon"
                    raise DaemonUnreachable(words) from None
            await self._clock.sleep(pause.next_s())

    async def _dial(self, connection_id: str | None) -> WebSocketLink:
        # What was on its way when the last link broke is lost, so we say from where each session goes on.
        asked = "" if connection_id is None else f"?connection={quote(connection_id)}&attaches=true"
        return await open_websocket(self._url + asked, self._headers, self._limits)

    def _refused(self, status: int) -> Unauthenticated | DaemonRefused:
        if status in (401, 403):
            return Unauthenticated(f"the daemon at {shown(self._url)} does not take the token")
        words = f"no ACP is served at {shown(self._url)}; check --daemon, and that the daemon serves ACP"
        return DaemonRefused(words, status=status)


class Carrier:
    """One client and its daemon."""

    def __init__(self, way: Way, relay: Relay, near: StdioLink, limits: Limits) -> None:
        self._way = way
        self._relay = relay
        self._near = near
        self._limits = limits
        self._far: WebSocketLink | None = None
        self._found, self._lost = anyio.Event(), anyio.Event()
        self._told = anyio.Event()
        """Set with each frame for the client."""
        self._over = anyio.CancelScope()

    async def run(self) -> None:
        """Carry frames until the client's input ends, or it reads no more. Raises what `Way.open` raises."""
        far, _ = await self._way.open(self._limits.request_retry_s)
        with self._over:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._carry_up)
                frames: list[bytes] = []
                while True:
                    await self._use(far, frames)
                    logger.info("the way to the daemon is lost; looking for it", extra={"event": "way_lost"})
                    far, is_same = await self._way.open(self._limits.reconnect_s, self._relay.connection_id)
                    logger.info("the daemon is there again", extra={"event": "way_found", "is_same": is_same})
                    frames, told = self._relay.reattached() if is_same else self._relay.restarted()
                    await self._tell(told)

    async def _use(self, far: WebSocketLink, frames: list[bytes]) -> None:
        """Carry over this link, `frames` first, until it is lost."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(far.run)
            try:
                for frame in frames:
                    await far.send(frame)
                self._far = far
                self._found.set()
                while True:
                    for frame in await far.receive():
                        await self._tell(self._relay.down(frame))
            except LinkBroken:
                self._far, self._found = None, anyio.Event()
                self._lost.set()
                self._lost = anyio.Event()
            finally:
                await far.aclose()

    async def _tell(self, frames: list[bytes]) -> None:
        try:
            for frame in frames:
                await self._near.send(frame)
        except LinkError:
            logger.info("the client reads no more", extra={"event": "stdio_not_read"})
            self._over.cancel()
        self._told.set()

    async def _carry_up(self) -> None:
        try:
            while True:
                for frame in await self._near.receive():
                    await self._send(frame)
        except LinkError:
            # One that only ended its input still reads: it gets the answers that it asked for.
            with anyio.move_on_after(self._limits.opening_s):
                while self._relay.is_waiting:
                    self._told = anyio.Event()
                    await self._told.wait()
            self._over.cancel()

    async def _send(self, frame: bytes) -> None:
        """Send a frame of the client, over the next link if this one is lost."""
        while True:
            await self._found.wait()
            far, lost = self._far, self._lost
            if far is None:
                continue
            passed = self._relay.up(frame)
            if passed is None:
                return
            try:
                await far.send(passed)
            except LinkBroken:
                self._relay.unsent(frame)
                await lost.wait()
            else:
                return
