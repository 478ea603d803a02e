"""The status of a prompt, for clients without a stream."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from tests.server.reading import WAIT_S
from tests.server.seats import Seat, seated

from turnwire.limits import Limits
from turnwire.session import events as ev

pytestmark = pytest.mark.anyio


async def test_the_status_tells_state_and_stop_reason_without_any_subscriber(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with seated(tmp_path / "d") as seat:
        assert (await seat.get("prompt-status", 404))["code"] == "prompt_not_found"
        assert (await seat.get("prompt-status?promptId=p_none", 404))["code"] == "prompt_not_found"
        first = await seat.prompt(f"gate {gate}\nask t1 yes,no")
        second = await seat.prompt("say 1 so\nexit 3")
        assert await _state(seat, second["promptId"]) == ("queued", None)
        assert (await seat.get("prompt-status"))["promptId"] == first["promptId"]
        assert await _state(seat, first["promptId"]) == ("running", None)
        gate.touch()
        asked = await seat.until(ev.PermissionRequested)
        status = await seat.get("prompt-status")
        assert status["state"] == "requires_action"
        assert "a permission request waits for an answer" in status["reasons"]
        await seat.post(f"permissions/{asked.request_id}", {"outcome": {"outcome": "cancelled"}})
        await seat.end(first["promptId"])
        assert await _state(seat, first["promptId"]) == ("completed", "end_turn")
        await seat.end(second["promptId"])
        failed = await seat.get("prompt-status")
        assert (failed["promptId"], failed["state"]) == (second["promptId"], "error")
        assert failed["error"]["code"] == "agent_exited"
        assert failed["queuedAt"] <= failed["startedAt"] <= failed["endedAt"]
        assert failed["lastEventId"] == (await seat.running.daemon.node.head(seat.session_id)).head


@pytest.mark.guarantee("G5")
async def test_the_status_of_a_turn_that_is_silent_shows_the_suspicion_and_the_turn_goes_on(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", limits=Limits(suspect_after_s=0.1)) as seat:
        running = await seat.prompt("say 1 done\nnever")
        await seat.until(ev.SessionUpdated, running["promptId"], "done")
        with anyio.fail_after(WAIT_S):
            while not (status := await seat.get("prompt-status")).get("suspectedComplete"):
                pass
        assert status["state"] == "running"
        assert any("nothing has happened" in each for each in status["reasons"])
        await seat.post("cancel", status=204)
        await seat.end(running["promptId"])
        assert await _state(seat, running["promptId"]) == ("cancelled", "cancelled")


async def _state(seat: Seat, prompt_id: str) -> tuple[str, str | None]:
    status = await seat.get(f"prompt-status?promptId={prompt_id}")
    assert status["promptId"] == prompt_id
    return status["state"], status.get("stopReason")
