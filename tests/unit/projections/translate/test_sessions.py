"""Opening sessions and setting their options, across versions."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from msgspec import Raw
from tests.unit.projections.translate.speaking import complaints, plain, raw

from turnwire.errors import RemoteProtocolError
from turnwire.ids import SessionId
from turnwire.projections.translate.sessions import (
    current_offers,
    mcp_servers,
    read_opening,
    session_result,
    translate_setting,
    translate_setting_result,
    unknown_session,
    updates_after,
)
from turnwire.projections.view.latest import Latest, take_offers

OURS = SessionId("s1")
V1_OFFERS: dict[str, Any] = {
    "sessionId": "theirs",
    "modes": {"currentModeId": "ask", "availableModes": [{"id": "ask", "name": "Ask", "description": "d"}]},
    "configOptions": [{"id": "flag", "name": "Flag", "type": "boolean", "currentValue": True}],
    "models": {"currentModelId": "big", "availableModels": []},
    "_meta": {"k": 1},
}
V2_OFFERS: dict[str, Any] = {
    "sessionId": "theirs",
    "configOptions": [
        {
            "configId": "m",
            "name": "Mode",
            "category": "mode",
            "type": "select",
            "currentValue": "ask",
            "options": [{"value": "ask", "name": "Ask"}],
        },
        {"configId": "flag", "name": "Flag", "type": "boolean", "currentValue": True},
    ],
    "availableCommands": [{"type": "command", "name": "go", "description": "Go"}],
}


# -- opening -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "version"), [("session/new", 1), ("session/new", 2)])
def test_row_5_a_new_session_is_asked_for_in_both_versions(method: str, version: int) -> None:
    server: dict[str, Any] = {"name": "m", "command": "/m", "args": [], "env": []}
    params: dict[str, Any] = {"cwd": "/w", "mcpServers": [server if version == 1 else {"type": "stdio", **server}]}
    opening = read_opening(method, raw({**params, "additionalDirectories": ["/x"]}), version)
    assert (opening.cwd, opening.setup.additional_directories, opening.session_id) == ("/w", ("/x",), None)
    assert plain(opening.setup.mcp_servers) == [{"type": "stdio", **server}]


def test_row_5_v2_may_leave_the_servers_out() -> None:
    assert plain(read_opening("session/new", raw({"cwd": "/w"}), 2).setup.mcp_servers) == []


def test_row_5_servers_in_the_form_of_a_version_whatever_form_they_have() -> None:
    servers: list[Any] = [
        {"name": "a", "command": "/a", "args": ["x"], "env": []},
        {"type": "stdio", "name": "b", "command": "/b"},
        {"type": "http", "name": "c", "url": "http://c"},
        {"type": "sse", "name": "d", "url": "http://d", "headers": []},
        {"type": "_own", "name": "e", "x": 1},
    ]
    v1, losses = plain(mcp_servers(raw(servers), 1)), Counter[str]()
    assert [each.get("type") for each in v1] == [None, None, "http", "sse", "_own"]
    assert v1[1] == {"name": "b", "command": "/b", "args": [], "env": []}
    v2 = plain(mcp_servers(raw(servers), 2, losses=losses))
    assert [each["type"] for each in v2] == ["stdio", "stdio", "http", "_own"]
    assert losses == {"mcp_sse": 1}
    assert plain(mcp_servers(raw(v2), 2)) == v2


@pytest.mark.parametrize(
    ("method", "version", "more", "replay"),
    [
        ("session/load", 1, {}, True),
        ("session/resume", 1, {}, False),
        ("session/resume", 2, {}, False),
        ("session/resume", 2, {"replayFrom": None}, False),
        ("session/resume", 2, {"replayFrom": {"type": "start"}}, True),
    ],
)
def test_rows_6_and_7_history_is_replayed_to_those_who_ask(
    method: str, version: int, more: dict[str, Any], replay: bool
) -> None:
    params: dict[str, Any] = {"sessionId": "s1", "cwd": "/w", "mcpServers": [], **more}
    opening = read_opening(method, raw(params), version)
    assert (opening.session_id, opening.replay) == ("s1", replay)


@pytest.mark.parametrize(
    ("method", "version", "params"),
    [
        ("session/resume", 2, {"sessionId": "s1", "cwd": "/w", "replayFrom": {"type": "message"}}),
        ("session/resume", 2, {"sessionId": "s1", "cwd": "/w", "replayFrom": 3}),
        ("session/load", 2, {"sessionId": "s1", "cwd": "/w"}),
        ("session/new", 1, {"cwd": "/w"}),
        ("session/new", 2, {}),
        ("session/new", 2, {"cwd": "/w", "mcpServers": [{"type": "stdio"}]}),
    ],
)
def test_rows_5_to_7_what_cannot_be_read_is_refused(method: str, version: int, params: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        read_opening(method, raw(params), version)
    assert caught.value.context["jsonrpc"] == -32602


# -- results -------------------------------------------------------------------------------------------------


def test_row_5_a_v2_client_gets_modes_as_an_option() -> None:
    result = plain(session_result(raw(V1_OFFERS), 1, 2, OURS))
    assert (result["sessionId"], result["_meta"], result["availableCommands"]) == ("s1", {"k": 1}, [])
    assert [each["configId"] for each in result["configOptions"]] == ["flag", "mode"]
    assert result["configOptions"][1]["options"] == [{"value": "ask", "name": "Ask", "description": "d"}]
    assert not {"modes", "models"} & result.keys()


def test_row_5_a_v1_client_gets_the_option_as_modes_too_and_commands_afterwards() -> None:
    result = plain(session_result(raw(V2_OFFERS), 2, 1, None))
    assert result["modes"] == {"currentModeId": "ask", "availableModes": [{"id": "ask", "name": "Ask"}]}
    assert [each["id"] for each in result["configOptions"]] == ["m", "flag"]
    assert not {"sessionId", "availableCommands"} & result.keys()
    [after] = updates_after(raw(V2_OFFERS), 2, 1)
    assert plain(after)["availableCommands"] == [{"name": "go", "description": "Go"}]
    plainer = plain(session_result(raw(V2_OFFERS), 2, 1, None, boolean_options=False))
    assert [each["id"] for each in plainer["configOptions"]] == ["m"]


@pytest.mark.parametrize(("version", "offers"), [(1, V1_OFFERS), (2, V2_OFFERS)])
def test_row_5_the_same_version_keeps_all_but_the_session_id(version: int, offers: dict[str, Any]) -> None:
    assert plain(session_result(raw(offers), version, version, OURS)) == {**offers, "sessionId": "s1"}
    assert "sessionId" not in plain(session_result(raw(offers), version, version, None))
    assert updates_after(raw(offers), version, version) == []


@pytest.mark.parametrize("offers", [b"null", b"{}", b"[]"])
@pytest.mark.parametrize("version", [1, 2])
def test_rows_6_and_7_an_agent_that_offers_nothing(version: int, offers: bytes) -> None:
    assert plain(session_result(Raw(offers), 3 - version, version, None)) == (
        {} if version == 1 else {"configOptions": [], "availableCommands": []}
    )


@pytest.mark.parametrize("session_id", [OURS, None])
@pytest.mark.parametrize(("version", "offers"), [(1, V1_OFFERS), (2, V2_OFFERS)])
def test_every_result_is_one_that_the_schema_takes(
    version: int, offers: dict[str, Any], session_id: SessionId | None
) -> None:
    name = "ResumeSessionResponse" if session_id is None else "NewSessionResponse"
    result = plain(session_result(raw(offers), version, 3 - version, session_id))
    assert complaints(3 - version, name, result) == []


def test_what_an_agent_offers_now_is_in_the_shape_of_its_own_answer() -> None:
    latest = Latest()
    take_offers(latest, raw(V1_OFFERS))
    latest.mode = "code"
    offers = plain(current_offers(latest))
    assert offers["modes"] == {**V1_OFFERS["modes"], "currentModeId": "code"}
    assert offers["configOptions"] == V1_OFFERS["configOptions"]
    assert offers["models"] == V1_OFFERS["models"]
    take_offers(latest, raw(V2_OFFERS))
    assert plain(current_offers(latest))["availableCommands"] == V2_OFFERS["availableCommands"]
    assert plain(current_offers(Latest())) == {}


# -- settings ------------------------------------------------------------------------------------------------


def test_row_23_a_v2_client_sets_the_mode_of_a_v1_agent() -> None:
    params = raw({"sessionId": "s", "configId": "mode", "type": "id", "value": "ask", "_meta": {"k": 1}})
    method, told = translate_setting("session/set_config_option", params, 2, 1, raw(V1_OFFERS))
    assert (method, plain(told)) == ("session/set_mode", {"sessionId": "s", "modeId": "ask", "_meta": {"k": 1}})
    result = plain(translate_setting_result("session/set_config_option", params, Raw(b"{}"), 1, 2, raw(V1_OFFERS)))
    assert result["configOptions"][1]["currentValue"] == "ask"
    assert complaints(2, "SetSessionConfigOptionResponse", result) == []


def test_row_23_a_v1_client_sets_the_mode_of_a_v2_agent() -> None:
    params = raw({"sessionId": "s", "modeId": "ask"})
    method, told = translate_setting("session/set_mode", params, 1, 2, raw(V2_OFFERS))
    assert method == "session/set_config_option"
    assert plain(told) == {"sessionId": "s", "configId": "m", "type": "id", "value": "ask"}
    answered = raw({"configOptions": V2_OFFERS["configOptions"]})
    assert plain(translate_setting_result("session/set_mode", params, answered, 2, 1, raw(V2_OFFERS))) == {}


def test_row_23_a_v2_agent_without_modes_refuses_one() -> None:
    with pytest.raises(RemoteProtocolError):
        translate_setting("session/set_mode", raw({"sessionId": "s", "modeId": "x"}), 1, 2, Raw(b"{}"))


@pytest.mark.parametrize(
    ("given", "v2_type", "v1_type"),
    [("x", "id", None), (True, "boolean", "boolean"), (False, "boolean", "boolean")],
)
def test_row_24_the_type_of_a_value_is_told_to_v2_and_a_plain_one_not_to_v1(
    given: Any, v2_type: str, v1_type: str | None
) -> None:
    params = {"sessionId": "s", "configId": "flag", "value": given}
    more = {} if v1_type is None else {"type": v1_type}
    up = translate_setting("session/set_config_option", raw({**params, **more}), 1, 2, raw(V2_OFFERS))
    assert plain(up.params)["type"] == v2_type
    down = translate_setting("session/set_config_option", up.params, 2, 1, raw(V1_OFFERS))
    assert plain(down.params) == {**params, **more}


def test_row_24_the_answer_lists_all_options_in_the_clients_words() -> None:
    params = raw({"sessionId": "s", "configId": "flag", "value": True})
    method = "session/set_config_option"
    v1_answer = raw({"configOptions": V1_OFFERS["configOptions"]})
    told = plain(translate_setting_result(method, params, v1_answer, 1, 2, raw(V1_OFFERS)))
    assert [each["configId"] for each in told["configOptions"]] == ["flag", "mode"]
    v2_answer = raw({"configOptions": V2_OFFERS["configOptions"]})
    back = plain(translate_setting_result(method, params, v2_answer, 2, 1, raw(V2_OFFERS)))
    assert [each["id"] for each in back["configOptions"]] == ["m", "flag"]
    assert translate_setting_result(method, params, v2_answer, 2, 2, raw(V2_OFFERS)) == v2_answer
    assert translate_setting(method, params, 2, 2, raw(V2_OFFERS)) == (method, params)


def test_row_34_an_unknown_session_is_named_in_the_error() -> None:
    error = plain(unknown_session("gone"))
    assert (error["code"], error["data"]) == (-32002, {"sessionId": "gone"})
    assert complaints(2, "Error", error) == []
