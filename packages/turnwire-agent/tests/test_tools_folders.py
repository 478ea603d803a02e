"""Listing and searching folders: shown and omitted entries, without hanging or leaving the folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.process.starting import needs_linux

from agent_kit.tool_kit import Heard, refused, use
from turnwire_agent.tools import Workplace, folder_program
from turnwire_agent.tools.folders import List, Search
from turnwire_testing.plugin import find_tool

pytestmark = pytest.mark.anyio


def make(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make(
        tmp_path,
        {
            ".gitignore": "*.log\n/build/\n!keep.log\n# a remark\nnode_modules\n",
            ".env": "SECRET=needle\n",
            "README.md": "needle in the readme\n",
            "debug.log": "needle\n",
            "keep.log": "needle kept\n",
            "build/out.txt": "needle\n",
            "src/main.py": "import os\n\n\ndef needle():\n    return 1\n\n\nprint(needle())\n",
            "src/build/inner.py": "needle = 2\n",
            "src/.gitignore": "generated/**\n",
            "src/generated/a.py": "needle\n",
            "src/node_modules/x.js": "needle\n",
            "docs/deep/er/est/page.md": "Needle\n",
        },
    )


async def test_a_list_is_a_tree_without_hidden_and_ignored_entries(project: Path) -> None:
    (project / "link").symlink_to("src")
    call = Heard()
    assert await use(List(), project, call) == (
        "./\n  README.md\n  docs/\n    deep/…\n  keep.log\n  link@\n"
        "  src/\n    build/…\n    generated/…\n    main.py\n"
    )
    assert call.places == [(str(project), None)]
    assert call.text.startswith("./\n  README.md\n"), "the user sees it too"


async def test_a_list_can_show_everything_and_go_deeper(project: Path) -> None:
    text = await use(List(), project, path="docs", depth=9)
    assert text == "docs/\n  deep/\n    er/\n      est/\n        page.md\n"
    text = await use(List(), project, hidden=True, depth=1)
    assert ".gitignore\n" in text
    assert "build/…" in text
    assert "debug.log" in text


async def test_a_long_list_is_cut_and_says_so(tmp_path: Path) -> None:
    make(tmp_path, {f"many/{number:04}": "" for number in range(600)} | {"zoo/last": "", "first": ""})
    text = await use(List(), tmp_path)
    assert text.startswith("./\n  first\n  many/\n    0000\n")
    # Upper levels come first, so a limit never removes them in favour of deeper ones.
    assert "\n  zoo/" in text
    assert text.endswith("(There is more. List a folder further down, or with a smaller depth.)\n")
    assert len(text.splitlines()) < 510


async def test_an_empty_folder_is_told(tmp_path: Path) -> None:
    assert "nothing to show" in await use(List(), tmp_path)


async def test_a_search_shows_lines_by_file(project: Path) -> None:
    assert await use(Search(), project, pattern=r"needle\b") == (
        "README.md\n1:needle in the readme\n\nkeep.log\n1:needle kept\n\n"
        "src/main.py\n4:def needle():\n8:print(needle())\n\nsrc/build/inner.py\n1:needle = 2\n"
    )


async def test_a_search_shows_context_and_parts_groups(project: Path) -> None:
    text = await use(Search(), project, pattern="def|print", path="src/main.py", context=1)
    assert text == "src/main.py\n3-\n4:def needle():\n5-    return 1\n--\n7-\n8:print(needle())\n9-\n"


@pytest.mark.parametrize(
    ("arguments", "files"),
    [
        ({"glob": "*.md"}, ["README.md"]),
        ({"glob": "src/*.py"}, ["src/main.py"]),
        ({"glob": "src/**/*.py"}, ["src/build/inner.py", "src/main.py"]),
        ({"glob": "*.{md,log}"}, ["README.md", "keep.log"]),
        ({"glob": "[!R]*.{md,py}"}, ["src/build/inner.py", "src/main.py"]),
        ({"path": "docs", "ignore_case": True}, ["docs/deep/er/est/page.md"]),
        ({"path": "src/build"}, ["src/build/inner.py"]),
        ({"path": "build", "hidden": False}, ["build/out.txt"]),
        ({"hidden": True, "glob": "*.log"}, ["debug.log", "keep.log"]),
        ({"hidden": True, "glob": ".env"}, [".env"]),
        ({"path": "src", "hidden": True, "glob": "generated/*"}, ["src/generated/a.py"]),
    ],
)
async def test_a_search_looks_where_it_is_told_to(
    project: Path, arguments: dict[str, Any], files: list[str]
) -> None:
    text = await use(Search(), project, pattern="needle", **arguments)
    assert sorted(line for line in text.splitlines() if line and line[0] not in "0123456789(-") == files


def ask_git(folder: Path, excluded: str) -> list[str]:
    """The files that git sees in a folder of its own rules."""
    git = find_tool("git")
    subprocess.run([git, "init", "-q", str(folder)], check=True)
    (folder / ".git/info/exclude").write_text(excluded)
    command = [git, "ls-files", "--others", "--exclude-standard", "-z"]
    known = subprocess.run(command, cwd=folder, capture_output=True, check=True).stdout.decode().split("\0")
    return sorted(name for name in known if name and ".gitignore" not in name)


async def test_what_is_left_out_is_what_git_leaves_out(tmp_path: Path) -> None:
    """The same rules, asked of git itself."""
    rules = r"*.o !keep.o /top sub/deep a/**/z **/any/where trail/ x?y [ab]c e\*f all/*"
    names = re.split(
        r"\s+",
        "one.o keep.o top sub2/top sub/deep/f other/sub/deep/f a/z a/b/c/z b/a/z any/where/f p/any/where trail/f"
        " q/trail xzy xzzy ac cc e*f eef all/f g sub2/one.o sub2/nested nested h",
    )
    make(tmp_path, {".gitignore": rules.replace(" ", "\n"), "sub2/.gitignore": "!one.o\nnested\n"})
    expected = ask_git(make(tmp_path, dict.fromkeys(names, "word")), "g\n")
    text = await use(Search(), tmp_path, pattern="word")
    assert sorted(line for line in text.splitlines() if line and not line.startswith("1:")) == expected
    assert 10 < len(expected) < len(names)


async def test_binary_and_huge_files_are_skipped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"needle\0")
    (tmp_path / "b.txt").write_text("needle\n" * 2_000_000)
    (tmp_path / "c.txt").write_text("needle\n")
    os.mkfifo(tmp_path / "pipe")
    text = await use(Search(), tmp_path, pattern="needle")
    assert text == "c.txt\n1:needle\n\n(Skipped, because binary, too large or not readable: 3.)\n"


async def test_too_many_matches_are_cut_and_told(tmp_path: Path) -> None:
    make(tmp_path, {"a.txt": "x\n" * 50, "b.txt": "x\n" * 50})
    text = await use(Search(), tmp_path, pattern="x", limit=60)
    assert text.count(":x") == 60
    assert "There are more matches" in text
    assert "There are more" not in await use(Search(), tmp_path, pattern="x", limit=100)


async def test_long_lines_are_cut_around_the_match(tmp_path: Path) -> None:
    make(tmp_path, {"a.txt": "x" * 100_000 + "needle" + "y" * 100_000})
    text = await use(Search(), tmp_path, pattern="needle")
    assert "xneedley" in text
    assert len(text) < 500


async def test_no_match_is_told(project: Path) -> None:
    assert await use(Search(), project, pattern="absent") == "(No line matches.)\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"pattern": "("}, "missing ), unterminated subpattern"),
        ({"pattern": ""}, "length >= 1"),
        ({"pattern": "x", "path": "missing"}, "no such file"),
        ({"pattern": "x", "context": 99}, "<= 20"),
        ({"pattern": "x", "limit": None}, "Expected `int`"),
        ({"pattern": "(" * 900 + "x" + ")" * 900}, "expression"),
    ],
)
async def test_a_search_that_cannot_be_done_says_why(project: Path, arguments: dict[str, Any], words: str) -> None:
    assert words in str(await refused(Search(), project, **arguments))


async def test_a_pattern_that_never_ends_is_stopped_with_what_was_found(tmp_path: Path) -> None:
    make(tmp_path, {"a.txt": "aab\n", "b.txt": "a" * 60 + "!\n"})
    text = await use(Search(within_s=2.0), tmp_path, pattern=r"^(a+)+b?$|b")
    assert text.startswith("a.txt\n1:aab\n")
    assert "stopped after 2 s" in text


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@needs_linux
async def test_a_cancelled_search_leaves_no_process(tmp_path: Path) -> None:
    make(tmp_path, {"b.txt": "a" * 60 + "!\n"})
    before = children()
    where = Workplace(tmp_path)
    with anyio.move_on_after(0.5) as scope:
        await Search().run(where, {"pattern": r"^(a+)+b$"}, Heard())
    assert scope.cancelled_caught
    assert children() == before


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    make(tmp_path, {"outside/secret.txt": "needle outside\n", "inside/own.txt": "needle inside\n"})
    inside = tmp_path / "inside"
    (inside / "folder").symlink_to("../outside")
    (inside / "file.txt").symlink_to("../outside/secret.txt")
    return inside


async def test_links_are_not_followed(trap: Path) -> None:
    assert await use(Search(), trap, pattern="needle") == "own.txt\n1:needle inside\n"
    assert await use(List(), trap, depth=5) == "./\n  file.txt@\n  folder@\n  own.txt\n"


@pytest.mark.parametrize(
    "path", ["..", "../outside", "folder", "/", "../outside/secret.txt", "folder/secret.txt", "file.txt"]
)
async def test_nothing_outside_is_looked_through(trap: Path, path: str) -> None:
    assert (await refused(Search(), trap, pattern="needle", path=path)).reason == "outside_roots"
    assert (await refused(List(), trap, path=path)).reason == "outside_roots"


async def test_a_link_that_is_swapped_in_meanwhile_leads_nowhere(trap: Path) -> None:
    make(trap, {"real/secret.txt": "needle inside\n"})
    swapping = threading.Event()

    def swap() -> None:
        while not swapping.is_set():
            for name in ("real", "folder"):
                os.rename(trap / name, trap / "at")
                os.rename(trap / "at", trap / name)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        texts = [await use(Search(), trap, pattern="needle") for _ in range(5)]
    finally:
        swapping.set()
        thread.join()
    assert not any("needle outside" in text for text in texts)
    assert all("own.txt" in text for text in texts)


async def test_a_further_directory_is_searched_by_its_absolute_path(tmp_path: Path) -> None:
    make(tmp_path, {"more/a.txt": "needle\n", "cwd/b.txt": "needle\n"})
    where = Workplace(tmp_path / "cwd", [tmp_path / "more"])
    assert await use(Search(), where, pattern="needle", path="../more") == f"{tmp_path}/more/a.txt\n1:needle\n"
    assert await use(Search(), where, pattern="needle") == "b.txt\n1:needle\n"


async def test_names_that_are_no_text_are_shown_somehow(tmp_path: Path) -> None:
    make(tmp_path, {os.fsdecode(b"\xff.txt"): "needle\n"})
    assert await use(Search(), tmp_path, pattern="needle") == "\ufffd.txt\n1:needle\n"
    assert "\ufffd.txt" in await use(List(), tmp_path)


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "a$",
            "^b",
            r"\bb$",
            r"a\s*$",
            r"a\s*+$",
            r"a(?!\s)",
            r"(?<!\n)b",
            r"a\Z",
            r"\Ab",
            r"\Bc",
            r"[^q]$",
            "a{1}+$",
        ),
        *(r"(?>a\s*)$", "(?s)a.*$", "(?m)^c", "^$", "", r"(?<=a)$", r"(?=b)b", r"\w++$", r"\s", "a|^c", r"(a)\1?$"),
    ],
)
def test_lines_match_as_if_each_stood_alone(tmp_path: Path, pattern: str) -> None:
    text = "a\nb\n\nxa \na b\r\nc\n  \nab\nqa\nzc\nlast a"
    (tmp_path / "a.txt").write_bytes(text.encode())
    regex, told = re.compile(pattern), StringIO()
    with redirect_stdout(told):
        folder = folder_program.Folder(str(tmp_path), closed="", hidden=False, ignored=False)
        folder_program.TextSearch(regex, 0, 1000, 10**6).look(folder, ("a.txt",), "a.txt")
    found = [number for number, _, _ in json.loads(told.getvalue() or '{"lines": []}')["lines"]]
    assert found == [number for number, line in enumerate(text.split("\n"), 1) if regex.search(line)]
