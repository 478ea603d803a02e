"""Updates of a v2 agent as a v1 client reads them. Rows are those of the table in docs/dialects.md."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from tests.unit.projections.translate.speaking import plain, raw, say, text

from turnwire.ids import PromptId
from turnwire.projections.translate.tools import sanitized
from turnwire.projections.translate.updates import UpdatesV2ToV1

pytestmark = pytest.mark.guarantee("G11")


def item(words: str) -> dict[str, Any]:
    return {"type": "content", "content": text(words)}


def encoded(output: bytes) -> str:
    return base64.b64encode(output).decode()


def test_row_11_states_are_told_by_the_turn_and_background_is_lost() -> None:
    agent = UpdatesV2ToV1()
    assert say(agent, "state_update", state="running", background=[]) == []
    assert say(agent, "state_update", state="idle", background=None) == []
    assert agent.losses == {"background": 1}


def test_row_13_two_kinds_of_message_with_one_id_are_told_apart() -> None:
    agent = UpdatesV2ToV1()
    [said] = say(agent, "agent_message_chunk", messageId="m", content=text("a"))
    [thought] = say(agent, "agent_thought_chunk", messageId="m", content=text("b"))
    assert (said["messageId"], thought["messageId"]) == ("m", "agent_thought.m")


def test_row_14_a_whole_message_is_told_block_by_block() -> None:
    agent = UpdatesV2ToV1()
    told = say(agent, "agent_message", messageId="m", content=[text("a"), text("b")], _meta={"k": 1})
    assert told == [
        {"_meta": {"k": 1}, "sessionUpdate": "agent_message_chunk", "messageId": "m", "content": text("a")},
        {"sessionUpdate": "agent_message_chunk", "messageId": "m", "content": text("b")},
    ]
    assert agent.losses == {"message_meta": 1}


def test_row_14_a_message_that_comes_again_longer_is_told_from_where_it_went_on() -> None:
    agent = UpdatesV2ToV1()
    say(agent, "agent_message_chunk", messageId="m", content=text("Grü"))
    say(agent, "agent_message_chunk", messageId="m", content=text("ße"))
    assert say(agent, "agent_message", messageId="m", content=[text("Grüße")]) == []
    [rest] = say(agent, "agent_message", messageId="m", content=[text("Grüße an alle")])
    assert rest["content"] == text(" an alle")
    assert not agent.losses


@pytest.mark.parametrize("content", [None, [], [text("other")], [text("fir")]])
def test_row_14_what_was_sent_cannot_be_taken_back(content: Any) -> None:
    agent = UpdatesV2ToV1()
    say(agent, "agent_message_chunk", messageId="m", content=text("first"))
    assert say(agent, "agent_message", messageId="m", content=content) == []
    assert agent.losses == {"message_replaced": 1}


def test_row_14_metadata_alone_is_lost_and_counted() -> None:
    agent = UpdatesV2ToV1()
    assert say(agent, "agent_message", messageId="m", _meta=None) == []
    assert agent.losses == {"message_meta": 1}


def test_row_15_user_messages_of_the_agent_are_pieces() -> None:
    [told] = say(UpdatesV2ToV1(), "user_message", messageId="u", content=[text("hi")])
    assert (told["sessionUpdate"], told["content"]) == ("user_message_chunk", text("hi"))


def test_row_16_the_first_sight_of_a_tool_call_announces_it() -> None:
    agent = UpdatesV2ToV1()
    [first] = say(agent, "tool_call_update", toolCallId="t1", title="Look", kind="read")
    [second] = say(agent, "tool_call_update", toolCallId="t1", status="completed")
    assert (first["sessionUpdate"], second["sessionUpdate"]) == ("tool_call", "tool_call_update")
    assert not agent.losses


@pytest.mark.parametrize(
    ("members", "title"), [({"name": "grep", "kind": "read"}, "grep"), ({"kind": "read"}, "read"), ({}, "t1")]
)
def test_row_16_a_tool_call_without_a_title_gets_one(members: dict[str, Any], title: str) -> None:
    agent = UpdatesV2ToV1()
    [told] = say(agent, "tool_call_update", toolCallId="t1", **members)
    assert told["title"] == title
    assert agent.losses == {"tool_title": 1}


def test_row_17_a_cleared_list_is_an_empty_one_and_defaults_are_said() -> None:
    agent = UpdatesV2ToV1()
    say(agent, "tool_call_update", toolCallId="t1", title="Look")
    [told] = say(agent, "tool_call_update", toolCallId="t1", content=None, locations=None, kind=None, status=None)
    assert told == {
        "sessionUpdate": "tool_call_update",
        "toolCallId": "t1",
        "content": [],
        "locations": [],
        "kind": "other",
        "status": "pending",
    }
    assert not agent.losses


def test_row_17_a_cleared_scalar_stays_and_is_counted() -> None:
    agent = UpdatesV2ToV1()
    say(agent, "tool_call_update", toolCallId="t1", title="Look", rawInput=1)
    assert say(agent, "tool_call_update", toolCallId="t1", title=None, rawInput=None, _meta=None) == []
    assert say(agent, "tool_call_update", toolCallId="t1", capabilities={"cancel": {}}) == []
    assert agent.losses == {"scalar_clear": 2, "meta_clear": 1, "item_capabilities": 1}


def test_row_17_a_patch_that_says_nothing_is_passed_on() -> None:
    agent = UpdatesV2ToV1()
    say(agent, "tool_call_update", toolCallId="t1", title="Look")
    assert len(say(agent, "tool_call_update", toolCallId="t1")) == 1


@pytest.mark.parametrize(
    ("status", "known"), [("cancelled", "failed"), ("paused", "in_progress"), ("_odd", "in_progress")]
)
def test_row_18_a_status_that_v1_does_not_have(status: str, known: str) -> None:
    agent = UpdatesV2ToV1()
    [told] = say(agent, "tool_call_update", toolCallId="t1", title="x", status=status, kind="_odd")
    assert (told["status"], told["kind"]) == (known, "other")
    assert agent.losses == {"tool_status": 1, "tool_kind": 1}


def test_row_19_pieces_of_content_are_told_as_all_of_it() -> None:
    agent = UpdatesV2ToV1()
    announced, first = say(agent, "tool_call_content_chunk", toolCallId="t1", content=item("a"))
    [second] = say(agent, "tool_call_content_chunk", toolCallId="t1", content=item("b"))
    assert (announced["sessionUpdate"], first["content"]) == ("tool_call", [item("a")])
    assert second["content"] == [item("a"), item("b")]


def test_row_19_content_in_ever_so_many_pieces_costs_a_small_multiple_of_it() -> None:
    agent, sent, pieces = UpdatesV2ToV1(), 0, 2_000
    for number in range(pieces):
        told = say(agent, "tool_call_content_chunk", toolCallId="t1", content=item(f"piece {number:05}" * 5))
        sent += sum(len(str(each)) for each in told)
    last = [plain(each) for each in agent.part()]
    assert len(last[0]["content"]) == pieces
    assert sent < 20 * len(str(last[0]))
    assert agent.part() == []


def test_row_19_what_was_held_back_goes_with_the_next_word_on_the_call() -> None:
    agent = UpdatesV2ToV1()
    for number in range(200):
        say(agent, "tool_call_content_chunk", toolCallId="t1", content=item(f"piece {number}" * 9))
    [told] = say(agent, "tool_call_update", toolCallId="t1", status="completed")
    assert len(told["content"]) == 200
    assert agent.part() == []


def test_row_20_a_terminal_is_text_in_the_call_that_shows_it() -> None:
    agent = UpdatesV2ToV1()
    assert say(agent, "terminal_update", terminalId="x1", command="ls", cwd="/w") == []
    [announced] = say(
        agent, "tool_call_update", toolCallId="t1", title="ls", content=[{"type": "terminal", "terminalId": "x1"}]
    )
    assert announced["content"] == [item("```\n$ ls\n```")]
    # A chunk may end inside a character.
    say(agent, "terminal_output_chunk", terminalId="x1", data=encoded("ü".encode()[:1]))
    [told] = say(agent, "terminal_output_chunk", terminalId="x1", data=encoded("ü".encode()[1:] + b"\x1b[31m!\r\n"))
    assert told["content"] == [item("```\n$ ls\nü!\n```")]
    [ended] = say(agent, "terminal_update", terminalId="x1", exitStatus={"exitCode": -1})
    assert ended["content"] == [item("```\n$ ls\nü!\n[exit code -1]\n```")]
    assert agent.losses["terminal_of_agent"] > 0


def test_row_20_a_terminal_that_is_not_known_yet_and_output_that_is_none() -> None:
    agent = UpdatesV2ToV1()
    [told] = say(
        agent, "tool_call_update", toolCallId="t1", title="ls", content=[{"type": "terminal", "terminalId": "x1"}]
    )
    assert told["content"] == [item("[terminal x1]")]
    assert say(agent, "terminal_output_chunk", terminalId="x1", data="not base64") == []
    [killed] = say(agent, "terminal_update", terminalId="x1", exitStatus={"signal": "KILL"})
    assert killed["content"] == [item("```\n[ended by KILL]\n```")]


def test_row_20_of_a_long_output_only_the_end_is_shown() -> None:
    agent = UpdatesV2ToV1()
    say(agent, "tool_call_update", toolCallId="t1", title="x", content=[{"type": "terminal", "terminalId": "x1"}])
    [told] = say(agent, "terminal_output_chunk", terminalId="x1", data=encoded(b"a" * 100_000 + b"end"))
    shown = told["content"][0]["content"]["text"]
    assert "earlier output is left out" in shown
    assert shown.endswith("end\n```")
    assert len(shown) < 70_000


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ("a\r\nb\rc", "a\nb\nc"),
        ("\x1b]0;title\x07x", "x"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1bPq\x1b\\x", "x"),
        ("bell\x07 tab\t", "bell tab\t"),
        ("cut\x1b[", "cut"),
        ("\x1b(Bx", "x"),
    ],
)
def test_row_20_control_sequences_are_not_shown(output: str, shown: str) -> None:
    assert sanitized(output) == shown


def test_row_21_a_diff_is_its_patch_as_text() -> None:
    agent = UpdatesV2ToV1()
    changes = [{"operation": "move", "oldPath": "/a", "path": "/b"}]
    patch = {"format": "git_patch", "text": "diff --git /a /b\n"}
    content = [{"type": "diff", "changes": changes, "patch": patch}, {"type": "diff", "changes": changes}]
    [told] = say(agent, "tool_call_update", toolCallId="t1", title="x", content=content)
    assert told["content"] == [item("```diff\ndiff --git /a /b\n```"), item("move /a /b")]
    assert agent.losses == {"diff_changes": 2}


def test_row_22_all_plans_are_one() -> None:
    agent = UpdatesV2ToV1()
    one, two = [{"content": name, "priority": "low", "status": "pending"} for name in ("one", "two")]
    say(agent, "plan_update", plan={"type": "items", "planId": "a", "entries": [one]})
    [told] = say(agent, "plan_update", plan={"type": "items", "planId": "b", "entries": [two]}, _meta={"k": 1})
    assert told == {"sessionUpdate": "plan", "entries": [one, two], "_meta": {"k": 1}}
    [left] = say(agent, "plan_removed", planId="a")
    assert left["entries"] == [two]
    assert agent.losses == {"plan_several": 1}


def test_row_22_a_plan_in_another_form_and_entries_that_v1_does_not_have() -> None:
    agent = UpdatesV2ToV1()
    assert say(agent, "plan_update", plan={"type": "markdown", "planId": "a", "content": "x"}) == []
    entries = [
        {"content": "gone", "priority": "low", "status": "cancelled"},
        {"content": "odd", "priority": "_urgent", "status": "_odd"},
    ]
    [told] = say(agent, "plan_update", plan={"type": "items", "planId": "a", "entries": entries})
    assert told["entries"] == [{"content": "odd", "priority": "medium", "status": "in_progress"}]
    assert agent.losses == {"plan_form": 1, "plan_entry": 2}


MODE: dict[str, Any] = {
    "configId": "m",
    "name": "Mode",
    "category": "mode",
    "type": "select",
    "currentValue": "ask",
    "options": [{"groupId": "g", "name": "G", "options": [{"value": "ask", "name": "Ask"}]}],
}


def test_row_23_the_mode_option_is_also_the_mode() -> None:
    agent = UpdatesV2ToV1(raw({"configOptions": [MODE]}))
    flag = {"configId": "f", "name": "F", "type": "boolean", "currentValue": True}
    odd = {"configId": "o", "name": "O", "type": "_odd"}
    options, mode = say(agent, "config_option_update", configOptions=[{**MODE, "currentValue": "code"}, flag, odd])
    assert [each["id"] for each in options["configOptions"]] == ["m", "f"]
    assert options["configOptions"][0]["options"][0]["group"] == "g"
    assert mode == {"sessionUpdate": "current_mode_update", "currentModeId": "code"}
    assert len(say(agent, "config_option_update", configOptions=[{**MODE, "currentValue": "code"}])) == 1
    assert agent.losses["option_type"] == 1


def test_row_23_a_client_that_takes_no_booleans_is_sent_none() -> None:
    agent = UpdatesV2ToV1(boolean_options=False)
    flag = {"configId": "f", "name": "F", "type": "boolean", "currentValue": True}
    [told] = say(agent, "config_option_update", configOptions=[flag])
    assert told["configOptions"] == []
    assert agent.losses == {"option_type": 1}


def test_row_23_a_mode_that_a_client_set_is_told_in_both_forms() -> None:
    agent = UpdatesV2ToV1()
    agent.offers(raw({"configOptions": [MODE]}))
    mode, options = (plain(each) for each in agent.mode("code"))
    assert mode["currentModeId"] == options["configOptions"][0]["currentValue"] == "code"


def test_row_25_commands_lose_their_tags_and_unknown_ones_go() -> None:
    agent = UpdatesV2ToV1()
    commands = [
        {"type": "command", "name": "a", "description": "", "input": {"type": "text", "hint": "h"}},
        {"type": "command", "name": "b", "description": "", "input": {"type": "_odd"}},
        {"type": "command", "name": "c", "description": "", "input": None},
        {"type": "_odd", "name": "d", "description": ""},
    ]
    [told] = say(agent, "available_commands_update", availableCommands=commands)
    assert told["availableCommands"] == [
        {"name": "a", "description": "", "input": {"hint": "h"}},
        {"name": "b", "description": ""},
        {"name": "c", "description": "", "input": None},
    ]
    assert agent.losses == {"command_type": 2}


def test_row_29_a_cost_that_did_not_change_is_said_again() -> None:
    agent = UpdatesV2ToV1()
    cost = {"amount": 1.5, "currency": "EUR"}
    say(agent, "usage_update", used=1, size=9, cost=cost)
    [kept] = say(agent, "usage_update", used=2, size=9)
    [gone] = say(agent, "usage_update", used=3, size=9, cost=None)
    assert kept["cost"] == cost
    assert "cost" not in gone


def test_row_32_an_unknown_block_is_a_line_of_text() -> None:
    agent = UpdatesV2ToV1()
    [told] = say(agent, "compaction_summary_chunk", compactionId="c", content={"type": "_odd"})
    assert told["content"]["type"] == "text"
    [said] = say(agent, "agent_message_chunk", messageId="m", content={"type": "_odd"})
    assert said["content"]["type"] == "text"
    assert agent.losses == {"content_unknown": 2}


@pytest.mark.parametrize(
    ("kind", "lost"),
    [("session_info_update", 0), ("notice", 0), ("_ours", 0), ("plan", 0), ("of_a_later_acp", 1)],
)
def test_rows_29_and_32_what_is_alike_or_unknown_passes_byte_for_byte(kind: str, lost: int) -> None:
    given = raw({"sessionUpdate": kind, "title": None, "x": 1.0, "_meta": None})
    agent = UpdatesV2ToV1()
    assert agent.take(given, turn=PromptId("p1")) == [given]
    assert agent.losses["unknown_update"] == lost


@pytest.mark.parametrize(
    "kind",
    [
        "agent_message_chunk",
        "agent_message",
        "tool_call_update",
        "tool_call_content_chunk",
        "plan_update",
        "plan_removed",
    ],
)
def test_an_update_without_what_its_kind_needs_is_passed_on_as_it_is(kind: str) -> None:
    assert say(UpdatesV2ToV1(), kind, odd=1) == [{"sessionUpdate": kind, "odd": 1}]


def test_row_20_a_terminal_with_nothing_to_show_is_named_and_no_empty_block() -> None:
    agent = UpdatesV2ToV1()
    say(agent, "terminal_update", terminalId="x1", cwd="/w")
    shown = [{"type": "terminal", "terminalId": "x1"}]
    [told] = say(agent, "tool_call_update", toolCallId="t1", title="ls", content=shown)
    assert told["content"] == [item("[terminal x1]")]
    [told] = say(agent, "terminal_output_chunk", terminalId="x1", data=encoded(b"\x1b[2J"))
    assert told["content"] == [item("[terminal x1]")]
    [told] = say(agent, "terminal_output_chunk", terminalId="x1", data=encoded(b"out"))
    assert told["content"] == [item("```\nout\n```")]


def test_row_21_an_empty_patch_is_no_empty_block() -> None:
    agent = UpdatesV2ToV1()
    diff = {"type": "diff", "patch": {"format": "git", "text": ""}, "changes": [{"operation": "add", "path": "/a"}]}
    [told] = say(agent, "tool_call_update", toolCallId="t1", title="w", content=[diff])
    assert told["content"] == [item("add /a")]


def test_row_17_what_a_tool_gave_is_kept_with_and_without_content() -> None:
    agent = UpdatesV2ToV1()
    output = {"lines": [1, None], "ok": True}
    [told] = say(agent, "tool_call_update", toolCallId="t1", title="w", rawOutput=output)
    assert (told["sessionUpdate"], told["rawOutput"]) == ("tool_call", output)
    say(agent, "tool_call_content_chunk", toolCallId="t1", content=item("a" * 5000))
    assert say(agent, "tool_call_content_chunk", toolCallId="t1", content=item("b")) == []
    [told] = say(agent, "tool_call_update", toolCallId="t1", status="completed", rawOutput="done")
    assert (told["rawOutput"], len(told["content"])) == ("done", 2)
