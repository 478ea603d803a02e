"""A view in the form of either version, checked by the form of its items."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.projections.translate.speaking import complaints, plain, raw, text

from turnwire.ids import AgentSessionId, PromptId
from turnwire.projections.translate.updates import UpdatesV1ToV2
from turnwire.projections.translate.views import items_in, latest_in
from turnwire.projections.view import Message, ToolCall, View
from turnwire.session import events as ev

P1 = PromptId("p1")
V1_DIFF = {"type": "diff", "path": "/f", "oldText": "a\n", "newText": "b\n"}
V2_DIFF = {"type": "diff", "changes": [{"operation": "add", "path": "/f"}]}


def view_of(*lives: tuple[int, list[dict[str, Any]]]) -> View:
    """Return the view of the output of agents of these versions, one after the other."""
    view = View()
    for number, (version, says) in enumerate(lives):
        view.apply(
            ev.AgentStarted(
                at=1,
                agent_session_id=AgentSessionId(f"a{number}"),
                protocol_version=version,
                turn_end=ev.TurnEnd.RESPONSE,
            )
        )
        for update in says:
            view.apply(ev.SessionUpdated(at=1, kind=update["sessionUpdate"], update=raw(update), prompt_id=P1))
    return view


def v1_says(call: str) -> list[dict[str, Any]]:
    content = [V1_DIFF, {"type": "terminal", "terminalId": "clients"}]
    return [
        {"sessionUpdate": "agent_message_chunk", "content": text("one")},
        {"sessionUpdate": "tool_call", "toolCallId": call, "title": "T", "content": content},
        {"sessionUpdate": "agent_message_chunk", "content": text("two")},
    ]


def v2_says(call: str) -> list[dict[str, Any]]:
    content = [V2_DIFF, {"type": "terminal", "terminalId": "agents"}]
    fields: dict[str, Any] = {"title": "T", "kind": "_own", "status": "cancelled", "content": content}
    return [
        {"sessionUpdate": "agent_message", "messageId": "m1", "content": [{"type": "_own"}, text("two")]},
        {"sessionUpdate": "terminal_update", "terminalId": "agents", "command": "ls"},
        {"sessionUpdate": "tool_call_update", "toolCallId": call, **fields},
    ]


def calls(view: View, version: int) -> list[ToolCall]:
    return [each for each in items_in(view, version) if isinstance(each, ToolCall)]


def check(call: ToolCall, version: int) -> None:
    update = {
        "sessionUpdate": "tool_call" if version == 1 else "tool_call_update",
        "toolCallId": call.tool_call_id,
        "title": "T",
        "kind": call.kind,
        "status": call.status,
        "content": [plain(each) for each in call.content],
    }
    assert complaints(version, "SessionUpdate", update) == [], update


@pytest.mark.guarantee("G11")
@pytest.mark.parametrize("lives", [(1,), (2,), (1, 2), (2, 1)])
@pytest.mark.parametrize("version", [1, 2])
def test_every_tool_call_is_in_the_asked_words_whoever_made_it(lives: tuple[int, ...], version: int) -> None:
    said = [(each, (v1_says if each == 1 else v2_says)(f"t{number}")) for number, each in enumerate(lives)]
    view = view_of(*said)
    found = calls(view, version)
    assert len(found) == len(lives)
    for spoken, call in zip(lives, found, strict=True):
        check(call, version)
        kinds = [plain(each)["type"] for each in call.content]
        # A terminal belongs to one side: the client in v1, the agent in v2.
        mine = spoken == version
        assert kinds == (["diff", "terminal"] if mine else ["content" if version == 1 else "diff", "content"])


def test_the_items_of_the_view_are_left_as_they_are() -> None:
    view = view_of((2, v2_says("t")))
    before = [plain(each) for each in calls(view, 2)[0].content]
    assert [plain(each)["type"] for each in calls(view, 1)[0].content] == ["content", "content"]
    assert [plain(each) for each in calls(view, 2)[0].content] == before
    assert items_in(view, None) == items_in(view, 2) == view.items


def test_messages_have_the_names_that_updates_have() -> None:
    says = v1_says("t")
    agent = UpdatesV1ToV2()
    names = [
        plain(told)["messageId"]
        for update in says
        for told in agent.take(raw(update), turn=P1)
        if "messageId" in plain(told)
    ]
    found = [each for each in items_in(view_of((1, says)), 2) if isinstance(each, Message)]
    assert [each.message_id for each in found] == names == ["p1.1", "p1.2"]


def test_blocks_that_v1_does_not_have_are_a_line_of_text() -> None:
    (message,) = [each for each in items_in(view_of((2, v2_says("t"))), 1) if isinstance(each, Message)]
    assert [plain(each)["type"] for each in message.content] == ["text", "text"]


def test_an_agent_that_offers_nothing_offers_nothing_in_any_words() -> None:
    for spoken in (1, 2):
        for version in (1, 2, None):
            latest = latest_in(view_of((spoken, [])), version)
            assert latest == view_of((spoken, [])).latest
