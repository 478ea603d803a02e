"""Agents at a URL: a turnwire daemon and the official SDKs' servers, over Streamable HTTP and WebSocket."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from sysconfig import get_path

import anyio
import pytest
from anyio.streams.text import TextReceiveStream
from tests.interop.node_session import Host, Talk, spoken
from tests.interop.peers import AGENTS, NODE, PEERS, absent
from tests.interop.programs import cable
from tests.support.daemons import SCRIPTED, TOKEN, running_daemon
from tests.support.driving import check_ends, of

import turnwire
from turnwire.errors import AgentLaunchFailed, ConfigError
from turnwire.hosting.remote_agent import RemoteSource
from turnwire.limits import Limits
from turnwire.log import MemoryEventLog
from turnwire.runtime.node import open_node
from turnwire.server.daemon import Daemon
from turnwire.session import events as ev
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

SCHEMES = ["http", "ws"]
LIMITS = Limits(stop_eof_s=0.5)


def behind(url: str, scheme: str) -> str:
    """The agent's address at a server."""
    return f"{url.replace('http', scheme, 1)}/acp"


@asynccontextmanager
async def hosting(url: str, token: str | None = TOKEN, limits: Limits = LIMITS) -> AsyncGenerator[Host]:
    """Run a node whose agent is at this URL."""
    log = MemoryEventLog()
    with anyio.fail_after(WAIT_S):
        source = RemoteSource(url, token=token, limits=limits)
        async with source, open_node(log, source, limits=limits) as node:
            yield Host(node, log)


async def opened(host: Host, cwd: Path) -> Talk:
    """Open a new session, and wait until the agent has it."""
    talk = Talk(host.node, host.log, await host.node.create(str(cwd)))
    await talk.until(lambda event: isinstance(event, ev.AgentStarted))
    return talk


async def how(talk: Talk) -> list[str]:
    return [each.how for each in of(await talk.events(), ev.AgentStarted)]


async def idle(daemon: Daemon) -> None:
    """Wait until the newest turn of the daemon's one session is over."""
    (there,) = await daemon.log.sessions()
    talk = Talk(daemon.node, daemon.log, there.session_id)
    started = of(await talk.events(), ev.TurnStarted)[-1]
    await talk.end(started.prompt_id)


# -- our own daemon ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["v1", "v1plus", "v2"])
@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_daemon_is_an_agent_like_any_other(tmp_path: Path, scheme: str, profile: str) -> None:
    async with running_daemon(tmp_path / "data", agent=(*SCRIPTED, "--profile", profile)) as running:
        with anyio.fail_after(WAIT_S):
            async with turnwire.connect(behind(running.url, scheme), token=TOKEN, limits=LIMITS) as client:
                session = await client.new_session(tmp_path)
                session.on_permission(lambda _question: "no")
                result = await session.prompt("say 3 word")
                assert (result.text, result.stop_reason) == ("word" * 3, "end_turn")
                assert (await session.prompt("ask edit yes,no")).text == "selected no"


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_turn_of_a_remote_agent_is_cancelled(tmp_path: Path, scheme: str) -> None:
    async with running_daemon(tmp_path / "data") as running, hosting(behind(running.url, scheme)) as host:
        talk = await opened(host, tmp_path)
        prompt_id = await talk.prompt("say 1 waiting\nnever")
        await talk.until_said("waiting", prompt_id)
        await talk.cancel(prompt_id)
        ended = await talk.end(prompt_id)
        assert isinstance(ended, ev.TurnCompleted)
        assert ended.stop_reason == "cancelled"


