"""Agents that require a login, and an agent's updates around the opening of a session, over real pipes."""

from __future__ import annotations

from pathlib import Path

import anyio
import msgspec
import pytest
from msgspec import UNSET
from tests.process.hosted import hosted, scripted
from tests.support.daemons import running_daemon
from tests.support.driving import check_ends

import turnwire
from turnwire.errors import AuthRequired
from turnwire.session import events as ev
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio


def agent_error(ended: object) -> dict[str, object]:
    """The error that a turn ended with, as the agent gave it."""
    assert isinstance(ended, ev.TurnFailed), ended
    assert ended.code == "auth_required"
    assert ended.agent_error is not UNSET
    return msgspec.json.decode(ended.agent_error)


@pytest.mark.parametrize("profile", ["v1", "v1plus", "v2"])
async def test_a_turn_without_a_login_says_which_ways_there_are_and_works_after_it(profile: str) -> None:
    async with hosted(scripted("--profile", profile, "--auth-required")) as host:
        talk = await host.talk(opened=False)
        error = agent_error(await talk.turn("echo hello"))
        assert error["code"] == -32000
        offered = {"type": "agent", "methodId": "token"} if profile == "v2" else {"id": "token"}
        assert error["data"] == {"authMethods": [{**offered, "name": "Token"}]}
        await host.node.agents.authenticate("token", session_id=talk.session_id)
        assert await talk.said("echo hello") == "hello"
        assert host.source.tries == 1, "the login is worth something only where it was made"
        check_ends(await talk.events())


async def test_a_login_serves_every_session_of_the_agent() -> None:
    async with hosted(scripted("--auth-required")) as host:
        first = await host.talk(opened=False)
        await host.node.agents.authenticate("token", session_id=first.session_id)
        second = await host.talk()
        assert await second.said("echo hello") == "hello"
        assert await first.said("echo hello") == "hello"


async def test_the_sdk_of_a_daemon_logs_in_at_its_agent(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d", agent=scripted("--profile", "v1", "--auth-required")) as running:
        with anyio.fail_after(WAIT_S):
            async with turnwire.connect(running.url, token=running.token) as client:
                with pytest.raises(AuthRequired):
                    await client.new_session(tmp_path)
                await client.authenticate("token")
                assert await client.new_session(tmp_path)
