"""Rules of ACP v2 for agents, which turnwire is to its clients."""

from __future__ import annotations

from typing import Any

import pytest
from tests.server.acp.recorder import V2_AGENT, recorded, v1_agent
from tests.support.acp import V1, V2, Client, Json, acp_daemon, connected

from turnwire_testing import AgentOptions, Profile

pytestmark = pytest.mark.anyio

TEXT: Json = {"type": "text", "text": "some words"}
METHODS: list[Json] = [
    {"type": "agent", "methodId": "key", "name": "Key"},
    {"type": "terminal", "methodId": "shell", "name": "Shell", "env": [{"name": "A", "value": "1"}]},
]
AGENTS = pytest.mark.parametrize("profile", ["v1", "v1plus", "v2"])


def position(client: Client, wanted: Json) -> int:
    return next(place for place, each in enumerate(client.frames) if each is wanted)


def states(client: Client) -> list[str]:
    return [each["state"] for each in client.updates() if each["sessionUpdate"] == "state_update"]


# -- the handshake -------------------------------------------------------------------------------------------


@AGENTS
async def test_all_that_belongs_to_sessions_is_there(profile: Profile) -> None:
    async with acp_daemon(profile) as place, connected(place, V2) as client:
        told = client.frames[0]["result"]
        assert told["info"]["name"] == "turnwire"
        assert isinstance(told["capabilities"]["session"], dict)
        session_id = await client.new()
        assert await client.prompt(session_id, "say 1 begun\nnever")
        await client.update("agent_message_chunk")
        await client.notify("session/cancel", sessionId=session_id)
        await client.idle()
        assert [each["sessionId"] for each in (await client.call("session/list"))["sessions"]] == [session_id]
        assert await client.call("session/close", sessionId=session_id) == {}
        await client.open("session/resume", session_id)
        await client.prompt(session_id, "say 1 again")
        await client.idle(3)


@AGENTS
async def test_where_there_is_a_way_to_log_in_there_is_one_out(profile: Profile) -> None:
    async with acp_daemon(profile, AgentOptions(auth_required=True)) as place, connected(place, V2) as client:
        assert await client.call("auth/login", methodId="token") == {}
        await client.new()
        assert await client.call("auth/logout") == {}
        assert (await client.fails("session/new", cwd=place.cwd))["code"] == -32000


async def test_an_agent_without_logins_is_asked_neither_in_nor_out() -> None:
    async with recorded(V2_AGENT) as (place, agent), connected(place, V2) as client:
        assert (await client.fails("auth/login", methodId="key"))["code"] == -32601
        assert (await client.fails("auth/logout"))["code"] == -32601
        assert agent.methods() == ["initialize"]


@pytest.mark.parametrize("can_run", [True, False])
async def test_a_program_for_logging_in_is_the_clients_to_run(can_run: bool) -> None:
    runs: Json = {**V2, "capabilities": {"auth": {"terminal": {} if can_run else None}}}
    says = {**V2_AGENT, "authMethods": METHODS}
    async with recorded(says) as (place, agent), connected(place, runs) as client:
        named = [each["methodId"] for each in client.frames[0]["result"]["authMethods"]]
        assert named == (["key", "shell"] if can_run else ["key"])
        assert (await client.fails("auth/login", methodId="shell"))["code"] == -32602
        assert "auth/login" not in agent.methods()


# -- coming back ---------------------------------------------------------------------------------------------


@AGENTS
async def test_messages_that_are_told_again_have_the_ids_they_had(profile: Profile) -> None:
    async with acp_daemon(profile) as place, connected(place, V2) as first:
        session_id = await first.new()
        answers = [await first.answer(await first.prompt(session_id, f"say 2 {word}")) for word in ("one", "two")]
        await first.idle(2)
        async with connected(place, V2) as client:
            await client.open("session/resume", session_id, replayFrom={"type": "start"})
            told = [each for each in client.updates() if "message" in each["sessionUpdate"]]
            assert told == [each for each in first.updates() if "message" in each["sessionUpdate"]]
            assert all(isinstance(each["messageId"], str) for each in told)
            prompts = [each["messageId"] for each in told if each["sessionUpdate"] == "user_message"]
            assert prompts == [each["result"]["messageId"] for each in answers]


@AGENTS
async def test_an_agent_that_lost_the_session_writes_into_no_old_message(profile: Profile) -> None:
    async with acp_daemon(profile) as place, connected(place, V2) as client:
        session_id = await client.new()
        for count, word in enumerate(("one", "two"), 1):
            await client.prompt(session_id, f"say 2 {word}")
            await client.idle(count)
            await place.source.cut()
        spoken = [each for each in client.updates() if each["sessionUpdate"] == "agent_message_chunk"]
        assert [each["content"]["text"] for each in spoken] == ["one", "one", "two", "two"]
        ids = [each["messageId"] for each in spoken]
        assert ids[0] == ids[1] != ids[2] == ids[3]
        async with connected(place, V2) as late:
            await late.open("session/resume", session_id, replayFrom={"type": "start"})
            told = [each for each in late.updates() if each["sessionUpdate"] == "agent_message_chunk"]
            assert told == spoken


