"""Agents that want a login, and what an agent says around the opening of a session, over real pipes."""

from __future__ import annotations

from pathlib import Path

import anyio
import msgspec
import pytest
from msgspec import UNSET
from tests.interop.node_session import Talk
from tests.process.hosted import Hosted, hosted, how, scripted, words
from tests.support.daemons import running_daemon
from tests.support.driving import check_ends, of

import turnwire
from turnwire.core import events as ev
from turnwire.errors import AuthRequired, RemoteProtocolError
from turnwire.testing.patience import WAIT_S

pytestmark = pytest.mark.anyio


def agent_error(ended: object) -> dict[str, object]:
    """The error that a turn ended with, as the agent gave it."""
    assert isinstance(ended, ev.TurnFailed), ended
    assert ended.code == "auth_required"
    assert ended.agent_error is not UNSET
    return msgspec.json.decode(ended.agent_error)


async def readies(host: Hosted, talk: Talk) -> int:
    """How often the agent that serves now was told that its client is ready."""
    sent = (await host.node.agents.explain(talk.session_id)).agent.last_sent
    assert '"session/' in sent[0], "all that was sent about the session is still remembered"
    return sum('"session/ready"' in each for each in sent)


# -- authentication ------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("profile", ["v1", "v2"])
async def test_a_login_that_the_agent_refuses_raises_and_changes_nothing(profile: str) -> None:
    async with hosted(scripted("--profile", profile, "--auth-required")) as host:
        talk = await host.talk(opened=False)
        with pytest.raises(RemoteProtocolError) as refused:
            await host.node.agents.authenticate("magic", session_id=talk.session_id)
        assert refused.value.context["jsonrpc"] == -32602
        agent_error(await talk.turn("echo hello"))


async def test_a_login_serves_every_session_of_the_agent() -> None:
    async with hosted(scripted("--auth-required")) as host:
        first = await host.talk(opened=False)
        await host.node.agents.authenticate("token", session_id=first.session_id)
        second = await host.talk()
        assert await second.said("echo hello") == "hello"
        assert await first.said("echo hello") == "hello"


# -- the opening of a session --------------------------------------------------------------------------------

EARLY = 'notify _auth/status_update {"authStatus":"ok"}'


@pytest.mark.requirement("G6", "R41", "R46", "R47")
@pytest.mark.parametrize("profile", ["v1", "v1plus", "v2"])
async def test_nothing_said_around_the_answer_to_session_new_is_lost(profile: str) -> None:
    around = ("before", "inside", "after")
    options = [part for each in around for part in (f"--{each}", f"say 2 {each}", f"--{each}", EARLY)]
    async with hosted(scripted("--profile", profile, *options)) as host:
        talk = await host.talk()
        # An agent that advertises ready holds these back until it has heard it.
        await talk.until(lambda event: isinstance(event, ev.SessionUpdated) and b"after" in bytes(event.update))
        assert await talk.said("echo hello") == "hello"
        events = await talk.events()
        assert (await words(talk))[:6] == [each for each in around for _ in range(2)]
        order = [type(each) for each in events if isinstance(each, ev.AgentStarted | ev.SessionUpdated)]
        assert order[0] is ev.AgentStarted, "the answer comes first"
        early = [each for each in of(events, ev.SessionUpdated) if each.prompt_id is None]
        assert [each.after for each in early] == [None] * 6, "they belong to no turn"
        strays = (await host.node.agents.explain(talk.session_id)).agent.strays
        assert strays == {"_auth/status_update": 3}


@pytest.mark.requirement("R46")
@pytest.mark.parametrize(("profile", "times"), [("v1", 0), ("v1plus", 1), ("v2", 0)])
async def test_ready_is_said_once_where_it_is_asked_for_and_nowhere_else(profile: str, times: int) -> None:
    async with hosted(scripted("--profile", profile, "--history", "/dev/null")) as host:
        talk = await host.talk()
        await talk.said("echo hello")
        assert await readies(host, talk) == times
        await talk.turn("exit 1")
        await talk.said("echo again")
        assert await how(talk) == ["new", "resume"]
        assert await readies(host, talk) == times


async def test_updates_of_a_session_that_nobody_opened_are_counted_and_harm_nothing() -> None:
    stranger = (
        'raw {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"stranger","update":'
        '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"boo"}}}}'
    )
    async with hosted(scripted()) as host:
        talk = await host.talk()
        assert await talk.said(f"say 1 mine\nrepeat 3 {stranger}\nsay 1 again") == "mineagain"
        assert (await host.node.agents.explain(talk.session_id)).agent.strays == {"unknown_session": 3}


async def test_the_sdk_of_a_daemon_logs_in_at_its_agent(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d", agent=scripted("--profile", "v1", "--auth-required")) as running:
        with anyio.fail_after(WAIT_S):
            async with turnwire.connect(running.url, token=running.token) as client:
                with pytest.raises(AuthRequired):
                    await client.new_session(tmp_path)
                await client.authenticate("token")
                assert await client.new_session(tmp_path)