@pytest.mark.guarantee("G9")
async def test_a_turn_over_http_goes_on_when_every_connection_is_cut(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with running_daemon(tmp_path / "data") as running, cable() as wire:
        wire.lead_to(running.url)
        async with hosting(behind(wire.url, "http")) as host:
            talk = await opened(host, tmp_path)
            prompt_id = await talk.prompt(f"say 1 before\ngate {gate}\nsay 2 after")
            await talk.until_said("before", prompt_id)
            wire.cut()
            gate.touch()
            ended = await talk.end(prompt_id)
            assert isinstance(ended, ev.TurnCompleted)
            assert spoken(await talk.events(), prompt_id) == ["before", "after", "after"]
            assert await how(talk) == ["new"]
            check_ends(await talk.events())


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_session_is_brought_back_after_its_link_was_lost(tmp_path: Path, scheme: str) -> None:
    gate = tmp_path / "gate"
    async with running_daemon(tmp_path / "data") as running, cable() as wire:
        wire.lead_to(running.url)
        async with hosting(behind(wire.url, scheme)) as host:
            talk = await opened(host, tmp_path)
            assert await talk.said("echo first") == "first"
            prompt_id = await talk.prompt(f"say 1 waiting\ngate {gate}")
            await talk.until_said("waiting", prompt_id)
            wire.lead_to("http://127.0.0.1:9")
            wire.cut()
            if scheme == "http":
                # There is no request before there is something to send; an event stream alone retries for minutes.
                await talk.cancel(prompt_id)
            assert isinstance(await talk.end(prompt_id), ev.TurnFailed | ev.TurnCompleted)
            await talk.until(lambda event: isinstance(event, ev.AgentExited))
            # The daemon's own turn continued meanwhile; it is over before a client returns for the session.
            gate.touch()
            await idle(running.daemon)
            wire.lead_to(running.url)
            assert await talk.said("echo second") == "second"
            assert await how(talk) == ["new", "resume"]
            check_ends(await talk.events())


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_wrong_token_is_told_as_such(tmp_path: Path, scheme: str) -> None:
    async with running_daemon(tmp_path / "data") as running:
        with anyio.fail_after(WAIT_S):
            async with turnwire.connect(behind(running.url, scheme), token="wrong-token", limits=LIMITS) as client:
                with pytest.raises(AgentLaunchFailed, match="refuses the credential"):
                    await client.new_session(tmp_path)


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_an_address_where_nobody_is_is_told_as_such(tmp_path: Path, scheme: str) -> None:
    with anyio.fail_after(WAIT_S):
        async with turnwire.connect(f"{scheme}://127.0.0.1:9/acp", limits=LIMITS) as client:
            with pytest.raises(AgentLaunchFailed, match="no agent answers"):
                await client.new_session(tmp_path)


@pytest.mark.parametrize("url", ["ws://", "wss://user@host/acp", "http://host:0/acp", "ws://host/acp#part"])
def test_what_is_no_address_of_an_agent_is_refused_before_anything_starts(url: str) -> None:
    with pytest.raises(ConfigError):
        turnwire.connect(url)


def test_an_agent_behind_a_url_has_no_environment_of_ours() -> None:
    with pytest.raises(ConfigError, match="env"):
        turnwire.connect("ws://host/acp", env={})


# -- the official SDKs' servers ------------------------------------------------------------------------------


@asynccontextmanager
async def serving(command: Sequence[str]) -> AsyncGenerator[str]:
    """Run a server that prints its port."""
    async with await anyio.open_process(command, stderr=None) as process:
        assert process.stdout is not None
        try:
            with anyio.fail_after(WAIT_S):
                port = int(await TextReceiveStream(process.stdout).receive())
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def python_server(folder: Path) -> list[str]:
    if not (PEERS / "py-v1" / ".installed").exists():
        absent("the Python SDK is not there; run: make peers")
    return [
        str(PEERS / "py-v1" / "bin" / "python"),
        str(AGENTS / "py_v1_http.py"),
        str(folder),
        get_path("purelib"),
    ]


def node_server(_folder: Path) -> list[str]:
    if not (PEERS / "node" / ".installed").exists():
        absent("the TypeScript SDK is not there; run: make peers")
    return [*NODE, str(PEERS / "node" / "agents" / "js_v1_http.mjs")]


OFFICIAL = [
    pytest.param(node_server, "http", id="js-http"),
    pytest.param(python_server, "http", id="py-http"),
    pytest.param(python_server, "ws", id="py-ws"),
]


@pytest.mark.parametrize(("server", "scheme"), OFFICIAL)
@pytest.mark.full("needs the official SDKs")
async def test_an_official_server_takes_prompts_answers_and_cancels(
    tmp_path: Path, server: Callable[[Path], list[str]], scheme: str
) -> None:
    async with serving(server(tmp_path)) as url, hosting(behind(url, scheme), token=None) as host:
        talk, other = await opened(host, tmp_path), await opened(host, tmp_path)
        assert await talk.said("hello") == "You said: hello."
        assert await other.said("you") == "You said: you."
        asking = await talk.prompt("edit")
        await talk.answer(await talk.until_asked(asking), "yes")
        assert isinstance(await talk.end(asking), ev.TurnCompleted)
        assert spoken(await talk.events(), asking) == ["edited"]
        waiting = await talk.prompt("wait")
        await talk.until_said("waiting", waiting)
        await talk.cancel(waiting)
        ended = await talk.end(waiting)
        assert isinstance(ended, ev.TurnCompleted)
        assert ended.stop_reason == "cancelled"
        check_ends(await talk.events())


@pytest.mark.parametrize(("server", "scheme"), [OFFICIAL[0], OFFICIAL[2]])
@pytest.mark.full("needs the official SDKs")
async def test_an_official_server_brings_a_session_back_with_its_whole_history(
    tmp_path: Path, server: Callable[[Path], list[str]], scheme: str
) -> None:
    """The HTTP server of the Python SDK accepts no prompt for a loaded session, so it is not included."""
    async with serving(server(tmp_path)) as url, cable() as wire:
        wire.lead_to(url)
        async with hosting(behind(wire.url, scheme), token=None) as host:
            talk = await opened(host, tmp_path)
            assert await talk.said("hello") == "You said: hello."
            wire.cut()
            await talk.until(lambda event: isinstance(event, ev.AgentExited))
            assert await talk.said("count") == "2 prompts"
            assert await how(talk) == ["new", "load"]
            await talk.until(lambda event: isinstance(event, ev.HistoryCompared))
            compared = of(await talk.events(), ev.HistoryCompared)[0]
            assert (compared.replayed, compared.matched, compared.missing) == (2, 2, 0)
            check_ends(await talk.events())
