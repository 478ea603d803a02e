"""Output on a terminal: text while it streams and once at the end, tools with their results, images."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.rig import Served, lines_of, served
from tests.cli.shown import seen
from tests.cli.test_terminal import on_terminal

PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20)).decode()


def say(text: str, message: str = "a1", kind: str = "agent_message_chunk") -> dict[str, Any]:
    return {"update": {"sessionUpdate": kind, "messageId": message, "content": {"type": "text", "text": text}}}


def tool(**members: Any) -> dict[str, Any]:
    return {"update": {"sessionUpdate": "tool_call_update", "toolCallId": "t1", **members}}


def drawn(scenes: Served, steps: list[Any], width: int = 40, height: int = 12, **env: str) -> list[str]:
    """Return the terminal's text after a prompt has ended, below the line that names the session."""
    size = {"COLUMNS": str(width), "LINES": str(height)}
    with on_terminal(scenes, "prompt", "--new", json.dumps(steps), **size, **env) as terminal:
        assert terminal.finish() == 0
        return seen(terminal.shown, height, width)[1:]


def test_markdown_is_drawn_and_stands_there_once_however_it_came(scenes: Served) -> None:
    text = "# Head\n\nsome *words* here\n\n- one\n- two\n\n```python\nx = 1\n```\n\nend"
    pieces = drawn(scenes, [say(each) for each in text])
    assert pieces == drawn(scenes, [say(text)])
    assert [each.strip() for each in pieces if each] == [
        "Head",
        "some words here",
        "• one",
        "• two",
        "x = 1",
        "end",
    ]


@pytest.mark.parametrize("form", ["{} ", "- {}\n", "{}\n\n", "```\n{}\n```\n\n"])
def test_blocks_higher_than_the_terminal_are_there_whole_and_once(form: str, scenes: Served) -> None:
    words = [f"word{number:03}" for number in range(120)]
    shown = " ".join(drawn(scenes, [say(form.format(each)) for each in words], width=24, height=8))
    assert [each for each in shown.split() if each.startswith("word")] == words


def test_words_are_seen_before_their_block_is_finished(scenes: Served) -> None:
    with on_terminal(scenes, "prompt", "--new", json.dumps([say("half a sen"), {"wait": "cancel"}])) as terminal:
        terminal.until("half a sen")
        terminal.type("\x03")
        terminal.process.send_signal(2)
        assert terminal.finish() == 130


def test_thoughts_are_dim_and_apart_from_the_words(scenes: Served) -> None:
    steps = [say("let me see", "t", "agent_thought_chunk"), say("it is so")]
    with on_terminal(scenes, "prompt", "--new", json.dumps(steps)) as terminal:
        assert terminal.finish() == 0
        assert "\x1b[2;3m│ let me see" in terminal.shown
    assert drawn(scenes, steps) == ["│ let me see", "it is so"]


def test_without_a_terminal_stdout_has_the_words_as_they_are_and_stderr_the_rest(scenes: Served) -> None:
    steps = [say("hm", "t", "agent_thought_chunk"), say("# not *drawn*\n"), tool(**LISTED)]
    shown = scenes.run("prompt", "--new", json.dumps(steps))
    assert shown.out == "# not *drawn*\n"
    assert shown.err.splitlines()[1:] == ["│ hm", "✓ List", "  a.txt", "  b.txt"]


LISTED: dict[str, Any] = {
    "title": "List",
    "kind": "execute",
    "status": "completed",
    "content": [{"type": "content", "content": {"type": "text", "text": "```console\na.txt\nb.txt\n```"}}],
}


def test_of_long_output_of_a_command_the_end_is_shown_and_how_much_more_there_is(scenes: Served) -> None:
    output = "".join(f"line {number}\n" for number in range(100))
    item = {"type": "content", "content": {"type": "text", "text": output}}
    lines = drawn(scenes, [tool(**{**LISTED, "content": [item], "rawInput": {"command": "make"}})])
    assert lines[:2] == ["✓ List", "  … 89 more lines"]
    assert lines[-1] == "  line 99"


