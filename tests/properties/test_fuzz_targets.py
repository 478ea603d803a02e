"""The targets of `make fuzz` hold for what hypothesis thinks of, so that a broken rule is seen without a fuzzer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fuzz.targets import SEEDS, TARGETS
from hypothesis import example, given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]


@st.composite
def near_seeds(draw: st.DrawFn) -> bytes:
    """Random bytes, or a seed with a few of its bytes changed."""
    line = bytearray(draw(st.one_of(st.sampled_from(SEEDS), st.binary(max_size=200))))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(line)))
        line[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(line)


@pytest.mark.parametrize("name", TARGETS)
@settings(deadline=None, max_examples=300)
@given(near_seeds())
@example(b"")
@example(SEEDS[3])
@example(SEEDS[4])
def test_every_target_holds(name: str, given: bytes) -> None:
    TARGETS[name](given)


def test_without_atheris_it_says_how_to_get_it() -> None:
    absent = "import sys, runpy; sys.argv[1:] = []; sys.modules['atheris'] = None; "
    code = absent + "runpy.run_module('fuzz', run_name='__main__')"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert found.returncode == 69
    assert "pip install atheris" in found.stderr
