"""The client for programs without an event loop: the same calls, each waiting for its answer.

Takes what `turnwire.client` takes; gives the same results. Everything happens in the asyncio client, on a thread of
its own; here is only the way there and back. Handlers run in worker threads, so one may wait for a turn; they
are still called in the order of the log, one after the other. Never implements a rule of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from turnwire.client import client as asynchronous
from turnwire.client.blocking_daemon_client import DaemonClient
from turnwire.client.content import Content
from turnwire.client.port import Accepted
from turnwire.client.progress import TurnResult
from turnwire.client.question import Answer, Question
from turnwire.client.session import Busy
from turnwire.client.session import Session as AsyncSession
from turnwire.client.thread import Thread, plainly, running_thread
from turnwire.client.turn import Turn as AsyncTurn
from turnwire.client.update import Update
from turnwire.core.view import View
from turnwire.ids import PromptId, RequestId, SessionId
from turnwire.limits import Limits
from turnwire.log import EventLog
from turnwire.runtime.source import AgentSource

_Any = TypeVar("_Any")
_Answer = TypeVar("_Answer", bound=Answer)

__all__ = ["Client", "DaemonClient", "Session", "Turn", "connect"]


class Turn:
    """One prompt and what comes of it. See `turnwire.client.Turn`."""

    def __init__(self, thread: Thread, turn: AsyncTurn) -> None:
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

    def __init__(self, thread: Thread, session: AsyncSession) -> None:
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
        return Turn(self._thread, self._thread.call(plainly, ask))

    def cancel(self) -> None:
        self._thread.call(self._session.cancel)

    def completed(self, request_id: RequestId) -> TurnResult:
        return self._thread.call(self._session.completed, request_id)

    def on_update(self, function: Callable[[Update], _Any]) -> Callable[[Update], _Any]:
        self._thread.call(plainly, self._session.on_update, self._thread.in_worker(function))
        return function

    def on_permission(self, function: Callable[[Question], _Answer]) -> Callable[[Question], _Answer]:
        self._thread.call(plainly, self._session.on_permission, self._thread.in_worker(function, abandon=True))
        return function

    def answer(self, question: Question, answer: str | Mapping[str, Any]) -> bool:
        return self._thread.call(self._session.answer, question, answer)

    def view(self) -> View:
        return self._thread.call(self._session.view)

    def close(self) -> None:
        self._thread.call(self._session.close)


class Client:
    """Sessions on one daemon. See `turnwire.client.Client`."""

    def __init__(self, thread: Thread, client: asynchronous.Client) -> None:
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
        self._thread.call(plainly, self._client.on_update, self._thread.in_worker(function))
        return function

    def on_permission(self, function: Callable[[Question], _Answer]) -> Callable[[Question], _Answer]:
        self._thread.call(plainly, self._client.on_permission, self._thread.in_worker(function, abandon=True))
        return function

    def completed(self, request_id: RequestId) -> TurnResult:
        return self._thread.call(self._client.completed, request_id)


@contextmanager
def connect(
    agent: str | Sequence[str] | AgentSource,
    *,
    token: str | None = None,
    env: dict[str, str] | None = None,
    log: EventLog | None = None,
    limits: Limits | None = None,
) -> Generator[Client]:
    """A client of a daemon, or with an agent of its own, for use in `with`.

    Takes and raises what `turnwire.client.connect` does.
    """
    opening = asynchronous.connect(agent, token=token, env=env, log=log, limits=limits)
    with running_thread(opening) as (thread, client):
        yield Client(thread, client)
