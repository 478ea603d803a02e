"""Requests of an agent to its client (files, terminals, methods of its own), each done by exactly one who can.

A request goes to the attached client that offered first, or to the daemon's own workspace when none did. A client
that leaves in the middle, or does not know the method, hands its request to the next. Each is answered once. A
request keeps its place: nobody is asked before all that the agent said until then can be seen. Nothing waits in the
agent's way: every request is a task of its own, and one that the agent takes back is stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import anyio
from anyio.abc import TaskGroup
from msgspec import Raw

from turnwire.core.correlation import ExactId, exact
from turnwire.errors import RequestRefused
from turnwire.ids import ClientId, RequestId
from turnwire.limits import Limits
from turnwire.runtime.services import Workspace
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
    """Somebody who does what agents ask of their clients."""

    @property
    def methods(self) -> frozenset[str]: ...

    def serve(self, method: str, params: Raw, after: int) -> Coroutine[Any, Any, Raw]:
        """Gives the result, which is always waited for. Raises `RequestRefused`.

        `after` is the last event that the agent brought about before it asked. Who has a stream of them asks in
        the call itself, which must not raise: then nothing that the agent said later comes before the request.
        """
        ...


class ServedMethods(frozenset[str]):
    """The methods of ACP that a client serves, and all that are somebody's own."""

    __slots__ = ()

    def __contains__(self, method: object) -> bool:
        return super().__contains__(method) or (isinstance(method, str) and is_foreign(method))


class _Offering(NamedTuple):
    """An attached client, and what it does."""

    provider: Provider
    client: object
    owner: str | None


Reached: TypeAlias = Callable[[int], None]
Answer: TypeAlias = Callable[[Result | Failure], None]
_Serving: TypeAlias = Coroutine[Any, Any, Raw]


class _ClientRequest:
    """One request on its way."""

    def __init__(self, request: Request, answer: Answer, refused: set[object]) -> None:
        self.request = request
        self.answer = answer
        self.refused = refused
        """The clients that do not know the method."""
        self.after: int | None = None
        """The event that it stands behind; none so long as that cannot be seen, and nobody is asked."""
        self.scope = anyio.CancelScope()
        self.client_id: ClientId | None = None
        """Which attached client does it; none while the daemon does."""
        self.client: object = None
        self.handed_on = anyio.Event()


class ClientRequests:
    """Requests of one session's agent, and who can do them."""

    def __init__(self, tasks: TaskGroup, limits: Limits, *, own: bool) -> None:
        self._tasks = tasks
        self._limits = limits
        self._own = own
        self._workspace: Workspace | None = None
        self._offers: dict[ClientId, _Offering] = {}
        self._open: dict[ExactId, _ClientRequest] = {}

    @property
    def open(self) -> list[str]:
        """What the agent waits for: the methods it asked for."""
        return [each.request.method for each in self._open.values()]

    @property
    def has_offers(self) -> bool:
        """Whether an attached client does something here."""
        return bool(self._offers)

    def settle(self, cwd: str, additional_directories: Sequence[str] = ()) -> None:
        """The session works in these directories: from now on the daemon can serve there itself."""
        if self._own and self._workspace is None:
            try:
                self._workspace = Workspace(cwd, additional_directories, self._limits)
            except RequestRefused:
                self._workspace = None

    def offer(
        self, client_id: ClientId, provider: Provider, *, client: object = None, owner: str | None = None
    ) -> None:
        """An attached client can do these.

        `client`: who it is, if it is attached to other sessions as well. `owner`: whose client it is; none if it
        may not be asked for an agent as a whole.
        """
        self._offers[client_id] = _Offering(provider, client_id if client is None else client, owner)

    def owners(self, method: str) -> set[str | None]:
        """The owners of the clients that offer this."""
        return {each.owner for each in self._offers.values() if method in each.provider.methods}

    def retract(self, client_id: ClientId) -> None:
        """That client left; what it was doing goes to the next who can."""
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
        """Have a request done, once `place` says which event it stands behind. False if nobody can.

        `refused`: the clients that were asked elsewhere and do not know the method; those that refuse are added.
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
            # Asked here and not by the task, which starts a moment later.
            self._tasks.start_soon(self._run, asked, self._ask_next(asked, after))

    def withdraw(self, request_id: RequestId) -> None:
        """The agent does not want it any more."""
        asked = self._open.get(exact(request_id))
        if asked is not None:
            self._withdraw(asked)

    def withdraw_all(self) -> None:
        """The agent is gone: nobody waits for these."""
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
        """Who does it, and which client that is; none if nobody does."""
        for client_id, (provider, client, _) in self._offers.items():
            if method in provider.methods and client not in refused:
                return provider, client_id, client
        own = self._workspace
        return None if own is None or method not in own.methods else (own, None, None)

    def _ask_next(self, asked: _ClientRequest, after: int) -> _Serving | None:
        """Ask the first who can; none if nobody is left."""
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
        # A new agent counts its requests from the start, and may be here before the old one's are all stopped.
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
    """The result; none if the client left before it gave one."""
    results: list[Raw] = []
    refusals: list[RequestRefused] = []

    async def serve(scope: anyio.CancelScope) -> None:
        try:
            results.append(await serving)
        except RequestRefused as refusal:
            refusals.append(refusal)
        except Exception:  # a provider may raise anything; its agent must hear of it
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
