"""`python -m fuzz [TARGET…] [SECONDS]`: fuzz some targets, or all, one after the other.

Takes names and how long each; gives exit code 0 when nothing was found, 1 for a finding and 64 for a name that is
none. With atheris each target has a process of its own (`fuzz.one`), because atheris does not return from a run.
Without it inputs are changed blindly (`fuzz.mutation`), and it says so.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time

from fuzz import mutation
from fuzz.targets import SEEDS, TARGETS

SECONDS = 60
MISSING = """atheris is not installed, so inputs are changed blindly. It is optional and has wheels for Linux:
    .venv/bin/python -m pip install atheris
"""


def main(arguments: list[str]) -> int:
    names = [each for each in arguments if not each.isdigit()] or list(TARGETS)
    seconds = next((each for each in arguments if each.isdigit()), str(SECONDS))
    if unknown := [name for name in names if name not in TARGETS]:
        sys.stderr.write(f"there is no target {unknown[0]!r}; the targets are: {', '.join(TARGETS)}\n")
        return 64
    if importlib.util.find_spec("atheris") is None:
        sys.stderr.write(MISSING)
        for name in names:
            count = mutation.run(TARGETS[name], SEEDS[name], float(seconds), number=time.time_ns())
            sys.stdout.write(f"{name}: {count} inputs, nothing found\n")
            sys.stdout.flush()
        return 0
    ends = [subprocess.run([sys.executable, "-m", "fuzz.one", name, seconds], check=False) for name in names]
    return 1 if any(each.returncode for each in ends) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
