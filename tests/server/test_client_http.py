"""The client SDK and a real daemon: the same client as over stdio, and the plain one with a call for each route."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from tests.support.certificates import self_signed
from tests.support.daemons import SCRIPTED, TOKEN, Running, running_daemon
from tests.support.played import serving

import turnwire
from turnwire.client import DaemonClient, blocking
from turnwire.errors import (
    ClientClosed,
    ConfigError,
    DaemonUnreachable,
    PermissionNotFound,
    SessionClosed,
    Unauthenticated,
)
from turnwire.log import MemoryEventLog
from turnwire.server.app import create_app
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

NOBODY = "http://127.0.0.1:9"


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncGenerator[Running]:
    async with running_daemon(tmp_path / "data") as running:
        yield running


@pytest.mark.guarantee("G13")
async def test_a_wrong_token_is_told_when_the_client_is_opened(daemon: Running) -> None:
    with anyio.fail_after(WAIT_S):
        for token in (None, "wrong-token-0123456789"):
            client = turnwire.connect(daemon.url, token=token)
            with pytest.raises(Unauthenticated) as refused:
                await client.__aenter__()
            says_where_a_token_is_from(refused.value, daemon.url, token)
            async with DaemonClient(daemon.url, token) as plain_one:
                with pytest.raises(Unauthenticated) as refused:
                    await plain_one.prompt("s1", "hello")
                says_where_a_token_is_from(refused.value, daemon.url, token)
                with pytest.raises(Unauthenticated) as refused:
                    await anext(plain_one.events("s1"))
                says_where_a_token_is_from(refused.value, daemon.url, token)
            with pytest.raises(Unauthenticated) as refused:
                await anyio.to_thread.run_sync(enter_blocking, daemon.url, token)
            says_where_a_token_is_from(refused.value, daemon.url, token)


def enter_blocking(url: str, token: str | None) -> None:
    with blocking.connect(url, token=token):
        pytest.fail("it got in")


def says_where_a_token_is_from(error: Unauthenticated, url: str, token: str | None) -> None:
    said = str(error)
    assert url in said
    assert ("none was given" in said) == (token is None)
    for each in ("`turnwire token create NAME`", "TURNWIRE_TOKEN", "`token=…`", "--token-file", "cli-token"):
        assert each in said
    assert token is None or token not in said


async def test_a_url_and_a_command_are_told_apart_and_take_different_settings() -> None:
    with pytest.raises(ConfigError, match="daemon"):
        turnwire.connect(NOBODY, env={})
    with pytest.raises(ConfigError, match="daemon"):
        turnwire.connect(NOBODY, log=MemoryEventLog())
    with pytest.raises(ConfigError, match="URL"):
        turnwire.connect("some-agent --flag", token="x")


@pytest.mark.full("needs openssl")
async def test_https_is_spoken_with_the_certificates_of_the_environment(
    daemon: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = self_signed(tmp_path)
    with anyio.fail_after(WAIT_S):
        async with serving(create_app(daemon.daemon), tls) as url:
            with pytest.raises(DaemonUnreachable):
                await turnwire.connect(url, token=daemon.token).__aenter__()
            monkeypatch.setenv("SSL_CERT_FILE", str(tls.cert))
            async with turnwire.connect(url, token=daemon.token) as client:
                session = await client.new_session(tmp_path)
                assert (await session.prompt("say 2 x")).text == "xx"


def test_the_twin_without_an_event_loop_does_the_same(tmp_path: Path) -> None:
    url: list[str] = []
    ready, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with running_daemon(tmp_path / "data") as daemon:
            url.append(daemon.url)
            ready.set()
            await anyio.to_thread.run_sync(stop.wait, WAIT_S)

    serving_thread = threading.Thread(target=anyio.run, args=(serve,))
    serving_thread.start()
    try:
        assert ready.wait(WAIT_S)
        use_the_twin(url[0], tmp_path)
    finally:
        stop.set()
        serving_thread.join(WAIT_S)


def use_the_twin(url: str, folder: Path) -> None:
    with blocking.connect(url, token=TOKEN) as client:
        heard: list[str] = []
        session = client.new_session(folder)
        session.on_update(lambda update: heard.append(update.text))
        assert session.prompt("say 3 x").result(WAIT_S).text == "xxx"
        assert heard == ["x", "x", "x"]
    with blocking.DaemonClient(url, TOKEN) as plain_one:
        session_id = plain_one.create_session().session_id
        result = plain_one.prompt(session_id, "say 1 y")
        assert plain_one.turn(session_id, result.prompt_id or "") == plain_one.turns(session_id)[0]
        assert not plain_one.status(session_id).has_active_prompt
        assert plain_one.resume(session_id).client_id != plain_one.load(session_id).client_id
        plain_one.cancel(session_id)
        with pytest.raises(PermissionNotFound):
            plain_one.answer_permission(session_id, "q_none", "allow")
        ends = (event for event in plain_one.events(session_id, 0) if event.id == result.event_id)
        assert next(ends).type == "turn_complete"
    with pytest.raises(ClientClosed):
        plain_one.status(session_id)


async def test_the_token_of_the_environment_is_used(daemon: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNWIRE_TOKEN", daemon.token)
    with anyio.fail_after(WAIT_S):
        async with turnwire.connect(daemon.url) as client:
            assert await client.sessions() == []


# -- many ----------------------------------------------------------------------------------------------------


async def test_an_id_that_two_clients_gave_means_the_turn_of_the_one_who_waits(
    daemon: Running, tmp_path: Path
) -> None:
    with anyio.fail_after(WAIT_S):
        async with (
            turnwire.connect(daemon.url, token=daemon.token) as one,
            turnwire.connect(daemon.url, token=daemon.token) as two,
        ):
            ours = await one.new_session(tmp_path)
            theirs = await two.attach(ours.session_id)
            waiting = theirs.completed(7)
            await ours.prompt("say 1 ours", request_id=7)
            assert (await waiting).text == "ours", "nobody else has used it"
            turn = theirs.prompt("say 1 theirs", request_id=7)
            assert (await theirs.completed(7)).text == "theirs", "one that is on its way is meant"
            await turn
            await ours.prompt("say 1 again", request_id=7)
            assert [(await each.completed(7)).text for each in (ours, theirs)] == ["again", "theirs"]


async def test_a_session_that_is_closed_already_can_be_looked_at_and_ends_whoever_follows_it(
    daemon: Running, tmp_path: Path
) -> None:
    with anyio.fail_after(WAIT_S):
        async with turnwire.connect(daemon.url, token=daemon.token) as client:
            session = await client.new_session(tmp_path)
            await session.prompt("say 1 x")
            await session.close()
        async with turnwire.connect(daemon.url, token=daemon.token) as client:
            closed = await client.attach(session.session_id)
            assert len((await closed.view()).turns) == 1
            with pytest.raises(SessionClosed):
                await closed.completed("anything")
            with pytest.raises(SessionClosed):
                await closed.prompt("hello")


@pytest.mark.parametrize("profile", ["v1", "v2"])
async def test_the_view_is_the_same_as_in_the_daemon(tmp_path: Path, profile: str) -> None:
    """This includes an agent that speaks v2: the client requests the agent's form, without translation."""
    with anyio.fail_after(WAIT_S):
        async with (
            running_daemon(tmp_path / "data", agent=(*SCRIPTED, "--profile", profile)) as daemon,
            turnwire.connect(daemon.url, token=daemon.token) as client,
        ):
            session = await client.new_session(tmp_path)
            heard: list[str] = []
            session.on_update(lambda update: heard.append(update.kind))
            await session.prompt("say 3 x\ntool t1\nusage 10 100")
            assert ("tool_call" in heard) == (profile == "v1")
            folded = (await session.view()).stored()
            assert folded == (await daemon.daemon.node.view(session.session_id)).stored()
            assert os.fspath(tmp_path) == folded.session.cwd
