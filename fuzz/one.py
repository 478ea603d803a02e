"""`python -m fuzz.one TARGET SECONDS`: one target in this process, until the time is over or something is found.

Imports what is fuzzed only inside atheris, which has to see the import to follow the code.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path


def main(name: str, seconds: str) -> None:
    """Ends the process with what atheris says."""
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["turnwire"]):
        targets = importlib.import_module("fuzz.targets")
    with tempfile.TemporaryDirectory() as folder:
        for number, seed in enumerate(targets.SEEDS[name]):
            (Path(folder) / str(number)).write_bytes(seed)
        atheris.Setup([sys.argv[0], f"-max_total_time={seconds}", "-max_len=2048", folder], targets.TARGETS[name])
        atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