NOTICED: Json = {**V1, "clientCapabilities": {"session": {"notices": {}}}}


@pytest.mark.parametrize("able", [NOTICED, V2])
@pytest.mark.parametrize("says", [v1_agent(), V2_AGENT])
async def test_a_notice_is_for_those_who_are_there(says: Json, able: Json) -> None:
    async with recorded(says) as (place, agent), connected(place, able) as client:
        session_id = await client.new()
        agent.update("notice", severity="info", title="Look")
        agent.say("some words", messageId="m")
        await client.update("agent_message_chunk")
        assert "notice" in client.kinds()
        async with connected(place, able) as late:
            if late.version == 2:
                await late.open("session/resume", session_id, replayFrom={"type": "start"})
            else:
                await late.open("session/load", session_id)
            assert "says some words" in late.kinds()
            assert "notice" not in late.kinds()
        async with connected(place, able) as back:
            await back.open("session/attach", session_id, _meta={"turnwire": {"after": 0}})
            assert "notice" in back.kinds(), "who names the last event that it has was there"


# -- closing -------------------------------------------------------------------------------------------------


async def test_closing_ends_the_work_and_then_the_session_is_silent() -> None:
    async with recorded(V2_AGENT) as (place, agent), connected(place, V2) as client:
        session_id = await client.new()
        await client.prompt(session_id, "work")
        waiting = await client.prompt(session_id, "more work")
        prompt, second = await agent.prompted(), await agent.prompted(2)
        agent.update("state_update", state="running")
        agent.send({"id": prompt["id"], "result": {"messageId": "theirs"}})
        await client.update("state_update", state="running")
        closing = await client.ask("session/close", sessionId=session_id)
        await agent.asked("session/cancel")
        agent.send({"id": second["id"], "error": {"code": -32800, "message": "closed"}})
        agent.say("last words", messageId="m")
        agent.update("state_update", state="idle", stopReason="cancelled")
        closed = await client.answer(closing)
        agent.say("too late", messageId="m")
        await client.call("session/list")
        assert (await client.answer(waiting))["error"]["code"] == -32800
        assert client.kinds()[-2:] == ["says last words", "state_update idle"]
        assert client.updates()[-1]["stopReason"] == "cancelled"
        assert not [each for each in client.frames[position(client, closed) :] if "method" in each]
        assert await client.call("session/close", sessionId=session_id) == {}


# -- turns ---------------------------------------------------------------------------------------------------


async def test_a_cancel_takes_back_what_was_asked_and_a_late_answer_approves_nothing() -> None:
    async with recorded(V2_AGENT) as (place, agent), connected(place, V2) as client:
        session_id = await client.new()
        await client.prompt(session_id, "work")
        await agent.prompted()
        agent.update("state_update", state="running")
        option = {"optionId": "yes", "name": "Yes", "kind": "allow_once"}
        params = {"sessionId": "a1", "title": "May I?", "options": [option]}
        agent.send({"id": "q", "method": "session/request_permission", "params": params})
        asked = await client.until(lambda each: each.get("method") == "session/request_permission")
        await client.notify("session/cancel", sessionId=session_id)
        taken_back = await client.until(lambda each: each.get("method") == "$/cancel_request")
        assert taken_back["params"]["requestId"] == asked["id"]
        late = {"outcome": {"outcome": "selected", "optionId": "yes"}}
        await client.send({"jsonrpc": "2.0", "id": asked["id"], "result": late})
        await client.call("session/list")
        answers = [each for each in agent.frames if each.get("id") == "q"]
        assert [each["result"] for each in answers] == [{"outcome": {"outcome": "cancelled"}}]


# -- single items --------------------------------------------------------------------------------------------

ITEMS = pytest.mark.parametrize(
    ("method", "kind", "name"),
    [
        ("tool_call/cancel", "tool_call_update", "toolCallId"),
        ("terminal/cancel", "terminal_update", "terminalId"),
    ],
)


