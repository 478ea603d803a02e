"""The targets of `make fuzz` hold for what hypothesis thinks of, so that a broken rule is seen without a fuzzer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from fuzz.mutation import mutated, run
from fuzz.targets import SEEDS, TARGETS
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]


SLOW = frozenset({"rest", "acp", "http2"})
"""What runs a loop or a daemon for each input."""


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
    @settings(deadline=None, max_examples=50 if name in SLOW else 300)
    @given(near_seeds(SEEDS[name]))
    def holds(data: bytes) -> None:
        TARGETS[name](data)

    TARGETS[name](b"")
    for seed in SEEDS[name]:
        TARGETS[name](seed)
    holds()


def test_blind_changes_of_a_number_are_the_same_again() -> None:
    first, again = ([mutated(SEEDS["jsonrpc"], Random(7)) for _ in range(50)] for _ in range(2))
    assert first == again


def test_a_finding_names_its_input() -> None:
    def broken(data: bytes) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as found:
        run(broken, [b"seed"], 1)
    assert found.value.__notes__[0].startswith("the input: b")


def test_without_atheris_inputs_are_changed_blindly_and_it_says_so() -> None:
    absent = "import sys, runpy; sys.argv[1:] = ['peek', '1']; sys.modules['atheris'] = None; "
    code = absent + "runpy.run_module('fuzz', run_name='__main__')"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert found.returncode == 0, found.stderr
    assert "pip install atheris" in found.stderr
    assert "nothing found" in found.stdout
