"""A transcript in pages, the newest first: any page size gives the whole, even while a turn continues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.server.reading import after, reading
from tests.server.seats import Seat, answer, seated

from turnwire.limits import KiB, Limits
from turnwire.projections.envelope import read_envelope
from turnwire.projections.view import View
from turnwire.runtime import folds
from turnwire.server.access.tokens import Role
from turnwire.session import events as ev
from turnwire.session.codec import decode

pytestmark = pytest.mark.anyio

ITEMS = 5
"""Items of one conversation: the prompt, the agent's message, its thought, two tool calls."""


def talk(number: int = 0) -> str:
    said = ["say 3 'word '", "think hm", f"tool a{number} read Look", "say 2 'more '"]
    return "\n".join([*said, f"tool b{number} edit Change", "plan one,two", "usage 5 10", "say 1 over"])


async def pages(seat: Seat, size: int, rest: str = "transcript", more: str = "") -> list[dict[str, Any]]:
    """Every page, the newest first."""
    found = [await seat.get(f"{rest}?limit={size}{more}")]
    while "before" in found[-1]:
        found.append(await seat.get(f"{rest}?limit={size}&before={found[-1]['before']}{more}"))
    return found


def joined(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [item for page in reversed(found) for item in page["items"]]


@pytest.mark.parametrize("shape", ["1", "2", "agent"])
async def test_pages_of_any_size_are_together_the_whole_transcript(tmp_path: Path, shape: str) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        for number in range(3):
            await seat.run(talk(number))
        whole = await seat.get(f"transcript?acp={shape}")
        assert (whole["first"], "before" in whole, len(whole["items"])) == (0, False, 3 * ITEMS)
        for size in (1, 2, 3, 5, 8, 20, 21, 22, 1000):
            found = await pages(seat, size, more=f"&acp={shape}")
            assert joined(found) == whole["items"]
            assert [each["first"] for each in found] == [*range(3 * ITEMS - size, 0, -size), 0]
            assert {each["lastEventId"] for each in found} == {whole["lastEventId"]}
            turns = {each["promptId"]: each for page in found for each in page["turns"]}
            assert turns == {each["promptId"]: each for each in whole["turns"]}


async def test_a_page_has_only_what_belongs_to_its_items(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        first = await seat.run(talk())
        second = await seat.run("say 1 hello")
        running = await seat.prompt("never")
        await seat.until(ev.TurnStarted, running["promptId"])
        waiting = await seat.prompt("say 1 later")
        newest = await seat.get("transcript?limit=2")
        named = [each["promptId"] for each in newest["turns"]]
        assert named == [second.prompt_id, running["promptId"], waiting["promptId"]]
        assert newest["latest"]["usage"] == {"used": 5, "size": 10}
        oldest = await seat.get("transcript?limit=2&before=2")
        assert [each["promptId"] for each in oldest["turns"]] == [first.prompt_id]


async def test_items_say_who_said_them_and_which_events_they_are_made_of(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        done = await seat.run(talk())
        items = (await seat.get("transcript?limit=50"))["items"]
        events = await seat.events()
        assert (items[0]["author"], items[0]["isPrompt"]) == ("owner", True)
        assert {each["promptId"] for each in items} == {done.prompt_id}
        assert isinstance(events[items[0]["firstEventId"] - 1], ev.UserMessage)
        said: dict[str, int] = items[1]
        ends = [events[said[each] - 1] for each in ("firstEventId", "lastEventId")]
        pieces = [bytes(each.update) for each in ends if isinstance(each, ev.SessionUpdated)]
        assert [b"word " in each for each in pieces] == [True, False]
        assert [b"over" in each for each in pieces] == [False, True]
        starts = [each["firstEventId"] for each in items]
        assert starts == sorted(set(starts))
        assert all(each["firstEventId"] <= each["lastEventId"] <= len(events) for each in items)


async def test_late_words_are_on_the_page_of_their_item_and_marked(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        done = await seat.run("say 1 intime\nafter say 1 late")
        late = await seat.until(ev.SessionUpdated, text="late")
        assert late.after == done.prompt_id
        [item] = (await seat.get("transcript?limit=1"))["items"]
        assert item["after"] == done.prompt_id
        assert item["lastEventId"] == (await seat.running.daemon.node.head(seat.session_id)).head


async def test_cursors_hold_while_a_turn_goes_on_and_page_and_stream_are_the_whole(tmp_path: Path) -> None:
    """The newest page, the stream from its event on, and older pages read meanwhile are the transcript."""
    async with seated(tmp_path / "d", "s1") as seat:
        for number in range(5):
            await seat.run(talk(number))
        # The turn is open when its newest page is read, however quick its agent is.
        gate = tmp_path / "gate"
        accepted = await seat.prompt(f"flood 1000 20\ngate {gate}\nflood 1000 20\n{talk(5)}")
        await seat.until(ev.SessionUpdated, accepted["promptId"])
        newest = await seat.get("transcript?limit=4")
        older: list[dict[str, Any]] = []
        before = newest["before"]
        path = seat.path("events") + "?acp=agent"
        async with reading(seat.client, path, **after(newest["lastEventId"])) as reader:
            gate.touch()
            while before:
                older.append(await seat.get(f"transcript?limit=3&before={before}"))
                before = older[-1].get("before")
            seen = await reader.until(lambda each: each.type == "turn_complete")
        streamed = [each.offset for each in seen if each.id and each.type != "replay_complete"]
        assert streamed == list(range(newest["lastEventId"] + 1, streamed[-1] + 1))
        # The fold of the earlier events, and then of the stream, equals the daemon's view.
        lines = (await seat.client.get(seat.path("export"))).content.splitlines()
        view = View()
        for line in lines:
            _, event = read_envelope(line)
            assert event is not None
            view.apply(event)
            if view.offset == newest["lastEventId"]:
                items = len(view.items)
                assert items == newest["first"] + len(newest["items"])
        whole = (await seat.get("transcript"))["items"]
        assert [each.last_event_id for each in view.items] == [each["lastEventId"] for each in whole]
        assert joined(older) == whole[: newest["first"]]


async def test_the_newest_page_says_who_speaks_and_what_before_it_may_still_change(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        await seat.run("tool-open open\ntool done read Look\nsay 1 word")
        speaker = {"agentSessionId": (await seat.until(ev.AgentStarted)).agent_session_id, "life": 1}
        newest = await seat.get("transcript?limit=1")
        assert (newest["speaker"], newest["earlier"], "named" in newest) == (
            speaker,
            {"toolCalls": ["open"]},
            False,
        )
        whole, oldest = await seat.get("transcript"), await seat.get("transcript?limit=1&before=2")
        assert ("earlier" in whole, "earlier" in oldest) == (False, False)
        answer(await seat.client.patch("/session/s1", json={"title": "Mine"}), 200)
        assert (await seat.get("transcript?limit=1"))["named"] is True
        await seat.run("exit 3")
        await seat.run("say 1 back")
        after = await seat.get("transcript?limit=1")
        assert (after["speaker"]["life"], after["earlier"]) == (2, {}), "ids of an earlier life are found no more"


async def test_a_page_is_bounded_in_bytes_and_has_one_item_at_least(tmp_path: Path) -> None:
    limits = Limits(page_bytes=16 * KiB)
    async with seated(tmp_path / "d", "s1", limits=limits) as seat:
        for _ in range(6):
            await seat.run("flood 10 600")
        await seat.run("flood 100 600")
        whole = (await seat.get("transcript"))["items"]
        found = await pages(seat, 1000)
        assert joined(found) == whole
        assert len(found[0]["items"]) == 1, "larger than a page is meant to be"
        assert 1 < len(found[1]["items"]) < 12


async def test_pages_of_what_is_not_there_and_odd_sizes_are_answered(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        assert (await seat.get("transcript?limit=5"))["items"] == []
        await seat.run("say 1 word")
        assert len((await seat.get("transcript?limit=5&before=99"))["items"]) == 2
        assert (await seat.get("transcript?before=0"))["items"] == []
        for odd in ("limit=0", "limit=1001", "limit=x", "before=-1"):
            assert (await seat.get(f"transcript?{odd}", 400))["code"] == "bad_request"
        _, secret = await seat.running.daemon.tokens.issue("eve", Role.OBSERVER, None, None)
        headers = {"Authorization": f"Bearer {secret}"}
        shown = await seat.client.get(seat.path("transcript?limit=1"), headers=headers)
        assert len(answer(shown, 200)["items"]) == 1
        await seat.client.delete("/session/s1?purge=1")
        assert (await seat.get("transcript?limit=5", 404))["code"] == "session_not_found"


async def test_a_trimmed_session_still_has_all_its_pages(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        await seat.run(talk())
        whole = (await seat.get("transcript"))["items"]
        await seat.running.daemon.node.retain(seat.session_id, keep_events=5)
    async with seated(tmp_path / "d", "s1") as seat:
        assert joined(await pages(seat, 2)) == whole


async def test_the_next_page_of_a_session_folds_only_what_came_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        await seat.run("flood 1000 40")
        before = (await seat.get("transcript?limit=50"))["lastEventId"]
        folded: list[ev.AnyEvent] = []

        def counted(body: bytes) -> ev.AnyEvent:
            folded.append(decode(body))
            return folded[-1]

        monkeypatch.setattr(folds, "decode", counted)
        await seat.get("transcript?limit=50")
        assert folded == []
        await seat.run("say 3 word")
        after_it = (await seat.get("transcript?limit=50"))["lastEventId"]
        assert len(folded) == after_it - before
