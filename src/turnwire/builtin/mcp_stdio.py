"""An MCP server as a process: the library's transport over a guarded process of ours.

Takes a command; gives the two streams that the library talks through. The library's own transport ends a group of
processes, and only while we live; under our guard (`turnwire.link.guard`) the whole tree goes, whatever happens.
Never passes on a line that is no JSON-RPC: servers print to the wrong stream.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from turnwire.errors import LinkError
from turnwire.limits import Limits
from turnwire.link.base import FrameLink
from turnwire.link.process import AgentProcess, Exit, spawn

LIMITS = Limits(stop_eof_s=1.0, stop_term_s=1.0)
"""A server that does not leave when its input ends is not waited for as long as an agent is."""

logger = logging.getLogger(__name__)

Incoming = SessionMessage | Exception
Streams = tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]


@asynccontextmanager
async def guarded_stdio(
    command: Sequence[str], cwd: Path, env: Mapping[str, str], ended: Callable[[Exit], object]
) -> AsyncGenerator[Streams]:
    """Start the server and stop it at the end, within a bound. `ended` is told how it went, if it did so by itself.

    Raises:
        AgentLaunchFailed: It cannot be started.
    """
    process = await spawn(command, cwd=cwd, env=env, limits=LIMITS)
    try:
        to_session, from_server = anyio.create_memory_object_stream[Incoming](0)
        to_server, from_session = anyio.create_memory_object_stream[SessionMessage](0)
        async with anyio.create_task_group() as tasks, from_server, to_server:
            tasks.start_soon(_hear, process.link, to_session)
            tasks.start_soon(_tell, process.link, from_session)
            tasks.start_soon(_report, process, ended)
            try:
                yield from_server, to_server
            finally:
                tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await process.aclose()


async def _hear(link: FrameLink, session: MemoryObjectSendStream[Incoming]) -> None:
    """What the server says, until it is gone. Then the session sees its stream end."""
    async with session:
        try:
            while True:
                for frame in await link.receive():
                    try:
                        message = jsonrpc_message_adapter.validate_json(frame, by_name=False)
                    except ValueError:
                        logger.debug("an MCP server printed a line that is no message: %d bytes", len(frame))
                        continue
                    await session.send(SessionMessage(message))
        except (LinkError, anyio.BrokenResourceError, anyio.ClosedResourceError):
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
