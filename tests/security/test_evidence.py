"""A user who shares an agent with others learns nothing of them: neither from evidence, nor from its last
output.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from tests.security.intruding import attacked, bearer, issue
from tests.server.seats import Seat
from tests.support.daemons import OWN_PROCESS, Running

from turnwire.hosting.last_frames import LastFrames
from turnwire.ids import SessionId
from turnwire.server.access.tokens import Role
from turnwire.session.events import TurnFailed
from turnwire.wire.jsonrpc import Request, Result, raw

pytestmark = [pytest.mark.anyio, pytest.mark.guarantee("G13")]

ENVIRONMENT, HEADER, ARGUMENT, META = "env-secret-b", "header-secret-b", "argument-secret-b", "meta-secret-b"
SECRETS = (ENVIRONMENT, HEADER, ARGUMENT, META)
MCP = {
    "name": "tickets",
    "command": "/bin/false",
    "args": ["--key", ARGUMENT],
    "env": [{"name": "KEY", "value": ENVIRONMENT}],
}
WORDS = "words-of-b-alone"


class Two(NamedTuple):
    """Two sessions at one agent, and a controller of the first one alone."""

    daemon: Running
    owner: httpx.AsyncClient
    ann: Seat
    bob: Seat
    guest: httpx.AsyncClient


@asynccontextmanager
async def sharing(tmp_path: Path, **options: Any) -> AsyncGenerator[Two]:
    async with attacked(tmp_path, as_process=True, **options) as daemon, daemon.client() as owner:
        seats: list[Seat] = []
        for name, servers in (("ann", []), ("bob", [MCP])):
            body = {"cwd": str(tmp_path / "work"), "sessionId": name, "mcpServers": servers, "_meta": {"key": META}}
            assert (await owner.post("/session", json=body)).status_code == 200
            seats.append(Seat(daemon, owner, SessionId(name)))
        _, secret = await issue(daemon, Role.CONTROLLER, session_id=SessionId("ann"))
        async with daemon.client(headers=bearer(secret)) as guest:
            yield Two(daemon, owner, seats[0], seats[1], guest)


async def explained(client: httpx.AsyncClient, session_id: str) -> dict[str, Any]:
    answer = await client.get(f"/session/{session_id}/explain")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_explain_shows_the_frames_of_its_own_session_only(tmp_path: Path) -> None:
    async with sharing(tmp_path) as two:
        await two.ann.run("say 1 for-ann")
        await two.bob.run(f"say 1 {WORDS}")
        told = await explained(two.guest, "ann")
        assert any("for-ann" in each for each in told["agent"]["lastReceived"])
        assert any("for-ann" in each for each in told["agent"]["lastSent"])
        assert WORDS not in json.dumps(told)
        assert "session-2" not in json.dumps(told), "not even its name at the agent"
        assert WORDS in json.dumps(await explained(two.owner, "bob"))


async def test_no_place_that_shows_frames_shows_a_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with sharing(tmp_path) as two:
        await two.bob.run("echo hello")
        shown = [json.dumps(await explained(two.owner, "bob"))]
        assert '\\"mcpServers\\":\\"[hidden]\\"' in shown[0]
        paths = ("export", "transcript", "turns", "status", "state", "context")
        shown += [(await two.owner.get(f"/session/bob/{path}")).text for path in paths]
        shown += [str(vars(each)) + each.getMessage() for each in caplog.records if not each.name.startswith("h")]
        assert [(secret, each) for secret in SECRETS for each in shown if secret in each] == []


@pytest.mark.parametrize(
    ("method", "params", "shown"),
    [
        ("session/new", {"cwd": "/", "mcpServers": [MCP], "_meta": {"k": META}}, '"cwd":"/"'),
        ("terminal/create", {"command": "env", "env": [{"name": "K", "value": ENVIRONMENT}]}, '"command":"env"'),
        ("session/prompt", {"prompt": [{"type": "text", "_meta": {"k": META}, "text": "hi"}]}, '"text":"hi"'),
        ("_vendor/login", {"anything": HEADER}, "_vendor/login"),
        ("session/set_mode", {"deep": [{"headers": {"x": HEADER}, "apiKey": ARGUMENT, "kept": 1}]}, '"kept":1'),
        ("session/prompt", {"prompt": META * 100_000}, "bytes]"),
    ],
)
def test_a_frame_is_kept_without_what_is_secret_in_it(method: str, params: dict[str, Any], shown: str) -> None:
    frames = LastFrames()
    frames.told(Request(1, method, raw(params)))
    frames.heard(Request(1, method, raw(params)))
    frames.heard(Result(1, raw(params)), method=method)
    for each in [*frames.sent, *frames.received]:
        assert [secret for secret in SECRETS if secret in each] == []
    assert shown in frames.sent[0]


async def test_the_last_words_of_a_shared_agent_are_for_owners_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with sharing(tmp_path) as two:
        prompted = await two.ann.prompt("never")
        failed = await two.bob.run(f"stderr {WORDS}\nexit 4")
        assert isinstance(failed, TurnFailed)
        assert (failed.exit_code, failed.stderr_tail) == (4, None)
        await two.ann.end(prompted["promptId"])
        for path in ("explain", "export", "transcript", "turns"):
            assert WORDS not in (await two.guest.get(f"/session/ann/{path}")).text, path
        told = await explained(two.owner, "ann")
        assert WORDS in told["agent"]["stderrTail"]
        [record] = [vars(each) for each in caplog.records if vars(each).get("event") == "agent_last_words"]
        assert WORDS in record["stderr"]


@pytest.mark.parametrize("process", ["shared", "session"])
async def test_the_last_words_of_an_agent_that_served_one_session_are_told_in_it(
    tmp_path: Path, process: str
) -> None:
    async with (
        attacked(tmp_path, as_process=True, **(OWN_PROCESS if process == "session" else {})) as daemon,
        daemon.client() as owner,
    ):
        for name in ("ann", "bob") if process == "session" else ("ann",):
            body = {"cwd": str(tmp_path / "work"), "sessionId": name}
            assert (await owner.post("/session", json=body)).status_code == 200
        failed = await Seat(daemon, owner, SessionId("ann")).run(f"stderr {WORDS}\nexit 4")
        assert isinstance(failed, TurnFailed)
        assert failed.stderr_tail == f"{WORDS}\n"


async def test_lines_that_are_no_frames_are_shown_to_owners_only(tmp_path: Path) -> None:
    async with sharing(tmp_path) as two:
        await two.bob.run(f"raw {WORDS}\nsay 1 x")
        assert WORDS not in json.dumps(await explained(two.guest, "ann"))
        assert any(WORDS in each for each in (await explained(two.owner, "ann"))["agent"]["brokenLines"])
