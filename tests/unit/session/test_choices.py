"""Users' choices at the agent belong to the session: C1 to C3 of `core.choices`."""

from __future__ import annotations

import pytest
from tests.unit.session.driving import (
    AT,
    RECOVER,
    Session,
    answered,
    chunk,
    gone,
    has_prompt,
    prompt,
    ready,
    said,
    types,
)

from turnwire.session import events as ev
from turnwire.session import inputs as i
from turnwire.session.choices import Choices, settings_of
from turnwire.session.effects import AskAgent, CancelAgent

LOST = (ev.LostChoice(name="mode", wanted="read-only", why="no such mode"),)
TWO = (*LOST, ev.LostChoice(name="effort", wanted="high", why="the agent says 'low'"))
MODE = i.ModeSet(at=AT, mode="read-only", author="ann")
OPTION = i.OptionChosen(at=AT, config_id="effort", value="high", author="ann")


def options(value: str) -> i.AgentUpdate:
    listed = [{"id": "effort", "currentValue": value}, {"id": "other", "currentValue": True}]
    return said("config_option_update", configOptions=listed)


def chosen() -> Session:
    """Ann chose a mode and an option, a turn ran, and the agent is gone."""
    session = Session()
    session.take(MODE, OPTION, prompt("p1"), has_prompt("p1", 1), chunk(), answered("p1"), gone())
    return session


def test_a_choice_is_kept_over_the_end_of_the_agent_and_a_restart() -> None:
    session = chosen()
    session.take(RECOVER)
    assert session.state.choices == Choices(mode="read-only", options={"effort": "high"})


def test_a_mode_that_was_set_by_an_option_is_that_options_choice() -> None:
    session = Session()
    session.take(OPTION, i.ModeSet(at=AT, mode="high", config_id="effort"))
    session.take(i.ModelSet(at=AT, model_id="big", config_id="model"), i.ModelSet(at=AT, model_id="big"))
    assert session.state.choices == Choices(model="big", options={"effort": "high"})


def test_how_an_agent_begins_is_no_choice_and_what_it_changes_in_a_turn_is() -> None:
    session = chosen()
    session.take(ready(), said("current_mode_update", currentModeId="auto"), options("low"))
    assert session.state.choices == Choices(mode="read-only", options={"effort": "high"})
    session.take(prompt("p2"), said("current_mode_update", currentModeId="auto"))
    assert session.state.choices.mode == "read-only", "the prompt has not been sent"
    session.take(has_prompt("p2", 2), said("current_mode_update", currentModeId="auto"), options("low"))
    assert session.state.choices == Choices(mode="auto", options={"effort": "low"})


def test_nothing_is_remembered_of_what_nobody_chose() -> None:
    session = Session()
    session.take(
        prompt("p1"), has_prompt("p1", 1), said("current_mode_update", currentModeId="auto"), options("low")
    )
    assert not session.state.choices


def test_an_agent_that_takes_all_is_prompted() -> None:
    session = chosen()
    session.take(prompt("p2"), ready(), i.ChoicesTold(at=AT))
    assert types(session.log)[-1] == "choices_restored"
    session.take(has_prompt("p2", 2), answered("p2"))
    assert session.ends()["p2"] == "end_turn"


def test_what_an_agent_does_not_take_ends_the_prompt_that_met_it_and_holds_the_others() -> None:
    session = chosen()
    plan = session.take(prompt("p2"), prompt("p3"), ready(), i.ChoicesTold(at=AT, lost=LOST))
    [failed] = session.found(ev.TurnFailed)
    assert (failed.prompt_id, failed.code) == ("p2", "choices_lost")
    assert "read-only" in failed.message
    assert CancelAgent(failed.prompt_id, ev.CancelRung.NOTIFY) in plan.effects
    assert not [each for each in plan.effects if isinstance(each, AskAgent)], "p3 waits"
    assert session.state.held == "choices_lost"


@pytest.mark.parametrize(
    ("choice", "left"),
    [
        (i.ModeSet(at=AT, mode="ask"), Choices(mode="ask", options={"effort": "high"})),
        (i.ReleaseQueue(at=AT), Choices(options={"effort": "high"})),
    ],
    ids=["a choice", "a release"],
)
def test_the_queue_goes_on_when_a_user_chooses_or_takes_what_there_is(choice: i.AnyInput, left: Choices) -> None:
    session = chosen()
    session.take(prompt("p2"), prompt("p3"), ready(), i.ChoicesTold(at=AT, lost=LOST))
    plan = session.take(choice)
    assert [each.prompt_id for each in plan.effects if isinstance(each, AskAgent)] == ["p3"]
    assert (session.state.held, session.state.choices) == (None, left)


def test_the_queue_waits_for_every_choice_that_was_lost() -> None:
    session = chosen()
    session.take(ready(), i.ChoicesTold(at=AT, lost=TWO), prompt("p2"))
    session.take(i.ModeSet(at=AT, mode="ask"))
    assert session.state.held == "choices_lost"
    plan = session.take(i.OptionChosen(at=AT, config_id="effort", value="low"))
    assert session.state.held is None
    assert [each.prompt_id for each in plan.effects if isinstance(each, AskAgent)] == ["p2"]


def test_a_hold_of_somebodys_stays_theirs() -> None:
    session = chosen()
    session.take(i.HoldQueue(at=AT, reason="asked"), ready(), i.ChoicesTold(at=AT, lost=LOST))
    session.take(i.ModeSet(at=AT, mode="ask"))
    assert session.state.held == "asked"


def test_the_hold_outlives_the_agent_and_the_daemon() -> None:
    session = chosen()
    session.take(prompt("p2"), prompt("p3"), ready(), i.ChoicesTold(at=AT, lost=LOST), gone(), RECOVER)
    assert session.state.held == "choices_lost"
    assert session.state.choices.mode == "read-only"


def test_the_mode_is_told_last() -> None:
    choices = Choices(mode="m", model="big", options={"a": "1", "b": True})
    told = [(each.method, each.params) for each in settings_of(choices, 2)]
    assert told == [
        ("session/set_model", {"modelId": "big"}),
        ("session/set_config_option", {"configId": "a", "value": "1", "type": "id"}),
        ("session/set_config_option", {"configId": "b", "value": True, "type": "boolean"}),
        ("session/set_mode", {"modeId": "m"}),
    ]
    assert "type" not in settings_of(choices, 1)[1].params
