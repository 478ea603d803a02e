"""Permission rules: the first that matches answers with an offered option; nothing is allowed by default."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw, json

from turnwire.errors import ConfigError
from turnwire.session.policy import KnownCall, amended, judge, read_request, read_rules
from turnwire.wire.jsonrpc import raw

OPTIONS = [
    {"optionId": "yes", "kind": "allow_once"},
    {"optionId": "no", "kind": "reject_once"},
]
ALLOW = {"answer": "allow_once"}
REJECT = {"answer": "reject_once"}


PERMISSION = "session/request_permission"


def asked(kind: str | None = "execute", options: Any = OPTIONS, **call: Any) -> Raw:
    said = {} if kind is None else {"kind": kind}
    return raw({"options": options, "toolCall": {"toolCallId": "t", **said, **call}})


def offered(*kinds: str) -> list[dict[str, str]]:
    return [{"optionId": each, "kind": each} for each in kinds]


def verdict(
    rules: list[dict[str, Any]], params: Raw, *, attended: bool = False, cwd: str = "/w", method: str = PERMISSION
) -> str | None:
    request = read_request(method, params)
    call = None if request is None else amended(KnownCall(), request.tool_call, null_clears=False)
    if request is None or call is None:
        return None
    found = judge(read_rules(rules), request, call, cwd=cwd, attended=attended)
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
    "call",
    [
        {"command": "git status"},
        {"command": ["git", "status"]},
        {"command": "git", "args": ["status"]},
        {"command": "git status", "description": "look", "timeout": 5, "cwd": None},
        {"command": "git status", "cwd": "/w"},
        {"command": "git status", "workdir": "."},
    ],
)
def test_rule_with_argv_allows_exactly_that_command(call: dict[str, Any]) -> None:
    rules = [ALLOW | {"argv": ["git", "status"]}]
    assert verdict(rules, asked(rawInput=call)) == "yes"
    assert verdict([ALLOW | {"argv": ["git"]}], asked(rawInput=call)) is None
    assert verdict([ALLOW | {"argv": ["git", "status", "-s"]}], asked(rawInput=call)) is None
    assert verdict([ALLOW | {"argv": ["git", "status"], "kind": "read"}], asked(rawInput=call)) is None


def test_word_of_a_line_that_needs_quotes_is_matched_in_its_standard_spelling() -> None:
    rules = [ALLOW | {"argv": ["git", "commit", "-m", "it's $HOME"]}]
    assert verdict(rules, asked(rawInput={"command": "git commit -m 'it'\"'\"'s $HOME'"})) == "yes"
    assert verdict(rules, asked(rawInput={"command": 'git commit -m "it\'s $HOME"'})) is None


@pytest.mark.parametrize("kind", ["read", "other", "execute"])
def test_call_that_runs_a_command_is_allowed_only_by_argv(kind: str) -> None:
    broad = [ALLOW | {"kind": "read"}, ALLOW | {"kind": "other"}, ALLOW | {"path": "/w/*"}]
    assert verdict(broad, asked(kind, rawInput={"command": "ls"}, locations=paths("/w/a"))) is None
    assert verdict(broad, asked(kind, rawInput={"command": {"odd": 1}}, locations=paths("/w/a"))) is None
    assert verdict(broad, asked(kind, rawInput="ls", locations=paths("/w/a"))) is None


def diff(*found: str) -> dict[str, Any]:
    return {"type": "diff", "changes": [{"operation": "modify", "path": each} for each in found]}


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "content", "content": {"type": "text", "text": "x"}}, {"type": "diff", "path": "/etc/passwd"}],
        [diff("/w/b", "/etc/passwd")],
        [{"type": "diff", "changes": [{"operation": "move", "oldPath": "/etc/passwd", "path": "/w/b"}]}],
        diff("/etc/passwd"),
    ],
)
def test_the_files_of_its_diffs_are_paths_of_a_call(content: Any) -> None:
    call = asked("edit", locations=paths("/w/a"), content=content)
    assert verdict([ALLOW | {"path": "{cwd}/*"}], call) is None
    assert verdict([REJECT | {"path": "/etc/*"}], call) == "no"
    assert verdict([ALLOW | {"path": "{cwd}/*"}], asked("edit", content=[diff("/w/a")])) == "yes"


def test_content_replaces_the_diffs_before_it_and_a_piece_adds_to_them() -> None:
    call = amended(KnownCall(), raw({"content": [diff("/w/a")]}), null_clears=True)
    assert call is not None
    more = amended(call, raw({"content": diff("/w/b")}), null_clears=True)
    assert more is not None
    assert more.paths == ("/w/a", "/w/b")
    for nothing in (b"[]", b"null"):
        assert amended(more, Raw(b'{"content": %s}' % nothing), null_clears=True) == KnownCall()
    assert amended(more, raw({"content": None}), null_clears=False) == more


def test_a_rule_may_count_only_while_nobody_is_there() -> None:
    rules = [ALLOW | {"kind": "read", "when": "unattended"}]
    assert verdict(rules, asked("read")) == "yes"
    assert verdict(rules, asked("read"), attended=True) is None


def test_the_request_of_a_v2_agent_is_read_too() -> None:
    call = {"type": "tool_call", "toolCall": {"toolCallId": "t", "kind": "read"}}
    assert verdict([ALLOW | {"kind": "read"}], raw({"options": OPTIONS, "subject": call})) == "yes"


@pytest.mark.parametrize(
    "params", [b"{}", b"[]", b'{"options":7}', b'{"toolCall":{"locations":[1]}}', b'{"toolCall":{"kind":7}}']
)
def test_a_request_that_cannot_be_read_is_left_to_the_users(params: bytes) -> None:
    assert verdict([REJECT], Raw(params)) is None
    assert verdict([REJECT], asked(), method="elicitation/create") is None


# -- options that are not offered ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "options", "chosen"),
    [
        ("reject_once", ["allow_once", "reject_always", "reject_once"], "reject_once"),
        ("reject_once", ["allow_once", "reject_always"], "reject_always"),
        ("reject_always", ["allow_once", "reject_once"], "reject_once"),
        ("reject_once", ["allow_once", "allow_always"], None),
        ("reject_always", [], None),
    ],
)
def test_a_rule_that_rejects_never_gives_way_to_one_that_allows(
    answer: str, options: list[str], chosen: str | None
) -> None:
    rules = [{"answer": answer, "path": "*/.env"}, ALLOW | {"kind": "read", "path": "{cwd}/*"}]
    assert verdict(rules, asked("read", offered(*options), locations=paths("/w/.env"))) == chosen


@pytest.mark.parametrize(
    ("answer", "options", "chosen"),
    [
        ("allow_once", ["allow_always", "allow_once"], "allow_once"),
        ("allow_once", ["allow_always", "reject_once"], None),
        ("allow_always", ["allow_once", "allow_always"], "allow_always"),
        ("allow_always", ["allow_once", "reject_once"], "allow_once"),
        ("allow_always", ["reject_once"], None),
    ],
)
def test_nothing_is_allowed_for_longer_than_the_rule_says(
    answer: str, options: list[str], chosen: str | None
) -> None:
    later = [{"answer": "allow_always", "kind": "read"}, REJECT]
    assert verdict([{"answer": answer, "kind": "read"}, *later], asked("read", offered(*options))) == chosen


# -- what the agent did not say ------------------------------------------------------------------------------


def test_a_call_of_unknown_kind_is_not_allowed() -> None:
    assert verdict([ALLOW | {"kind": "other"}], asked(None)) is None
    assert verdict([ALLOW | {"kind": "other"}], asked("other")) == "yes"
    assert verdict([ALLOW | {"path": "/w/*"}], asked(None, locations=paths("/w/a"))) is None
    assert verdict([ALLOW | {"argv": ["git"]}], asked(None, rawInput={"command": "git"})) is None
    assert verdict([ALLOW | {"kind": "other"}], raw({"options": OPTIONS})) is None, "it is about no call at all"
    assert verdict([REJECT], asked(None)) == "no", "what names nothing fits anything"


@pytest.mark.parametrize(
    ("named", "call"),
    [
        ({"path": "*/.env"}, {}),
        ({"path": "*/.env"}, {"locations": []}),
        ({"path": "*/.env", "kind": "read"}, {}),
    ],
)
@pytest.mark.parametrize("answer", ["reject_once", "ask"])
def test_a_call_that_an_earlier_rule_may_mean_is_not_allowed(
    answer: str, named: dict[str, Any], call: dict[str, Any]
) -> None:
    rule = {"answer": answer, **named}
    params = asked(**{"kind": "read", **call})
    allows = [ALLOW | {"kind": "read"}]
    assert verdict(allows, params) == "yes"
    assert verdict([rule, *allows], params) is None
    assert verdict([*allows, rule], params) == "yes", "only earlier rules count"


def test_an_earlier_rule_that_cannot_mean_the_call_changes_nothing() -> None:
    allow = ALLOW | {"kind": "read"}
    assert verdict([REJECT | {"path": "*/.env", "kind": "edit"}, allow], asked("read")) == "yes"
    assert verdict([REJECT | {"path": "*/.env", "when": "attended"}, allow], asked("read")) == "yes"


def test_after_a_rejection_that_may_be_meant_another_one_still_answers() -> None:
    assert verdict([REJECT | {"kind": "execute"}, REJECT], asked(None)) == "no"


@pytest.mark.parametrize(
    ("null_clears", "kept"), [(True, KnownCall()), (False, KnownCall("read", ("/w/a",), ("/w/b",), "ls"))]
)
def test_null_clears_what_was_known_or_says_nothing_by_version(null_clears: bool, kept: KnownCall) -> None:
    nulls = raw({"toolCallId": "t", "kind": None, "locations": None, "content": None, "rawInput": None})
    assert amended(KnownCall("read", ("/w/a",), ("/w/b",), "ls"), nulls, null_clears=null_clears) == kept


# -- paths that look like something else ---------------------------------------------------------------------


@pytest.mark.parametrize("cwd", ["/srv/plain", "/srv/app[2024]", "/srv/[!a]", "/srv/w*", "/srv/w?", "/srv/"])
def test_the_cwd_in_a_pattern_means_itself(cwd: str) -> None:
    rules = [REJECT | {"path": "{cwd}/secret/*"}, ALLOW | {"kind": "read", "path": "/srv/*"}]
    assert verdict(rules, asked("read", locations=paths("secret/key")), cwd=cwd) == "no"
    assert verdict(rules, asked("read", locations=paths("open")), cwd=cwd) == "yes"


@pytest.mark.parametrize("cwd", ["/srv/[ab]", "/srv/*", "/srv/?"])
def test_a_cwd_with_signs_of_patterns_stands_for_no_other(cwd: str) -> None:
    inside = [ALLOW | {"kind": "edit", "path": "{cwd}/*"}]
    assert verdict(inside, asked("edit", locations=paths("/srv/a/x")), cwd=cwd) is None


def test_more_slashes_at_the_root_are_one() -> None:
    rules = [REJECT | {"path": "/etc/*"}, ALLOW | {"kind": "read"}]
    assert verdict(rules, asked("read", locations=paths("//etc/passwd"))) == "no"
    rules = [REJECT | {"path": "{cwd}/secret/*"}, ALLOW | {"kind": "read"}]
    assert verdict(rules, asked("read", locations=paths("/secret/key")), cwd="/") == "no"


@pytest.mark.parametrize(
    ("table", "wrong"),
    [
        ({"answer": "maybe"}, "maybe"),
        ({"answer": "reject_once", "knid": "read"}, "knid"),
        ({}, "answer"),
        ({"answer": "allow_once"}, "allows everything"),
        ({"answer": "allow_once", "when": "unattended"}, "allows everything"),
        ({"answer": "allow_once", "kind": "execute"}, "allows every command"),
        ({"answer": "allow_once", "kind": "execute", "path": "/w/*"}, "allows every command"),
        ({"answer": "reject_once", "argv": ["rm"]}, "only rules that allow"),
        ({"answer": "ask", "argv": ["rm"]}, "only rules that allow"),
        ({"answer": "allow_once", "argv": []}, "without a program"),
        ({"answer": "allow_once", "argv": "git status"}, "argv"),
        ({"answer": "reject_once", "command": "rm *"}, "command"),
    ],
)
def test_a_wrong_rule_is_refused_with_its_number(table: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ConfigError, match="permission rule 2") as refused:
        read_rules([REJECT, table])
    assert wrong in str(refused.value)
