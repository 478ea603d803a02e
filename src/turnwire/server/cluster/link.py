"""Links between nodes that share a log: one WebSocket per pair, on which either node can send requests.

A node dials another when it first has a request for it, and uses a link that the other has opened. The dialling
node proves that it has the cluster's key. A lost link is re-established with the next request; requests open on it
fail with `AnswerLost`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Protocol, TypeAlias

import anyio
from anyio.abc import TaskGroup
from msgspec import Raw
from starlette.types import Receive, Send

from turnwire.clock import Clock
from turnwire.errors import (
    AgentLaunchFailed,
    LifeOver,
    LimitExceeded,
    LinkError,
    LogError,
    NodeUnreachable,
    NotOwner,
    ShuttingDown,
    TurnwireError,
)
from turnwire.hosting.base import FrameLink
from turnwire.hosting.network import NetworkLink
from turnwire.hosting.peer import Peer
from turnwire.hosting.websocket import WebSocketLink, open_websocket
from turnwire.ids import RequestId, SessionId
from turnwire.limits import KiB, Limits
from turnwire.log.owners import Life
from turnwire.runtime.node import Node
from turnwire.server.access.node_key import PROOF, NodeKey
from turnwire.server.cluster import words
from turnwire.server.cluster.answering import Answers, Once, Ports
from turnwire.server.cluster.linked_node import LinkedNode
from turnwire.server.daemon.clients import There
from turnwire.wire.jsonrpc import REQUEST_CANCELLED, ErrorObject, Notification, Request

PATH = "/node"
PEER = "the other node"
WATCHED_EVERY_S = 1.0
"""Interval between checks for links to incarnations that are over."""
WRAPPED_BYTES = 64 * KiB
"""Maximum overhead of a message: names, an identity, a key; each of them has at most some kilobytes."""
DIAL_S = 2.0
"""Timeout for another node to accept a link; nodes are close to each other."""

logger = logging.getLogger(__name__)

_CANCELLED = ErrorObject(REQUEST_CANCELLED, "nobody waits for this any more")


class CarriedLink(FrameLink, Protocol):
    """A link that runs in a task of its owner."""

    async def run(self) -> None:
        """Carry frames until either side ends. Raises nothing."""
        ...


class AcceptedLink(NetworkLink):
    """The server side of `link.websocket`: frames over a WebSocket that an ASGI server has accepted."""

    def __init__(self, receive: Receive, send: Send, limits: Limits) -> None:
        super().__init__(limits, PEER)
        self._receive = receive
        self._send = send

    async def _carry(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._read)
            await self._write()
            tasks.cancel_scope.cancel()

    async def _read(self) -> None:
        while (message := await self._receive())["type"] != "websocket.disconnect":
            text: str | None = message.get("text")
            if text is not None:
                self._inbound.put(text.encode())
                await self._inbound.room()
        self._lose("the other node closed its link")

    async def _write(self) -> None:
        with suppress(OSError, RuntimeError):
            while (frame := await self._outbound.next()) is not None:
                await self._send({"type": "websocket.send", "text": frame.decode()})
                self._outbound.carried()
            return
        # Earlier frames are still being read; the reader reports the end.
        await anyio.sleep_forever()

    async def _part(self) -> None:
        with suppress(OSError, RuntimeError):
            await self._send({"type": "websocket.close", "code": 1000})


class _Linked:
    """A link with both directions: requests to the other node (`node`), and the handlers for its requests."""

    def __init__(self, life: int, link: CarriedLink, here: Node, ports: Ports, tasks: TaskGroup) -> None:
        self._link = link
        self._tasks = tasks
        self._peer = Peer(link, self._incoming, _at_once)
        self.node = LinkedNode(self._peer)
        self._answers = Answers(life, self._peer, here, ports)
        self._open: dict[RequestId, anyio.CancelScope] = {}

    async def run(self) -> None:
        """Carry the link until it is lost."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._link.run)
                await self._peer.run()
                await self._link.aclose()
        finally:
            self.node.lose()
            self._answers.lose()
            for scope in self._open.values():
                scope.cancel()

    async def aclose(self) -> None:
        """Close the link."""
        await self._link.aclose()

    def _incoming(self, frame: Request | Notification) -> None:
        if isinstance(frame, Notification):
            try:
                self._notified(frame)
            except TurnwireError:
                logger.warning("another node said what cannot be read", extra={"event": "node_word_unread"})
            return
        doing = self._begin(frame)
        if doing is None:
            with suppress(LinkError, LimitExceeded):
                self._peer.refuse(frame.id)
            return
        scope = self._open[frame.id] = anyio.CancelScope()
        self._tasks.start_soon(self._answer, frame, scope, doing)

    def _notified(self, said: Notification) -> None:
        heard = self._answers.notifications.get(said.method)
        if heard is not None:
            heard(said.params)
        elif said.method == words.HEARD:
            self.node.hear(words.read(said.params, words.Heard))
        elif said.method == words.WITHDRAW:
            scope = self._open.get(words.read(said.params, words.Withdraw).request)
            if scope is not None:
                scope.cancel()

    def _begin(self, request: Request) -> Callable[[], Awaitable[Raw]] | None:
        """Return a function that computes the result; None for an unknown method."""
        if request.method == words.SERVE:
            # The client is asked now, not by the task, which starts a moment later.
            serving = self.node.serve(request.params)
            return lambda: serving
        asked = self._answers.requests.get(request.method)
        return None if asked is None else partial(asked, request.params)

    async def _answer(
        self, request: Request, scope: anyio.CancelScope, doing: Callable[[], Awaitable[Raw]]
    ) -> None:
        refusal: ErrorObject | None = _CANCELLED
        result = words.NOTHING
        try:
            with scope:
                result, refusal = await doing(), None
        except (LifeOver, ShuttingDown):
            # Nothing was done, and another node has the session, or can have it.
            refusal = words.refusal_of(NotOwner("this node is about to end"))
        except Exception as error:  # the other node must get a response to any error
            if not isinstance(error, TurnwireError):
                extra = {"event": "node_word_failed", "method": request.method}
                logger.exception("what another node asked for failed", extra=extra)
            refusal = words.refusal_of(error)
        finally:
            del self._open[request.id]
        if not self._peer.has_asked(request.id):
            # The link is lost, and the requesting node with it.
            return
        try:
            if refusal is None:
                self._peer.answer(request.id, result)
            else:
                self._peer.refuse(request.id, refusal)
        except LinkError:
            pass
        except LimitExceeded:
            # The other node does not read. Losing the link fails its request sooner than a timeout would.
            await self._link.aclose()


