"""The second listener: other nodes come in with the secret of this life, and nobody else gets anything."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from tests.support.agents import HandSource
from tests.support.daemons import running_daemon
from tests.support.owners import Cluster
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from turnwire.core.inputs import Rename
from turnwire.errors import ConfigError, LogUnavailable, NodeUnreachable, ShuttingDown
from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.log.owners import Life
from turnwire.runtime.clock import SystemClock
from turnwire.runtime.elsewhere import Elsewhere
from turnwire.runtime.node import Node, open_node
from turnwire.server.access.origins import check_cluster_bind, cluster_address, cluster_url
from turnwire.server.app import create_routes
from turnwire.server.cluster.entrance import Entrance
from turnwire.server.cluster.link import WATCHED_EVERY_S, NodeLinks, open_links
from turnwire.server.cluster.linked_node import LinkedNode
from turnwire.server.cluster.relay import CALLER, DIALLER, SECRET, Relayed
from turnwire.server.listener import listen
from turnwire.testing import ManualClock
from turnwire.testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

S1 = SessionId("s1")
SECRETS = {1: "secret-of-one", 2: "secret-of-two"}


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("nobody is served here")


class Place:
    """Nodes with a listener each, on one log in memory."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.urls: dict[int, str] = {}
        self.links: dict[int, NodeLinks] = {}
        self.nodes: dict[int, Node] = {}
        self.unseen: set[int] = set()
        """Lives that began after the nodes looked last."""
        self.log_is_away = False

    def there(self) -> list[Life]:
        """The lives that the log has."""
        return [
            Life(number, each.name, each.place, self.urls.get(number, ""), SECRETS.get(number, ""), "0", 1, False)
            for number, each in self.cluster.lives.items()
            if not each.gone
        ]

    def lives(self) -> list[Life]:
        return [each for each in self.there() if each.number not in self.unseen]

    async def living(self, life: int) -> Life | None:
        if self.log_is_away:
            raise LogUnavailable("the log is away")
        return next((each for each in self.there() if each.number == life), None)

    def begin_unseen(self, name: str) -> dict[str, str]:
        """A life that nobody has looked up yet; gives what it shows to the first node."""
        life = self.cluster.join(name, "here").life
        self.unseen.add(life)
        return {SECRET: SECRETS[1], DIALLER: str(life)}

    @asynccontextmanager
    async def node(self, life: int) -> AsyncGenerator[Node]:
        owners, limits = self.cluster.join(f"n{life}", "here"), Limits()
        async with (
            open_links(life, limits) as links,
            open_node(owners.log, HandSource(), owners=owners) as node,
            served(Entrance(links, SECRETS[life], nothing, limits)) as url,
        ):
            links.lives, links.living = self.lives, self.living
            links.serve(node)
            node.join(Elsewhere(life, links, owners.log, SystemClock(), limits))
            self.urls[life], self.links[life], self.nodes[life] = url, links, node
            yield node


@asynccontextmanager
async def served(app: Any) -> AsyncGenerator[str]:
    ready, stop, urls = anyio.Event(), anyio.Event(), list[str]()

    def listening(url: str) -> None:
        urls.append(url)
        ready.set()

    async with anyio.create_task_group() as tasks:

        async def serve() -> None:
            await listen(app, host="127.0.0.1", port=0, ready=listening, stop=stop)

        tasks.start_soon(serve)
        with anyio.fail_after(WAIT_S):
            await ready.wait()
        try:
            yield urls[0]
        finally:
            stop.set()


async def test_nodes_ask_each_other_over_one_socket() -> None:
    place = Place()
    async with place.node(1) as one, place.node(2) as two:
        await one.create("/work", session_id=S1)
        with anyio.fail_after(WAIT_S):
            await two.submit(S1, Rename(at=1, title="from two"))
            assert not await (await place.links[1].reach(2)).is_cut()
        assert (await one.newest(S1))[0].session.title == "from two"
        assert two.loaded.keys() == frozenset()


