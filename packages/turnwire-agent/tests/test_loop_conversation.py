"""The conversation in a model request: complete, and every tool use with its result."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwire_agent.context import LEFT_OUT, shortened
from turnwire_agent.conversation import INTERRUPTED, Conversation, repaired, says, title_of, user_message
from turnwire_agent.model import (
    AssistantMessage,
    ImagePart,
    Message,
    ResourcePart,
    TextPart,
    ToolResult,
    ToolUse,
    UserMessage,
)

USE = ToolUse("1", "read", {"path": "a"}, '{"path": "a"}')


def is_whole(messages: list[Message]) -> bool:
    """Each tool use has exactly one result, right behind the message that holds it."""
    due: list[str] = []
    for each in messages:
        if isinstance(each, ToolResult):
            if each.id not in due:
                return False
            due.remove(each.id)
        else:
            if due:
                return False
            due = [use.id for use in each.tool_uses] if isinstance(each, AssistantMessage) else []
    return not due


def test_a_conversation_survives_json() -> None:
    state: dict[str, Any] = {}
    talk = Conversation(state)
    talk.add(
        UserMessage((TextPart("look"), ImagePart("image/png", "AAAA"), ResourcePart("file:///a", "text"))),
        AssistantMessage("yes", "hm", (USE,), b"\x00opaque"),
        ToolResult("1", "read", "text"),
    )
    again = Conversation(json.loads(json.dumps(state)))
    assert again.messages == talk.messages


def test_tool_uses_are_kept_under_the_name_that_older_sessions_have() -> None:
    kept: dict[str, Any] = {"id": "1", "name": "read", "arguments": {"path": "a"}, "text": '{"path": "a"}'}
    older: dict[str, Any] = {"messages": [{"type": "assistant", "text": "hm", "wishes": [kept]}]}
    assert Conversation(older).messages[0] == AssistantMessage("hm", tool_uses=(USE,))
    assert list(older["messages"][0]["wishes"]) == [kept]


def test_a_tool_use_without_a_result_gets_one_when_the_session_comes_back() -> None:
    state: dict[str, Any] = {}
    Conversation(state).add(says("go"), AssistantMessage("", "", (USE,)))
    again = Conversation(state)
    assert again.messages[-1] == ToolResult("1", "read", INTERRUPTED, is_error=True)
    assert Conversation(state).messages == again.messages


def test_what_cannot_be_read_is_left_out_with_all_behind_it() -> None:
    state: dict[str, Any] = {}
    Conversation(state).add(says("one"), says("two"), says("three"))
    state["messages"][1] = {"type": "nobody knows"}
    assert Conversation(state).messages == [says("one")]


tool_uses = st.lists(st.sampled_from("abc"), max_size=3, unique=True).map(
    lambda ids: tuple(ToolUse(each, "read", {}, "{}") for each in ids)
)
messages = st.one_of(
    st.just(says("hello")),
    st.builds(AssistantMessage, text=st.just("hm"), tool_uses=tool_uses),
    st.builds(ToolResult, id=st.sampled_from("abcd"), name=st.just("read"), text=st.just("text")),
)


@given(st.lists(messages, max_size=12))
def test_whatever_was_lost_the_rest_is_a_conversation(given: list[Message]) -> None:
    once = repaired(given)
    assert is_whole(once)
    assert repaired(once) == once
    assert [each for each in once if not isinstance(each, ToolResult)] == [
        each for each in given if not isinstance(each, ToolResult)
    ]


def test_old_results_are_cut_and_the_newest_stay() -> None:
    long = "x" * 5000
    results = [ToolResult(str(number), "read", long) for number in range(4)]
    shorter = shortened(results)
    assert shorter is not None
    texts = [each.text for each in shorter if isinstance(each, ToolResult)]
    assert [len(each) for each in texts[2:]] == [5000, 5000]
    assert all(each.endswith(LEFT_OUT) and len(each) < 1000 for each in texts[:2])
    assert shortened(shorter) is None


@pytest.mark.parametrize(
    ("block", "part"),
    [
        ({"type": "text", "text": "hello"}, TextPart("hello")),
        ({"type": "image", "data": "AA", "mimeType": "image/png"}, ImagePart("image/png", "AA")),
        ({"type": "resource_link", "uri": "file:///a", "name": "a"}, ResourcePart("file:///a")),
        (
            {"type": "resource", "resource": {"uri": "file:///a", "text": "t", "mimeType": "text/plain"}},
            ResourcePart("file:///a", "t", "text/plain"),
        ),
        (
            {"type": "resource", "resource": {"uri": "x:/y", "blob": "AA", "mimeType": "image/png"}},
            ImagePart("image/png", "AA"),
        ),
    ],
)
def test_each_kind_of_content_reaches_the_model(block: dict[str, Any], part: object) -> None:
    assert user_message([block], takes_images=True).parts == (part,)


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "data": "AA", "mimeType": "image/png"},
        {"type": "resource", "resource": {"uri": "x:/y", "blob": "AA", "mimeType": "application/zip"}},
        {"type": "audio", "data": "AA", "mimeType": "audio/wav"},
        {"type": "image"},
        {},
    ],
)
def test_what_a_model_cannot_take_is_told_to_it_in_words(block: dict[str, Any]) -> None:
    [part] = user_message([block], takes_images=False).parts
    assert isinstance(part, TextPart)
    assert "left out" in part.text


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("", ""),
        ("\n  fix   the bug \nplease", "fix the bug"),
        ("word " * 30, "word word word word word word word word word word word…"),
    ],
)
def test_a_title_is_the_first_line_cut_at_a_word(text: str, title: str) -> None:
    assert title_of(text) == title
