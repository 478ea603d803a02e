"""An agent that dies, or refuses, before it has a session: every waiting caller gets the reason."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.cli.rig import run
from tests.process.hosted import Remembering, hosted, plain
from tests.support.acp import V1, V2, acp_daemon, connected
from tests.support.acp_endpoint import Endpoint, served
from tests.support.daemons import running_daemon
from tests.support.heard import Json

import turnwire
from turnwire.errors import AgentLaunchFailed, AgentUnavailable
from turnwire.hosting.agent_connection import AgentConnection
from turnwire.hosting.agent_exit import LINE, in_words
from turnwire.hosting.process import Exit
from turnwire.hosting.source import ProcessSource
from turnwire.limits import Limits
from turnwire.session import events as ev
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

DEAD = plain(initialize={})
"""Dies at `initialize` with the code 7."""
LATER = plain(dies_at=["session/new"])
WORDS = "the agent ended with exit code 7: it was too much for me"
TAIL = "it was too much for me\n"
NO: dict[str, Any] = {"error": {"code": -32602, "message": "buy a licence first"}}
CLIENTS = pytest.mark.parametrize("client", [V1, V2], ids=["v1", "v2"])
DYING = pytest.mark.parametrize("agent", [DEAD, LATER], ids=["initialize", "session/new"])


# -- the five who wait ---------------------------------------------------------------------------------------


@DYING
async def test_over_rest_a_new_session_is_refused_with_the_words_of_its_agent(
    tmp_path: Path, agent: list[str]
) -> None:
    async with running_daemon(tmp_path / "d", agent=agent) as running, running.client() as client:
        answer = await client.post("/session", json={})
        told = answer.json()
        assert (answer.status_code, told["code"], told["error"]) == (502, "agent_launch_failed", WORDS)
        assert (told["exitCode"], told["stderrTail"]) == (7, TAIL)
        assert "signal" not in told


@CLIENTS
@DYING
async def test_over_acp_a_new_session_is_refused_with_the_words_of_its_agent(
    client: Json, agent: list[str]
) -> None:
    limits = Limits(breaker_failures=5)
    async with (
        acp_daemon(source=Remembering(agent, limits), limits=limits) as place,
        connected(place, client) as asking,
    ):
        error = await asking.fails("session/new", cwd=place.cwd, mcpServers=[])
        assert (error["code"], error["message"]) == (-32603, WORDS)
        assert error["data"]["code"] == "agent_launch_failed"
        assert (error["data"]["exitCode"], error["data"]["stderrTail"]) == (7, TAIL)


@DYING
async def test_the_sdk_raises_the_words_of_the_agent(agent: list[str]) -> None:
    with anyio.fail_after(WAIT_S):
        async with turnwire.connect(agent) as client:
            with pytest.raises(AgentLaunchFailed) as caught:
                await client.new_session()
            assert str(caught.value) == WORDS
            known = {name: caught.value.context[name] for name in ("exit_code", "signal", "stderr_tail")}
            assert known == {"exit_code": 7, "signal": None, "stderr_tail": TAIL}


def test_a_prompt_on_the_command_line_tells_the_words_of_the_agent(tmp_path: Path) -> None:
    shown = run("prompt", "hi", "--", *DEAD, home=tmp_path)
    assert shown.code == 69
    assert WORDS in shown.err


async def test_the_log_of_the_daemon_has_the_words_of_the_agent_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_daemon(tmp_path / "d", agent=DEAD) as running, running.client() as client:
        for _ in range(2):
            await client.post("/session", json={})
    records = [each for each in caplog.records if each.name == "turnwire.hosting.agent_pool"]
    logged = [each.getMessage() for each in records]
    assert logged == [f"no agent could be started: {WORDS}"]
    assert {each.levelno for each in records} == {logging.ERROR}


# -- in a turn, and after it ---------------------------------------------------------------------------------


@CLIENTS
async def test_an_agent_that_dies_in_a_turn_tells_acp_clients_how(client: Json) -> None:
    async with acp_daemon(source=Remembering(plain(), Limits())) as place, connected(place, client) as asking:
        request_id = await asking.prompt(await asking.new(), "die")
        if client is V1:
            error = (await asking.answer(request_id))["error"]
        else:
            idle = await asking.update("state_update", state="idle", stopReason="error")
            error = idle["params"]["update"]["error"]
        assert error["data"] == {"code": "agent_exited", "exitCode": 7, "stderrTail": TAIL}


async def test_an_agent_that_is_not_tried_again_is_told_with_its_last_words() -> None:
    with anyio.fail_after(WAIT_S):
        async with turnwire.connect(DEAD, limits=Limits(breaker_failures=0)) as client:
            with pytest.raises(AgentLaunchFailed):
                await client.new_session()
            with pytest.raises(AgentUnavailable, match="it was too much for me; it is not started again") as caught:
                await client.new_session()
            assert (caught.value.context["exit_code"], caught.value.context["stderr_tail"]) == (7, TAIL)


async def test_an_agent_that_is_missing_by_now_is_not_told_with_the_words_of_the_one_before(tmp_path: Path) -> None:
    program = tmp_path / "agent"
    program.write_text("#!/bin/sh\nread line\necho of the first >&2\nexit 3\n")
    program.chmod(0o700)
    async with hosted([str(program)], limits=Limits(breaker_failures=5)) as host:
        talk = await host.talk(opened=False)
        await talk.until(lambda event: isinstance(event, ev.AgentExited))
        program.unlink()
        ended = await talk.turn("hello")
        assert isinstance(ended, ev.TurnFailed)
        assert "was not found" in ended.message
        assert (ended.exit_code, ended.stderr_tail) == (None, None)


# -- refusals, and agents elsewhere --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        (plain(initialize={"2": NO, "1": NO}), "the agent refused to initialize: buy a licence first"),
        (plain(refuse=["session/new"]), "the agent refused to open the session: not session/new"),
    ],
    ids=["initialize", "session/new"],
)
async def test_an_agent_that_refuses_is_quoted(agent: list[str], words: str) -> None:
    with anyio.fail_after(WAIT_S):
        async with turnwire.connect(agent) as client:
            with pytest.raises(AgentLaunchFailed) as caught:
                await client.new_session()
            assert str(caught.value) == words


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (404, r"there is no agent at .* \(HTTP 404\); check the URL"),
        (401, r"refuses the credential \(HTTP 401\)"),
        (200, "with HTTP 200 and no ACP connection; check the URL"),
    ],
)
async def test_an_address_that_is_no_agent_is_told_with_its_status(status: int, words: str) -> None:
    endpoint = Endpoint()
    endpoint.initialize = lambda _asked: (status, {"says": "a web site"})
    async with served(endpoint.serve) as url:
        with anyio.fail_after(WAIT_S):
            async with turnwire.connect(url, limits=Limits(stop_eof_s=0.5)) as client:
                with pytest.raises(AgentLaunchFailed, match=words):
                    await client.new_session()


# -- the words -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (None, None),
        (Exit(None, None, "its guard was killed", None), None),
        (
            Exit(3, None, "one\ncannot find config\n\n", None),
            "the agent ended with exit code 3: cannot find config",
        ),
        (
            Exit(
                1,
                None,
                "a.js:3\n  throw Error('x')\n\nTypeError: x is no function\n    at a.js:3\n\nNode.js v24.1.0\n",
                None,
            ),
            "the agent ended with exit code 1: TypeError: x is no function",
        ),
        (Exit(1, None, "it stopped\nNode.js v24.1.0", None), "the agent ended with exit code 1: Node.js v24.1.0"),
        (Exit(None, 9, "", None), "the agent ended by SIGKILL; run its command by hand to see why"),
        (Exit(1, None, "red \x1b[31m\x07", None), "the agent ended with exit code 1: red  [31m"),
    ],
)
def test_an_end_is_one_line(how: Exit | None, words: str | None) -> None:
    assert in_words(how) == words


def test_a_long_line_is_cut() -> None:
    words = in_words(Exit(1, None, "x" * 10_000, None))
    assert words is not None
    assert len(words) < LINE + 50


# -- on the other stream -------------------------------------------------------------------------------------

USAGE = "echo 'usage: acp [--stdio]'; echo; printf 'acp: no such option'; exit 2"
SAID = "the agent ended with exit code 2: acp: no such option"


async def test_what_an_agent_prints_on_its_output_before_it_dies_is_why_it_died(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d", agent=["sh", "-c", USAGE]) as running, running.client() as client:
        told = (await client.post("/session", json={})).json()
        assert (told["error"], told["exitCode"]) == (SAID, 2)
        assert told["stderrTail"] == "usage: acp [--stdio]\nacp: no such option\n"


async def test_what_it_prints_to_standard_error_is_better(tmp_path: Path) -> None:
    agent = ["sh", "-c", "echo 'starting'; echo 'no licence' >&2; exit 2"]
    async with running_daemon(tmp_path / "d", agent=agent) as running, running.client() as client:
        told = (await client.post("/session", json={})).json()
        assert (told["error"], told["stderrTail"]) == (
            "the agent ended with exit code 2: no licence",
            "no licence\n",
        )


async def test_secrets_on_its_output_are_blotted_also_where_a_line_is_cut() -> None:
    secret = "s3cr3t-value-of-a-key"
    lines = f'echo "$MODEL_API_KEY"; echo "{"x" * 240}$MODEL_API_KEY"; exit 2'
    source = ProcessSource(["sh", "-c", lines], env={"MODEL_API_KEY": secret, "PATH": "/usr/bin:/bin"})
    connection = AgentConnection(await source.connect(), Limits())
    with anyio.fail_after(WAIT_S):
        await connection.run()
    assert connection.ended is not None
    words = connection.ended.stderr_tail
    assert "x" * 200 in words
    assert not any(secret[:length] in words for length in range(4, len(secret)))
