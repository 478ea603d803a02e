"""A connection to one MCP server, from initialization to shutdown.

The server is named as in ACP; the connection lists the tools it offers, and calls them. Connecting, calling and
closing are bounded in time. A cancelled call is cancelled at the server. When the server ends, or cannot be reached
at all, `failure` has a sentence with the reason, and there are no offers. `run` never raises errors of the server.

It imports the MCP library: only `turnwire_agent.mcp_servers` imports this module, and only when needed.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client import Client, IncomingMessage, Transport
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import (
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    Implementation,
    TextContent,
    TextResourceContents,
    Tool,
    ToolListChangedNotification,
    jsonrpc_message_adapter,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from msgspec import UNSET, UnsetType

from turnwire import __version__
from turnwire.clock import Clock
from turnwire.errors import AgentLaunchFailed, ConfigError, LinkError, leaves
from turnwire.hosting.address import is_loopback
from turnwire.hosting.base import FrameLink
from turnwire.hosting.environment import agent_environment
from turnwire.hosting.process import AgentProcess, Exit, spawn
from turnwire.limits import Limits
from turnwire.wire.schema.common import NamedValue
from turnwire.wire.schema.v1 import McpServer
from turnwire_agent.tools.tool import failed, shortened, shown
from turnwire_agent.tools.workplace import ShownCall, show

logger = logging.getLogger(__name__)

CLOSE_S = 5.0
"""A server that does not close in this time is abandoned; a process of ours is killed all the same."""

PAGES = 20
"""Maximum pages of a tool list: a server that always has another page is stopped here."""

READ_S, SILENT_S = 30.0, 300.0
"""Timeout of an HTTP server for one step, and the longest silence of a stream."""

LISTEN_FIRST_S, LISTEN_MOST_S = 1.0, 60.0
"""Before a stream of changes that broke is opened again; doubles."""

PROGRESS_LINES, WORDS = 100, 500
"""Maximum progress lines of a call shown to the user, and maximum characters of server text in our messages."""


class McpConnection:
    """One server."""

    def __init__(self, server: McpServer, cwd: Path, *, clock: Clock, connect_s: float, call_s: float) -> None:
        self.name = server.name
        self.offers: list[Tool] = []
        self.failure: str | None = None
        self.settled = anyio.Event()
        """Connected, or failed."""
        self.was_there = False
        """It was connected once. If there is a `failure` now, it may come back."""
        self._server = server
        self._cwd = cwd
        self._clock = clock
        self._connect_s = connect_s
        self._call_s = call_s
        self._client: Client | None = None
        self._life = anyio.CancelScope(shield=True)
        self._closing = anyio.Event()
        self._stale = anyio.Event()

    async def run(self) -> None:
        """Connect, follow its list of tools, and disconnect after `close`, which alone ends it: no cancellation."""
        with self._life:
            try:
                await self._live()
            except Exception as error:
                logger.info("the MCP server %r failed", self.name, exc_info=True)
                self.failure = self.failure or self._why(error)
        self._client, self.offers = None, []
        self.failure = self.failure or "it is closed"
        self.settled.set()

    def again(self) -> McpConnection:
        """Return a new connection to the same server."""
        fresh = McpConnection(
            self._server, self._cwd, clock=self._clock, connect_s=self._connect_s, call_s=self._call_s
        )
        fresh.was_there = self.was_there
        return fresh

    def close(self) -> None:
        """Begin to disconnect; `run` returns soon, at the latest after `CLOSE_S` and the end of its process."""
        if self._client is None:
            self._life.cancel()
        else:
            self._life.deadline = anyio.current_time() + CLOSE_S
            self._closing.set()

    async def call(self, name: str, arguments: dict[str, Any], call: ShownCall) -> str:
        """Call a tool. Raises `RequestRefused` with the server's text if it failed."""
        if self._client is None:
            raise failed(f"the MCP server `{self.name}` is not connected")
        try:
            with anyio.fail_after(self._call_s):
                result = await self._client.call_tool(name, arguments, progress_callback=_Progress(call).show)
        except TimeoutError:
            raise failed(f"the MCP server `{self.name}` did not answer within {self._call_s:g} s") from None
        except MCPError as error:
            raise failed(f"the MCP server `{self.name}` refused the call: {error.message[:WORDS]}") from None
        except (RuntimeError, ValueError, OSError, httpx2.HTTPError, anyio.ClosedResourceError):
            logger.info("a call of %r at the MCP server %r failed", name, self.name, exc_info=True)
            raise failed(f"the MCP server `{self.name}` gave an answer that is not valid MCP, or none") from None
        text = result_text(result)
        if result.is_error:
            raise failed(text)
        return await shown(call, text)

    async def _live(self) -> None:
        with anyio.fail_after(self._connect_s) as opening:
            async with AsyncExitStack() as stack:
                client = await stack.enter_async_context(
                    Client(
                        await self._transport(stack),
                        message_handler=self._heard,
                        client_info=Implementation(name="turnwire", version=__version__),
                        cache=None,
                    )
                )
                self.offers = await _listed(client)
                self._client, self.was_there = client, True
                opening.deadline = math.inf
                self.settled.set()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._follow, client)
                    tasks.start_soon(self._listen, client)
                    await self._closing.wait()
                    tasks.cancel_scope.cancel()

    async def _follow(self, client: Client) -> None:
        """List the tools again whenever they have changed. If that fails, the old list remains."""
        while True:
            await self._stale.wait()
            self._stale = anyio.Event()
            try:
                with anyio.fail_after(self._connect_s):
                    self.offers = await _listed(client)
            except (MCPError, TimeoutError, ValueError):
                logger.info("the MCP server %r did not list its tools again", self.name, exc_info=True)

    async def _heard(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._stale.set()

    async def _listen(self, client: Client) -> None:
        """Newer servers notify of changes on a separate stream, which is reopened when it breaks."""
        tools = client.server_capabilities.tools
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or tools is None or not tools.list_changed:
            return
        wait_s = LISTEN_FIRST_S
        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    async for _ in changes:
                        wait_s = LISTEN_FIRST_S
                        self._stale.set()
            except MCPError:
                logger.info("the MCP server %r does not tell when its tools change", self.name)
                return
            except (SubscriptionLost, TimeoutError):
                logger.debug("the MCP server %r broke off its stream of changes", self.name)
            await self._clock.sleep(wait_s)
            wait_s = min(2 * wait_s, LISTEN_MOST_S)
            # Changes in the meantime were not notified.
            self._stale.set()

    # -- getting there -------------------------------------------------------------------------------------

    async def _transport(self, stack: AsyncExitStack) -> Transport:
        """Open the transport to the server. Resources that must outlive the transport are closed with the stack."""
        server = self._server
        if server.type == "stdio" and isinstance(server.command, str):
            env = agent_environment(os.environ, additions=[f"{n}={v}" for n, v in _pairs(server.env)])
            return guarded_stdio([server.command, *(server.args or [])], self._cwd, env, self._ended)
        if server.type not in ("http", "sse") or not isinstance(server.url, str):
            raise ConfigError("its kind is not known here, or it has no command or URL; use stdio, http or sse")
        headers = dict(_pairs(server.headers))
        if server.type == "sse":
            return sse_client(server.url, headers, READ_S, SILENT_S)
        http = httpx2.AsyncClient(
            headers=headers,
            timeout=httpx2.Timeout(READ_S, read=SILENT_S),
            # No proxy has any business with this machine's own servers.
            trust_env=not is_loopback(server.url),
        )
        return streamable_http_client(server.url, http_client=await stack.enter_async_context(http))

    def _ended(self, how: Exit) -> None:
        """Handle a process that ended by itself; its pending answers are no longer awaited."""
        code = f"with exit code {how.exit_code}" if how.exit_code is not None else f"by signal {how.signal}"
        said = how.stderr_tail.strip().rpartition("\n")[2][:WORDS]
        self.failure = f"it ended {code}" + (f": {said}" if said else "")
        self.offers = []
        self.close()

    def _why(self, error: Exception) -> str:
        """Return the first of several exceptions that has a known message."""
        for each in leaves(error):
            match each:
                case AgentLaunchFailed():
                    return "its program cannot be started; check the command and that it is installed"
                case ConfigError():
                    return str(each)
                case TimeoutError():
                    return f"it did not answer within {self._connect_s:g} s"
                case httpx2.HTTPStatusError():
                    return (
                        f"it answered with the HTTP status {each.response.status_code}; check its URL and headers"
                    )
                case httpx2.HTTPError() | httpx2.InvalidURL():
                    return "it cannot be reached at its URL"
                case MCPError():
                    return f"it refused the connection: {each.message[:WORDS]}"
                case _:
                    continue
        return "the connection failed; see the log of the agent"


class _Progress:
    """A server's progress messages, shown to the user."""

    def __init__(self, call: ShownCall) -> None:
        self._call = call
        self._left = PROGRESS_LINES

    async def show(self, progress: float, total: float | None, message: str | None) -> None:
        if message and self._left:
            self._left -= 1
            await show(self._call, f"{message[:WORDS]}\n")


async def _listed(client: Client) -> list[Tool]:
    if client.server_capabilities.tools is None:
        return []
    page = await client.list_tools()
    found = list(page.tools)
    for _ in range(PAGES):
        if not page.next_cursor:
            break
        page = await client.list_tools(cursor=page.next_cursor)
        found += page.tools
    return found


def _pairs(values: list[NamedValue] | UnsetType) -> Iterator[tuple[str, str]]:
    return ((each.name, each.value) for each in ([] if values is UNSET else values))


# -- a server as a process ---------------------------------------------------------------------------------


LIMITS = Limits(stop_eof_s=1.0, stop_term_s=1.0)
"""A server that does not exit when its input ends gets less time than an agent."""

Incoming = SessionMessage | Exception

Streams = tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]


