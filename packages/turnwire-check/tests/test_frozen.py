"""Sets fix the cases under their names: no case of a set changes without being noticed."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from turnwire_check.catalogue import CASES, EVERY
from turnwire_check.frozen import FILES, SETS, digests, shared_digests

ROOT = Path(__file__).resolve().parents[3]
SET_FILES = ROOT / "packages" / "turnwire-check" / "src" / "turnwire_check" / "sets"


@pytest.mark.parametrize("name", FILES)
def test_no_case_of_a_set_has_changed(name: str) -> None:
    changed = [
        each for each, digest in digests(name).items() if each not in EVERY or EVERY[each].digest() != digest
    ]
    assert changed == [], "a case of a published set never changes; give it another id. Before: make fix"


def test_every_case_is_in_a_set() -> None:
    listed = {case for cases in SETS.values() for case in cases}
    assert sorted(set(EVERY) - listed) == []


def test_what_is_written_from_the_cases_is_current() -> None:
    command = [sys.executable, "scripts/write_conformance.py", "--check"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (told.returncode, told.stderr) == (0, "")


def test_the_file_of_a_set_names_the_modules_that_its_cases_share() -> None:
    shared = shared_digests([CASES["v1.params.new-no-cwd"]])
    ours = {each.removeprefix("turnwire_check.") for each in shared}
    assert {"cases.v1_wire", "raw_client", "raw_peer", "capability", "tape", "transport", "run"} <= ours
    assert "cases.v1_turns" not in ours
    assert json.loads((SET_FILES / FILES["acp-v1/2026-11"]).read_text())["shared"].items() >= shared.items()


def test_a_digest_changes_with_the_words_and_with_the_code() -> None:
    case, other = CASES["v1.turn.once"], CASES["v1.turn.ends"]
    assert replace(case, rule="Another rule.").digest() != case.digest()
    assert replace(case, judge=other.judge).digest() != case.digest()
    assert replace(case, carriers=("stdio",)).digest() != case.digest()
    rows = CASES["v1.params.new-no-cwd"], CASES["v1.params.new-cwd-number"]
    assert replace(rows[0], judge=rows[1].judge).digest() != rows[0].digest()
