"""The documentation as a site: it builds without a warning, has every page, and loads nothing from elsewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import LONG_S

ROOT = Path(__file__).resolve().parents[2]
LOADED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"([^\"]+)|<link\b[^>]*\bhref=\"([^\"]+)|url\(([^)]+)\)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("sphinx") is None or importlib.util.find_spec("furo") is None:
        reason = "the tools of the site are not installed; `make docs` does so"
        if os.environ.get("TURNWIRE_REQUIRE_ALL") == "1":
            pytest.fail(f"{reason}, and TURNWIRE_REQUIRE_ALL=1 asks for everything", pytrace=False)
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--quiet", "-b", "html", "docs", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONG_S, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_in_the_site(site: Path) -> None:
    pages = [path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if not (site / page).is_file()] == []


def test_nothing_in_the_site_is_loaded_from_elsewhere(site: Path) -> None:
    files = [*site.rglob("*.html"), *site.rglob("*.css")]
    loaded = {
        (path.name, target)
        for path in files
        for match in LOADED.finditer(path.read_text(encoding="utf-8"))
        for target in match.groups()
        if target
    }
    assert [each for each in sorted(loaded) if re.match(r"[\"']?(https?:)?//", each[1])] == []
