"""A connection of one node used at another one: the same behaviour, over HTTP and WebSocket, while its node
lives.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest
from tests.server.acp.http_client import PATH, Client, connect, is_answer, new
from tests.server.acp.relaying import Node, Pair, row, two_nodes
from tests.server.acp.socket_client import Socket, open_socket, started
from tests.server.reading import ended
from tests.support.daemons import TOKEN
from tests.support.postgres import PostgresServer, share_log
from websockets.exceptions import ConnectionClosed, InvalidStatus

from turnwire.ids import SessionId
from turnwire.server.access.tokens import Role
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = [pytest.mark.anyio]

PIECES, PIECE = 300, 100_000
"""More than all sockets on the way hold."""


@asynccontextmanager
async def moved(pair: Pair) -> AsyncGenerator[Client]:
    """Return a client that initialized at `a` and continues at `b`."""
    async with pair.a.running.client() as http:
        client = await connect(pair.a.running, http)
    async with pair.b.running.client() as http:
        yield Client(pair.a.running, http, client.connection_id, client.agreed)


async def test_an_id_begins_with_the_life_of_its_node_where_the_log_is_shared(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as pair:
        for node in (pair.a, pair.b):
            async with node.running.client() as http:
                client = await connect(node.running, http)
            life, _, rest = client.connection_id.partition(".")
            assert life == str(node.number)
            assert len(rest) >= 22


async def test_a_connection_is_used_at_another_node_as_at_its_own(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as pair, moved(pair) as client, client.stream() as connection:
        session_id = await client.new(connection)
        async with client.stream(session_id) as session:
            asked = await client.prompt(session_id, "say 3 hi\nask t1 yes,no")
            question = await session.ask()
            answer = {"outcome": {"outcome": "selected", "optionId": "yes"}}
            await client.post({"jsonrpc": "2.0", "id": question["id"], "result": answer}, session_id)
            heard = await session.until(lambda each: is_answer(each, asked))
            assert "selected yes" in [each.text for each in heard]
        assert [each["method"] for each in pair.a.inner.asked].count("POST") >= 3
        assert (await client.http.delete(PATH, headers=client.headers())).status_code == 202
        assert await connection.to_the_end() is not None
        again = await client.http.delete(PATH, headers=client.headers())
        assert again.status_code == 202, "harmless for one that has ended"
        refused = await client.http.post(PATH, json=new(tmp_path, 9), headers=client.headers())
        assert (refused.status_code, refused.json()["code"]) == (404, "not_found")


async def test_a_stream_goes_on_from_its_cursor_at_another_node(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as pair, moved(pair) as client, client.stream() as connection:
        session_id = await client.new(connection)
        async with pair.a.running.client() as http:
            at_home = Client(pair.a.running, http, client.connection_id, client.agreed)
            async with at_home.stream(session_id) as session:
                asked = await client.prompt(session_id, "say 20 hi")
                heard = await session.until(lambda each: is_answer(each, asked))
        ids = [each.id for each in heard if each.id is not None]
        middle = ids[len(ids) // 2]
        async with client.stream(session_id, **{"Last-Event-ID": str(middle)}) as session:
            epoch = session.response.headers["Turnwire-Epoch"]
            assert epoch == (await pair.a.running.daemon.node.head(SessionId(session_id))).epoch
            rest = await session.until(lambda each: each.id == ids[-1])
        assert [each.id for each in rest if each.id is not None] == ids[len(ids) // 2 + 1 :]


async def test_what_is_handed_on_has_the_caller_and_no_credential(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as pair:
        async with moved(pair) as client:
            forged = {"Turnwire-Caller": '{"name":"eve","role":"owner"}', "Turnwire-Node": "8.1.guess"}
            cookie = {"Cookie": "turnwire=x", "X-Forwarded-For": "192.0.2.1", "Traceparent": "00-1-2-03"}
            answer = await client.http.post(
                f"{PATH}?a=%20b", json=new(tmp_path, 9), headers=client.headers() | forged | cookie
            )
            assert answer.status_code == 202
        [scope] = pair.a.inner.asked
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, []).append(value)
        [told] = headers[b"turnwire-caller"]
        assert json.loads(told) == ["owner", "owner", None, "given", "127.0.0.1"]
        [proof] = headers[b"turnwire-node"]
        assert proof.startswith(b"8.1.")
        assert headers[b"traceparent"] == [b"00-1-2-03"]
        assert not headers.keys() & {b"authorization", b"cookie", b"x-forwarded-for"}
        assert scope["query_string"] == b"a=%20b"
        assert TOKEN not in repr(scope["headers"])


async def test_a_connection_is_its_callers_alone_at_another_node_too(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as pair, moved(pair) as client:
        _, secret = await pair.b.running.daemon.tokens.issue("bob", Role.OWNER)
        bob = {"Authorization": f"Bearer {secret}"}
        refused = await client.http.post(PATH, json=new(tmp_path, 9), headers=client.headers() | bob)
        # Node a has a separate file here, without bob: with one table it would be 404.
        assert refused.status_code == 401
        nobody = await client.http.post(
            PATH, json=new(tmp_path, 9), headers=client.headers(Authorization="Bearer x")
        )
        assert nobody.status_code == 401


async def test_a_connection_of_a_life_that_is_gone_is_404(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as pair, moved(pair) as client:
        pair.bury(pair.a)
        named = client.headers(Accept="text/event-stream")
        for answer in (
            await client.http.post(PATH, json=new(tmp_path, 9), headers=named),
            await client.http.get(PATH, headers=named),
            await client.http.delete(PATH, headers=named),
        ):
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
        with pytest.raises(InvalidStatus) as caught:
            async with open_socket(pair.b.running, f"?connection={client.connection_id}"):
                pass
        assert caught.value.response.status_code == 404
        looks = pair.b.owners.looks
        for _ in range(5):
            assert (await client.http.delete(PATH, headers=named)).status_code == 404
        assert pair.b.owners.looks <= looks + 1, "what was found is believed for a moment"


async def test_a_node_that_does_not_answer_is_503_and_can_be_tried_again(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as pair, moved(pair) as client:
        true = list(pair.lives)
        for url in ("http://127.0.0.1:1", ""):
            pair.lives[:] = [row(each.number, url) for each in true]
            answer = await client.http.post(PATH, json=new(tmp_path, 9), headers=client.headers())
            assert (answer.status_code, answer.json()["code"]) == (503, "node_unreachable")
            assert "retry-after" in answer.headers
        pair.lives[:] = true
        with anyio.fail_after(WAIT_S):
            while (
                await client.http.post(PATH, json=new(tmp_path, 9), headers=client.headers())
            ).status_code != 202:
                await quiet()


@pytest.mark.parametrize("over_socket", [False, True], ids=["http", "socket"])
async def test_whoever_tries_again_after_a_node_did_not_answer_hears_at_once_that_it_is_gone(
    tmp_path: Path, over_socket: bool
) -> None:
    async def asked() -> int:
        if not over_socket:
            return (await client.http.post(PATH, json=new(tmp_path, 9), headers=client.headers())).status_code
        with pytest.raises(InvalidStatus) as caught:
            async with open_socket(pair.b.running, f"?connection={client.connection_id}"):
                pass
        return caught.value.response.status_code

    async with two_nodes(tmp_path) as pair, moved(pair) as client:
        pair.lives[:] = [row(each.number, "http://127.0.0.1:1") for each in pair.lives]
        looks = pair.b.owners.looks
        assert await asked() == 503
        pair.bury(pair.a)
        assert await asked() == 404
        assert pair.b.owners.looks == looks + 2, "it was looked up anew"


async def test_a_row_without_the_digest_of_the_key_is_not_dialled(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as pair, moved(pair) as client:
        pair.lives[:] = [each._replace(digest="0" * 64) for each in pair.lives]
        answer = await client.http.post(PATH, json=new(tmp_path, 9), headers=client.headers())
        assert (answer.status_code, answer.json()["code"]) == (503, "node_unreachable")
        assert pair.a.inner.asked == []


async def test_a_client_that_leaves_ends_its_stream_at_the_other_node(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as pair, moved(pair) as client:
        async with client.stream():
            assert pair.a.inner.done == []
        with anyio.fail_after(WAIT_S):
            while [each["method"] for each in pair.a.inner.done] != ["GET"]:
                await quiet()


async def test_a_stream_ends_when_its_node_is_gone(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as pair, moved(pair) as client, client.stream() as connection:
        pair.a.running.daemon.stopping.set()
        await connection.to_the_end()


async def test_a_stream_ends_when_the_node_that_hands_it_on_stops(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as pair, moved(pair) as client, client.stream() as connection:
        pair.b.running.daemon.stopping.set()
        await connection.to_the_end()
        assert not pair.a.running.daemon.stopping.is_set()


async def test_a_reader_that_reads_nothing_holds_the_other_node_back_and_misses_nothing(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as pair, moved(pair) as client, client.stream() as connection:
        session_id = await client.new(connection)
        url, inner = urlsplit(pair.b.running.url), pair.a.inner
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, (url.hostname, url.port))
        async with await anyio.abc.SocketStream.from_socket(raw) as wire:
            named = client.headers(session_id, Accept="text/event-stream", Host=url.netloc)
            lines = "".join(f"{name}: {value}\r\n" for name, value in (pair.b.running.headers | named).items())
            await wire.send(f"GET {PATH} HTTP/1.1\r\n{lines}\r\n".encode())
            assert (await wire.receive()).startswith(b"HTTP/1.1 200 ")
            await client.prompt(session_id, f"flood {PIECES} {PIECE}\nsay 1 last")
            await ended(pair.a.running, SessionId(session_id))
            assert inner.written < PIECES * PIECE
            came = b""
            with anyio.fail_after(WAIT_S):
                while b'"last"' not in came:
                    came = came[-64:] + await wire.receive(1 << 20)
            assert inner.written > PIECES * PIECE


async def close_of(wire: Socket) -> int | None:
    """Return the close code of the socket; earlier messages are dropped."""
    with anyio.fail_after(WAIT_S):
        try:
            while True:
                await wire.wire.recv()
        except ConnectionClosed as closed:
            return None if closed.rcvd is None else closed.rcvd.code


# -- sockets -------------------------------------------------------------------------------------------------


async def test_a_socket_goes_on_at_another_node(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as pair:
        async with started(pair.a.running) as first:
            session_id = await first.new()
            connection_id = first.connection_id
        async with open_socket(pair.b.running, f"?connection={connection_id}") as wire:
            assert wire.connection_id == connection_id
            asked = await wire.prompt(session_id, "say 3 hi")
            heard = await wire.until(lambda each: is_answer(each, asked))
            assert [each.text for each in heard if each.text] == ["hi"] * 3
            # A newer one takes it over, and the older one is closed with the reason.
            async with open_socket(pair.a.running, f"?connection={connection_id}"):
                assert await close_of(wire) == 4001


async def test_what_refuses_a_socket_at_its_node_is_told_as_it_is(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as pair:
        for query, status in (("?connection=7.unknown", 404), ("?connection=7.x&attaches=maybe", 400)):
            with pytest.raises(InvalidStatus) as caught:
                async with open_socket(pair.b.running, query):
                    pass
            assert caught.value.response.status_code == status


@pytest.mark.parametrize("stops", ["a", "b"])
async def test_a_socket_is_told_when_either_node_stops(tmp_path: Path, stops: str) -> None:
    async with two_nodes(tmp_path) as pair:
        async with started(pair.a.running) as first:
            connection_id = first.connection_id
        async with open_socket(pair.b.running, f"?connection={connection_id}") as wire:
            node: Node = getattr(pair, stops)
            node.running.daemon.stopping.set()
            assert await close_of(wire) == 1001


# -- credentials that nodes share ----------------------------------------------------------------------------


async def test_a_relayed_connection_ends_with_its_token(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share_log(monkeypatch)
    async with two_nodes(tmp_path, log=postgres.new_log()) as pair:
        record, secret = await pair.b.running.daemon.tokens.issue("Zoë", Role.CONTROLLER)
        zoe = {"Authorization": f"Bearer {secret}"}
        async with pair.a.running.stranger(headers=zoe) as http:
            opened = await connect(pair.a.running, http)
        async with pair.b.running.stranger(headers=zoe) as http:
            client = Client(pair.a.running, http, opened.connection_id, opened.agreed)
            async with client.stream() as connection:
                await client.new(connection)
                async with open_socket(pair.b.running, f"?connection={client.connection_id}", zoe) as wire:
                    await pair.a.running.daemon.tokens.revoke(record.id)
                    await connection.to_the_end()
                    assert await close_of(wire) == 1008
