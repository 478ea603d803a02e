"""Members and methods beyond the stable text that released peers use: system prompts, terminals, session lists."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.literal.agents import PLAIN, PUBLISHED, AgentText, v1_result
from tests.literal.clients import NAMELESS, V2, RawClient
from tests.literal.heard import Frame
from tests.literal.stages import House

INSTRUCTED = replace(PLAIN, name="instructed", initialized=v1_result(systemPrompt={}))
INSTRUCTED_V2 = replace(
    PUBLISHED,
    name="instructed-v2",
    initialized=PUBLISHED.initialized | {"capabilities": {"session": {"systemPrompt": {}}}},
)
PROMPT: Frame = {"mode": "append", "content": [{"type": "text", "text": "Answer in French."}]}
ZED: Frame = {
    "protocolVersion": 1,
    "clientCapabilities": {"_meta": {"terminal_output": True, "terminal-auth": True}},
}


def new_session(client: RawClient, cwd: object, **more: Any) -> int | str:
    return client.request("session/new", {"cwd": str(cwd), "mcpServers": [], **more})


@pytest.mark.parametrize(
    ("agent", "client"), [(INSTRUCTED, NAMELESS), (INSTRUCTED_V2, V2), (INSTRUCTED_V2, NAMELESS)]
)
def test_a_system_prompt_and_unknown_members_reach_the_agent(house: House, agent: AgentText, client: Frame) -> None:
    stage = house.stage("websocket", client, agent)
    cwd = house.folder()
    asked = new_session(stage.client, cwd, systemPrompt=PROMPT, futureMember={"a": 1})
    stage.client.response(asked)
    [sent] = [
        each["params"]
        for each in stage.agents.session(cwd).agent.heard.all()
        if each.get("method") == "session/new" and each["params"]["cwd"] == str(cwd)
    ]
    assert (sent["systemPrompt"], sent["futureMember"]) == (PROMPT, {"a": 1})
    offered = stage.client.initialized
    session = (
        offered["capabilities"]["session"] if client is V2 else offered["agentCapabilities"]["sessionCapabilities"]
    )
    assert session["systemPrompt"] == {}


def test_a_system_prompt_survives_a_restart_over_rest(house: House) -> None:
    served = house.serve(replace(INSTRUCTED, name="instructed-again"))
    with served:
        rest, cwd = house.rest(served.daemon), house.folder()
        reply = rest.ask("POST", "/session", {"cwd": str(cwd), "systemPrompt": PROMPT})
        assert reply.status == 200, reply
        created = reply.json()
        agent = served.agents.session(cwd).agent
        agent.kill()
        rest.prompt(created["sessionId"], "hello")
        again = served.agents.life(1)
        opened = again.heard.until(lambda frame: frame.get("method") == "session/load", what="load")
        assert opened["params"]["systemPrompt"] == PROMPT


def test_an_agent_without_system_prompts_is_not_sent_one(house: House, transport: str) -> None:
    stage = house.stage(transport, NAMELESS, PLAIN)
    error = stage.client.response(new_session(stage.client, house.folder(), systemPrompt=PROMPT))["error"]
    assert error["code"] == -32602
    assert "systemPrompt" in error["message"]


def test_an_agent_learns_that_logins_in_a_terminal_can_be_shown_and_plans_read(house: House) -> None:
    stage = house.stage("websocket", NAMELESS, PLAIN)
    asked = stage.open().agent.agent.heard.until(
        lambda frame: frame.get("method") == "initialize", what="initialize"
    )
    v1, v2 = asked["params"]["clientCapabilities"], asked["params"]["capabilities"]
    assert (v1["auth"], v1["plan"], v1["_meta"]["terminal-auth"]) == ({"terminal": True}, {}, True)
    assert (v2["auth"], v2["_meta"]["terminal-auth"]) == ({"terminal": {}}, True)


def test_an_editor_that_shows_terminals_gets_those_of_a_v2_agent(house: House, transport: str) -> None:
    talk = house.stage(transport, ZED, PUBLISHED).open()
    asked = talk.prompt("run ls")
    prompt = talk.agent.asked()
    talk.agent.begin(prompt)
    shown = [{"type": "terminal", "terminalId": "x1"}]
    talk.agent.say(
        {"sessionUpdate": "terminal_update", "terminalId": "x1", "command": "ls", "cwd": "/w"},
        {"sessionUpdate": "tool_call_update", "toolCallId": "t1", "title": "ls", "content": shown},
        {"sessionUpdate": "terminal_output_chunk", "terminalId": "x1", "data": "b25lCg=="},
        {"sessionUpdate": "terminal_update", "terminalId": "x1", "exitStatus": {"exitCode": 0}},
    )
    talk.agent.end(prompt)
    talk.client.response(asked)
    calls = [each for each in talk.updates() if each["sessionUpdate"].startswith("tool_call")]
    assert calls[0]["content"] == shown
    meta: Frame = {}
    for each in calls:
        meta |= each.get("_meta", {})
    assert meta["terminal_info"] == {"terminal_id": "x1", "cwd": "/w"}
    assert meta["terminal_output"] == {"terminal_id": "x1", "data": "one\n"}
    assert meta["terminal_exit"] == {"terminal_id": "x1", "exit_code": 0, "signal": None}


@pytest.mark.parametrize("client", [NAMELESS, V2], ids=["v1", "v2"])
def test_sessions_are_renamed_archived_and_looked_at(house: House, transport: str, client: Frame) -> None:
    talk = house.stage(transport, client, PLAIN).open()
    named = {"sessionId": talk.id}
    assert talk.client.call("session/set_title", named | {"title": " A title "}) == {"title": "A title"}
    assert talk.client.call("session/status", named) == {"status": "open"}

    def listed(**more: str) -> list[str]:
        found = talk.client.call("session/list", {"cwd": str(talk.cwd), **more})["sessions"]
        return [each["title"] for each in found]

    assert listed() == ["A title"]
    assert talk.client.call("session/archive", named) == {}
    assert (listed(), listed(archived="only"), listed(archived="include")) == ([], ["A title"], ["A title"])
    assert talk.client.call("session/unarchive", named) == {}
    assert listed() == ["A title"]
    wrong = talk.client.request("session/list", {"archived": "maybe"})
    assert talk.client.response(wrong)["error"]["code"] == -32602
    empty = talk.client.request("session/set_title", named | {"title": " "})
    assert talk.client.response(empty)["error"]["code"] == -32602


OPEN = replace(
    PLAIN,
    name="open",
    initialized=PLAIN.initialized
    | {"agentCapabilities": {"providers": {}, "auth": {"status": {}, "logout": {}}, "loadSession": True}},
)


def test_providers_and_the_login_state_are_the_agents(house: House) -> None:
    stage = house.stage("websocket", NAMELESS, OPEN)
    capabilities = stage.client.initialized["agentCapabilities"]
    assert (capabilities["providers"], capabilities["auth"]) == ({}, {"logout": {}, "status": {}})
    params = {"providerId": "p", "headers": {"Authorization": "secret"}}
    asked = {"auth/status": {}, "providers/list": {}, "providers/set": params}
    for method, sent in asked.items():
        request = stage.client.request(method, sent)
        refused = stage.client.response(request)["error"]
        assert (refused["code"], refused["message"]) == (-32601, f"no {method} here")
    log = (stage.daemon.folder / "stderr.txt").read_text()
    assert "secret" not in log


@pytest.mark.parametrize("method", ["auth/status", "providers/list"])
def test_what_the_agent_does_not_offer_never_reaches_it(house: House, method: str) -> None:
    stage = house.stage("websocket", NAMELESS, PLAIN)
    error = stage.client.response(stage.client.request(method, {}))["error"]
    assert error["code"] == -32601
    assert "does not offer" in error["message"]
