"""Dispatch: every input has a rule, a refusal changes nothing, a batch is the same as one by one."""

from __future__ import annotations

import contextlib
from typing import cast

import pytest
from tests.unit.session.driving import (
    ADOPT,
    AT,
    RECOVER,
    REPLAYED,
    Session,
    agent_is,
    answer,
    answered,
    asks,
    cancel,
    chunk,
    close,
    deadline,
    edit,
    gone,
    has_prompt,
    marked,
    overdue,
    prompt,
    ready,
    refused,
    remove,
    settle,
    steered,
    types,
    withdraws,
)

from turnwire.errors import (
    LocalProtocolError,
    PermissionNotFound,
    PromptNotFound,
    SessionBusy,
    SessionClosed,
    SessionNotFound,
    TurnwireError,
)
from turnwire.ids import ChildId, ClientId, PromptId, SessionId
from turnwire.limits import Limits
from turnwire.session import events as ev
from turnwire.session import inputs as i
from turnwire.session.decide import decide, take
from turnwire.session.draft import Draft
from turnwire.session.state import NOTHING, Setup

CREATE = i.CreateSession(at=AT, session_id=SessionId("s1"), cwd="/w", title="t", author="ann")
ATTACH = i.Attach(at=AT, client_id=ClientId("c1"), role="observer", author="ann")
DETACH = i.Detach(at=AT, client_id=ClientId("c1"), reason="lost")
CANCEL_CHILD = i.CancelChild(at=AT, child=ChildId("s1.1"), author="ann")
RENAME = i.Rename(at=AT, title="new", author="ann")
HOLD = i.HoldQueue(at=AT, reason="asked", author="ann")
RELEASE = i.ReleaseQueue(at=AT, author="ann")
SETUP = i.ChangeSetup(at=AT, setup=Setup(additional_directories=("/x",)), author="ann")
MODE_SET = i.ModeSet(at=AT, mode="plan", previous="ask", author="ann")
TIME_LIMIT = i.TimeLimitPassed(at=AT, prompt_id=PromptId("p1"))
MODEL_SET = i.ModelSet(at=AT, model_id="big", previous="small", author="ann")
OPTION_CHOSEN = i.OptionChosen(at=AT, config_id="effort", value="high", author="ann")
ARCHIVE = i.Archive(at=AT, archived=True, author="ann")
CHOICES_TOLD = i.ChoicesTold(at=AT, lost=(ev.LostChoice(name="mode", wanted="plan", why="refused"),))

PIECES = i.AgentPieces(at=AT, kind="agent_message_chunk", updates=[chunk("a").update, chunk("b").update])
INPUTS: tuple[i.AnyInput, ...] = (
    CREATE,
    prompt(),
    edit("p1", "x"),
    remove("p1"),
    cancel(),
    CANCEL_CHILD,
    answer(),
    settle("p1"),
    HOLD,
    RELEASE,
    SETUP,
    MODE_SET,
    MODEL_SET,
    OPTION_CHOSEN,
    CHOICES_TOLD,
    RENAME,
    ARCHIVE,
    ATTACH,
    DETACH,
    close(),
    ready(),
    chunk(),
    PIECES,
    has_prompt(),
    REPLAYED,
    answered(),
    refused(),
    asks(),
    withdraws(1),
    steered("p1", injected=True),
    gone(),
    deadline("p1", ev.CancelRung.NOTIFY),
    TIME_LIMIT,
    overdue(),
    RECOVER,
    ADOPT,
)
STILL_TAKEN = {
    *(
        i.Archive,
        i.Close,
        i.Detach,
        i.Cancel,
        i.Recover,
        i.Adopt,
        i.AgentUpdate,
        i.AgentPieces,
        i.AgentAnswered,
        i.AgentRefused,
    ),
    *(i.AgentHasPrompt, i.AgentReplayed, i.AgentGone, i.AgentWithdraws, i.SteerAnswered, i.DeadlinePassed),
    *(i.TimeLimitPassed, i.AnswerOverdue, i.ChoicesTold),
}
by_name = pytest.mark.parametrize("given", INPUTS, ids=lambda given: type(given).__name__)


def test_every_input_class_has_a_sample() -> None:
    classes = {each for each in vars(i).values() if isinstance(each, type) and issubclass(each, i.Input)}
    assert {type(each) for each in INPUTS} == classes - {i.Input, i.Asked}


@by_name
def test_every_input_has_a_rule(given: i.AnyInput) -> None:
    session = Session()
    with contextlib.suppress(TurnwireError):
        session.take(given)


@by_name
def test_before_it_is_created_a_session_takes_nothing_else(given: i.AnyInput) -> None:
    if given is CREATE:
        plan = decide(NOTHING, given, offset=0, limits=Limits())
        assert types(plan.events) == ["session_created"]
        return
    with pytest.raises(SessionNotFound):
        decide(NOTHING, given, offset=0, limits=Limits())


