"""A short answer becomes the agent's answer."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from turnwire.client.permission import Option, PermissionRequest
from turnwire.errors import InvalidOption, LocalProtocolError
from turnwire.ids import PermissionId, SessionId
from turnwire.session.events import PermissionRequested


def question(kinds: dict[str, str], method: str = "session/request_permission") -> PermissionRequest:
    options = [{"optionId": name, "name": name.title(), "kind": kind} for name, kind in kinds.items()]
    event = PermissionRequested(
        at=1,
        request_id=PermissionId("q1"),
        agent_request_id=1,
        method=method,
        params=Raw(msgspec.json.encode({"options": options})),
        options=tuple(kinds),
    )
    return PermissionRequest(event, SessionId("s1"))


SELECTED = {"yes": "allow_once", "never": "reject_always", "no": "reject_once"}


@pytest.mark.parametrize(
    ("kinds", "answer", "option_id"),
    [
        (SELECTED, "yes", "yes"),
        (SELECTED, "reject", "no"),
        ({"yes": "allow_once", "never": "reject_always"}, "reject", "never"),
        ({"yes": "allow_once"}, "reject", None),
        ({"reject": "allow_always", "no": "reject_once"}, "reject", "reject"),
    ],
)
def test_an_answer_selects_what_it_names(kinds: dict[str, str], answer: str, option_id: str | None) -> None:
    reply = question(kinds).reply(answer)
    selected = {"outcome": "selected", "optionId": option_id}
    assert reply.option_id == option_id
    assert msgspec.json.decode(reply.answer) == {"outcome": selected if option_id else {"outcome": "cancelled"}}


def test_an_option_that_was_not_offered_is_refused() -> None:
    with pytest.raises(InvalidOption):
        question(SELECTED).reply("sudo")


def test_a_form_takes_a_free_answer_and_is_declined_by_reject() -> None:
    form = question({}, "elicitation/create")
    free = {"action": "accept", "content": {"answer": "x"}}
    assert msgspec.json.decode(form.reply(free).answer) == free
    assert msgspec.json.decode(form.reply("reject").answer) == {"action": "decline"}


def test_an_option_is_an_answer_by_its_id() -> None:
    asked = question(SELECTED)
    assert asked.reply(asked.options[2]) == asked.reply("no")
    for unknown in (Option("sudo"), Option("reject")):
        with pytest.raises(InvalidOption):
            asked.reply(unknown)


def selecting(option_id: object) -> dict[str, Any]:
    return {"outcome": {"outcome": "selected", "optionId": option_id}}


def test_a_whole_answer_is_passed_on_as_it_is_if_it_selects_what_was_offered() -> None:
    asked = question(SELECTED)
    whole = selecting("yes") | {"_meta": {"why": "because"}}
    for given in (whole, MappingProxyType(whole)):
        reply = asked.reply(given)
        assert (msgspec.json.decode(reply.answer), reply.option_id) == (whole, "yes")
    cancelled = {"outcome": {"outcome": "cancelled"}}
    assert msgspec.json.decode(asked.reply(cancelled).answer) == cancelled
    with pytest.raises(InvalidOption):
        asked.reply(selecting("sudo"))


ODD: list[Any] = [True, False, 0, ["yes"], {"yes"}, ("yes",), b"yes", object(), {}, {1: 2}, {"optionId": "yes"}]
ODD_OUTCOMES: list[Any] = ["yes", None, {}, {"outcome": "selected"}, {"outcome": "allowed", "optionId": "yes"}]


@pytest.mark.parametrize(
    "answer",
    [*ODD, *({"outcome": each} for each in ODD_OUTCOMES), selecting(1), selecting("yes") | {"x": object()}],
)
def test_what_is_no_answer_to_a_permission_request_is_refused(answer: object) -> None:
    with pytest.raises(LocalProtocolError, match=r"return|give"):
        question(SELECTED).reply(answer)


@pytest.mark.parametrize("answer", [*ODD, selecting("yes"), {"action": "maybe"}, {"action": True}])
def test_what_is_no_answer_to_a_form_is_refused(answer: object) -> None:
    with pytest.raises(LocalProtocolError, match="action"):
        question({}, "elicitation/create").reply(answer)


@pytest.mark.parametrize("action", ["accept", "decline", "cancel"])
def test_a_form_takes_each_action(action: str) -> None:
    said = question({}, "elicitation/create").reply({"action": action}).answer
    assert msgspec.json.decode(said) == {"action": action}


def test_options_show_their_names_and_kinds() -> None:
    asked = question(SELECTED)
    assert next((each.option_id, each.name, each.kind) for each in asked.options) == ("yes", "Yes", "allow_once")
    odd = PermissionRequested(
        at=1,
        request_id=PermissionId("q1"),
        agent_request_id=1,
        method="session/request_permission",
        params=Raw(b'{"options":7}'),
        options=("a",),
    )
    assert [each.option_id for each in PermissionRequest(odd, SessionId("s1")).options] == ["a"]
