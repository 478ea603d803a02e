"""Requests that the fake model servers reject like the real ones: one case for each rule."""

from __future__ import annotations

from typing import Any

import pytest

from turnwire_testing.models import anthropic, openai

USER: dict[str, Any] = {"role": "user", "content": "Hello"}
OPENAI: dict[str, Any] = {"model": "a", "stream": True, "messages": [USER]}
ANTHROPIC: dict[str, Any] = {"model": "a", "stream": True, "max_tokens": 9, "messages": [USER]}


def call(identity: str, name: str = "read") -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": "{}"}}


CALLS: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call("one"), call("two")]}


def result(identity: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": "text"}


TWICE = [result("one"), result("one")]
OPENAI_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "non-empty array"),
    ({"messages": "Hello"}, "non-empty array"),
    ({"model": None}, "model parameter"),
    ({"stream": False}, "stream: true"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "Invalid value: 'robot'"),
    ({"messages": [{"role": "user", "content": None}]}, "got null"),
    ({"messages": [{"role": "user", "content": []}]}, "empty array"),
    ({"messages": [{"role": "user", "content": [{"type": "sound"}]}]}, "Invalid value: 'sound'"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "Invalid image URL"),
    ({"messages": [USER, result("one")]}, "must be a response to a preceeding message"),
    ({"messages": [USER, CALLS, result("one"), result("three")]}, "not found in 'tool_calls'"),
    ({"messages": [USER, CALLS, result("two")]}, "did not have response messages: one"),
    ({"messages": [USER, CALLS, USER]}, "did not have response messages: one, two"),
    ({"messages": [USER, {**CALLS, "tool_calls": [{"id": "one"}]}, result("one")]}, "arguments as a string"),
    ({"messages": [USER, {**CALLS, "tool_calls": [call("one", "a.b")]}, result("one")]}, "[0].function.name"),
    ({"messages": [USER, {**CALLS, "tool_calls": [call("one"), call("one")]}, *TWICE]}, "not found in"),
    ({"tools": [{"type": "function", "function": {"name": "no spaces"}}]}, "function.name"),
    ({"tools": [{"function": {"name": "a", "parameters": {"type": "array"}}}]}, "must be of type 'object'"),
]


@pytest.mark.parametrize(("changes", "words"), OPENAI_FAULTS)
def test_openai_refuses_what_is_malformed(changes: dict[str, Any], words: str) -> None:
    fail = openai.ask_refusal({**OPENAI, **changes})
    assert fail is not None
    assert words in fail.text


def test_openai_takes_results_in_any_order() -> None:
    messages = [USER, CALLS, result("two"), result("one"), USER]
    assert openai.ask_refusal({**OPENAI, "messages": messages}) is None


def block(role: str, *blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


USE: dict[str, Any] = {"type": "tool_use", "id": "one", "name": "read", "input": {}}
RESULT: dict[str, Any] = {"type": "tool_result", "tool_use_id": "one", "content": "text"}
THINKING = {"type": "enabled", "budget_tokens": 8}


ANTHROPIC_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "at least one message"),
    ({"model": None}, "model: Field required"),
    ({"max_tokens": None}, "max_tokens: Field required"),
    ({"stream": False}, "stream: true"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "should be 'user' or 'assistant'"),
    ({"messages": [{"role": "assistant", "content": "x"}]}, "first message"),
    ({"messages": [{"role": "user", "content": " "}]}, "non-whitespace"),
    ({"messages": [block("user")]}, "non-empty content"),
    ({"messages": [block("user", USE)]}, "Input tag 'tool_use'"),
    ({"messages": [USER, block("user", RESULT)]}, "unexpected `tool_use_id`"),
    ({"messages": [USER, block("assistant", USE)]}, "without `tool_result` blocks"),
    (
        {
            "messages": [
                USER,
                block("assistant", USE),
                block("user", {**RESULT, "content": [{"type": "text", "text": ""}]}),
            ]
        },
        "non-whitespace",
    ),
    ({"messages": [USER, block("assistant", USE), USER]}, "without `tool_result` blocks"),
    (
        {"messages": [USER, block("assistant", {"type": "thinking", "thinking": "x", "signature": "forged"})]},
        "Invalid `signature`",
    ),
    ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "greater than `thinking.budget_tokens`"),
    (
        {"thinking": THINKING, "messages": [USER, block("assistant", USE), block("user", RESULT)]},
        "must start with a thinking block",
    ),
    (
        {"messages": [USER, block("assistant", {**USE, "name": "a.b"}), block("user", RESULT)]},
        "messages.1.content.0.tool_use.name",
    ),
    ({"messages": [USER, block("assistant", USE, USE), block("user", RESULT, RESULT)]}, "ids must be unique"),
    ({"tools": [{"name": "no spaces", "input_schema": {"type": "object"}}]}, "custom.name"),
    ({"tools": [{"name": "a", "input_schema": {"type": "array"}}]}, "input_schema.type"),
]


@pytest.mark.parametrize(("changes", "words"), ANTHROPIC_FAULTS)
def test_anthropic_refuses_what_is_malformed(changes: dict[str, Any], words: str) -> None:
    fail = anthropic.ask_refusal({**ANTHROPIC, **changes}, set())
    assert fail is not None
    assert words in fail.text


def test_anthropic_takes_back_the_thinking_that_it_has_signed() -> None:
    thought = {"type": "thinking", "thinking": "Hm", "signature": "seal"}
    messages = [USER, block("assistant", thought, USE), block("user", RESULT)]
    assert anthropic.ask_refusal({**ANTHROPIC, "thinking": THINKING, "messages": messages}, {"seal"}) is None
