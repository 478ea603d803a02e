"""The stages of a client's connection: every call and every step in every stage."""

from __future__ import annotations

from itertools import product

import pytest

from turnwire.core.admission import CALLS, REFUSALS, STEPS, Admission, Call, ConnectionStage, Step, Verdict

NEW, AGREED, BEGUN = ConnectionStage.NEW, ConnectionStage.AGREED, ConnectionStage.BEGUN
AGREED_LOCKED, BEGUN_LOCKED = ConnectionStage.AGREED_LOCKED, ConnectionStage.BEGUN_LOCKED
LOCKED = {AGREED_LOCKED, BEGUN_LOCKED}


def verdict(stage: ConnectionStage, call: Call) -> Verdict:
    """The rules in words, to hold the table against."""
    if call is Call.INITIALIZE:
        return Verdict.TOO_LATE if stage in {BEGUN, BEGUN_LOCKED} else Verdict.TAKEN
    if stage is NEW:
        return Verdict.IGNORED if call is Call.UNANSWERED else Verdict.TOO_EARLY
    if call is Call.UNKNOWN:
        return Verdict.NO_METHOD
    return Verdict.LOCKED if stage in LOCKED and call is Call.REQUEST else Verdict.TAKEN


@pytest.mark.parametrize(("stage", "call"), list(product(ConnectionStage, Call)))
def test_each_call_has_one_verdict_in_each_stage(stage: ConnectionStage, call: Call) -> None:
    assert CALLS[stage, call] is verdict(stage, call)


@pytest.mark.parametrize(("stage", "step"), list(product(ConnectionStage, Step)))
def test_a_step_leads_on_or_cannot_happen(stage: ConnectionStage, step: Step) -> None:
    admission = Admission()
    admission.stage = stage
    has_begun = stage in {BEGUN, BEGUN_LOCKED}
    is_agreement, is_login = step in {Step.AGREE, Step.AGREE_LOCKED}, step in {Step.LOG_IN, Step.LOG_OUT}
    if (is_agreement and has_begun) or (is_login and not has_begun) or (step is Step.BEGIN and stage is NEW):
        with pytest.raises(AssertionError):
            admission.step(step)
        assert admission.stage is stage
        return
    admission.step(step)
    assert admission.stage is STEPS[stage, step]
    is_locked = {Step.AGREE: False, Step.AGREE_LOCKED: True, Step.LOG_IN: False, Step.LOG_OUT: True}
    assert (admission.stage in LOCKED) is is_locked.get(step, stage in LOCKED)
    assert (admission.stage in {AGREED, AGREED_LOCKED}) is is_agreement


def test_every_refusal_has_its_words() -> None:
    refusals = {each for each in Verdict if each not in {Verdict.TAKEN, Verdict.IGNORED, Verdict.NO_METHOD}}
    assert REFUSALS.keys() == refusals


def test_nothing_is_agreed_at_first() -> None:
    admission = Admission()
    assert not admission.is_initialized
    admission.step(Step.AGREE)
    assert admission.is_initialized
