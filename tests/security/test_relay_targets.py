"""Request targets of clients at a node that relays: no spelling leads a request with a proof to another host."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest
from starlette.types import Message, Scope
from tests.server.acp.relaying import two_nodes
from tests.support.daemons import TOKEN

from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

MESSAGE = b'{"jsonrpc":"2.0","method":"$/cancel_request","params":{"id":1}}'
TARGETS = (
    "%2Facp%2F@{other}",
    "/acp/@{other}",
    "/acp/%40{other}",
    "/acp/..%2F..%2F@{other}",
    "/acp/%2F%2F{other}%2Facp",
    "/acp/scripted%00@{other}",
    "/acp/scripted%0d%0aHost:%20{other}",
    "//{other}/acp",
    "//{other}/acp/scripted",
    "http://{other}/acp",
    "http://{node}@{other}/acp",
    "@{other}/acp",
    "/acp?@{other}/acp",
    "/acp?a=b%20c&d=[1]#@{other}",
    "/acp;@{other}",
    "\\\\{other}/acp",
    "*",
)


async def test_no_request_target_is_relayed_to_another_host(tmp_path: Path, subtests: pytest.Subtests) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        stranger.setblocking(False)
        other = f"127.0.0.1:{stranger.getsockname()[1]}"
        async with two_nodes(tmp_path) as pair:
            node = urlsplit(pair.b.running.url)
            for target in TARGETS:
                for method in ("POST", "GET", "DELETE", "websocket"):
                    with subtests.test(target=target, method=method):
                        sent = target.format(other=other, node=urlsplit(pair.a.running.url).netloc)
                        line = await _first_line(node.hostname, node.port, node.netloc, method, sent)
                        assert line == b"" or line.split(b" ")[1] in {b"101", b"400", b"404", b"405"}, line
                        with pytest.raises(BlockingIOError):
                            stranger.accept()
            paths = {each["path"] for each in pair.a.inner.asked}
            assert paths <= {"/acp", "/acp/scripted"}


async def test_no_raw_path_of_a_foreign_server_is_relayed_to_another_host(tmp_path: Path) -> None:
    # Another ASGI server, below which turnwire is mounted, may accept a target without a leading slash.
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        stranger.setblocking(False)
        name = f"@127.0.0.1:{stranger.getsockname()[1]}"
        async with two_nodes(tmp_path) as pair:
            headers = {"Host": "127.0.0.1", "Acp-Connection-Id": "7.abc", "Content-Type": "application/json"}
            headers |= {"Authorization": f"Bearer {TOKEN}", "Accept": "text/event-stream"}
            scope: Scope = {
                "type": "http",
                "http_version": "2",
                "method": "POST",
                "scheme": "http",
                "path": f"/acp/{name}",
                "raw_path": f"%2Facp%2F{name}".encode(),
                "query_string": b"",
                "headers": [(each.lower().encode(), value.encode()) for each, value in headers.items()],
                "client": ("127.0.0.1", 1),
            }
            answers: list[Message] = []

            async def receive() -> Message:
                return {"type": "http.request", "body": MESSAGE, "more_body": False}

            async def send(message: Message) -> None:
                answers.append(message)

            await pair.b.public()(scope, receive, send)
            with pytest.raises(BlockingIOError):
                stranger.accept()
            assert answers[0]["status"] in (400, 404)
            assert {each["path"] for each in pair.a.inner.asked} <= {f"/acp/{name}"}


async def _first_line(host: str | None, port: int | None, name: str, method: str, target: str) -> bytes:
    """Return the status line of one raw request that names a connection of the other node; empty if it was cut."""
    assert host is not None
    assert port is not None
    is_socket = method == "websocket"
    if is_socket:
        target += ("&" if "?" in target else "?") + "connection=7.abc"
    lines = [f"{'GET' if is_socket else method} {target} HTTP/1.1", f"Host: {name}"]
    lines += [f"Authorization: Bearer {TOKEN}", "Acp-Connection-Id: 7.abc", "Accept: text/event-stream"]
    if is_socket:
        lines += ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
        lines += ["Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="]
    elif method == "POST":
        lines += ["Content-Type: application/json", f"Content-Length: {len(MESSAGE)}", "Connection: close"]
    else:
        lines += ["Connection: close"]
    said = "\r\n".join(lines) + "\r\n\r\n" + (MESSAGE.decode() if method == "POST" else "")
    with anyio.fail_after(WAIT_S):
        async with await anyio.connect_tcp(host, port) as stream:
            await stream.send(said.encode("latin-1"))
            received = b""
            while b"\r\n" not in received:
                try:
                    received += await stream.receive()
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    break
    return received.partition(b"\r\n")[0]
