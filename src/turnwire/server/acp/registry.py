"""Registry of a daemon's ACP connections: it opens, finds and ends them.

Only the identity that opened a connection can find it again. A connection outlives the stream or socket that
carries it: it is retained while one is open, and for a grace period after the last one. It ends with DELETE, the
grace period, its credential or the daemon. A turn never ends with it.

Where nodes share a log, the id of a connection begins with the incarnation of its node, so that other nodes find it
there.

Theory of operation
-------------------
A connection is an object without a task: thousands of them wait for their clients. Its work runs among the daemon's
tasks, each with its own error handler (`ClientState.start`), so a fault in one affects no other. Its grace period
is a timer that exists only while there is no stream, socket or message. Closing is a separate task, because
notifying the sessions takes a moment. One task for all of them ends with the daemon, and then closes the remaining
ones.
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
from turnwire.server.access.tokens import Identity
from turnwire.server.acp.connection import AcpConnection
from turnwire.server.daemon import Daemon

CLOSE_S = 5.0
"""Timeout for notifying the sessions of a client that left; the log needs milliseconds."""
REMEMBERED = 1024
"""Number of ended connections, newest first, that can be ended again without an error."""

_LIFE = re.compile(r"([0-9]{1,18})\.")

logger = logging.getLogger(__name__)


class CarryingSocket(Protocol):
    """The socket that carries a connection."""

    def give_way(self) -> None:
        """Close the socket; another one of the same client resumes the connection."""
        ...


class KeptConnection:
    """A connection and its uses. Implements `tokens.Running`."""

    __slots__ = ("_close", "_grace_s", "_is_over", "_socket", "_timer", "_uses", "connection", "ends_work")

    def __init__(self, connection: AcpConnection, grace_s: float, close: Callable[[KeptConnection], None]) -> None:
        """`close`: called once, when the connection is to end."""
        self.connection = connection
        self._grace_s = grace_s
        self._close = close
        self._uses = 0
        self._is_over = False
        self._socket: CarryingSocket | None = None
        self.ends_work = False
        """The client asked to withdraw its waiting prompts when it ended the connection."""
        self._timer: asyncio.TimerHandle | None = None
        self._begin_grace()

    @contextmanager
    def in_use(self) -> Generator[None]:
        """Count the client as present: a stream or socket is open, or a message is being processed."""
        self._begin_use()
        try:
            yield
        finally:
            self._end_use()

    def enter(self, socket: CarryingSocket) -> None:
        """Use this socket until it leaves. A newer socket replaces the older one, which is closed."""
        if self._socket is not None:
            self._socket.give_way()
        self._socket = socket
        self._begin_use()

    def leave(self, socket: CarryingSocket) -> None:
        """Release the socket."""
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
        """End the connection, because the credential has ended."""
        self.end()

    def end(self, *, ends_work: bool = False) -> None:
        """End the connection at the client's request; `ends_work` withdraws its prompts that have not started."""
        if not self._is_over:
            self.ends_work = ends_work
            self.over()
            self._close(self)

    def over(self) -> None:
        """Mark the connection as ending, so that nothing here ends it again."""
        self._is_over = True
        self._end_grace()


class AcpConnections:
    """All connections of a daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._kept: dict[str, KeptConnection] = {}
        self._open: set[KeptConnection] = set()
        """Connections that have not ended, whether they can still be found or not."""
        self._each: Counter[str | None] = Counter()
        """The number of connections per credential."""
        self._ended: dict[str, Identity] = {}
        self._is_tended = False
        """True once a task ends the connections with the daemon."""

    def open(self, who: Identity, agent: str | None = None) -> KeptConnection:
        """Open a connection, for the named agent if one is named.

        Raises `ConnectionLimitReached`, `ShuttingDown`, `NotFound`.
        """
        daemon = self._daemon
        daemon.check_open()
        agent_name = self._known_agent(agent)
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
            # Started with the first connection: a daemon without ACP clients needs no task for them.
            self._is_tended = True
            daemon.tasks.start_soon(self._end_with_daemon)
        connection = AcpConnection(daemon, who, daemon.tasks, agent_name=agent_name, connection_id=self._new_id())
        kept = KeptConnection(connection, limits.connection_grace_s, self._begin_end)
        self._each[who.token_id] += 1
        self._kept[connection.connection_id] = kept
        self._open.add(kept)
        daemon.tokens.enter(who, kept)
        daemon.clients.connect(connection.can_answer)
        return kept

    def elsewhere(self, connection_id: str, agent: str | None) -> int | None:
        """Return the incarnation of another node that has the connection, if its id says so.

        Raises `NotFound` for an address that names an unknown agent: nothing else is relayed.
        """
        owners = self._daemon.owners
        life = _LIFE.match(connection_id)
        if owners.is_sole or life is None or int(life[1]) == owners.life:
            return None
        self._known_agent(agent)
        return int(life[1])

    def _known_agent(self, agent: str | None) -> AgentName | None:
        name = None if agent is None else AgentName(agent)
        try:
            self._daemon.node.agents.named(name)
        except UnknownAgent as unknown:
            raise NotFound(str(unknown), **unknown.context) from None
        return name

    def _new_id(self) -> str:
        """Return an unguessable id, which is not a credential."""
        owners, unguessable = self._daemon.owners, secrets.token_urlsafe(24)
        return unguessable if owners.is_sole else f"{owners.life}.{unguessable}"

    def find(self, connection_id: str, who: Identity) -> KeptConnection:
        """Return the caller's connection. Raises `NotFound`, also for a connection of another caller."""
        kept = self._kept.get(connection_id)
        if kept is not None and kept.connection.is_closed:
            self._forget(kept.connection)
            kept.end()
            kept = None
        # The message is the same for both, so that callers cannot probe for the ids of others.
        if kept is None or kept.connection.who != who:
            raise NotFound("there is no such connection; it was ended or was silent for too long; initialize again")
        return kept

    def end(self, connection_id: str, who: Identity, *, ends_work: bool = False) -> None:
        """End the caller's connection; its turns continue, but `ends_work` withdraws prompts that have not started.

        Does nothing for a connection that has ended. Raises `NotFound`.
        """
        if self._ended.get(connection_id) != who:
            kept = self.find(connection_id, who)
            # Forgotten at once, so that no request after the response finds it.
            self._forget(kept.connection)
            kept.end(ends_work=ends_work)

    def _begin_end(self, kept: KeptConnection) -> None:
        self._forget(kept.connection)
        self._daemon.tasks.start_soon(self._end, kept)

    async def _end_with_daemon(self) -> None:
        try:
            # Waits indefinitely, with less memory than anyio needs for it.
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
        except Exception:  # other connections must continue
            logger.exception("an ACP connection failed", extra={"event": "acp_connection_failed"})
        finally:
            self._daemon.tokens.leave(who, kept)
            self._daemon.clients.disconnect(kept.connection.can_answer)
            self._each[who.token_id] -= 1
            if not self._each[who.token_id]:
                del self._each[who.token_id]

    def _forget(self, connection: AcpConnection) -> None:
        if self._kept.pop(connection.connection_id, None) is not None:
            self._ended[connection.connection_id] = connection.who
            if len(self._ended) > REMEMBERED:
                del self._ended[next(iter(self._ended))]
