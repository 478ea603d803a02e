"""Returning to a session and forking one: the updates of load and resume, and the contents of a fork."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.server.reading import after, reading
from tests.server.seats import Seat, answer, seated
from tests.support.daemons import SCRIPTED, running_daemon
from tests.support.driving import events_of

from turnwire.ids import SessionId
from turnwire.limits import KiB, Limits
from turnwire.server.readers import history
from turnwire.session import events as ev

pytestmark = [pytest.mark.anyio, pytest.mark.every_log]


def texts(envelopes: list[dict[str, Any]], kind: str = "agent_message_chunk") -> str:
    """Return the text of one kind in a history, joined."""
    updates = [each["data"]["update"] for each in envelopes if each["type"] == "session_update"]
    return "".join(each["content"]["text"] for each in updates if each["sessionUpdate"] == kind)


async def told_by_the_stream(seat: Seat) -> list[dict[str, Any]]:
    async with reading(seat.client, seat.path("events"), **after(0)) as reader:
        seen = await reader.until(lambda each: each.type == "replay_complete")
    return [each.envelope for each in seen[:-1]]


async def test_resume_attaches_a_client_and_tells_where_to_go_on(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        done = await seat.run("say 2 word")
        told = await seat.post("resume", {"cwd": "/ignored"})
        assert told["attached"] is True
        assert told["workspaceCwd"] == str(tmp_path)
        assert told["state"]["modes"]["currentModeId"] == "ask"
        assert told["lastEventId"] == (await seat.running.daemon.node.head(seat.session_id)).head
        assert told["eventEpoch"] == (await seat.running.daemon.node.head(seat.session_id)).epoch
        assert [each["promptId"] for each in told["promptTerminals"]] == [done.prompt_id]
        assert "compactedReplay" not in told
        known = (await seat.running.daemon.node.session(seat.session_id)).state.clients
        assert told["clientId"] in known
        again = await seat.client.post(seat.path("resume"))
        assert answer(again, 200)["clientId"] != told["clientId"], "no body is needed"


async def test_the_terminals_say_how_each_turn_ended(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        fine = await seat.run("say 1 fine")
        failed = await seat.run("error -32000 broken")
        stopped = (await seat.prompt("never"))["promptId"]
        await seat.until(ev.PromptSent, stopped)
        await seat.post("cancel", {}, 204)
        await seat.end(stopped)
        left_open = (await seat.prompt("never"))["promptId"]
        await seat.until(ev.PromptSent, left_open)
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        told = answer(await client.post("/session/s1/load", json={}), 200)["promptTerminals"]
    assert {each["promptId"]: each["terminal"] for each in told} == {
        fine.prompt_id: "completed",
        failed.prompt_id: "error",
        stopped: "cancelled",
        left_open: "interrupted",
    }
    assert all(each["v"] == 1 and each["at"] > 0 for each in told)
    assert [each.get("stopReason") for each in told] == ["end_turn", None, "cancelled", None]
    assert [each.get("code") for each in told] == [None, "agent_error", None, "daemon_restarted"]


async def test_load_tells_the_whole_history_as_the_stream_does(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        await seat.run("say 3 'word '")
        told = await seat.post("load")
        assert told["compactedReplay"] == []
        stream = await told_by_the_stream(seat)
        assert told["liveJournal"] == [each for each in stream if each["id"] <= told["lastEventId"]]
        assert told["liveJournal"][-1]["id"] == told["lastEventId"]


@pytest.mark.parametrize("snapshot_events", [100, 10_000])
async def test_a_long_history_is_told_in_short_and_then_event_by_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot_events: int
) -> None:
    monkeypatch.setattr(history, "JOURNAL_EVENTS", 40)
    limits = Limits(snapshot_events=snapshot_events)
    async with seated(tmp_path / "d", "s1", limits=limits) as seat:
        for turn in range(4):
            await seat.run(f"say 30 'a{turn} '\ntool t{turn} read Look")
            await seat.get("transcript")
        told = await seat.post("load")
        compacted, journal = told["compactedReplay"], told["liveJournal"]
        assert len(journal) == 40
        assert [each["id"] for each in journal] == list(range(told["lastEventId"] - 39, told["lastEventId"] + 1))
        assert 0 < len(compacted) < 40
        assert all("id" not in each and each["v"] == 1 for each in compacted)
        whole = await told_by_the_stream(seat)
        assert texts(compacted) + texts(journal) == texts(whole), "together they are the whole history"
        asked = texts(compacted, "user_message_chunk") + texts(journal, "user_message_chunk")
        assert asked == texts(whole, "user_message_chunk")
        calls = [each["data"]["update"] for each in compacted if "toolCallId" in each["data"]["update"]]
        assert [each["toolCallId"] for each in calls] == ["t0", "t1", "t2"]
        assert all(each["status"] == "completed" for each in calls)
        assert all(each["promptId"] for each in compacted)


async def test_a_journal_of_large_events_stays_small(tmp_path: Path) -> None:
    limits = Limits(ring_bytes=64 * KiB)
    async with seated(tmp_path / "d", "s1", limits=limits) as seat:
        await seat.run("flood 20 10000")
        told = await seat.post("load")
        assert len(told["liveJournal"]) < 10
        whole = await told_by_the_stream(seat)
        assert texts(told["compactedReplay"]) + texts(told["liveJournal"]) == texts(whole)


async def test_a_trimmed_session_is_loaded_from_what_its_events_folded_to(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        await seat.run("say 5 'early '")
        await seat.running.daemon.node.retain(seat.session_id, keep_events=2)
        await seat.run("say 2 'late '")
        told = await seat.post("load")
        words = texts(told["compactedReplay"]) + texts(told["liveJournal"])
        assert words.count("early") == 5
        assert words.count("late") == 2


async def test_a_closed_session_is_gone_and_an_unknown_one_was_never_there(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        await seat.client.delete("/session/s1")
        for route in ("load", "resume", "fork"):
            assert (await seat.post(route, None, 410))["code"] == "session_closed"
            missing = await seat.client.post(f"/session/nobody/{route}", json={})
            assert answer(missing, 404)["code"] == "session_not_found"


async def test_a_daemon_that_stops_takes_nobody_back(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        seat.running.daemon.stopping.set()
        for route in ("load", "resume", "fork"):
            assert (await seat.post(route, None, 503))["code"] == "shutting_down"


async def test_a_fork_goes_on_from_its_parent_at_the_agent(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        await seat.run("say 1 first")
        told = await seat.post("fork", {"title": "Second", "sessionId": "s2"})
        assert (told["sessionId"], told["attached"]) == ("s2", False)
        assert told["workspaceCwd"] == str(tmp_path)
        created, started = (await events_of(seat.running.daemon.log, SessionId("s2")))[:2]
        assert isinstance(created, ev.SessionCreated)
        assert (created.fork_of, created.title) == ("s1", "Second")
        assert isinstance(started, ev.AgentStarted)
        assert started.how == "fork"
        assert (await seat.post("fork", {"sessionId": "s2"}, 409))["code"] == "session_id_conflict"
        assert (await seat.post("fork", {"cwd": "/etc"}, 403))["code"] == "forbidden"


async def test_a_session_that_no_agent_has_had_cannot_be_forked(tmp_path: Path) -> None:
    async with (
        running_daemon(tmp_path / "d", agent=(*SCRIPTED, "--auth-required")) as running,
        running.client() as client,
    ):
        told = answer(await client.post("/session?wait=false", json={}), 200)
        refused = answer(await client.post(f"/session/{told['sessionId']}/fork", json={}), 409)
        assert refused["code"] == "not_legal_now"
