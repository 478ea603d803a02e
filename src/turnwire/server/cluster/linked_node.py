"""Client of another node, over the link between the two. Implements `runtime.remote_sessions.OtherNode`.

The requests and notifications for clients of this node that serve an agent there (`Provider`) or listen to it
(`Listener`) use the same link, for as long as it exists.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, TypeVar

import anyio
from msgspec import UNSET, Raw

from turnwire.errors import (
    AnswerLost,
    LimitExceeded,
    LinkError,
    NodeUnreachable,
    RemoteProtocolError,
    RequestRefused,
    TurnwireError,
)
from turnwire.hosting.agent_connection import Listener
from turnwire.hosting.client_requests import Provider
from turnwire.hosting.peer import Peer
from turnwire.ids import ClientId, PromptId, SessionId
from turnwire.runtime.evidence import Explanation
from turnwire.runtime.remote_sessions import Reply
from turnwire.runtime.session_owner import NewSession
from turnwire.server.cluster import words
from turnwire.server.daemon.clients import There
from turnwire.session.inputs import AnyInput, Prompt
from turnwire.wire.jsonrpc import INTERNAL_ERROR, Failure, Notification, Result, raw

T = TypeVar("T")

_FOREIGN = "_x/any"
"""An extension method, used to test whether a client serves such methods."""


def ask(peer: Peer, method: str, params: words.Word) -> Coroutine[Any, Any, Raw]:
    """Send the request now; return an awaitable of the result, which must be awaited.

    The awaitable raises the other node's error, and `NodeUnreachable`, `AnswerLost`.
    """
    answered = anyio.Event()
    outcome: list[Result | Failure | None] = []

    def answer(frame: Result | Failure | None) -> None:
        outcome.append(frame)
        answered.set()

    try:
        request_id = peer.ask(method, raw(params), answer)
    except (LinkError, LimitExceeded):
        return _unasked()

    async def result() -> Raw:
        try:
            await answered.wait()
        finally:
            if not outcome:
                tell(peer, words.WITHDRAW, words.Withdraw(request_id))
        found = outcome[0]
        if found is None:
            raise AnswerLost("the session's node went away before it answered; look, then try again")
        if isinstance(found, Failure):
            raise words.error_of(found.error)
        return found.result

    return result()


async def _unasked() -> Raw:
    raise NodeUnreachable("the session's node cannot be asked now; try again")


def tell(peer: Peer, method: str, params: words.Word) -> None:
    """Send a notification. Errors are ignored, because the loss of the link is about to be reported."""
    with suppress(LinkError, LimitExceeded):
        peer.notify(method, raw(params))


class LinkedNode:
    """The node at the other end."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._lost = anyio.Event()
        self._providers: dict[tuple[SessionId, ClientId], Provider] = {}
        self._listeners: dict[int, Listener] = {}
        self._numbers = count(1)

    def lose(self) -> None:
        """Record that the link is lost."""
        self._lost.set()

    async def gone(self) -> None:
        await self._lost.wait()

    async def _ask(self, method: str, params: words.Word, shape: type[T]) -> T:
        return words.read(await ask(self._peer, method, params), shape)

    # -- the session ---------------------------------------------------------------------------------------

    async def submit(self, session_id: SessionId, input: AnyInput, ask: int) -> Reply:
        return await self._submit(words.SUBMIT, session_id, input, ask)

    async def accept(self, session_id: SessionId, prompt: Prompt, ask: int) -> Reply:
        return await self._submit(words.ACCEPT, session_id, prompt, ask)

    async def _submit(self, method: str, session_id: SessionId, input: AnyInput, ask: int) -> Reply:
        done = await self._ask(method, words.submit_of(session_id, input, ask), words.Submitted)
        return Reply(words.answer_of(type(input), done.answer), done.head)

    def acknowledge(self, prompt_id: PromptId) -> None:
        tell(self._peer, words.TOLD, words.Told(prompt_id))

    async def delete(self, session_id: SessionId) -> None:
        await ask(self._peer, words.DELETE, words.OfSession(session_id))

    async def retain(self, session_id: SessionId, keep_events: int) -> int:
        return await self._ask(words.RETAIN, words.Retain(session_id, keep_events), int)

    async def fork(self, new: NewSession) -> None:
        assert new.fork_of is not None, "a fork goes on from something"
        await ask(
            self._peer,
            words.FORK,
            words.Fork(
                session=new.fork_of,
                fork=new.session_id,
                cwd=new.cwd,
                mcp_servers=new.setup.mcp_servers,
                additional_directories=new.setup.additional_directories,
                meta=new.setup.meta,
                extra=new.setup.extra,
                author=new.author,
                title=new.title,
            ),
        )

    # -- the session's agent -------------------------------------------------------------------------------

    async def explain(self, session_id: SessionId, *, for_owner: bool) -> Explanation:
        return await self._ask(words.EXPLAIN, words.Explain(session_id, for_owner), Explanation)

    async def authenticate(self, session_id: SessionId, method_id: str) -> None:
        await ask(self._peer, words.AUTHENTICATE, words.Authenticate(session_id, method_id))

    async def configure(self, session_id: SessionId, method: str, params: dict[str, object]) -> Raw:
        return await ask(self._peer, words.CONFIGURE, words.ToAgent(session_id, method, raw(params)))

    async def wake(self, session_id: SessionId) -> None:
        await ask(self._peer, words.WAKE, words.OfSession(session_id))

    async def call(self, session_id: SessionId, method: str, params: dict[str, Raw]) -> Result | Failure:
        called = await self._ask(words.CALL, words.ToAgent(session_id, method, raw(params)), words.Called)
        if called.error is not UNSET:
            return Failure("", called.error)
        return Result("", words.NOTHING if called.result is UNSET else called.result)

    async def notify(self, session_id: SessionId, method: str, params: dict[str, Raw]) -> None:
        await ask(self._peer, words.NOTIFY, words.ToAgent(session_id, method, raw(params)))

    # -- between nodes -------------------------------------------------------------------------------------

    def present(self, sessions: Mapping[SessionId, There], *, whole: bool) -> None:
        """Send the clients at these sessions here; if `whole`, there are none at other sessions."""
        tell(self._peer, words.PRESENT, words.Present(dict(sessions), whole))

    async def is_cut(self) -> bool:
        """Return whether that node cannot reach the log either. Raises `LinkError`."""
        return (await self._ask(words.CUT, words.Word(), words.Cut)).cut

    # -- clients of this node ------------------------------------------------------------------------------

    async def offer(
        self, session_id: SessionId, client_id: ClientId, provider: Provider, *, client: object, owner: str | None
    ) -> Callable[[], None]:
        methods = tuple(sorted(provider.methods))
        same = None if client is None else id(client)
        offer = words.Offer(session_id, client_id, methods, _FOREIGN in provider.methods, same, owner)
        self._providers[session_id, client_id] = provider

        def retract() -> None:
            if self._providers.get((session_id, client_id)) is provider:
                del self._providers[session_id, client_id]
                tell(self._peer, words.RETRACT, words.Retract(session_id, client_id))

        await _or_else(retract, ask(self._peer, words.OFFER, offer))
        return retract

    def serve(self, params: Raw) -> Coroutine[Any, Any, Raw]:
        """Pass an agent's request to a client here, during the call itself. The result must always be awaited."""
        try:
            wanted = words.read(params, words.Serve)
        except RemoteProtocolError as error:
            return _refused(error)
        provider = self._providers.get((wanted.session, wanted.client))
        if provider is None:
            return _refused(RequestRefused("the client has left", jsonrpc=INTERNAL_ERROR, reason="left"))
        return provider.serve(wanted.method, wanted.params, wanted.after)

    async def listen(self, session_id: SessionId, listener: Listener) -> Callable[[], None]:
        number = next(self._numbers)
        self._listeners[number] = listener

        def leave() -> None:
            if self._listeners.pop(number, None) is not None:
                tell(self._peer, words.LEAVE, words.Leave(number))

        await _or_else(leave, ask(self._peer, words.LISTEN, words.Listen(session_id, number, id(listener.client))))
        return leave

    def hear(self, said: words.Heard) -> None:
        """Pass a notification of the agent to its listeners here."""
        found = {int(number): after for number, after in said.behind.items() if int(number) in self._listeners}
        told = Notification(said.method, said.params)
        left = set(found)

        def reached(number: int, act: Callable[[], None]) -> None:
            left.discard(number)
            if not left:
                act()

        for number, after in found.items():
            listener = self._listeners[number]
            if said.how == words.IN_SESSION:
                listener.heard(told, after)
            else:
                act = listener.completed if said.how == words.COMPLETED else listener.heard_by_all
                listener.behind(after, partial(reached, number, partial(act, told)))


async def _or_else(undo: Callable[[], None], asking: Coroutine[Any, Any, Raw]) -> None:
    try:
        await asking
    except BaseException:
        undo()
        raise


async def _refused(error: TurnwireError) -> Raw:
    raise error
