"""HTTP/2 as our own server speaks it, on both loops: whole answers in order, whatever the client does meanwhile."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from starlette.types import Receive, Scope, Send
from tests.patience import SOON_S
from tests.server.test_listener import listening
from tests.support.certificates import self_signed
from tests.support.http2_peer import http2_peer

from turnwire.limits import Limits
from turnwire.server import http2
from turnwire.testing.patience import WAIT_S
from turnwire.testing.plugin import find_tool

pytestmark = pytest.mark.anyio

LARGE = bytes(range(256)) * 2048
"""Half a MiB: more than windows and buffers hold."""


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """The loop of the daemon, and that of programs which have it inside themselves."""
    return "asyncio", {"use_uvloop": request.param}


async def large(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": LARGE})


@pytest.mark.parametrize("window", [1, 1000, 65_535, 2**31 - 1])
async def test_an_answer_is_whole_whatever_the_window(window: int) -> None:
    settings = {SettingCodes.INITIAL_WINDOW_SIZE: window, SettingCodes.MAX_FRAME_SIZE: 2**24 - 1}
    part = LARGE[: max(window * 50, 20_000)]

    async def some(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": part[:1000] if window == 1 else part})

    async with listening(some, http2=True) as server, http2_peer(server.url, settings) as peer:
        await peer.ask(1, "/")
        assert await peer.body(1) == (part[:1000] if window == 1 else part)


async def test_many_large_answers_at_once_come_whole_to_a_client_that_reads_slowly() -> None:
    settings = {SettingCodes.INITIAL_WINDOW_SIZE: 2**31 - 1}
    ids = range(1, 201, 2)
    async with listening(large, http2=True) as server, http2_peer(server.url, settings) as peer:
        peer.h2.increment_flow_control_window(2**30)
        for each in ids:
            await peer.ask(each, "/")
        with anyio.fail_after(SOON_S * 3):
            while len(peer.ends) < len(ids):
                await peer.next()
        assert set(peer.ends.values()) == {None}
        assert all(peer.came[each] == LARGE for each in ids)


async def test_a_client_that_makes_room_for_each_small_piece_is_no_flood() -> None:
    pieces = 5000

    async def small(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(pieces):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async with listening(small, http2=True) as server, http2_peer(server.url) as peer:
        await peer.ask(1, "/")
        await peer.body(1)
        room = b"".join(
            b"\x00\x00\x04\x08\x00" + stream_id.to_bytes(4, "big") + (1).to_bytes(4, "big") for stream_id in (0, 1)
        )
        await peer.stream.send(room * pieces)
        await peer.pong()


async def test_a_stream_whose_window_is_shut_holds_up_no_other() -> None:
    async with listening(large, http2=True) as server, http2_peer(server.url) as peer:
        peer.h2.increment_flow_control_window(2**30)
        await peer.ask(1, "/")
        with anyio.fail_after(SOON_S):
            while len(peer.came.get(1, b"")) < 65_535:
                await peer.next(makes_room=False)
        await peer.ask(3, "/")
        peer.h2.increment_flow_control_window(2**20, 3)
        await peer.flush()
        assert await peer.body(3) == LARGE
        assert 1 not in peer.ends


async def test_what_two_tasks_write_is_not_mixed_and_a_cancelled_piece_goes_out_whole() -> None:
    pieces = [bytes([each]) * 100_000 for each in range(3)]

    async def torn(scope: Scope, receive: Receive, send: Send) -> None:
        async def write(piece: bytes) -> None:
            await send({"type": "http.response.body", "body": piece, "more_body": True})

        await send({"type": "http.response.start", "status": 200, "headers": []})
        async with anyio.create_task_group() as tasks:
            for each in pieces:
                tasks.start_soon(write, each)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        await send({"type": "http.response.body", "body": b"end"})

    async with listening(torn, http2=True) as server, http2_peer(server.url) as peer:
        await peer.ask(1, "/")
        assert await peer.body(1) == b"".join(pieces) + b"end"


@pytest.mark.parametrize(
    ("method", "status", "body"), [("HEAD", 200, b"not for you"), ("GET", 204, b""), ("GET", 304, b"")]
)
async def test_an_answer_without_a_body_ends_with_its_head(method: str, status: int, body: bytes) -> None:
    async def brief(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", str(len(body)).encode())] if method == "HEAD" else []
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async with listening(brief, http2=True) as server, http2_peer(server.url) as peer:
        await peer.ask(1, "/", method=method)
        assert await peer.body(1) == b""
        assert peer.statuses == {1: status}
        await peer.pong()


def leaving() -> tuple[Callable[[Scope, Receive, Send], Awaitable[None]], anyio.Event, anyio.Event]:
    """A stream, its beginning, and its end."""
    begun, left = anyio.Event(), anyio.Event()

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        begun.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()

    return stream, begun, left


@pytest.mark.parametrize("how", ["reset", "closed", "broken"])
async def test_a_client_that_leaves_is_heard_of_at_once(how: str) -> None:
    stream, begun, left = leaving()
    async with listening(stream, http2=True) as server, http2_peer(server.url) as peer:
        await peer.ask(1, "/")
        with anyio.fail_after(SOON_S):
            await begun.wait()
            if how == "reset":
                peer.h2.reset_stream(1)
                await peer.flush()
            elif how == "closed":
                await peer.stream.aclose()
            else:
                await peer.stream.send(b"\x00\x00\x00\x00\x00\x00\x00\x00\x00")
            await left.wait()


async def test_a_client_that_says_goodbye_still_gets_what_it_asked_for() -> None:
    go = anyio.Event()

    async def waiting(scope: Scope, receive: Receive, send: Send) -> None:
        await go.wait()
        await large(scope, receive, send)

    async with listening(waiting, http2=True) as server, http2_peer(server.url) as peer:
        await peer.ask(1, "/")
        # Past its own h2, which would read nothing any more.
        await peer.stream.send(b"\x00\x00\x08\x07\x00" + b"\x00" * 12)
        await peer.pong()
        go.set()
        assert await peer.body(1) == LARGE
        assert await peer.closed() == ErrorCodes.NO_ERROR


async def test_a_server_that_stops_finishes_what_is_asked_for_and_refuses_what_comes_then() -> None:
    go = anyio.Event()

    async def waiting(scope: Scope, receive: Receive, send: Send) -> None:
        await go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    async with listening(waiting, http2=True) as server, http2_peer(server.url) as peer:
        await peer.ask(1, "/")
        await peer.pong()
        server.stop.set()
        stream_id = 3
        with anyio.fail_after(SOON_S):
            # It hears of the stop in a moment; what is asked for before that is answered.
            while ErrorCodes.REFUSED_STREAM not in peer.ends.values():
                await peer.ask(stream_id, "/")
                await peer.pong()
                stream_id += 2
        go.set()
        assert await peer.body(1) == b"done"
        assert await peer.closed() == ErrorCodes.NO_ERROR


async def test_a_body_that_nobody_reads_stops_at_the_window() -> None:
    """And what came of it is room again for the other streams when the answer is over."""
    go = anyio.Event()

    async def deaf(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/deaf":
            await go.wait()
        else:
            while (await receive()).get("more_body"):
                pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    async with listening(deaf, http2=True) as server, http2_peer(server.url) as peer:
        head = [(":method", "POST"), (":scheme", "http"), (":authority", peer.host)]
        await peer.pong()
        most = http2.CONNECTION_WINDOW // http2.WINDOW
        for stream_id in range(1, 2 * most, 2):
            peer.h2.send_headers(stream_id, [*head, (":path", "/deaf")])
            while room := min(peer.h2.local_flow_control_window(stream_id), 16_384):
                peer.h2.send_data(stream_id, b"x" * room)
            await peer.flush()
            await peer.pong()
        assert peer.h2.outbound_flow_control_window == 0, "no more fits than the window of the connection"
        go.set()
        with anyio.fail_after(SOON_S):
            while peer.h2.outbound_flow_control_window < http2.CONNECTION_WINDOW // 2:
                await peer.next()
        stream_id = peer.h2.get_next_available_stream_id()
        peer.h2.send_headers(stream_id, [*head, (":path", "/")])
        peer.h2.send_data(stream_id, b"x" * 1000, end_stream=True)
        await peer.flush()
        assert await peer.body(stream_id) == b"done"


async def test_an_application_that_fails_loses_its_own_stream_only() -> None:
    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/bad":
            raise ValueError("no")
        await large(scope, receive, send)

    async with listening(failing, http2=True) as server, http2_peer(server.url) as peer:
        await peer.ask(1, "/bad")
        await peer.ask(3, "/")
        assert await peer.body(3) == LARGE
        assert peer.ends[1] == ErrorCodes.INTERNAL_ERROR


async def test_a_large_answer_over_tls_waits_for_a_reader_that_takes_its_time(tmp_path: Path) -> None:
    tls = self_signed(tmp_path)
    answers: list[bytes] = []
    trusted = ssl.create_default_context(cafile=str(tls.cert))
    async with (
        listening(large, tls=tls, limits=Limits()) as server,
        httpx.AsyncClient(http1=False, http2=True, verify=trusted, timeout=SOON_S) as client,
        anyio.create_task_group() as tasks,
    ):

        async def read() -> None:
            answer = await client.get(server.url)
            assert answer.http_version == "HTTP/2"
            answers.append(answer.content)

        for _ in range(20):
            tasks.start_soon(read)
    assert answers == [LARGE] * 20


@pytest.fixture(scope="module")
def curl() -> str:
    return find_tool("curl")


async def test_curl_uploads_reads_and_hears_why_a_body_is_refused(tmp_path: Path, curl: str) -> None:
    """A client with another library, and one that forgets an answer if it is told too soon to send no more."""
    (tmp_path / "body").write_bytes(b"x" * 3_000_000)

    async def refusing(scope: Scope, receive: Receive, send: Send) -> None:
        came = 0
        while scope["path"] == "/taken":
            message = await receive()
            came += len(message["body"])
            if not message["more_body"]:
                break
        await send({"type": "http.response.start", "status": 200 if came else 413, "headers": []})
        await send({"type": "http.response.body", "body": LARGE if came else b"no"})

    async with listening(refusing, http2=True) as server:
        for path, expected in (("/taken", f"2 200 {len(LARGE)}"), ("/refused", "2 413 2")):
            words = ["-s", "--http2-prior-knowledge", "-o", "/dev/null", "--data-binary", f"@{tmp_path}/body"]
            told = "%{http_version} %{http_code} %{size_download}"
            with anyio.fail_after(WAIT_S):
                done = await anyio.run_process([curl, *words, "-w", told, server.url + path], check=False)
            assert done.stdout.decode() == expected