Dial: TypeAlias = Callable[[Life, int], Awaitable[CarriedLink]]
"""A function that opens a link to an incarnation, from an incarnation. Raises `NodeUnreachable`."""


class NodeLinks:
    """The links of one node. Implements `runtime.remote_sessions.OtherNodes`. See `open_links`."""

    def __init__(self, life: int, tasks: TaskGroup, dial: Dial) -> None:
        self._life = life
        self._tasks = tasks
        self._dial = dial
        self._linked: dict[int, _Linked] = {}
        self._dialling: dict[int, anyio.Lock] = {}
        self._node: Node | None = None
        self._is_over = False
        self.lives: Callable[[], Sequence[Life]] = _nobody
        """Returns the live incarnations as last seen. Set by the caller that watches them."""
        self.living: Callable[[int], Awaitable[Life | None]] = _is_not_there
        """Returns an incarnation as in the log now, None if it is gone; may raise `LogError`. Set with `lives`."""
        self._ports = Ports(Once(tasks), _unheard, _is_not_cut)

    def serve(
        self,
        node: Node,
        present: Callable[[int, dict[SessionId, There], bool], None] | None = None,
        is_cut: Callable[[], bool] | None = None,
    ) -> None:
        """Start serving requests of other nodes."""
        self._node = node
        self._ports = self._ports._replace(present=present or _unheard, is_cut=is_cut or _is_not_cut)

    async def reach(self, life: int) -> LinkedNode:
        """Return that node, over an existing link or a new one. Raises `NodeUnreachable`, `ShuttingDown`."""
        if self._is_over:
            raise ShuttingDown("this node asks others no more; ask again, another one answers")
        linked = self._linked.get(life)
        if linked is not None:
            return linked.node
        async with self._dialling.setdefault(life, anyio.Lock()):
            linked = self._linked.get(life)
            if linked is None:
                linked = self._link(life, await self._dial(self._find(life), self._life))
                self._tasks.start_soon(self._carry, life, linked)
        return linked.node

    async def accept(self, life: int, link: CarriedLink) -> None:
        """Carry a link that another node has opened, until it is lost."""
        await self._carry(life, self._link(life, link))

    async def lets_in(self, life: int) -> bool:
        """Return whether that incarnation may send requests: neither it nor this one is over. Raises `LogError`."""
        return not self._is_over and await self._is_there(life)

    async def _is_there(self, life: int) -> bool:
        """Return whether an incarnation is live. An unseen one may be new or over, so the log is queried."""
        return any(each.number == life for each in self.lives()) or await self.living(life) is not None

    async def watch(self, clock: Clock) -> None:
        """Close links to incarnations that are over, so that waiting requests fail. Runs until cancelled."""
        while True:
            await clock.sleep(WATCHED_EVERY_S)
            for life in list(self._linked):
                # While the log is unavailable, no incarnation can be found or declared dead.
                with suppress(LogError):
                    if not await self._is_there(life):
                        await self._drop(life)

    def end(self) -> None:
        """Stop sending and serving requests; this incarnation is over."""
        self._is_over = True
        for life in self._linked:
            self._tasks.start_soon(self._drop, life)

    async def is_cut(self, life: Life) -> bool:
        """Return whether that incarnation reports that it cannot reach the log. Raises `TurnwireError`."""
        return await (await self.reach(life.number)).is_cut()

    async def _drop(self, life: int) -> None:
        self._dialling.pop(life, None)
        linked = self._linked.pop(life, None)
        if linked is not None:
            await linked.aclose()

    def _link(self, life: int, link: CarriedLink) -> _Linked:
        if self._node is None or self._is_over:
            raise NodeUnreachable("this node is not ready for others; try again")
        # A link that the other node opened at the same moment is as good: each uses the one it has.
        linked = _Linked(life, link, self._node, self._ports, self._tasks)
        return linked if life in self._linked else self._linked.setdefault(life, linked)

    async def _carry(self, life: int, linked: _Linked) -> None:
        logger.info("linked to another node", extra={"event": "node_linked", "life": life})
        try:
            await linked.run()
        except Exception:  # other links must continue
            logger.exception("a link to another node failed", extra={"event": "node_link_failed", "life": life})
        finally:
            if self._linked.get(life) is linked:
                del self._linked[life]

    def _find(self, life: int) -> Life:
        for each in self.lives():
            if each.number == life and each.url:
                return each
        raise NodeUnreachable("the session's node is gone, or cannot be reached by others", life=life)


