"""Updates of a v1 agent as a v2 client reads them. Rows are those of the table in docs/dialects.md."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.projections.translate.speaking import plain, raw, say, text

from turnwire.ids import PromptId
from turnwire.projections.translate.diffs import git_patch
from turnwire.projections.translate.updates import UpdatesV1ToV2

pytestmark = pytest.mark.guarantee("G11")
MODES: dict[str, Any] = {
    "currentModeId": "ask",
    "availableModes": [{"id": "ask", "name": "Ask"}, {"id": "code", "name": "Code"}],
}


def ids(told: list[list[Any]]) -> list[str]:
    return [each["messageId"] for updates in told for each in updates]


def test_row_13_a_piece_without_an_id_gets_the_id_of_the_message_it_goes_on_with() -> None:
    agent = UpdatesV1ToV2()
    chunk = "agent_message_chunk"
    first = ids([say(agent, chunk, content=text("a")), say(agent, chunk, content=text("b"))])
    assert first[0] == first[1]
    thought = ids([say(agent, "agent_thought_chunk", content=text("c"))])
    after = ids([say(agent, chunk, content=text("d"))])
    other_turn = ids([say(agent, chunk, content=text("e"), turn="p2")])
    assert len({first[0], *thought, *after, *other_turn}) == 4


def test_row_13_an_id_of_the_agent_is_kept_and_a_new_one_begins_a_new_message() -> None:
    agent = UpdatesV1ToV2()
    told = [
        say(agent, "agent_message_chunk", content=text("a"), messageId="m1"),
        say(agent, "agent_message_chunk", content=text("b"), messageId=None),
        say(agent, "agent_message_chunk", content=text("c"), messageId="m2"),
    ]
    assert ids(told) == ["m1", "m1", "m2"]


def test_row_13_the_same_log_gives_the_same_ids() -> None:
    def told() -> list[str]:
        agent = UpdatesV1ToV2()
        return ids([say(agent, "agent_message_chunk", content=text("x"), turn=turn) for turn in ("p1", None, "p2")])

    assert told() == told()


def test_row_13_a_new_tool_call_parts_two_messages_and_news_of_it_do_not() -> None:
    agent = UpdatesV1ToV2()
    before = ids([say(agent, "agent_message_chunk", content=text("a"))])
    say(agent, "tool_call", toolCallId="t1", title="Look")
    after = ids([say(agent, "agent_message_chunk", content=text("b"))])
    say(agent, "tool_call_update", toolCallId="t1", status="completed")
    still = ids([say(agent, "agent_message_chunk", content=text("c"))])
    assert before != after == still


def test_row_13_ids_of_an_agent_that_came_back_do_not_meet_the_old_ones() -> None:
    chunk: dict[str, Any] = {"content": text("a"), "messageId": "m1"}
    first = ids([say(UpdatesV1ToV2(), "agent_message_chunk", **chunk)])
    second = ids([say(UpdatesV1ToV2(life=2), "agent_message_chunk", **chunk)])
    assert first != second


def test_row_13_a_prompt_or_an_end_parts_two_messages() -> None:
    agent = UpdatesV1ToV2()
    before = ids([say(agent, "agent_message_chunk", content=text("a"))])
    assert agent.part() == []
    assert ids([say(agent, "agent_message_chunk", content=text("b"))]) != before


def test_row_15_user_messages_of_the_agent_keep_their_id() -> None:
    told = say(UpdatesV1ToV2(), "user_message_chunk", content=text("hi"), messageId="u1")
    assert told == [{"sessionUpdate": "user_message_chunk", "content": text("hi"), "messageId": "u1"}]


def test_row_16_an_announced_tool_call_says_its_defaults() -> None:
    [told] = say(UpdatesV1ToV2(), "tool_call", toolCallId="t1", title="Look")
    assert told == {
        "sessionUpdate": "tool_call_update",
        "toolCallId": "t1",
        "title": "Look",
        "kind": "other",
        "status": "pending",
    }


def test_row_16_a_tool_call_that_is_announced_again_begins_anew() -> None:
    agent = UpdatesV1ToV2()
    say(agent, "tool_call", toolCallId="t1", title="Look", rawInput={"a": 1}, _meta={"old": 1})
    cleared, told = say(agent, "tool_call", toolCallId="t1", title="Again", _meta={"new": 1})
    assert cleared == {"sessionUpdate": "tool_call_update", "toolCallId": "t1", "_meta": None}
    assert (told["rawInput"], told["content"], told["_meta"]) == (None, None, {"new": 1})


def test_row_17_null_says_nothing_in_v1_and_would_clear_in_v2() -> None:
    [told] = say(
        UpdatesV1ToV2(),
        "tool_call_update",
        toolCallId="t1",
        title=None,
        status="completed",
        content=None,
        _meta=None,
    )
    assert told == {"sessionUpdate": "tool_call_update", "toolCallId": "t1", "status": "completed"}


def test_row_17_line_zero_has_no_place_in_v2() -> None:
    agent = UpdatesV1ToV2()
    places = [{"path": "/a", "line": 0}, {"path": "/b", "line": 3}]
    [told] = say(agent, "tool_call_update", toolCallId="t1", locations=places)
    assert told["locations"] == [{"path": "/a"}, {"path": "/b", "line": 3}]
    assert agent.losses == {"line_zero": 1}


def test_row_20_a_terminal_of_the_client_becomes_a_line_of_text() -> None:
    agent = UpdatesV1ToV2()
    items = [{"type": "terminal", "terminalId": "x1", "_meta": {"k": 1}}]
    [told] = say(agent, "tool_call_update", toolCallId="t1", content=items)
    assert told["content"] == [{"type": "content", "content": text("[terminal x1]"), "_meta": {"k": 1}}]
    assert agent.losses == {"terminal_of_client": 1}


@pytest.mark.parametrize(("old", "operation"), [(None, "add"), ("a\n", "modify"), ("", "modify")])
def test_row_21_a_diff_becomes_a_change_with_a_patch(old: str | None, operation: str) -> None:
    diff = {"type": "diff", "path": "/w/f", "oldText": old, "newText": "b\n"}
    [told] = say(UpdatesV1ToV2(), "tool_call_update", toolCallId="t1", content=[diff])
    [item] = told["content"]
    assert item["changes"] == [{"operation": operation, "path": "/w/f"}]
    assert item["patch"]["format"] == "git_patch"
    assert item["patch"]["text"].startswith("diff --git /w/f /w/f\n")


LONG = "".join(f"line {number}\n" for number in range(40))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (None, "a\nb\n"),
        (None, "no newline"),
        (None, ""),
        ("a\nb\n", "a\nc\n"),
        ("a\nb", "a\nb\n"),
        ("", "x\n"),
        ("x\n", ""),
        (LONG, LONG.replace("line 3\n", "").replace("line 20\n", "line twenty\n") + "more"),
        ("a\rb\n", "a\rc\n"),
        ("x\n" * 3000, "".join(f"y{number}\n" for number in range(3000))),
    ],
)
def test_row_21_git_makes_the_new_text_of_the_old_with_the_patch(
    old: str | None, new: str, tmp_path: Path, require_tool: Callable[[str], str]
) -> None:
    git, file = require_tool("git"), tmp_path / "f"
    if old is not None:
        file.write_bytes(old.encode())
    patch = git_patch("f", old, new)
    command = [git, "apply", "-p0", "--whitespace=nowarn", "-"]
    subprocess.run(command, input=patch.encode(), cwd=tmp_path, check=True, timeout=30)
    assert file.read_bytes() == new.encode()


def test_row_22_a_plan_is_the_main_plan() -> None:
    entries = [{"content": "do", "priority": "high", "status": "pending"}]
    [told] = say(UpdatesV1ToV2(), "plan", entries=entries, _meta={"k": 1})
    assert told == {
        "sessionUpdate": "plan_update",
        "plan": {"type": "items", "planId": "main", "entries": entries},
        "_meta": {"k": 1},
    }


def test_row_23_a_mode_is_an_option_and_all_options_are_told_each_time() -> None:
    other: dict[str, Any] = {"id": "model", "name": "Model", "type": "select", "currentValue": "a"}
    other["options"] = [{"group": "g", "name": "G", "options": [{"value": "a", "name": "A"}]}]
    agent = UpdatesV1ToV2(raw({"modes": MODES, "configOptions": [other]}))
    [told] = say(agent, "current_mode_update", currentModeId="code")
    model, mode = told["configOptions"]
    assert (told["sessionUpdate"], model["configId"], model["options"][0]["groupId"]) == (
        "config_option_update",
        "model",
        "g",
    )
    assert mode == {
        "configId": "mode",
        "name": "Mode",
        "category": "mode",
        "type": "select",
        "currentValue": "code",
        "options": [{"value": "ask", "name": "Ask"}, {"value": "code", "name": "Code"}],
    }


def test_row_23_an_agent_that_lists_its_mode_as_an_option_gets_no_second_one() -> None:
    own: dict[str, Any] = {"id": "m", "name": "M", "category": "mode", "type": "select", "currentValue": "ask"}
    own["options"] = [{"value": "ask", "name": "Ask"}, {"value": "code", "name": "Code"}]
    agent = UpdatesV1ToV2(raw({"modes": MODES, "configOptions": [own]}))
    [told] = say(agent, "current_mode_update", modeId="code")
    assert [(each["configId"], each["currentValue"]) for each in told["configOptions"]] == [("m", "code")]


def test_row_23_a_mode_that_was_never_listed_is_listed_by_its_id() -> None:
    agent = UpdatesV1ToV2()
    [told] = say(agent, "current_mode_update", currentModeId="odd")
    assert told["configOptions"][0]["options"] == [{"value": "odd", "name": "odd"}]
    assert agent.losses == {"mode_not_listed": 1}


def test_row_23_options_that_come_anew_keep_the_mode() -> None:
    agent = UpdatesV1ToV2(raw({"modes": MODES}))
    empty: dict[str, Any] = {"id": "e", "name": "E", "type": "select", "currentValue": "", "options": []}
    flag = {"id": "mode", "name": "F", "type": "boolean", "currentValue": True}
    [told] = say(agent, "config_option_update", configOptions=[empty, flag])
    assert [each["configId"] for each in told["configOptions"]] == ["mode", "_mode"]
    assert agent.losses == {"option_without_values": 1}


def test_row_23_a_mode_that_a_client_set_is_told_as_options() -> None:
    agent = UpdatesV1ToV2(raw({"modes": MODES}))
    [told] = agent.mode("code")
    assert plain(told)["configOptions"][0]["currentValue"] == "code"
    agent.offers(raw({"modes": MODES}))
    [again] = agent.mode("ask")
    assert plain(again)["configOptions"][0]["currentValue"] == "ask"


def test_row_25_commands_get_their_tags() -> None:
    commands = [{"name": "go", "description": "Go", "input": {"hint": "where"}}, {"name": "x", "description": ""}]
    [told] = say(UpdatesV1ToV2(), "available_commands_update", availableCommands=commands)
    assert told["availableCommands"] == [
        {"type": "command", "name": "go", "description": "Go", "input": {"type": "text", "hint": "where"}},
        {"type": "command", "name": "x", "description": ""},
    ]


def test_row_29_usage_without_a_cost_says_that_there_is_none() -> None:
    [told] = say(UpdatesV1ToV2(), "usage_update", used=1, size=2)
    assert told == {"sessionUpdate": "usage_update", "used": 1, "size": 2, "cost": None}


@pytest.mark.parametrize("marker", ["turn_complete", "_turn_complete"])
def test_row_31_the_agents_own_marker_is_told_by_the_end_of_the_turn(marker: str) -> None:
    assert say(UpdatesV1ToV2(), marker, promptRequestId=2, stopReason="end_turn") == []


@pytest.mark.parametrize(
    "kind",
    ["session_info_update", "notice", "compaction_update", "compaction_summary_chunk", "_ours", "of_a_later_acp"],
)
def test_rows_29_and_32_what_is_alike_or_unknown_passes_byte_for_byte(kind: str) -> None:
    given = raw({"sessionUpdate": kind, "title": None, "x": 1.0, "_meta": None})
    agent = UpdatesV1ToV2()
    assert agent.take(given, turn=PromptId("p1")) == [given]
    assert not agent.losses


def test_row_18_a_call_that_a_cancel_closed_is_cancelled_and_not_failed() -> None:
    agent = UpdatesV1ToV2()
    say(agent, "tool_call", toolCallId="t1", title="Look")
    meta = {"turnwire": {"closed": "cancelled"}}
    [told] = say(agent, "tool_call_update", toolCallId="t1", status="failed", _meta=meta)
    assert told["status"] == "cancelled"
    [own] = say(agent, "tool_call_update", toolCallId="t1", status="failed")
    assert own["status"] == "failed"
