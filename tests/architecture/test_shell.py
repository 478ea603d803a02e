"""Every shell script of the repository is one that shellcheck has nothing to say about."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from turnwire.testing.plugin import find_tool

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (".ci", ".github", "bench", "deploy", "scripts", "web/page/scripts")


def scripts() -> list[str]:
    files = [each for folder in FOLDERS for each in (ROOT / folder).rglob("*") if each.is_file()]
    return sorted(str(each.relative_to(ROOT)) for each in files if _is_shell(each))


def _is_shell(path: Path) -> bool:
    with path.open("rb") as file:
        first = file.readline(80)
    return path.suffix == ".sh" or (first.startswith(b"#!") and first.rstrip().endswith((b"sh", b"bash")))


def test_there_are_scripts_to_look_at() -> None:
    assert {".ci/run", ".github/actions/check/check.sh"} <= set(scripts())


@pytest.mark.parametrize("script", scripts())
def test_a_shell_script_is_sound(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The one of the lock is beside the interpreter, which need not be on PATH.
    beside = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    monkeypatch.setenv("PATH", beside)
    command = [find_tool("shellcheck"), "--color=never", script]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (told.returncode, told.stdout) == (0, "")
