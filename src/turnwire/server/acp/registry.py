"""The ACP connections of a daemon: made, found again, and let go.

Takes the identity of a caller; gives a connection that only the same identity finds again. A connection outlives
the stream or socket that carries it: it is kept while one is open, and for a grace time after the last one. Ends
with DELETE, with the grace time, with its credential and with the daemon. Never ends a turn.

Where nodes share a log, the id of a connection begins with the life of its node, so that the others find it there.

Theory of operation
-------------------
A connection is an object without a task: thousands of them wait for their clients. What it starts runs among the
daemon's tasks, each caught by itself (`ClientState.start`), so a fault in there costs nobody else. Its grace time
is a timer that is there only while no stream, socket or message is. Its end is a task of its own: the sessions
are told, which takes a moment. One task for all of them ends with the daemon, and then ends those that are left.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol

import anyio

from turnwire.errors import ConnectionLimitReached, NotFound, UnknownAgent
from turnwire.ids import AgentName
from turnwire.server.access.identity import Identity
from turnwire.server.acp.connection import AcpConnection
from turnwire.server.daemon import Daemon

CLOSE_S = 5.0
"""What telling sessions of a client that left may take; the log does it in milliseconds."""
REMEMBERED = 1024
"""Ended connections whose end may be asked for again without being an error, newest kept."""

_LIFE = re.compile(r"([0-9]{1,18})\.")

logger = logging.getLogger(__name__)


class CarryingSocket(Protocol):
    """The socket that carries a connection."""

    def give_way(self) -> None:
        """Another one of the same client goes on with the connection."""
        ...


class KeptConnection:
    """A connection, and what keeps it. Implements `tokens.Running`."""

    __slots__ = ("_close", "_grace_s", "_is_over", "_socket", "_timer", "_uses", "connection", "ends_work")

    def __init__(self, connection: AcpConnection, grace_s: float, close: Callable[[KeptConnection], None]) -> None:
        """`close`: called once, when it is to end."""
        self.connection = connection
        self._grace_s = grace_s
        self._close = close
        self._uses = 0
        self._is_over = False
        self._socket: CarryingSocket | None = None
        self.ends_work = False
        """The client wanted its waiting prompts taken back when it ended the connection."""
        self._timer: asyncio.TimerHandle | None = None
        self._begin_grace()

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
        self._end_grace()

    def _end_use(self) -> None:
        self._uses -= 1
        if not self._uses and not self._is_over:
            self._begin_grace()

    def _begin_grace(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._grace_s, self.end)

    def _end_grace(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def cancel(self) -> None:
        """The credential has ended."""
        self.end()

    def end(self, *, ends_work: bool = False) -> None:
        """The client wants no more of it; with `ends_work` nor of its prompts that have not started."""
        if not self._is_over:
            self.ends_work = ends_work
            self.over()
            self._close(self)

    def over(self) -> None:
        """It is being ended: nothing here does so any more."""
        self._is_over = True
        self._end_grace()


class AcpConnections:
    """All connections of a daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._kept: dict[str, KeptConnection] = {}
        self._open: set[KeptConnection] = set()
        """Those that have not ended, found or not."""
        self._each: Counter[str | None] = Counter()
        """Connections of each credential."""
        self._ended: dict[str, Identity] = {}
        self._is_tended = False
        """Somebody ends them with the daemon."""

    def open(self, who: Identity, agent: str | None = None) -> KeptConnection:
        """A new connection, at the address of that agent if one is named.

        Raises `ConnectionLimitReached`, `ShuttingDown`, `NotFound`.
        """
        daemon = self._daemon
        daemon.check_open()
        agent_name = None if agent is None else AgentName(agent)
        try:
            daemon.node.agents.named(agent_name)
        except UnknownAgent as unknown:
            raise NotFound(str(unknown), **unknown.context) from None
        limits = daemon.limits
        if self._each.total() >= limits.acp_connections:
            raise ConnectionLimitReached(
                "too many ACP connections are open; end one, or try again", limit=limits.acp_connections
            )
        if who.token_id is not None and self._each[who.token_id] >= limits.credential_acp_connections:
            raise ConnectionLimitReached(
                "too many ACP connections are open with this credential; end one, or try again",
                limit=limits.credential_acp_connections,
            )
        if not self._is_tended:
            # With the first one: a daemon without clients of ACP has no task for them.
            self._is_tended = True
            daemon.tasks.start_soon(self._end_with_daemon)
        connection = AcpConnection(daemon, who, daemon.tasks, agent_name=agent_name, connection_id=self._new_id())
        kept = KeptConnection(connection, limits.connection_grace_s, self._begin_end)
        self._each[who.token_id] += 1
        self._kept[connection.connection_id] = kept
        self._open.add(kept)
        daemon.tokens.enter(who, kept)
        return kept

    def elsewhere(self, connection_id: str) -> int | None:
        """The life of another node that has the connection, if its id says so."""
        owners = self._daemon.owners
        life = _LIFE.match(connection_id)
        if owners.is_sole or life is None or int(life[1]) == owners.life:
            return None
        return int(life[1])

    def _new_id(self) -> str:
        """Unguessable, and no credential."""
        owners, unguessable = self._daemon.owners, secrets.token_urlsafe(24)
        return unguessable if owners.is_sole else f"{owners.life}.{unguessable}"

    def find(self, connection_id: str, who: Identity) -> KeptConnection:
        """The caller's connection. Raises `NotFound`, also for one of somebody else."""
        kept = self._kept.get(connection_id)
        if kept is not None and kept.connection.is_closed:
            self._forget(kept.connection)
            kept.end()
            kept = None
        # In the same words for both, so that nobody learns which ids others have.
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

    def _begin_end(self, kept: KeptConnection) -> None:
        self._forget(kept.connection)
        self._daemon.tasks.start_soon(self._end, kept)

    async def _end_with_daemon(self) -> None:
        try:
            # For ever, with less than anyio needs for it.
            await asyncio.get_running_loop().create_future()
        finally:
            with anyio.CancelScope(shield=True):
                async with anyio.create_task_group() as tasks:
                    for each in self._open:
                        tasks.start_soon(self._end, each)

    async def _end(self, kept: KeptConnection) -> None:
        who = kept.connection.who
        if kept not in self._open:
            return
        self._open.discard(kept)
        kept.over()
        try:
            with anyio.move_on_after(CLOSE_S, shield=True):
                await kept.connection.aclose(ends_work=kept.ends_work)
        except Exception:  # whatever it is, other connections go on
            logger.exception("an ACP connection failed", extra={"event": "acp_connection_failed"})
        finally:
            self._daemon.tokens.leave(who, kept)
            self._each[who.token_id] -= 1
            if not self._each[who.token_id]:
                del self._each[who.token_id]

    def _forget(self, connection: AcpConnection) -> None:
        if self._kept.pop(connection.connection_id, None) is not None:
            self._ended[connection.connection_id] = connection.who
            if len(self._ended) > REMEMBERED:
                del self._ended[next(iter(self._ended))]
