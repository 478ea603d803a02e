"""The capabilities of an official SDK's agent, in turnwire's form."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from turnwire.agent.options import AgentOptions, Command, Mode, Option, Value
from turnwire.agent.v2_updates import Json
from turnwire.projections.translate.handshake import read_client
from turnwire.wire.jsonrpc import raw
from turnwire_agent import official_sdk


def test_the_offers_of_the_object_become_settings_and_the_author_s_own_stay() -> None:
    answer: Json = {
        "agentCapabilities": {
            "loadSession": True,
            "promptCapabilities": {"image": True, "audio": False},
            "mcpCapabilities": {"sse": True},
            "sessionCapabilities": {"close": {}, "fork": None},
        },
        "authMethods": [
            {"id": "a", "name": "A", "description": "by A"},
            {"id": "t", "name": "T", "type": "terminal", "args": ["login"], "env": {"X": "1"}},
        ],
    }
    made = official_sdk.agent_options(answer, AgentOptions(ready_s=7, audio=True))
    assert (made.ready_s, made.image, made.audio, made.mcp_http, made.mcp_sse) == (7, True, False, False, True)
    first, second = made.auth_methods
    assert (first.id, first.type, first.description) == ("a", "agent", "by A")
    assert (second.type, second.args, second.env) == ("terminal", ("login",), (("X", "1"),))
    assert official_sdk.abilities(answer) == official_sdk.Abilities(load=True, close=True)
    assert official_sdk.abilities({}) == official_sdk.Abilities()


def test_a_client_of_each_version_is_introduced_as_v1_knows_clients() -> None:
    v1 = {"protocolVersion": 1, "clientCapabilities": {"fs": {"readTextFile": True}}, "clientInfo": {"name": "e"}}
    assert official_sdk.initialize_params(v1, read_client(raw(v1))) == v1
    v2: Json = {
        "protocolVersion": 2,
        "info": {"name": "e", "version": "1"},
        "capabilities": {"elicitation": {"form": {}}},
    }
    assert official_sdk.initialize_params(v2, read_client(raw(v2))) == {
        "protocolVersion": 1,
        "clientCapabilities": {"elicitation": {"form": {}}},
        "clientInfo": {"name": "e", "version": "1"},
    }


def test_groups_of_values_become_one_list_and_a_switch_has_no_values() -> None:
    listed = [
        {
            "id": "model",
            "name": "Model",
            "type": "select",
            "category": "model",
            "currentValue": "b",
            "options": [
                {"group": "g", "name": "G", "options": [{"value": "a", "name": "A"}, {"value": "b", "name": "B"}]}
            ],
        },
        {"id": "fast", "name": "Fast", "type": "boolean", "currentValue": True},
    ]
    model = Option("model", "Model", "b", [Value("a", "A"), Value("b", "B")], None, "model")
    assert official_sdk.options(listed) == [model, Option("fast", "Fast", True, [])]
    assert official_sdk.modes_of(model) == [Mode("a", "A"), Mode("b", "B")]


def test_modes_and_commands() -> None:
    offers = {
        "modes": {"currentModeId": "b", "availableModes": [{"id": "a", "name": "A"}, {"id": "b", "name": "B"}]}
    }
    assert official_sdk.modes(offers) == ([Mode("a", "A"), Mode("b", "B")], "b")
    assert official_sdk.modes({}) == ([], None)
    listed = [
        {"name": "go", "description": "Go", "input": {"hint": "where"}},
        {"name": "stop", "description": "Stop"},
    ]
    assert official_sdk.commands(listed) == [Command("go", "Go", "where"), Command("stop", "Stop")]


def test_servers_and_directories_are_told_in_the_form_of_v1() -> None:
    servers = raw([{"type": "stdio", "name": "s", "command": "c"}, {"type": "http", "name": "h", "url": "u"}])
    params = official_sdk.session_params("/w", servers, ["/x"], {"k": 1}, sessionId="s1")
    assert params == {
        "sessionId": "s1",
        "cwd": "/w",
        "mcpServers": [
            {"name": "s", "command": "c", "args": [], "env": []},
            {"type": "http", "name": "h", "url": "u", "headers": []},
        ],
        "additionalDirectories": ["/x"],
        "_meta": {"k": 1},
    }
    assert official_sdk.session_params("/w", Raw(b"[]"), [], {}) == {"cwd": "/w", "mcpServers": []}


def test_a_replayed_history_is_kept_in_the_words_of_v2() -> None:
    told = official_sdk.history(
        [
            {"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": "hi"}},
            {"sessionUpdate": "tool_call", "toolCallId": "t", "title": "T", "status": "completed"},
            {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "ho"}},
        ]
    )
    kinds = [msgspec.json.decode(each)["sessionUpdate"] for each in told]
    assert "tool_call" not in kinds
    assert kinds[-1].startswith("agent_message")
    assert kinds[0].startswith("user_message")


def test_a_block_that_v1_does_not_know_becomes_words() -> None:
    assert official_sdk.prompt_blocks([{"type": "text", "text": "a"}, {"type": "new", "x": 1}]) == [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "[new: content that this version of ACP cannot show]"},
    ]
