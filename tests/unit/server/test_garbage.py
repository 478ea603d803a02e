"""Garbage collection of the daemon: rare, counted, and as it was before once the daemon has ended."""

from __future__ import annotations

import gc

import pytest

from turnwire.server.telemetry.garbage import THRESHOLDS, rare_collection


class _Knot:
    def __init__(self) -> None:
        self.itself = self


def test_rounds_are_rare_and_told_and_what_was_there_before_is_left_out() -> None:
    before, callbacks, pauses = gc.get_threshold(), list(gc.callbacks), list[float]()
    with rare_collection(pauses.append):
        assert gc.get_threshold() == THRESHOLDS
        assert gc.get_freeze_count() > 1000
        pauses.clear()
        gc.collect()
        assert len(pauses) == 1
        assert pauses[0] > 0
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
    assert gc.callbacks == callbacks


def test_cycles_are_freed_after_some_thousand_objects() -> None:
    pauses = list[float]()
    with rare_collection(pauses.append):
        held = [_Knot() for _ in range(THRESHOLDS[0] // 4)]
        assert not pauses
        held.clear()
        for _ in range(THRESHOLDS[0]):
            _Knot()
        assert pauses


def test_what_fails_meanwhile_leaves_the_collector_as_it_was() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="x"), rare_collection(lambda _: None):
        raise ValueError("x")
    assert gc.get_threshold() == before
