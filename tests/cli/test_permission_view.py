"""A permission request is shown completely before a user answers, from raw agents of both versions of ACP."""

from __future__ import annotations

import json
from typing import Any

from tests.cli.rig import Served, finish, lines_of
from tests.cli.test_terminal import on_terminal

OPTIONS = [
    {"optionId": "yes", "name": "Allow once", "kind": "allow_once"},
    {"optionId": "no", "name": "Do not allow", "kind": "reject_once"},
]
OLD, NEW = "one\ntwo\nthree\n", "one\n2\nthree\n"
EDIT_V1 = {"toolCallId": "t1", "title": "Edit numbers", "kind": "edit", "status": "pending"}
EDIT_V2 = {
    **EDIT_V1,
    "content": [
        {
            "type": "diff",
            "changes": [{"operation": "modify", "path": "/w/n.txt"}],
            "patch": {
                "format": "git_patch",
                "text": "diff --git /w/n.txt /w/n.txt\n--- /w/n.txt\n+++ /w/n.txt\n"
                "@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n",
            },
        }
    ],
}
SCENES: dict[str, list[Any]] = {
    # The change is announced with the call, and the request only names the call.
    "1": [
        {
            "update": {
                "sessionUpdate": "tool_call",
                **EDIT_V1,
                "content": [{"type": "diff", "path": "/w/n.txt", "oldText": OLD, "newText": NEW}],
            }
        },
        {"ask": {"toolCall": {"toolCallId": "t1"}, "options": OPTIONS}},
    ],
    "2": [
        {
            "ask": {
                "title": "Edit numbers",
                "subject": {"type": "tool_call", "toolCall": EDIT_V2},
                "options": OPTIONS,
            }
        }
    ],
}
COMMANDS: dict[str, list[Any]] = {
    "1": [
        {
            "ask": {
                "toolCall": {
                    "toolCallId": "t1",
                    "title": "Clean up",
                    "kind": "execute",
                    "rawInput": {"command": ["bash", "-lc", "rm -rf build\x1b[2J"], "cwd": "/w"},
                },
                "options": OPTIONS,
            }
        }
    ],
    "2": [
        {
            "ask": {
                "title": "Clean up",
                "description": "Old files are in the way.",
                "subject": {"type": "command", "command": "rm -rf build\x1b[2J", "cwd": "/w"},
                "options": OPTIONS,
            }
        }
    ],
}
DIFF = ["  --- /w/n.txt", "  +++ /w/n.txt", "  @@ -1,3 +1,3 @@", "   one", "  -two", "  +2", "   three"]


def open_request(scenes: Served, steps: list[Any]) -> tuple[str, str]:
    """Open a session whose agent asks; return its id and the request's."""
    session = scenes.session()
    scenes.prompt(session, json.dumps(steps))
    scenes.until(session, "permission_request")
    return session, scenes.ask("GET", f"/session/{session}/permissions")["permissions"][0]["requestId"]


def test_a_change_is_shown_as_a_coloured_diff_before_it_is_allowed(scenes: Served, version: str) -> None:
    with on_terminal(scenes, "prompt", "--new", json.dumps(SCENES[version])) as terminal:
        terminal.until("answer 1-2: ")
        assert "the agent asks: Edit numbers (edit)" in terminal.shown
        assert "\x1b[31m  -two" in terminal.shown
        assert "\x1b[32m  +2" in terminal.shown
        terminal.type("1\n")
        terminal.until("selected")
        assert terminal.finish() == 0


def test_a_command_is_shown_before_it_is_allowed_and_cannot_steer_the_terminal(
    scenes: Served, version: str
) -> None:
    with on_terminal(scenes, "prompt", "--new", json.dumps(COMMANDS[version])) as terminal:
        terminal.until("answer 1-2: ")
        assert "$ rm -rf build[2J" in terminal.shown
        assert "build\x1b[2J" not in terminal.shown
        assert "in /w" in terminal.shown
        terminal.type("2\n")
        assert terminal.finish() == 0


def test_without_a_terminal_all_of_it_is_text_in_prompt_attach_answer_and_explain(
    scenes: Served, version: str
) -> None:
    with scenes.begun("prompt", "--new", json.dumps(SCENES[version])) as process:
        seen: list[str] = []
        for line in lines_of(process):
            seen.append(line.rstrip("\n"))
            if "next: turnwire answer" in line:
                break
        session, request = seen[-1].split("turnwire answer ")[1].split()[:2]
        at = seen.index("turnwire: the agent asks: Edit numbers (edit); it waits for an answer")
        assert seen[at + 1 : -1] == DIFF

        listed, *below = scenes.run("answer", session).out.splitlines()
        assert listed.split("\t")[:2] == [request, "Edit numbers (edit)"]
        assert below == DIFF
        explained = scenes.run("explain", session).out.splitlines()
        assert explained[1] == "1. the agent waits for an answer: Edit numbers (edit)"
        assert explained[2:9] == DIFF
        with scenes.begun("attach", session) as looking:
            shown = [next(line for line in lines_of(looking) if line.startswith("  ---"))]
            assert shown == ["  --- /w/n.txt\n"]

        done = scenes.run("answer", session, request, "yes")
        assert (done.code, done.err.splitlines()[1:-1]) == (0, DIFF)
        assert done.err.splitlines()[-1] == "turnwire: answered"
        assert finish(process).code == 0


def test_no_colour_is_no_colour_on_a_terminal_too(scenes: Served, version: str) -> None:
    with on_terminal(scenes, "prompt", "--new", json.dumps(SCENES[version]), NO_COLOR="1") as terminal:
        terminal.until("answer 1-2: ")
        assert "  -two" in terminal.shown
        assert "\x1b[31m" not in terminal.shown
        terminal.type("2\n")
        assert terminal.finish() == 0


def test_a_long_command_is_shown_whole(scenes: Served, version: str) -> None:
    line = "\n".join(f"true {number}" for number in range(1000))
    subject = {"type": "command", "command": line, "cwd": "/w"}
    call = {"toolCallId": "t1", "title": "Many", "kind": "execute", "rawInput": {"command": line}}
    told = {"toolCall": call} if version == "1" else {"title": "Many", "subject": subject}
    session, request = open_request(scenes, [{"ask": {**told, "options": OPTIONS}}])
    lines = scenes.run("answer", session).out.splitlines()
    assert lines[1:1001] == ["  $ true 0", *(f"    true {number}" for number in range(1, 1000))]
    assert scenes.run("answer", session, request, "no").code == 0
