"""Tool calls and compactions of the view, and the effects of a turn's end and cancel on calls."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw, UnsetType

from turnwire.ids import AgentSessionId, PermissionId, PromptId
from turnwire.projections.view import Compaction, ToolCall, Unknown, View
from turnwire.session import events as ev

P1, P2 = PromptId("p1"), PromptId("p2")
OUTPUT = {"type": "content", "content": {"type": "text", "text": "out"}}
MORE = {"type": "terminal", "terminalId": "term"}
FULL: dict[str, Any] = {
    "title": "Read a file",
    "name": "read",
    "kind": "read",
    "status": "in_progress",
    "content": [OUTPUT],
    "locations": [{"path": "/a"}],
    "rawInput": {"path": "/a"},
    "rawOutput": [1],
    "capabilities": {"cancel": {}},
    "_meta": {"k": 1},
}


def said(
    kind: str, prompt_id: PromptId | None = P1, /, *, after: PromptId | None = None, **fields: Any
) -> ev.SessionUpdated:
    update = Raw(msgspec.json.encode({"sessionUpdate": kind, **fields}))
    return ev.SessionUpdated(at=5, kind=kind, update=update, prompt_id=prompt_id, after=after)


def changed(
    prompt_id: PromptId | None = P1, /, *, after: PromptId | None = None, **fields: Any
) -> ev.SessionUpdated:
    return said("tool_call_update", prompt_id, after=after, toolCallId="t", **fields)


def agent(version: int, session: str = "s1") -> ev.AgentStarted:
    return ev.AgentStarted(
        at=0,
        agent_session_id=AgentSessionId(session),
        protocol_version=version,
        turn_end=ev.TurnEnd.RESPONSE,
    )


def began(prompt_id: PromptId) -> ev.TurnStarted:
    return ev.TurnStarted(at=3, prompt_id=prompt_id, origin=ev.Origin.AGENT)


def ended(prompt_id: PromptId) -> ev.TurnCompleted:
    return ev.TurnCompleted(at=9, prompt_id=prompt_id, stop_reason="end_turn", ending=ev.Ending.RESPONSE)


def fold(*events: ev.AnyEvent) -> View:
    view = View()
    for event in events:
        view.apply(event)
    return view


def calls(view: View) -> list[ToolCall]:
    return [item for item in view.items if isinstance(item, ToolCall)]


def value(given: Raw | UnsetType) -> Any:
    return UNSET if given is UNSET else msgspec.json.decode(given)


def fields(call: ToolCall) -> dict[str, Any]:
    """Return a call as ACP spells it."""
    return {
        "title": call.title,
        "name": call.name,
        "kind": call.kind,
        "status": call.status,
        "content": [value(each) for each in call.content],
        "locations": [value(each) for each in call.locations],
        "rawInput": value(call.raw_input),
        "rawOutput": value(call.raw_output),
        "capabilities": value(call.capabilities),
        "_meta": {key: value(each) for key, each in call.meta.items()},
    }


BLANK: dict[str, Any] = {
    "title": None,
    "name": None,
    "kind": "other",
    "status": "pending",
    "content": [],
    "locations": [],
    "rawInput": UNSET,
    "rawOutput": UNSET,
    "capabilities": UNSET,
    "_meta": {},
}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kind", ["tool_call", "tool_call_update"])
def test_an_unseen_id_creates_a_call_with_defaults(version: int, kind: str) -> None:
    [call] = calls(fold(agent(version), said(kind, toolCallId="t")))
    assert (call.tool_call_id, call.prompt_id, fields(call)) == ("t", P1, BLANK)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("field", list(FULL))
def test_an_update_changes_only_the_fields_it_has(version: int, field: str) -> None:
    [call] = calls(fold(agent(version), changed(**FULL), changed(**{field: FULL[field]})))
    assert fields(call) == FULL
    [call] = calls(fold(agent(version), changed(), changed(**{field: FULL[field]})))
    assert fields(call) == BLANK | {field: FULL[field]}


@pytest.mark.parametrize("field", list(FULL))
def test_null_leaves_a_field_in_v1_and_clears_it_in_v2(field: str) -> None:
    [call] = calls(fold(agent(1), changed(**FULL), changed(**{field: None})))
    assert fields(call) == FULL
    [call] = calls(fold(agent(2), changed(**FULL), changed(**{field: None})))
    assert fields(call) == FULL | {field: BLANK[field]}


def test_the_version_holds_for_the_updates_after_the_agent_that_speaks_it() -> None:
    [call] = calls(fold(changed(**FULL), changed(title=None)))
    assert call.title == "Read a file"


@pytest.mark.parametrize("field", ["content", "locations"])
def test_lists_are_replaced_as_a_whole_and_an_empty_one_clears(field: str) -> None:
    shorter: dict[str, Any] = {field: [MORE]}
    view = fold(changed(**FULL), changed(**shorter))
    assert fields(calls(view)[0])[field] == [MORE]
    empty: dict[str, Any] = {field: []}
    view.apply(changed(**empty))
    assert fields(calls(view)[0])[field] == []


@pytest.mark.parametrize(
    ("field", "wrong"),
    [("title", 1), ("kind", []), ("status", {}), ("content", "x"), ("locations", {}), ("_meta", 7)],
)
def test_a_field_of_a_wrong_type_reads_as_omitted(field: str, wrong: Any) -> None:
    given: dict[str, Any] = {field: wrong, "rawOutput": "new"}
    [call] = calls(fold(agent(2), changed(**FULL), changed(**given)))
    assert fields(call) == FULL | {"rawOutput": "new"}


def test_announcing_a_call_again_replaces_all_of_it_in_its_place() -> None:
    again = said("tool_call", toolCallId="t", title="New", kind=None)
    view = fold(changed(**FULL), said("tool_call", toolCallId="other"), again)
    assert [call.tool_call_id for call in calls(view)] == ["t", "other"]
    assert fields(calls(view)[0]) == BLANK | {"title": "New"}


@pytest.mark.parametrize(
    "event", [changed(), said("compaction_update", compactionId="c", status="completed")], ids=lambda e: e.kind
)
def test_ids_mean_the_same_only_within_one_life_of_the_agents_session(event: ev.SessionUpdated) -> None:
    assert len(fold(agent(2), event, agent(2), event).items) == 1
    assert len(fold(agent(2), event, agent(2, "s2"), event).items) == 2
    assert len(fold(agent(1), event, agent(1), event).items) == 2


def test_content_chunks_append_and_a_later_list_replaces() -> None:
    view = fold(agent(2))
    for event, expected in [
        (said("tool_call_content_chunk", toolCallId="t", content=OUTPUT), [OUTPUT]),
        (said("tool_call_content_chunk", toolCallId="t", content=MORE), [OUTPUT, MORE]),
        (changed(content=[MORE]), [MORE]),
        (said("tool_call_content_chunk", toolCallId="t", content=OUTPUT), [MORE, OUTPUT]),
    ]:
        view.apply(event)
        assert fields(calls(view)[0])["content"] == expected


@pytest.mark.parametrize(
    "event",
    [
        said("tool_call", title="x"),
        said("tool_call_update", toolCallId=3),
        said("tool_call_content_chunk", toolCallId="t"),
        said("tool_call_content_chunk", content=OUTPUT),
        said("compaction_update", status="completed"),
        said("compaction_summary_chunk", compactionId="c", content="x"),
        said("compaction_summary_chunk", content=OUTPUT),
        said("_vendor", x=1),
        ev.SessionUpdated(at=1, kind="tool_call", update=Raw(b"[]")),
    ],
    ids=lambda event: bytes(event.update).decode(),
)
def test_an_update_that_lacks_what_it_needs_or_is_of_no_known_kind_is_kept_as_it_came(
    event: ev.SessionUpdated,
) -> None:
    [item] = fold(agent(2), event).items
    assert isinstance(item, Unknown)
    assert (item.kind, bytes(item.update), item.prompt_id) == (event.kind, bytes(event.update), event.prompt_id)


# -- permission requests -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_the_call_of_a_permission_request_is_applied_like_an_update(version: int) -> None:
    call = {"toolCallId": "t", "title": "Run it", "kind": "execute"}
    params = {"toolCall": call} if version == 1 else {"subject": {"type": "tool_call", "toolCall": call}}
    asked = ev.PermissionRequested(
        at=4,
        request_id=PermissionId("q"),
        agent_request_id=1,
        method="session/request_permission",
        params=Raw(msgspec.json.encode(params)),
        prompt_id=P1,
    )
    [found] = calls(fold(agent(version), changed(status="in_progress", title="old"), asked))
    assert (found.title, found.kind, found.status) == ("Run it", "execute", "in_progress")


@pytest.mark.parametrize("params", [b"3", b"{}", b'{"subject":4}', b'{"toolCall":{"title":"x"}}'])
def test_a_question_that_names_no_call_adds_none(params: bytes) -> None:
    asked = ev.PermissionRequested(
        at=4,
        request_id=PermissionId("q"),
        agent_request_id=1,
        method="elicitation/create",
        params=Raw(params),
    )
    view = fold(asked)
    assert calls(view) == []
    assert list(view.permissions) == ["q"]


# -- the end and the cancel of a turn ------------------------------------------------------------------------


def test_a_call_that_is_not_final_at_the_end_of_its_turn_is_left_open_with_its_status() -> None:
    view = fold(began(P1))
    for status in ("pending", "in_progress", "odd", "completed", "failed", "cancelled"):
        view.apply(said("tool_call", toolCallId=status, status=status))
    view.apply(ended(P1))
    assert {call.status for call in calls(view) if call.open_at_end} == {"pending", "in_progress", "odd"}


def test_a_call_of_another_turn_is_not_touched_by_an_end() -> None:
    view = fold(said("tool_call", None, toolCallId="background"), began(P1), ended(P1))
    assert not calls(view)[0].open_at_end


@pytest.mark.parametrize(
    "listed",
    [{"type": "tool_call", "toolCallId": "t"}, {"type": "terminal", "terminalId": "term"}],
    ids=["by its id", "by its terminal"],
)
def test_a_call_that_goes_on_in_the_background_is_not_left_open(listed: dict[str, str]) -> None:
    reported = said("state_update", state="idle", background=[listed])
    view = fold(agent(2), began(P1), changed(content=[MORE]), reported, ended(P1))
    assert not calls(view)[0].open_at_end


def test_a_cancel_marks_the_unfinished_calls_of_its_turn() -> None:
    view = fold(
        said("tool_call", None, toolCallId="background"),
        began(P1),
        said("tool_call", toolCallId="done", status="completed"),
        changed(status="in_progress"),
        ev.CancelAsked(at=6, prompt_id=P1),
    )
    assert [call.tool_call_id for call in calls(view) if call.cancelled_locally] == ["t"]
    assert calls(view)[2].status == "in_progress"


def test_updates_after_a_cancel_apply() -> None:
    view = fold(began(P1), changed(status="in_progress"), ev.CancelAsked(at=6, prompt_id=P1))
    view.apply(changed(status="completed", content=[OUTPUT]))
    view.apply(ended(P1))
    [call] = calls(view)
    assert (call.status, call.cancelled_locally, call.open_at_end) == ("completed", True, False)
    assert fields(call)["content"] == [OUTPUT]


def test_a_call_that_changes_after_its_turn_is_late() -> None:
    view = fold(began(P1), changed(status="in_progress"), ended(P1))
    view.apply(changed(None, after=P1, status="completed"))
    [call] = calls(view)
    assert (call.status, call.prompt_id, call.late, call.open_at_end) == ("completed", P1, True, True)


def test_a_call_of_an_older_turn_that_changes_in_a_later_turn_is_late() -> None:
    [call] = calls(fold(began(P1), changed(), ended(P1), began(P2), changed(P2, status="completed")))
    assert (call.prompt_id, call.after) == (P1, P1)


def test_background_work_is_not_late() -> None:
    [call] = calls(fold(began(P1), changed(), ended(P1), changed(None, status="completed")))
    assert (call.status, call.late) == ("completed", False)


# -- compactions ---------------------------------------------------------------------------------------------


def compaction(view: View) -> Compaction:
    [item] = [item for item in view.items if isinstance(item, Compaction)]
    return item


def test_a_compaction_is_patched_in_its_place_and_its_summary_grows() -> None:
    def word(text: str) -> ev.SessionUpdated:
        content = {"type": "text", "text": text}
        return said("compaction_summary_chunk", compactionId="c", content=content)

    image = {"type": "image", "data": "AA==", "mimeType": "image/png"}
    view = fold(word("so "), word("far"), said("compaction_summary_chunk", compactionId="c", content=image))
    found = compaction(view)
    assert (found.status, [value(each) for each in found.summary]) == (
        "in_progress",
        [{"type": "text", "text": "so far"}, image],
    )
    view.apply(word("open"))
    view.apply(
        said("compaction_update", compactionId="c", status="failed", summary=None, error="why", _meta={"a": 1})
    )
    assert (found.status, found.summary, found.error) == ("failed", [], "why")
    view.apply(said("compaction_update", None, after=P1, compactionId="c", status="completed", error=None))
    found = compaction(view)
    assert (found.status, found.error, list(found.meta), found.late) == ("completed", None, ["a"], True)
