"""The queue over HTTP: any client can view, edit, move, remove and hold queued prompts, and it survives a
restart.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.server.seats import Seat, blocks, seated
from tests.support.driving import check_ends, of

from turnwire.session import events as ev

pytestmark = [pytest.mark.anyio, pytest.mark.every_log]


async def texts(seat: Seat) -> list[str]:
    prompts: list[dict[str, Any]] = (await seat.get("queue"))["prompts"]
    assert [each["position"] for each in prompts] == list(range(len(prompts)))
    return [each["text"] for each in prompts]


async def busy(seat: Seat, *waiting: str) -> tuple[str, list[str]]:
    """Start a turn that never ends, and queue prompts after it."""
    running = (await seat.prompt("never"))["promptId"]
    return running, [(await seat.prompt(each))["promptId"] for each in waiting]


async def test_what_waits_is_listed_edited_moved_and_removed_by_anybody(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat, seat.running.client() as other_client:
        other = seat._replace(client=other_client)
        running, (first, second, third) = await busy(seat, "say 1 a", "say 1 b", "say 1 c")
        [entry, *_] = (await other.get("queue"))["prompts"]
        assert entry["queuedAt"] > 0
        del entry["queuedAt"]
        assert entry == {
            "promptId": first,
            "content": blocks("say 1 a"),
            "text": "say 1 a",
            "position": 0,
            "author": "owner",
        }
        moved = await other.patch(f"queue/{third}", {"position": 0})
        assert (moved["promptId"], moved["position"], moved["text"]) == (third, 0, "say 1 c")
        edited = await other.patch(f"queue/{second}", {"prompt": blocks("say 1 new"), "position": 99})
        assert (edited["position"], edited["content"], edited["text"]) == (2, blocks("say 1 new"), "say 1 new")
        assert await texts(seat) == ["say 1 c", "say 1 a", "say 1 new"]
        assert await other.delete(f"queue/{first}") == {"removed": True}
        removed = await seat.end(first)
        assert isinstance(removed, ev.TurnCompleted)
        assert (removed.stop_reason, removed.cancelled_by) == ("cancelled", "owner")
        await seat.post("cancel", {"promptId": running}, 204)
        await seat.end(second)
        assert await texts(seat) == []
        started = [each.prompt_id for each in of(await seat.events(), ev.TurnStarted)]
        assert started == [running, third, second]
        assert (await seat.get(f"turns/{second}"))["resultText"] == "new"
        check_ends(await seat.events())


async def test_what_does_not_wait_is_not_changed(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat:
        running, [waiting] = await busy(seat, "say 1 a")
        for change in ({"position": 0}, {"content": blocks("b")}):
            assert (await seat.patch(f"queue/{running}", change, 409))["code"] == "prompt_not_queued"
            assert (await seat.patch("queue/p_none", change, 404))["code"] == "prompt_not_found"
        assert (await seat.delete(f"queue/{running}", 409))["code"] == "prompt_not_queued"
        assert (await seat.delete("queue/p_none", 404))["code"] == "prompt_not_found"
        wrong: list[dict[str, Any]] = [{}, {"position": -1}, {"content": []}, {"content": "b"}]
        for body in (*wrong, {"prompt": [{"type": "hologram"}]}):
            await seat.patch(f"queue/{waiting}", body, 400)
        assert of(await seat.events(), ev.PromptUpdated) == []
        assert await texts(seat) == ["say 1 a"]


async def test_a_held_queue_starts_nothing_until_it_is_released(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat:
        held = await seat.patch("queue", {"held": True})
        assert held == {"prompts": [], "held": True, "heldReason": "asked"}
        waiting = await seat.prompt("say 1 a")
        assert waiting["queued"] is True
        assert await texts(seat) == ["say 1 a"]
        assert (await seat.get("turns/current"))["state"] == "queued"
        assert (await seat.patch("queue", {"held": False}))["held"] is False
        assert isinstance(await seat.end(waiting["promptId"]), ev.TurnCompleted)
        [released] = of(await seat.events(), ev.QueueReleased)
        assert released.author == "owner"
        await seat.patch("queue", {}, 400)


async def test_pending_prompts_are_the_running_one_and_those_that_wait(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat:
        assert await seat.get("pending-prompts") == {"pendingPrompts": []}
        client_id = await seat.attach()
        header = {"X-Qwen-Client-Id": client_id}
        running = (await seat.post("prompt", {"prompt": blocks("never")}, 202, **header))["promptId"]
        waiting = (await seat.prompt("say 1 a"))["promptId"]
        pending = (await seat.get("pending-prompts"))["pendingPrompts"]
        assert all(each.pop("queuedAt") > 0 for each in pending)
        assert pending == [
            {"promptId": running, "text": "never", "state": "running", "originatorClientId": client_id},
            {"promptId": waiting, "text": "say 1 a", "state": "queued"},
        ]
        assert await seat.delete(f"pending-prompts/{running}") == {"removed": False}
        assert await seat.delete("pending-prompts/p_none") == {"removed": False}
        assert await seat.delete(f"pending-prompts/{waiting}") == {"removed": True}
        assert await seat.delete(f"pending-prompts/{waiting}") == {"removed": False}
        removed = await seat.end(waiting)
        assert isinstance(removed, ev.TurnCompleted)
        assert removed.stop_reason == "cancelled"


@pytest.mark.guarantee("G7")
async def test_the_queue_is_kept_over_a_restart_with_its_order_and_its_edits(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        _, (first, second, third) = await busy(seat, "say 1 a", "say 1 b", "say 1 c")
        await seat.patch(f"queue/{third}", {"position": 0, "content": blocks("say 1 edited")})
        await seat.patch("queue", {"held": True})
    async with seated(tmp_path / "d", "s1") as seat:
        assert await texts(seat) == ["say 1 edited", "say 1 a", "say 1 b"]
        assert (await seat.get("queue"))["held"] is True, "who held it lets it go"
        await seat.patch("queue", {"held": False})
        await seat.end(second)
        started = [each.prompt_id for each in of(await seat.events(), ev.TurnStarted)]
        assert started[1:] == [third, first, second]
        check_ends(await seat.events())
