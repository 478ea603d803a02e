"""Permission rules hold against commands and paths that are written to look like something else."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import json

from turnwire.session.policy import KnownCall, amended, judge, read_request, read_rules
from turnwire.wire.jsonrpc import raw

OPTIONS = [{"optionId": "yes", "kind": "allow_once"}, {"optionId": "no", "kind": "reject_once"}]
SHELLS = [each for each in ("sh", "bash", "dash", "zsh", "ksh") if shutil.which(each)]


def verdict(*rules: dict[str, Any], **call: Any) -> str | None:
    """Return the option that the rules choose; `None` when a user is asked."""
    params = raw({"options": OPTIONS, "toolCall": {"toolCallId": "t", "kind": "execute", **call}})
    request = read_request("session/request_permission", params)
    assert request is not None
    known = amended(KnownCall(), request.tool_call, null_clears=False)
    assert known is not None
    found = judge(read_rules(rules), request, known, cwd="/w", attended=False)
    return None if found is None else json.decode(found.answer)["outcome"]["optionId"]


def run(line: str | list[str], **more: Any) -> dict[str, Any]:
    return {"rawInput": {"command": line, **more}}


GIT = {"answer": "allow_once", "argv": ["git", "status"]}
WIDE = (
    GIT,
    *({"answer": "allow_once", "argv": [program]} for program in ("env", "su", "tar", "git", "sh", "rm", "ls")),
    *({"answer": "allow_once", "kind": kind} for kind in ("read", "edit", "other")),
    {"answer": "allow_once", "path": "*"},
)
"""Rules that allow as much as rules can."""

HOSTILE = [
    *("git status\nrm y", "git status\r\nrm y", "git status;rm y", "git status&&rm y", "git status|sh"),
    *("git status&rm y", "git status || rm y", "\ngit status", "git status\n", "git\nstatus"),
    *("git status $(rm y)", "git status `rm y`", 'git status "$(rm y)"', "git status $X", "git status ${X}"),
    *("git status >/etc/x", "git status 2>/etc/x", "git status <x", "git status &>x", "git status <<E\nE"),
    *("git status {a,b}", "git status *", "git status ?", "git status [a]", "git status ~root/x"),
    *("PATH=/tmp git status", "A=1 git status", "A=1 " * 64 + "rm y", "! git status", "time git status"),
    *("{ git status; }", "(git status)", "if git status; then rm y; fi", "git status # x", "git status <(rm y)"),
    *("git status 'unclosed", 'git status "unclosed', "git status \\", "git \\\n status", "g\\it status"),
    *("git status\x0brm y", "git status\xa0rm", "git status\x00", "git\tstatus", "git status" + " a" * 20_000),
    *("env -S 'rm y'", "env -S'git status'", "su -c'rm y'", "su -c 'git status'", "sh -c 'git status'"),
    *("git -c alias.z='!rm y' z", "git -c core.pager='rm y' log", "git --exec-path=/tmp status"),
    *("tar --checkpoint=1 --checkpoint-action=exec='rm y' -cf x y", "tar --checkpoint-action=exec=rm"),
    *("env --split-string='rm y'", "script -qc'rm y'", "ssh -oProxyCommand='rm y' h"),
    *("env " + "A=1 " * 70 + "rm y",),
    *("sudo " + "-n " * 70 + "rm y", "sh -c 'sh -c \"sh -c rm\"'", "xargs git status", "sudo git status"),
    *("/tmp/git status", "./git status", "git status ''"),
]  # fmt: skip


@pytest.mark.parametrize("line", HOSTILE)
def test_line_that_is_not_exactly_an_allowed_command_is_asked_about(line: str) -> None:
    assert verdict(*WIDE, **run(line)) is None
    assert verdict(*WIDE, **run(["sh", "-c", line])) is None
    assert verdict(*WIDE, **run(line, args=["status"])) is None
    assert verdict(*WIDE, kind="read", locations=[{"path": "/w/a"}], **run(line)) is None


@pytest.mark.parametrize(
    "more",
    [
        {"env": {"LD_PRELOAD": "x"}},
        {"env": [{"name": "A"}]},
        {"stdin": "rm y"},
        {"cwd": "/tmp"},
        {"cwd": "/w/link/.."},
        {"cwd": "/w", "workdir": "/tmp"},
        {"cwd": 5},
        {"args": ["push"]},
        {"args": "push"},
        {"args": [1]},
        {"shell": "/tmp/sh"},
        {"anything": "unknown"},
    ],
)
def test_allowed_command_with_anything_unknown_is_asked_about(more: dict[str, Any]) -> None:
    assert verdict(GIT, **run("git status")) == "yes"
    assert verdict(*WIDE, **run("git status", **more)) is None


@pytest.mark.parametrize("command", [7, [], ["git", 7], [["git", "status"]], {"git": "status"}, True, ""])
def test_command_that_cannot_be_read_is_asked_about(command: Any) -> None:
    assert verdict(*WIDE, **run(command)) is None
    assert verdict(*WIDE, kind="other", **run(command)) is None


# -- locations -----------------------------------------------------------------------------------------------


def at(*paths: str, kind: str = "read") -> dict[str, Any]:
    return {"kind": kind, "locations": [{"path": each} for each in paths]}


INSIDE = {"answer": "allow_once", "path": "{cwd}/*"}
NO_ENV = ({"answer": "reject_once", "path": "*/.env"}, {"answer": "allow_once", "kind": "read"})


@pytest.mark.parametrize(
    "path",
    ["/w/a", "a", "./a", "/w//a", "/w/./a", "file:///w/a", "file:/w/a", "file://localhost/w/a%20b", "/w/100%"],
)
def test_a_plain_path_is_allowed(path: str) -> None:
    assert verdict(INSIDE, **at(path)) == "yes"


@pytest.mark.parametrize(
    "path",
    [
        *("~/x", "~root/x", "~", "$HOME/x", "/w/$X", "/w/`id`", "file://evil/w/a", "file:///etc/passwd"),
        "file:///w/%2e%2e/etc/passwd",
        *("http://x/w/a", "vscode-remote://h/w/a", "/w/a/../b", "/w/../etc/passwd", "..", "/w/a\nb"),
        *("/w/a\x00", "C:/w/a", "/w\\..\\x"),
        *("FILE:///etc/passwd", "file:///w/a?b", "file:///w/a#b", "file:relative", "/etc/passwd"),
    ],
)  # fmt: skip
def test_a_location_that_is_no_plain_path_is_never_allowed(path: str) -> None:
    assert verdict(INSIDE, **at(path)) is None
    assert verdict(INSIDE, **at("/w/a", path)) is None


@pytest.mark.parametrize(
    "path", ["/w/.env", ".env", "file:///w/.env", "file:///w/%2Eenv", "x/../.env", "~/.env", "$HOME/.env"]
)
def test_a_rejected_file_is_found_in_other_spellings(path: str) -> None:
    assert verdict(*NO_ENV, **at(path)) == "no"


@pytest.mark.parametrize("path", ["~", "$SECRET", "http://x/y", "/w/x/.."])
def test_a_location_that_may_be_rejected_is_left_to_the_users(path: str) -> None:
    assert verdict(*NO_ENV, **at(path)) is None


def test_a_rule_for_paths_allows_nothing_to_be_run_there() -> None:
    assert verdict(INSIDE, **at("/w/a", kind="execute")) is None
    assert verdict(INSIDE, **at("/w/a", kind="execute"), **run("rm -rf /")) is None
    assert verdict(INSIDE, **at("/w/a", kind="edit")) == "yes"


# -- properties ----------------------------------------------------------------------------------------------


WORDS = st.lists(
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), max_size=12),
    min_size=1,
    max_size=6,
)


@settings(deadline=None, max_examples=200)
@given(st.lists(WORDS, min_size=10, max_size=10))
@example([["a b", "", "'", '"', "\\", "$x", "\n", "!", "~", "{a,b}", "`id`"]] * 10)
def test_line_that_matches_has_the_words_of_the_rule_in_real_shells(commands: list[list[str]]) -> None:
    # A word that begins with `=` is omitted: zsh replaces it, and `shlex` does not quote it.
    found = [["x", *(each for each in words if not each.startswith("="))] for words in commands]
    lines = [shlex.join(words) for words in found]
    for line, words in zip(lines, found, strict=True):
        assert verdict({"answer": "allow_once", "argv": words}, **run(line)) == "yes"
    script = "".join(f"printf '%s\\0' {line}\nprintf '\\1\\0'\n" for line in lines)
    for shell in SHELLS:
        ran = subprocess.run([shell, "-c", script], capture_output=True, timeout=60, check=True)
        assert ran.stdout.decode() == "".join("".join(f"{each}\0" for each in [*words, "\1"]) for words in found)


FRAGMENTS = (
    *("git", "status", "rm", "-x", "a", "b c", "if", "{", "}", "!", "time", "A=b", "#", "~", "=ls", "%", "^"),
    *(" ", " ", " ", "\t", "\n", "\\\n", ";", "&", "&&", "|", "(", ")", "<", ">", "<<", "2>", "$x", "$(", "`"),
    *("'", "'a b'", '"', '"$x"', "\\", "\\a", "*", "?", "[a]", "{a,b}", "é", "\xa0", "\r", "\x0b"),
)  # fmt: skip


@settings(deadline=None, max_examples=500)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=30).map("".join))
def test_no_other_spelling_of_an_allowed_command_is_allowed(line: str) -> None:
    answer = verdict(*WIDE, **run(line))
    allowed = {"git status", *(rule["argv"][0] for rule in WIDE[1:8])}
    assert answer == ("yes" if line.strip(" ") in allowed else None)
