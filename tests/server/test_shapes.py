"""REST in one shape, for every version of the agent: raw HTTP readers of agents of both versions in both shapes.

Live, replayed, and cut after every event: each reads the same under the same ids. And each event of a turn names
the prompting client.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.server.reading import MARKERS, Reader, Seen, after, ended, is_end, reading
from tests.server.seats import Seat, answer, blocks, seated
from tests.support.daemons import SCRIPTED
from tests.unit.projections.translate.speaking import complaints

from turnwire.ids import SessionId
from turnwire.server.access.tokens import Role
from turnwire.session import events as ev

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
PROFILES = pytest.mark.parametrize("profile", ["v1", "v1plus", "v2"])
SHAPES = pytest.mark.parametrize("acp", ["1", "2"])
SCRIPT = """think hm
say 2 'so '
plan one; two
tool t1 edit a file
terminal ls
ask t2 allow_once,reject_once
mode code
usage 9 99
title T
commands plan,review
say 1 done
after usage 10 99"""


def command(profile: str) -> tuple[str, ...]:
    return (*SCRIPTED, "--profile", profile)


def script(profile: str) -> str:
    """A v1 agent's terminal is one of its client, and here there is none."""
    return SCRIPT if profile == "v2" else SCRIPT.replace("terminal ls\n", "")


async def converse(seat: Seat, profile: str) -> None:
    """Two turns; in the first the agent asks, and the second has several blocks."""
    first = (await seat.prompt(script(profile)))["promptId"]
    asked = await seat.until(ev.PermissionRequested, first)
    await seat.post(
        f"permissions/{asked.request_id}", {"outcome": {"outcome": "selected", "optionId": "allow_once"}}
    )
    await seat.end(first)
    second = [*blocks("say 1 again"), *blocks("\nsay 1 more")]
    await seat.end((await seat.post("prompt", {"prompt": second}, 202))["promptId"])


async def replayed(seat: Seat, acp: str, offset: int) -> list[Json]:
    """Return the stream's replay after an event."""
    path = seat.path(f"events?acp={acp}")
    async with reading(seat.client, path, **after(offset)) as reader:
        seen = await reader.until(lambda each: each.type == "replay_complete")
    return [each.envelope for each in seen if each.type not in MARKERS]


async def live(reader: Reader, last: int) -> list[Json]:
    seen = await reader.until(lambda each: each.envelope.get("id") == last)
    return [each.envelope for each in seen if each.type not in MARKERS]


def updates(envelopes: list[Json]) -> list[Json]:
    return [each["data"]["update"] for each in envelopes if each["type"] == "session_update"]


def kinds(envelopes: list[Json]) -> set[str]:
    return {each["sessionUpdate"] for each in updates(envelopes)}


def behind(envelopes: list[Json], offset: int) -> list[Json]:
    """Return the frames after an event: parts of the next one precede its number."""
    places = [place for place, each in enumerate(envelopes, 1) if each.get("id") == offset]
    return envelopes[places[0] :] if places else envelopes


