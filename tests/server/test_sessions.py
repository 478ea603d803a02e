"""Creating, listing, viewing, renaming and closing sessions over HTTP, with a real agent."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import httpx
import pytest
from tests.server.reading import after, is_end, reading, types
from tests.server.seats import answer, blocks, seated
from tests.support.daemons import SCRIPTED, Running, running_daemon
from tests.support.driving import events_of, of

import turnwire
from turnwire.errors import AgentLaunchFailed
from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.server.access.tokens import Role
from turnwire.server.daemon.creation import workspace_id
from turnwire.session import events as ev
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

CREATED = {
    *("sessionId", "workspaceCwd", "agent", "attached", "clientId", "createdAt", "hasActivePrompt"),
    *("lastEventId", "eventEpoch", "state"),
}


async def token(running: Running, role: Role, session_id: str | None = None) -> dict[str, str]:
    """The header of a credential with that role."""
    _, secret = await running.daemon.tokens.issue(
        f"{role.value}-test", role, None if session_id is None else SessionId(session_id), None
    )
    return {"Authorization": f"Bearer {secret}"}


# -- create --------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G6")
async def test_a_new_session_is_answered_with_its_agent_there_and_its_early_words_in_the_log(
    tmp_path: Path,
) -> None:
    agent = (*SCRIPTED, "--before", "commands plan,review", "--inside", "usage 1 200")
    async with (
        running_daemon(tmp_path / "d", agent=agent) as running,
        running.client() as client,
    ):
        told = answer(await client.post("/session", json={"title": "First"}), 200)
        assert set(told) == CREATED
        assert told["workspaceCwd"] == str(tmp_path)
        assert told["attached"] is False
        assert told["hasActivePrompt"] is False
        assert told["createdAt"].endswith("Z")
        assert told["state"]["modes"]["currentModeId"] == "ask"
        assert [each["id"] for each in told["state"]["configOptions"]] == ["mode", "model"]
        session_id = SessionId(told["sessionId"])
        kinds = [type(each) for each in await events_of(running.daemon.log, session_id)]
        assert kinds[:2] == [ev.SessionCreated, ev.AgentStarted]
        assert told["eventEpoch"] == (await running.daemon.node.head(session_id)).epoch
        async with reading(client, f"/session/{session_id}/events", **after(0)) as reader:
            seen = await reader.until(lambda each: each.type == "replay_complete")
        updates = [each.data["update"]["sessionUpdate"] for each in seen if each.type == "session_update"]
        assert updates[:2] == ["available_commands_update", "usage_update"], "none of the early words is lost"


async def test_the_author_of_a_session_is_whoever_holds_the_credential(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        headers = await token(running, Role.CONTROLLER)
        told = answer(await client.post("/session", json={"author": "mallory"}, headers=headers), 200)
        created = (await events_of(running.daemon.log, SessionId(told["sessionId"])))[0]
        assert isinstance(created, ev.SessionCreated)
        assert created.author == "controller-test"


async def test_a_session_gets_the_id_and_the_servers_that_were_asked_for(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        server: dict[str, Any] = {"name": "x", "command": "/bin/true", "args": [], "env": []}
        body: dict[str, Any] = {"sessionId": "my.own_id-1", "mcpServers": [server]}
        assert answer(await client.post("/session", json=body), 200)["sessionId"] == "my.own_id-1"
        assert answer(await client.post("/session", json=body), 409)["code"] == "session_id_conflict"
        state = (await running.daemon.node.session(SessionId("my.own_id-1"))).state
        assert b'"command":"/bin/true"' in bytes(state.setup.mcp_servers)


async def test_what_is_not_as_documented_creates_nothing(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases: list[object] = [
        {"sessionId": "a/b"},
        {"sessionId": ""},
        {"sessionId": "x" * 129},
        {"sessionId": ".."},
        {"sessionId": "mine.1"},
        {"sessionId": "ok\n"},
        {"cwd": "relative"},
        {"cwd": 3},
        {"mcpServers": {"name": "x"}},
        {"mcpServers": ["x"]},
        {"title": "x" * 257},
        {"title": "two\nlines"},
        {"sessionScope": "all"},
        [],
    ]
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        for body in cases:
            with subtests.test(repr(body)):
                assert (await client.post("/session", json=body)).status_code == 400
                assert await running.daemon.log.sessions() == []


async def test_a_directory_outside_the_roots_is_refused(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        assert answer(await client.post("/session", json={"cwd": "/etc"}), 403)["code"] == "forbidden"
        assert (await client.post("/session", json={"cwd": str(tmp_path / "missing")})).status_code == 400
        inside = tmp_path / "inside"
        inside.mkdir()
        told = answer(await client.post("/session", json={"cwd": str(inside)}), 200)
        assert told["workspaceCwd"] == str(inside)
        assert len(await running.daemon.log.sessions()) == 1


async def test_an_agent_that_wants_a_login_is_heard_and_leaves_no_session(tmp_path: Path) -> None:
    agent = (*SCRIPTED, "--auth-required")
    async with running_daemon(tmp_path / "d", agent=agent) as running, running.client() as client:
        refused = answer(await client.post("/session", json={}), 424)
        assert refused["code"] == "auth_required"
        assert await running.daemon.log.sessions() == []


async def test_an_agent_that_cannot_start_is_heard_and_leaves_no_session(tmp_path: Path) -> None:
    missing = (str(tmp_path / "no-such-agent"),)
    async with running_daemon(tmp_path / "d", agent=missing) as running, running.client() as client:
        assert answer(await client.post("/session", json={}), 502)["code"] == "agent_launch_failed"
        assert await running.daemon.log.sessions() == []


NO_SEAT = {"code": -32050, "message": "no seat left", "data": {"retryInS": 7}}
REFUSING = f"""
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    first = asked["method"] == "initialize"
    said = {{"result": {{"protocolVersion": 1, "agentCapabilities": {{}}}}}} if first else {{"error": {NO_SEAT!r}}}
    print(json.dumps({{"jsonrpc": "2.0", "id": asked["id"], **said}}), flush=True)
