"""A part of a session's log as JSON: the envelopes of the stream, bounded, and a number to continue with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.server.reading import MARKERS, after, reading
from tests.server.seats import Seat, answer, seated
from tests.support.daemons import SCRIPTED

from turnwire.ids import SessionId
from turnwire.limits import KiB, Limits
from turnwire.server.access.tokens import Role
from turnwire.session import events as ev

pytestmark = pytest.mark.anyio

TALK = "say 30 word\ntool t1 edit Change\nplan one,two\nask t2 allow,reject"


async def parts(seat: Seat, limit: int, more: str = "") -> list[dict[str, Any]]:
    """All of the log, part by part."""
    found = [await seat.get(f"log?limit={limit}{more}")]
    while found[-1]["nextAfter"] < found[-1]["lastEventId"]:
        found.append(await seat.get(f"log?limit={limit}&after={found[-1]['nextAfter']}{more}"))
    return found


def envelopes(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for part in found for each in part["events"]]


@pytest.mark.parametrize("profile", ["v1", "v2"])
@pytest.mark.parametrize("shape", ["1", "2", "agent"])
async def test_parts_of_any_size_are_together_what_the_stream_shows(
    tmp_path: Path, profile: str, shape: str
) -> None:
    async with seated(tmp_path / "d", "s1", agent=(*SCRIPTED, "--profile", profile)) as seat:
        accepted = await seat.prompt(TALK)
        await seat.until(ev.TurnBlocked, accepted["promptId"])
        async with reading(seat.client, seat.path(f"events?acp={shape}"), **after(0)) as reader:
            seen = await reader.until(lambda each: each.type == "replay_complete")
        streamed = [each.envelope for each in seen if each.type not in MARKERS]
        for limit in (1, 7, 1000):
            found = await parts(seat, limit, f"&acp={shape}")
            assert envelopes(found) == streamed
            assert all(len([each for each in part["events"] if "id" in each]) <= limit for part in found)


@pytest.mark.every_log
async def test_parts_read_while_a_turn_goes_on_have_every_event_once(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        accepted = await seat.prompt("flood 3000 20")
        found = await parts(seat, 250)
        await seat.end(accepted["promptId"])
        while found[-1]["nextAfter"] < (head := (await seat.running.daemon.node.head(SessionId("s1"))).head):
            found.append(await seat.get(f"log?after={found[-1]['nextAfter']}"))
        assert [each["id"] for each in envelopes(found) if "id" in each] == list(range(1, head + 1))


async def test_a_part_is_bounded_in_bytes_and_has_one_event_at_least(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1", limits=Limits(page_bytes=16 * KiB)) as seat:
        await seat.run("flood 5 40000\nflood 200 400")
        found = await parts(seat, 1000)
        assert all(part["events"] for part in found)
        assert all(len(json.dumps(part["events"])) < 128 * KiB for part in found)
        assert len(found) > 5


@pytest.mark.every_log
async def test_a_cursor_that_cannot_be_honoured_is_told_as_in_the_stream(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        await seat.run("say 20 word")
        first = await seat.running.daemon.node.retain(seat.session_id, keep_events=5)
        cases = {
            "after=1": ("ring_evicted", "trimmed"),
            "after=999": ("epoch_reset", "ahead"),
            "after=3&epoch=other": ("epoch_reset", "epoch"),
        }
        for query, (reason, detail) in cases.items():
            told = await seat.get(f"log?{query}")
            async with reading(seat.client, seat.path(f"events?{query}")) as reader:
                assert told["events"][0] == (await reader.next()).envelope
            assert (told["events"][0]["data"]["reason"], told["events"][0]["data"]["detail"]) == (reason, detail)
            assert [each["id"] for each in told["events"][1:]] == list(range(first, first + 5))


async def test_the_log_is_for_those_who_may_see_the_stream(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        tokens = seat.running.daemon.tokens
        for session_id, status in ((None, 200), (SessionId("s1"), 200), (SessionId("other"), 403)):
            _, secret = await tokens.issue("eve", Role.OBSERVER, session_id, None)
            for path in ("log", "export"):
                shown = await seat.client.get(seat.path(path), headers={"Authorization": f"Bearer {secret}"})
                assert shown.status_code == status
        shown = await seat.client.get(seat.path("log"), headers={"Authorization": "Bearer nobody"})
        assert shown.status_code == 401
        for odd in ("after=x", "after=-1", "limit=0", "limit=1001"):
            assert (await seat.get(f"log?{odd}", 400))["code"] == "bad_request"
        assert answer(await seat.client.get("/session/nobody/log"), 404)["code"] == "session_not_found"
        await seat.client.delete("/session/s1")
        assert (await seat.get("log"))["events"][-1]["type"] == "session_closed"