async def upgraded(url: str, headers: dict[str, str]) -> int:
    """The status that an upgrade gets."""
    try:
        async with connect(url.replace("http", "ws") + "/node", additional_headers=headers):
            return 101
    except InvalidStatus as refusal:
        return refusal.response.status_code


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {SECRET: "", DIALLER: "2"},
        {SECRET: "secret-of-two", DIALLER: "2"},
        {SECRET: "secret-of-on", DIALLER: "2"},
        {SECRET: "sécret", DIALLER: "2"},
        {"Authorization": "Bearer secret-of-one", DIALLER: "2"},
        {SECRET: "secret-of-one"},
        {SECRET: "secret-of-one", DIALLER: "two"},
        {SECRET: "secret-of-one", DIALLER: "2" * 5000},
    ],
)
async def test_a_wrong_secret_gets_nothing(headers: dict[str, str]) -> None:
    place = Place()
    async with place.node(1):
        place.cluster.join("n2", "here")
        assert await upgraded(place.urls[1], headers) == 401
        async with httpx.AsyncClient(base_url=place.urls[1]) as client:
            encoded = {name.encode(): value.encode("latin-1") for name, value in headers.items()}
            for path in ("/", "/health", "/session", "/node"):
                answer = await client.get(path, headers=encoded | {CALLER.encode(): b'{"name":"a","role":"owner"}'})
                assert answer.status_code == 401
        assert await upgraded(place.urls[1], {SECRET: "secret-of-one", DIALLER: "2"}) == 101


