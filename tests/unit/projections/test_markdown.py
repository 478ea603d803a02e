"""A conversation as markdown: in order, without other items, and cut at its older end."""

from __future__ import annotations

from msgspec import Raw

from turnwire.projections.view import Message, MessageRole, ToolCall, View
from turnwire.projections.view.markdown import markdown
from turnwire.wire.jsonrpc import raw

MOST = 10_000


def message(role: MessageRole, *blocks: object) -> Message:
    return Message(at=1, role=role, content=[raw(each) for each in blocks])


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def view_of(*items: Message | ToolCall) -> View:
    view = View()
    for each in items:
        view.transcript.add(each)
    return view


def test_what_was_said_and_done_is_told_in_order_and_thoughts_are_not() -> None:
    view = view_of(
        message(MessageRole.USER, text("please\n"), text("do it")),
        message(MessageRole.THOUGHT, text("hm")),
        message(MessageRole.AGENT, text("I do.")),
        ToolCall(at=1, tool_call_id="t", title="Read a file", status="completed"),
        message(MessageRole.AGENT, text("Done.")),
        message(MessageRole.USER, {"type": "image", "data": "", "mimeType": "image/png"}),
    )
    assert markdown(view, MOST) == (
        "## User\n\nplease\ndo it\n\n## Agent\n\nI do.\n\n- *tool*: Read a file (completed)\n\nDone.\n\n"
        "## User\n\n*(something that is no text)*"
    )


def test_one_that_is_too_long_keeps_its_newest_part_and_says_so() -> None:
    view = view_of(*(message(MessageRole.USER, text(f"number {each} " + "x" * 100)) for each in range(100)))
    for most in (1000, 1001, 1200, 5000):
        shown = markdown(view, most)
        assert len(shown) <= most
        assert shown.startswith("*(The older part of this conversation is left out.)*")
        assert "number 99 " in shown
        assert "number 0 " not in shown


def test_one_message_that_is_too_long_by_itself_keeps_its_end() -> None:
    shown = markdown(view_of(message(MessageRole.AGENT, text("x" * 5000 + " the end"))), 1000)
    assert len(shown) <= 1000
    assert shown.endswith("x the end")


def test_nothing_said_is_nothing_told() -> None:
    assert markdown(view_of(Message(at=1, role=MessageRole.AGENT, content=[Raw(b"{}")][:0])), MOST) == ""