@asynccontextmanager
async def guarded_stdio(
    command: Sequence[str], cwd: Path, env: Mapping[str, str], ended: Callable[[Exit], object]
) -> AsyncGenerator[Streams]:
    """Start the server and stop it at the end, within a bound. `ended` is called with the outcome if the server
    ends by itself.

    The library's transport ends a group of processes, and only while we live; under our guard
    (`turnwire.hosting.guard`) the whole tree is killed in every case.

    Raises:
        AgentLaunchFailed: It cannot be started.
    """
    process = await spawn(command, cwd=cwd, env=env, limits=LIMITS)
    try:
        to_session, from_server = anyio.create_memory_object_stream[Incoming](0)
        to_server, from_session = anyio.create_memory_object_stream[SessionMessage](0)
        async with anyio.create_task_group() as tasks, from_server, to_server:
            tasks.start_soon(_hear, process, to_session)
            tasks.start_soon(_tell, process.link, from_session)
            tasks.start_soon(_report, process, ended)
            try:
                yield from_server, to_server
            finally:
                tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await process.aclose()


async def _hear(process: AgentProcess, session: MemoryObjectSendStream[Incoming]) -> None:
    """Forward the server's output until it ends. Then the session sees its stream end."""
    async with session:
        try:
            while True:
                for frame in await process.link.receive():
                    try:
                        message = jsonrpc_message_adapter.validate_json(frame, by_name=False)
                    except ValueError:
                        # Servers print to the wrong stream.
                        logger.debug("an MCP server printed a line that is no message: %d bytes", len(frame))
                        continue
                    await session.send(SessionMessage(message))
        except LinkError:
            # A process closes its output before it is gone. Its exit status is more informative than the closed
            # output, so wait for it first.
            with anyio.move_on_after(LIMITS.stop_eof_s):
                await process.exited()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return


