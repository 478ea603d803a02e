"""State-like values of the view: commands, mode, options, usage, plans, title, background, terminals."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw
from msgspec.structs import replace

from turnwire.ids import AgentSessionId, PromptId, SessionId
from turnwire.projections.view import MAIN_PLAN, Terminal, Unknown, View
from turnwire.projections.view.latest import offered_choice
from turnwire.session import events as ev

P1 = PromptId("p1")


def said(kind: str, **fields: Any) -> ev.SessionUpdated:
    update = Raw(msgspec.json.encode({"sessionUpdate": kind, **fields}))
    return ev.SessionUpdated(at=5, kind=kind, update=update, prompt_id=P1)


def agent(version: int, session: str = "s1") -> ev.AgentStarted:
    return ev.AgentStarted(
        at=0,
        agent_session_id=AgentSessionId(session),
        protocol_version=version,
        turn_end=ev.TurnEnd.IDLE,
    )


def created(title: str | None = None) -> ev.SessionCreated:
    return ev.SessionCreated(at=0, session_id=SessionId("s"), cwd="/w", title=title)


def fold(*events: ev.AnyEvent) -> View:
    view = View()
    for event in events:
        view.apply(event)
    return view


def value(given: object) -> Any:
    assert isinstance(given, Raw)
    return msgspec.json.decode(given)


@pytest.mark.parametrize(
    ("kind", "field", "attribute"),
    [
        ("available_commands_update", "availableCommands", "commands"),
        ("config_option_update", "configOptions", "config_options"),
    ],
)
def test_a_list_replaces_the_one_before(kind: str, field: str, attribute: str) -> None:
    view = fold(said(kind, **{field: [1, 2]}), said(kind, **{field: [3]}))
    assert value(getattr(view.latest, attribute)) == [3]
    assert view.items == []


@pytest.mark.parametrize("field", ["currentModeId", "modeId"])
def test_the_mode_is_read_under_both_spellings(field: str) -> None:
    assert fold(said("current_mode_update", **{field: "plan"})).latest.mode == "plan"


@pytest.mark.parametrize(
    "event",
    [
        said("available_commands_update"),
        said("available_commands_update", availableCommands={}),
        said("config_option_update", configOptions=None),
        said("current_mode_update", currentModeId=1),
        said("usage_update", used=1),
        said("usage_update", used=None, size=1),
        said("plan", entries=1),
        said("plan_update"),
        said("plan_update", plan={"type": "items"}),
        said("plan_update", plan=[]),
        said("plan_removed"),
        said("terminal_update", command="x"),
        said("terminal_output_chunk", data="YQ=="),
        said("terminal_output_chunk", terminalId="t", data="not base64!"),
        said("terminal_output_chunk", terminalId="t"),
        ev.SessionUpdated(at=1, kind="state_update", update=Raw(b'"idle"')),
        ev.SessionUpdated(at=1, kind="terminal_update", update=Raw(b"1")),
    ],
    ids=lambda event: bytes(event.update).decode(),
)
def test_an_update_without_its_value_changes_nothing_and_is_kept_as_unknown(event: ev.SessionUpdated) -> None:
    view = fold(event)
    [item] = view.items
    assert isinstance(item, Unknown)
    assert bytes(item.update) == bytes(event.update)
    assert (view.latest, view.terminals, view.background) == (View().latest, {}, None)


def test_notices_and_markers_are_not_part_of_the_view() -> None:
    view = fold(said("notice", severity="info", title="x"), said("turn_complete"), said("_turn_complete"))
    assert view.items == []


# -- usage ---------------------------------------------------------------------------------------------------

COST = {"amount": 1.5, "currency": "EUR"}


@pytest.mark.parametrize(
    ("version", "given", "expected"),
    [
        (1, {}, UNSET),
        (1, {"cost": None}, UNSET),
        (2, {}, COST),
        (2, {"cost": None}, UNSET),
        (2, {"cost": {"amount": 2}}, {"amount": 2}),
    ],
)
def test_usage_replaces_and_in_v2_an_omitted_cost_stays(
    version: int, given: dict[str, object], expected: object
) -> None:
    view = fold(
        agent(version),
        said("usage_update", used=1, size=9, cost=COST),
        said("usage_update", used=2, size=9, **given),
    )
    usage = view.latest.usage
    assert usage is not None
    assert (bytes(usage.used), bytes(usage.size)) == (b"2", b"9")
    assert (UNSET if usage.cost is UNSET else value(usage.cost)) == expected


# -- plans ---------------------------------------------------------------------------------------------------


def test_a_v1_plan_replaces_the_single_plan_in_the_shape_of_v2() -> None:
    view = fold(said("plan", entries=[{"content": "a"}]), said("plan", entries=[{"content": "b"}]))
    assert {key: value(plan) for key, plan in view.latest.plans.items()} == {
        MAIN_PLAN: {"type": "items", "planId": MAIN_PLAN, "entries": [{"content": "b"}]}
    }


def test_v2_plans_are_kept_by_id_until_they_are_removed() -> None:
    def plan(plan_id: str, kind: str) -> ev.SessionUpdated:
        return said("plan_update", plan={"type": kind, "planId": plan_id})

    view = fold(agent(2), plan("a", "items"), plan("b", "file"), plan("a", "markdown"))
    assert {key: value(each)["type"] for key, each in view.latest.plans.items()} == {"a": "markdown", "b": "file"}
    view.apply(said("plan_removed", planId="a"))
    view.apply(said("plan_removed", planId="never there"))
    assert list(view.latest.plans) == ["b"]


# -- the session's own values --------------------------------------------------------------------------------


def test_the_session_is_what_it_was_created_as_until_it_is_closed() -> None:
    view = fold(created("mine"))
    assert (view.session.session_id, view.session.cwd, view.session.title, view.session.phase) == (
        "s",
        "/w",
        "mine",
        "open",
    )
    view.apply(ev.SessionClosed(at=9, reason="closed"))
    assert view.session.phase == "closed"


@pytest.mark.parametrize("version", [1, 2])
def test_what_the_agent_says_of_the_session_is_patched(version: int) -> None:
    view = fold(agent(version), said("session_info_update", title="t", updatedAt="now", _meta={"a": 1}))
    view.apply(said("session_info_update", updatedAt="later"))
    assert (view.session.title, view.latest.updated_at, list(view.latest.meta)) == ("t", "later", ["a"])
    view.apply(said("session_info_update", title=None, updatedAt=None, _meta=None))
    assert (view.session.title, view.latest.updated_at, view.latest.meta) == (None, None, {})


@pytest.mark.parametrize("named", [created("mine"), ev.SessionRenamed(at=1, title="mine")])
def test_a_title_that_a_user_gave_is_not_changed_by_the_agent(named: ev.AnyEvent) -> None:
    view = fold(said("session_info_update", title="before"), named, said("session_info_update", title="agent's"))
    assert (view.session.title, view.latest.title) == ("mine", "agent's")


def test_a_user_who_takes_a_title_back_leaves_it_to_the_agent() -> None:
    view = fold(created("mine"), said("session_info_update", title="a"), ev.SessionRenamed(at=1, title=None))
    assert view.session.title == "a"
    view.apply(said("session_info_update", title="b"))
    assert view.session.title == "b"


# -- background ----------------------------------------------------------------------------------------------


def test_background_is_the_last_list_that_was_reported() -> None:
    one = [{"type": "terminal", "terminalId": "t"}]
    view = fold(agent(2))
    steps: list[tuple[dict[str, Any], Any]] = [
        ({}, None),
        ({"background": one}, one),
        ({}, one),
        ({"background": None}, one),
        ({"background": "malformed"}, one),
        ({"background": []}, []),
    ]
    for given, expected in steps:
        view.apply(said("state_update", state="running", **given))
        assert (None if view.background is None else value(view.background)) == expected
    assert (view.items, view.state) == ([], "idle")


@pytest.mark.parametrize(
    "event",
    [agent(2), ev.AgentExited(at=9, reason="agent_exited"), ev.SessionClosed(at=9, reason="closed")],
    ids=["started", "exited", "closed"],
)
def test_background_work_does_not_outlive_its_agent(event: ev.AnyEvent) -> None:
    view = fold(agent(2), said("state_update", state="idle", background=[]), event)
    assert view.background is None


# -- terminals -----------------------------------------------------------------------------------------------


def terminal(view: View) -> Terminal:
    [found] = view.terminals.values()
    return found


def test_output_chunks_are_decoded_one_by_one_and_a_snapshot_replaces_them() -> None:
    view = fold(agent(2))
    for event, expected in [
        (said("terminal_output_chunk", terminalId="t", data="4g=="), b"\xe2"),
        (said("terminal_output_chunk", terminalId="t", data="gqw="), "€".encode()),
        (said("terminal_update", terminalId="t", command="ls"), "€".encode()),
        (said("terminal_update", terminalId="t", output={"data": "YWI="}), b"ab"),
        (said("terminal_update", terminalId="t", output={"data": "!"}), b"ab"),
        (said("terminal_update", terminalId="t", output=7), b"ab"),
        (said("terminal_output_chunk", terminalId="t", data="Yw=="), b"abc"),
        (said("terminal_update", terminalId="t", output=None), b""),
    ]:
        view.apply(event)
        assert terminal(view).output == expected


def test_a_terminal_is_patched() -> None:
    view = fold(agent(2), said("terminal_update", terminalId="t", command="ls", cwd="/w", size={"cols": 1}))
    view.apply(said("terminal_update", terminalId="t", cwd=None, exitStatus={"exitCode": -1}, _meta={"a": 1}))
    found = terminal(view)
    assert (found.command, found.cwd, list(found.meta)) == ("ls", None, ["a"])
    assert (value(found.exit_status), value(found.size)) == ({"exitCode": -1}, {"cols": 1})


def test_a_terminal_of_another_agent_session_begins_anew() -> None:
    chunk = said("terminal_output_chunk", terminalId="t", data="YQ==")
    assert terminal(fold(agent(2), chunk, agent(2), chunk)).output == b"aa"
    assert terminal(fold(agent(2), chunk, agent(2, "s2"), chunk)).output == b"a"


OPTIONS = [
    {
        "id": "m",
        "category": "mode",
        "currentValue": "plan",
        "options": [
            {"group": "g", "options": [{"value": "plan", "name": "Plan"}, {"value": "ask", "name": "Ask"}]}
        ],
    },
    {"id": "l", "category": "model", "currentValue": "big", "options": [{"value": "big", "name": "Big"}]},
]


def test_modes_and_models_that_are_options_are_shown_like_listed_ones() -> None:
    latest = fold(said("config_option_update", configOptions=OPTIONS)).latest
    mode, modes = offered_choice(latest, "mode")
    model, models = offered_choice(latest, "model")
    assert (mode, value(modes)) == ("plan", [{"id": "plan", "name": "Plan"}, {"id": "ask", "name": "Ask"}])
    assert (model, value(models)) == ("big", [{"modelId": "big", "name": "Big"}])
    assert offered_choice(fold().latest, "mode") == (None, UNSET)


def test_the_option_of_a_restored_mode_is_the_mode_that_is_shown() -> None:
    offers = {"modes": {"currentModeId": "auto", "availableModes": [{"id": "auto", "name": "A"}]}}
    started = replace(agent(1), offers=Raw(msgspec.json.encode(offers)))
    latest = fold(started, said("config_option_update", configOptions=OPTIONS)).latest
    assert offered_choice(latest, "mode")[0] == latest.mode == "plan"
