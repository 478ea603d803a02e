"""Agents of v1 that nest by tool call: output inside one stays separate, and nothing of it is lost."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.unit.projections.encoder.frame_words import PLAIN, V2, seen
from tests.unit.session import driving as d

from turnwire.ids import PromptId, SessionId
from turnwire.projections.encoder import Outgoing, Tell
from turnwire.projections.envelope import Form, Shape, ShapeFold
from turnwire.projections.view import Message, ToolCall, View
from turnwire.session.codec import encode

INSIDE: dict[str, Any] = {"_meta": {"claudeCode": {"parentToolUseId": "task"}}}
TEXT = {"type": "text"}


def played() -> d.Session:
    session = d.Session()
    session.take(d.prompt(), d.has_prompt(), d.chunk("I look. "))
    session.take(d.said("tool_call", toolCallId="task", title="Task", status="in_progress"))
    session.take(d.said("agent_message_chunk", content={**TEXT, "text": "in"}, **INSIDE))
    session.take(d.said("agent_message_chunk", content={**TEXT, "text": "side"}, **INSIDE))
    session.take(d.said("tool_call", toolCallId="read", title="Read", status="pending", **INSIDE))
    session.take(d.said("tool_call_update", toolCallId="read", status="completed", **INSIDE))
    session.take(d.chunk("It "), d.said("agent_message_chunk", content={**TEXT, "text": "last"}, **INSIDE))
    session.take(d.chunk("is there."), d.said("agent_message_chunk", content={**TEXT, "text": "word"}, **INSIDE))
    session.take(d.said("tool_call_update", toolCallId="task", status="completed"), d.answered())
    return session


def updates(outgoing: list[Outgoing]) -> list[dict[str, Any]]:
    return [msgspec.json.decode(each.update) for each in outgoing if isinstance(each, Tell)]


def words(told: list[dict[str, Any]]) -> str:
    return "".join(each["content"]["text"] for each in told if each["sessionUpdate"] == "agent_message_chunk")


def test_a_v1_client_is_told_it_as_it_is() -> None:
    told = updates(seen(PLAIN, played().log))
    assert words(told) == "I look. insideIt lastis there.word"
    assert sum("_meta" in each and "claudeCode" in each["_meta"] for each in told) == 6


def test_a_v2_client_has_the_words_of_a_call_in_messages_of_their_own() -> None:
    told = updates(seen(V2, played().log))
    assert words(told) == "I look. insideIt lastis there.word"
    by_message: dict[str, set[bool]] = {}
    for each in told:
        if each["sessionUpdate"] == "agent_message_chunk":
            by_message.setdefault(each["messageId"], set()).add("_meta" in each)
    assert all(len(each) == 1 for each in by_message.values()), "no message has words of both"
    read = [each for each in told if each.get("toolCallId") == "read"]
    assert all(each["_meta"] == INSIDE["_meta"] for each in read)


def test_rest_tells_it_in_both_shapes() -> None:
    bodies = [encode(each) for each in played().log]
    for shape in Shape:
        lines = b"".join(ShapeFold(SessionId("s1"), shape).project(bodies, Form.LINE))
        assert lines.count(b"parentToolUseId") == 6


def test_the_transcript_knows_what_was_said_where() -> None:
    view = View()
    for event in played().log:
        view.apply(event)
    said = [
        (each.nested, msgspec.json.decode(each.content[0])["text"])
        for each in view.items
        if isinstance(each, Message) and not each.is_prompt
    ]
    assert said == [
        (None, "I look. "),
        ("task", "inside"),
        (None, "It "),
        ("task", "last"),
        (None, "is there."),
        ("task", "word"),
    ]
    calls = {each.tool_call_id: each for each in view.items if isinstance(each, ToolCall)}
    assert (calls["read"].status, list(calls["read"].meta)) == ("completed", ["claudeCode"])
    assert view.result_text(PromptId("p1")) == "is there."
