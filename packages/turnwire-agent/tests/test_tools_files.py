"""Reading, writing and editing files: with real files, and never outside the session's directories."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from agent_kit.tool_kit import Heard, refused, use
from turnwire.errors import RequestRefused
from turnwire_agent.tools import Workplace
from turnwire_agent.tools.files import Edit, Read, Write

pytestmark = pytest.mark.anyio


async def test_reading_gives_numbered_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n\nfour\n")
    call = Heard()
    assert await use(Read(), tmp_path, call, path="a.txt") == "     1\tone\n     2\ttwo\n     3\t\n     4\tfour\n"
    assert call.places == [(str(tmp_path / "a.txt"), 1)]


async def test_reading_a_part_says_how_to_read_on(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(map(str, range(1, 11))))
    text = await use(Read(), tmp_path, path="a.txt", offset=3, limit="2")
    assert text == "     3\t3\n     4\t4\n(Lines 3 to 4 of 10. Read on with offset 5.)\n"


async def test_a_long_file_is_cut_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 1000 + "\n" + ("y" * 900 + "\n") * 500)
    text = await use(Read(), tmp_path, path="a.txt")
    assert len(text) < 110_000
    assert "of 501. Read on with offset 112.)" in text


async def test_a_long_line_is_cut_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 5000)
    assert (await use(Read(), tmp_path, path="a.txt")).endswith("x… (3000 more characters)\n")


async def test_carriage_returns_and_a_byte_order_mark_are_not_shown(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffone\r\ntwo\r\n".encode())
    assert await use(Read(), tmp_path, path="a.txt") == "     1\tone\n     2\ttwo\n"


async def test_an_empty_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    assert "empty" in await use(Read(), tmp_path, path="a.txt")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"path": "missing"}, "no such file"),
        ({"path": "folder"}, "no regular file"),
        ({"path": "binary"}, "not UTF-8 text"),
        ({"path": "pipe"}, "no regular file"),
        ({"path": "short", "offset": 9}, "the file has 1 lines"),
        ({"path": ""}, "path is empty"),
        ({"path": "a\0b"}, "zero byte"),
        ({}, "missing required field `path`"),
        ({"path": 7}, "Expected `str`"),
        ({"path": "short", "offset": 0}, "`int` >= 1"),
        ({"path": "short", "lines": 3}, "unknown field `lines`"),
        ({"path": "\ud800"}, "half a character"),
    ],
)
async def test_what_cannot_be_read_is_told_in_words(tmp_path: Path, arguments: dict[str, Any], words: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary").write_bytes(b"\x7fELF\0\0")
    (tmp_path / "short").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    assert words in str(await refused(Read(), tmp_path, **arguments))


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A session's folder, a secret next to it, and every way to name the secret."""
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "outside").mkdir()
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(tmp_path / "secret")
    (inside / "folder").symlink_to(tmp_path)
    (inside / "relative").symlink_to("../secret")
    return inside


ESCAPES = [
    "../secret",
    "link",
    "relative",
    "folder/secret",
    "missing/../../secret",
    "./././../secret",
    "/etc/passwd",
]


@pytest.mark.parametrize("path", ESCAPES)
async def test_nothing_outside_is_read_written_or_edited(trap: Path, path: str) -> None:
    secret = trap.parent / "secret"
    for error in (
        await refused(Read(), trap, path=path),
        await refused(Write(), trap, path=path, content="gone"),
        await refused(Edit(), trap, path=path, old="secret", new="gone"),
        await refused(Read(), trap, path=str(secret)),
    ):
        assert error.reason == "outside_roots"
    assert secret.read_text() == "secret"


async def test_nothing_is_made_outside(trap: Path) -> None:
    for path in ("../outside/new", "folder/outside/new", "new/../../outside/new"):
        assert (await refused(Write(), trap, path=path, content="x")).reason == "outside_roots"
    assert list((trap.parent / "outside").iterdir()) == []


