"""Contents and size of the wheel."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from turnwire.server.routes.page import FOLDER
from turnwire_testing.patience import WAIT_S

ROOT = Path(__file__).resolve().parents[2]
MOST_KB = 2100
"""Upper bound of the download: 475 KB are the viewer of the API, 150 KB the page."""


def ran(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    done = ran(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    assert done.returncode == 0, done.stderr
    [built] = folder.glob("*.whl")
    return built


def test_wheel_has_the_api_viewer_with_its_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    viewer = "turnwire/server/routes/swagger-ui/"
    assert {f"{viewer}LICENSE", f"{viewer}NOTICE", f"{viewer}swagger-ui-bundle.js"} <= set(names)


def test_wheel_has_every_file_of_the_built_page(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        found = {
            each.removeprefix("turnwire/server/page/"): archive.read(each)
            for each in archive.namelist()
            if each.startswith("turnwire/server/page/")
        }
    kept = {path.relative_to(FOLDER).as_posix(): path.read_bytes() for path in FOLDER.rglob("*") if path.is_file()}
    assert found == kept
    assert "index.html" in found


def test_wheel_stays_small(wheel: Path) -> None:
    assert wheel.stat().st_size < MOST_KB * 1024
