"""The list of sessions reports the state of each, valid up to an event, and a stream continues from there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.server.reading import MARKERS, open_session, reading
from tests.server.seats import Seat, answer, seated
from tests.support.daemons import SCRIPTED, running_daemon

from turnwire.limits import Limits
from turnwire.session import events as ev

pytestmark = pytest.mark.anyio

QUIET: dict[str, Any] = {
    "state": "idle",
    "permissionCount": 0,
    "queuedCount": 0,
    "backgroundCount": 0,
    "runningChildCount": 0,
    "suspectedComplete": False,
}


async def listed(seat: Seat) -> dict[str, Any]:
    [entry] = answer(await seat.client.get("/session"), 200)["sessions"]
    return entry


def badges(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: entry[name] for name in (*QUIET, "queueHeld", "agentGone") if name in entry}


async def test_a_session_in_the_list_says_what_it_does_and_needs(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        assert badges(await listed(seat)) == QUIET
        await seat.run("say 1 word")
        assert badges(await listed(seat)) == QUIET
        asking = await seat.prompt("ask t1 allow,reject")
        await seat.until(ev.TurnBlocked, asking["promptId"])
        for _ in range(2):
            await seat.prompt("say 1 later")
        busy = await listed(seat)
        assert badges(busy) == QUIET | {"state": "requires_action", "permissionCount": 1, "queuedCount": 2}
        assert (busy["hasActivePrompt"], busy["isWaitingForPermission"]) == (True, True)
        assert busy["activePromptId"] == asking["promptId"]
        node = seat.running.daemon.node
        head = await node.head(seat.session_id)
        assert (busy["lastEventId"], busy["eventEpoch"]) == (head.head, head.epoch)
        await seat.client.delete("/session/s1")
        assert badges(await listed(seat)) == QUIET | {"state": "closed"}


async def test_a_session_says_who_named_it_and_what_its_agent_calls_it_then(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        await seat.run("title One")
        names = ("title", "named", "agentTitle")
        assert [(await listed(seat)).get(each) for each in names] == ["One", None, None]
        answer(await seat.client.patch("/session/s1", json={"title": "Mine"}), 200)
        await seat.run("title Two")
        assert [(await listed(seat)).get(each) for each in names] == ["Mine", True, "Two"]


async def test_a_session_whose_agent_died_says_so_until_another_has_come(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        await seat.run("exit 3")
        await seat.until(ev.AgentExited)
        assert (await listed(seat))["agentGone"] == "agent_exited"
    async with seated(tmp_path / "d", "s1") as seat:
        assert (await listed(seat))["agentGone"] == "agent_exited", "the log knows it, and nobody has opened it"
        await seat.run("say 1 again")
        assert "agentGone" not in await listed(seat)


async def test_a_turn_that_seems_to_be_over_is_suspected_and_not_ended(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1", limits=Limits(suspect_after_s=1.0)) as seat:
        accepted = await seat.prompt("say 1 word\nnever")
        await seat.until(ev.SessionUpdated, accepted["promptId"])
        session = await seat.running.daemon.node.session(seat.session_id)
        session.busy_at -= 60
        assert badges(await listed(seat)) == QUIET | {"state": "running", "suspectedComplete": True}


async def test_children_and_background_work_are_counted(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1", agent=(*SCRIPTED, "--profile", "v2")) as seat:
        await seat.run("child c1 say 1 hello")
        assert badges(await listed(seat)) == QUIET | {"runningChildCount": 1}
        work = (
            '{"sessionUpdate":"state_update","state":"idle","background":[{"type":"terminal","terminalId":"t1"}]}'
        )
        await seat.run(f"child-rests c1\nafter update {work}")
        await seat.until(ev.SessionUpdated, text="terminalId")
        assert badges(await listed(seat)) == QUIET | {"backgroundCount": 1}


@pytest.mark.guarantee("G9")
async def test_a_list_and_a_stream_that_was_opened_before_it_are_the_whole(tmp_path: Path) -> None:
    """The steps of a page: open the stream, list page by page, and drop events that an entry already includes."""
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        names = [await open_session(running, f"s{number}") for number in range(5)]
        seats = [Seat(running, client, each) for each in names]
        async with reading(client, "/events") as stream:
            for each in seats:
                await each.prompt("flood 300 20")
            entries: dict[str, Any] = {}
            cursor = ""
            while True:
                page = answer(await client.get(f"/session?size=2{cursor}"), 200)
                entries |= {each["sessionId"]: each for each in page["sessions"]}
                if "nextCursor" not in page:
                    break
                cursor = f"&cursor={page['nextCursor']}"
            late = Seat(running, client, await open_session(running, "late"))
            await late.run("say 3 word")
            ends: dict[str, int] = {}
            for each in (*seats, late):
                await each.until(ev.TurnCompleted)
                ends[each.session_id] = (await running.daemon.node.head(each.session_id)).head
            begins: dict[str, int] = {each: entries[each]["lastEventId"] if each in entries else 0 for each in ends}
            news: dict[str, list[int]] = {each: [] for each in ends}
            started: dict[str, bool] = {each: entries[each]["hasActivePrompt"] for each in names}
            while any(begins[each] + len(news[each]) < end for each, end in ends.items()):
                seen = await stream.next()
                if (
                    seen.type in MARKERS
                    or "id" not in seen.envelope
                    or seen.offset <= begins[seen.data["sessionId"]]
                ):
                    continue
                news[seen.data["sessionId"]].append(seen.offset)
                if seen.type == "state_changed" and seen.data["sessionId"] in started:
                    assert not started[seen.data["sessionId"]], "the entry has the turn that begins after it"
                    started[seen.data["sessionId"]] = True
                if seen.type == "turn_complete" and seen.data["sessionId"] in started:
                    assert started[seen.data["sessionId"]]
                    started[seen.data["sessionId"]] = False
        for each, got in news.items():
            assert got == list(range(begins[each] + 1, ends[each] + 1))
        assert not any(started.values())
