"""The plain client of a daemon for programs without an event loop: the same calls, each waiting for its answer.

Takes and gives what `turnwire.client.daemon_client` does; everything happens there. Never implements a rule of
its own.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self

from turnwire.client import daemon_client as asynchronous
from turnwire.client.content import Content
from turnwire.client.shapes import Envelope, OpenedSession, PromptResult, SessionStatus, TurnStatus
from turnwire.client.thread import Thread, running_thread
from turnwire.errors import ClientClosed
from turnwire.ids import RequestId
from turnwire.limits import Limits


class DaemonClient:
    """A daemon at a URL, for use in `with`. See `turnwire.client.DaemonClient`."""

    def __init__(self, url: str, token: str | None = None, *, limits: Limits | None = None) -> None:
        self._client = asynchronous.DaemonClient(url, token, limits=limits)
        self._stack = ExitStack()
        self._running: Thread | None = None

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
        """As they come. Close it, or loop to its end."""
        thread, events = self._thread, self._client.events(session_id, after)
        try:
            while (envelope := thread.call(_next, events)) is not None:
                yield envelope
        finally:
            if not thread.is_over:
                thread.call(events.aclose)

    @property
    def _thread(self) -> Thread:
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
