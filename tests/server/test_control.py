"""Cancelling, steering and settling over HTTP: by any client, harmless when late, and told as what it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from tests.patience import SOON_S
from tests.server.reading import VERSIONS, WAIT_S
from tests.server.seats import Seat, answer, blocks, seated
from tests.support.agents import HandSource
from tests.support.daemons import SCRIPTED, TOKEN
from tests.support.driving import check_ends, events_of, of

from turnwire.core import events as ev
from turnwire.limits import Limits
from turnwire.server.access.identity import Role
from turnwire.server.app import create_app
from turnwire.server.daemon import open_daemon
from turnwire.server.routes.control import ANSWER_S
from turnwire.server.settings.declared import Settings
from turnwire.testing import ManualClock
from turnwire.testing.patience import quiet
from turnwire.wire.jsonrpc import Notification, Request

pytestmark = pytest.mark.anyio

STEERABLE = (*SCRIPTED, "--steering")


@VERSIONS
@pytest.mark.requirement("G8")
async def test_another_client_cancels_and_the_end_says_who(tmp_path: Path, server: str, http2: bool) -> None:
    async with seated(tmp_path / "d", server=server, http2=http2) as seat:
        _, secret = seat.running.daemon.tokens.issue("bob", Role.CONTROLLER)
        asked = (await seat.prompt("say 1 so\nnever"))["promptId"]
        await seat.until(ev.SessionUpdated, asked)
        async with seat.running.client(headers={"Authorization": f"Bearer {secret}"}) as client:
            assert (await client.post(seat.path("cancel"))).status_code == 204
        end = await seat.end(asked)
        assert isinstance(end, ev.TurnCompleted)
        assert (end.stop_reason, end.cancelled_by) == ("cancelled", "bob")
        turn = await seat.get(f"turns/{asked}")
        assert (turn["state"], turn["cancelledBy"], turn["resultText"]) == ("cancelled", "bob", "so")


async def test_a_cancel_does_nothing_when_nothing_runs_or_what_it_names_is_over(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat:
        await seat.post("cancel", status=204)
        over = (await seat.run("say 1 a")).prompt_id
        running = (await seat.prompt("never"))["promptId"]
        for body in ({"promptId": over}, {"promptId": "p_none"}):
            await seat.post("cancel", body, 204)
        assert of(await seat.events(), ev.CancelAsked) == []
        waiting = (await seat.prompt("say 1 b"))["promptId"]
        await seat.post("cancel", {"promptId": waiting}, 204)
        removed = await seat.end(waiting)
        assert isinstance(removed, ev.TurnCompleted)
        assert removed.ending is ev.Ending.REMOVED
        assert (await seat.get("turns/current"))["promptId"] == running
        assert (await seat.client.post("/session/nobody/cancel")).status_code == 404
        await seat.post("cancel", {"promptId": 3}, 400)


async def test_a_cancel_keeps_the_queue(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat:
        await seat.prompt("never")
        waiting = (await seat.prompt("say 1 a"))["promptId"]
        await seat.post("cancel", status=204)
        end = await seat.end(waiting)
        assert isinstance(end, ev.TurnCompleted)
        assert end.stop_reason == "end_turn"


# -- steering ------------------------------------------------------------------------------------------------


async def steer(seat: Seat, text: str, **headers: str) -> dict[str, Any]:
    return await seat.post("steer", {"prompt": blocks(text)}, 202, **headers)


@VERSIONS
async def test_a_steering_prompt_goes_into_the_running_turn_and_ends_with_it(
    tmp_path: Path, server: str, http2: bool
) -> None:
    gate = tmp_path / "gate"
    async with seated(tmp_path / "d", server=server, http2=http2, agent=STEERABLE) as seat:
        host = (await seat.prompt(f"gate {gate}\nsay 1 done"))["promptId"]
        await seat.until(ev.PromptSent, host)
        steered = await steer(seat, "rather this", **{"Idempotency-Key": "k1"})
        assert steered["outcome"] == "injected"
        assert "queued" not in steered
        assert (await seat.get(f"turns/{steered['promptId']}"))["joinedInto"] == host
        gate.touch()
        end = await seat.end(steered["promptId"])
        assert isinstance(end, ev.TurnCompleted)
        assert end.ending is ev.Ending.JOINED
        check_ends(await seat.events())
        again = await steer(seat, "rather this", **{"Idempotency-Key": "k1"})
        assert (again["promptId"], again["outcome"]) == (steered["promptId"], "injected"), (
            "told again, not done again"
        )


async def test_a_steering_prompt_that_meets_no_turn_starts_one(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", agent=STEERABLE) as seat:
        started = await steer(seat, "say 1 a")
        assert started["outcome"] == "started"
        assert isinstance(await seat.end(started["promptId"]), ev.TurnCompleted)


async def test_with_an_agent_that_cannot_be_steered_the_prompt_goes_next(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat:
        await seat.prompt("never")
        await seat.prompt("say 1 waiting")
        with anyio.fail_after(SOON_S):
            steered = await steer(seat, "say 1 first")
        assert (steered["outcome"], steered["queued"]) == ("queued", True)
        assert [each["text"] for each in (await seat.get("queue"))["prompts"]] == ["say 1 first", "say 1 waiting"]


async def test_what_is_wrong_with_a_prompt_is_wrong_with_a_steering_one(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", limits=Limits(queue_length=1)) as seat:
        await seat.post("steer", {"prompt": []}, 400)
        await seat.prompt("never")
        await seat.prompt("never")
        assert (await seat.post("steer", {"prompt": blocks("a")}, 503))["code"] == "prompt_queue_full"


async def test_an_agent_that_does_not_say_whether_it_takes_a_prompt_is_not_waited_for_for_ever() -> None:
    settings = Settings(token=TOKEN, log="memory", cwd=(Path("/"),))
    source, clock = HandSource(), ManualClock()
    offers: dict[str, Any] = {"protocolVersion": 1, "agentCapabilities": {"_meta": {"turnwire": {"steering": {}}}}}
    async with open_daemon(settings, Limits(), source, clock=clock) as daemon:
        session_id = await daemon.node.create("/")
        agent = await source.agent()
        await agent.greet(offers)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        transport = httpx.ASGITransport(create_app(daemon))
        client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers)
        receipts: list[dict[str, Any]] = []
        asked: Request | Notification | None = None

        async def ask(route: str) -> None:
            body = {"prompt": blocks("a")}
            receipts.append(answer(await client.post(f"/session/{session_id}/{route}", json=body), 202))

        async with client, anyio.create_task_group() as tasks:
            with anyio.fail_after(WAIT_S):
                await ask("prompt")
                await agent.next("session/prompt")
                tasks.start_soon(ask, "steer")
                asked = await agent.next("_session/steering")
                await quiet()
                assert len(receipts) == 1
                clock.advance(ANSWER_S)
        assert isinstance(asked, Request)
        assert (receipts[1]["outcome"], receipts[1]["queued"]) == ("queued", True)
        agent.send({"id": asked.id, "result": {"outcome": "injected"}})
        await quiet()
        assert len(of(await events_of(daemon.log, session_id), ev.PromptInjected)) == 1, "late is not lost"


# -- settling ------------------------------------------------------------------------------------------------


@pytest.mark.requirement("G5")
async def test_a_person_settles_a_turn_that_its_agent_never_ends(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat:
        await seat.post("settle", {"promptId": "p_none"}, 404)
        await seat.post("settle", {}, 400)
        asked = (await seat.prompt("say 1 done\nnever"))["promptId"]
        await seat.until(ev.SessionUpdated, asked)
        for _ in range(2):
            await seat.post("settle", {"promptId": asked}, 204)
        with anyio.fail_after(WAIT_S):
            end = await seat.end(asked)
        assert isinstance(end, ev.TurnCompleted)
        assert (end.stop_reason, end.ending, end.settled_by) == ("end_turn", ev.Ending.SETTLED, "owner")
        assert (await seat.get(f"turns/{asked}"))["resultText"] == "done"
        check_ends(await seat.events())


@pytest.mark.requirement("G5")
@pytest.mark.parametrize("profile", ["v1", "v1plus", "v2"])
async def test_what_waits_behind_a_settled_turn_runs_once_its_agent_has_let_go(
    tmp_path: Path, profile: str
) -> None:
    async with seated(tmp_path / "d", agent=(*SCRIPTED, "--profile", profile)) as seat:
        asked = (await seat.prompt("on-cancel say 2 OLD\nsay 1 done\nnever"))["promptId"]
        waiting = [(await seat.prompt(f"say 1 {each}"))["promptId"] for each in "abc"]
        await seat.until(ev.SessionUpdated, asked)
        await seat.post("settle", {"promptId": asked}, 204)
        with anyio.fail_after(WAIT_S):
            ends = [await seat.end(each) for each in waiting]
        assert [isinstance(each, ev.TurnCompleted) and each.stop_reason for each in ends] == ["end_turn"] * 3
        texts = [(await seat.get(f"turns/{each}"))["resultText"] for each in (asked, *waiting)]
        assert texts == ["done", "a", "b", "c"], "what the agent still said of the settled turn is in no other"
        spoken = [each for each in of(await seat.events(), ev.SessionUpdated) if each.kind == "agent_message_chunk"]
        old = [each for each in spoken if b"OLD" in bytes(each.update)]
        assert {(each.prompt_id, each.after) for each in old} == {(None, asked)}
        await seat.post("settle", {"promptId": asked}, 204)
        check_ends(await seat.events())
