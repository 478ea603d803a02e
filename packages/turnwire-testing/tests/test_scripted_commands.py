"""Each command of the scripted agent, in every profile it applies to."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from turnwire.errors import LinkBroken, RemoteProtocolError
from turnwire.wire.jsonrpc import decode
from turnwire_testing import AgentOptions, BareClient, Gates, Profile, scripted_agent
from turnwire_testing.patience import quiet
from turnwire_testing.scripted.actions import GARBAGE, UNKNOWN_ID
from turnwire_testing.scripted.client import prompt_params
from turnwire_testing.scripted.options import PROFILES

pytestmark = pytest.mark.anyio

V1 = ("v1", "v1plus")
ANSWERS: dict[str, Any] = {
    "session/request_permission": {"outcome": {"outcome": "selected", "optionId": "allow_once"}},
    "fs/read_text_file": {"content": "what the file says"},
    "fs/write_text_file": {},
    "terminal/create": {"terminalId": "t-1"},
    "terminal/wait_for_exit": {"exitCode": 0},
    "terminal/output": {"output": "what was printed", "truncated": False},
    "terminal/release": {},
    "elicitation/create": {"action": "accept", "content": {"answer": "42"}},
}
ALL = pytest.mark.parametrize("profile", PROFILES)


@asynccontextmanager
async def session(
    profile: Profile, options: AgentOptions | None = None, gates: Gates | None = None
) -> AsyncGenerator[tuple[BareClient, str]]:
    async with scripted_agent(profile, options, gates=gates) as link:
        client = BareClient(link, ANSWERS)
        await client.initialize(2 if profile == "v2" else 1)
        yield client, await client.new_session()


async def turn(profile: Profile, script: str) -> tuple[BareClient, dict[str, Any]]:
    """One turn; gives the client that saw it and the stop, whatever its form."""
    async with session(profile) as (client, session_id):
        end = await client.prompt(session_id, script)
        return client, end["params"]["update"] if "params" in end else end.get("result") or end["error"]


def output(client: BareClient) -> list[dict[str, Any]]:
    """The updates of a turn without the ones that every turn has: in v2, and at its end in v1plus."""
    every = ("user_message", "state_update", "turn_complete")
    return [each for each in client.updates() if each["sessionUpdate"] not in every]


@ALL
async def test_other_text_is_echoed_in_a_few_chunks(profile: Profile) -> None:
    client, end = await turn(profile, "hello there")
    assert [each["content"]["text"] for each in output(client)] == ["hell", "o th", "ere"]
    assert len({each["messageId"] for each in output(client)}) == 1
    assert end["stopReason"] == "end_turn"


@ALL
async def test_a_script_with_a_mistake_is_answered_with_what_is_wrong(profile: Profile) -> None:
    client, end = await turn(profile, "say 1 fine\nnonsense")
    assert client.text().startswith("there is no command 'nonsense'; the commands are: say, ")
    assert end["stopReason"] == "end_turn"


@ALL
@pytest.mark.parametrize(
    ("line", "updates"),
    [
        ("say 2 hi", [{"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "hi"}}] * 2),
        ("think hm", [{"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": "hm"}}]),
        ("usage 3 9", [{"sessionUpdate": "usage_update", "used": 3, "size": 9}]),
        ("title A name", [{"sessionUpdate": "session_info_update", "title": "A name"}]),
        ('update {"sessionUpdate":"_own","n":1.50}', [{"sessionUpdate": "_own", "n": 1.5}]),
    ],
)
async def test_what_both_versions_say_alike(profile: Profile, line: str, updates: list[dict[str, Any]]) -> None:
    client, _ = await turn(profile, line)
    seen = [{key: value for key, value in each.items() if key != "messageId"} for each in output(client)]
    assert seen == updates


ENTRIES = [
    {"content": "a", "priority": "medium", "status": "in_progress"},
    {"content": "b", "priority": "medium", "status": "pending"},
]


@pytest.mark.parametrize(
    ("line", "in_v1", "in_v2"),
    [
        (
            "plan a; b",
            {"sessionUpdate": "plan", "entries": ENTRIES},
            {"sessionUpdate": "plan_update", "plan": {"type": "items", "planId": "main", "entries": ENTRIES}},
        ),
        (
            "tool-open t",
            {"sessionUpdate": "tool_call", "toolCallId": "t", "title": "t", "kind": "other", "status": "pending"},
            {
                "sessionUpdate": "tool_call_update",
                "toolCallId": "t",
                "title": "t",
                "kind": "other",
                "status": "pending",
            },
        ),
        (
            "commands plan",
            {
                "sessionUpdate": "available_commands_update",
                "availableCommands": [{"name": "plan", "description": "the command plan"}],
            },
            {
                "sessionUpdate": "available_commands_update",
                "availableCommands": [{"type": "command", "name": "plan", "description": "the command plan"}],
            },
        ),
    ],
)
async def test_what_the_versions_say_differently(line: str, in_v1: dict[str, Any], in_v2: dict[str, Any]) -> None:
    for profile in V1:
        assert output((await turn(profile, line))[0]) == [in_v1]
    assert output((await turn("v2", line))[0]) == [in_v2]


@ALL
async def test_a_user_message_of_another_client_is_told(profile: Profile) -> None:
    async with session(profile) as (client, session_id):
        await client.prompt(session_id, "user hello")
        kind = "user_message" if profile == "v2" else "user_message_chunk"
        *_, told = [each for each in client.updates() if each["sessionUpdate"] == kind]
        block = {"type": "text", "text": "hello"}
        assert told["content"] == ([block] if profile == "v2" else block)


@ALL
async def test_a_mode_is_changed_in_the_words_of_the_version(profile: Profile) -> None:
    client, _ = await turn(profile, "mode code\nmode nonsense")
    changed = output(client)[0]
    if profile == "v2":
        assert changed["sessionUpdate"] == "config_option_update"
        assert changed["configOptions"][0]["currentValue"] == "code"
    else:
        assert changed == {"sessionUpdate": "current_mode_update", "currentModeId": "code"}
    assert "there is no mode 'nonsense'" in client.text()


@ALL
async def test_a_tool_goes_from_pending_to_completed(profile: Profile) -> None:
    client, _ = await turn(profile, "tool t edit 'The title'")
    assert [each["status"] for each in output(client)] == ["pending", "in_progress", "completed"]
    assert output(client)[0]["title"] == "The title"
    assert output(client)[0]["kind"] == "edit"
    assert output(client)[2]["content"][0]["content"]["text"] == "t is done"


@ALL
async def test_an_allowed_permission_runs_the_tool_and_is_echoed(profile: Profile) -> None:
    client, _ = await turn(profile, "ask t allow_once,reject_once")
    [asked] = [frame for frame in client.seen if frame.get("method") == "session/request_permission"]
    assert [option["optionId"] for option in asked["params"]["options"]] == ["allow_once", "reject_once"]
    if profile == "v2":
        assert asked["params"]["subject"]["toolCall"]["toolCallId"] == "t"
        assert asked["params"]["title"]
    else:
        assert asked["params"]["toolCall"]["toolCallId"] == "t"
    assert [each.get("status") for each in output(client)] == ["pending", "in_progress", "completed", None]
    assert client.text() == "selected allow_once"


@ALL
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"outcome": {"outcome": "selected", "optionId": "reject_once"}}, "selected reject_once"),
        ({"outcome": {"outcome": "selected", "optionId": "not offered"}}, "selected not offered"),
        ({"outcome": {"outcome": "cancelled"}}, "cancelled"),
        (None, "cancelled"),
    ],
)
async def test_anything_but_an_allowed_permission_does_not_run_the_tool(
    profile: Profile, answer: Any, said: str
) -> None:
    async with session(profile) as (client, session_id):
        client.answers["session/request_permission"] = answer
        await client.prompt(session_id, "ask t allow_once,reject_once")
        assert [each.get("status") for each in output(client)] == ["pending", "failed", None]
        assert client.text() == said


@pytest.mark.parametrize("profile", V1)
@pytest.mark.parametrize(
    ("line", "methods", "said"),
    [
        ("read /a", ["fs/read_text_file"], "what the file says"),
        ("write /a some text", ["fs/write_text_file"], "wrote /a"),
        (
            "terminal ls -l",
            ["terminal/create", "terminal/wait_for_exit", "terminal/output", "terminal/release"],
            "what was printed",
        ),
    ],
)
async def test_a_v1_agent_uses_the_client(profile: Profile, line: str, methods: list[str], said: str) -> None:
    client, _ = await turn(profile, line)
    assert [frame["method"] for frame in client.seen if "id" in frame and "method" in frame] == methods
    assert client.text() == said


@pytest.mark.parametrize("line", ["read /a", "write /a b"])
async def test_a_v2_agent_has_no_files_of_the_client(line: str) -> None:
    client, _ = await turn("v2", line)
    assert client.text() == "unavailable: v2 has no such client method"


async def test_a_v2_agent_has_terminals_of_its_own() -> None:
    client, _ = await turn("v2", "terminal ls -l")
    kinds = [each["sessionUpdate"] for each in output(client)]
    assert kinds == ["terminal_update", "terminal_output_chunk", "terminal_update"]
    assert output(client)[2]["exitStatus"] == {"exitCode": 0}


@pytest.mark.parametrize("line", ["read /a", "write /a b", "terminal ls", "elicit well?"])
async def test_what_the_client_does_not_offer_is_not_asked_for(line: str) -> None:
    async with scripted_agent("v1") as link:
        client = BareClient(link)
        await client.initialize(1, capabilities={})
        await client.prompt(await client.new_session(), line)
        assert client.text().startswith("unavailable: the client does not offer ")


@ALL
async def test_an_elicitation_says_what_came_back(profile: Profile) -> None:
    client, _ = await turn(profile, "elicit how many?")
    assert client.text() == 'elicited accept {"answer":"42"}'


async def test_an_error_of_the_client_is_said() -> None:
    async with session("v1") as (client, session_id):
        del client.answers["fs/read_text_file"]
        await client.request("session/prompt", prompt_params(session_id, "read /a"))
        asked = await client.until(lambda frame: frame.get("method") == "fs/read_text_file")
        await client.send({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "no"}})
        assert (await client.update("agent_message_chunk"))["content"]["text"] == "refused: -32601 no"


@ALL
async def test_a_notification_and_a_raw_line_leave_as_they_are(profile: Profile) -> None:
    client, _ = await turn(profile, 'notify _x/y {"a": 1}\nraw  not json at all ')
    assert {"jsonrpc": "2.0", "method": "_x/y", "params": {"a": 1}} in client.seen
    assert client.noise == [b" not json at all "]


@ALL
async def test_a_gate_holds_the_turn_until_the_test_opens_it(profile: Profile, gates: Gates) -> None:
    async with session(profile, gates=gates) as (client, session_id):
        await client.request("session/prompt", prompt_params(session_id, "say 1 before\ngate g\nsay 1 after"))
        await gates.reached("g")
        await client.update("agent_message_chunk")
        assert client.text() == "before"
        gates.open("g")
        await client.update("agent_message_chunk")
        assert client.text() == "beforeafter"


async def test_waiting_for_a_gate_that_nobody_reaches_is_bounded(
    gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnwire_testing.scripted.host.WAIT_S", 0.01)
    with pytest.raises(TimeoutError):
        await gates.reached("nowhere")


@ALL
async def test_garbage_is_no_frame_and_the_turn_still_ends(profile: Profile) -> None:
    async with session(profile) as (client, session_id):
        end = await client.prompt(session_id, "garbage\ngarbage 2")
        assert "error" not in end
        no_objects = [line for line in GARBAGE if not is_object(line)]
        assert client.noise == [*no_objects, GARBAGE[0], GARBAGE[1]]


def is_object(line: bytes) -> bool:
    try:
        return isinstance(msgspec.json.decode(line), dict)
    except msgspec.DecodeError:
        return False


@pytest.mark.parametrize("line", GARBAGE)
def test_no_line_of_garbage_is_a_frame(line: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(line)


@ALL
async def test_a_big_line_has_exactly_the_size_asked_for(profile: Profile) -> None:
    async with scripted_agent(profile) as link:
        client = BareClient(link)
        await client.initialize(2 if profile == "v2" else 1)
        session_id = await client.new_session()
        await client.request("session/prompt", prompt_params(session_id, "bigline 100000"))
        sizes: list[int] = []
        while 100_000 not in sizes:
            sizes += [len(line) for line in await link.receive()]
        assert max(sizes) == 100_000


@ALL
async def test_a_flood_is_numbered_and_complete(profile: Profile) -> None:
    client, _ = await turn(profile, "flood 5000 10")
    texts = [each["content"]["text"] for each in output(client)]
    assert texts == [f"{number} xxxxxxxxxx" for number in range(5000)]


@ALL
async def test_repeat_does_a_command_again(profile: Profile) -> None:
    client, _ = await turn(profile, "repeat 2 repeat 2 say 1 x")
    assert client.text() == "xxxx"


@ALL
async def test_an_answer_to_nobody_is_sent(profile: Profile) -> None:
    client, _ = await turn(profile, "answer-unknown-id")
    assert [frame for frame in client.seen if frame.get("id") == UNKNOWN_ID]


@ALL
async def test_a_duplicate_answer_comes_twice(profile: Profile) -> None:
    async with session(profile) as (client, session_id):
        request_id = await client.request("session/prompt", prompt_params(session_id, "duplicate-answer"))
        for _ in range(2):
            await client.until(lambda frame: frame.get("id") == request_id and "result" in frame)


@ALL
@pytest.mark.parametrize("line", ["exit 3", "signal SIGKILL"])
async def test_in_process_an_exit_closes_the_link(profile: Profile, line: str) -> None:
    async with session(profile) as (client, session_id):
        await client.request("session/prompt", prompt_params(session_id, f"say 1 last\n{line}\nsay 1 never"))
        with pytest.raises(LinkBroken):
            await client.until(lambda _: False)
        assert client.text() == "last"


@ALL
@pytest.mark.parametrize("line", ["fork", "stderr x", "ignore-signal SIGTERM"])
async def test_in_process_the_test_is_not_harmed(profile: Profile, line: str) -> None:
    client, _ = await turn(profile, line)
    assert "needs the agent to be a process of its own" in client.text()


@ALL
async def test_never_keeps_the_turn_open(profile: Profile) -> None:
    async with session(profile) as (client, session_id):
        await client.request("session/prompt", prompt_params(session_id, "say 1 x\nnever"))
        await client.update("agent_message_chunk")
        await quiet()
        assert (await client.call("_echo", {"still": "there"}))["result"] == {"still": "there"}
        assert not [each for each in client.seen if "stopReason" in str(each)]
