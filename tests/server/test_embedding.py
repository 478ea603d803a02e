"""turnwire inside another program: under `asyncio.run`, and with any server for ASGI."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import LONG_S


@pytest.mark.parametrize("way", ["uvicorn", "listen"])
def test_a_program_that_began_its_loop_with_asyncio_serves_and_is_served(tmp_path: Path, way: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-X", "dev", "-m", "tests.server.embedding", way, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )
    assert "Exception in callback" not in ran.stderr, ran.stderr
    assert (ran.returncode, ran.stdout.split("\n")) == (0, ["end_turn 3000", "end_turn", ""]), ran.stderr
