"""Run fuzz targets with atheris: `python -m fuzz [TARGET…] [SECONDS]`.

Without names all targets run, one after the other, each in a separate process because atheris ends the process.
Exits with 1 when an input breaks a target.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
from pathlib import Path


def main(arguments: list[str]) -> int:
    from fuzz.targets import TARGETS

    names = [each for each in arguments if not each.isdigit()] or list(TARGETS)
    seconds = next((each for each in arguments if each.isdigit()), "60")
    if unknown := set(names) - set(TARGETS):
        sys.stderr.write(f"Unknown target {unknown.pop()!r}. Targets: {', '.join(TARGETS)}\n")
        return 64
    runs = [subprocess.run([sys.executable, "-m", "fuzz", "--one", name, seconds], check=False) for name in names]
    return 1 if any(each.returncode for each in runs) else 0


def run_one(name: str, seconds: str) -> None:
    """Fuzz one target in this process, which ends with it."""
    atheris = importlib.import_module("atheris")
    # atheris must see the import to instrument the code.
    with atheris.instrument_imports(include=["turnwire"]):
        targets = importlib.import_module("fuzz.targets")
    with tempfile.TemporaryDirectory() as folder:
        for number, seed in enumerate(targets.SEEDS[name]):
            (Path(folder) / str(number)).write_bytes(seed)
        atheris.Setup([sys.argv[0], f"-max_total_time={seconds}", "-max_len=2048", folder], targets.TARGETS[name])
        atheris.Fuzz()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        run_one(*sys.argv[2:])
    else:
        sys.exit(main(sys.argv[1:]))