@ITEMS
async def test_one_item_is_cancelled_where_the_agent_offers_it(method: str, kind: str, name: str) -> None:
    replies: dict[str, Any] = {method.replace("/", "__"): {"result": {}}}
    async with recorded(V2_AGENT, **replies) as (place, agent), connected(place, V2) as client:
        session_id = await client.new()
        agent.update(kind, **{name: "one", "capabilities": {"cancel": {}}})
        agent.update(kind, **{name: "two"})
        await client.until(lambda _: len(client.updates()) == 2)
        assert await client.call(method, sessionId=session_id, **{name: "one"}) == {}
        assert (await agent.asked(method))["params"] == {"sessionId": "a1", name: "one"}
        for other in ("two", "three"):
            assert (await client.fails(method, sessionId=session_id, **{name: other}))["code"] == -32602
        agent.update(kind, **{name: "one", "capabilities": None})
        await client.until(lambda _: len(client.updates()) == 3)
        assert (await client.fails(method, sessionId=session_id, **{name: "one"}))["code"] == -32602
        assert agent.methods().count(method) == 1
        assert states(client) == []


@ITEMS
async def test_the_agents_refusal_to_cancel_an_item_is_told(method: str, kind: str, name: str) -> None:
    error = {"code": -32602, "message": "it is over"}
    replies: dict[str, Any] = {method.replace("/", "__"): {"error": error}}
    async with recorded(V2_AGENT, **replies) as (place, agent), connected(place, V2) as client:
        session_id = await client.new()
        agent.update(kind, **{name: "one", "capabilities": {"cancel": {}}})
        await client.update(kind)
        assert await client.fails(method, sessionId=session_id, **{name: "one"}) == error


async def test_an_agent_of_v1_is_never_asked_to_cancel_an_item() -> None:
    async with recorded(v1_agent()) as (place, agent), connected(place, V2) as client:
        session_id = await client.new()
        agent.update("tool_call", toolCallId="one", title="One", capabilities={"cancel": {}})
        await client.update("tool_call_update")
        assert (await client.fails("tool_call/cancel", sessionId=session_id, toolCallId="one"))["code"] == -32602
        assert "tool_call/cancel" not in agent.methods()


# -- what is not known ---------------------------------------------------------------------------------------

STRANGE: list[Json] = [
    {"sessionUpdate": "_theirs", "n": [1, None], "_meta": None},
    {"sessionUpdate": "of_a_later_acp", "x": 1},
    {"sessionUpdate": "agent_message_chunk", "messageId": "m", "content": {"type": "_hologram", "data": 1}},
    {"sessionUpdate": "tool_call_update", "toolCallId": "t", "kind": "_dream", "status": "_asleep", "title": None},
    {"sessionUpdate": "plan_update", "plan": {"type": "_map", "planId": "p", "roads": []}},
    {
        "sessionUpdate": "config_option_update",
        "configOptions": [{"configId": "o", "name": "O", "type": "_slider", "currentValue": 3}],
    },
]


@pytest.mark.odd_frames("what no schema has is passed on as it came")
async def test_values_that_nobody_knows_pass_and_are_told_again_as_they_came() -> None:
    async with recorded(V2_AGENT) as (place, agent), connected(place, V2) as client:
        session_id = await client.new()
        for each in STRANGE:
            agent.send({"method": "session/update", "params": {"sessionId": "a1", "update": each}})
        await client.until(lambda _: len(client.updates()) == len(STRANGE))
        assert client.updates() == STRANGE
        async with connected(place, V2) as late:
            result = await late.open("session/resume", session_id, replayFrom={"type": "start"})
            assert late.updates()[: len(STRANGE)] == STRANGE
            assert result["configOptions"] == STRANGE[-1]["configOptions"]


# -- settings and sessions that are not there ----------------------------------------------------------------


@AGENTS
async def test_an_option_or_a_value_that_is_not_there_is_refused_and_nothing_changes(profile: Profile) -> None:
    async with acp_daemon(profile) as place, connected(place, V2) as client:
        opened = await client.call("session/new", cwd=place.cwd)
        wrong: list[Json] = [
            {"configId": "none", "type": "id", "value": "code"},
            {"configId": "mode", "type": "id", "value": "none"},
            {"configId": "mode", "type": "boolean", "value": True},
        ]
        for each in wrong:
            error = await client.fails("session/set_config_option", sessionId=opened["sessionId"], **each)
            assert error["code"] == -32602
        again = await client.open("session/resume", opened["sessionId"])
        assert again["configOptions"] == opened["configOptions"]


async def test_a_session_that_is_not_there_is_named_in_the_error(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, Json]] = [
        ("session/prompt", {"prompt": [TEXT]}),
        ("session/resume", {"cwd": "/"}),
        ("session/set_config_option", {"configId": "mode", "type": "id", "value": "code"}),
        ("session/fork", {"cwd": "/"}),
        ("tool_call/cancel", {"toolCallId": "t"}),
        ("terminal/cancel", {"terminalId": "t"}),
    ]
    async with acp_daemon() as place, connected(place, V2) as client:
        for method, params in cases:
            with subtests.test(repr((method, params))):
                error = await client.fails(method, sessionId="s_none", **params)
                assert (error["code"], error["data"]["sessionId"]) == (-32002, "s_none")
                assert await client.call("session/close", sessionId="s_none") == {}
