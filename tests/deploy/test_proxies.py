"""deploy/nginx.conf, nginx-cluster.conf and Caddyfile: the real proxy, with that very file, before real daemons.

Substituted are ports, certificates and where the programs put their own files. Everything goes by the outer name
and over TLS, as a client outside would.
"""

from __future__ import annotations

import os
import ssl
import subprocess
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import httpx
import pytest
from anyio.streams.tls import TLSAttribute, TLSStream
from tests.postgres.test_two_nodes import free_port, two_nodes
from tests.server.acp.http_client import initialize
from tests.server.reading import is_end, reading
from tests.support.certificates import self_signed
from tests.support.daemons import Running, running_daemon
from tests.support.nginx import write_configuration
from tests.support.postgres import PostgresServer
from websockets.asyncio.client import connect

from turnwire.limits import MiB
from turnwire.server.listener import Tls
from turnwire_testing.patience import WAIT_S
from turnwire_testing.plugin import find_tool

pytestmark = pytest.mark.anyio

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
NAME = "agents.example"


class Outside(NamedTuple):
    """A daemon as seen through the proxy."""

    port: int
    trust: ssl.SSLContext
    running: Running

    def client(self) -> httpx.AsyncClient:
        http = httpx.AsyncClient(
            base_url=f"https://127.0.0.1:{self.port}",
            headers={"Host": NAME, **self.running.headers},
            verify=self.trust,
            timeout=WAIT_S,
        )
        http.event_hooks["request"] = [_by_name]
        return http


async def _by_name(request: httpx.Request) -> None:
    request.extensions["sni_hostname"] = NAME


def swapped(text: str, **words: str) -> str:
    for old, new in words.items():
        assert old in text, f"{old!r} is not in the file any more"
        text = text.replace(old, new)
    return text


def nginx_command(folder: Path, port: int, upstream: str, tls: Tls) -> list[str]:
    site = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")
    places = {
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "server 127.0.0.1:4170": f"server {upstream}",
        "/etc/ssl/agents.pem": str(tls.cert),
        "/etc/ssl/agents.key": str(tls.key),
    }
    return nginx_words(folder, swapped(site, **places))


def nginx_words(folder: Path, site: str) -> list[str]:
    (folder / "site.conf").write_text(site, encoding="utf-8")
    whole = write_configuration(folder, f"include {folder}/site.conf;")
    return [find_tool("nginx"), "-p", str(folder), "-e", f"{folder}/error.log", "-c", str(whole)]


