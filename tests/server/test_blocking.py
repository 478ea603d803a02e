"""Answers that wait for the end of the turn: only on request, bounded, and independent of the client's
connection.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx
import pytest
from anyio.lowlevel import checkpoint
from tests.server.reading import WAIT_S
from tests.server.seats import Seat, answer, blocks, seated
from tests.support.daemons import TOKEN
from tests.support.driving import of

from turnwire.limits import Limits
from turnwire.session import events as ev

pytestmark = pytest.mark.anyio


async def ask(seat: Seat, text: str, *, query: str = "", **headers: str) -> httpx.Response:
    return await seat.client.post(seat.path(f"prompt{query}"), json={"prompt": blocks(text)}, headers=headers)


@pytest.mark.parametrize(
    ("query", "prefer"),
    [("", "wait=20"), ("", 'respond-async;x=1, Wait="20" ;y'), ("", "wait"), ("?wait=true", ""), ("?wait=20", "")],
)
async def test_whoever_asks_for_it_is_answered_with_the_end(tmp_path: Path, query: str, prefer: str) -> None:
    async with seated(tmp_path / "d", log="memory") as seat:
        headers = {"Prefer": prefer} if prefer else {}
        done = await ask(seat, "say 2 word\nstop max_tokens", query=query, **headers)
        body = answer(done, 200)
        assert body["stopReason"] == "max_tokens"
        assert done.headers.get("preference-applied") == ("wait" if prefer else None)
        events = await seat.events()
        [end] = of(events, ev.TurnCompleted)
        assert end.prompt_id == body["promptId"]
        assert isinstance(events[body["lastEventId"]], ev.PromptAccepted), "what follows is the turn"


async def test_without_being_asked_nobody_waits(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [
        ("", ""),
        ("", "wait=0"),
        ("", "wait=soon"),
        ("", "return=minimal"),
        ("?wait=false", "wait=5"),
        ("?wait=0", ""),
    ]
    async with seated(tmp_path / "d", log="memory") as seat:
        for query, prefer in cases:
            with subtests.test(repr((query, prefer))):
                response = await ask(seat, "never", query=query, **({"Prefer": prefer} if prefer else {}))
                answer(response, 202)
                assert "preference-applied" not in response.headers


async def test_a_wait_that_is_no_time_is_refused(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", log="memory") as seat:
        for wrong in ("?wait=soon", "?wait=-1", "?wait=1.5", "?wait="):
            assert answer(await ask(seat, "a", query=wrong), 400)["code"] == "bad_request"
        assert of(await seat.events(), ev.PromptAccepted) == []


async def test_a_turn_that_fails_is_a_problem_with_the_code_of_its_end(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", as_process=True) as seat:
        problem = answer(await ask(seat, "say 1 so\nexit 3", query="?wait=true"), 502)
        assert (problem["code"], problem["reason"], problem["exitCode"]) == ("turn_failed", "agent_exited", 3)
        [failed] = of(await seat.events(), ev.TurnFailed)
        assert problem["promptId"] == failed.prompt_id


@pytest.mark.guarantee("G7")
async def test_when_the_time_is_over_the_answer_is_the_usual_one_and_the_turn_goes_on(tmp_path: Path) -> None:
    gate, limits = tmp_path / "gate", Limits(blocking_s=0.2)
    async with seated(tmp_path / "d", limits=limits) as seat:
        waited = await ask(seat, f"gate {gate}\nsay 1 done", Prefer="wait=60")
        receipt = answer(waited, 202)
        assert waited.headers["preference-applied"] == "wait"
        assert (await seat.get("prompt-status"))["state"] == "running"
        gate.touch()
        assert isinstance(await seat.end(receipt["promptId"]), ev.TurnCompleted)


@pytest.mark.parametrize("off", [{"blocking": False}, {"limits": Limits(blocking_s=0)}])
async def test_it_can_be_turned_off_and_then_nobody_waits(tmp_path: Path, off: dict[str, Any]) -> None:
    async with seated(tmp_path / "d", **off) as seat:
        for query, headers in (("?wait=true", {}), ("", {"Prefer": "wait=5"}), ("", {})):
            response = await ask(seat, "never", query=query, **headers)
            answer(response, 202)
            assert "preference-applied" not in response.headers
        assert len(of(await seat.events(), ev.PromptAccepted)) == 3


@pytest.mark.guarantee("G8")
async def test_a_client_that_leaves_while_it_waits_neither_stops_the_turn_nor_leaves_a_waiter(
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    async with seated(tmp_path / "d") as seat:
        body = json.dumps({"prompt": blocks(f"gate {gate}\nsay 1 done")}).encode()
        address = urlsplit(seat.running.url)
        head = [
            f"POST {seat.path('prompt?wait=true')} HTTP/1.1",
            f"Host: {address.netloc}",
            f"Authorization: Bearer {TOKEN}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        ]
        _, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write("\r\n".join([*head, "", ""]).encode() + body)
        sent = await seat.until(ev.PromptSent)
        assert _has_waiters()
        writer.transport.abort()
        with anyio.fail_after(WAIT_S):
            while _has_waiters():
                await checkpoint()
        gate.touch()
        end = await seat.end(sent.prompt_id)
        assert isinstance(end, ev.TurnCompleted)
        assert end.stop_reason == "end_turn"


def _has_waiters() -> bool:
    """Return True if a request waits for the end of a turn."""
    return any("give_up_after" in each.get_name() for each in asyncio.all_tasks() if not each.done())


async def test_a_daemon_that_stops_lets_waiting_clients_go_with_the_usual_answer(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat:
        with anyio.fail_after(WAIT_S):
            async with anyio.create_task_group() as tasks:

                async def stop() -> None:
                    await seat.until(ev.PromptSent)
                    seat.running.daemon.stopping.set()

                tasks.start_soon(stop)
                receipt = answer(await ask(seat, "never", query="?wait=true"), 202)
                [accepted] = of(await seat.events(), ev.PromptAccepted)
                assert receipt["promptId"] == accepted.prompt_id


@pytest.mark.guarantee("G7")
async def test_a_repeat_that_waits_hears_the_end_of_the_first_one(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat:
        key = {"Idempotency-Key": "k1"}
        first = answer(await ask(seat, "say 1 done\nstop refusal", **key), 202)
        await seat.end(first["promptId"])
        again = answer(await ask(seat, "say 1 done\nstop refusal", query="?wait=true", **key), 200)
        assert (again["promptId"], again["stopReason"]) == (first["promptId"], "refusal")