# -- streams -------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G9", "G11")
@PROFILES
@SHAPES
async def test_live_replayed_and_cut_behind_every_event_a_reader_is_told_the_same(
    tmp_path: Path, profile: str, acp: str
) -> None:
    async with seated(tmp_path / "d", "s1", agent=command(profile)) as seat:
        async with reading(seat.client, seat.path(f"events?acp={acp}"), **after(0)) as reader:
            await converse(seat, profile)
            head = await ended(seat.running, seat.session_id)
            told = await live(reader, head)
        assert [each["id"] for each in told if "id" in each] == list(range(1, head + 1))
        for update in updates(told):
            assert complaints(int(acp), "SessionUpdate", update) == [], update
        for offset in range(head + 1):
            assert await replayed(seat, acp, offset) == behind(told, offset), offset
    # The same from a daemon that knows nothing but the log.
    async with seated(tmp_path / "d", "s1", agent=command(profile)) as seat:
        for offset in (0, head // 2, head - 1):
            now = await replayed(seat, acp, offset)
            assert now[: len(behind(told, offset))] == behind(told, offset)


@pytest.mark.guarantee("G11")
@PROFILES
async def test_by_default_a_reader_is_told_what_a_v1_agent_would_say(tmp_path: Path, profile: str) -> None:
    async with seated(tmp_path / "d", "s1", agent=command(profile)) as seat:
        await converse(seat, profile)
        async with reading(seat.client, seat.path("events"), **after(0)) as reader:
            seen = await reader.until(lambda each: each.type == "replay_complete")
        told = [each.envelope for each in seen[:-1]]
        assert told == await replayed(seat, "1", 0)
    assert {"user_message_chunk", "agent_thought_chunk", "agent_message_chunk", "tool_call", "plan"} <= kinds(told)
    assert not {"user_message", "state_update", "plan_update", "terminal_update", "turn_complete"} & kinds(told)
    said = [each["content"]["text"] for each in updates(told) if each["sessionUpdate"] == "agent_message_chunk"]
    assert "".join(said).startswith("so so selected allow_once")
    (asked,) = [each["data"] for each in told if each["type"] == "permission_request"]
    assert asked["toolCall"]["toolCallId"] == "t2"
    assert [each["optionId"] for each in asked["options"]] == ["allow_once", "reject_once"]
    (started,) = [each["data"] for each in told if each["type"] == "agent_started"]
    assert [each["id"] for each in started["offers"]["modes"]["availableModes"]] == ["ask", "code"]
    assert started["protocolVersion"] == (2 if profile == "v2" else 1)


@PROFILES
async def test_on_request_a_reader_is_told_what_a_v2_agent_would_say(tmp_path: Path, profile: str) -> None:
    async with seated(tmp_path / "d", "s1", agent=command(profile)) as seat:
        await converse(seat, profile)
        told = await replayed(seat, "2", 0)
    assert {"user_message", "agent_message_chunk", "tool_call_update", "plan_update"} <= kinds(told)
    assert not {"user_message_chunk", "tool_call", "plan", "current_mode_update"} & kinds(told)
    assert all(
        "messageId" in each
        for each in updates(told)
        if "_chunk" in each["sessionUpdate"] and "toolCallId" not in each and "terminalId" not in each
    )
    (asked,) = [each["data"] for each in told if each["type"] == "permission_request"]
    assert isinstance(asked["title"], str)
    assert asked["subject"]["toolCall"]["toolCallId"] == "t2"
    (started,) = [each["data"] for each in told if each["type"] == "agent_started"]
    assert [each["configId"] for each in started["offers"]["configOptions"]] == ["mode", "model"]


async def test_a_message_of_several_blocks_is_told_piece_by_piece_and_counts_once(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        prompt_id = (await seat.post("prompt", {"prompt": [*blocks("one"), *blocks("two")]}, 202))["promptId"]
        await seat.end(prompt_id)
        pieces = [each for each in await replayed(seat, "1", 0) if each["_meta"].get("event") == "user_message"]
        (message,) = [each for each in await replayed(seat, "2", 0) if each["_meta"].get("event") == "user_message"]
    assert [each["data"]["update"]["content"]["text"] for each in pieces] == ["one", "two"]
    assert len({each["data"]["update"]["messageId"] for each in pieces}) == 1
    assert "id" not in pieces[0]
    assert pieces[0]["_meta"]["partOf"] == pieces[1]["id"] == message["id"]
    assert [each["text"] for each in message["data"]["update"]["content"]] == ["one", "two"]
    assert all(each["promptId"] == prompt_id and each["author"] for each in (*pieces, message))


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize(("profile", "acp"), [("v1plus", "1"), ("v1plus", "2"), ("v2", "1"), ("v2", "2")])
async def test_what_repeats_the_turns_own_events_tells_nobody_anything(
    tmp_path: Path, profile: str, acp: str
) -> None:
    async with seated(tmp_path / "d", "s1", agent=command(profile)) as seat:
        await seat.run("hello")
        told = await replayed(seat, acp, 0)
    omitted = [each for each in told if each["type"] == "session_update_omitted"]
    expected = {"turn_complete"} if profile == "v1plus" else {"user_message", "state_update"}
    assert {each["data"]["sessionUpdate"] for each in omitted} == expected
    assert all(each["promptId"] and each["author"] for each in omitted)
    states = [each["data"]["state"] for each in told if each["type"] == "state_changed"]
    assert states == ["running"]
    assert [each["type"] for each in told].count("turn_complete") == 1


async def test_background_work_is_told_to_readers_of_v2_alone(tmp_path: Path) -> None:
    listed = [{"type": "terminal", "terminalId": "x"}]
    state = json.dumps({"sessionUpdate": "state_update", "state": "running", "background": listed})
    async with seated(tmp_path / "d", "s1", agent=command("v2")) as seat:
        await seat.run(f"update {state}")
        second, first = await replayed(seat, "2", 0), await replayed(seat, "1", 0)
    (told,) = [each for each in updates(second) if each["sessionUpdate"] == "state_update"]
    assert told["background"] == listed
    assert "state_update" not in kinds(first)


@SHAPES
async def test_what_was_held_back_of_a_tool_call_comes_before_the_end_of_its_turn(tmp_path: Path, acp: str) -> None:
    piece = {"type": "content", "content": {"type": "text", "text": "x" * 1000}}
    chunk = json.dumps({"sessionUpdate": "tool_call_content_chunk", "toolCallId": "t1", "content": piece})
    async with seated(tmp_path / "d", "s1", agent=command("v2")) as seat:
        done = await seat.run(f"tool-open t1\nrepeat 20 update {chunk}\nupdate {chunk}")
        told = await replayed(seat, acp, 0)
    place = next(place for place, each in enumerate(told) if each["type"] == "turn_complete")
    if acp == "2":
        assert "id" in told[place - 1]
        return
    held = told[place - 1]
    assert held["_meta"]["partOf"] == told[place]["id"]
    assert (held["promptId"], held["author"]) == (done.prompt_id, told[place]["author"])
    assert len(held["data"]["update"]["content"]) == 21


async def test_a_shape_that_is_none_is_refused(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        for route in ("events", "transcript", "export", "permissions"):
            assert (await seat.get(f"{route}?acp=3", 400))["code"] == "bad_request"
        assert (await seat.post("load?acp=v1", {}, 400))["code"] == "bad_request"


# -- who prompted --------------------------------------------------------------------------------------------


async def test_a_turn_that_the_agent_began_was_prompted_by_nobody(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1", agent=command("v2")) as seat:
        await seat.run("agent-turn 2")
        agents = await seat.until(ev.TurnStarted, text='"origin":"agent"')
        await seat.end(agents.prompt_id)
        for acp in ("1", "2", "agent"):
            own = [each for each in await replayed(seat, acp, 0) if each.get("promptId") == agents.prompt_id]
            assert len(own) > 3
            assert not any({"author", "originatorClientId"} & each.keys() for each in own)


async def test_a_turn_that_a_restart_ends_still_names_who_prompted_it(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        ann = await seat.attach("owner", Role.OWNER)
        prompt = {"prompt": blocks("say 3 a\nnever")}
        prompt_id = (await seat.post("prompt", prompt, 202, **{"Turnwire-Client-Id": ann}))["promptId"]
        await seat.until(ev.SessionUpdated, prompt_id)
        head = (await seat.running.daemon.node.head(seat.session_id)).head
    async with seated(tmp_path / "d", "s1") as seat:
        await seat.end(prompt_id)
        for offset in range(head + 1):
            end = next(each for each in await replayed(seat, "1", offset) if each["type"] == "turn_error")
            assert (end["author"], end["originatorClientId"]) == ("owner", ann)


# -- what is not a stream ------------------------------------------------------------------------------------


@pytest.mark.guarantee("G11")
@PROFILES
@SHAPES
async def test_offers_of_the_agent_are_in_the_shape_that_is_asked(tmp_path: Path, profile: str, acp: str) -> None:
    async with seated(tmp_path / "d", agent=command(profile)) as seat:
        created = answer(await seat.client.post(f"/session?acp={acp}", json={"sessionId": "s2"}), 200)
        other = Seat(seat.running, seat.client, SessionId("s2"))
        await other.run("commands plan,review")
        resumed = await other.post(f"resume?acp={acp}")
        snapshot = answer(await seat.client.get(f"/session/s2?acp={acp}"), 200)
        transcript = await other.get(f"transcript?acp={acp}")
        async with reading(seat.client, other.path(f"events?acp={acp}&snapshot=1")) as reader:
            first: Seen = await reader.next()
        named = "id" if acp == "1" else "configId"
        for options in (
            created["state"]["configOptions"],
            resumed["state"]["configOptions"],
            snapshot["configOptions"],
            transcript["latest"]["configOptions"],
            first.data["configOptions"],
        ):
            assert [each[named] for each in options] == ["mode", "model"]
        assert snapshot["mode"] == "ask"
        assert [each["id"] for each in snapshot["modes"]] == ["ask", "code"]
        for commands in (resumed["state"]["availableCommands"], snapshot["commands"]):
            assert [each["name"] for each in commands] == ["plan", "review"]
            assert all(("type" in each) == (acp == "2") for each in commands)
        chosen = await other.post(f"config?acp={acp}", {"configId": "mode", "value": "code"})
        assert [each["currentValue"] for each in chosen["configOptions"] if each[named] == "mode"] == ["code"]


@pytest.mark.guarantee("G11")
@PROFILES
@SHAPES
async def test_an_open_question_is_in_the_shape_that_is_asked(tmp_path: Path, profile: str, acp: str) -> None:
    async with seated(tmp_path / "d", "s1", agent=command(profile)) as seat:
        prompt_id = (await seat.prompt("ask t2 allow_once"))["promptId"]
        await seat.until(ev.PermissionRequested, prompt_id)
        (listed,) = (await seat.get(f"permissions?acp={acp}"))["permissions"]
        (shown,) = answer(await seat.client.get(f"/session/s1?acp={acp}"), 200)["permissions"]
        (pending,) = (await seat.get("status"))["pendingInteractions"]
        await seat.post("cancel", {}, 204)
        await seat.end(prompt_id)
    for asked in (listed, shown):
        call = asked["toolCall"] if acp == "1" else asked["subject"]["toolCall"]
        assert call["toolCallId"] == "t2"
        assert ("title" in asked) == (acp == "2")
        assert [each["optionId"] for each in asked["options"]] == ["allow_once"]
    assert pending["action"]["title"] == "t2"


async def test_an_export_is_the_log_as_it_was_said_unless_a_shape_is_asked(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1", agent=command("v2")) as seat:
        await converse(seat, "v2")
        for query, acp in (("", "agent"), ("?acp=1", "1"), ("?acp=2", "2")):
            lines = (await seat.client.get(seat.path(f"export{query}"))).content.splitlines()
            assert [json.loads(line) for line in lines] == await replayed(seat, acp, 0)


async def test_the_end_of_a_turn_is_the_last_that_is_told_of_it(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1", agent=command("v2")) as seat:
        async with reading(seat.client, seat.path("events")) as reader:
            prompt_id = (await seat.prompt("say 2 a\ntool t1 edit x"))["promptId"]
            seen = await reader.until(is_end)
        assert [each.envelope["promptId"] for each in seen if "promptId" in each.envelope][-1] == prompt_id
        assert seen[-1].type == "turn_complete"
