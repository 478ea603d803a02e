"""Run the few tests that failed in the last run once more, each in quiet, and name those that pass now.

Workers on fewer cores run thousands of processes side by side; a test whose own wait was too short there is a
fault of that test, and it is told as one, but it says nothing about what is being tested. Never a second chance
for a test that searches (random kills, faults, properties, whatever draws by lot): there a single failure is what
was looked for, and the next run looks elsewhere. Neither for many failures at once, nor for a run that did not
come to its end.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FAILED = ROOT / ".pytest_cache/v/cache/lastfailed"
AT_RANDOM = ("tests/cluster/", "tests/crash/", "tests/properties/", "tests/postgres/test_node_killed.py")
"""They kill, cut or draw at an instant that nobody chose."""
BY_LOT = ("import random", "from random ", "from hypothesis", "import hypothesis", "import schemathesis")
AT_MOST = 3


def searches(test: str) -> bool:
    """Whether the next run of this test may look elsewhere."""
    source = (ROOT / test.partition("::")[0]).read_text()
    return test.startswith(AT_RANDOM) or any(each in source for each in BY_LOT)


def again(failed: list[str]) -> str | None:
    """Why these are not run again, or nothing."""
    if not failed:
        return "no test has failed, so the run itself did not come to its end"
    if len(failed) > AT_MOST:
        return f"{len(failed)} tests failed; at most {AT_MOST} are run again"
    found = [each for each in failed if searches(each)]
    return f"{found[0]} searches at random: its failure is a finding" if found else None


def main() -> int:
    failed = sorted(json.loads(FAILED.read_bytes())) if FAILED.exists() else []
    refusal = again(failed)
    if refusal is not None:
        sys.stdout.write(f"not run again: {refusal}\n")
        return 1
    for each in failed:
        # One process each: a test that leaves something behind does not help the next.
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", each]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            sys.stdout.write(f"fails again, alone: {each}\n")
            return 1
    for each in failed:
        sys.stdout.write(f"UNSTEADY: {each} failed among the others and passed alone; mend it\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
