"""The official ACP clients, unchanged, with turnwire as their agent: each transport, each version on both sides."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from tests.interop.official_clients import (
    CLIENTS_OF_ACP,
    OFFICIAL_PROMPTS,
    Connection,
    OfficialClient,
    stdio_command,
    words,
)
from tests.interop.peers import Peer, scripted
from tests.interop.schema_check import check_frames
from tests.support.daemons import Running, running_daemon

pytestmark = pytest.mark.anyio

EARLY = ("--before", "usage 0 200000", "--inside", "title 'A title'")
"""The agent sends before and directly after its answer to `session/new`."""


@pytest.fixture(params=CLIENTS_OF_ACP, ids=lambda each: each.name)
def client(request: pytest.FixtureRequest) -> OfficialClient:
    """Return one of the official SDKs."""
    return request.param


@pytest.fixture(scope="module", params=["v1", "v2"], ids=lambda each: f"agent-{each}")
def profile(request: pytest.FixtureRequest) -> str:
    """Return the version of the agent hosted by turnwire."""
    return request.param


@pytest.fixture(scope="module")
async def daemon(profile: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Running]:
    """Run one daemon for all tours over the network."""
    data = tmp_path_factory.mktemp(profile) / "data"
    async with running_daemon(data, agent=scripted("--profile", profile, *EARLY)) as running:
        yield running


def url_of(daemon: Running, transport: str) -> str:
    url = f"{daemon.url}/acp"
    return url if transport == "http" else url.replace("http", "ws", 1)


def check_first(first: Connection) -> None:
    """Check a new session, a turn with a permission, and a turn that is cancelled."""
    assert first.answers("initialize")[0]["protocolVersion"] == first.version
    opening, work = first.split(first.place("session/new"))
    assert not opening.updates(), "the answer to session/new comes before everything of that session"
    early = [(each.get("used"), each.get("title")) for each in work.updates()]
    assert (0, None) in early, "what the agent said before its own answer is not lost"
    assert (None, "A title") in early, "nor what it said right behind it"
    asked = [each for each in work.received if each.get("method") == "session/request_permission"]
    assert len(asked) == 1
    assert first.stop_reasons() == ["end_turn", "cancelled"]
    turn, _ = first.split(first.place("session/prompt"))
    if first.version == 1:
        assert told(first) == [each for each in TOLD if each not in STATES]
        assert turn.said() == "selected allow_oncedone", "the answer stands behind all of its turn"
        assert turn.updates()[-1]["sessionUpdate"] == "turn_complete", "and behind the mark of its end"
    else:
        assert told(first) == TOLD
        assert not turn.stop_reasons(), "the answer does not wait for the end"
        messages = [each["messageId"] for each in first.updates() if each["sessionUpdate"] == "user_message"]
        assert [each["messageId"] for each in first.answers("session/prompt")] == messages


STATES = ("running", "requires_action", "idle")
TOLD = [
    *("running", "edit pending", "requires_action", "running", "edit in_progress", "edit completed"),
    *("selected allow_once", "done", "idle", "running", "waiting", "idle"),
]
"""Both turns in short form. A v1 client receives the same without the states."""


def told(connection: Connection) -> list[str]:
    """Return the turns that the client received, in short form."""
    found: list[str] = []
    for each in connection.updates():
        if "toolCallId" in each:
            found.append(f"{each['toolCallId']} {each['status']}")
        elif each["sessionUpdate"] == "state_update":
            found.append(each["state"])
        elif words(each):
            found.append(words(each))
    return found


def check_second(second: Connection, transport: str, history: str, more: str) -> None:
    """The history, and one turn more."""
    assert second.said() == history + more
    assert second.stop_reasons()[-1] == "end_turn"
    # Over Streamable HTTP the history is on one stream and the answer on another.
    if transport != "http":
        at = second.place("session/load" if second.version == 1 else "session/resume")
        assert [each.said() for each in second.split(at)] == [history, more]


def check(connections: list[Connection], transport: str) -> None:
    """Everything that the tour is to show."""
    first, second = connections
    check_first(first)
    check_second(second, transport, first.said(), "againagain")
    check_alike(connections)


def check_alike(connections: list[Connection]) -> None:
    """Check that neither the SDK nor the schema reports a problem."""
    for each in connections:
        assert each.handled == len(each.known_updates()), "the SDK has taken every update"
        seen = check_frames(each.version, each.frames).seen
        assert {"initialize answered", "session/update", "session/prompt answered"} <= seen


@pytest.mark.guarantee("G6", "G11")
@pytest.mark.parametrize("transport", ["http", "websocket"])
async def test_an_official_client_works_through_the_daemon_as_with_its_own_agent(
    client: OfficialClient, transport: str, daemon: Running
) -> None:
    where = {"url": url_of(daemon, transport), "token": daemon.token}
    check(await client.tour(transport, daemon.daemon.roots[0], **where), transport)


@pytest.mark.guarantee("G6", "G11")
async def test_an_official_client_works_through_a_pipe_as_with_its_own_agent(
    client: OfficialClient, profile: str, tmp_path: Path
) -> None:
    command = stdio_command(tmp_path / "data", scripted("--profile", profile, *EARLY))
    check(await client.tour("stdio", tmp_path, command=command), "stdio")


@pytest.fixture(scope="module")
async def peers_daemon(peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Running]:
    """Run a daemon with an agent that is also written with an official SDK."""
    folder = tmp_path_factory.mktemp(peer.name)
    async with running_daemon(folder / "data", agent=peer.command(folder)) as running:
        yield running


@pytest.mark.guarantee("G11")
async def test_official_clients_and_official_agents_meet_through_the_daemon(
    client: OfficialClient, peers_daemon: Running
) -> None:
    where = {"url": url_of(peers_daemon, "http"), "token": peers_daemon.token}
    first, second = await client.tour("http", peers_daemon.daemon.roots[0], OFFICIAL_PROMPTS, **where)
    assert first.stop_reasons() == ["end_turn", "cancelled"]
    assert first.said() == "editedwaiting"
    check_second(second, "http", "editedwaiting", "You said: hello again.")
    check_alike([first, second])