async def test_a_link_that_is_swapped_in_meanwhile_leads_nowhere(tmp_path: Path) -> None:
    """A folder that is now a folder, now a link to one outside. The outside is never read."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder, text in ((inside / "real", "inside"), (outside, "SECRET")):
        folder.mkdir(parents=True)
        (folder / "file").write_text(text)
    (inside / "link").symlink_to(outside)
    swapping, seen = threading.Event(), set[str]()

    def swap() -> None:
        while not swapping.is_set():
            for name in ("real", "link"):
                os.rename(inside / name, inside / "at")
                os.rename(inside / "at", inside / name)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(100):
            try:
                seen.add(await use(Read(), inside, path="at/file"))
            except RequestRefused:
                seen.add("refused")
    finally:
        swapping.set()
        thread.join()
    assert not any("SECRET" in each for each in seen)
    assert seen <= {"     1\tinside\n", "refused"}


async def test_links_that_stay_inside_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("here")
    (tmp_path / "link.txt").symlink_to("real.txt")
    assert "here" in await use(Read(), tmp_path, path="link.txt")


async def test_further_directories_of_the_session_are_inside(tmp_path: Path) -> None:
    (tmp_path / "cwd").mkdir()
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a.txt").write_text("here")
    where = Workplace(tmp_path / "cwd", [tmp_path / "more"])
    assert "here" in await use(Read(), where, path="../more/a.txt")
    assert await use(Write(), where, path=str(tmp_path / "more/b.txt"), content="x\n") == (
        f"Made the file with 1 lines: {tmp_path}/more/b.txt\n"
    )


async def test_writing_makes_a_file_with_its_folders_and_shows_it_first(tmp_path: Path) -> None:
    call = Heard()
    text = await use(Write(), tmp_path, call, path="a/b/c.txt", content="one\ntwo\n")
    assert text == "Made the file with 2 lines: a/b/c.txt\n"
    assert (tmp_path / "a/b/c.txt").read_text() == "one\ntwo\n"
    assert call.diffs == [(str(tmp_path / "a/b/c.txt"), None, "one\ntwo\n")]


async def test_preparing_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    call, where = Heard(), Workplace(tmp_path)
    await Write().prepare(where, {"path": "a.txt", "content": "new"}, call)
    await Write().prepare(where, {"path": "new/b.txt", "content": "new"}, call)
    await Edit().prepare(where, {"path": "a.txt", "old": "old", "new": "new"}, call)
    assert [diff[1:] for diff in call.diffs] == [("old", "new"), (None, "new"), ("old", "new")]
    assert os.listdir(tmp_path) == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"


async def test_a_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("#!/bin/sh\necho old\n")
    path.chmod(0o750)
    assert "Replaced the file" in await use(Write(), tmp_path, path="run.sh", content="#!/bin/sh\necho new\n")
    await use(Edit(), tmp_path, path="run.sh", old="new", new="newer")
    assert path.read_text() == "#!/bin/sh\necho newer\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o750


async def test_writing_what_is_there_already_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("same")
    assert "already" in await use(Write(), tmp_path, path="a.txt", content="same")


async def test_a_binary_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\0\1")
    assert (await refused(Write(), tmp_path, path="a.bin", content="text")).reason == "not_text"
    assert (tmp_path / "a.bin").read_bytes() == b"\0\1"


async def test_a_file_that_a_client_refuses_to_read_is_new_if_the_disk_has_none(tmp_path: Path) -> None:
    class Refusing(Workplace):
        async def read_text(self, path: str) -> str:
            raise RequestRefused("the client refused", jsonrpc=-32603, reason="client_refused")

    where = Refusing(tmp_path)
    (tmp_path / "there.txt").write_text("old")
    assert "Made the file" in await use(Write(), where, path="new/file.txt", content="x")
    assert (await refused(Write(), where, path="there.txt", content="x")).reason == "client_refused"
    assert (tmp_path / "there.txt").read_text() == "old"


async def test_an_edit_replaces_the_one_place_and_shows_the_diff(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\ny = 2\nz = 3\n")
    call = Heard()
    text = await use(Edit(), tmp_path, call, path="a.py", old="y = 2\n", new="y = 20\n")
    assert text == "Replaced 1 occurrence, at line 2: a.py\n"
    assert (tmp_path / "a.py").read_text() == "x = 1\ny = 20\nz = 3\n"
    assert call.diffs == [(str(tmp_path / "a.py"), "x = 1\ny = 2\nz = 3\n", "x = 1\ny = 20\nz = 3\n")]
    assert call.places == [(str(tmp_path / "a.py"), 2)]


async def test_an_edit_that_is_not_unique_says_how_many_there_are(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x\nx\nx\n")
    assert "3 times" in str(await refused(Edit(), tmp_path, path="a.py", old="x", new="y"))
    assert "Replaced 3 occurrences" in await use(Edit(), tmp_path, path="a.py", old="x", new="y", all=True)
    assert (tmp_path / "a.py").read_text() == "y\ny\ny\n"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("absent", "y", "is not in a.py"),
        ("def  f( ):", "y", "is not in a.py"),
        ("def f():\n  return 1", "y", "other white space"),
        ("def", "def", "are the same"),
        ("", "y", "length >= 1"),
    ],
)
async def test_an_edit_that_cannot_be_done_says_why(tmp_path: Path, old: str, new: str, words: str) -> None:
    (tmp_path / "a.py").write_text("def f():\n    return 1\n")
    assert words in str(await refused(Edit(), tmp_path, path="a.py", old=old, new=new))


async def test_an_edit_keeps_the_line_ends_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\r\ntwo\r\nthree\r\n")
    await use(Edit(), tmp_path, path="a.txt", old="one\ntwo", new="1\n2\n2b")
    assert path.read_bytes() == b"1\r\n2\r\n2b\r\nthree\r\n"
    path.write_bytes(b"one\r\ntwo\nthree\n")
    await use(Edit(), tmp_path, path="a.txt", old="one\ntwo", new="1\n2")
    assert path.read_bytes() == b"1\r\n2\nthree\n"


async def test_an_edit_looks_again_when_it_is_made(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    where, arguments = Workplace(tmp_path), {"path": "a.txt", "old": "old", "new": "new"}
    await Edit().prepare(where, arguments, Heard())
    (tmp_path / "a.txt").write_text("changed by somebody")
    assert "is not in a.txt" in str(await refused(Edit(), where, **arguments))
    assert (tmp_path / "a.txt").read_text() == "changed by somebody"
