"""Two nodes at a load balancer without affinity, for tests: each listens for clients, and for the other one.

They know each other by a list of incarnations that a test may change. Each has a separate log, unless a test
provides one: connections are relayed, and they stay where they were opened.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tests.support.daemons import Running, running_daemon
from tests.support.postgres import CLUSTER_KEY

from turnwire.errors import Forbidden
from turnwire.log.owners import Life, SoleOwner
from turnwire.server.access.node_key import CALLER, NodeKey, row_digest
from turnwire.server.access.tokens import IDENTITY, Identity, Role
from turnwire.server.app import create_app, create_routes
from turnwire.server.cluster.relay import Relayed
from turnwire.server.connections import DETACH
from turnwire.server.listener import listen
from turnwire.server.refusals import refuse_entry
from turnwire_testing.patience import WAIT_S


class Sharing(SoleOwner):
    """The owners of a log that is shared with other lives."""

    is_sole = False

    def __init__(self, running: Running, number: int, lives: list[Life]) -> None:
        super().__init__(running.daemon.log)
        self.life = number
        self._lives = lives
        self.looks = 0

    async def living(self, life: int) -> Life | None:
        self.looks += 1
        return next((each for each in self._lives if each.number == life), None)


class Inner:
    """The application served to other nodes: it checks their proof."""

    def __init__(self, relayed: Relayed, key: NodeKey) -> None:
        self._relayed = relayed
        self._key = key
        self.asked: list[Scope] = []
        """Requests that other nodes forwarded."""
        self.done: list[Scope] = []
        self.written = 0
        """Bytes of bodies that the server has received."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        if self._key.dialler(scope) is None:
            await refuse_entry(scope, receive, send, Forbidden("no node of this log"))
            return
        name, role, session_id, token_id, address = json.loads(headers[CALLER])
        scope[IDENTITY] = Identity(name, Role(role), session_id, token_id)
        scope["client"] = (address, 0)
        self.asked.append(scope)
        # The answer is sent by the request, so that it is counted and its end is seen.
        scope["extensions"] = {key: each for key, each in scope.get("extensions", {}).items() if key != DETACH}

        async def counting(message: Message) -> None:
            await send(message)
            self.written += len(message.get("body", b""))

        try:
            await self._relayed(scope, receive, counting)
        finally:
            self.done.append(scope)


class Node:
    """One of the nodes."""

    def __init__(self, running: Running, number: int, lives: list[Life]) -> None:
        self.number = number
        self.key = NodeKey(CLUSTER_KEY, number)
        running.daemon.node_key = self.key
        self.owners = Sharing(running, number, lives)
        running.daemon.owners = self.owners
        self._routes = create_routes(running.daemon)
        self.inner = Inner(Relayed(self._routes, running.daemon.tokens, no_auth=False), self.key)
        self.running = running
        self.stop = anyio.Event()

    def public(self) -> ASGIApp:
        return create_app(self.running.daemon, self._routes)

    async def listen(self, app: ASGIApp, tasks: anyio.abc.TaskGroup) -> str:
        ready, urls = anyio.Event(), list[str]()

        def heard(url: str) -> None:
            urls.append(url)
            ready.set()

        tasks.start_soon(partial(listen, app, host="127.0.0.1", port=0, ready=heard, stop=self.stop))
        with anyio.fail_after(WAIT_S):
            await ready.wait()
        return urls[0]


class Pair:
    """Both, and the lives that they believe in."""

    def __init__(self, a: Node, b: Node, lives: list[Life]) -> None:
        self.a = a
        self.b = b
        self.lives = lives

    def bury(self, node: Node) -> None:
        self.lives[:] = [each for each in self.lives if each.number != node.number]


def row(number: int, url: str, name: str | None = None) -> Life:
    """Return the row of a node, as it writes it itself."""
    name = name or f"n{number}"
    return Life(number, name, "here", url, row_digest(CLUSTER_KEY, name, url), "0", 1, draining=False)


@asynccontextmanager
async def two_nodes(folder: Path, **options: Any) -> AsyncGenerator[Pair]:
    """Lives 7 and 8. `running.url` of each is where clients meet it."""
    lives: list[Life] = []
    async with AsyncExitStack() as stack:
        started = [await stack.enter_async_context(running_daemon(folder / each, **options)) for each in "ab"]
        nodes = [Node(running, number, lives) for number, running in enumerate(started, 7)]
        tasks = await stack.enter_async_context(anyio.create_task_group())
        for node in nodes:
            url = await node.listen(node.inner, tasks)
            lives.append(row(node.number, url))
            node.running = node.running._replace(url=await node.listen(node.public(), tasks))
        try:
            yield Pair(nodes[0], nodes[1], lives)
        finally:
            for node in nodes:
                node.running.daemon.stopping.set()
                node.stop.set()
