"""Rules of the operator hold against lines and paths that are written to look like something else.

What is plain is held against real shells: they must make the same words of it.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import json

from turnwire.core.policy import KnownCall, amended, judge, read_request, read_rules
from turnwire.core.shell_line import LONGEST, read_line
from turnwire.wire.jsonrpc import raw

OPTIONS = [{"optionId": "yes", "kind": "allow_once"}, {"optionId": "no", "kind": "reject_once"}]
SHELLS = [each for each in ("sh", "bash", "dash", "zsh", "ksh") if shutil.which(each)]


def verdict(*rules: dict[str, Any], **call: Any) -> str | None:
    """What is answered without asking; none is a question for a user."""
    params = raw({"options": OPTIONS, "toolCall": {"toolCallId": "t", "kind": "execute", **call}})
    request = read_request("session/request_permission", params)
    assert request is not None
    known = amended(KnownCall(), request.tool_call, null_clears=False)
    assert known is not None
    found = judge(read_rules(rules), request, known, cwd="/w", attended=False)
    return None if found is None else json.decode(found.answer)["outcome"]["optionId"]


def run(line: str | list[str], **more: Any) -> dict[str, Any]:
    return {"rawInput": {"command": line, **more}}


ALLOW_GIT = {"answer": "allow_once", "command": "git status*"}
NO_RM = ({"answer": "reject_once", "command": "rm *"}, {"answer": "allow_once", "kind": "execute"})


@pytest.mark.parametrize(
    "line",
    [
        "git status",
        "git\tstatus",
        " git  status ",
        "git status\n",
        "git \\\n status",
        "'git' \"status\" -s",
        "g\\it status",
    ],
)
def test_a_plain_line_is_allowed_however_it_is_spaced_and_quoted(line: str) -> None:
    assert verdict(ALLOW_GIT, **run(line)) == "yes"
    assert verdict(ALLOW_GIT, **run(["git", "status", "a b"])) == "yes"
    assert verdict(ALLOW_GIT, **run("git", args=["status"])) == "yes"


@pytest.mark.parametrize(
    "line",
    [
        *("git status\nrm y", "git status\r\nrm y", "git status;rm y", "git status&&rm y", "git status|sh"),
        "git status&rm y",
        *("git status $(rm y)", "git status `rm y`", 'git status "$(rm y)"', "git status $X"),
        *("git status ${X}", "git status $((1))"),
        *("git status >/etc/x", "git status 2>/etc/x", "git status <x", "git status &>x", "git status >&2"),
        "git status <<E\nE",
        *("git status {a,b}", "git status *", "git status ?", "git status [a]", "git status ~"),
        "git status ~root/x",
        *("PATH=/tmp git status", "A=1 git status", "! git status", "time git status", "{ git status; }"),
        "(git status)",
        *("if git status; then rm y; fi", "git status # x", "git status 'unclosed", 'git status "unclosed'),
        "git status \\",
        *("git status <(rm y)", "git status\x0brm y", "git status\xa0rm", "git status\x00"),
        "git status" + " a" * LONGEST,
    ],
)  # fmt: skip
@pytest.mark.attack(
    "13.10", "a second command, a redirection or an expansion is hidden in a line that a rule allows"
)
def test_a_line_that_is_not_plain_is_never_allowed(line: str) -> None:
    assert verdict(ALLOW_GIT, **run(line)) is None
    assert verdict({"answer": "allow_once", "command": "*"}, **run(line)) is None


@pytest.mark.parametrize("more", [{"env": {"LD_PRELOAD": "x"}}, {"stdin": "rm y"}, {"env": [{"name": "A"}]}])
@pytest.mark.attack("13.10", "an allowed command is changed by variables or input beside it")
def test_a_command_with_more_to_it_is_not_allowed_by_its_words(more: dict[str, Any]) -> None:
    assert verdict(ALLOW_GIT, **run("git status", **more)) is None
    assert verdict({"answer": "allow_once", "command": "git"}, **run("git", args=["push"])) is None


@pytest.mark.parametrize(
    "line",
    [
        *("rm y", "rm\ty", "rm  y", " rm y", "r\\m y", "'rm' y", '"r"m y', "r\\\nm y", "rm \\\n y"),
        *("/bin/rm y", "\\rm y"),
        *("ls;rm y", "ls\nrm y", "ls\n\trm\ty", "ls&rm y", "ls|rm y", "ls&&rm y", "ls||rm y", "(rm y)"),
        "{ rm y; }",
        *(">f rm y", "2>&1 rm y", "rm >f y", "rm 2>/dev/null y", "<f rm y", ">>f rm y", "rm >| f y", "rm <&- y"),
        *("A=b rm y", "A= B[1]+=c rm y", "! rm y", "time rm y", "if rm y; then ls; fi", "while rm y; do ls; done"),
        *("for x in a; do rm y; done", "case a in a) rm y;; esac", "f() { rm y; }", "if ls; then\nrm y\nfi"),
        *("$(rm y)", "`rm y`", 'echo "$(rm y)"', 'echo "`rm y`"', "x=$(rm y)", "cat <(rm y)"),
        'echo "a $(echo "$(rm y)")"',
        *("sudo rm y", "sudo -n rm y", "env A=b rm y", "xargs rm y", "nohup rm y", "sh -c 'rm y'"),
        *('bash -c "ls; rm y"', "eval rm y"),
        *("exec rm y", "command rm y", "find . -exec rm y ;", "timeout 5 rm y", "ssh host rm y"),
        "sudo sh -c \"sh -c 'rm y'\"",
    ],
)  # fmt: skip
@pytest.mark.attack("13.10", "a command that a rule rejects is written so that the rule does not see it")
def test_a_command_that_is_rejected_is_found_wherever_it_stands(line: str) -> None:
    assert verdict(*NO_RM, **run(line)) == "no"


@pytest.mark.parametrize(
    "line",
    [
        *("rm${IFS}y", "$X y", "{rm,y}", "r? y", "r[m] y", "~/rm y", "\"$X\" y", "x=rm; $x y"),
        *("unknown-runner rm y", "echo rm y"),
        *("git rm y", "make 'rm y'", "cat <<E | sh\nrm y\nE", "ls 'unclosed; rm y", "python -c 'rm y'"),
        *("rm\x0by", "ls " * LONGEST),
        "ls &>f rm y",
    ],
)  # fmt: skip
@pytest.mark.attack("13.10", "a command that a rule rejects is written so that the rule does not see it")
def test_a_line_that_may_hide_a_rejected_command_is_not_allowed(line: str) -> None:
    assert verdict(*NO_RM, **run(line)) in (None, "no")
    assert verdict({"answer": "ask", "command": "rm *"}, NO_RM[1], **run(line)) is None


@pytest.mark.parametrize(
    "line", ["ls", "ls | wc -l", "ls; cat x > y", "if true; then ls; fi", "cat 'a b'", "make all"]
)
def test_a_line_whose_commands_are_all_written_out_is_not_kept_by_a_rule_that_means_another(line: str) -> None:
    assert verdict(*NO_RM, **run(line)) == "yes"


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
@pytest.mark.attack("13.10", "a file is named by `~`, a variable or an address, so that it looks like one inside")
def test_a_location_that_is_no_plain_path_is_never_allowed(path: str) -> None:
    assert verdict(INSIDE, **at(path)) is None
    assert verdict(INSIDE, **at("/w/a", path)) is None


@pytest.mark.parametrize(
    "path", ["/w/.env", ".env", "file:///w/.env", "file:///w/%2Eenv", "x/../.env", "~/.env", "$HOME/.env"]
)
@pytest.mark.attack("13.10", "a file that a rule rejects is named by `~`, a variable or an address")
def test_a_rejected_file_is_found_in_other_spellings(path: str) -> None:
    assert verdict(*NO_ENV, **at(path)) == "no"


@pytest.mark.parametrize("path", ["~", "$SECRET", "http://x/y", "/w/x/.."])
def test_a_location_that_may_be_rejected_is_left_to_the_users(path: str) -> None:
    assert verdict(*NO_ENV, **at(path)) is None


@pytest.mark.attack("13.10", "a command is run under a rule that allows a path")
def test_a_rule_for_paths_allows_nothing_to_be_run_there() -> None:
    assert verdict(INSIDE, **at("/w/a", kind="execute")) is None
    assert verdict(INSIDE, **at("/w/a", kind="execute"), **run("rm -rf /")) is None
    assert verdict(INSIDE, **at("/w/a", kind="edit")) == "yes"
    assert verdict(INSIDE | {"kind": "execute"}, **at("/w/a", kind="execute")) == "yes"


# -- properties ----------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), max_size=12),
        min_size=1,
        max_size=6,
    )
)
@example(["="])
@example(["a b", "", "'", '"', "\\", "$x", "\n"])
def test_words_that_were_quoted_come_back_as_they_were(words: list[str]) -> None:
    reading = read_line(shlex.join(words))
    assert reading.commands == (tuple(words),)
    # `=` at the beginning is not quoted, and one shell looks for a program of that name.
    assert reading.is_known or any(each.startswith("=") for each in words)


FRAGMENTS = (
    *("git", "rm", "-x", "a", "b c", "1", "2", "if", "then", "fi", "{", "}", "!", "time", "A=b", "#", "~"),
    *("=ls", "%", "^"),
    *(" ", " ", " ", "\t", "\n", "\\\n", ";", "&", "&&", "|", "(", ")", "<", ">", ">>", "<<", "2>", ">&", "$"),
    *("$x", "$(", "`"),
    *("'", "'a b'", "'$x'", '"', '"a b"', '"$x"', '"\\$x"', "\\", "\\ ", "\\a", "\\'", "*", "?", "[a]"),
    *("{a,b}", "é", "\xa0", "\r", "\x0b"),
)  # fmt: skip


def shell_words(shell: str, lines: list[str]) -> list[list[str]]:
    """The words that a real shell makes of each line."""
    script = "".join(f"printf '%s\\0' {line}\nprintf '\\1'\n" for line in lines)
    ran = subprocess.run([shell, "-c", script], capture_output=True, timeout=60, check=True)
    return [each.decode().split("\0")[:-1] for each in ran.stdout.split(b"\1")[:-1]]


@settings(deadline=None, max_examples=400)
@given(
    st.lists(st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=8).map("".join), min_size=20, max_size=20)
)
@example(
    [
        "git }",
        "git { a",
        "git status \\",
        "git 'x",
        "a\\\nb",
        "git\ttab",
        "'a'\"b\"c",
        "\\a\\ b",
        '"\\$x"',
        '"a\\b"',
        "a#b",
        "a=b c",
    ]
)
@pytest.mark.attack("13.10", "a line is taken for one plain command, and is none to a shell")
def test_what_is_plain_is_the_same_to_real_shells(lines: list[str]) -> None:
    plain = [(line, read_line(line)) for line in lines]
    plain = [(line, reading) for line, reading in plain if reading.is_plain]
    for shell in SHELLS:
        found = shell_words(shell, [line.strip(" \t\n") for line, _ in plain])
        assert found == [list(reading.commands[0]) for _, reading in plain]


EMBEDDED = st.sampled_from(["rm y", "rm\ty", "'rm' y", "/bin/rm y", "r\\m y", "A=b rm y", ">f rm y", "rm 2>&1 y"])
BEFORE = st.sampled_from(
    [
        "",
        "ls; ",
        "ls\n",
        "ls | ",
        "ls && ",
        "(",
        "{ ",
        "! ",
        "if ",
        "while ",
        "echo `",
        "echo $(",
        "sudo ",
        "X=1 ",
        "ls & ",
    ]
)
AFTER = st.sampled_from(
    ["", " z", "; ls", "\nls", " | cat", " && ls", ")", "; }", "; then ls; fi", "`", " > f", " # x", " &"]
)


@settings(deadline=None, max_examples=500)
@given(BEFORE, BEFORE, EMBEDDED, AFTER, AFTER)
@pytest.mark.attack("13.10", "a command that a rule rejects is written so that the rule does not see it")
def test_no_place_in_a_line_hides_a_rejected_command(
    first: str, second: str, command: str, then: str, last: str
) -> None:
    assert verdict(*NO_RM, **run(first + second + command + then + last)) == "no"


@settings(deadline=None, max_examples=500)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=30).map("".join))
def test_every_line_has_a_verdict_and_a_line_with_more_to_it_is_never_allowed(line: str) -> None:
    answer = verdict({"answer": "allow_once", "command": "*"}, **run(line))
    assert answer == ("yes" if read_line(line).is_plain else None)
    assert verdict({"answer": "reject_once", "command": "*"}, **run(line)) == "no"
