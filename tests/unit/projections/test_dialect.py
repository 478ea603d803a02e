"""Reading an agent: profile from its handshake, answers and requests from its frames, in any shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
import pytest
from msgspec import Raw

from turnwire.ids import AgentSessionId, PermissionId, PromptId
from turnwire.projections import dialect
from turnwire.session.events import TurnEnd
from turnwire.session.inputs import AgentAnswered, SteerOutcome
from turnwire.session.state import Setup
from turnwire.wire.jsonrpc import Request, raw

PROMPT = PromptId("p1")


def read(answer: object) -> dialect.AgentProfile:
    return dialect.read_initialize(raw(answer))


def v1(**capabilities: object) -> dict[str, Any]:
    return {"protocolVersion": 1, "agentCapabilities": capabilities}


def v2(**session: object) -> dict[str, Any]:
    return {"protocolVersion": 2, "info": {"name": "a"}, "capabilities": {"session": session}}


def member(value: Raw) -> Any:
    return msgspec.json.decode(value)


def test_a_plain_v1_agent_ends_turns_by_its_response_and_offers_nothing_else() -> None:
    profile = read(v1(loadSession=True))
    assert (profile.version, profile.turn_end) == (1, TurnEnd.RESPONSE)
    assert (profile.ready, profile.steering) == (False, False)
    assert member(profile.capabilities) == {"loadSession": True}


Place: TypeAlias = Callable[[dict[str, object]], dict[str, Any]]

PLACES: list[Place] = [
    lambda offer: v1(sessionCapabilities=offer),
    lambda offer: v1(sessionCapabilities={"_meta": offer}),
    lambda offer: v1(_meta={"turnwire": offer}),
    lambda offer: v1(_meta=offer),
    lambda offer: v1() | {"capabilities": {"session": offer}},
    lambda offer: v1() | {"capabilities": {"session": {"_meta": offer}}},
    lambda offer: v1() | {"capabilities": {"session": {"_meta": {"turnwire": offer}}}},
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("offered", [True, {}, {"version": 1}])
def test_an_offer_is_read_wherever_a_draft_puts_it(place: Place, offered: object) -> None:
    profile = read(place({"turnComplete": offered, "ready": offered, "steering": offered}))
    assert (profile.turn_end, profile.ready, profile.steering) == (TurnEnd.MARKER, True, True)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("refused", [False, None, 1, "yes", []])
def test_anything_but_true_or_an_object_offers_nothing(place: Place, refused: object) -> None:
    profile = read(place({"turnComplete": refused, "ready": refused, "steering": refused}))
    assert (profile.turn_end, profile.ready, profile.steering) == (TurnEnd.RESPONSE, False, False)


def test_a_v2_agent_ends_turns_by_idle_even_if_it_offers_the_marker() -> None:
    profile = read(v2(turnComplete={}, ready=True))
    assert (profile.version, profile.turn_end, profile.ready) == (2, TurnEnd.IDLE, True)
    assert member(profile.capabilities) == {"session": {"turnComplete": {}, "ready": True}}


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ({"protocolVersion": 2}, 2),
        ({"protocolVersion": 2, "capabilities": {"session": {}}}, 2),
        ({"protocolVersion": 2, "capabilities": {}, "agentCapabilities": {}}, 2),
        ({"protocolVersion": 2, "agentCapabilities": {}}, 1),
        ({"protocolVersion": 1, "info": {}, "capabilities": {}}, 1),
    ],
)
def test_the_number_decides_the_version_unless_a_v1_agent_echoes_it(answer: object, version: int) -> None:
    assert read(answer).version == version


@pytest.mark.parametrize(
    "answer",
    [
        None,
        7,
        [],
        "x",
        {},
        {"agentCapabilities": 3},
        {"agentCapabilities": {"sessionCapabilities": [], "_meta": 1}},
    ],
)
def test_an_unreadable_handshake_is_a_plain_v1_agent(answer: object) -> None:
    profile = read(answer)
    assert (profile.version, profile.turn_end, profile.ready) == (1, TurnEnd.RESPONSE, False)


def test_we_ask_for_the_newest_version_and_say_that_we_read_the_marker_in_both_places() -> None:
    params = member(dialect.initialize_params("9.9"))
    assert params["protocolVersion"] == 2
    assert params["clientInfo"] == params["info"] == {"name": "turnwire", "title": "turnwire", "version": "9.9"}
    assert params["clientCapabilities"]["_meta"]["turnwire"] == {"turnComplete": {}}
    assert params["clientCapabilities"]["session"]["turnComplete"] == {}
    assert member(dialect.initialize_params("9.9", protocol=1))["protocolVersion"] == 1


@pytest.mark.parametrize("services", [True, False])
def test_files_and_terminals_are_offered_only_when_somebody_serves_them(services: bool) -> None:
    offered = member(dialect.initialize_params("9.9", services=services))["clientCapabilities"]
    assert offered["fs"] == {"readTextFile": services, "writeTextFile": services}
    assert offered["terminal"] is services


@pytest.mark.parametrize(
    ("answer", "load", "resume", "close"),
    [
        (v1(), False, False, False),
        (v1(loadSession=True, sessionCapabilities={"resume": {}, "close": {}}), True, True, True),
        (v1(loadSession="yes", sessionCapabilities={"resume": None, "close": False}), False, False, False),
        (v2(), False, True, True),
        ({"protocolVersion": 2, "info": {}, "capabilities": {}}, False, False, False),
    ],
)
def test_how_a_session_comes_back_is_read_from_the_handshake(
    answer: object, load: bool, resume: bool, close: bool
) -> None:
    profile = read(answer)
    assert (profile.load, profile.resume, profile.close) == (load, resume, close)


def test_the_ways_to_log_in_and_the_name_are_kept() -> None:
    profile = read(v1() | {"authMethods": [{"id": "token"}], "agentInfo": {"name": "x"}})
    assert (member(profile.auth_methods), profile.name) == ([{"id": "token"}], "x")
    assert (member(read({"authMethods": 3}).auth_methods), read({"agentInfo": 3}).name) == ([], None)


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        *(({"outcome": each.value}, each) for each in SteerOutcome),
        *((each, SteerOutcome.FAILED) for each in ({"outcome": "x"}, {"outcome": ["injected"]}, {}, "injected")),
    ],
)
def test_only_a_known_outcome_of_steering_counts(result: object, outcome: SteerOutcome) -> None:
    assert dialect.read_steer_result(raw(result)) is outcome


@pytest.mark.parametrize(
    ("said", "is_offered"),
    [({"supported": True}, True), ({}, True), (True, True), ({"supported": False}, False), (False, False)],
)
def test_steering_is_read_at_the_top_of_the_result(said: object, is_offered: bool) -> None:
    answer = {"protocolVersion": 1, "agentCapabilities": {}, "_meta": {"steering": said}}
    assert dialect.read_initialize(raw(answer)).steering is is_offered


def test_content_goes_to_the_agent_byte_for_byte() -> None:
    content = Raw(b'[ {"type":"text", "text":"\\u00e4  x"} ]')
    sent = bytes(dialect.prompt_params(AgentSessionId("a"), content))
    assert bytes(content) in sent
    assert member(Raw(sent))["sessionId"] == "a"


def test_session_params_name_the_session() -> None:
    assert member(dialect.session_params(AgentSessionId("a"))) == {"sessionId": "a"}
    setup = Setup(Raw(b'[{"name":"x"}]'))
    assert member(dialect.opening_params(None, "/w", setup)) == {"cwd": "/w", "mcpServers": [{"name": "x"}]}
    known = member(dialect.opening_params(AgentSessionId("a"), "/w", setup))
    assert known == {"sessionId": "a", "cwd": "/w", "mcpServers": [{"name": "x"}]}
    full = Setup(Raw(b"[]"), ("/x",), Raw(b'{"k":1}'))
    assert member(dialect.opening_params(None, "/w", full)) == {
        "cwd": "/w",
        "mcpServers": [],
        "additionalDirectories": ["/x"],
        "_meta": {"k": 1},
    }


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"stopReason": "end_turn"}, ("end_turn", None)),
        ({"messageId": "m"}, (None, "m")),
        ({"stopReason": 5, "messageId": []}, (None, None)),
        ({}, (None, None)),
        (None, (None, None)),
        ("text", (None, None)),
        ([1], (None, None)),
    ],
)
def test_a_prompt_result_is_read_with_wrong_fields_as_absent(
    result: object, expected: tuple[str | None, str | None]
) -> None:
    answered = dialect.read_prompt_result(1, PROMPT, raw(result))
    assert isinstance(answered, AgentAnswered)
    assert answered.prompt_id == PROMPT
    assert (answered.stop_reason, answered.message_id) == expected


def test_usage_is_kept_byte_for_byte() -> None:
    answered = dialect.read_prompt_result(1, PROMPT, Raw(b'{"stopReason":"end_turn","usage":{"x": 1 }}'))
    assert answered.usage is not None
    assert bytes(answered.usage) == b'{"x": 1 }'
    assert answered.stop_reason == "end_turn"


def test_a_usage_that_is_null_is_none() -> None:
    answered = dialect.read_prompt_result(1, PROMPT, raw({"stopReason": "end_turn", "usage": None}))
    assert (answered.stop_reason, answered.usage) == ("end_turn", None)


@pytest.mark.parametrize("request_id", [7, "7"])
def test_a_question_keeps_its_id_and_params_and_lists_its_options(request_id: int | str) -> None:
    params = raw({"sessionId": "a", "options": [{"optionId": "yes", "name": "Yes"}, {"optionId": "no"}]})
    asks = dialect.read_permission_request(
        1, Request(request_id, "session/request_permission", params), PermissionId("q")
    )
    assert (asks.agent_request_id, type(asks.agent_request_id)) == (request_id, type(request_id))
    assert (asks.options, asks.params) == (("yes", "no"), params)


@pytest.mark.parametrize("params", [{}, {"options": 3}, {"options": [{"name": "x"}]}, None, 4])
def test_unreadable_options_are_none(params: object) -> None:
    asks = dialect.read_permission_request(1, Request(1, "elicitation/create", raw(params)), PermissionId("q"))
    assert asks.options == ()


@pytest.mark.parametrize(
    ("result", "expected"), [({"sessionId": "a"}, "a"), ({"sessionId": 3}, None), ({}, None), (0, None)]
)
def test_a_new_session_without_a_readable_id_is_none(result: object, expected: str | None) -> None:
    assert dialect.read_session_id(raw(result)) == expected


@pytest.mark.parametrize(
    ("params", "expected"),
    [({"requestId": 2}, 2), ({"requestId": "2"}, "2"), ({"requestId": None}, None), ({}, None), ([], None)],
)
def test_a_withdrawn_question_is_named_with_its_type(params: object, expected: object) -> None:
    read_id = dialect.read_cancel_request(raw(params))
    assert (read_id, type(read_id)) == (expected, type(expected))