def caddy_command(folder: Path, port: int, upstream: str, tls: Tls) -> list[str]:
    site = (DEPLOY / "Caddyfile").read_text(encoding="utf-8")
    # Its own administration port and redirections are off, and the certificate is the test's.
    places = {
        "\n{": "\n{\n\tadmin off\n\tauto_https off",
        f"\n{NAME} {{": f"\nhttps://{NAME}:{port} {{\n\tbind 127.0.0.1\n\ttls {tls.cert} {tls.key}",
        "reverse_proxy 127.0.0.1:4170": f"reverse_proxy {upstream}",
    }
    (folder / "Caddyfile").write_text(swapped(site, **places), encoding="utf-8")
    return [find_tool("caddy"), "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]


Command = Callable[[Path, int, str, Tls], list[str]]
PROXIES = [pytest.param(nginx_command, id="nginx"), pytest.param(caddy_command, id="caddy")]


@pytest.fixture(params=PROXIES)
def command(request: pytest.FixtureRequest) -> Command:
    find_tool(request.param.__name__.removesuffix("_command"))
    return request.param


@asynccontextmanager
async def behind(command: Command, tmp_path: Path) -> AsyncGenerator[Outside]:
    tls = self_signed(tmp_path, of=f"DNS:{NAME}")
    folder = tmp_path / "proxy"
    folder.mkdir()
    port = free_port()
    settings: dict[str, Any] = {
        "allow_host": (NAME,),
        "allow_origin": (f"https://{NAME}",),
        "trusted_proxy": ("127.0.0.1",),
    }
    async with running_daemon(tmp_path / "d", **settings) as running:
        words = command(folder, port, running.url.removeprefix("http://"), tls)
        async with proxying(words, folder, port):
            yield Outside(port, ssl.create_default_context(cafile=str(tls.cert)), running)


@asynccontextmanager
async def proxying(words: Sequence[str], folder: Path, port: int) -> AsyncGenerator[None]:
    """Run the proxy of this command line."""
    env = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with (folder / "said").open("wb") as said:
        process = await anyio.open_process(words, env=env, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
    try:
        await listening(port, process, folder / "said")
        yield
    finally:
        with anyio.CancelScope(shield=True):
            process.terminate()
            with anyio.move_on_after(WAIT_S):
                await process.wait()
            if process.returncode is None:
                process.kill()
                await process.wait()


async def listening(port: int, process: anyio.abc.Process, said: Path) -> None:
    with anyio.fail_after(WAIT_S):
        while process.returncode is None:
            try:
                async with await anyio.connect_tcp("127.0.0.1", port):
                    return
            except OSError:
                await anyio.lowlevel.checkpoint()
    pytest.fail(f"the proxy ended: {await anyio.Path(said).read_text()}")


async def test_a_prompt_runs_through_the_proxy_and_its_events_come_as_they_happen(
    command: Command, tmp_path: Path
) -> None:
    with anyio.fail_after(2 * WAIT_S):
        async with behind(command, tmp_path) as outside, outside.client() as http:
            opened = await http.post("/session", json={})
            assert opened.status_code == 200, opened.text
            path, gate = f"/session/{opened.json()['sessionId']}", tmp_path / "gate"
            async with reading(http, f"{path}/events") as events:
                script = f"say 1 first\ngate {gate}\nsay 1 last"
                sent = await http.post(f"{path}/prompt", json={"prompt": [{"type": "text", "text": script}]})
                assert sent.status_code == 202, sent.text
                # The turn waits for the gate: the proxy did not buffer the earlier output.
                await events.until_bytes(b'"first"')
                await anyio.Path(gate).touch()
                assert (await events.until(is_end))[-1].data["stopReason"] == "end_turn"


async def test_the_proxy_offers_http2_to_clients(command: Command, tmp_path: Path) -> None:
    with anyio.fail_after(2 * WAIT_S):
        async with behind(command, tmp_path) as outside, await anyio.connect_tcp("127.0.0.1", outside.port) as wire:
            outside.trust.set_alpn_protocols(["h2", "http/1.1"])
            secure = await TLSStream.wrap(wire, hostname=NAME, ssl_context=outside.trust)
            assert secure.extra(TLSAttribute.alpn_protocol) == "h2"


async def test_a_websocket_goes_through_the_proxy(command: Command, tmp_path: Path) -> None:
    with anyio.fail_after(2 * WAIT_S):
        async with behind(command, tmp_path) as outside:
            address = f"wss://{NAME}/acp"
            async with connect(
                address,
                host="127.0.0.1",
                port=outside.port,
                ssl=outside.trust,
                proxy=None,
                additional_headers=outside.running.headers,
            ) as wire:
                await wire.send(httpx.Request("POST", "http://x", json=initialize()).content.decode())
                assert '"protocolVersion"' in str(await wire.recv())


async def test_a_body_larger_than_proxies_usually_let_through_goes_through(
    command: Command, tmp_path: Path
) -> None:
    async with behind(command, tmp_path) as outside, outside.client() as http:
        path = f"/session/{(await http.post('/session', json={})).json()['sessionId']}/prompt"
        body = {"prompt": [{"type": "text", "text": "say 1 x\n"}, {"type": "text", "text": "#" * (2 * MiB)}]}
        sent = await http.post(path, json=body)
        assert sent.status_code == 202, sent.text


async def test_the_daemon_knows_whom_the_proxy_asks_for_and_refuses_other_names(
    command: Command, tmp_path: Path
) -> None:
    async with behind(command, tmp_path) as outside, outside.client() as http:
        assert (await http.get("/session", headers={"Origin": f"https://{NAME}"})).status_code == 200
        assert (await http.get("/session", headers={"Origin": "https://other.example"})).status_code == 403


async def test_a_page_before_several_nodes_may_act_from_its_own_origin_and_no_other(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    find_tool("nginx")
    port = free_port()
    site = (DEPLOY / "nginx-cluster.conf").read_text(encoding="utf-8")
    async with two_nodes(postgres, tmp_path) as nodes:
        places = {"listen 80;": f"listen 127.0.0.1:{port};"}
        for name, each in zip(("node-a", "node-b"), nodes, strict=True):
            places[f"server {name}:4170"] = f"server {each.url.removeprefix('http://')}"
        folder = tmp_path / "proxy"
        folder.mkdir()
        origin = f"http://127.0.0.1:{port}"
        async with (
            proxying(nginx_words(folder, swapped(site, **places)), folder, port),
            httpx.AsyncClient(base_url=origin, headers=nodes[0].headers, timeout=WAIT_S) as http,
        ):
            for _ in range(4):
                made = await http.post("/session", json={}, headers={"Origin": origin})
                assert made.status_code == 200, made.text
            for _ in nodes:
                refused = await http.post("/session", json={}, headers={"Origin": f"http://127.0.0.1:{port + 1}"})
                assert refused.status_code == 403
        made_by = [len(each.daemon.node.loaded) for each in nodes]
        assert all(made_by), "each node was asked"