@by_name
def test_a_closed_session_takes_repeats_and_last_words_only(given: i.AnyInput) -> None:
    session = Session()
    session.take(prompt(), close())
    if type(given) not in STILL_TAKEN:
        session.refuses(given, SessionClosed)
        return
    plan = session.take(given)
    kept: dict[type[i.Input], list[str]] = {
        i.Archive: ["session_archived"],
        i.AgentUpdate: ["session_update"],
        i.AgentPieces: ["session_update", "session_update"],
        i.AgentReplayed: ["history_compared"],
    }
    assert types(plan.events) == kept.get(type(given), [])
    assert plan.effects == ()


def test_a_session_is_created_once() -> None:
    Session().refuses(CREATE, LocalProtocolError)


@pytest.mark.guarantee("G4")
def test_words_after_the_close_are_kept_as_late() -> None:
    session = Session()
    session.take(prompt(), close(), chunk())
    assert session.found(ev.SessionUpdated)[-1].after == "p1"


def test_attaching_and_detaching_are_recorded_once() -> None:
    session = Session()
    assert types(session.take(ATTACH).events) == ["client_attached"]
    assert types(session.take(ATTACH).events) == []
    assert session.state.clients == {"c1": "observer"}
    controller = i.Attach(at=AT, client_id=ClientId("c1"))
    assert types(session.take(controller).events) == ["client_attached"]
    assert types(session.take(DETACH).events) == ["client_detached"]
    assert types(session.take(DETACH).events) == []
    assert session.state.clients == {}


def test_a_new_title_is_recorded_with_who_gave_it() -> None:
    session = Session()
    session.take(RENAME)
    assert session.found(ev.SessionRenamed) == [ev.SessionRenamed(at=AT, title="new", author="ann")]


def test_a_session_is_archived_and_taken_back_once_each_also_when_it_is_closed() -> None:
    session = Session()
    put_away, take_back = (i.Archive(at=AT, archived=each, author="ann") for each in (True, False))
    assert types(session.take(take_back).events) == []
    assert types(session.take(put_away).events) == ["session_archived"]
    assert types(session.take(put_away).events) == []
    session.take(i.Close(at=AT))
    assert types(session.take(take_back).events) == ["session_unarchived"]
    assert not session.state.archived


def test_a_new_setup_is_recorded_once() -> None:
    session = Session()
    assert types(session.take(SETUP).events) == ["session_setup_changed"]
    assert types(session.take(SETUP).events) == []
    assert session.state.setup == SETUP.setup


def test_a_client_that_leaves_does_not_touch_the_turn() -> None:
    session = Session()
    session.take(ATTACH, prompt())
    turn = session.state.turn
    session.take(DETACH)
    assert session.state.turn == turn


def test_a_refused_input_of_a_batch_adds_nothing_to_it() -> None:
    session = Session()
    draft = Draft(session.state, len(session.log), Limits())
    take(draft, prompt("p1"))
    before = draft.state, list(draft.events), list(draft.effects)
    for given, error in [
        (prompt("p2", when=i.WhenBusy.REJECT), SessionBusy),
        (prompt("p1"), LocalProtocolError),
        (answer("q9"), PermissionNotFound),
    ]:
        with pytest.raises(error):
            take(draft, cast("i.AnyInput", given))
        assert (draft.state, draft.events, draft.effects) == before
    take(draft, answered("p1"))
    assert types(draft.events)[-1] == "turn_complete"


def test_rejected_input_after_an_end_marker_does_not_end_the_turn() -> None:
    session = Session(ev.TurnEnd.MARKER)
    session.take(prompt("p1"), marked("end_turn", ends="p1"))
    draft = Draft(session.state, len(session.log), Limits())
    with pytest.raises(PromptNotFound):
        take(draft, settle("p9"))
    assert (draft.state, draft.events, draft.effects) == (session.state, [], [])


def test_a_draft_that_is_dropped_has_changed_nothing() -> None:
    session = Session()
    before = session.state
    draft = Draft(session.state, len(session.log), Limits())
    take(draft, prompt())
    assert draft.state != before
    assert session.state is before


def test_a_draft_can_be_taken_back_to_where_it_stood() -> None:
    session = Session()
    draft = Draft(session.state, len(session.log), Limits())
    take(draft, prompt("p1"))
    before = draft.state, list(draft.events), list(draft.effects), draft.head
    take(draft, cancel())
    assert (len(draft.events), len(draft.effects)) > (len(before[1]), len(before[2]))
    draft.rewind(before[0], len(before[1]), len(before[2]))
    assert (draft.state, draft.events, draft.effects, draft.head) == before


def test_a_batch_is_the_same_as_one_by_one() -> None:
    inputs: list[i.AnyInput] = [prompt("p1"), chunk(), prompt("p2"), asks(), cancel(), answered("p1"), chunk()]
    inputs += [answered("p2"), chunk(), close(), chunk()]
    session = Session()
    draft = Draft(session.state, len(session.log), session.limits)
    for given in inputs:
        take(draft, given)
    log, effects = list(session.log), list(session.effects)
    session.take(*inputs)
    assert log + draft.events == session.log
    assert effects + draft.effects == session.effects
    assert draft.state == session.state


def test_times_come_from_the_input() -> None:
    session = Session(ev.TurnEnd.IDLE)
    session.take(prompt(), agent_is("running"), agent_is("idle", stopReason="end_turn"))
    assert {each.at for each in session.log} == {AT}
