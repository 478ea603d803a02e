"""The ACP connections of a daemon: made, found again, and let go.

Takes the identity of a caller; gives a connection that only the same identity finds again. A connection outlives
the stream or socket that carries it: it is kept while one is open, and for a grace time after the last one. Ends
with DELETE, with the grace time, with its credential and with the daemon. Never ends a turn.

Theory of operation
-------------------
Each connection has a keeper: one task that waits for its end inside a cancel scope. The deadline of that scope is
the grace time: moved on with each message, and without end while a stream is open. What the connection starts
runs in a task group of its keeper, so a fault in there costs this connection and no other.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

import anyio
from anyio.abc import TaskStatus

from turnwire.errors import ConnectionLimitReached, NotFound, UnknownAgent
from turnwire.ids import AgentName
from turnwire.server.access.identity import Identity
from turnwire.server.acp.connection import AcpConnection
from turnwire.server.daemon import Daemon

CLOSE_S = 5.0
"""What telling sessions of a client that left may take; the log does it in milliseconds."""
REMEMBERED = 1024
"""Ended connections whose end may be asked for again without being an error, newest kept."""

logger = logging.getLogger(__name__)


class CarryingSocket(Protocol):
    """The socket that carries a connection."""

    def give_way(self) -> None:
        """Another one of the same client goes on with the connection."""
        ...


class KeptConnection:
    """A connection, and what keeps it."""

    def __init__(self, connection: AcpConnection, life: anyio.CancelScope, grace_s: float) -> None:
        self.connection = connection
        self._life = life
        self._grace_s = grace_s
        self._uses = 0
        self._socket: CarryingSocket | None = None
        self.ends_work = False
        """The client wanted its waiting prompts taken back when it ended the connection."""

    @contextmanager
    def in_use(self) -> Generator[None]:
        """Meanwhile the client is there: a stream or a socket is open, or a message is taken."""
        self._begin_use()
        try:
            yield
        finally:
            self._end_use()

    def enter(self, socket: CarryingSocket) -> None:
        """A socket carries it now, until it leaves. There is one: a newer one replaces the older, which is lost."""
        if self._socket is not None:
            self._socket.give_way()
        self._socket = socket
        self._begin_use()

    def leave(self, socket: CarryingSocket) -> None:
        """The socket is gone."""
        self._end_use()
        if self._socket is socket:
            self._socket = None

    def _begin_use(self) -> None:
        self._uses += 1
        self._life.deadline = math.inf

    def _end_use(self) -> None:
        self._uses -= 1
        if not self._uses:
            self._life.deadline = anyio.current_time() + self._grace_s

    def end(self, *, ends_work: bool = False) -> None:
        """The client wants no more of it; with `ends_work` nor of its prompts that have not started."""
        self.ends_work = ends_work
        self._life.cancel()


class AcpConnections:
    """All connections of a daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._kept: dict[str, KeptConnection] = {}
        self._each: Counter[str | None] = Counter()
        """Connections of each credential."""
        self._ended: dict[str, Identity] = {}

    async def open(self, who: Identity, agent: str | None = None) -> KeptConnection:
        """A new connection, at the address of that agent if one is named.

        Raises `ConnectionLimitReached`, `ShuttingDown`, `NotFound`.
        """
        self._daemon.check_open()
        agent_name = None if agent is None else AgentName(agent)
        try:
            self._daemon.node.agents.named(agent_name)
        except UnknownAgent as unknown:
            raise NotFound(str(unknown), **unknown.context) from None
        limits = self._daemon.limits
        if self._each.total() >= limits.acp_connections:
            raise ConnectionLimitReached(
                "too many ACP connections are open; end one, or try again", limit=limits.acp_connections
            )
        if who.token_id is not None and self._each[who.token_id] >= limits.credential_acp_connections:
            raise ConnectionLimitReached(
                "too many ACP connections are open with this credential; end one, or try again",
                limit=limits.credential_acp_connections,
            )
        # Now, because many may ask before the first of them is kept.
        self._each[who.token_id] += 1
        return await self._daemon.tasks.start(self._keep, who, agent_name)

    def find(self, connection_id: str, who: Identity) -> KeptConnection:
        """The caller's connection. Raises `NotFound`, also for one of somebody else."""
        kept = self._kept.get(connection_id)
        if kept is not None and kept.connection.is_closed:
            self._forget(kept.connection)
            kept.end()
            kept = None
        if kept is None or kept.connection.who != who:
            raise NotFound("there is no such connection; it was ended or was silent for too long; initialize again")
        return kept

    def end(self, connection_id: str, who: Identity, *, ends_work: bool = False) -> None:
        """End the caller's connection; its turns go on, but with `ends_work` those that have not started.

        Harmless for one that has ended. Raises `NotFound`.
        """
        if self._ended.get(connection_id) != who:
            kept = self.find(connection_id, who)
            # Now, so that nothing that comes after the answer finds it.
            self._forget(kept.connection)
            kept.end(ends_work=ends_work)

    async def _keep(
        self, who: Identity, agent_name: AgentName | None, *, task_status: TaskStatus[KeptConnection]
    ) -> None:
        grace_s, tokens = self._daemon.limits.connection_grace_s, self._daemon.tokens
        life = anyio.CancelScope(deadline=anyio.current_time() + grace_s)
        try:
            with life:
                tokens.enter(who, life)
                async with anyio.create_task_group() as tasks:
                    connection = AcpConnection(self._daemon, who, tasks, agent_name=agent_name)
                    kept = self._kept[connection.connection_id] = KeptConnection(connection, life, grace_s)
                    try:
                        task_status.started(kept)
                        # For ever, with less than anyio needs for it: most connections do nothing else.
                        await asyncio.get_running_loop().create_future()
                    finally:
                        self._forget(connection)
                        with anyio.move_on_after(CLOSE_S, shield=True):
                            await connection.aclose(ends_work=kept.ends_work)
        except Exception:  # whatever it is, other connections go on
            logger.exception("an ACP connection failed", extra={"event": "acp_connection_failed"})
        finally:
            tokens.leave(who, life)
            self._each[who.token_id] -= 1
            if not self._each[who.token_id]:
                del self._each[who.token_id]

    def _forget(self, connection: AcpConnection) -> None:
        if self._kept.pop(connection.connection_id, None) is not None:
            self._ended[connection.connection_id] = connection.who
            if len(self._ended) > REMEMBERED:
                del self._ended[next(iter(self._ended))]
