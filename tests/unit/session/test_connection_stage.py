"""The stages of a client's connection: every call and every step in every stage."""

from __future__ import annotations

from itertools import product

import pytest

from turnwire.session.connection_stage import (
    CALLS,
    REFUSALS,
    STEPS,
    Admission,
    Admittance,
    ConnectionStage,
    MessageKind,
    Step,
)

NEW, AGREED, BEGUN = ConnectionStage.NEW, ConnectionStage.AGREED, ConnectionStage.BEGUN
AGREED_LOCKED, BEGUN_LOCKED = ConnectionStage.AGREED_LOCKED, ConnectionStage.BEGUN_LOCKED
LOCKED = {AGREED_LOCKED, BEGUN_LOCKED}


def verdict(stage: ConnectionStage, call: MessageKind) -> Admittance:
    """Return the verdict by the rules in prose, to compare with the table."""
    if call is MessageKind.INITIALIZE:
        return Admittance.TOO_LATE if stage in {BEGUN, BEGUN_LOCKED} else Admittance.TAKEN
    if stage is NEW:
        return Admittance.IGNORED if call is MessageKind.UNANSWERED else Admittance.TOO_EARLY
    if call is MessageKind.UNKNOWN:
        return Admittance.NO_METHOD
    return Admittance.LOCKED if stage in LOCKED and call is MessageKind.REQUEST else Admittance.TAKEN


@pytest.mark.parametrize(("stage", "call"), list(product(ConnectionStage, MessageKind)))
def test_each_call_has_one_verdict_in_each_stage(stage: ConnectionStage, call: MessageKind) -> None:
    assert CALLS[stage, call] is verdict(stage, call)


def after(stage: ConnectionStage, step: Step) -> ConnectionStage | None:
    """Return the same for steps. None: it cannot happen."""
    has_begun, is_locked = stage in {BEGUN, BEGUN_LOCKED}, stage in LOCKED
    if step in {Step.AGREE, Step.AGREE_LOCKED}:
        if has_begun:
            return stage if is_locked is (step is Step.AGREE_LOCKED) else None
        return AGREED if step is Step.AGREE else AGREED_LOCKED
    if step is Step.BEGIN:
        return None if stage is NEW else BEGUN_LOCKED if is_locked else BEGUN
    return None if not has_begun else BEGUN if step is Step.LOG_IN else BEGUN_LOCKED


@pytest.mark.parametrize(("stage", "step"), list(product(ConnectionStage, Step)))
def test_a_step_leads_on_or_cannot_happen(stage: ConnectionStage, step: Step) -> None:
    admission = Admission()
    admission.stage = stage
    expected = after(stage, step)
    assert STEPS.get((stage, step)) is expected
    if expected is None:
        with pytest.raises(AssertionError):
            admission.step(step)
    else:
        admission.step(step)
    assert admission.stage is (expected or stage)


def test_every_refusal_has_its_words() -> None:
    refusals = {
        each for each in Admittance if each not in {Admittance.TAKEN, Admittance.IGNORED, Admittance.NO_METHOD}
    }
    assert REFUSALS.keys() == refusals


def test_nothing_is_agreed_at_first() -> None:
    admission = Admission()
    assert not admission.is_initialized
    admission.step(Step.AGREE)
    assert admission.is_initialized
