"""`python -m fuzz [TARGET…] [SECONDS]`: fuzz some targets, or all, one after the other, with atheris.

Takes names and how long each; gives exit code 0 when nothing was found, 1 for a finding, 64 for a name that is none
and 69 without atheris. Each target runs in a process of its own (`fuzz.one`): atheris does not return from a run.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys

from fuzz.targets import TARGETS

SECONDS = 30
MISSING = """atheris is not installed, so nothing was fuzzed. It is optional and has wheels for Linux:
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
        return 69
    ends = [subprocess.run([sys.executable, "-m", "fuzz.one", name, seconds], check=False) for name in names]
    return 1 if any(each.returncode for each in ends) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