"""


async def test_what_an_agent_says_that_refuses_a_session_is_told_as_it_said_it(tmp_path: Path) -> None:
    agent = (sys.executable, "-c", REFUSING)
    async with running_daemon(tmp_path / "d", agent=agent) as running, running.client() as client:
        refused = answer(await client.post("/session", json={}), 502)
        assert (refused["code"], refused["agentError"]) == ("agent_launch_failed", NO_SEAT)
        async with turnwire.connect(running.url, token=running.token) as sdk:
            with pytest.raises(AgentLaunchFailed) as caught:
                await sdk.new_session(str(tmp_path))
    assert caught.value.agent_error is not None
    assert json.loads(caught.value.agent_error) == NO_SEAT


async def test_a_slow_agent_holds_nobody_up(tmp_path: Path) -> None:
    silent = (sys.executable, "-c", "import sys; sys.stdin.read()")
    limits = Limits(opening_s=0.1)
    async with running_daemon(tmp_path / "d", agent=silent, limits=limits) as running, running.client() as client:
        with anyio.fail_after(WAIT_S):
            told = answer(await client.post("/session", json={}), 200)
            at_once = answer(await client.post("/session?wait=false", json={}), 200)
        assert told["state"] == {}
        assert {each.session_id for each in await running.daemon.log.sessions()} == {
            told["sessionId"],
            at_once["sessionId"],
        }


async def test_single_scope_enters_the_newest_open_session_of_the_directory(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        single = {"sessionScope": "single"}
        first = answer(await client.post("/session", json=single), 200)
        elsewhere = answer(await client.post("/session", json=single | {"cwd": str(other)}), 200)
        assert first["sessionId"] != elsewhere["sessionId"]
        again = answer(await client.post("/session", json=single), 200)
        assert (again["sessionId"], again["attached"]) == (first["sessionId"], True)
        assert again["clientId"] != first["clientId"]
        answer(await client.delete(f"/session/{first['sessionId']}"), 204)
        fresh = answer(await client.post("/session", json=single), 200)
        assert (fresh["sessionId"] != first["sessionId"], fresh["attached"]) == (True, False)
        found: list[str] = []

        async def create() -> None:
            found.append(answer(await client.post("/session", json=single), 200)["sessionId"])

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(create)
        assert set(found) == {fresh["sessionId"]}, "tabs that come at once share one"
        assert running.daemon.node.loaded


async def test_too_many_sessions_are_refused_with_when_to_come_back(tmp_path: Path) -> None:
    async with (
        running_daemon(tmp_path / "d", limits=Limits(loaded_sessions=1)) as running,
        running.client() as client,
    ):
        answer(await client.post("/session", json={}), 200)
        refused = await client.post("/session", json={})
        assert answer(refused, 503)["code"] == "session_limit_exceeded"
        assert refused.headers["retry-after"]


async def test_a_mode_can_be_chosen_at_creation(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        told = answer(await client.post("/session", json={"approvalMode": "code"}), 200)
        assert told["state"]["modes"]["currentModeId"] == "code"
        refused = answer(await client.post("/session", json={"approvalMode": "yolo"}), 400)
        assert (refused["code"], refused["allowed"]) == ("invalid_approval_mode", ["ask", "code"])
        assert len(await running.daemon.log.sessions()) == 1


# -- list and show -------------------------------------------------------------------------------------------


async def test_sessions_are_listed_page_by_page_each_once(tmp_path: Path) -> None:
    limits = Limits(opening_s=0)
    async with running_daemon(tmp_path / "d", limits=limits) as running, running.client() as client:
        made = sorted([answer(await client.post("/session", json={}), 200)["sessionId"] for _ in range(7)])
        listed: list[str] = []
        query: dict[str, str | int] = {"size": 3}
        while True:
            page = answer(await client.get("/session", params=query), 200)
            listed += [each["sessionId"] for each in page["sessions"]]
            if "nextCursor" not in page:
                break
            query["cursor"] = page["nextCursor"]
        assert listed == made
        assert len(running.daemon.node.loaded) == 7


async def test_an_entry_says_what_a_session_is_and_does(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        await seat.run("title 'Named by the agent'")
        entry = answer(await seat.client.get("/session"), 200)["sessions"][0]
        assert entry["title"] == entry["displayName"] == "Named by the agent"
        assert entry["workspaceCwd"] == entry["cwd"] == str(tmp_path)
        assert (entry["state"], entry["hasActivePrompt"], entry["closed"]) == ("idle", False, False)
        assert entry["updatedAt"] >= entry["createdAt"]
        await seat.attach()
        await seat.prompt("never")
        await seat.until(ev.PromptSent)
        entry = answer(await seat.client.get("/session?state=running"), 200)["sessions"][0]
        assert (entry["hasActivePrompt"], entry["clientCount"]) == (True, 1)
        assert answer(await seat.client.get("/session?state=closed"), 200)["sessions"] == []
        listed = answer(await seat.client.get("/session?state=open"), 200)["sessions"]
        # The agent may have spoken since, which moves the last event and its time and nothing else.
        moved = {"updatedAt": "", "lastEventId": 0}
        assert [each | moved for each in listed] == [entry | moved]
        assert (await seat.client.get("/session?state=odd")).status_code == 400
        assert (await seat.client.get("/session?size=0")).status_code == 400


async def test_a_list_survives_a_restart_and_loads_nothing(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        await seat.run("say 300 word")
        await seat.patch("metadata", {"displayName": "Kept"})
        before = answer(await seat.client.get("/session"), 200)["sessions"]
    assert before[0]["firstPrompt"] == "say 300 word"
    limits = Limits(snapshot_events=100)
    async with running_daemon(tmp_path / "d", limits=limits) as running, running.client() as client:
        for _ in range(2):
            # The first read stores a view of a session this long, and the second starts from it.
            assert answer(await client.get("/session"), 200)["sessions"] == before
        assert not running.daemon.node.loaded
        assert await running.daemon.log.load_snapshot(SessionId("s1"), "view") is not None
        answer(await client.patch("/session/s1", json={"title": "Newer"}), 200)
        entry = answer(await client.get("/session"), 200)["sessions"][0]
        assert entry["title"] == "Newer"


async def test_a_list_is_right_for_all_who_ask_at_once_and_for_an_id_that_is_used_again(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1", limits=Limits(page_events=16)) as seat:
        await seat.run("say 100 word\ntitle First")
        titles: list[str] = []

        async def look() -> None:
            titles.append(answer(await seat.client.get("/session"), 200)["sessions"][0]["title"])

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(look)
        assert titles == ["First"] * 8
        await seat.running.daemon.node.retain(seat.session_id, keep_events=0)
        await look()
        assert titles[-1] == "First", "also when every event is forgotten"
        answer(await seat.client.delete("/session/s1?purge=true"), 204)
        assert answer(await seat.client.get("/session"), 200)["sessions"] == []
        answer(await seat.client.post("/session", json={"sessionId": "s1", "title": "Second"}), 200)
        await look()
        assert titles[-1] == "Second"


async def test_the_sessions_of_a_workspace_are_found_by_its_path_and_by_its_id(tmp_path: Path) -> None:
    below = tmp_path / "below"
    below.mkdir()
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        for cwd in (tmp_path, below):
            answer(await client.post("/session", json={"cwd": str(cwd)}), 200)
        for name, expected in ((str(tmp_path), 2), (str(below), 1), (str(tmp_path / "none"), 0)):
            page = answer(await client.get(f"/workspace/{quote(name, safe='')}/sessions"), 200)
            assert len(page["sessions"]) == expected
        by_id = answer(await client.get(f"/workspace/{workspace_id(str(tmp_path))}/sessions?size=1"), 200)
        assert len(by_id["sessions"]) == 1
        assert by_id["nextCursor"]
        assert answer(await client.get("/workspace/nowhere/sessions"), 404)["code"] == "not_found"
        only = answer(await client.get("/session", params={"cwd": str(tmp_path)}), 200)["sessions"]
        assert [each["cwd"] for each in only] == [str(tmp_path)]
        assert len(running.daemon.node.loaded) == 2


async def test_a_session_shows_where_it_stands(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        first = await seat.prompt("never")
        await seat.until(ev.PromptSent)
        second = await seat.prompt("say 1 later")
        shown = answer(await seat.client.get("/session/s1"), 200)
        assert shown["state"] == "running"
        assert shown["activePromptId"] == first["promptId"]
        assert [each["promptId"] for each in shown["queue"]] == [second["promptId"]]
        assert shown["lastEventId"] == (await seat.running.daemon.node.head(seat.session_id)).head
        assert shown["mode"] == "ask"
        assert answer(await seat.client.get("/session/nobody"), 404)["code"] == "session_not_found"


# -- rename and close ----------------------------------------------------------------------------------------


async def test_a_session_is_renamed_for_everybody(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        async with reading(seat.client, "/session/s1/events") as reader:
            told = answer(await seat.client.patch("/session/s1", json={"title": " Mine "}), 200)
            assert told == {"sessionId": "s1", "title": "Mine", "displayName": "Mine"}
            event = (await reader.until(lambda each: each.type == "session_metadata_updated"))[-1]
            assert event.data["displayName"] == "Mine"
        assert (await seat.patch("metadata", {"displayName": None}))["displayName"] is None
        for body in ({}, {"title": "x" * 257}, {"title": "a\u0007b"}, {"displayName": "a\nb"}):
            assert (await seat.patch("metadata", body, 400))["code"] == "invalid_metadata"
        headers = {"Turnwire-Client-Id": "c_unknown"}
        refused = await seat.client.patch("/session/s1", json={"title": "x"}, headers=headers)
        assert answer(refused, 400)["code"] == "invalid_client_id"


async def listed(client: httpx.AsyncClient, **query: str) -> list[str]:
    return [each["sessionId"] for each in answer(await client.get("/session", params=query), 200)["sessions"]]


async def test_an_archived_session_is_out_of_lists_until_it_is_taken_back_or_prompted(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        client = seat.client
        answer(await client.post("/session", json={"sessionId": "s2"}), 200)
        async with reading(client, "/session/s1/events") as reader:
            for _ in range(2):
                answer(await client.post("/session/s1/archive"), 204)
            told = (await reader.until(lambda each: each.type == "session_archived"))[-1]
            assert told.data["author"] == "owner"
        assert len(of(await seat.events(), ev.SessionArchived)) == 1
        assert await listed(client) == ["s2"]
        assert await listed(client, archived="true") == ["s1"]
        assert await listed(client, archived="all") == ["s1", "s2"]
        shown = answer(await client.get("/session/s1"), 200)
        assert (shown["archived"], shown["state"]) == (True, "idle")
        in_folder = answer(await client.get(f"/workspace/{quote(str(tmp_path), safe='')}/sessions"), 200)
        assert [each["sessionId"] for each in in_folder["sessions"]] == ["s2"]
        answer(await client.post("/session/s1/unarchive"), 204)
        assert await listed(client) == ["s1", "s2"]

        answer(await client.post("/session/s1/archive"), 204)
        await seat.run("say 1 word")
        assert await listed(client) == ["s1", "s2"]
        assert [type(each) for each in await seat.events()].count(ev.SessionUnarchived) == 2
        observer = await token(seat.running, Role.OBSERVER)
        for what in ("archive", "unarchive"):
            assert (await client.post(f"/session/s1/{what}", headers=observer)).status_code == 403
            assert (await client.post(f"/session/nobody/{what}")).status_code == 404
        assert (await client.get("/session", params={"archived": "maybe"})).status_code == 400


async def test_an_archived_session_stays_so_over_a_restart_and_a_closed_one_can_be_archived(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        await seat.run("say 300 word")
        answer(await seat.client.post("/session/s1/archive"), 204)
        answer(await seat.client.post("/session", json={"sessionId": "s2"}), 200)
        answer(await seat.client.delete("/session/s2"), 204)
        answer(await seat.client.post("/session/s2/archive"), 204)
        answer(await seat.client.post("/session", json={"sessionId": "s3"}), 200)
    limits = Limits(snapshot_events=100)
    async with running_daemon(tmp_path / "d", limits=limits) as running, running.client() as client:
        for _ in range(2):
            # The second read starts from the view that the first has stored.
            assert await listed(client) == ["s3"]
            assert await listed(client, archived="true") == ["s1", "s2"]
        entered = answer(await client.post("/session", json={"sessionScope": "single"}), 200)
        assert entered["sessionId"] == "s3"
        answer(await client.post("/session/s1/unarchive"), 204)
        assert await listed(client) == ["s1", "s3"]


async def test_sessions_are_found_by_words_of_title_and_directory(tmp_path: Path) -> None:
    (tmp_path / "Parser").mkdir()
    async with seated(tmp_path / "d", "s1") as seat:
        client = seat.client
        await seat.run("title Größe of a cache")
        for name, body in {"s2": {"title": "Fix the Parser bug"}, "s3": {"cwd": str(tmp_path / "Parser")}}.items():
            answer(await client.post("/session", json={"sessionId": name, **body}), 200)
        assert await listed(client, search="parser") == ["s2", "s3"]
        assert await listed(client, search="  BUG   parser ") == ["s2"]
        assert await listed(client, search="GRÖSSE") == ["s1"]
        assert await listed(client, search="parser cache") == []
        assert await listed(client, search=" ") == ["s1", "s2", "s3"]
        answer(await client.patch("/session/s1", json={"title": "Mine"}), 200)
        assert await listed(client, search="grösse") == [], "it was said in other letters"
        answer(await client.post("/session/s2/archive"), 204)
        assert await listed(client, search="parser") == ["s3"]
        assert await listed(client, search="parser", archived="all") == ["s2", "s3"]
        assert (await client.get("/session", params={"search": "x" * 257})).status_code == 400


@pytest.mark.guarantee("G3")
async def test_closing_ends_the_turn_and_the_streams(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        accepted = await seat.prompt("never")
        async with reading(seat.client, "/session/s1/events", **after(0)) as reader:
            answer(await seat.client.delete("/session/s1"), 204)
            seen = await reader.to_the_end()
        assert [each.data["promptId"] for each in seen if is_end(each)] == [accepted["promptId"]]
        assert types(seen)[-1] == "session_closed"
        answer(await seat.client.delete("/session/s1"), 204)
        assert answer(await seat.client.get("/session/s1"), 200)["state"] == "closed"
        assert (await seat.client.post("/session/s1/prompt", json={"prompt": blocks("x")})).status_code == 410
        assert len(of(await seat.events(), ev.SessionClosed)) == 1
        assert (await seat.client.delete("/session/nobody")).status_code == 404


async def test_only_the_owner_removes_a_log(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        controller = await token(seat.running, Role.CONTROLLER)
        refused = await seat.client.delete("/session/s1?purge=true", headers=controller)
        assert answer(refused, 403)["code"] == "forbidden"
        answer(await seat.client.delete("/session/s1?purge=true"), 204)
        assert answer(await seat.client.get("/session/s1"), 404)["code"] == "session_not_found"
        assert await seat.running.daemon.log.sessions() == []


@pytest.mark.guarantee("G13")
async def test_a_token_for_one_session_sees_no_other_and_makes_none(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        answer(await seat.client.post("/session", json={"sessionId": "s2"}), 200)
        scoped = await token(seat.running, Role.CONTROLLER, "s1")
        async with httpx.AsyncClient(base_url=seat.running.url, headers=scoped) as guest:
            listed = answer(await guest.get("/session"), 200)["sessions"]
            assert [each["sessionId"] for each in listed] == ["s1"]
            assert (await guest.get("/session/s2")).status_code == 403
            assert (await guest.post("/session", json={})).status_code == 403
            assert (await guest.post("/session/s1/fork", json={})).status_code == 403
        observer = await token(seat.running, Role.OBSERVER)
        assert (await seat.client.post("/session", json={}, headers=observer)).status_code == 403
        assert (await seat.client.delete("/session/s1", headers=observer)).status_code == 403
        assert (await seat.client.get("/session", headers=observer)).status_code == 200
