"""Every frame sent to a client is valid in the published schema of its version, for every version of the agent.

The tour has every kind of update and every method that the scripted agent knows, in both versions on both sides.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, get_args

import msgspec
import pytest
from tests.interop.schema_check import Json, SchemaCheck, against_draft, need_schemas
from tests.support.acp import DIALECTS, Client, Place, acp_daemon

from turnwire.client import TurnCompleteUpdate
from turnwire_testing import AgentOptions, Profile

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", autouse=True)
def schemas() -> None:
    need_schemas()


ASKING: Json = {"elicitation": {"form": {}, "url": {}}}
FILES: Json = {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True}
TEXT: Json = {"type": "text", "text": "some text"}
BLOCKS: list[Json] = [
    TEXT,
    {"type": "image", "data": "AAAA", "mimeType": "image/png"},
    {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
    {"type": "resource_link", "uri": "file:///a.txt", "name": "a.txt"},
    {"type": "resource", "resource": {"uri": "file:///a.txt", "text": "a text", "mimeType": "text/plain"}},
]
COMMON: list[Json] = [
    {"sessionUpdate": "user_message_chunk", "messageId": "u", "content": TEXT},
    *({"sessionUpdate": "agent_message_chunk", "messageId": "m", "content": each} for each in BLOCKS),
    {"sessionUpdate": "usage_update", "used": 5, "size": 100, "cost": {"amount": 0.5, "currency": "EUR"}},
    {"sessionUpdate": "session_info_update", "title": "A title", "updatedAt": "2026-01-01T00:00:00Z"},
    {"sessionUpdate": "session_info_update", "title": None},
]
LOCATED: Json = {"locations": [{"path": "/a.txt", "line": 3}, {"path": "/b.txt"}], "rawInput": {"a": 1}}
OF_VERSION: dict[int, list[Json]] = {
    1: [
        {"sessionUpdate": "tool_call", "toolCallId": "t1", "title": "Edit", "kind": "edit", **LOCATED},
        {
            "sessionUpdate": "tool_call_update",
            "toolCallId": "t1",
            "status": "completed",
            "content": [
                {"type": "content", "content": TEXT},
                {"type": "diff", "path": "/a.txt", "oldText": "one\ntwo\n", "newText": "one\nthree\n"},
                {"type": "diff", "path": "/new.txt", "newText": "new\n"},
                {"type": "terminal", "terminalId": "term"},
            ],
            "rawOutput": "done",
        },
        {"sessionUpdate": "tool_call_update", "toolCallId": "t1", "kind": None, "content": None, "title": None},
        {"sessionUpdate": "plan", "entries": []},
    ],
    2: [
        {"sessionUpdate": "tool_call_update", "toolCallId": "t1", "title": "Edit", "kind": "edit", **LOCATED},
        {
            "sessionUpdate": "tool_call_update",
            "toolCallId": "t1",
            "status": "in_progress",
            "content": [
                {"type": "content", "content": TEXT},
                {
                    "type": "diff",
                    "changes": [{"operation": "modify", "path": "/a.txt"}],
                    "patch": {"format": "git_patch", "text": "diff --git a/a.txt b/a.txt\n"},
                },
                {"type": "diff", "changes": [{"operation": "move", "oldPath": "/a.txt", "path": "/b.txt"}]},
            ],
        },
        {
            "sessionUpdate": "tool_call_content_chunk",
            "toolCallId": "t1",
            "content": {"type": "content", "content": TEXT},
        },
        {"sessionUpdate": "tool_call_update", "toolCallId": "t1", "status": "cancelled", "title": None},
        {"sessionUpdate": "agent_message", "messageId": "whole", "content": BLOCKS},
        {"sessionUpdate": "agent_message", "messageId": "whole", "content": [TEXT]},
        {"sessionUpdate": "agent_thought", "messageId": "thought", "content": [TEXT]},
        {
            "sessionUpdate": "plan_update",
            "plan": {
                "type": "items",
                "planId": "p",
                "entries": [{"content": "step", "priority": "low", "status": "cancelled"}],
            },
        },
    ],
}
WORDS = """
think about it
say 2 hello
plan one; two; three
tool look read 'Look at it'
tool-open left
usage 10 200000
title 'Another title'
mode code
commands plan,review
ask edit allow_once,allow_always,reject_once,reject_always
elicit 'What is your name?'
"""

SERVED: dict[str, Json] = {
    "fs/read_text_file": {"content": "text"},
    "fs/write_text_file": {},
    "terminal/create": {"terminalId": "term-1"},
    "terminal/wait_for_exit": {"exitCode": 0},
    "terminal/output": {"output": "text", "truncated": False},
    "terminal/release": {},
}
"""A v1 client's services for a v1 agent, in the order of the script."""


