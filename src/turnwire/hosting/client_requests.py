"""Requests of an agent to its client (files, terminals, custom methods), each served by exactly one provider.

A request goes to the attached client that offered first, or to the daemon's own workspace if no client did. If a
client disconnects before its answer, or does not know the method, the request goes to the next provider. Each is
answered once. Order is preserved: a provider is asked only after all earlier agent messages are published. No
request blocks the agent: each one is a separate task, which is stopped if the agent withdraws the request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import anyio
from anyio.abc import TaskGroup
from msgspec import Raw

from turnwire.errors import RequestRefused
from turnwire.hosting.services import Workspace
from turnwire.ids import ClientId, RequestId
from turnwire.limits import Limits
from turnwire.session.correlation import ExactId, exact
from turnwire.wire.jsonrpc import (
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    REQUEST_CANCELLED,
    ErrorObject,
    Failure,
    Request,
    Result,
    raw,
)
from turnwire.wire.methods import is_foreign

logger = logging.getLogger(__name__)


class Provider(Protocol):
    """A provider of methods that agents call on their clients."""

    @property
    def methods(self) -> frozenset[str]: ...

    def serve(self, method: str, params: Raw, after: int) -> Coroutine[Any, Any, Raw]:
        """Return the result; the coroutine is always awaited. Raises `RequestRefused`.

        `after` is the agent's last event before the request. A provider that also streams events must send the
        request within the call itself, which must not raise: then no later agent message comes before the request.
        """
        ...


class ServedMethods(frozenset[str]):
    """The methods of ACP that a client serves, plus all custom methods."""

    __slots__ = ()

    def __contains__(self, method: object) -> bool:
        return super().__contains__(method) or (isinstance(method, str) and is_foreign(method))


class _Offering(NamedTuple):
    """An attached client and its provider."""

    provider: Provider
    client: object
    owner: str | None


Reached: TypeAlias = Callable[[int], None]
Answer: TypeAlias = Callable[[Result | Failure], None]
_Serving: TypeAlias = Coroutine[Any, Any, Raw]


class _ClientRequest:
    """One request in progress."""

    def __init__(self, request: Request, answer: Answer, refused: set[object]) -> None:
        self.request = request
        self.answer = answer
        self.refused = refused
        """The clients that do not know the method."""
        self.after: int | None = None
        """The last event before it; `None` until that event is published and a provider is asked."""
        self.scope = anyio.CancelScope()
        self.client_id: ClientId | None = None
        """The attached client that serves it; `None` while the daemon does."""
        self.client: object = None
        self.handed_on = anyio.Event()


class ClientRequests:
    """Requests of one session's agent, and their providers."""

    def __init__(self, tasks: TaskGroup, limits: Limits, *, own: bool) -> None:
        self._tasks = tasks
        self._limits = limits
        self._own = own
        self._workspace: Workspace | None = None
        self._offers: dict[ClientId, _Offering] = {}
        self._open: dict[ExactId, _ClientRequest] = {}

    @property
    def open(self) -> list[str]:
        """The methods of the agent's unanswered requests."""
        return [each.request.method for each in self._open.values()]

    @property
    def has_offers(self) -> bool:
        """True if an attached client serves methods here."""
        return bool(self._offers)

    def settle(self, cwd: str, additional_directories: Sequence[str] = ()) -> None:
        """Set the session's directories, in which the daemon itself can serve from now on."""
        if self._own and self._workspace is None:
            try:
                self._workspace = Workspace(cwd, additional_directories, self._limits)
            except RequestRefused:
                self._workspace = None

    def offer(
        self, client_id: ClientId, provider: Provider, *, client: object = None, owner: str | None = None
    ) -> None:
        """Register the methods that an attached client serves.

        `client`: the client's identity, if it is attached to other sessions as well. `owner`: the client's owner;
        `None` if it may not answer requests that concern the agent as a whole.
        """
        self._offers[client_id] = _Offering(provider, client_id if client is None else client, owner)

    def owners(self, method: str) -> set[str | None]:
        """Return the owners of the clients that offer this method."""
        return {each.owner for each in self._offers.values() if method in each.provider.methods}

    def retract(self, client_id: ClientId) -> None:
        """The client has disconnected; its requests go to the next provider."""
        self._offers.pop(client_id, None)
        for asked in self._open.values():
            if asked.client_id == client_id:
                asked.handed_on.set()

    def begin(
        self,
        request: Request,
        place: Callable[[Reached], None],
        answer: Answer,
        refused: set[object] | None = None,
    ) -> bool:
        """Serve a request once `place` reports the last event before it. Return false if there is no provider.

        `refused`: clients asked for another session that do not know the method; those that reject it are added.
        """
        refused = set() if refused is None else refused
        if self._find(request.method, refused) is None:
            return False
        asked = self._open[exact(request.id)] = _ClientRequest(request, answer, refused)
        place(partial(self._reached, asked))
        return True

    def _reached(self, asked: _ClientRequest, after: int) -> None:
        if not asked.scope.cancel_called:
            asked.after = after
            # Called here and not in the task, which starts a moment later.
            self._tasks.start_soon(self._run, asked, self._ask_next(asked, after))

    def withdraw(self, request_id: RequestId) -> None:
        """Stop a request that the agent has withdrawn."""
        asked = self._open.get(exact(request_id))
        if asked is not None:
            self._withdraw(asked)

    def withdraw_all(self) -> None:
        """The agent is gone: stop all its requests."""
        for asked in list(self._open.values()):
            self._withdraw(asked)
        workspace, self._workspace = self._workspace, None
        if workspace is not None:
            self._tasks.start_soon(workspace.aclose)

    def _withdraw(self, asked: _ClientRequest) -> None:
        asked.scope.cancel()
        if asked.after is None:
            self._end(asked, _withdrawn(asked.request))

    def _find(self, method: str, refused: set[object]) -> tuple[Provider, ClientId | None, object] | None:
        """Return the provider and its client id, if there is a provider."""
        for client_id, (provider, client, _) in self._offers.items():
            if method in provider.methods and client not in refused:
                return provider, client_id, client
        own = self._workspace
        return None if own is None or method not in own.methods else (own, None, None)

    def _ask_next(self, asked: _ClientRequest, after: int) -> _Serving | None:
        """Ask the first provider; return `None` if none remains."""
        found = self._find(asked.request.method, asked.refused)
        asked.handed_on = anyio.Event()
        if found is None:
            return None
        provider, asked.client_id, asked.client = found
        return provider.serve(asked.request.method, asked.request.params, after)

    async def _run(self, asked: _ClientRequest, serving: _Serving | None) -> None:
        outcome: Result | Failure = _withdrawn(asked.request)
        try:
            with asked.scope:
                outcome = await self._do(asked, serving)
        finally:
            self._end(asked, outcome)

    def _end(self, asked: _ClientRequest, outcome: Result | Failure) -> None:
        # A new agent counts its requests from the start, and may start before all requests of the old one are
        # stopped.
        if self._open.get(exact(asked.request.id)) is asked:
            del self._open[exact(asked.request.id)]
        asked.answer(outcome)

    async def _do(self, asked: _ClientRequest, serving: _Serving | None) -> Result | Failure:
        request = asked.request
        outcome = _failure(request, INTERNAL_ERROR, "the client that did this has left, and nobody else can")
        while serving is not None:
            try:
                result = await _serve(serving, asked)
            except RequestRefused as refusal:
                outcome = _failure(request, refusal.jsonrpc, str(refusal), refusal.data)
                if refusal.jsonrpc != METHOD_NOT_FOUND or asked.client is None:
                    return outcome
                asked.refused.add(asked.client)
            else:
                if result is not None:
                    return Result(request.id, result)
            serving = self._ask_next(asked, asked.after or 0)
        return outcome


async def _serve(serving: _Serving, asked: _ClientRequest) -> Raw | None:
    """Return the result; `None` if the client disconnected first."""
    results: list[Raw] = []
    refusals: list[RequestRefused] = []

    async def serve(scope: anyio.CancelScope) -> None:
        try:
            results.append(await serving)
        except RequestRefused as refusal:
            refusals.append(refusal)
        except Exception:  # a provider may raise anything; the agent needs an answer
            logger.exception(
                "a request of an agent to its client failed",
                extra={"event": "client_request_failed", "method": asked.request.method},
            )
            refusals.append(_failed())
        scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve, tasks.cancel_scope)
        await asked.handed_on.wait()
        tasks.cancel_scope.cancel()
    if refusals:
        raise refusals[0]
    return results[0] if results else None


def _withdrawn(request: Request) -> Failure:
    return _failure(request, REQUEST_CANCELLED, "the request was withdrawn")


def _failed() -> RequestRefused:
    return RequestRefused("the client could not do this; try again", jsonrpc=INTERNAL_ERROR, reason="failed")


def _failure(request: Request, code: int, message: str, data: object = None) -> Failure:
    error = ErrorObject(code, message) if data is None else ErrorObject(code, message, raw(data))
    return Failure(request.id, error)
