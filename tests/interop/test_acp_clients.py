"""The official ACP clients, unchanged, with turnwire as their agent: each transport, each version on both sides."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from tests.interop.peers import scripted
from tests.interop.schema_check import check_frames
from tests.interop.touring import CLIENTS_OF_ACP, Connection, OfficialClient, stdio_command
from tests.support.daemons import Running, running_daemon

pytestmark = pytest.mark.anyio


@pytest.fixture(params=CLIENTS_OF_ACP, ids=lambda each: each.name)
def client(request: pytest.FixtureRequest) -> OfficialClient:
    """One of the official SDKs."""
    return request.param


@pytest.fixture(scope="module", params=["v1", "v2"], ids=lambda each: f"agent-{each}")
def profile(request: pytest.FixtureRequest) -> str:
    """What the agent behind turnwire speaks."""
    return request.param


@pytest.fixture(scope="module")
async def daemon(profile: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Running]:
    """One daemon for all tours over the network."""
    data = tmp_path_factory.mktemp(profile) / "data"
    async with running_daemon(data, agent=scripted("--profile", profile)) as running:
        yield running


def check_first(first: Connection) -> None:
    """A new session, a turn with a permission, and a turn that is cancelled."""
    assert first.answers("initialize")[0]["protocolVersion"] == first.version
    opening, work = first.split(first.place("session/new"))
    assert not opening.updates(), "the answer to session/new comes before everything of that session"
    asked = [each for each in work.received if each.get("method") == "session/request_permission"]
    assert len(asked) == 1
    assert first.stop_reasons() == ["end_turn", "cancelled"]
    assert first.said() == "selected allow_oncedonewaiting"
    turn, _ = first.split(first.place("session/prompt"))
    if first.version == 1:
        assert turn.said() == "selected allow_oncedone", "the answer stands behind all of its turn"
    else:
        states = [each["state"] for each in first.updates() if each["sessionUpdate"] == "state_update"]
        assert states == ["running", "requires_action", "running", "idle", "running", "idle"]
        assert first.answers("session/prompt")[0]["messageId"], "the answer says which message it became"


def check_second(second: Connection) -> None:
    """The history, and one turn more."""
    history, rest = second.split(second.place("session/load" if second.version == 1 else "session/resume"))
    assert history.said() == "selected allow_oncedonewaiting"
    assert rest.said() == "againagain"
    assert rest.stop_reasons()[-1] == "end_turn"


def check(connections: list[Connection]) -> None:
    """Everything that the tour is to show."""
    first, second = connections
    check_first(first)
    check_second(second)
    for each in connections:
        assert each.handled == len(each.updates()), "the SDK has taken every update"
        seen = check_frames(each.version, each.frames).seen
        assert {"initialize answered", "session/update", "session/prompt answered"} <= seen


@pytest.mark.requirement("R3", "R7", "R9", "R22", "R25", "R32", "R35", "R36", "R37", "R70", "G6", "G8", "G11")
@pytest.mark.parametrize("transport", ["http", "websocket"])
async def test_an_official_client_works_through_the_daemon_as_with_its_own_agent(
    client: OfficialClient, transport: str, daemon: Running
) -> None:
    url = f"{daemon.url}/acp"
    if transport == "websocket":
        url = url.replace("http", "ws", 1)
    cwd = str(daemon.daemon.roots[0])
    check(await client.tour(transport, url=url, token=daemon.token, cwd=cwd))


@pytest.mark.requirement("R3", "R7", "R9", "R22", "R25", "R32", "R35", "R36", "R37", "G6", "G11")
async def test_an_official_client_works_through_a_pipe_as_with_its_own_agent(
    client: OfficialClient, profile: str, tmp_path: Path
) -> None:
    command = stdio_command(tmp_path / "data", scripted("--profile", profile))
    check(await client.tour("stdio", command=command, cwd=str(tmp_path)))