class Checked(Client):
    """A client that validates every received frame against the schema."""

    def __init__(self, place: Place, initialize: Json) -> None:
        super().__init__(place)
        self.check = SchemaCheck(initialize["protocolVersion"], lifecycle=initialize == DIALECTS["lifecycle"])

    async def send(self, message: Any) -> None:
        self.check.sent(message)
        await super().send(message)

    def take(self, frame: bytes) -> None:
        super().take(frame)
        self.check.received(self.frames[-1])

    async def answer_with(self, method: str, result: Json) -> None:
        """Wait for a question and answer it."""
        asked = await self.until(lambda each: each.get("method") == method)
        await self.send({"jsonrpc": "2.0", "id": asked["id"], "result": result})

    async def turn(self, session_id: str, text: str) -> None:
        """Send a prompt and wait for the end of its turn."""
        ended = sum("stopReason" in each for each in self.updates())
        answer = await self.answer(await self.prompt(session_id, text))
        if self.version == 2 and "result" in answer:
            await self.idle(ended + 1)


@asynccontextmanager
async def checked(place: Place, initialize: Json) -> AsyncGenerator[Checked]:
    client = Checked(place, initialize)
    client.read()
    key = "capabilities" if initialize["protocolVersion"] == 2 else "clientCapabilities"
    more = ASKING if initialize["protocolVersion"] == 2 else ASKING | FILES
    offered = {**initialize, key: initialize[key] | more}
    client.version = (await client.call("initialize", **offered))["protocolVersion"]
    try:
        yield client
    finally:
        await client.connection.aclose()


def updates_of(profile: str) -> str:
    """Return a script with every update of the agent's own version."""
    told = [*COMMON, *OF_VERSION[2 if profile == "v2" else 1]]
    return "\n".join(f"update {json.dumps(each)}" for each in told)


async def work(client: Checked, session_id: str, profile: str) -> None:
    """Turns with everything in them, and every way a turn may end."""
    prompt = await client.prompt(session_id, WORDS.strip())
    await client.answer_with(
        "session/request_permission", {"outcome": {"outcome": "selected", "optionId": "allow_always"}}
    )
    await client.answer_with("elicitation/create", {"action": "accept", "content": {"text": "me"}})
    await client.answer(prompt)
    if client.version == 2:
        await client.idle()
    await client.turn(session_id, updates_of(profile))
    await client.turn(session_id, "stop max_tokens\nsay 1 cut")
    await client.turn(session_id, "stop refusal")
    await client.turn(session_id, "say 1 so\nerror -32000 'It broke'")
    if profile == "v2":
        await client.turn(session_id, "terminal ls -l")
    elif client.version == 1:
        served = await client.prompt(session_id, "read /a.txt\nwrite /b.txt text\nterminal ls -l")
        for method, result in SERVED.items():
            await client.answer_with(method, result)
        await client.answer(served)
    waiting = await client.prompt(session_id, "say 1 waiting\nnever")
    await client.update("agent_message_chunk", content={"type": "text", "text": "waiting"})
    await client.notify("session/cancel", sessionId=session_id)
    await client.answer(waiting)


async def choose(client: Checked, session_id: str) -> None:
    """Send settings and requests outside of turns."""
    if client.version == 1:
        await client.call("session/set_mode", sessionId=session_id, modeId="ask")
        await client.call("session/set_config_option", sessionId=session_id, configId="model", value="large")
    else:
        await client.call(
            "session/set_config_option", sessionId=session_id, configId="model", type="id", value="large"
        )
    await client.call("session/list")
    await client.call("_echo", sessionId=session_id, text="hello")
    await client.fails("session/unheard_of", sessionId=session_id)
    await client.fails("session/prompt", sessionId=session_id, prompt="no list")
    await client.fails("session/prompt", sessionId="nobody", prompt=[TEXT])


async def restore(client: Checked, session_id: str) -> None:
    """Another client brings the session back, in each way there is, and ends it."""
    if client.version == 1:
        await client.open("session/load", session_id)
    else:
        await client.open("session/resume", session_id, replayFrom={"type": "start"})
    await client.turn(session_id, "say 1 again")
    await client.open("session/resume", session_id)
    fork = await client.call("session/fork", sessionId=session_id, cwd=client.place.cwd, mcpServers=[])
    await client.call("session/close", sessionId=fork["sessionId"])
    await client.call("session/delete", sessionId=session_id)


BOTH = {
    *("agent_message_chunk", "agent_thought_chunk", "tool_call_update", "usage_update", "session_info_update"),
    *("config_option_update", "available_commands_update", "session/request_permission", "elicitation/create"),
    "error",
}
V1_ONLY = {"tool_call", "plan", "current_mode_update"}
EXPECTED = {
    "v1": BOTH | V1_ONLY | {"user_message_chunk"},
    "marked": BOTH | V1_ONLY | {"user_message_chunk", "turn_complete"},
    "lifecycle": BOTH | V1_ONLY | {"user_message", "state_change"},
    "v2": BOTH | {"user_message", "plan_update", "state_update"},
}
"""Frames that a client of each dialect must have received, so that the check is complete."""


