"""Blocking clients for programs without an event loop: the same calls, each waiting for its result.

The asyncio clients run on a separate thread; this module only passes calls and results between the threads.
Handlers run in worker threads, so one may wait for a turn; they are still called in the order of the log, one after
the other.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from functools import partial
from inspect import iscoroutine, iscoroutinefunction
from math import inf
from types import TracebackType
from typing import Any, Self, TypeVar

from anyio import CapacityLimiter, to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal

from turnwire.client.arguments import Content
from turnwire.client.client import Client as AsyncClient
from turnwire.client.client import connect as async_connect
from turnwire.client.daemon_client import DaemonClient as AsyncDaemonClient
from turnwire.client.daemon_client import Envelope, OpenedSession, PromptResult, SessionStatus, TurnStatus
from turnwire.client.permission import Answer, PermissionRequest
from turnwire.client.port import Accepted
from turnwire.client.progress import TurnResult
from turnwire.client.session import Busy
from turnwire.client.session import Session as AsyncSession
from turnwire.client.turn import Steered
from turnwire.client.turn import Turn as AsyncTurn
from turnwire.client.update import Update
from turnwire.errors import ClientClosed, LocalProtocolError
from turnwire.hosting.source import AgentSource
from turnwire.ids import PromptId, RequestId, SessionId
from turnwire.limits import Limits
from turnwire.log import EventLog
from turnwire.projections.view import View

__all__ = ["Client", "DaemonClient", "Session", "Turn", "connect"]

_Any = TypeVar("_Any")

_Answer = TypeVar("_Answer", bound=Answer)

_Result = TypeVar("_Result")

_Value = TypeVar("_Value")

NOT_PLAIN = "there is no event loop here to run an `async` function; give a plain one, or use `turnwire.connect`"


@contextmanager
def connect(
    agent: str | Sequence[str] | AgentSource | None = None,
    *,
    token: str | None = None,
    env: dict[str, str] | None = None,
    log: EventLog | None = None,
    limits: Limits | None = None,
) -> Generator[Client]:
    """Return a client of a daemon, or one with a private agent, for use in `with`.

    The arguments and errors are those of `turnwire.client.connect`.
    """
    opening = async_connect(agent, token=token, env=env, log=log, limits=limits)
    with running_thread(opening) as (thread, client):
        yield Client(thread, client)


class Client:
    """Sessions on one daemon. See `turnwire.client.Client`."""

    def __init__(self, thread: LoopThread, client: AsyncClient) -> None:
        self._thread = thread
        self._client = client

    def new_session(
        self,
        cwd: str | os.PathLike[str] = ".",
        *,
        mcp_servers: Sequence[Mapping[str, Any]] = (),
        agent: str | None = None,
        system_prompt: str | None = None,
    ) -> Session:
        named = {"mcp_servers": mcp_servers, "agent": agent, "system_prompt": system_prompt}
        opened = self._thread.call(partial(self._client.new_session, cwd, **named))
        return Session(self._thread, opened)

    def authenticate(self, method_id: str) -> None:
        self._thread.call(self._client.authenticate, method_id)

    def attach(self, session_id: str) -> Session:
        return Session(self._thread, self._thread.call(self._client.attach, session_id))

    def sessions(self) -> list[SessionId]:
        return self._thread.call(self._client.sessions)

    def on_update(self, function: Callable[[Update], _Any]) -> Callable[[Update], _Any]:
        self._thread.call(plainly, self._client.on_update, self._thread.in_worker(function))
        return function

    def on_permission(
        self, function: Callable[[PermissionRequest], _Answer]
    ) -> Callable[[PermissionRequest], _Answer]:
        self._thread.call(plainly, self._client.on_permission, self._thread.in_worker(function, abandon=True))
        return function

    def completed(self, request_id: RequestId) -> TurnResult:
        return self._thread.call(self._client.completed, request_id)


class Session:
    """One session. See `turnwire.client.Session`."""

    def __init__(self, thread: LoopThread, session: AsyncSession) -> None:
        self._thread = thread
        self._session = session
        self.handler_errors = session.handler_errors

    @property
    def session_id(self) -> SessionId:
        return self._session.session_id

    def prompt(
        self,
        content: Content,
        *,
        when_busy: Busy | None = None,
        key: str | None = None,
        request_id: RequestId | None = None,
    ) -> Turn:
        ask = partial(self._session.prompt, content, when_busy=when_busy, key=key, request_id=request_id)
        return Turn(self._thread, self._thread.call(plainly, ask))

    def cancel(self) -> None:
        self._thread.call(self._session.cancel)

    def completed(self, request_id: RequestId) -> TurnResult:
        return self._thread.call(self._session.completed, request_id)

    def on_update(self, function: Callable[[Update], _Any]) -> Callable[[Update], _Any]:
        self._thread.call(plainly, self._session.on_update, self._thread.in_worker(function))
        return function

    def on_permission(
        self, function: Callable[[PermissionRequest], _Answer]
    ) -> Callable[[PermissionRequest], _Answer]:
        self._thread.call(plainly, self._session.on_permission, self._thread.in_worker(function, abandon=True))
        return function

    def answer(self, question: PermissionRequest, answer: str | Mapping[str, Any]) -> bool:
        return self._thread.call(self._session.answer, question, answer)

    def view(self) -> View:
        return self._thread.call(self._session.view)

    def close(self) -> None:
        self._thread.call(self._session.close)


class Turn:
    """One prompt and its results. See `turnwire.client.Turn`."""

    def __init__(self, thread: LoopThread, turn: AsyncTurn) -> None:
        self._thread = thread
        self._turn = turn

    def result(self, timeout: float | None = None) -> TurnResult:
        """Wait for the end. Raises `TimeoutError` after that many seconds; the turn itself continues."""
        waiting = self._thread.start(self._turn.result)
        try:
            return waiting.result(timeout)
        except TimeoutError:
            waiting.cancel()
            raise

    def accepted(self) -> Accepted:
        """Wait until the prompt is recorded."""
        return self._thread.call(_wait_for, self._turn)

    def steered(self) -> Steered:
        return self._thread.call(self._turn.steered)

    @property
    def prompt_id(self) -> PromptId | None:
        return self._turn.prompt_id

    def __iter__(self) -> Generator[Update]:
        """Yield the turn's updates in order, as they arrive, until its end."""
        pages = self._turn.pages()
        try:
            while (page := self._thread.call(_next_page, pages)) is not None:
                yield from page
        finally:
            if not self._thread.is_over:
                self._thread.call(pages.aclose)

    def cancel(self) -> None:
        self._thread.call(self._turn.cancel)

    def settle(self) -> None:
        self._thread.call(self._turn.settle)

    def edit(self, content: Content | None = None, *, place: int | None = None) -> None:
        self._thread.call(partial(self._turn.edit, content, place=place))

    def remove(self) -> None:
        self._thread.call(self._turn.remove)


