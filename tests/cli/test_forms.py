"""Forms of the agent: shown field by field, asked one by one on a terminal, and answered from another shell."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.cli.rig import Served
from tests.cli.test_terminal import on_terminal

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Your name", "minLength": 2},
        "age": {"type": "integer", "minimum": 0, "maximum": 150, "description": "In years."},
        "colour": {"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]},
        "sure": {"type": "boolean", "default": True},
        "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b", "c"]}},
    },
    "required": ["name", "age"],
}
FORM = [{"elicit": {"message": "Who are you?", "mode": "form", "requestedSchema": SCHEMA}}]
URL = [{"elicit": {"message": "Log in", "mode": "url", "elicitationId": "e1", "url": "https://example.test/in"}}]
SHOWN = [
    "  name · Your name: text (at least 2 characters), required",
    "  age: a whole number (at least 0, at most 150), required",
    "    In years.",
    "  colour: one of r, g",
    "    1. r: Red",
    "    2. g: Green",
    "  sure: yes or no [default: yes]",
    "  tags: any of a, b, c, with commas between",
]


def open_form(scenes: Served, steps: list[Any]) -> tuple[str, str, str]:
    """Open a session whose agent asks; return its id, the prompt's and the request's."""
    session = scenes.session()
    prompt = scenes.prompt(session, json.dumps(steps))
    scenes.until(session, "permission_request")
    return session, prompt, scenes.ask("GET", f"/session/{session}/permissions")["permissions"][0]["requestId"]


def result(scenes: Served, session: str, prompt: str) -> Any:
    scenes.ended(session, prompt)
    return json.loads(str(scenes.turn(session, prompt)["resultText"]).removeprefix("answered "))


def test_a_form_is_asked_field_by_field_and_again_until_a_value_fits(scenes: Served) -> None:
    talk = [
        ("name: ", "", "name is required; it takes text (at least 2 characters)"),
        ("name: ", "Ann", "age: "),
        ("age: ", "old", "age takes a whole number (at least 0, at most 150)"),
        ("age: ", "200", "age takes a whole number"),
        ("age: ", "40", "colour: "),
        ("colour: ", "blue", "colour takes one of r, g"),
        ("colour: ", "green", "sure [yes]: "),
        ("sure [yes]: ", "", "tags: "),
        ("tags: ", "a, c", "answered"),
    ]
    with on_terminal(scenes, "prompt", "--new", json.dumps(FORM)) as terminal:
        for prompt, line, then in talk:
            terminal.until(prompt)
            terminal.shown = terminal.shown.split(prompt, 1)[1]
            terminal.type(line + "\n")
            terminal.until(then)
        assert terminal.finish() == 0
        content = '{"action": "accept", "content": {"age": 40, "colour": "g", "name": "Ann", "sure": true, "tags"'
        assert content in " ".join(terminal.shown.split())


@pytest.mark.parametrize("action", ["decline", "cancel"])
def test_a_form_can_be_put_away(action: str, scenes: Served) -> None:
    with on_terminal(scenes, "prompt", "--new", json.dumps(FORM)) as terminal:
        terminal.until("name: ")
        terminal.type(f"/{action}\n")
        terminal.until(f'"action": "{action}"')
        assert terminal.finish() == 0


def test_a_page_that_the_agent_wants_opened_is_shown_and_answered(scenes: Served) -> None:
    with on_terminal(scenes, "prompt", "--new", json.dumps(URL)) as terminal:
        terminal.until("answer 1-3: ")
        assert "open https://example.test/in" in terminal.shown
        terminal.type("1\n")
        terminal.until('"action": "accept"')
        assert terminal.finish() == 0


def test_a_form_is_answered_from_another_shell_by_its_fields(scenes: Served) -> None:
    session, prompt, request = open_form(scenes, FORM)
    listed, *below = scenes.run("answer", session).out.splitlines()
    assert listed.split("\t")[1:] == [
        "Who are you?",
        f"turnwire answer {session} {request} --field name=… --field age=…",
    ]
    assert below == SHOWN
    for words, said in (
        (["--field", "nam=x"], "there is no field nam; there are: name, age, colour, sure, tags"),
        (["--field", "name=Ann"], "age is missing; it takes a whole number"),
        (["--field", "name=Ann", "--field", "age=x"], "age takes a whole number"),
        (["--field", "name"], "give NAME=VALUE"),
        (
            ["--form", '{"action": "accept", "content": {"name": "Ann", "age": 4, "sure": 1}}'],
            "sure takes yes or no",
        ),
        (["--form", "{}", "--field", "name=x"], "one answer counts"),
    ):
        refused = scenes.run("answer", session, request, *words)
        assert refused.code == 2
        assert said in refused.err
    done = scenes.run(
        "answer",
        session,
        request,
        "--field",
        "name=Ann",
        "--field",
        "age=40",
        "--field",
        "sure=no",
        "--field",
        "tags=b",
    )
    assert done.code == 0, done.err
    assert result(scenes, session, prompt) == {
        "action": "accept",
        "content": {"name": "Ann", "age": 40, "sure": False, "tags": ["b"]},
    }


def test_fields_are_for_forms_only(scenes: Served) -> None:
    session, prompt, request = open_form(scenes, URL)
    refused = scenes.run("answer", session, request, "--field", "x=y")
    assert (refused.code, "this is no form" in refused.err) == (2, True)
    assert scenes.run("answer", session, request, "reject").code == 0
    assert result(scenes, session, prompt) == {"action": "decline"}