async def hung_up_on(place: Place, other: LinkedNode) -> None:
    """Return once the first node has noticed that this one is gone."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(place.links[1].watch, SystemClock())
        with anyio.fail_after(WAIT_S):
            await other.gone()
        tasks.cancel_scope.cancel()


async def test_a_life_that_is_gone_gets_nothing_and_is_hung_up_on() -> None:
    place = Place()
    async with place.node(1), place.node(2):
        other = await place.links[2].reach(1)
        place.cluster.lives[2].gone = True
        place.cluster.join("n3", "here")
        asked = {SECRET: "secret-of-one", DIALLER: "2"}
        assert await upgraded(place.urls[1], asked) == 401
        async with httpx.AsyncClient(base_url=place.urls[1]) as client:
            answer = await client.get("/session", headers={**asked, CALLER: '["ann","owner",null,null,""]'})
            assert answer.status_code == 401
        assert await upgraded(place.urls[1], {SECRET: "secret-of-one", DIALLER: "3"}) == 101
        await hung_up_on(place, other)


async def test_a_life_that_nobody_has_seen_yet_gets_in_only_if_the_log_has_it() -> None:
    place = Place()
    async with place.node(1):
        begun, over = place.begin_unseen("n2"), place.begin_unseen("n3")
        # It began and was buried, and the first node never saw it.
        place.cluster.lives[3].gone = True
        never_was = {SECRET: "secret-of-one", DIALLER: "4"}
        assert await upgraded(place.urls[1], begun) == 101
        assert await upgraded(place.urls[1], over) == 401
        assert await upgraded(place.urls[1], never_was) == 401
        async with httpx.AsyncClient(base_url=place.urls[1]) as client:
            answer = await client.get("/session", headers={**over, CALLER: '["ann","owner",null,null,""]'})
            assert answer.status_code == 401


async def test_a_life_that_is_buried_before_anybody_has_seen_it_is_hung_up_on() -> None:
    place = Place()
    clock = ManualClock()
    async with place.node(1), anyio.create_task_group() as tasks:
        asked = place.begin_unseen("n2")
        tasks.start_soon(place.links[1].watch, clock)
        async with connect(place.urls[1].replace("http", "ws") + "/node", additional_headers=asked) as socket:
            place.cluster.lives[2].gone = True
            with anyio.fail_after(WAIT_S):
                while socket.close_code is None:
                    await clock.wait_for_sleepers(1)
                    clock.advance(WATCHED_EVERY_S)
        tasks.cancel_scope.cancel()


async def test_while_the_log_is_away_those_who_were_seen_get_in_and_nobody_is_hung_up_on() -> None:
    place = Place()
    clock = ManualClock()
    async with place.node(1), place.node(2), anyio.create_task_group() as tasks:
        unseen = place.begin_unseen("n3")
        tasks.start_soon(place.links[1].watch, clock)
        async with connect(place.urls[1].replace("http", "ws") + "/node", additional_headers=unseen) as socket:
            place.log_is_away = True
            assert await upgraded(place.urls[1], unseen) == 503
            assert await upgraded(place.urls[1], {SECRET: "wrong", DIALLER: "3"}) == 401
            with anyio.fail_after(WAIT_S):
                assert not await (await place.links[2].reach(1)).is_cut()
                await clock.wait_for_sleepers(1)
                clock.advance(WATCHED_EVERY_S)
                await clock.wait_for_sleepers(1)
                assert not await (await place.links[1].reach(2)).is_cut()
                await (await socket.ping())
        tasks.cancel_scope.cancel()


async def test_the_secret_of_a_life_that_is_over_opens_nothing() -> None:
    place = Place()
    async with place.node(1), place.node(2):
        other = await place.links[2].reach(1)
        place.links[1].end()
        with anyio.fail_after(WAIT_S):
            await other.gone()
        assert await upgraded(place.urls[1], {SECRET: "secret-of-one", DIALLER: "2"}) == 401
        with pytest.raises(NodeUnreachable):
            await place.links[2].reach(1)
        with pytest.raises(ShuttingDown):
            await place.links[1].reach(2)


async def test_a_request_that_a_node_hands_on_is_served_as_its_caller_and_no_other(tmp_path: Path) -> None:
    cluster = Cluster()
    living = cluster.join("n1").living
    cluster.join("n2")
    async with running_daemon(tmp_path / "data") as running:
        daemon = running.daemon
        async with (
            open_links(1, Limits()) as links,
            served(Entrance(links, "s3cret", Relayed(create_routes(daemon), daemon.tokens), Limits())) as url,
        ):
            links.living = living
            known = {SECRET: "s3cret", DIALLER: "2"}
            async with httpx.AsyncClient(base_url=url, headers=known) as client:
                assert (await client.get("/session")).status_code == 404
                assert (await client.get("/session", headers={CALLER: "{}"})).status_code == 400
                owner = '["ann","owner",null,null,"192.0.2.1"]'
                watcher = '["bob","observer",null,null,"192.0.2.1"]'
                made = await client.post("/session", headers={CALLER: owner}, json={"cwd": str(tmp_path)})
                assert made.status_code in (200, 201)
                assert (await client.get("/session", headers={CALLER: watcher})).status_code == 200
                refused = await client.post("/session", headers={CALLER: watcher}, json={"cwd": str(tmp_path)})
                assert refused.status_code == 403


# -- where it is ---------------------------------------------------------------------------------------------


def test_a_public_address_needs_tls_or_a_word() -> None:
    for host in ("10.0.0.1", "0.0.0.0", "node1.example", "::"):
        with pytest.raises(ConfigError, match="cluster_plain"):
            check_cluster_bind(host, has_tls=False, plain=False)
        check_cluster_bind(host, has_tls=True, plain=False)
        check_cluster_bind(host, has_tls=False, plain=True)
    for host in ("127.0.0.1", "::1", "localhost"):
        check_cluster_bind(host, has_tls=False, plain=False)


def test_others_reach_a_node_where_it_listens_or_where_it_says() -> None:
    assert cluster_address("10.0.0.1:4171") == ("10.0.0.1", 4171)
    assert cluster_url(None, "10.0.0.1:4171", has_tls=False) == "http://10.0.0.1:4171"
    assert cluster_url(None, "[::1]:4171", has_tls=True) == "https://[::1]:4171"
    assert cluster_url("https://n1.example/", "0.0.0.0:4171", has_tls=True) == "https://n1.example"
    with pytest.raises(ConfigError, match="cluster_url"):
        cluster_url(None, "0.0.0.0:4171", has_tls=True)
    for given in (
        "node-a:4180",
        "//node-a:4180",
        "ftp://node-a:4180",
        "http://",
        "http://a b:1",
        "http://u@n:1",
        "",
    ):
        with pytest.raises(ConfigError, match="such as http:"):
            cluster_url(given, "0.0.0.0:4171", has_tls=False)
    for text in ("", "10.0.0.1", "10.0.0.1:", "a b:1", "http://x:1"):
        with pytest.raises(ConfigError):
            cluster_address(text)
