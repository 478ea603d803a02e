"""An agent of the official SDK on this runtime: its requests both ways, and its end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.agent.official import official_python

from turnwire.hosting.source import ProcessSource
from turnwire.limits import Limits
from turnwire_testing.patience import WAIT_S
from turnwire_testing.scripted.client import BareClient, is_idle, prompt_params

pytestmark = [pytest.mark.anyio, pytest.mark.full("needs the official SDK")]

PROGRAM = Path(__file__).parent / "adapted_play.py"
ASKED: dict[str, Any] = {"_meta": {"turnwire": {"turnComplete": {}, "ready": {}}}}
"""A v1 client that wants the mark of the end."""


@asynccontextmanager
async def adapted(
    version: int = 1,
    answers: Mapping[str, Any] | None = None,
    capabilities: dict[str, Any] | None = None,
    *,
    sdk: str = "py-v1",
    made: str = "object",
) -> AsyncGenerator[BareClient]:
    """A client of the adapted agent, which runs as a program."""
    source = ProcessSource([*official_python(sdk), str(PROGRAM), made], limits=Limits(stop_eof_s=20))
    with anyio.fail_after(WAIT_S):
        agent = await source.connect()
        try:
            client = BareClient(agent.link, answers)
            await client.initialize(version, capabilities)
            yield client
        finally:
            with anyio.CancelScope(shield=True):
                await agent.aclose()
        assert agent.exit is not None
        assert agent.exit.exit_code == 0


def answer_to(client: BareClient, request: int | str) -> dict[str, Any]:
    [found] = [each for each in client.seen if each.get("id") == request and "method" not in each]
    return found


@pytest.mark.parametrize(("sdk", "made"), [("py-v1", "object"), ("py-v2", "factory")])
async def test_the_object_is_asked_for_everything_that_its_interface_has(sdk: str, made: str) -> None:
    async with adapted(sdk=sdk, made=made) as client:
        first = client.seen[0]["result"]
        await client.call("authenticate", {"methodId": "door"})
        opened = (await client.call("session/new", {"cwd": "/", "mcpServers": []}))["result"]
        await client.call("session/set_mode", {"sessionId": "mine", "modeId": "fast"})
        await client.notify("_example/tell", {})
        extended = await client.call("_example/ask", {"number": 7})
        await client.prompt("mine", "calls")
        listed = (await client.call("session/list", {}))["result"]
        refused = await client.prompt("mine", "refuse")
    assert first["agentInfo"] == {"name": "player", "version": "3", "title": "The player"}
    assert first["authMethods"] == [{"id": "door", "name": "By the door"}]
    assert first["agentCapabilities"]["promptCapabilities"]["image"] is True
    assert opened["sessionId"] == "mine"
    assert opened["modes"]["currentModeId"] == "slow"
    assert [each["id"] for each in opened["modes"]["availableModes"]] == ["fast", "slow"]
    assert extended["result"] == {"method": "example/ask", "number": 7}
    assert client.text() == "initialize 1 bare-client, authenticate door, mode fast, notified example/tell"
    assert [(each["sessionId"], each["title"]) for each in listed["sessions"]] == [("old", "Old")]
    assert refused["result"]["stopReason"] == "refusal"


async def test_a_session_with_a_name_that_is_taken_is_refused_and_the_first_one_goes_on() -> None:
    new: dict[str, Any] = {"cwd": "/", "mcpServers": []}
    async with adapted() as client:
        session = await client.new_session()
        await client.call("session/set_mode", {"sessionId": session, "modeId": "fast"})
        request = await client.request("session/prompt", prompt_params(session, "wait"), "the-first")
        await client.update("agent_message_chunk")
        refused = await client.call("session/new", new)
        await client.notify("session/cancel", {"sessionId": session})
        await client.until(lambda each: each.get("id") == request)
        joined = await client.call("session/resume", {"sessionId": session, **new})
        await client.call("session/close", {"sessionId": session})
        refused_again = await client.call("session/new", new)
        await client.call("session/delete", {"sessionId": session})
        opened = await client.call("session/new", new)
    assert "have the agent make new ids" in refused["error"]["message"]
    assert answer_to(client, request)["result"]["stopReason"] == "cancelled"
    assert client.text() == "waitingstopping"
    assert joined["result"]["modes"]["currentModeId"] == "fast"
    assert refused_again["error"] == refused["error"], "it is still kept"
    assert opened["result"]["sessionId"] == session


async def test_what_the_object_says_before_its_answer_follows_ours_and_waits_for_ready() -> None:
    async with adapted(capabilities=ASKED) as client:
        session = await client.new_session()
        assert client.updates() == [], "nothing of the session before the client is ready for it"
        await client.notify("session/ready", {"sessionId": session})
        told = await client.update("available_commands_update")
    assert [each["name"] for each in told["availableCommands"]] == ["play"]


async def test_a_v1_client_that_asks_for_the_mark_gets_it_before_the_answer() -> None:
    async with adapted(capabilities=ASKED) as client:
        session = await client.new_session()
        request = await client.request("session/prompt", prompt_params(session, "calls"), "a-prompt")
        await client.until(lambda each: each.get("id") == request)
        kinds = [each["sessionUpdate"] for each in client.updates()]
        mark = client.updates()[-1]
    assert kinds[-2:] == ["agent_message_chunk", "turn_complete"]
    assert (mark["promptRequestId"], mark["stopReason"]) == ("a-prompt", "end_turn")


async def test_a_v2_client_gets_states_permissions_and_modes_in_its_own_words() -> None:
    chosen = {"outcome": {"outcome": "selected", "optionId": "yes"}}
    async with adapted(2, {"session/request_permission": chosen}) as client:
        opened = (await client.call("session/new", {"cwd": "/", "mcpServers": []}))["result"]
        await client.prompt("mine", "ask")
        await client.prompt("mine", "mode fast")
        await client.prompt("mine", "read /etc/hostname")
        asked = next(each["params"] for each in client.seen if each.get("method") == "session/request_permission")
        told = [each for each in client.updates() if each["sessionUpdate"] == "config_option_update"]
    [mode] = [each for each in opened["configOptions"] if each.get("category") == "mode"]
    assert mode["currentValue"] == "slow"
    assert asked["subject"]["toolCall"]["toolCallId"] == "edit-1"
    states = [each["state"] for each in client.updates() if each["sessionUpdate"] == "state_update"]
    assert states[:4] == ["running", "requires_action", "running", "idle"]
    assert client.text() == "yesrefused -32601"
    assert told[-1]["configOptions"][0]["currentValue"] == "fast"


async def test_the_services_of_a_v1_client_are_there_for_the_object() -> None:
    answers = {"fs/read_text_file": {"content": "text"}, "_example/ask": {"said": "hello"}}
    async with adapted(1, answers) as client:
        session = await client.new_session()
        await client.prompt(session, "capabilities")
        offered = json.loads(client.text())
        await client.prompt(session, "read /a")
        await client.prompt(session, "extend")
    assert offered["fs"] == {"readTextFile": True, "writeTextFile": True}
    assert client.text().endswith("texthello")
    assert "_example/tell" in [each.get("method") for each in client.seen]


async def test_a_session_that_only_the_object_has_is_loaded_with_its_history() -> None:
    async with adapted() as client:
        await client.call("session/load", {"sessionId": "old", "cwd": "/", "mcpServers": []})
        assert client.text() == "before"
        missing = await client.call("session/load", {"sessionId": "never", "cwd": "/", "mcpServers": []})
        await client.prompt("old", "calls")
        await client.call("session/close", {"sessionId": "old"})
        # Messages sent meanwhile are in our history, whatever the object replays.
        again = len(client.updates())
        await client.call("session/load", {"sessionId": "old", "cwd": "/", "mcpServers": []})
        replayed = client.updates()[again:]
    assert missing["error"]["code"] == -32002
    said = [each["content"]["text"] for each in replayed if each["sessionUpdate"] == "agent_message_chunk"]
    assert said == ["before", "initialize 1 bare-client"]


async def test_an_error_of_the_author_is_told_and_one_of_nobody_is_not() -> None:
    async with adapted() as client:
        session = await client.new_session()
        told = await client.prompt(session, "error because")
        untold = await client.prompt(session, "crash")
        forked = await client.call("session/fork", {"sessionId": session, "cwd": "/", "mcpServers": []})
    assert told["error"] == {"code": -32050, "message": "not today", "data": {"why": "because"}}
    assert untold["error"]["code"] == -32603
    assert not [each for each in client.seen if "a secret of the machine" in json.dumps(each)]
    assert forked["error"]["code"] == -32601


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("word", "calls"), [("wait", ["cancel"]), ("hang", ["cancel", "stopped"])])
async def test_a_cancel_is_told_to_the_object_and_ends_the_turn_whatever_it_does(
    version: int, word: str, calls: list[str]
) -> None:
    async with adapted(version, capabilities=ASKED if version == 1 else None) as client:
        session = await client.new_session()
        request = await client.request("session/prompt", prompt_params(session, word))
        await client.update("agent_message_chunk")
        await client.notify("session/cancel", {"sessionId": session})
        if version == 1:
            await client.until(lambda each: each.get("id") == request and "method" not in each)
            reason = answer_to(client, request)["result"]["stopReason"]
        else:
            reason = (await client.update("state_update"))["stopReason"]
        assert reason == "cancelled"
        said = client.text()
        await client.prompt(session, "calls")
    assert said == ("waitingstopping" if word == "wait" else "waiting")
    assert client.text().removeprefix(said).split(", ")[1:] == calls


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("word", ["spend", "wait"])
async def test_the_usage_that_the_object_answers_with_is_told_as_it_is_also_when_it_was_cancelled(
    version: int, word: str
) -> None:
    usage = {"totalTokens": 9, "inputTokens": 5, "outputTokens": 2, "thoughtTokens": 2, "cachedWriteTokens": 1}
    async with adapted(version) as client:
        session = await client.new_session()
        request = await client.request("session/prompt", prompt_params(session, word))
        if word == "wait":
            await client.update("agent_message_chunk")
            await client.notify("session/cancel", {"sessionId": session})
        if version == 1:
            await client.until(lambda each: each.get("id") == request and "method" not in each)
            told = answer_to(client, request)["result"]
        else:
            idle = await client.until(lambda each: is_idle(each, session))
            told = idle["params"]["update"]
    assert told["usage"] == usage
    assert told["stopReason"] == ("cancelled" if word == "wait" else "end_turn")


@pytest.mark.parametrize(("version", "last"), [(1, "failed"), (2, "cancelled")])
async def test_a_tool_call_that_the_object_leaves_open_when_it_is_cancelled_is_closed(
    version: int, last: str
) -> None:
    """The object said that it works, and nothing of it any more."""
    async with adapted(version) as client:
        session = await client.new_session()
        await client.request("session/prompt", prompt_params(session, "work"))
        await client.update("agent_message_chunk")
        await client.notify("session/cancel", {"sessionId": session})
        closed = await client.update("tool_call_update")
    assert (closed["toolCallId"], closed["status"]) == ("edit-1", last)


async def test_what_a_prompt_says_after_its_end_is_marked_as_late_unless_another_turn_runs() -> None:
    async with adapted() as client:
        session = await client.new_session()
        await client.prompt(session, "later")
        await client.notify("_example/late", {})
        late = await client.update("agent_message_chunk")
        await client.prompt(session, "later")
        await client.prompt(session, "now")
        in_time = client.updates()[-2:]
    assert (late["content"]["text"], late["_meta"]["turnwire"]["late"]) == ("late", True)
    said = [each for each in in_time if each["sessionUpdate"] == "agent_message_chunk"]
    assert [(each["content"]["text"], each.get("_meta")) for each in said] == [("late", None)]


IN_PROCESS = """
import runpy, sys
import anyio, turnwire
from turnwire_agent.adapter import adapt

player = runpy.run_path(sys.argv[1])["Player"]()

async def main():
    for _ in range(2):
        async with turnwire.connect(adapt(player).source()) as client:
            session = await client.new_session(".")
            print((await session.prompt("calls")).text)

anyio.run(main)
"""


async def test_an_adapted_agent_runs_in_the_process_of_its_client(tmp_path: Path) -> None:
    await anyio.Path(tmp_path / "program.py").write_text(IN_PROCESS)
    with anyio.fail_after(WAIT_S):
        ran = await anyio.run_process([*official_python("py-v1"), str(tmp_path / "program.py"), str(PROGRAM)])
    assert ran.stdout.decode().splitlines() == [
        "initialize 1 turnwire",
        "initialize 1 turnwire, close mine, initialize 1 turnwire",
    ]


def test_without_the_official_sdk_adapting_says_what_to_install() -> None:
    program = "from turnwire_agent.adapter import adapt; adapt(object())"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert "pip install agent-client-protocol" in ran.stderr
