"""The status of a session: clients, the turn, open requests and the last failure, including after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.server.seats import answer, seated
from tests.support.daemons import SCRIPTED, running_daemon

from turnwire.session import events as ev

pytestmark = pytest.mark.anyio


async def test_an_idle_session_has_nothing_to_tell(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        await seat.run("say 1 fine")
        status = await seat.get("status")
        assert status["sessionId"] == "s1"
        assert status["state"] == "idle"
        assert (status["clientCount"], status["attended"]) == (0, False)
        assert (status["hasActivePrompt"], status["isWaitingForPermission"]) == (False, False)
        assert (status["pendingInteractions"], status["hasTurnError"]) == ([], False)
        assert "turnError" not in status
        assert status["updatedAt"] >= status["createdAt"]


@pytest.mark.parametrize("profile", ["v1", "v2"])
async def test_an_open_question_is_shown_until_it_is_answered(tmp_path: Path, profile: str) -> None:
    agent = (*SCRIPTED, "--profile", profile)
    async with seated(tmp_path / "d", "s1", agent=agent) as seat:
        accepted = await seat.prompt("ask edit allow_once,reject_once")
        asked = await seat.until(ev.PermissionRequested)
        status = await seat.get("status")
        assert (status["state"], status["hasActivePrompt"]) == ("requires_action", True)
        assert status["isWaitingForPermission"] is True
        (question,) = status["pendingInteractions"]
        assert question["requestId"] == asked.request_id
        assert (question["kind"], question["promptId"]) == ("permission", accepted["promptId"])
        assert question["action"]["title"]
        assert [each["optionId"] for each in question["options"]] == ["allow_once", "reject_once"]
        outcome = {"outcome": {"outcome": "selected", "optionId": "allow_once"}}
        await seat.post(f"permissions/{asked.request_id}", outcome)
        await seat.end(accepted["promptId"])
        assert (await seat.get("status"))["pendingInteractions"] == []


async def test_a_form_is_a_question_too(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        await seat.prompt("elicit 'What is it called?'")
        await seat.until(ev.PermissionRequested)
        (question,) = (await seat.get("status"))["pendingInteractions"]
        assert question["kind"] == "user_question"
        assert question["method"] == "elicitation/create"
        assert question["options"] == []


async def test_the_last_failure_is_told_also_after_a_restart(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        failed = await seat.run("error -32000 broken")
        status = await seat.get("status")
        assert status["hasTurnError"] is True
        assert status["turnError"]["code"] == "agent_error"
        assert status["turnError"]["promptId"] == failed.prompt_id
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        assert answer(await client.get("/session/s1/status"), 200)["turnError"] == status["turnError"]
        await client.delete("/session/s1")
        assert answer(await client.get("/session/s1/status"), 200)["state"] == "closed"
        assert answer(await client.get("/session/nobody/status"), 404)["code"] == "session_not_found"


async def test_a_turn_that_goes_well_clears_the_failure(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        await seat.run("error -32000 broken")
        assert (await seat.get("status"))["hasTurnError"] is True
        await seat.run("say 1 fine")
        status = await seat.get("status")
        assert (status["hasTurnError"], "turnError" in status) == (False, False)
