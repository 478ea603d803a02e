"""Questions of agents, and answers of clients, across versions."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from msgspec import Raw
from tests.unit.projections.translate.speaking import complaints, plain, raw, text

from turnwire.ids import SessionId
from turnwire.projections.translate.permissions import translate_answer, translate_permission_request

pytestmark = pytest.mark.guarantee("G11")
PERMISSION, ELICITATION = "session/request_permission", "elicitation/create"
OURS = SessionId("ours")
OPTIONS = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]


def asked(params: dict[str, Any], agent: int, client: int, losses: Counter[str] | None = None) -> Any:
    told = plain(translate_permission_request(PERMISSION, raw(params), agent, client, OURS, losses))
    assert complaints(client, "RequestPermissionRequest", told) == []
    return told


def test_row_26_a_v2_client_is_asked_with_a_title_and_a_subject() -> None:
    call = {"toolCallId": "t1", "title": "Delete", "status": None, "kind": "delete"}
    told = asked({"sessionId": "theirs", "toolCall": call, "options": OPTIONS, "_meta": {"k": 1}}, 1, 2)
    patch = {"toolCallId": "t1", "title": "Delete", "kind": "delete"}
    assert told == {
        "sessionId": "ours",
        "options": OPTIONS,
        "_meta": {"k": 1},
        "title": "Delete",
        "subject": {"type": "tool_call", "toolCall": patch},
    }


@pytest.mark.parametrize(
    ("call", "title"),
    [({"toolCallId": "t", "name": "rm"}, "rm"), ({"toolCallId": "t"}, "The agent asks for permission")],
)
def test_row_26_a_question_always_has_a_title(call: dict[str, Any], title: str) -> None:
    assert asked({"sessionId": "x", "toolCall": call, "options": OPTIONS}, 1, 2)["title"] == title


def test_row_26_a_v1_client_is_asked_about_the_tool_call() -> None:
    losses = Counter[str]()
    call = {"toolCallId": "t1", "title": "Delete", "status": "paused", "content": None}
    params = {"sessionId": "x", "title": "Sure?", "description": "really", "options": OPTIONS}
    told = asked({**params, "subject": {"type": "tool_call", "toolCall": call}}, 2, 1, losses)
    assert told["toolCall"] == {"toolCallId": "t1", "title": "Delete", "status": "in_progress", "content": []}
    assert told["_meta"]["turnwire"] == {"permission": {"title": "Sure?", "description": "really"}}
    assert losses == {"permission_words": 1, "tool_status": 1}


def test_row_26_a_terminal_in_a_question_is_named() -> None:
    call = {"toolCallId": "t1", "content": [{"type": "terminal", "terminalId": "x1"}]}
    params = {"sessionId": "x", "title": "Sure?", "options": OPTIONS}
    told = asked({**params, "subject": {"type": "tool_call", "toolCall": call}}, 2, 1)
    assert told["toolCall"]["content"] == [{"type": "content", "content": text("[terminal x1]")}]


@pytest.mark.parametrize(
    ("subject", "kind", "words"),
    [
        ({"type": "command", "command": "rm -r x", "cwd": "/w"}, "execute", ["why", "$ rm -r x", "in /w"]),
        ({"type": "_odd"}, "other", ["why"]),
        (None, "other", ["why"]),
    ],
)
def test_row_26_a_question_about_no_tool_call_gets_one_made(subject: Any, kind: str, words: list[str]) -> None:
    losses = Counter[str]()
    params = {"sessionId": "x", "title": "Run?", "description": "why", "subject": subject, "options": OPTIONS}
    call = asked(params, 2, 1, losses)["toolCall"]
    assert (call["title"], call["kind"]) == ("Run?", kind)
    assert [each["content"]["text"] for each in call["content"]] == words
    assert losses == {"permission_subject": 1}


def test_row_26_an_unknown_kind_of_option_never_looks_like_consent() -> None:
    losses = Counter[str]()
    options = [*OPTIONS, {"optionId": "o", "name": "Odd", "kind": "_odd"}]
    told = asked({"sessionId": "x", "title": "?", "options": options}, 2, 1, losses)
    assert [each["kind"] for each in told["options"]] == ["allow_once", "reject_once"]
    assert losses["permission_option"] == 1


@pytest.mark.parametrize("version", [1, 2])
def test_the_same_version_keeps_a_question_but_for_the_session(version: int) -> None:
    params: dict[str, Any] = {"sessionId": "theirs", "odd": 1.0, "options": []}
    told = translate_permission_request(PERMISSION, raw(params), version, version, OURS)
    assert plain(told) == {**params, "sessionId": "ours"}


@pytest.mark.parametrize(("agent", "client"), [(1, 2), (2, 1), (1, 1)])
def test_row_29_an_elicitation_is_alike_in_both(agent: int, client: int) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    form: dict[str, Any] = {"sessionId": "theirs", "message": "?", "mode": "form", "requestedSchema": schema}
    told = plain(translate_permission_request(ELICITATION, raw(form), agent, client, OURS))
    assert told == {**form, "sessionId": "ours"}
    of_request: dict[str, Any] = {"requestId": 3, "message": "?", "mode": "form", "requestedSchema": schema}
    assert plain(translate_permission_request(ELICITATION, raw(of_request), agent, client, OURS)) == of_request
    accepted = raw({"action": "accept", "content": {"a": 1}})
    assert translate_answer(ELICITATION, accepted, client, agent) == accepted


@pytest.mark.parametrize(
    "outcome", [{"outcome": "selected", "optionId": "yes", "_meta": {}}, {"outcome": "cancelled"}]
)
@pytest.mark.parametrize(("client", "agent"), [(1, 2), (2, 1), (1, 1), (2, 2)])
def test_row_27_outcomes_pass_as_they_are(outcome: dict[str, Any], client: int, agent: int) -> None:
    result = raw({"outcome": outcome})
    assert translate_answer(PERMISSION, result, client, agent) == result


@pytest.mark.parametrize("result", [b'{"outcome":{"outcome":"_later"}}', b"null", b"[]", b'{"outcome":"selected"}'])
def test_row_27_an_outcome_that_v1_does_not_have_is_not_consent(result: bytes) -> None:
    told = plain(translate_answer(PERMISSION, Raw(result), 2, 1))
    assert told == {"outcome": {"outcome": "cancelled"}}
