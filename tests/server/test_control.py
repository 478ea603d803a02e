"""Cancelling, steering and settling over HTTP: by any client, harmless when late, and reported accurately."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import httpx
import pytest
from tests.patience import SOON_S
from tests.server.reading import WAIT_S
from tests.server.seats import Seat, answer, blocks, seated
from tests.support.agents import HandAgent, HandSource
from tests.support.daemons import SCRIPTED, TOKEN
from tests.support.driving import check_ends, events_of, of

from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.server.access.tokens import Role
from turnwire.server.app import create_app
from turnwire.server.daemon import Daemon, open_daemon
from turnwire.server.daemon.prompts import STEER_ANSWER_S
from turnwire.server.settings.declared import Settings
from turnwire.session import events as ev
from turnwire.wire.jsonrpc import Request
from turnwire_testing import ManualClock
from turnwire_testing.patience import quiet

pytestmark = pytest.mark.anyio

STEERABLE = (*SCRIPTED, "--steering")


@pytest.mark.guarantee("G8")
async def test_another_client_cancels_and_the_end_says_who(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat:
        _, secret = await seat.running.daemon.tokens.issue("bob", Role.CONTROLLER)
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


async def test_a_steering_prompt_goes_into_the_running_turn_and_ends_with_it(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with seated(tmp_path / "d", agent=STEERABLE) as seat:
        host = (await seat.prompt(f"gate {gate}\nsay 1 done"))["promptId"]
        await seat.until(ev.PromptSent, host)
        steered = await steer(seat, "rather this", **{"Idempotency-Key": "k1"})
        assert steered["outcome"] == "injected"
        assert steered.keys().isdisjoint({"queued", "reason"})
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
        assert (started["outcome"], started["reason"]) == ("started", "no_turn")
        assert isinstance(await seat.end(started["promptId"]), ev.TurnCompleted)


async def test_with_an_agent_that_cannot_be_steered_the_prompt_goes_next(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat:
        await seat.prompt("never")
        await seat.prompt("say 1 waiting")
        with anyio.fail_after(SOON_S):
            steered = await steer(seat, "say 1 first")
        assert (steered["outcome"], steered["reason"], steered["queued"]) == ("queued", "not_offered", True)
        declined = await seat.until(ev.SteerDeclined, steered["promptId"])
        assert declined.reason == "not_offered"
        assert [each["text"] for each in (await seat.get("queue"))["prompts"]] == ["say 1 first", "say 1 waiting"]


async def test_a_prompt_that_is_to_be_steered_is_answered_with_what_is_known_at_once(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat:
        started = await seat.prompt("never", whenBusy="steer")
        assert (started["outcome"], started["reason"]) == ("started", "no_turn")
        await seat.until(ev.PromptSent, started["promptId"])
        queued = await seat.prompt("say 1 a", whenBusy="steer")
        assert (queued["outcome"], queued["reason"], queued["queued"]) == ("queued", "not_offered", True)
        plain = await seat.prompt("say 1 a")
        assert plain.keys().isdisjoint({"outcome", "reason"})
    async with seated(tmp_path / "e", agent=STEERABLE) as seat:
        host = (await seat.prompt("never"))["promptId"]
        await seat.until(ev.PromptSent, host)
        asked = await seat.prompt("rather this", whenBusy="steer")
        assert (asked["outcome"], asked["reason"]) == ("queued", "asked")
        assert (await seat.until(ev.PromptInjected, asked["promptId"])).into == host


async def test_what_is_wrong_with_a_prompt_is_wrong_with_a_steering_one(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", limits=Limits(queue_length=1)) as seat:
        await seat.post("steer", {"prompt": []}, 400)
        await seat.prompt("never")
        await seat.prompt("never")
        assert (await seat.post("steer", {"prompt": blocks("a")}, 503))["code"] == "prompt_queue_full"


class ByHand(NamedTuple):
    """A daemon whose agent offers steering and is played by the test."""

    daemon: Daemon
    session_id: SessionId
    agent: HandAgent
    client: httpx.AsyncClient
    receipts: list[dict[str, Any]]

    async def ask(self, route: str) -> None:
        body = {"prompt": blocks("a")}
        response = await self.client.post(f"/session/{self.session_id}/{route}", json=body)
        self.receipts.append(answer(response, 202))

    async def asked(self, method: str) -> Request:
        request = await self.agent.next(method)
        assert isinstance(request, Request)
        return request


@asynccontextmanager
async def steered_by_hand(clock: ManualClock | None = None) -> AsyncGenerator[ByHand]:
    settings = Settings(token=TOKEN, log="memory", cwd=(Path("/"),))
    source = HandSource()
    offers: dict[str, Any] = {"protocolVersion": 1, "agentCapabilities": {"_meta": {"turnwire": {"steering": {}}}}}
    async with open_daemon(settings, Limits(), source, clock=clock) as daemon:
        session_id = await daemon.node.create("/")
        agent = await source.agent()
        await agent.greet(offers)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        transport = httpx.ASGITransport(create_app(daemon))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client:
            with anyio.fail_after(WAIT_S):
                yield ByHand(daemon, session_id, agent, client, [])


async def test_an_agent_that_does_not_say_whether_it_takes_a_prompt_is_not_waited_for_for_ever() -> None:
    clock = ManualClock()
    async with steered_by_hand(clock) as play, anyio.create_task_group() as tasks:
        await play.ask("prompt")
        await play.asked("session/prompt")
        tasks.start_soon(play.ask, "steer")
        asked = await play.asked("_session/steering")
        await quiet()
        assert len(play.receipts) == 1
        clock.advance(STEER_ANSWER_S)
        await quiet()
        told = play.receipts[1]
        assert (told["outcome"], told["reason"], told["queued"]) == ("queued", "asked", True)
        play.agent.send({"id": asked.id, "result": {"outcome": "injected"}})
        await quiet()
        injected = of(await events_of(play.daemon.log, play.session_id), ev.PromptInjected)
        assert len(injected) == 1, "late is not lost"


@pytest.mark.parametrize("end", ["turn", "agent"])
async def test_a_steering_prompt_whose_turn_or_agent_goes_first_starts_its_own_and_says_why(end: str) -> None:
    async with steered_by_hand() as play:
        async with anyio.create_task_group() as tasks:
            await play.ask("prompt")
            prompted = await play.asked("session/prompt")
            tasks.start_soon(play.ask, "steer")
            asked = await play.asked("_session/steering")
            if end == "turn":
                play.agent.send({"id": prompted.id, "result": {"stopReason": "end_turn"}})
                play.agent.send({"id": asked.id, "result": {"outcome": "no_active_turn"}})
            else:
                await play.agent.link.aclose()
        reason = {"turn": "turn_ended", "agent": "agent_gone"}[end]
        assert (play.receipts[1]["outcome"], play.receipts[1]["reason"]) == ("started", reason)


# -- settling ------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G5")
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


@pytest.mark.guarantee("G5")
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
