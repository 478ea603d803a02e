"""The manual page: it tells of every command, the programs that show it take it; what a wheel brings along."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.test_help import named_commands

from turnwire.server.routes.page import FOLDER
from turnwire.testing.patience import WAIT_S

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "turnwire.1"
MOST_KB = 2100
"""What is downloaded by each who installs it; 475 KB of it are the viewer of the API, 150 KB the page, 65 KB the
cases of `turnwire check`."""


def ran(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=False)


def test_the_page_is_what_the_commands_say() -> None:
    assert ran(sys.executable, "scripts/write_man.py", "--check").returncode == 0


def test_mandoc_has_nothing_to_complain_about(require_tool: Callable[[str], str]) -> None:
    done = ran(require_tool("mandoc"), "-Tlint", "-Wwarning", str(PAGE))
    # A page with the day of its writing would be stale the day after.
    assert [line for line in done.stdout.splitlines() if "missing date" not in line] == []


def test_groff_has_nothing_to_complain_about(require_tool: Callable[[str], str]) -> None:
    done = ran(require_tool("groff"), "-man", "-Tutf8", "-ww", str(PAGE))
    assert done.stderr == ""


def test_a_reader_of_the_page_finds_every_command_and_option(require_tool: Callable[[str], str]) -> None:
    shown = ran(require_tool("mandoc"), "-Tutf8", "-Owidth=400", str(PAGE)).stdout
    text = re.sub(r".\x08", "", shown)
    missing = [path for path in named_commands() if not re.search(rf"^ +{path}$", text, re.MULTILINE)]
    assert missing == []
    options = {
        option
        for command in named_commands().values()
        for each in command.params
        for option in each.opts
        if option.startswith("--") and not getattr(each, "hidden", False)
    }
    assert [option for option in sorted(options) if option not in text] == []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    done = ran(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    assert done.returncode == 0, done.stderr
    [built] = folder.glob("*.whl")
    return built


def test_a_wheel_has_the_page_where_man_looks_for_it_and_the_viewer_with_its_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [page] = [each for each in names if each.endswith(".data/data/share/man/man1/turnwire.1")]
        assert archive.read(page) == PAGE.read_bytes()
    viewer = "turnwire/server/routes/swagger-ui/"
    assert {f"{viewer}LICENSE", f"{viewer}NOTICE", f"{viewer}swagger-ui-bundle.js"} <= set(names)


def test_a_wheel_has_every_file_of_the_built_page(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        found = {
            each.removeprefix("turnwire/server/page/"): archive.read(each)
            for each in archive.namelist()
            if each.startswith("turnwire/server/page/")
        }
    kept = {path.relative_to(FOLDER).as_posix(): path.read_bytes() for path in FOLDER.rglob("*") if path.is_file()}
    assert found == kept
    assert "index.html" in found


def test_a_wheel_stays_small(wheel: Path) -> None:
    assert wheel.stat().st_size < MOST_KB * 1024
