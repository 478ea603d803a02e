"""Tool uses that run at once, ask first or never run, and the reach of a permanent permission."""

from __future__ import annotations

import pytest

from turnwire_agent.permits import ToolPermit, always_words, judge, permit_key

LOOKS, EDITS, RUNS = (False, False), (True, True), (True, False)


@pytest.mark.parametrize(
    ("mode", "tool", "verdict"),
    [
        ("ask", LOOKS, ToolPermit.RUN),
        ("ask", EDITS, ToolPermit.ASK),
        ("ask", RUNS, ToolPermit.ASK),
        ("accept_edits", LOOKS, ToolPermit.RUN),
        ("accept_edits", EDITS, ToolPermit.RUN),
        ("accept_edits", RUNS, ToolPermit.ASK),
        ("plan", LOOKS, ToolPermit.RUN),
        ("plan", EDITS, ToolPermit.REFUSE),
        ("plan", RUNS, ToolPermit.REFUSE),
    ],
)
def test_the_mode_decides_what_asks(mode: str, tool: tuple[bool, bool], verdict: ToolPermit) -> None:
    asks, edits = tool
    assert judge(mode, asks=asks, edits=edits, is_allowed=False) is verdict


def test_what_was_allowed_for_good_does_not_ask_but_plan_mode_still_refuses() -> None:
    assert judge("ask", asks=True, edits=False, is_allowed=True) is ToolPermit.RUN
    assert judge("plan", asks=True, edits=False, is_allowed=True) is ToolPermit.REFUSE


@pytest.mark.parametrize(
    ("command", "same", "other"),
    [
        ("ls src", "ls -la tests", "lsof"),
        ("grep -r x", "grep y src", "git grep y"),
        ("cat 'a b'", "cat a", "catchsegv a"),
    ],
)
def test_a_command_is_remembered_by_its_beginning(command: str, same: str, other: str) -> None:
    key = permit_key("run", {"command": command})
    assert permit_key("run", {"command": same}) == key
    assert permit_key("run", {"command": other}) != key


@pytest.mark.parametrize(
    "command",
    [
        "ls; rm -rf /",
        "ls && rm x",
        "ls | sh",
        "ls > /etc/x",
        "ls $(rm x)",
        "ls `rm x`",
        "ls\nrm x",
        "ls &",
        "PATH=/tmp ls",
        "git -c core.pager=sh status",
        *("git", "git status", "git log --oneline", "git diff", "git rev-parse HEAD"),
        "git diff --output=x",
        "git log --outp x",
        "git show --ext-diff",
        "git grep -O x",
        "git submodule foreach ls",
        "git rebase --exec ls",
        "git push",
        "ls\rx",
        "./ls",
        "python -c 'x'",
        "/usr/bin/python3 x.py",
        "sudo ls",
        "find . -delete",
        "xargs rm",
        *("python3.11 x", "pypy3 x", "nodejs x", "ruby3.2 x", "perl5.36 x", "busybox ls", "doas ls", "stdbuf ls"),
        *("chroot x", "flock x ls", "script x", "strace ls", "builtin eval x", "command ls", "setsid ls", "trap x"),
        *("coproc ls", "poetry run ls", "pipx run x", "uv run ls", "uv pip list", "npm exec x", "npm run x"),
        *("npm test", "pytest -q", "go run x", "cargo test", "sort -o x y", "rg --pre sh x", "a-new-program"),
        "ls 'unclosed",
        "",
    ],
)
def test_a_command_that_could_hide_another_is_remembered_as_a_whole(command: str) -> None:
    key = permit_key("run", {"command": command})
    assert key == f"run = {command}"
    assert permit_key("run", {"command": f"{command} x"}) != key
    assert "exactly" in always_words(key)


def test_other_tools_are_remembered_by_their_name() -> None:
    assert permit_key("edit", {"path": "a"}) == "edit"
    assert permit_key("run", {"command": 3}) == "run"
    assert "edit" in always_words("edit")
    assert "`ls`" in always_words("run ls")
