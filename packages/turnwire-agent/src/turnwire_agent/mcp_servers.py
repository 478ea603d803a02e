"""The MCP servers of a session: their tools, as tools of the built-in agent.

Servers are given as ACP clients name them (stdio, http, sse). The result is the tools of those that can be reached,
and the names of the others with the reason: a failing server never fails a session. The MCP library is loaded only
when a session has servers. No process is leaked: stdio servers run under a guard, like agents.

`run` holds the connections; start it in a task of the session and cancel it with the session, or `stop` it.
`connected` returns once every server is connected or given up; one that was connected and ended is started again,
so a turn that begins with `connected` has its tools. `tools` is valid at any time, and follows servers that change
theirs.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from turnwire.clock import Clock, SystemClock
from turnwire.errors import RemoteProtocolError
from turnwire.wire.jsonrpc import raw
from turnwire.wire.schema.reading import read
from turnwire.wire.schema.v1 import McpServer
from turnwire_agent.model import NAME_LENGTH, ToolSpec, in_letters
from turnwire_agent.tools.tool import Tool, failed, wrong
from turnwire_agent.tools.workplace import ShownCall, Workplace

if TYPE_CHECKING:
    from turnwire_agent.mcp_connection import McpConnection

CONNECT_S, CALL_S = 30.0, 300.0
"""Package runners download a server before its first word. A tool may build a project."""

STOP_S = 15.0
"""Upper bound of `stop`: a connection closes within 5 s, and its process is ended then."""

DESCRIPTION_LENGTH = 4000
"""Enough to explain a tool."""

MOST_TOOLS = 256
"""Maximum tools of all servers together. Models get confused by far fewer."""


class Offer(Protocol):
    """One tool of one server, as `McpConnection` lists it."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str | None: ...
    @property
    def input_schema(self) -> dict[str, Any]: ...


class McpServers:
    """The servers of one session."""

    def __init__(
        self,
        servers: Sequence[dict[str, Any]],
        cwd: Path,
        *,
        connect_s: float = CONNECT_S,
        call_s: float = CALL_S,
        clock: Clock | None = None,
    ) -> None:
        self._servers = servers
        self._cwd = cwd
        self._connect_s = connect_s
        self._call_s = call_s
        self._clock = clock or SystemClock()
        self._connections: list[McpConnection] = []
        self._failures: list[tuple[str, str]] = []
        self._begun = anyio.Event()
        self._stopping = anyio.Event()
        self._over = anyio.Event()
        self._tasks: TaskGroup | None = None

    @property
    def is_over(self) -> bool:
        """`run` has ended, and with it every connection."""
        return self._over.is_set()

    def serves(self, servers: Sequence[dict[str, Any]], cwd: Path) -> bool:
        """Return True if these are the current servers."""
        return not self.is_over and list(servers) == list(self._servers) and cwd == self._cwd

    async def stop(self) -> None:
        """End `run`, and return once all are closed; at the latest after `STOP_S`."""
        self._stopping.set()
        with anyio.move_on_after(STOP_S):
            await self._over.wait()

    async def run(self) -> None:
        """Connect to all at once and stay connected until stopped or cancelled; then close them, within a bound."""
        try:
            self._connections = await self._made()
            async with anyio.create_task_group() as tasks:
                for connection in self._connections:
                    tasks.start_soon(connection.run)
                self._tasks = tasks
                self._begun.set()
                try:
                    await self._stopping.wait()
                finally:
                    self._tasks = None
                    for connection in self._connections:
                        connection.close()
        finally:
            self._begun.set()
            self._over.set()

    async def connected(self) -> None:
        """Return once each server has answered or failed; at the latest after `connect_s`. Needs `run`."""
        await self._begun.wait()
        if self._tasks is not None:
            for at, connection in enumerate(self._connections):
                if connection.was_there and connection.failure:
                    self._connections[at] = fresh = connection.again()
                    self._tasks.start_soon(fresh.run)
        for connection in tuple(self._connections):
            await connection.settled.wait()

    def failures(self) -> list[tuple[str, str]]:
        """Return the missing servers by name, each with a sentence that gives the reason."""
        lost = [(each.name, each.failure) for each in self._connections if each.failure]
        return self._failures + lost

    def tools(self) -> dict[str, Tool]:
        """By the name that a model uses. In the order of the servers, so that names stay as they are."""
        found: dict[str, Tool] = {}
        for connection in self._connections:
            for offer in connection.offers:
                if len(found) >= MOST_TOOLS:
                    return found
                name = _free_name(connection.name, offer.name, found)
                found[name] = McpTool(connection, offer, name)
        return found

    async def _made(self) -> list[McpConnection]:
        if not self._servers:
            return []
        # The import needs about a second, and must not block the event loop.
        await to_thread.run_sync(importlib.import_module, "turnwire_agent.mcp_connection")
        from turnwire_agent.mcp_connection import McpConnection

        made: list[McpConnection] = []
        for each in self._servers:
            try:
                server = read(raw(each), McpServer)
            except RemoteProtocolError:
                self._failures.append(
                    (_name(each), "its description is malformed; give a name with a command or a URL")
                )
            else:
                made.append(
                    McpConnection(
                        server, self._cwd, clock=self._clock, connect_s=self._connect_s, call_s=self._call_s
                    )
                )
        return made


class McpTool:
    """A tool of a server. The server's claim to be harmless is not trusted, so it always asks."""

    kind = "other"
    asks = True
    edits = False

    def __init__(self, connection: McpConnection, offer: Offer, name: str) -> None:
        self._connection = connection
        self._offer = offer
        description = (offer.description or "").strip() or f"A tool of the MCP server {connection.name}."
        self.spec = ToolSpec(name, description[:DESCRIPTION_LENGTH], _usable(offer.input_schema))

    def title(self, arguments: dict[str, Any]) -> str:
        return f"{self._connection.name}: {self._offer.name}"

    async def prepare(self, workplace: Workplace, arguments: dict[str, Any], call: ShownCall) -> None:
        missing = [name for name in self.spec.schema.get("required", ()) if name not in arguments]
        if missing:
            raise wrong(f"arguments are missing: {', '.join(map(str, missing))}; give them and call it again")

    async def run(self, workplace: Workplace, arguments: dict[str, Any], call: ShownCall) -> str:
        if self._connection.failure:
            raise failed(f"the MCP server `{self._connection.name}` is gone: {self._connection.failure}")
        return await self._connection.call(self._offer.name, arguments, call)


def _free_name(server: str, tool: str, taken: dict[str, Tool]) -> str:
    """Return `server__tool` in the letters that providers accept; numbered when the name is in use."""
    whole = f"{_letters(server) or 'server'}__{_letters(tool) or 'tool'}"
    name, number = whole[:NAME_LENGTH], 2
    while name in taken:
        name, number = f"{whole[: NAME_LENGTH - len(str(number)) - 1]}_{number}", number + 1
    return name


def _usable(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that providers accept, if removing members suffices for that."""
    if schema.get("type") != "object":
        return {"type": "object"}
    required = schema.get("required", [])
    is_list = isinstance(required, list) and all(isinstance(each, str) for each in cast("list[Any]", required))
    return schema if is_list else {name: value for name, value in schema.items() if name != "required"}


def _letters(text: str) -> str:
    return in_letters(text).strip("_")


def _name(server: dict[str, Any]) -> str:
    name = server.get("name")
    return name if isinstance(name, str) and name else "a server without a name"
