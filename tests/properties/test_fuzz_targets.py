"""The targets of `make fuzz`, run with inputs from hypothesis: a broken rule is seen without a fuzzer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from fuzz.targets import SEEDS, TARGETS
from hypothesis import given, settings
from hypothesis import strategies as st


@st.composite
def near_seeds(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """Random bytes, or a seed with a few of its bytes changed."""
    line = bytearray(draw(st.one_of(st.sampled_from(seeds), st.binary(max_size=200))))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(line)))
        line[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(line)


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_holds(name: str) -> None:
    @settings(deadline=None, max_examples=20 if name == "acp" else 300)
    @given(near_seeds(SEEDS[name]))
    def holds(data: bytes) -> None:
        TARGETS[name](data)

    TARGETS[name](b"")
    for seed in SEEDS[name]:
        TARGETS[name](seed)
    holds()
