"""Rules of ACP v1 for agents, which turnwire is to its clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.server.acp.recorder import V2_AGENT, Recorder, recorded, v1_agent
from tests.support.acp import V1, Client, Json, Place, acp_daemon, connected

from turnwire.ids import SessionId
from turnwire_testing import AgentOptions, Profile

pytestmark = pytest.mark.anyio

TEXT: Json = {"type": "text", "text": "look at this"}
SWITCH: Json = {"id": "fast", "name": "Fast", "type": "boolean", "currentValue": True}
CHOICE: Json = {
    "id": "tone",
    "name": "Tone",
    "type": "select",
    "category": "of_a_later_acp",
    "currentValue": "dry",
    "options": [{"value": "dry", "name": "Dry"}],
}
OPTIONS: list[Json] = [SWITCH, CHOICE]


def asking_for(**capabilities: Any) -> Json:
    return {**V1, "clientCapabilities": capabilities}


def position(client: Client, wanted: Json) -> int:
    return next(place for place, each in enumerate(client.frames) if each is wanted)


async def begun(client: Client, agent: Recorder) -> tuple[SessionId, int | str]:
    """Open a new session with a turn that the agent works on."""
    session_id = await client.new()
    request_id = await client.prompt(session_id, "begin")
    await agent.prompted()
    return session_id, request_id


# -- the wire and the handshake ------------------------------------------------------------------------------


async def test_a_path_that_is_not_absolute_reaches_no_agent(subtests: pytest.Subtests) -> None:
    cases: list[str] = ["here", "", "./here", "~", "file:///tmp"]
    async with recorded(v1_agent()) as (place, agent), connected(place, V1) as client:
        for path in cases:
            with subtests.test(repr(path)):
                assert (await client.fails("session/new", cwd=path, mcpServers=[]))["code"] == -32602
                assert (await client.fails("session/list", cwd=path))["code"] == -32602
                assert "session/new" not in agent.methods()


async def test_a_loaded_session_is_answered_with_nothing_that_v1_does_not_have() -> None:
    async with recorded(v1_agent()) as (place, agent), connected(place, V1) as client:
        session_id = await client.new()
        agent.update("available_commands_update", availableCommands=[{"name": "go", "description": "Go"}])
        await client.update("available_commands_update")
        for method in ("session/load", "session/resume"):
            async with connected(place, V1) as other:
                assert (await other.open(method, session_id)).keys() <= {"modes", "configOptions", "_meta"}
                assert await other.update("available_commands_update")


# -- logging in ----------------------------------------------------------------------------------------------

METHODS: list[Json] = [
    {"id": "key", "name": "Key"},
    {"id": "shell", "name": "Shell", "type": "terminal", "args": []},
]


async def test_logging_out_goes_only_to_an_agent_that_offers_it() -> None:
    async with recorded(v1_agent()) as (place, agent), connected(place, V1) as client:
        assert (await client.fails("logout"))["code"] == -32601
        assert agent.methods() == ["initialize"]
    able = v1_agent(auth={"logout": {}})
    async with recorded(able, logout={"result": {}}) as (place, agent), connected(place, V1) as client:
        assert await client.call("logout") == {}
        assert "logout" in agent.methods()


@pytest.mark.parametrize("can_run", [True, False])
async def test_a_program_for_logging_in_is_named_to_clients_that_can_run_it(can_run: bool) -> None:
    says = {**v1_agent(), "authMethods": METHODS}
    async with recorded(says) as (place, _), connected(place, asking_for(auth={"terminal": can_run})) as client:
        named = [each["id"] for each in client.frames[0]["result"]["authMethods"]]
        assert named == (["key", "shell"] if can_run else ["key"])


async def test_a_program_for_logging_in_is_not_asked_of_the_agent() -> None:
    says = {**v1_agent(), "authMethods": METHODS}
    runs = asking_for(auth={"terminal": True})
    async with recorded(says, authenticate={"result": {}}) as (place, agent), connected(place, runs) as client:
        assert (await client.fails("authenticate", methodId="shell"))["code"] == -32602
        assert "authenticate" not in agent.methods()
        assert await client.call("authenticate", methodId="key") == {}


async def test_a_login_that_is_gone_is_told_in_a_session_that_was_open() -> None:
    error = {"code": -32000, "message": "log in first"}
    async with recorded(v1_agent(), session__prompt={"error": error}) as (place, _), connected(place, V1) as client:
        answer = await client.answer(await client.prompt(await client.new(), "go on"))
        assert answer["error"]["code"] == -32000


# -- sessions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
async def test_who_comes_back_is_told_what_is_chosen_now(method: str) -> None:
    async with acp_daemon() as place, connected(place, V1) as first:
        session_id = await first.new()
        await first.call("session/set_mode", sessionId=session_id, modeId="code")
        async with connected(place, V1) as client:
            result = await client.open(method, session_id)
            assert result["modes"]["currentModeId"] == "code"
            assert next(each for each in result["configOptions"] if each["id"] == "mode")["currentValue"] == "code"


async def test_sessions_are_listed_in_pages_and_only_our_cursors_are_taken() -> None:
    async with acp_daemon() as place, connected(place, V1) as client:
        made = {await client.new() for _ in range(101)}
        assert len(made) == 101
        first = await client.call("session/list")
        assert len(first["sessions"]) == 100
        rest = await client.call("session/list", cursor=first["nextCursor"])
        assert "nextCursor" not in rest
        assert {each["sessionId"] for each in [*first["sessions"], *rest["sessions"]]} == made
        for wrong in ("nonsense", "", first["sessions"][0]["sessionId"]):
            assert (await client.fails("session/list", cursor=wrong))["code"] == -32602


# -- turns ---------------------------------------------------------------------------------------------------


async def test_a_request_that_is_taken_back_is_answered_as_such() -> None:
    async with recorded(v1_agent()) as (place, agent), connected(place, V1) as client:
        session_id = await client.new()
        request_id = await client.ask("_x/slow", sessionId=session_id)
        await agent.asked("_x/slow")
        await client.notify("$/cancel_request", requestId=request_id)
        assert (await client.answer(request_id))["error"]["code"] == -32800


async def test_what_was_asked_in_a_turn_is_settled_before_its_answer() -> None:
    async with recorded(v1_agent()) as (place, agent), connected(place, V1) as client:
        _, request_id = await begun(client, agent)
        params: Json = {"sessionId": "a1", "toolCall": {"toolCallId": "t"}, "options": []}
        agent.send({"id": "q", "method": "session/request_permission", "params": params})
        asked = await client.until(lambda each: each.get("method") == "session/request_permission")
        agent.send({"id": (await agent.prompted())["id"], "result": {"stopReason": "end_turn"}})
        answer = await client.answer(request_id)
        settled = await client.until(lambda each: each.get("method") == "$/cancel_request")
        assert settled["params"]["requestId"] == asked["id"]
        assert position(client, settled) < position(client, answer)


# -- updates that a client must ask for ----------------------------------------------------------------------

COMPACTION: Json = {"compactionId": "c", "status": "in_progress"}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("kind", "members", "capability"),
    [
        ("notice", {"severity": "info", "title": "Look"}, "notices"),
        ("compaction_update", COMPACTION, "compaction"),
        ("compaction_summary_chunk", {"compactionId": "c", "content": TEXT}, "compaction"),
    ],
)
async def test_notices_and_compactions_go_only_to_clients_that_asked(
    kind: str, members: Json, capability: str, version: int
) -> None:
    says = v1_agent() if version == 1 else V2_AGENT
    asked = asking_for(session={capability: {}})
    async with recorded(says) as (place, agent), connected(place, asked) as able, connected(place, V1) as plain:
        session_id = await able.new()
        await plain.open("session/resume", session_id)
        agent.update(kind, **members)
        agent.say("behind it", messageId="m")
        for client in (able, plain):
            await client.update("agent_message_chunk")
        assert kind in able.kinds()
        assert kind not in plain.kinds()


# -- options -------------------------------------------------------------------------------------------------


async def options_heard(place: Place, agent: Recorder, initialize: Json) -> list[list[Json]]:
    """The options in every place that has them: new, update, set, resume."""
    async with connected(place, initialize) as client, connected(place, initialize) as other:
        opened = await client.call("session/new", cwd=place.cwd, mcpServers=[])
        session_id = opened["sessionId"]
        agent.update("config_option_update", f"a{agent.opened}", configOptions=OPTIONS)
        updated = await client.update("config_option_update")
        put = await client.call("session/set_config_option", sessionId=session_id, configId="tone", value="dry")
        resumed = await other.open("session/resume", session_id)
        update = updated["params"]["update"]
        return [each["configOptions"] for each in (opened, update, put, resumed)]


async def test_options_that_are_on_or_off_go_only_to_clients_that_asked() -> None:
    def opens(_: Json) -> Json:
        agent.opened += 1
        return {"result": {"sessionId": f"a{agent.opened}", "configOptions": OPTIONS}}

    sets: Json = {"result": {"configOptions": OPTIONS}}
    async with recorded(v1_agent(), session__new=opens, session__set_config_option=sets) as (place, agent):
        asked = asking_for(session={"configOptions": {"boolean": {}}})
        assert await options_heard(place, agent, asked) == [OPTIONS] * 4
        assert await options_heard(place, agent, V1) == [[CHOICE]] * 4


@pytest.mark.parametrize("profile", ["v1", "v2"])
async def test_a_mode_is_told_as_mode_and_as_option_and_both_agree(profile: Profile) -> None:
    async with acp_daemon(profile) as place, connected(place, V1) as client, connected(place, V1) as other:
        session_id = await client.new()
        await other.open("session/resume", session_id)
        await client.call("session/set_mode", sessionId=session_id, modeId="code")
        result = await other.open("session/resume", session_id)
        option = next(each for each in result["configOptions"] if each.get("category") == "mode")
        assert result["modes"]["currentModeId"] == option["currentValue"] == "code"
        assert all("currentValue" in each for each in result["configOptions"])


# -- what clients do for agents ------------------------------------------------------------------------------


async def test_a_client_that_offers_no_files_is_asked_for_none() -> None:
    async with recorded(v1_agent()) as (place, agent), connected(place, V1) as client:
        await begun(client, agent)
        path = Path(place.cwd) / "here.txt"
        path.write_text("ours", encoding="utf-8")
        agent.send({"id": "f", "method": "fs/read_text_file", "params": {"sessionId": "a1", "path": str(path)}})
        read = await agent.until(lambda each: each.get("id") == "f")
        assert read["result"] == {"content": "ours"}
        await client.call("session/list")
        assert not [each for each in client.frames if each.get("method", "").startswith(("fs/", "terminal/"))]


@pytest.mark.parametrize("offered", ["form", "url"])
async def test_a_form_or_an_address_is_shown_only_by_a_client_that_can(offered: str) -> None:
    forms = asking_for(elicitation={offered: {}})
    async with recorded(v1_agent()) as (place, agent), connected(place, forms) as client:
        await begun(client, agent)
        ways: dict[str, Json] = {
            "form": {"requestedSchema": {"type": "object", "properties": {}}},
            "url": {"elicitationId": "e", "url": "https://example.org/login"},
        }
        for mode, members in ways.items():
            params = {"sessionId": "a1", "mode": mode, "message": "?", **members}
            agent.send({"id": mode, "method": "elicitation/create", "params": params})
        agent.say("behind them")
        await client.update("agent_message_chunk")
        shown = [each["params"] for each in client.frames if each.get("method") == "elicitation/create"]
        assert [each["mode"] for each in shown] == [offered]
        assert shown[0].items() >= ways[offered].items()


@pytest.mark.parametrize("action", ["accept", "decline", "cancel", "broken"])
async def test_what_the_user_does_with_a_form_is_the_agents_to_hear(action: str) -> None:
    forms = asking_for(elicitation={"form": {}})
    async with recorded(v1_agent()) as (place, agent), connected(place, forms) as client:
        await begun(client, agent)
        params = {"sessionId": "a1", "mode": "form", "message": "?", "requestedSchema": {"type": "object"}}
        agent.send({"id": "q", "method": "elicitation/create", "params": params})
        asked = await client.until(lambda each: each.get("method") == "elicitation/create")
        said: Json = {"result": {"action": action}}
        if action == "broken":
            said = {"error": {"code": -32603, "message": "no screen"}}
        await client.send({"jsonrpc": "2.0", "id": asked["id"], **said})
        answer = await agent.until(lambda each: each.get("id") == "q")
        assert answer["result"] == {"action": "cancel" if action == "broken" else action}


async def test_that_a_question_is_complete_is_told_to_the_client_that_was_asked() -> None:
    able = asking_for(elicitation={"url": {}})
    async with recorded(v1_agent()) as (place, agent), connected(place, able) as client, connected(place) as plain:
        session_id, _ = await begun(client, agent)
        await plain.open("session/resume", session_id)
        for named in ("one", "two"):
            params = {
                "sessionId": "a1",
                "mode": "url",
                "message": "?",
                "elicitationId": named,
                "url": "https://a.b/",
            }
            agent.send({"id": named, "method": "elicitation/create", "params": params})
            shown = await client.until(lambda each, named=named: asks_under(each, named))
            await client.send({"jsonrpc": "2.0", "id": shown["id"], "result": {"action": "accept"}})
            await agent.until(lambda each, named=named: each.get("id") == named)
        for named in ("two", "nobody's"):
            agent.send({"method": "elicitation/complete", "params": {"elicitationId": named}})
        agent.say("behind it")
        for each in (client, plain):
            await each.update("agent_message_chunk")
        told = [each["params"] for each in client.frames if each.get("method") == "elicitation/complete"]
        assert told == [{"elicitationId": "two"}]
        assert "elicitation/complete" not in [each.get("method") for each in plain.frames]


def asks_under(frame: Json, elicitation_id: str) -> bool:
    return frame.get("method") == "elicitation/create" and frame["params"]["elicitationId"] == elicitation_id


@pytest.mark.parametrize("profile", ["v1", "v2"])
async def test_whatever_a_client_leaves_out_or_offers_it_has_its_turns(profile: Profile) -> None:
    kinds: list[Json] = [{}, {"fs": None, "session": 7}, {"terminal": True}, {"_meta": {"theirs": 1}}]
    async with acp_daemon(profile, AgentOptions(after="usage 1 200")) as place:
        for capabilities in kinds:
            async with connected(place, asking_for(**capabilities)) as client:
                session_id = await client.new()
                await client.update("usage_update", used=1, size=200)
                assert "result" in await client.answer(await client.prompt(session_id, "say 1 x"))