async def _wait_for(turn: AsyncTurn) -> Accepted:
    return await turn.accepted


async def _next_page(pages: Any) -> list[Update] | None:
    return await anext(pages, None)


class DaemonClient:
    """A daemon at a URL, for use in `with`. See `turnwire.client.DaemonClient`."""

    def __init__(self, url: str, token: str | None = None, *, limits: Limits | None = None) -> None:
        self._client = AsyncDaemonClient(url, token, limits=limits)
        self._stack = ExitStack()
        self._running: LoopThread | None = None

    def create_session(self, cwd: str | None = None, **more: Any) -> OpenedSession:
        return self._thread.call(partial(self._client.create_session, cwd, **more))

    def load(self, session_id: str, cwd: str | None = None) -> OpenedSession:
        return self._thread.call(self._client.load, session_id, cwd)

    def resume(self, session_id: str, cwd: str | None = None) -> OpenedSession:
        return self._thread.call(self._client.resume, session_id, cwd)

    def status(self, session_id: str) -> SessionStatus:
        return self._thread.call(self._client.status, session_id)

    def prompt(
        self,
        session_id: str,
        content: Content,
        *,
        when_busy: str | None = None,
        key: str | None = None,
        request_id: RequestId | None = None,
        client_id: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> PromptResult:
        ask = partial(
            self._client.prompt,
            session_id,
            content,
            when_busy=when_busy,
            key=key,
            request_id=request_id,
            client_id=client_id,
            meta=meta,
        )
        return self._thread.call(ask)

    def turns(self, session_id: str) -> list[TurnStatus]:
        return self._thread.call(self._client.turns, session_id)

    def turn(self, session_id: str, prompt_id: str) -> TurnStatus:
        return self._thread.call(self._client.turn, session_id, prompt_id)

    def cancel(self, session_id: str, prompt_id: str | None = None) -> None:
        self._thread.call(self._client.cancel, session_id, prompt_id)

    def answer_permission(
        self, session_id: str, request_id: str, option_id: str | None, *, client_id: str | None = None
    ) -> bool:
        answer = partial(self._client.answer_permission, session_id, request_id, option_id, client_id=client_id)
        return self._thread.call(answer)

    def events(self, session_id: str, after: int | None = None) -> Generator[Envelope]:
        """Yield events as they arrive. Close the iterator or loop to its end."""
        thread, events = self._thread, self._client.events(session_id, after)
        try:
            while (envelope := thread.call(_next, events)) is not None:
                yield envelope
        finally:
            if not thread.is_over:
                thread.call(events.aclose)

    @property
    def _thread(self) -> LoopThread:
        if self._running is None:
            raise ClientClosed("the client is not open; use it inside `with`")
        return self._running

    def __enter__(self) -> Self:
        self._running, _ = self._stack.enter_context(running_thread(self._client))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


async def _next(events: AsyncGenerator[Envelope]) -> Envelope | None:
    return await anext(events, None)


class LoopThread:
    """The client's event loop and its thread."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal
        self._workers = CapacityLimiter(inf)
        """Unbounded: a function may wait for a turn that ends only after another function was called."""
        self.is_over = False

    def start(self, function: Callable[..., Awaitable[_Result]], *arguments: object) -> Future[_Result]:
        if self.is_over:
            raise ClientClosed("the client is closed; use it inside `with`")
        return self._portal.start_task_soon(function, *arguments)

    def call(self, function: Callable[..., Awaitable[_Result]], *arguments: object) -> _Result:
        return self.start(function, *arguments).result()

    def in_worker(
        self, function: Callable[[_Value], _Result], *, abandon: bool = False
    ) -> Callable[[_Value], Awaitable[_Result]]:
        """Return a function that runs this one in a worker thread, where it may block without blocking the client.

        Raises `LocalProtocolError` for an `async` function, which would never run.
        """
        if iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
            raise LocalProtocolError(NOT_PLAIN)

        async def call(value: _Value) -> _Result:
            outcome = await to_thread.run_sync(function, value, abandon_on_cancel=abandon, limiter=self._workers)
            if iscoroutine(outcome):
                # Not detectable before the call, for example with a lambda.
                outcome.close()
                raise LocalProtocolError(NOT_PLAIN)
            return outcome

        return call


@contextmanager
def running_thread(opening: AbstractAsyncContextManager[_Result]) -> Generator[tuple[LoopThread, _Result]]:
    """Run a thread in which `opening` is entered, and yield it with the result of `opening`."""
    with start_blocking_portal(name="turnwire") as portal, portal.wrap_async_context_manager(opening) as opened:
        thread = LoopThread(portal)
        try:
            yield thread, opened
        finally:
            thread.is_over = True


async def plainly(function: Callable[..., _Result], *arguments: object) -> _Result:
    """Make a plain call on the client's thread. The result is not awaited there, because it may be a turn."""
    return function(*arguments)
