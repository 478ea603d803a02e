"""Turns over HTTP: their prompts, results and ends, including after a restart or a close."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.server.seats import answer, seated
from tests.support.daemons import SCRIPTED

from turnwire.session import events as ev
from turnwire.session.inputs import Close

pytestmark = pytest.mark.anyio


async def test_a_turn_tells_what_was_asked_and_what_came_of_it(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat:
        asked = (await seat.prompt("tool t1\nsay 2 word", promptRequestId="7"))["promptId"]
        await seat.end(asked)
        turn = await seat.get(f"turns/{asked}")
        assert turn["queuedAt"] <= turn["startedAt"] <= turn["endedAt"]
        times = {"queuedAt", "startedAt", "endedAt"}
        assert {name: value for name, value in turn.items() if name not in times} == {
            "sessionId": seat.session_id,
            "promptId": asked,
            "state": "completed",
            "detailState": "completed",
            "stopReason": "end_turn",
            "promptText": "tool t1\nsay 2 word",
            "resultText": "wordword",
            "origin": "client",
            "author": "owner",
            "promptRequestId": "7",
        }


async def test_the_current_turn_is_the_running_one_with_the_states_that_older_clients_know(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat:
        idle = {"sessionId": seat.session_id, "promptId": None, "state": "idle"}
        assert await seat.get("turns/current") == idle
        first = (await seat.prompt("ask t1 yes,no"))["promptId"]
        second = (await seat.prompt("say 1 a"))["promptId"]
        asked = await seat.until(ev.PermissionRequested)
        current = await seat.get("turns/current")
        assert (current["promptId"], current["state"], current["detailState"]) == (
            first,
            "running",
            "requires_action",
        )
        waiting = await seat.get(f"turns/{second}")
        assert (waiting["state"], waiting["promptText"]) == ("queued", "say 1 a")
        assert "resultText" not in waiting
        await seat.patch("queue", {"held": True})
        await seat.post(f"permissions/{asked.request_id}", {"outcome": {"outcome": "selected", "optionId": "no"}})
        await seat.end(first)
        assert (await seat.get("turns/current"))["promptId"] == second
        await seat.patch("queue", {"held": False})
        await seat.end(second)
        assert await seat.get("turns/current") == idle


async def test_a_turn_of_the_agents_own_is_listed_with_its_origin(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", agent=(*SCRIPTED, "--profile", "v2")) as seat:
        await seat.prompt("say 1 mine\nagent-turn 2")
        own = await seat.until(ev.TurnStarted, text='"origin":"agent"')
        await seat.end(own.prompt_id)
        turn = await seat.get(f"turns/{own.prompt_id}")
        assert (turn["origin"], turn["state"], turn["promptText"]) == ("agent", "completed", "")
        assert (await seat.get("pending-prompts"))["pendingPrompts"] == []


async def test_the_list_is_in_order_and_comes_in_pages(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat:
        asked = [(await seat.run(f"say 1 {number}")).prompt_id for number in range(5)]
        pages: list[list[str]] = []
        after = ""
        while True:
            page = await seat.get(f"turns?limit=2{after}")
            pages.append([each["promptId"] for each in page["turns"]])
            if "nextCursor" not in page:
                break
            after = f"&after={page['nextCursor']}"
        assert pages == [asked[:2], asked[2:4], asked[4:]]
        assert [each["resultText"] for each in (await seat.get("turns"))["turns"]] == list("01234")
        assert (await seat.get(f"turns?after={asked[-1]}")) == {"turns": []}
        assert (await seat.get("turns?after=p_none", 404))["code"] == "prompt_not_found"
        for wrong in ("limit=0", "limit=501", "limit=x"):
            await seat.get(f"turns?{wrong}", 400)


async def test_an_unknown_prompt_and_an_unknown_session_are_404(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", log="memory") as seat:
        assert (await seat.get("turns/p_none", 404))["code"] == "prompt_not_found"
        for path in (
            "turns",
            "turns/current",
            "turns/p1",
            "prompt-status",
            "queue",
            "pending-prompts",
            "permissions",
        ):
            unknown = await seat.client.get(f"/session/nobody/{path}")
            assert answer(unknown, 404)["code"] == "session_not_found"


@pytest.mark.guarantee("G3")
async def test_results_are_readable_after_a_restart_and_after_a_close(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1", as_process=True) as seat:
        done = (await seat.run("say 1 done")).prompt_id
        failed = (await seat.run("say 1 so\nstderr oops\nexit 4")).prompt_id
        await seat.prompt("never")
        waiting = (await seat.prompt("say 1 waited"))["promptId"]
        before = [await seat.get(f"turns/{each}") for each in (done, failed)]
    async with seated(tmp_path / "d", "s1") as seat:
        await seat.end(waiting)
        after = [await seat.get(f"turns/{each}") for each in (done, failed)]
        assert after == before
        assert after[1]["error"]["code"] == "agent_exited"
        assert after[1]["error"]["exitCode"] == 4
        turns = (await seat.get("turns"))["turns"]
        assert [each["state"] for each in turns] == ["completed", "error", "error", "completed"]
        assert turns[2]["error"]["code"] == "daemon_restarted"
        await seat.running.daemon.node.submit(seat.session_id, Close(at=1))
        assert (await seat.get("turns"))["turns"] == turns
        assert (await seat.get("prompt-status"))["state"] == "completed"
        assert (await seat.get("turns/current"))["state"] == "idle"
    async with seated(tmp_path / "d", "s1") as seat:
        assert (await seat.get("turns"))["turns"] == turns
        assert (await seat.get(f"turns/{waiting}"))["resultText"] == "waited"
