"""The built page: its bytes are reproducible, it is small, names no host, and evaluates no text as code."""

from __future__ import annotations

import gzip
import re
import subprocess
from pathlib import Path

import pytest
from tests.interop.peers import absent

from turnwire.server.routes.page import FOLDER
from turnwire_testing.patience import WAIT_S
from turnwire_testing.plugin import find_tool

WEB = Path(__file__).resolve().parents[2] / "web"
MODULES = WEB / "node_modules"
MOST_KB = 128
"""Size of all scripts and styles together, gzipped."""
MOST_INITIAL_KB = 101
"""Size of the scripts and styles that every visit loads: those of the document, and the worker."""
NAMED = re.compile(
    r"http://www\.w3\.org/"  # namespaces
    r"|https://github\.com/(?:markedjs/marked|highlightjs/highlight\.js)\b"  # in what libraries say when they fail
    r"|http://127\.0\.0\.1\b"  # an example in an error of the client
)
"""Addresses that are names or words, and that are never requested."""


def files(folder: Path) -> dict[str, bytes]:
    return {each.relative_to(folder).as_posix(): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


@pytest.fixture
def node() -> str:
    program = find_tool("node")
    if not (MODULES / "vite").exists():
        absent("web/node_modules is not there; run: make web")
    return program


def ran(*command: str, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_build_of_the_sources_gives_the_same_bytes(node: str, tmp_path: Path) -> None:
    ran(node, str(MODULES / "typescript/bin/tsc"), "-p", "tsconfig.build.json", cwd=WEB / "client")
    vite = str(MODULES / "vite/bin/vite.js")
    ran(node, vite, "build", "--outDir", str(tmp_path / "page"), "--emptyOutDir", cwd=WEB / "page")
    built, kept = files(tmp_path / "page"), files(FOLDER)
    assert sorted(built) == sorted(kept), "run: make page"
    assert [name for name in built if built[name] != kept[name]] == [], "run: make page"


def test_what_the_page_decides_without_a_browser_passes_its_own_tests(node: str) -> None:
    ran(node, str(MODULES / "typescript/bin/tsc"), "-p", "tsconfig.build.json", cwd=WEB / "client")
    ran(node, str(MODULES / "typescript/bin/tsc"), "-p", "tsconfig.test.json", cwd=WEB / "page")
    ran(node, "--test", ".build/test/", cwd=WEB / "page")


def test_all_scripts_and_styles_are_small() -> None:
    sizes = {
        name: len(gzip.compress(body, mtime=0))
        for name, body in files(FOLDER).items()
        if name.endswith((".js", ".css"))
    }
    assert sizes, "run: make page"
    assert sum(sizes.values()) <= MOST_KB * 1000, sizes
    document = (FOLDER / "index.html").read_text(encoding="utf-8")
    initial = {name: size for name, size in sizes.items() if name in document or "feed_worker" in name}
    assert len(initial) > 2
    assert sum(initial.values()) <= MOST_INITIAL_KB * 1000, initial


@pytest.mark.guarantee("G13")
def test_no_file_names_another_host() -> None:
    named = [
        (name, address)
        for name, body in files(FOLDER).items()
        for address in re.findall(r"(?:https?|wss?)://\w[\w./-]*", body.decode("utf-8", "replace"))
    ]
    assert [each for each in named if NAMED.match(each[1]) is None] == []


def test_no_script_makes_code_from_text() -> None:
    made = re.compile(r"\beval\s*\(|\bnew Function\b|\bimportScripts\b")
    found = {
        name: made.findall(body.decode()) for name, body in files(FOLDER).items() if name.endswith((".js", ".html"))
    }
    assert {name: each for name, each in found.items() if each} == {}