@asynccontextmanager
async def open_links(key: NodeKey, limits: Limits) -> AsyncGenerator[NodeLinks]:
    """Provide links over WebSockets; all end with the context."""
    async with anyio.create_task_group() as tasks:
        links = NodeLinks(key.life, tasks, partial(_dial, key, limits))
        try:
            yield links
        finally:
            links.end()
            tasks.cancel_scope.cancel()


def word_bytes(limits: Limits) -> int:
    """Return the maximum size of a message between nodes: the largest agent frame or client body, plus overhead."""
    return max(limits.frame_bytes, limits.body_bytes) + WRAPPED_BYTES


async def _dial(key: NodeKey, limits: Limits, there: Life, _: int) -> WebSocketLink:
    key.check(there)
    url = re.sub("^http", "ws", there.url.rstrip("/")) + PATH
    with anyio.move_on_after(DIAL_S), suppress(AgentLaunchFailed):
        shown = {PROOF.decode(): key.prove(there.number, PATH.encode()).decode()}
        return await open_websocket(url, shown, limits, peer=PEER, most_bytes=word_bytes(limits))
    raise NodeUnreachable("the session's node does not answer", life=there.number)


async def _at_once() -> None:
    """Return immediately; another node needs no back-pressure, because its clients' limits bound its requests."""


def _unheard(life: int, sessions: dict[SessionId, There], whole: bool) -> None: ...


def _is_not_cut() -> bool:
    return False


def _nobody() -> Sequence[Life]:
    return ()


async def _is_not_there(life: int) -> Life | None:
    return None
