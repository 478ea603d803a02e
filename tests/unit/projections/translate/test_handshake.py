"""`initialize`: clients' capabilities, and the offers to them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw
from tests.unit.projections.translate.speaking import complaints, plain, raw

from turnwire.errors import RemoteProtocolError
from turnwire.projections.dialect import AgentProfile, read_initialize
from turnwire.projections.translate.handshake import (
    ClientProfile,
    HostOffer,
    TurnCompletePolicy,
    auth_methods,
    gets_turn_complete,
    initialize_result,
    is_awaited,
    read_client,
    unsupported_version,
)

HOST = HostOffer(version="1.2.3")
V1, V2 = ClientProfile(version=1), ClientProfile(version=2)
INFO = {"name": "ed", "version": "1"}


def agent(version: int, capabilities: dict[str, Any], methods: list[Any] | None = None) -> AgentProfile:
    """Return an agent with this answer to `initialize`."""
    if version == 2:
        answer = {"protocolVersion": 2, "info": {"name": "a"}, "capabilities": capabilities}
    else:
        answer = {"protocolVersion": 1, "agentCapabilities": capabilities, "agentInfo": {"name": "a"}}
    return read_initialize(raw({**answer, "authMethods": methods or []}))


# -- the client's side ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "version"),
    [
        ({"protocolVersion": 1}, 1),
        ({"protocolVersion": 2, "info": INFO}, 2),
        ({"protocolVersion": 7, "info": INFO}, 2),
        ({"protocolVersion": 2}, 2),
        ({"protocolVersion": 2, "clientInfo": INFO}, 1),
        ({"protocolVersion": 2, "clientCapabilities": {}}, 1),
        ({"protocolVersion": 1, "info": INFO}, 1),
    ],
)
def test_rows_1_and_2_the_highest_common_version_is_spoken(params: dict[str, Any], version: int) -> None:
    assert read_client(raw(params)).version == version


def test_rows_1_and_2_v2_can_be_switched_off() -> None:
    assert read_client(raw({"protocolVersion": 2, "info": INFO}), newest=1).version == 1


def test_row_2_without_a_common_version_the_versions_are_named() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        read_client(raw({"protocolVersion": 0}))
    assert (caught.value.context["jsonrpc"], caught.value.context["requested"]) == (-32022, 0)
    error = plain(unsupported_version(0))
    assert (error["code"], error["data"]) == (-32022, {"requested": 0, "supported": [1, 2]})


@pytest.mark.parametrize("version", ["1", None, True, 1.5])
def test_row_1_a_version_is_a_number(version: Any) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        read_client(raw({"protocolVersion": version}))
    assert caught.value.context["jsonrpc"] == -32602


def test_row_1_what_a_v1_client_can_take() -> None:
    offered: dict[str, Any] = {
        "fs": {"readTextFile": True, "writeTextFile": "yes"},
        "terminal": True,
        "auth": {"terminal": True},
        "elicitation": {"form": {}, "url": None},
        "session": {"notices": {}, "configOptions": {"boolean": {}}},
    }
    client = read_client(raw({"protocolVersion": 1, "clientCapabilities": offered, "clientInfo": INFO}))
    assert (client.fs_read, client.fs_write, client.terminal, client.terminal_login) == (True, False, True, True)
    assert (client.elicitation_form, client.elicitation_url, client.boolean_options) == (True, False, True)
    assert "notice" not in client.withheld
    assert {"compaction_update", "plan_update", "subagent_update"} <= client.withheld
    assert client.name == "ed"


def test_row_1_a_v2_client_asks_for_no_kind_of_update_and_serves_no_files() -> None:
    offered: dict[str, Any] = {"elicitation": {"url": {}}, "fs": {"readTextFile": True}, "auth": {"terminal": {}}}
    client = read_client(raw({"protocolVersion": 2, "info": INFO, "capabilities": offered}))
    assert (client.withheld, client.fs_read, client.boolean_options) == (frozenset(), False, True)
    assert (client.elicitation_form, client.elicitation_url, client.terminal_login) == (False, True, True)


@pytest.mark.parametrize("yes", [True, {}, {"x": 1}])
@pytest.mark.parametrize(
    "place", [("_meta", "turnwire"), ("session",), ("session", "_meta", "turnwire"), ("_meta",)], ids=".".join
)
@pytest.mark.parametrize("name", ["turnComplete", "lifecycle", "ready"])
def test_a_client_may_ask_for_a_draft_in_any_place(name: str, place: tuple[str, ...], yes: object) -> None:
    offered: dict[str, Any] = {name: yes}
    for each in reversed(place):
        offered = {each: offered}
    client = read_client(raw({"protocolVersion": 1, "clientCapabilities": offered}))
    field = {"turnComplete": client.turn_complete, "lifecycle": client.lifecycle, "ready": client.ready}
    assert field.pop(name)
    assert not any(field.values())


@pytest.mark.parametrize("odd", [None, "yes", 1, []])
def test_anything_else_says_nothing(odd: object) -> None:
    offered = {"session": {"turnComplete": odd, "ready": odd}, "_meta": {"turnwire": {"turnComplete": odd}}}
    client = read_client(raw({"protocolVersion": 1, "clientCapabilities": offered}))
    assert (client.turn_complete, client.ready) == (None, None)


def test_a_client_may_say_that_it_lacks_a_draft() -> None:
    offered: dict[str, Any] = {"session": {"turnComplete": False}, "_meta": {"turnwire": {"ready": False}}}
    client = read_client(raw({"protocolVersion": 1, "clientCapabilities": offered}))
    assert (client.turn_complete, client.ready) == (False, False)
    both: dict[str, Any] = {"session": {"turnComplete": False}, "_meta": {"turnwire": {"turnComplete": {}}}}
    assert read_client(raw({"protocolVersion": 1, "clientCapabilities": both})).turn_complete is True
    given = {"protocolVersion": 2, "info": INFO, "capabilities": {"session": {"ready": False}}}
    assert read_client(raw(given)).ready is False


# -- which drafts a client gets ------------------------------------------------------------------------------

SAID: dict[str, bool | None] = {"yes": True, "no": False, "nothing": None}
AUTO, ALWAYS, ASKED, OFF = TurnCompletePolicy


@pytest.mark.parametrize(
    ("policy", "name", "getting"),
    [
        (AUTO, "an editor of tomorrow", {"yes", "nothing"}),
        (AUTO, None, {"yes", "nothing"}),
        (AUTO, "zed", {"yes"}),
        (AUTO, "ZED", {"yes"}),
        (AUTO, "zed-like", {"yes", "nothing"}),
        (ALWAYS, "zed", {"yes", "no", "nothing"}),
        (ASKED, "an editor of tomorrow", {"yes"}),
        (ASKED, "zed", {"yes"}),
        (OFF, None, set[str]()),
    ],
)
def test_who_gets_turn_complete(policy: TurnCompletePolicy, name: str | None, getting: set[str]) -> None:
    clients = {word: ClientProfile(version=1, name=name, turn_complete=said) for word, said in SAID.items()}
    assert {word for word, client in clients.items() if gets_turn_complete(policy, client)} == getting


@pytest.mark.parametrize("policy", TurnCompletePolicy)
def test_a_v2_client_never_gets_it_and_one_of_the_lifecycle_draft_if_it_asks(policy: TurnCompletePolicy) -> None:
    assert not gets_turn_complete(policy, ClientProfile(version=2, turn_complete=True))
    silent = ClientProfile(version=1, lifecycle=True)
    asking = ClientProfile(version=1, lifecycle=True, turn_complete=True)
    assert gets_turn_complete(policy, silent) == (policy is ALWAYS)
    assert gets_turn_complete(policy, asking) == (policy is not OFF)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("timeout_s", "name", "awaited"),
    [
        (2.0, "an editor of tomorrow", {"yes", "nothing"}),
        (2.0, None, {"yes", "nothing"}),
        (None, None, {"yes", "nothing"}),
        (2.0, "acpx", {"yes"}),
        (0, None, set[str]()),
    ],
)
def test_who_is_waited_for(version: int, timeout_s: float | None, name: str | None, awaited: set[str]) -> None:
    clients = {word: ClientProfile(version=version, name=name, ready=said) for word, said in SAID.items()}
    assert {word for word, client in clients.items() if is_awaited(timeout_s, client)} == awaited


# -- our side ------------------------------------------------------------------------------------------------

RICH_V1: dict[str, Any] = {
    "promptCapabilities": {"image": True, "audio": False},
    "mcpCapabilities": {"http": True, "sse": True},
    "sessionCapabilities": {"additionalDirectories": {}, "fork": {}},
    "auth": {"logout": {}},
    "_meta": {"theirs": 1},
}
RICH_V2: dict[str, Any] = {
    "session": {"prompt": {"image": {}}, "mcp": {"stdio": {}, "http": {}}, "additionalDirectories": {}}
}


@pytest.mark.parametrize(("version", "capabilities"), [(1, RICH_V1), (2, RICH_V2)])
def test_row_2_a_v1_client_is_offered_what_the_agent_has_and_what_we_add(
    version: int, capabilities: dict[str, Any]
) -> None:
    passing = HostOffer(version="1", passed=frozenset({"additionalDirectories"}))
    result = plain(initialize_result(agent(version, capabilities), V1, passing))
    offered = result["agentCapabilities"]
    assert offered["loadSession"] is True
    assert offered["promptCapabilities"] == {"image": True}
    assert offered["mcpCapabilities"] == ({"http": True, "sse": True} if version == 1 else {"http": True})
    assert offered["sessionCapabilities"].keys() == {
        *("additionalDirectories", "list", "resume", "close", "delete", "lifecycle"),
        *("turnComplete", "ready"),
    }
    assert result["agentInfo"] == {"name": "turnwire", "title": "a", "version": "1"}


@pytest.mark.parametrize(("version", "capabilities"), [(1, RICH_V1), (2, RICH_V2)])
def test_row_2_a_v2_client_is_offered_the_same_in_its_own_words(version: int, capabilities: dict[str, Any]) -> None:
    result = plain(initialize_result(agent(version, capabilities), V2, HOST))
    session = result["capabilities"]["session"]
    assert session == {"delete": {}, "prompt": {"image": {}}, "mcp": {"stdio": {}, "http": {}}, "ready": True}
    assert result["info"]["name"] == "turnwire"


def test_row_2_what_an_agent_does_not_have_is_not_offered() -> None:
    offered = plain(initialize_result(agent(1, {}), V1, HOST))["agentCapabilities"]
    assert (offered["promptCapabilities"], offered["mcpCapabilities"], "auth" in offered) == ({}, {}, False)
    assert plain(initialize_result(None, V2, HOST))["capabilities"]["session"]["prompt"] == {}


def test_drafts_are_offered_in_their_places_and_left_out_when_they_are_off() -> None:
    result = plain(initialize_result(None, V1, HOST))
    assert (
        result["agentCapabilities"]["sessionCapabilities"] | {"turnComplete": {}, "ready": {}}
        == (result["agentCapabilities"]["sessionCapabilities"])
    )
    assert result["capabilities"] == {"session": {"ready": True, "turnComplete": {}}}
    off = plain(initialize_result(None, V1, HostOffer(version="1", turn_complete=False, ready=False)))
    assert "capabilities" not in off
    assert off["agentCapabilities"]["sessionCapabilities"].keys() == {
        "list",
        "resume",
        "close",
        "delete",
        "lifecycle",
    }
    quiet = plain(initialize_result(None, V2, HostOffer(version="1", ready=False)))
    assert "ready" not in quiet["capabilities"]["session"]


# -- logging in ----------------------------------------------------------------------------------------------


def test_row_3_ways_to_log_in_for_a_v2_client() -> None:
    methods = [
        {"id": "a", "name": "A"},
        {"id": "t", "name": "T", "type": "terminal", "args": ["x"], "env": {"K": "v"}},
    ]
    told = [plain(each) for each in auth_methods(raw(methods), 1, 2, terminal=True)]
    assert told == [
        {"methodId": "a", "name": "A", "type": "agent"},
        {"methodId": "t", "name": "T", "type": "terminal", "args": ["x"], "env": [{"name": "K", "value": "v"}]},
    ]


def test_row_3_ways_to_log_in_for_a_v1_client() -> None:
    methods = [
        {"type": "agent", "methodId": "a", "name": "A"},
        {"type": "terminal", "methodId": "t", "name": "T", "env": [{"name": "K", "value": "v"}]},
        {"type": "_odd", "methodId": "o", "name": "O"},
    ]
    told = [plain(each) for each in auth_methods(raw(methods), 2, 1, terminal=True)]
    assert told == [{"id": "a", "name": "A"}, {"id": "t", "name": "T", "env": {"K": "v"}, "type": "terminal"}]
    assert [plain(each)["id"] for each in auth_methods(raw(methods), 2, 1, terminal=False)] == ["a"]


def test_row_3_the_same_version_keeps_a_method_as_it_is() -> None:
    odd = {"type": "_odd", "methodId": "o", "name": "O", "x": 1}
    assert [plain(each) for each in auth_methods(raw([odd]), 2, 2, terminal=False)] == [odd]


def test_row_4_logging_out_is_offered_where_it_can_be_done() -> None:
    methods = [{"type": "agent", "methodId": "a", "name": "A"}]
    assert plain(initialize_result(agent(2, {}, methods), V1, HOST))["agentCapabilities"]["auth"] == {"logout": {}}
    assert "auth" not in plain(initialize_result(agent(2, {}), V1, HOST))["agentCapabilities"]
    assert plain(initialize_result(agent(1, RICH_V1), V1, HOST))["agentCapabilities"]["auth"] == {"logout": {}}


@pytest.mark.parametrize("client", [V1, V2])
@pytest.mark.parametrize(("version", "capabilities"), [(1, RICH_V1), (2, RICH_V2)])
def test_every_answer_is_one_that_the_schema_takes(
    version: int, capabilities: dict[str, Any], client: ClientProfile
) -> None:
    methods = [{"id": "a", "name": "A"}] if version == 1 else [{"type": "agent", "methodId": "a", "name": "A"}]
    result = plain(initialize_result(agent(version, capabilities, methods), client, HOST))
    assert complaints(client.version, "InitializeResponse", result) == []


def test_params_that_cannot_be_read_at_all_are_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        read_client(Raw(b"[]"))
