"""Turns that are longer than a proxy's timeout, through a real nginx with its default settings.

One setting is changed, so that the tests are short: `proxy_read_timeout` is 2 s instead of 60 s, and the daemon's
heartbeat is as much faster. Buffering is on, as it is by default, and nginx speaks HTTP/1.0 to the daemon unless a
test configures another version.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import anyio
import httpx
import pytest
from tests.server.reading import Reader, is_end, reading
from tests.support.daemons import Running, running_daemon
from tests.support.nginx import Nginx, nginx_before

import turnwire
from turnwire.client.daemon_client import DaemonClient
from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire_testing.patience import WAIT_S
from turnwire_testing.plugin import find_tool

pytestmark = [pytest.mark.anyio, pytest.mark.full("needs nginx")]


@pytest.fixture(scope="module", autouse=True)
def nginx() -> None:
    find_tool("nginx")


PATIENCE_S = 2
HEARTBEAT_S = 0.5
BEATS = b": heartbeat\n\n" * 6
"""One more second than the proxy's timeout, without any output of the agent."""
FLOOD = "flood 2000 4000"
"""Far more than all buffers on the way to a reader hold together."""

SHORT = f"proxy_read_timeout {PATIENCE_S}s;"
VERSIONS = pytest.mark.parametrize("version", ["", "proxy_http_version 1.1;"], ids=["http1.0", "http1.1"])


class Place(NamedTuple):
    """A daemon with a proxy, with one session."""

    running: Running
    """The daemon as clients reach it: by the proxy's address."""
    nginx: Nginx
    session_id: SessionId
    http: httpx.AsyncClient
    gate: Path

    @property
    def script(self) -> str:
        """Return a turn that sends text, then nothing until the gate is opened."""
        return f"say 1 first\ngate {self.gate}\nsay 1 last"

    @property
    def events(self) -> str:
        return f"/session/{self.session_id}/events"


@asynccontextmanager
async def behind_nginx(tmp_path: Path, settings: str, *, heartbeat_s: float = HEARTBEAT_S) -> AsyncGenerator[Place]:
    limits = Limits(heartbeat_s=heartbeat_s)
    async with (
        running_daemon(tmp_path / "d", limits=limits) as running,
        nginx_before(running.url, tmp_path / "nginx", settings) as nginx,
    ):
        outside = running._replace(url=nginx.url)
        async with outside.client() as http:
            answer = await http.post("/session", json={})
            assert answer.status_code == 200, answer.text
            yield Place(outside, nginx, SessionId(answer.json()["sessionId"]), http, tmp_path / "gate")


async def send(daemon: DaemonClient, place: Place, results: list[str]) -> None:
    results.append((await daemon.prompt(place.session_id, place.script)).stop_reason)


async def until_patience_is_over(observer: Reader) -> None:
    """Until the agent has been silent for longer than the proxy waits for a byte."""
    await observer.until_bytes(b'"first"')
    began = anyio.current_time()
    await observer.until_bytes(BEATS)
    assert anyio.current_time() - began > PATIENCE_S


@VERSIONS
async def test_a_turn_longer_than_the_proxy_waits_ends_for_its_sender_and_for_an_observer(
    tmp_path: Path, version: str
) -> None:
    results: list[str] = []
    with anyio.fail_after(WAIT_S):
        async with (
            behind_nginx(tmp_path, SHORT + version) as place,
            reading(place.http, place.events) as observer,
            DaemonClient(place.nginx.url, place.running.token) as daemon,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(send, daemon, place, results)
            # The agent's output has arrived, and its turn has not ended: the proxy has not buffered it.
            await until_patience_is_over(observer)
            assert not results
            place.gate.touch()
            end = (await observer.until(is_end))[-1]
            assert end.data["stopReason"] == "end_turn"
            assert "timed out" not in place.nginx.errors
    assert results == ["end_turn"]


async def test_a_turn_of_the_sdk_goes_on_behind_a_proxy_and_shows_its_updates_as_they_come(tmp_path: Path) -> None:
    with anyio.fail_after(WAIT_S):
        async with (
            behind_nginx(tmp_path, SHORT) as place,
            turnwire.connect(place.nginx.url, token=place.running.token) as daemon,
            reading(place.http, place.events) as observer,
        ):
            turn = (await daemon.attach(place.session_id)).prompt(place.script)
            async with aclosing(aiter(turn)) as updates:
                assert b"first" in bytes((await anext(updates)).raw)
            await until_patience_is_over(observer)
            place.gate.touch()
            assert (await turn).stop_reason == "end_turn"
        assert "timed out" not in place.nginx.errors


@VERSIONS
@pytest.mark.guarantee("G8")
async def test_a_blocking_prompt_is_cut_by_the_proxy_and_its_turn_still_ends_for_observers(
    tmp_path: Path, version: str
) -> None:
    with anyio.fail_after(WAIT_S):
        async with behind_nginx(tmp_path, SHORT + version) as place, reading(place.http, place.events) as observer:
            prompt = {"prompt": [{"type": "text", "text": place.script}]}
            path = f"/session/{place.session_id}"
            answer = await place.http.post(f"{path}/prompt", json=prompt, headers={"Prefer": "wait=20"})
            assert answer.status_code == 504
            assert "timed out" in place.nginx.errors
            running = (await place.http.get(f"{path}/prompt-status")).json()
            assert running["state"] == "running"
            place.gate.touch()
            end = (await observer.until(is_end))[-1]
            assert end.type == "turn_complete"
            assert end.envelope["promptId"] == running["promptId"]
            assert len((await place.http.get(f"{path}/turns")).json()["turns"]) == 1


@pytest.mark.guarantee("G10")
async def test_what_a_reader_does_not_take_is_not_gathered_on_the_proxys_disk(tmp_path: Path) -> None:
    """By default, nginx continues to read for a reader that stalls, into a file. The stream disables that."""
    narrow = httpx.AsyncHTTPTransport(socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)])
    with anyio.fail_after(WAIT_S):
        async with (
            behind_nginx(tmp_path, SHORT) as place,
            place.running.client(transport=narrow) as other,
            other.stream("GET", place.events) as stalled,
            DaemonClient(place.nginx.url, place.running.token) as daemon,
        ):
            assert stalled.status_code == 200
            assert (await daemon.prompt(place.session_id, FLOOD)).stop_reason == "end_turn"
            assert "temporary file" not in place.nginx.errors


@pytest.mark.guarantee("G9")
async def test_a_sender_whose_stream_the_proxy_cuts_comes_back_and_misses_nothing(tmp_path: Path) -> None:
    """The heartbeat is slower than the proxy's patience: an operator has changed one of them and not the other."""
    results: list[str] = []
    with anyio.fail_after(WAIT_S):
        async with (
            behind_nginx(tmp_path, SHORT, heartbeat_s=60) as place,
            DaemonClient(place.nginx.url, place.running.token) as daemon,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(send, daemon, place, results)
            # Until more streams were cut than the observer's two: one of them was the sender's.
            while place.nginx.errors.count("timed out") < 3:
                async with reading(place.http, f"{place.events}?after=0") as observer:
                    with pytest.raises(httpx.RemoteProtocolError):
                        await observer.to_the_end()
            place.gate.touch()
    assert results == ["end_turn"]
