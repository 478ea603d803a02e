"""The second listener: other nodes connect with the secret of this incarnation, and all others are rejected."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from tests.server.acp.relaying import row
from tests.support.agents import HandSource
from tests.support.daemons import running_daemon
from tests.support.owners import Cluster
from tests.support.postgres import CLUSTER_KEY
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from turnwire.clock import SystemClock
from turnwire.errors import ConfigError, LogUnavailable, NodeUnreachable, ShuttingDown
from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.log.owners import Life
from turnwire.runtime.node import Node, open_node
from turnwire.runtime.remote_sessions import RemoteSessions
from turnwire.server.access.node_key import CALLER, PROOF, WINDOW, NodeKey
from turnwire.server.access.origins import check_cluster_bind, cluster_address, cluster_url
from turnwire.server.app import create_routes
from turnwire.server.cluster.entrance import Entrance
from turnwire.server.cluster.link import WATCHED_EVERY_S, NodeLinks, open_links
from turnwire.server.cluster.linked_node import LinkedNode
from turnwire.server.cluster.relay import Relayed
from turnwire.server.listener import listen
from turnwire.session.inputs import Rename
from turnwire_testing import ManualClock
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

S1 = SessionId("s1")
OWNER = '["ann","owner",null,null,""]'


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
            row(number, self.urls.get(number, ""), each.name)
            for number, each in self.cluster.lives.items()
            if not each.gone
        ]

    def lives(self) -> list[Life]:
        return [each for each in self.there() if each.number not in self.unseen]

    async def living(self, life: int) -> Life | None:
        if self.log_is_away:
            raise LogUnavailable("the log is away")
        return next((each for each in self.there() if each.number == life), None)

    def begin_unseen(self, name: str) -> NodeKey:
        """Begin an incarnation that no node has looked up yet; return its key."""
        life = self.cluster.join(name, "here").life
        self.unseen.add(life)
        return NodeKey(CLUSTER_KEY, life)

    @asynccontextmanager
    async def node(self, life: int) -> AsyncGenerator[Node]:
        owners, limits, key = self.cluster.join(f"n{life}", "here"), Limits(), NodeKey(CLUSTER_KEY, life)
        async with (
            open_links(key, limits) as links,
            open_node(owners.log, HandSource(), owners=owners) as node,
            served(Entrance(links, key, nothing, SystemClock(), limits)) as url,
        ):
            links.lives, links.living = self.lives, self.living
            links.serve(node)
            node.join(RemoteSessions(life, links, owners.log, SystemClock(), limits))
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


def shown(key: NodeKey, target: str = "/node", caller: str | None = None, to: int = 1) -> dict[str, str]:
    """Return the headers of one request to a node."""
    told = b"" if caller is None else caller.encode()
    proof = {PROOF.decode(): key.prove(to, target.encode(), told).decode()}
    return proof if caller is None else proof | {CALLER.decode(): caller}


async def test_a_request_without_a_valid_proof_is_refused(subtests: pytest.Subtests) -> None:
    place = Place()
    two, stranger = NodeKey(CLUSTER_KEY, 2), NodeKey("another-key-that-is-long-enough-012", 2)
    number, _, mac = shown(two)[PROOF.decode()].partition(".")[2].partition(".")
    cases: list[tuple[str, dict[str, str]]] = [
        ("no header", {}),
        ("no proof", {PROOF.decode(): "2"}),
        ("another key", shown(stranger)),
        ("another target", shown(two, "/acp")),
        ("another incarnation dialled", shown(two, to=3)),
        ("another incarnation dialling", {PROOF.decode(): f"3.{number}.{mac}"}),
        ("another counter", {PROOF.decode(): f"2.99.{mac}"}),
        ("no number", {PROOF.decode(): f"two.{number}.{mac}"}),
        ("a long number", {PROOF.decode(): f"{'2' * 5000}.{number}.{mac}"}),
        ("a caller that is not part of it", shown(two) | {CALLER.decode(): OWNER}),
    ]
    async with place.node(1):
        place.cluster.join("n2", "here")
        for why, headers in cases:
            with subtests.test(why):
                assert await upgraded(place.urls[1], headers) == 401
                async with httpx.AsyncClient(base_url=place.urls[1]) as client:
                    for path in ("/", "/health", "/session", "/node"):
                        assert (await client.get(path, headers=headers)).status_code == 401
        used = shown(two)
        assert await upgraded(place.urls[1], used) == 101
        assert await upgraded(place.urls[1], used) == 401, "a proof was recorded and sent again"


async def test_refusals_at_the_node_listener_are_logged_at_a_bounded_rate(caplog: pytest.LogCaptureFixture) -> None:
    place = Place()
    async with place.node(1), httpx.AsyncClient(base_url=place.urls[1]) as client:
        for _ in range(100):
            assert (await client.get("/")).status_code == 401
    assert 0 < len([each for each in caplog.records if getattr(each, "event", "") == "node_refused"]) <= 62


def test_a_proof_is_accepted_once_and_in_any_order_within_the_window() -> None:
    one, two = NodeKey(CLUSTER_KEY, 1), NodeKey(CLUSTER_KEY, 2)

    def dialler(proof: bytes) -> int | None:
        return one.dialler({"type": "http", "path": "/acp", "headers": [(PROOF, proof)], "query_string": b""})

    proofs = [two.prove(1, b"/acp") for _ in range(WINDOW + 2)]
    assert dialler(proofs[2]) == 2
    assert dialler(proofs[1]) == 2
    assert dialler(proofs[1]) is None
    assert dialler(proofs[-1]) == 2
    assert dialler(proofs[2]) is None
    assert dialler(proofs[0]) is None, "older than the window"
    assert dialler(proofs[3]) == 2
    assert dialler(proofs[3]) is None


def test_a_short_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="openssl rand"):
        NodeKey("short", 1)


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
        over = NodeKey(CLUSTER_KEY, 2)
        assert await upgraded(place.urls[1], shown(over)) == 401
        async with httpx.AsyncClient(base_url=place.urls[1]) as client:
            assert (await client.get("/acp", headers=shown(over, "/acp", OWNER))).status_code == 401
        assert await upgraded(place.urls[1], shown(NodeKey(CLUSTER_KEY, 3))) == 101
        await hung_up_on(place, other)


async def test_a_life_that_nobody_has_seen_yet_gets_in_only_if_the_log_has_it() -> None:
    place = Place()
    async with place.node(1):
        begun, over = place.begin_unseen("n2"), place.begin_unseen("n3")
        # It started and was declared dead, and the first node never saw it.
        place.cluster.lives[3].gone = True
        assert await upgraded(place.urls[1], shown(begun)) == 101
        assert await upgraded(place.urls[1], shown(over)) == 401
        assert await upgraded(place.urls[1], shown(NodeKey(CLUSTER_KEY, 4))) == 401
        async with httpx.AsyncClient(base_url=place.urls[1]) as client:
            assert (await client.get("/acp", headers=shown(over, "/acp", OWNER))).status_code == 401


async def test_a_life_that_is_buried_before_anybody_has_seen_it_is_hung_up_on() -> None:
    place = Place()
    clock = ManualClock()
    async with place.node(1), anyio.create_task_group() as tasks:
        asked = shown(place.begin_unseen("n2"))
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
        async with connect(
            place.urls[1].replace("http", "ws") + "/node", additional_headers=shown(unseen)
        ) as socket:
            place.log_is_away = True
            assert await upgraded(place.urls[1], shown(unseen)) == 503
            assert await upgraded(place.urls[1], {PROOF.decode(): "3.9.wrong"}) == 401
            with anyio.fail_after(WAIT_S):
                assert not await (await place.links[2].reach(1)).is_cut()
                await clock.wait_for_sleepers(1)
                clock.advance(WATCHED_EVERY_S)
                await clock.wait_for_sleepers(1)
                assert not await (await place.links[1].reach(2)).is_cut()
                await (await socket.ping())
        tasks.cancel_scope.cancel()


async def test_an_incarnation_that_is_over_lets_no_node_in() -> None:
    place = Place()
    async with place.node(1), place.node(2):
        other = await place.links[2].reach(1)
        place.links[1].end()
        with anyio.fail_after(WAIT_S):
            await other.gone()
        assert await upgraded(place.urls[1], shown(NodeKey(CLUSTER_KEY, 2))) == 401
        with pytest.raises(NodeUnreachable):
            await place.links[2].reach(1)
        with pytest.raises(ShuttingDown):
            await place.links[1].reach(2)


@pytest.mark.parametrize("no_auth", [False, True])
async def test_a_relayed_request_is_served_as_its_caller(tmp_path: Path, no_auth: bool) -> None:
    cluster = Cluster()
    living = cluster.join("n1").living
    cluster.join("n2")
    key, other = NodeKey(CLUSTER_KEY, 1), NodeKey(CLUSTER_KEY, 2)
    async with running_daemon(tmp_path / "data") as running:
        daemon = running.daemon
        relayed = Relayed(create_routes(daemon), daemon.tokens, no_auth=no_auth)
        async with (
            open_links(key, Limits()) as links,
            served(Entrance(links, key, relayed, SystemClock(), Limits())) as url,
            httpx.AsyncClient(base_url=url) as client,
        ):
            links.living = living

            async def status(caller: str | None, path: str = "/acp", method: str = "DELETE") -> int:
                headers = {"Acp-Connection-Id": "1.abc", **shown(other, path, caller)}
                return (await client.request(method, path, headers=headers, json={})).status_code

            assert await status(None) == 404
            assert await status("{}") == 400
            assert await status('["ann","owner",null,"given","192.0.2.1"]') == 404, "served: no such connection"
            assert await status('["eve","owner",null,"0123456789ab","192.0.2.1"]') == 401
            for path in ("/session", "/tokens", "/acp/scripted/tokens", "/node"):
                assert await status('["ann","owner",null,"given","192.0.2.1"]', path, "POST") == 404
            # A caller without a token would be anybody, so a node that asks for credentials refuses it.
            assert await status(OWNER) == (404 if no_auth else 401)


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
