"""Editors written with the official SDKs, with `turnwire stdio -- agent` as their agent."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.interop.peers import NODE, PEERS, ROOT, absent, scripted
from tests.patience import LONG_S

CLIENTS = Path(__file__).parent / "clients"


class Editor(NamedTuple):
    """A program in `clients/`, and its interpreter."""

    name: str
    version: int
    needs: Path
    program: tuple[str, ...]

    def run(self, home: Path, session: str, *agent: str) -> dict[str, Any]:
        """Run it to its end; return its observations."""
        if self.program[0] == "node" and shutil.which("node") is None:
            absent("the program 'node' is not on PATH")
        if not self.needs.exists():
            absent(f"{self.needs.relative_to(ROOT)} is not there; run: make peers")
        command = [sys.executable, "-m", "turnwire", "stdio", "--", *agent]
        done = subprocess.run(
            [*self.program, str(home), session, *command],
            env={"PATH": os.environ["PATH"], "HOME": str(home)},
            capture_output=True,
            text=True,
            timeout=LONG_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        # The Python SDK writes one for each update of an unknown kind, and continues.
        assert done.stderr.count("Traceback") == done.stderr.count("Input tag 'turn_complete'"), done.stderr
        return json.loads(done.stdout)


def _python(version: int) -> Editor:
    home = PEERS / f"py-v{version}"
    program = (str(home / "bin" / "python"), str(CLIENTS / f"stdio_v{version}.py"))
    return Editor(f"py-v{version}", version, home / ".installed", program)


def _node(version: int) -> Editor:
    home = PEERS / "node"
    program = (*NODE, str(home / "clients" / f"stdio_v{version}.mjs"))
    return Editor(f"js-v{version}", version, home / ".installed", program)


EDITORS = (_python(1), _python(2), _node(1), _node(2))


@pytest.mark.guarantee("G7")
@pytest.mark.parametrize("profile", ["v1", "v2"])
@pytest.mark.parametrize("editor", EDITORS, ids=lambda editor: editor.name)
def test_an_official_client_asks_cancels_and_comes_back_to_its_session(
    tmp_path: Path, editor: Editor, profile: str
) -> None:
    agent = scripted("--profile", profile)
    first = editor.run(tmp_path, "-", *agent)
    assert (first["version"], first["stops"]) == (editor.version, ["end_turn", "cancelled"])
    assert (first["asked"], first["text"]) == (1, "selected allow_oncewaiting")

    again = editor.run(tmp_path, first["session"], *agent)
    assert (again["version"], again["stops"], again["asked"]) == (editor.version, ["end_turn"], 0)
    assert (again["session"], again["text"]) == (first["session"], "selected allow_oncewaitingmore")
