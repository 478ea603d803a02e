"""A session's workspace: the files and terminals that the daemon serves to its agent in place of a client.

A method of ACP and its raw params come in, a raw result goes out; or a `RequestRefused`, whose text, code and
`uri` may be sent to the agent as they are. Nothing outside the session's directories is served, nothing blocks
the event loop, and nothing is left behind when it is closed or a call is cancelled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from anyio import CapacityLimiter, to_thread
from msgspec import Raw

from turnwire.errors import RemoteProtocolError, RequestRefused
from turnwire.limits import Limits
from turnwire.runtime.services import refusals
from turnwire.runtime.services.files import Files
from turnwire.runtime.services.roots import Roots
from turnwire.runtime.services.terminals import Terminals
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
    """What one session's agent can have without a client. Make it inside a running event loop."""

    def __init__(
        self,
        cwd: str,
        additional_directories: Sequence[str] = (),
        limits: Limits | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Looks at nothing on disk yet.

        Args:
            cwd: The session's working directory, absolute.
            additional_directories: Its further roots, absolute.
            limits: Sizes and numbers.
            environment: What commands in terminals get; by default what an agent gets.

        Raises:
            RequestRefused: A directory is not an absolute path.
        """
        limits = limits or Limits()
        threads = CapacityLimiter(limits.file_threads)
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
        """Fix the directories now instead of at the first request. Raises `RequestRefused` if one is missing."""
        await to_thread.run_sync(self._roots.pin, limiter=self._threads)

    async def serve(self, method: str, params: Raw, after: int = 0) -> Raw:
        """Do what the agent asks; behind which event is all the same here.

        Calls may overlap, and are in no order. Cancel-safe: see each module.

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
        """Kill every terminal; nothing is served any more. Idempotent, bounded by `stop_kill_s`."""
        self._is_closed = True
        await self._terminals.aclose()

    # -- the methods: params of ACP are unpacked here, and nowhere below ------------------------------------------

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
