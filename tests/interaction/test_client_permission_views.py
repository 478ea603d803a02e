"""The fields of a permission request for handlers: title, tool call, command, change, form; of v1 and v2 alike."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import turnwire
from turnwire.client import PermissionRequest

pytestmark = pytest.mark.anyio

AGENT = Path(__file__).parents[1] / "cli" / "scene_agent.py"
OPTIONS = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
CALL = {
    "toolCallId": "t1",
    "title": "Edit it",
    "kind": "edit",
    "rawInput": {"file_path": "/w/f"},
    "locations": [{"path": "/w/f", "line": 3}],
}
PATCH = "diff --git /w/f /w/f\n--- /w/f\n+++ /w/f\n@@ -1,1 +1,1 @@\n-a\n+b\n"
DIFF_V1 = {"type": "diff", "path": "/w/f", "oldText": "a\n", "newText": "b\n"}
DIFF_V2 = {
    "type": "diff",
    "changes": [{"operation": "modify", "path": "/w/f"}],
    "patch": {"format": "git_patch", "text": PATCH},
}


async def asked(version: int, *steps: dict[str, Any]) -> PermissionRequest:
    """Return the request of a raw agent of this version."""
    seen: list[PermissionRequest] = []
    async with turnwire.connect([sys.executable, str(AGENT), str(version)]) as client:
        session = await client.new_session("/")

        @session.on_permission
        def look(request: PermissionRequest) -> str:
            seen.append(request)
            return "reject"

        await session.prompt(json.dumps(steps))
    return seen[0]


def about(version: int, call: dict[str, Any], **members: Any) -> dict[str, Any]:
    told = (
        {"toolCall": call}
        if version == 1
        else {"title": "May I?", "subject": {"type": "tool_call", "toolCall": call}}
    )
    return {"ask": {**told, "options": OPTIONS, **members}}


@pytest.mark.parametrize("version", [1, 2])
async def test_a_request_tells_the_tool_call_and_its_change(version: int) -> None:
    item = DIFF_V1 if version == 1 else DIFF_V2
    request = await asked(version, about(version, {**CALL, "content": [item]}))

    assert request.title == ("Edit it" if version == 1 else "May I?")
    call = request.tool_call
    assert call is not None
    assert (call.tool_call_id, call.title, call.kind, call.raw_input) == ("t1", "Edit it", "edit", CALL["rawInput"])
    assert [str(each) for each in call.locations] == ["/w/f:3"]
    assert request.diff == PATCH
    assert [each.path for each in request.diffs] == ["/w/f"]
    assert request.command is None
    assert [each.option_id for each in request.options] == ["yes"]
    assert repr(request) == (
        f"<PermissionRequest {request.request_id} {request.title!r} edit changes=['/w/f'] options=yes>"
    )


@pytest.mark.parametrize("version", [1, 2])
async def test_what_was_told_of_the_call_before_is_known(version: int) -> None:
    item = DIFF_V1 if version == 1 else DIFF_V2
    kind = "tool_call" if version == 1 else "tool_call_update"
    told = {"update": {"sessionUpdate": kind, **CALL, "content": [item]}}
    request = await asked(version, told, about(version, {"toolCallId": "t1", "status": "pending"}))
    assert request.diff == PATCH
    assert request.tool_call is not None
    assert request.tool_call.kind == "edit"


@pytest.mark.parametrize(
    ("given", "command"),
    [
        ({"command": "make all"}, "make all"),
        ({"command": ["bash", "-lc", "make all"]}, "make all"),
        ({"command": "make", "args": ["the tests"]}, "make 'the tests'"),
        ({"cmd": ["make", "a b"]}, "make 'a b'"),
        ({"path": "/w"}, None),
        (["make"], None),
    ],
)
async def test_a_command_is_read_from_what_agents_give_their_tools(given: Any, command: str | None) -> None:
    request = await asked(1, about(1, {"toolCallId": "t", "title": "Run", "kind": "execute", "rawInput": given}))
    assert request.command == command


async def test_a_v2_question_about_a_command_tells_it() -> None:
    subject = {"type": "command", "command": "make", "cwd": "/w"}
    request = await asked(2, {"ask": {"title": "Run?", "subject": subject, "options": OPTIONS}})
    assert (request.title, request.command, request.cwd, request.tool_call) == ("Run?", "make", "/w", None)


@pytest.mark.parametrize(
    "given", [{"filepath": "/w/f", "diff": PATCH}, {"filePath": "/w/f", "oldString": "a\n", "newString": "b\n"}]
)
async def test_a_change_is_read_from_the_input_of_a_tool_that_shows_none(given: dict[str, str]) -> None:
    request = await asked(1, about(1, {"toolCallId": "t", "title": "edit", "kind": "edit", "rawInput": given}))
    assert request.diff == PATCH


async def test_what_is_not_as_documented_reads_as_not_told() -> None:
    odd: dict[str, Any] = {
        "toolCallId": 7,
        "title": None,
        "kind": 1,
        "content": "x",
        "locations": [{}],
        "rawInput": 3,
    }
    request = await asked(1, about(1, odd))
    assert (request.title, request.command, request.diff) == ("", None, "")
    assert "session/request_permission" in repr(request)


@pytest.mark.parametrize("version", [1, 2])
async def test_a_form_tells_its_fields(version: int) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "s": {"type": "string"}},
        "required": ["n"],
    }
    request = await asked(version, {"elicit": {"message": "Who?", "mode": "form", "requestedSchema": schema}})
    form = request.form
    assert form is not None
    assert request.title == "Who?"
    assert [(each.name, each.type, each.is_required) for each in form.fields] == [
        ("n", "integer", True),
        ("s", "string", False),
    ]
    assert form.problems({"s": 1, "x": 2}) == [
        "there is no field x; there are: n, s",
        "n is missing; it takes a whole number",
        "s takes text",
    ]
