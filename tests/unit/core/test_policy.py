"""Rules for permission requests: the first that fits answers with an offered option; nothing is allowed unasked."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw, json

from turnwire.core.policy import judge, read_rules
from turnwire.errors import ConfigError
from turnwire.wire.jsonrpc import raw

OPTIONS = [
    {"optionId": "yes", "kind": "allow_once"},
    {"optionId": "no", "kind": "reject_once"},
]
ALLOW = {"answer": "allow_once"}
REJECT = {"answer": "reject_once"}


def asked(kind: str = "execute", options: Any = OPTIONS, **call: Any) -> Raw:
    return raw({"options": options, "toolCall": {"toolCallId": "t", "kind": kind, **call}})


def verdict(rules: list[dict[str, Any]], params: Raw, *, attended: bool = False) -> str | None:
    found = judge(read_rules(rules), "session/request_permission", params, cwd="/w", attended=attended)
    return None if found is None else json.decode(found.answer)["outcome"]["optionId"]


def paths(*found: str) -> list[dict[str, str]]:
    return [{"path": each} for each in found]


def test_without_a_rule_that_fits_nothing_is_answered() -> None:
    assert verdict([], asked()) is None
    assert verdict([ALLOW | {"kind": "read"}], asked("execute")) is None


def test_the_first_rule_that_fits_answers() -> None:
    rules = [REJECT | {"kind": "delete"}, ALLOW | {"kind": "read"}, REJECT | {"kind": "read"}]
    assert verdict(rules, asked("read")) == "yes"
    assert verdict(rules, asked("delete")) == "no"


def test_an_option_is_chosen_by_its_kind_and_never_made_up() -> None:
    backwards = list(reversed(OPTIONS))
    assert verdict([ALLOW | {"kind": "read"}], asked("read", backwards)) == "yes"
    always = [{"optionId": "all", "kind": "allow_always"}]
    assert verdict([ALLOW | {"kind": "read"}], asked("read", always)) is None


def test_ask_leaves_it_to_the_users_whatever_comes_later() -> None:
    rules = [{"answer": "ask", "path": "/w/secret/*"}, ALLOW | {"kind": "read"}]
    assert verdict(rules, asked("read", locations=paths("/w/secret/key"))) is None
    assert verdict(rules, asked("read", locations=paths("/w/open"))) == "yes"


def test_to_allow_all_paths_must_match_and_to_reject_one_is_enough() -> None:
    inside = [ALLOW | {"path": "{cwd}/*"}]
    assert verdict(inside, asked("edit", locations=paths("/w/a", "b"))) == "yes", "a relative path is in the cwd"
    assert verdict(inside, asked("edit", locations=paths("/w/a", "/etc/passwd"))) is None
    assert verdict(inside, asked("edit", locations=paths("/w/../etc/passwd"))) is None
    assert verdict(inside, asked("edit")) is None, "no path is not this path"
    assert verdict([REJECT | {"path": "/etc/*"}], asked("edit", locations=paths("/w/a", "/etc/passwd"))) == "no"


@pytest.mark.parametrize(
    "command", ["git x; rm -rf /", "git $(rm x)", "git x && rm y", "git x | sh", "git `x`", "git x\nrm"]
)
def test_a_line_with_more_than_one_command_is_not_allowed_by_a_pattern(command: str) -> None:
    allow = [ALLOW | {"command": "git *"}]
    assert verdict(allow, asked(rawInput={"command": "git status"})) == "yes"
    assert verdict(allow, asked(rawInput={"command": ["git", "status"]})) == "yes"
    assert verdict(allow, asked(rawInput={"command": command})) is None
    assert verdict([REJECT | {"command": "git *"}], asked(rawInput={"command": command})) == "no"


def test_a_rule_may_count_only_while_nobody_is_there() -> None:
    rules = [ALLOW | {"kind": "read", "when": "unattended"}]
    assert verdict(rules, asked("read")) == "yes"
    assert verdict(rules, asked("read"), attended=True) is None


def test_the_request_of_a_v2_agent_is_read_too() -> None:
    call = {"type": "tool_call", "toolCall": {"toolCallId": "t", "kind": "read"}}
    assert verdict([ALLOW | {"kind": "read"}], raw({"options": OPTIONS, "subject": call})) == "yes"


@pytest.mark.parametrize("params", [b"{}", b"[]", b'{"options":7}', b'{"toolCall":{"locations":[1]}}'])
def test_a_request_that_cannot_be_read_is_left_to_the_users(params: bytes) -> None:
    rules = read_rules([REJECT])
    found = judge(rules, "session/request_permission", Raw(params), cwd="/w", attended=False)
    assert found is None
    assert judge(rules, "elicitation/create", asked(), cwd="/w", attended=False) is None


@pytest.mark.parametrize(
    ("table", "wrong"),
    [
        ({"answer": "maybe"}, "maybe"),
        ({"answer": "reject_once", "knid": "read"}, "knid"),
        ({}, "answer"),
        ({"answer": "allow_once"}, "allows everything"),
        ({"answer": "allow_once", "when": "unattended"}, "allows everything"),
    ],
)
def test_a_wrong_rule_is_refused_with_its_number(table: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ConfigError, match="permission rule 2") as refused:
        read_rules([REJECT, table])
    assert wrong in str(refused.value)
