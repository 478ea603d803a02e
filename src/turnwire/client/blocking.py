"""The client for programs without an event loop: the same calls, each waiting for its answer.

Takes what `turnwire.client` takes; gives the same results. Everything happens in the asyncio client, on a thread of
its own; here is only the way there and back. Handlers run in worker threads, so one may wait for a turn; they
are still called in the order of the log, one after the other. Never implements a rule of its own.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from anyio import to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal

from turnwire.client import client as asynchronous
from turnwire.client.content import Content
from turnwire.client.port import Accepted
from turnwire.client.progress import TurnResult
from turnwire.client.question import Answer, Question
from turnwire.client.session import Busy
from turnwire.client.session import Session as AsyncSession
from turnwire.client.turn import Turn as AsyncTurn
from turnwire.client.update import Update
from turnwire.core.view import View
from turnwire.errors import ClientClosed
from turnwire.ids import PromptId, RequestId, SessionId
from turnwire.limits import Limits
from turnwire.log import EventLog
from turnwire.runtime.source import AgentSource

_Any = TypeVar("_Any")
_Given = TypeVar("_Given")
_Answer = TypeVar("_Answer", bound=Answer)


class _Thread:
    """The event loop of the client, on its thread."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal
        self.is_over = False

    def start(self, function: Callable[..., Awaitable[_Any]], *given: object) -> Future[_Any]:
        if self.is_over:
            raise ClientClosed("the client is closed; use it inside `with`")
        return self._portal.start_task_soon(function, *given)

    def call(self, function: Callable[..., Awaitable[_Any]], *given: object) -> _Any:
        return self.start(function, *given).result()


def _in_worker(function: Callable[[_Given], _Any], *, abandon: bool = False) -> Callable[[_Given], Awaitable[_Any]]:
    """The function, called in a worker thread: there it may wait for the client without holding it up."""

    async def call(given: _Given) -> _Any:
        return await to_thread.run_sync(function, given, abandon_on_cancel=abandon)

    return call


async def _plainly(function: Callable[..., _Any], *given: object) -> _Any:
    """A plain call on the client's thread. Not awaited there: what it gives may be a turn."""
    return function(*given)


class Turn:
    """One prompt and what comes of it. See `turnwire.client.Turn`."""

    def __init__(self, thread: _Thread, turn: AsyncTurn) -> None:
        self._thread = thread
        self._turn = turn

    def result(self, timeout: float | None = None) -> TurnResult:
        """Wait for the end. Raises `TimeoutError` after that many seconds; the turn itself goes on."""
        waiting = self._thread.start(self._turn.result)
        try:
            return waiting.result(timeout)
        except TimeoutError:
            waiting.cancel()
            raise

    def accepted(self) -> Accepted:
        """Wait until the prompt is recorded."""
        return self._thread.call(_wait_for, self._turn)

    @property
    def prompt_id(self) -> PromptId | None:
        return self._turn.prompt_id

    def __iter__(self) -> Generator[Update]:
        """The turn's updates in order, as they come, to its end."""
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


class Session:
    """One session. See `turnwire.client.Session`."""

    def __init__(self, thread: _Thread, session: AsyncSession) -> None:
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
        when_busy: Busy = "queue",
        key: str | None = None,
        request_id: RequestId | None = None,
    ) -> Turn:
        ask = partial(self._session.prompt, content, when_busy=when_busy, key=key, request_id=request_id)
        return Turn(self._thread, self._thread.call(_plainly, ask))

    def cancel(self) -> None:
        self._thread.call(self._session.cancel)

    def completed(self, request_id: RequestId) -> TurnResult:
        return self._thread.call(self._session.completed, request_id)

    def on_update(self, function: Callable[[Update], _Any]) -> Callable[[Update], _Any]:
        self._thread.call(_plainly, self._session.on_update, _in_worker(function))
        return function

    def on_permission(self, function: Callable[[Question], _Answer]) -> Callable[[Question], _Answer]:
        self._thread.call(_plainly, self._session.on_permission, _in_worker(function, abandon=True))
        return function

    def answer(self, question: Question, answer: str | Mapping[str, Any]) -> bool:
        return self._thread.call(self._session.answer, question, answer)

    def view(self) -> View:
        return self._thread.call(self._session.view)

    def close(self) -> None:
        self._thread.call(self._session.close)


class Client:
    """Sessions on one daemon. See `turnwire.client.Client`."""

    def __init__(self, thread: _Thread, client: asynchronous.Client) -> None:
        self._thread = thread
        self._client = client

    def new_session(
        self, cwd: str | os.PathLike[str] = ".", *, mcp_servers: Sequence[Mapping[str, Any]] = ()
    ) -> Session:
        opened = self._thread.call(partial(self._client.new_session, cwd, mcp_servers=mcp_servers))
        return Session(self._thread, opened)

    def authenticate(self, method_id: str) -> None:
        self._thread.call(self._client.authenticate, method_id)

    def attach(self, session_id: str) -> Session:
        return Session(self._thread, self._thread.call(self._client.attach, session_id))

    def sessions(self) -> list[SessionId]:
        return self._thread.call(self._client.sessions)

    def on_update(self, function: Callable[[Update], _Any]) -> Callable[[Update], _Any]:
        self._thread.call(_plainly, self._client.on_update, _in_worker(function))
        return function

    def on_permission(self, function: Callable[[Question], _Answer]) -> Callable[[Question], _Answer]:
        self._thread.call(_plainly, self._client.on_permission, _in_worker(function, abandon=True))
        return function

    def completed(self, request_id: RequestId) -> TurnResult:
        return self._thread.call(self._client.completed, request_id)


@contextmanager
def connect(
    agent: str | Sequence[str] | AgentSource,
    *,
    env: dict[str, str] | None = None,
    log: EventLog | None = None,
    limits: Limits | None = None,
) -> Generator[Client]:
    """A client with an agent of its own, for use in `with`. Raises what `turnwire.client.connect` raises."""
    opening = asynchronous.connect(agent, env=env, log=log, limits=limits)
    with start_blocking_portal(name="turnwire") as portal, portal.wrap_async_context_manager(opening) as client:
        thread = _Thread(portal)
        try:
            yield Client(thread, client)
        finally:
            thread.is_over = True
