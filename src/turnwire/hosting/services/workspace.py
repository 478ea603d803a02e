"""A session's workspace: the files and terminals that the daemon serves to its agent instead of a client.

The input is a method of ACP and its raw params. The output is a raw result, or a `RequestRefused` whose text, code
and `uri` may be sent to the agent unchanged. Nothing outside the session's directories is served, nothing blocks
the event loop, and no process or file remains when it is closed or a call is cancelled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from anyio import CapacityLimiter, to_thread
from msgspec import Raw

from turnwire.errors import RemoteProtocolError, RequestRefused
from turnwire.hosting.services import refusals
from turnwire.hosting.services.files import FILE_THREADS, Files
from turnwire.hosting.services.roots import Roots
from turnwire.hosting.services.terminals import Terminals
from turnwire.limits import Limits
from turnwire.wire.jsonrpc import METHOD_NOT_FOUND, raw
from turnwire.wire.methods import (
    FS_READ_TEXT_FILE,
    FS_WRITE_TEXT_FILE,
    TERMINAL_CREATE,
    TERMINAL_KILL,
    TERMINAL_OUTPUT,
    TERMINAL_RELEASE,
    TERMINAL_WAIT_FOR_EXIT,
)
from turnwire.wire.schema.reading import read
from turnwire.wire.schema.v1 import (
    CreateTerminalRequest,
    CreateTerminalResponse,
    ReadTextFileRequest,
    ReadTextFileResponse,
    TerminalOutputResponse,
    TerminalRequest,
    WriteTextFileRequest,
)

T = TypeVar("T")

DONE: Final = Raw(b"{}")


class Workspace:
    """The services for one session's agent without a client. Create it inside a running event loop."""

    def __init__(
        self,
        cwd: str,
        additional_directories: Sequence[str] = (),
        limits: Limits | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Create the workspace without reading the disk.

        Args:
            cwd: The session's working directory, absolute.
            additional_directories: Its further roots, absolute.
            limits: Sizes and numbers.
            environment: Environment of commands in terminals; by default an agent's.

        Raises:
            RequestRefused: A directory is not an absolute path.
        """
        limits = limits or Limits()
        threads = CapacityLimiter(FILE_THREADS)
        self._threads = threads
        self._roots = Roots(cwd, additional_directories)
        self._files = Files(self._roots, limits, threads)
        self._terminals = Terminals(self._roots, limits, threads, environment)
        self._is_closed = False
        self._calls: dict[str, Callable[[Raw], Awaitable[Raw]]] = {
            FS_READ_TEXT_FILE: self._read_text_file,
            FS_WRITE_TEXT_FILE: self._write_text_file,
            TERMINAL_CREATE: self._create,
            TERMINAL_OUTPUT: self._output,
            TERMINAL_WAIT_FOR_EXIT: self._wait_for_exit,
            TERMINAL_KILL: self._kill,
            TERMINAL_RELEASE: self._release,
        }
        self.methods: Final = frozenset(self._calls)

    async def open(self) -> None:
        """Resolve the directories now instead of at the first request. Raises `RequestRefused` if one is
        missing.
        """
        await to_thread.run_sync(self._roots.pin, limiter=self._threads)

    async def serve(self, method: str, params: Raw, after: int = 0) -> Raw:
        """Serve a request of the agent. The event before it does not matter here.

        Calls may overlap, and have no order. Cancel-safe: see each module.

        Raises:
            RequestRefused: With the code to answer with.
        """
        call = self._calls.get(method)
        if call is None:
            raise RequestRefused("the method is not served", jsonrpc=METHOD_NOT_FOUND, reason="unknown_method")
        if self._is_closed:
            raise refusals.closed()
        return await call(params)

    async def aclose(self) -> None:
        """Kill every terminal and serve no more requests. Idempotent, bounded by `stop_kill_s`."""
        self._is_closed = True
        await self._terminals.aclose()

    # -- the methods: params of ACP are decoded only here ---------------------------------------------------------

    async def _read_text_file(self, params: Raw) -> Raw:
        request = _read(params, ReadTextFileRequest)
        content = await self._files.read_text_file(request.path, request.line, request.limit)
        return raw(ReadTextFileResponse(content=content))

    async def _write_text_file(self, params: Raw) -> Raw:
        request = _read(params, WriteTextFileRequest)
        await self._files.write_text_file(request.path, request.content)
        return DONE

    async def _create(self, params: Raw) -> Raw:
        request = _read(params, CreateTerminalRequest)
        terminal_id = await self._terminals.create(
            request.command,
            request.args,
            env={each.name: each.value for each in request.env},
            cwd=request.cwd,
            output_byte_limit=request.output_byte_limit,
        )
        return raw(CreateTerminalResponse(terminal_id=terminal_id))

    async def _output(self, params: Raw) -> Raw:
        terminal = self._terminals.find(_named(params))
        output = terminal.output
        return raw(
            TerminalOutputResponse(output=output.text(), truncated=output.is_truncated, exit_status=terminal.exit)
        )

    async def _wait_for_exit(self, params: Raw) -> Raw:
        return raw(await self._terminals.find(_named(params)).exited())

    async def _kill(self, params: Raw) -> Raw:
        await self._terminals.kill(_named(params))
        return DONE

    async def _release(self, params: Raw) -> Raw:
        await self._terminals.release(_named(params))
        return DONE


def _named(params: Raw) -> str:
    return _read(params, TerminalRequest).terminal_id


def _read(params: Raw, kind: type[T]) -> T:
    try:
        return read(params, kind)
    except RemoteProtocolError:
        raise refusals.invalid(
            "the params are malformed; check the types and that nothing required is missing", "malformed"
        ) from None
