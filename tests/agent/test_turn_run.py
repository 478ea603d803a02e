"""The run of one turn: every step in every stage."""

from __future__ import annotations

from itertools import product

import pytest

from turnwire.agent.turn_run import TABLE, TurnStage, TurnStep

WAITING, STARTING, RUNNING = TurnStage.WAITING, TurnStage.STARTING, TurnStage.RUNNING
TAKEN_BACK, STOPPING, OVER = TurnStage.TAKEN_BACK, TurnStage.STOPPING, TurnStage.OVER


def after(stage: TurnStage, step: TurnStep) -> TurnStage | None:
    """Return the expected state by the rules in prose, to compare with the table. None: it cannot happen."""
    match step:
        case TurnStep.START:
            return STARTING if stage is WAITING else None
        case TurnStep.BEGIN:
            return {STARTING: RUNNING, TAKEN_BACK: STOPPING}.get(stage)
        case TurnStep.CANCEL:
            # A cancel is always allowed, and never advances a state beyond its end.
            begins = {WAITING: TAKEN_BACK, STARTING: TAKEN_BACK, RUNNING: STOPPING}
            return begins.get(stage, stage)
        case TurnStep.END:
            # Only a cancelled turn ends without having begun, and a completed one has ended.
            return OVER if stage in {RUNNING, TAKEN_BACK, STOPPING} else None


def test_each_step_in_each_stage_leads_on_or_cannot_happen(subtests: pytest.Subtests) -> None:
    cases: list[tuple[TurnStage, TurnStep]] = list(product(TurnStage, TurnStep))
    for stage, step in cases:
        with subtests.test(repr((stage, step))):
            assert TABLE.get((stage, step)) is after(stage, step)


def test_every_stage_leads_to_the_one_end() -> None:
    for stage in TurnStage:
        reached = {stage}
        for _ in TurnStage:
            reached |= {to for (at, _), to in TABLE.items() if at in reached}
        assert OVER in reached
    assert {to for (at, _), to in TABLE.items() if at is OVER} == {OVER}
