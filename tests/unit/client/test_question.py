"""A short answer becomes the agent's answer."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import Raw

from turnwire.client.question import Question
from turnwire.core.events import PermissionRequested
from turnwire.errors import InvalidOption
from turnwire.ids import PermissionId, SessionId


def question(kinds: dict[str, str], method: str = "session/request_permission") -> Question:
    options = [{"optionId": name, "name": name.title(), "kind": kind} for name, kind in kinds.items()]
    event = PermissionRequested(
        at=1,
        request_id=PermissionId("q1"),
        agent_request_id=1,
        method=method,
        params=Raw(msgspec.json.encode({"options": options})),
        options=tuple(kinds),
    )
    return Question(event, SessionId("s1"))


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
    assert [each.option_id for each in Question(odd, SessionId("s1")).options] == ["a"]
