"""Random agent output: valid updates of v1 and of v2, and updates that are neither.

`V1_SAYS` and `V2_SAYS` generate a turn and an update that ACP's schema accepts; values of open unions that begin
with an underscore are among them.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from hypothesis import strategies as st
from tests.unit.projections.translate.speaking import text

from turnwire.ids import PromptId

TURNS = [PromptId("p1"), PromptId("p2"), None]

Values: TypeAlias = st.SearchStrategy[Any]


def _just(value: Any) -> Values:
    return st.just(value)


def _shape(required: dict[str, Any], optional: dict[str, Any] | None = None) -> Values:
    return st.fixed_dictionaries(required, optional=optional or {})


def _block(name: str) -> Any:
    return {"type": "resource_link", "uri": "file:///x", "name": name}


def _in_item(block: Any) -> Any:
    return {"type": "content", "content": block}


def _name(command: Any) -> str:
    return command["name"]


_words = st.text("abü\n", min_size=1, max_size=5)
_texts = st.builds(text, _words)
_link = st.builds(_block, _words)
_image = _just({"type": "image", "data": "AA==", "mimeType": "image/png"})
_blocks: Values = st.one_of(_texts, _texts, _texts, _link, _image)
_meta = st.one_of(st.dictionaries(st.sampled_from("kl"), st.integers(0, 3), max_size=2))
_tool_ids = st.sampled_from(["t1", "t2"])
_locations = st.lists(_shape({"path": _just("/a")}, optional={"line": st.integers(0, 3)}), max_size=2)
_item = st.builds(_in_item, _blocks)


def _says(kind: str, required: dict[str, Any], optional: dict[str, Any] | None = None) -> Values:
    whole = _shape({"sessionUpdate": _just(kind), **required}, optional or {})
    return st.tuples(st.sampled_from(TURNS), whole)


def _or_null(values: Values) -> Values:
    return st.none() | values


def _entries(statuses: list[str], priorities: list[str]) -> Values:
    entry = {"content": _words, "priority": st.sampled_from(priorities), "status": st.sampled_from(statuses)}
    return st.lists(_shape(entry), max_size=2)


_command = {"name": st.sampled_from("ab"), "description": _words}
_usage = {"used": st.integers(0, 9), "size": st.integers(0, 9)}
_cost = _just({"amount": 1.5, "currency": "EUR"})
_v1_status = st.sampled_from(["pending", "in_progress", "completed", "failed"])
_v1_kind = st.sampled_from(["read", "edit", "execute", "other"])
_v1_diff = _shape({"type": _just("diff"), "path": _just("/f"), "oldText": _or_null(_words), "newText": _words})
_v1_content = st.lists(_item | _v1_diff | _just({"type": "terminal", "terminalId": "x"}), max_size=2)
_v1_rest: dict[str, Any] = {
    "name": _or_null(_words),
    "kind": _v1_kind,
    "status": _v1_status,
    "content": _v1_content,
    "locations": _locations,
    "rawInput": st.integers(0, 3),
    "rawOutput": _words,
    "_meta": _meta,
}
_v1_option = _shape(
    {
        "id": st.sampled_from(["model", "mode"]),
        "name": _words,
        "type": _just("select"),
        "currentValue": _just("a"),
        "options": _just([{"group": "g", "name": "G", "options": [{"value": "a", "name": "A"}]}]),
    },
    optional={"category": st.sampled_from(["model", "_own"])},
)
V1_SAYS = st.one_of(
    *(
        _says(kind, {"content": _blocks}, {"messageId": _or_null(st.sampled_from(["m1", "m2"]))})
        for kind in ("agent_message_chunk", "agent_message_chunk", "agent_thought_chunk", "user_message_chunk")
    ),
    _says("tool_call", {"toolCallId": _tool_ids, "title": _words}, _v1_rest),
    _says(
        "tool_call_update",
        {"toolCallId": _tool_ids},
        {"title": _or_null(_words), **{name: _or_null(values) for name, values in _v1_rest.items()}},
    ),
    _says(
        "plan", {"entries": _entries(["pending", "in_progress", "completed"], ["high", "low"])}, {"_meta": _meta}
    ),
    _says(
        "available_commands_update",
        {
            "availableCommands": st.lists(
                _shape(_command, optional={"input": _just({"hint": "h"})}),
                max_size=2,
                unique_by=_name,
            )
        },
    ),
    _says("current_mode_update", {"currentModeId": st.sampled_from(["ask", "code"])}),
    _says("config_option_update", {"configOptions": st.lists(_v1_option, max_size=2)}),
    _says("session_info_update", {}, {"title": _or_null(_words), "updatedAt": st.none(), "_meta": _meta}),
    _says("usage_update", _usage, {"cost": _or_null(_cost)}),
    _says("compaction_update", {"compactionId": _just("c"), "status": _just("completed")}),
    _says("compaction_summary_chunk", {"compactionId": _just("c"), "content": _texts}),
)

_v2_patch = {"format": _just("git_patch"), "text": _words}
_v2_content = st.lists(
    st.one_of(
        _item,
        _just({"type": "terminal", "terminalId": "x"}),
        _just({"type": "_own", "x": 1}),
        _shape(
            {"type": _just("diff"), "changes": _just([{"operation": "add", "path": "/f"}])},
            optional={"patch": _shape(_v2_patch)},
        ),
    ),
    max_size=2,
)
_v2_plans = st.one_of(
    _shape(
        {
            "type": _just("items"),
            "planId": st.sampled_from("ab"),
            "entries": _entries(["pending", "cancelled", "_own"], ["high", "_own"]),
        }
    ),
    _just({"type": "_own", "planId": "a"}),
)
_v2_options = _just(
    [
        {
            "configId": "m",
            "name": "M",
            "category": "mode",
            "type": "select",
            "currentValue": "a",
            "options": [{"groupId": "g", "name": "G", "options": [{"value": "a", "name": "A"}]}],
        },
        {"configId": "f", "name": "F", "type": "boolean", "currentValue": True},
        {"configId": "o", "name": "O", "type": "_own"},
    ]
)
_v2_rest: dict[str, Any] = {
    "title": _or_null(_words),
    "name": _or_null(_words),
    "kind": _or_null(st.sampled_from(["read", "_own"])),
    "status": _or_null(st.sampled_from(["pending", "completed", "cancelled", "paused", "_own"])),
    "content": _or_null(_v2_content),
    "locations": _or_null(_just([{"path": "/a", "line": 1}])),
    "rawInput": st.none() | st.integers(0, 3),
    "capabilities": _just({"cancel": {}}),
    "_meta": _or_null(_meta),
}
_any_block = _blocks | _just({"type": "_own", "x": 1})
V2_SAYS = st.one_of(
    *(
        _says(kind, {"content": _any_block, "messageId": st.sampled_from(["m1", "m2"])})
        for kind in ("agent_message_chunk", "agent_thought_chunk", "user_message_chunk")
    ),
    *(
        _says(
            kind,
            {"messageId": st.sampled_from(["m1", "m2"])},
            {"content": _or_null(st.lists(_any_block, max_size=3)), "_meta": _or_null(_meta)},
        )
        for kind in ("agent_message", "agent_thought", "user_message")
    ),
    _says("tool_call_update", {"toolCallId": _tool_ids}, _v2_rest),
    _says(
        "tool_call_content_chunk",
        {"toolCallId": _tool_ids, "content": _item | _just({"type": "_own"})},
    ),
    _says(
        "terminal_update",
        {"terminalId": _just("x")},
        {
            "command": _or_null(_words),
            "output": _or_null(_just({"data": "YWI="})),
            "exitStatus": _or_null(_just({"exitCode": 1})),
        },
    ),
    _says(
        "terminal_output_chunk", {"terminalId": _just("x"), "data": st.sampled_from(["YQ==", "G1szMW0=", "w7w="])}
    ),
    _says("plan_update", {"plan": _v2_plans}),
    _says(
        "available_commands_update",
        {
            "availableCommands": _just(
                [{"type": "command", "name": "a", "description": "", "input": {"type": "_o"}}]
            )
        },
    ),
    _says("config_option_update", {"configOptions": _v2_options}),
    _says("usage_update", _usage, {"cost": _or_null(_cost)}),
    _says("session_info_update", {}, {"title": _or_null(_words), "_meta": _or_null(_meta)}),
    _says("state_update", {"state": st.sampled_from(["running", "idle"])}, {"background": _just([])}),
)
MODES = {"currentModeId": "ask", "availableModes": [{"id": "ask", "name": "Ask"}, {"id": "code", "name": "Code"}]}

_KINDS = sorted(
    {
        *("agent_message_chunk", "agent_message", "tool_call", "tool_call_update", "tool_call_content_chunk"),
        *("terminal_update", "terminal_output_chunk", "plan", "plan_update", "plan_removed", "usage_update"),
        *("available_commands_update", "config_option_update", "current_mode_update", "compaction_summary_chunk"),
    }
)
_NAMES = [
    *(
        "messageId",
        "toolCallId",
        "terminalId",
        "content",
        "locations",
        "kind",
        "status",
        "title",
        "plan",
        "entries",
    ),
    *(
        "availableCommands",
        "configOptions",
        "currentModeId",
        "cost",
        "data",
        "output",
        "exitStatus",
        "_meta",
        "input",
    ),
    *(
        "type",
        "options",
        "category",
        "currentValue",
        "planId",
        "changes",
        "patch",
        "path",
        "newText",
        "line",
        "text",
    ),
]


def _kinded(kind: str, update: dict[str, Any]) -> Any:
    return {**update, "sessionUpdate": kind}


def _nested(inner: Values) -> Values:
    return st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=4)


ODD: Values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, 1)
    | st.sampled_from(["", "a", "mode", "select", "diff", "terminal"]),
    _nested,
    max_leaves=8,
)
ODD_SAYS: Values = st.builds(
    _kinded, st.sampled_from(_KINDS), st.dictionaries(st.sampled_from(_NAMES), ODD, max_size=5)
)
"""Updates whose members are all in the wrong position."""