@pytest.mark.guarantee("G11")
@pytest.mark.parametrize("dialect", list(DIALECTS))
@pytest.mark.parametrize("profile", get_args(Profile))
async def test_everything_that_a_client_is_sent_is_in_the_schema_of_its_version(
    profile: Profile, dialect: str
) -> None:
    async with acp_daemon(profile, AgentOptions(after="commands review")) as place:
        async with checked(place, DIALECTS[dialect]) as client:
            session_id = await client.new()
            await work(client, session_id, profile)
            await choose(client, session_id)
        async with checked(place, DIALECTS[dialect]) as again:
            await restore(again, session_id)
    problems = client.check.problems + again.check.problems
    assert not problems, "\n\n".join(problems[:8])
    seen = client.check.seen | again.check.seen
    assert not EXPECTED[dialect] - seen
    if profile != "v2" and client.version == 1:
        assert not SERVED.keys() - seen
    for mark in (each for each in client.updates() if each["sessionUpdate"] == "turn_complete"):
        assert (
            msgspec.json.decode(json.dumps(mark), type=TurnCompleteUpdate).prompt_request_id
            == mark["promptRequestId"]
        )


OFFERS = {
    "turn-complete": ("agentCapabilities", "AgentCapabilities"),
    "lifecycle": ("agentCapabilities", "AgentCapabilities"),
    "session-ready": (None, "InitializeResult"),
}
"""Path in the answer to `initialize` at which the schema of a draft puts its offer."""


@pytest.mark.parametrize("draft", OFFERS)
@pytest.mark.parametrize("dialect", list(DIALECTS))
async def test_what_is_offered_of_a_draft_is_in_our_schema_of_it(dialect: str, draft: str) -> None:
    member, definition = OFFERS[draft]
    async with acp_daemon() as place, checked(place, DIALECTS[dialect]) as client:
        result = client.frames[0]["result"]
        offered = result if member is None else result.get(member, {})
        assert against_draft(draft, definition, offered) == []


WRONG: list[tuple[str, str, Json]] = [
    ("turn-complete", "TurnCompleteUpdate", {"sessionUpdate": "turn_complete", "stopReason": "end_turn"}),
    ("turn-complete", "TurnCompleteUpdate", {"sessionUpdate": "turn_complete", "promptRequestId": None}),
    ("turn-complete", "AgentCapabilities", {"sessionCapabilities": {"turnComplete": "yes"}}),
    ("session-ready", "SessionReadyNotification", {"session": "s"}),
    ("session-ready", "Notification", {"jsonrpc": "2.0", "id": 1, "method": "session/ready", "params": {}}),
    ("session-ready", "InitializeResult", {"capabilities": {"session": {"ready": 1}}}),
    ("lifecycle", "StateChange", {"sessionUpdate": "state_change", "state": "running", "stop_reason": "end_turn"}),
    ("lifecycle", "UserMessage", {"sessionUpdate": "user_message", "content": []}),
    ("lifecycle", "PromptResult", {"stopReason": "end_turn"}),
]


@pytest.mark.parametrize(("draft", "definition", "value"), WRONG)
def test_our_schemas_of_drafts_refuse_what_is_not_theirs(draft: str, definition: str, value: Json) -> None:
    assert against_draft(draft, definition, value)


BAD: list[tuple[int, str, Json]] = [
    (1, "update", {"sessionUpdate": "agent_message_chunk"}),
    (2, "update", {"sessionUpdate": "turn_complete", "promptRequestId": 1, "stopReason": "end_turn"}),
    (1, "update", {"sessionUpdate": "state_change", "state": "idle"}),
    (1, "update", {"sessionUpdate": "state_update", "state": "idle"}),
    (1, "update", {"sessionUpdate": "tool_call", "toolCallId": "t"}),
    (2, "update", {"sessionUpdate": "agent_message_chunk", "content": TEXT}),
    (2, "update", {"sessionUpdate": "made_up"}),
    (2, "update", {"sessionUpdate": "state_update", "state": "sleeping"}),
    (2, "result", {"stopReason": "end_turn"}),
    (1, "result", {"stopReason": "tired"}),
    (1, "result", {}),
]


@pytest.mark.parametrize(("version", "where", "value"), BAD)
def test_the_check_refuses_what_is_not_in_the_schema(version: int, where: str, value: Json) -> None:
    check = SchemaCheck(version)
    check.sent({"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": {}})
    if where == "update":
        params = {"sessionId": "s", "update": value}
        check.received({"jsonrpc": "2.0", "method": "session/update", "params": params})
    else:
        check.received({"jsonrpc": "2.0", "id": 1, "result": value})
    assert check.problems


def test_the_check_refuses_a_second_answer_and_an_id_of_another_type() -> None:
    good: Json = {"jsonrpc": "2.0", "id": 1, "result": {"stopReason": "end_turn"}}
    for wrong in (good, {**good, "id": "1"}):
        check = SchemaCheck(1)
        check.sent({"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": {}})
        check.received(good)
        assert not check.problems
        check.received(wrong)
        assert len(check.problems) == 1