async def _tell(link: FrameLink, session: MemoryObjectReceiveStream[SessionMessage]) -> None:
    async with session:
        async for each in session:
            try:
                await link.send(each.message.model_dump_json(by_alias=True, exclude_unset=True).encode())
            except LinkError:
                return


async def _report(process: AgentProcess, ended: Callable[[Exit], object]) -> None:
    ended(await process.exited())


# -- what a tool gave --------------------------------------------------------------------------------------


RESULT_CHARACTERS = 40_000


def result_text(result: CallToolResult) -> str:
    """Return the result as text for a model. Pictures, sounds and files are named with their kind and size only."""
    parts = [_block_text(block) for block in result.content]
    has_text = any(isinstance(block, TextContent) for block in result.content)
    # According to MCP, a server that sends both puts the same content in the text.
    if result.structured_content is not None and not has_text:
        parts.append(json.dumps(result.structured_content, ensure_ascii=False, indent=1))
    return shortened("\n".join(parts), RESULT_CHARACTERS) or "(The tool gave nothing back.)"


def _block_text(block: ContentBlock) -> str:
    if isinstance(block, TextContent):
        return block.text
    if isinstance(block, ImageContent | AudioContent):
        # Three bytes are four letters of base64.
        return f"[{block.type} {block.mime_type}, {len(block.data) * 3 // 4} bytes, not shown]"
    if isinstance(block, EmbeddedResource):
        inner = block.resource
        if isinstance(inner, TextResourceContents):
            return f"[{inner.uri}]\n{inner.text}"
        return f"[{inner.uri} {inner.mime_type or 'binary'}, {len(inner.blob) * 3 // 4} bytes, not shown]"
    return f"[{block.name}: {block.uri}]"
