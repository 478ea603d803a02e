"""Accepted is accepted: one key is one prompt with one end, and a deadline holds, including over a restart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.server.seats import blocks, seated
from tests.support.driving import check_ends, of

from turnwire.errors import LogUnavailable
from turnwire.ids import SessionId
from turnwire.runtime.session import Readable
from turnwire.session import events as ev
from turnwire.session.inputs import Prompt
from turnwire.session.queue import Accepted

pytestmark = [pytest.mark.anyio, pytest.mark.every_log]


@pytest.mark.guarantee("G7")
async def test_the_same_key_is_one_prompt_and_another_body_is_refused(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat:
        key = {"Idempotency-Key": "k" * 255}
        content = {"type": "text", "text": "say 1 once"}
        body = {"prompt": [content], "_meta": {"a": 1, "b": 2}}
        first = await seat.post("prompt", body, 202, **key)
        await seat.end(first["promptId"])
        same = {"_meta": {"b": 2, "a": 1, "traceparent": "00-1"}, "prompt": [dict(reversed(content.items()))]}
        again = await seat.post("prompt", same, 202, **key)
        assert (again["promptId"], again["lastEventId"]) == (first["promptId"], first["lastEventId"])
        for other in ({"prompt": blocks("say 1 other")}, body | {"whenBusy": "reject"}, body | {"_meta": {"a": 2}}):
            problem = await seat.post("prompt", other, 409, **key)
            assert (problem["code"], problem["promptId"]) == ("idempotency_conflict", first["promptId"])
        for wrong in ("k" * 256, ""):
            await seat.post("prompt", body, 400, **{"Idempotency-Key": wrong})
        assert len(of(await seat.events(), ev.PromptAccepted)) == 1


@pytest.mark.guarantee("G7", "G3")
async def test_an_accepted_prompt_is_one_prompt_with_one_end_over_a_restart(tmp_path: Path) -> None:
    keys = [{"Idempotency-Key": f"k{n}"} for n in range(3)]
    bodies = [{"prompt": blocks(text)} for text in ("say 1 done", "never", "say 1 waited")]
    async with seated(tmp_path / "d", "s1") as seat:
        before = [await seat.post("prompt", body, 202, **key) for body, key in zip(bodies, keys, strict=True)]
        await seat.until(ev.TurnStarted, before[1]["promptId"])
    async with seated(tmp_path / "d", "s1") as seat:
        after = [await seat.post("prompt", body, 202, **key) for body, key in zip(bodies, keys, strict=True)]
        for one, other in zip(before, after, strict=True):
            assert (one["promptId"], one["lastEventId"]) == (other["promptId"], other["lastEventId"])
            assert one["eventEpoch"] == other["eventEpoch"]
        await seat.end(before[2]["promptId"])
        events = await seat.events()
        check_ends(events)
        assert len(of(events, ev.PromptAccepted)) == 3
        [failed] = of(events, ev.TurnFailed)
        assert (failed.prompt_id, failed.code) == (before[1]["promptId"], "daemon_restarted")
        assert (await seat.get(f"turns/{before[2]['promptId']}"))["resultText"] == "waited"


@pytest.mark.guarantee("G7")
async def test_accepted_prompt_runs_although_its_caller_got_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with seated(tmp_path / "d") as seat:
        node = seat.running.daemon.node
        accept, peek = node.accept, node.peek

        async def accept_then_fail(session_id: SessionId, prompt: Prompt) -> tuple[Accepted, Callable[[], None]]:
            accepted = await accept(session_id, prompt)
            monkeypatch.setattr(node, "peek", fail_once)
            return accepted

        async def fail_once(_: SessionId) -> Readable:
            monkeypatch.setattr(node, "peek", peek)
            raise LogUnavailable("the disk is gone")

        monkeypatch.setattr(node, "accept", accept_then_fail)
        await seat.prompt("say 1 done", 503)
        accepted = await seat.until(ev.PromptAccepted)
        assert isinstance(await seat.end(accepted.prompt_id), ev.TurnCompleted)


# -- deadlines -----------------------------------------------------------------------------------------------


async def test_a_turn_that_has_not_ended_by_its_deadline_is_cancelled(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat:
        running = await seat.prompt("never", deadlineMs=150)
        waiting = await seat.prompt("say 1 a", deadlineMs=60_000)
        end = await seat.end(running["promptId"])
        assert isinstance(end, ev.TurnCompleted)
        assert (end.stop_reason, end.cancelled_by) == ("cancelled", "deadline")
        other = await seat.end(waiting["promptId"])
        assert isinstance(other, ev.TurnCompleted)
        assert other.stop_reason == "end_turn"


async def test_a_prompt_that_still_waits_at_its_deadline_never_starts_also_after_a_restart(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        await seat.prompt("never")
        waiting = await seat.prompt("say 1 a", deadlineMs=100)
        kept = await seat.prompt("never")
        late = await seat.prompt("say 1 b", deadlineMs=3000)
        end = await seat.end(waiting["promptId"])
        assert isinstance(end, ev.TurnCompleted)
        assert (end.ending, end.cancelled_by) == (ev.Ending.REMOVED, "deadline")
    async with seated(tmp_path / "d", "s1") as seat:
        await seat.until(ev.TurnStarted, kept["promptId"])
        end = await seat.end(late["promptId"])
        assert isinstance(end, ev.TurnCompleted)
        assert (end.ending, end.cancelled_by) == (ev.Ending.REMOVED, "deadline")
        assert late["promptId"] not in {each.prompt_id for each in of(await seat.events(), ev.TurnStarted)}