def test_a_command_that_did_not_end_with_0_has_no_check_mark(scenes: Served, version: str) -> None:
    if version == "1":
        lines = drawn(scenes, [tool(title="Make", kind="execute", status="completed", rawOutput={"exit_code": 3})])
        assert lines == ["✗ Make · exit 3"]
        return
    data = base64.b64encode(b"gone \x1b[2Jwrong\r\n").decode()
    ran = {"sessionUpdate": "terminal_update", "terminalId": "x", "command": "make"}
    steps = [
        {"update": {**ran, "output": {"data": data}}},
        tool(title="Make", kind="execute", content=[{"type": "terminal", "terminalId": "x"}]),
        {"update": {**ran, "exitStatus": {"exitCode": 3}}},
        tool(status="completed"),
    ]
    assert drawn(scenes, steps) == ["✗ Make · exit 3", "  gone wrong"]


def test_the_demonstration_of_a_command_that_fails_shows_that_it_did(tmp_path: Path) -> None:
    with (
        served(tmp_path, builtin=True) as running,
        on_terminal(running, "prompt", "--new", "/demo command", LINES="40") as terminal,
    ):
        terminal.until("answer 1-3: ")
        assert "$ for each in one two three" in terminal.shown
        terminal.type("1\n")
        assert terminal.finish() == 0
        lines = seen(terminal.shown, 40, 200)
    [ended] = [each for each in lines if each.startswith(("✓", "✗"))]
    assert ended.endswith(" · exit 3")
    assert lines[lines.index(ended) + 1 :][:4] == ["  one", "  two", "  three", "  to stderr"]


def test_a_finished_change_is_shown_in_colour(scenes: Served, version: str) -> None:
    patch = "diff --git /w/f /w/f\n--- /w/f\n+++ /w/f\n@@ -1,1 +1,1 @@\n-a\n+b\n"
    item: dict[str, Any] = {"type": "diff", "path": "/w/f", "oldText": "a\n", "newText": "b\n"}
    if version == "2":
        changes = [{"operation": "modify", "path": "/w/f"}]
        item = {"type": "diff", "changes": changes, "patch": {"format": "git_patch", "text": patch}}
    steps = [tool(title="Edit", kind="edit", status="completed", content=[item])]
    with on_terminal(scenes, "prompt", "--new", json.dumps(steps)) as terminal:
        assert terminal.finish() == 0
        assert "\x1b[31m  -a" in terminal.shown
        assert "\x1b[32m  +b" in terminal.shown


IMAGE = {"type": "image", "mimeType": "image/png", "data": PIXEL, "uri": "file:///w/p.png"}
PICTURE = {"update": {"sessionUpdate": "agent_message_chunk", "messageId": "p", "content": IMAGE}}


def test_an_image_is_named(scenes: Served) -> None:
    named = "[image, image/png, 28 bytes, file:///w/p.png]"
    assert drawn(scenes, [PICTURE], width=80) == [named]
    shown = scenes.run("prompt", "--new", json.dumps([say("see"), PICTURE]))
    assert (shown.out, shown.err.splitlines()[-1]) == ("see\n", named)


def test_words_after_the_end_of_a_turn_are_not_glued_to_it(scenes: Served) -> None:
    session = scenes.session()
    steps = [say("in time"), {"end": True}, say("too late", "a2")]
    with scenes.begun("attach", session, "--prompt", json.dumps(steps)) as process:
        lines: list[str] = []
        for line in lines_of(process):
            lines.append(line.rstrip("\n"))
            if line.startswith("after the end"):
                break
        assert scenes.said(session, json.dumps([say("next", "a3")])) == "next"
        for line in lines_of(process):
            lines.append(line.rstrip("\n"))
            if line.startswith("turn ended"):
                break
    assert lines[1:5] == ["in time", "turn ended: end_turn", "after the end of the turn:", "too late"]
    assert lines[-2:] == ["next", "turn ended: end_turn"]
