"""An agent reads text files of its session, and no file that is not text or could block."""

from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.unit.hosting.services.asking import ask, read, refused, workspace_in

from turnwire.hosting.services.files import cut_lines
from turnwire.limits import KiB, Limits
from turnwire.wire.jsonrpc import INVALID_PARAMS, RESOURCE_NOT_FOUND
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

READ, WRITE = "fs/read_text_file", "fs/write_text_file"
TEXT = "one\ntwo\r\nthree\n"


async def test_a_text_file_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes("\ufeffaß€\r\n\x0b\u2028end".encode())
    async with workspace_in(tmp_path) as workspace:
        assert await read(workspace, tmp_path / "f") == "\ufeffaß€\r\n\x0b\u2028end"


@pytest.mark.parametrize(
    ("line", "limit", "found"),
    [
        (None, None, TEXT),
        (1, None, TEXT),
        (2, None, "two\r\nthree\n"),
        (1, 1, "one\n"),
        (2, 1, "two\r\n"),
        (3, 1, "three\n"),
        (None, 2, "one\ntwo\r\n"),
        (1, 3, TEXT),
        (1, 4, TEXT),
        (1, 0, ""),
        (4, None, ""),
        (4, 1, ""),
        (5, None, ""),
        (2**32 - 1, 2**32 - 1, ""),
    ],
)
async def test_lines_are_counted_from_one(tmp_path: Path, line: int | None, limit: int | None, found: str) -> None:
    (tmp_path / "f").write_bytes(TEXT.encode())
    async with workspace_in(tmp_path) as workspace:
        assert await read(workspace, tmp_path / "f", line=line, limit=limit) == found


def test_a_last_line_without_its_end_is_a_line() -> None:
    assert cut_lines("a\nb", 2, 1) == "b"
    assert cut_lines("", 1, 1) == ""


@pytest.mark.parametrize("field", ["line", "limit"])
@pytest.mark.parametrize("value", ["1", -1, 1.5, True, [], 2**32])
async def test_a_malformed_number_is_refused(tmp_path: Path, field: str, value: Any) -> None:
    (tmp_path / "f").write_text(TEXT)
    async with workspace_in(tmp_path) as workspace:
        error = await refused(workspace, READ, path=str(tmp_path / "f"), **{field: value})
        assert (error.jsonrpc, error.reason) == (INVALID_PARAMS, "malformed")


async def test_there_is_no_line_zero(tmp_path: Path) -> None:
    async with workspace_in(tmp_path) as workspace:
        assert (await refused(workspace, READ, path=str(tmp_path / "f"), line=0)).reason == "malformed"


async def test_a_missing_file_is_told_with_its_uri(tmp_path: Path) -> None:
    async with workspace_in(tmp_path) as workspace:
        error = await refused(workspace, READ, path=str(tmp_path / "f"))
    assert (error.jsonrpc, error.reason) == (RESOURCE_NOT_FOUND, "not_found")
    assert error.data == {"uri": (tmp_path / "f").as_uri()}


@pytest.mark.parametrize("method", [READ, WRITE])
async def test_what_is_no_regular_file_is_refused_without_blocking(tmp_path: Path, method: str) -> None:
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        async with workspace_in(tmp_path) as workspace:
            for name in ("directory", "fifo", "link", "socket", "."):
                error = await refused(workspace, method, path=str(tmp_path / name), content="x")
                assert (error.jsonrpc, error.reason) == (INVALID_PARAMS, "not_a_file")
    assert stat.S_ISFIFO(os.lstat(tmp_path / "fifo").st_mode)


@pytest.mark.parametrize("name", ["null", "zero", "tty"])
async def test_a_device_is_refused(name: str) -> None:
    async with workspace_in(Path("/dev")) as workspace:
        assert (await refused(workspace, READ, path=f"/dev/{name}")).reason == "not_a_file"


async def test_a_file_swapped_for_a_pipe_at_the_last_moment_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_text(TEXT)
    real = os.open

    def swapping(path: Any, *args: Any, **options: Any) -> int:
        if path == "f":
            (tmp_path / "f").unlink()
            os.mkfifo(tmp_path / "f")
        return real(path, *args, **options)

    async with workspace_in(tmp_path) as workspace:
        monkeypatch.setattr(os, "open", swapping)
        assert (await refused(workspace, READ, path=str(tmp_path / "f"))).reason == "not_a_file"


@pytest.mark.parametrize("method", [READ, WRITE])
async def test_a_file_swapped_for_a_link_at_the_last_moment_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "away").write_text("safe")
    (tmp_path / "root" / "f").write_text(TEXT)
    real = os.open

    def swapping(path: Any, *args: Any, **options: Any) -> int:
        if path == "f":
            (tmp_path / "root" / "f").unlink()
            (tmp_path / "root" / "f").symlink_to("../away")
        return real(path, *args, **options)

    async with workspace_in(tmp_path / "root") as workspace:
        monkeypatch.setattr(os, "open", swapping)
        error = await refused(workspace, method, path=str(tmp_path / "root" / "f"), content="x")
        assert error.reason == "changed"
    assert (tmp_path / "away").read_text() == "safe"


async def test_a_file_that_is_too_large_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(2**40)
    (tmp_path / "fits").write_text("x" * KiB)
    (tmp_path / "one more").write_text("x" * (KiB + 1))
    async with workspace_in(tmp_path, limits=Limits(file_bytes=KiB)) as workspace:
        assert len(await read(workspace, tmp_path / "fits")) == KiB
        for name in ("huge", "one more"):
            error = await refused(workspace, READ, path=str(tmp_path / name), limit=1)
            assert (error.jsonrpc, error.reason) == (INVALID_PARAMS, "too_large")
            assert str(KiB) in str(error)


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs a file that tells no size")
async def test_a_file_that_tells_no_size_is_bounded_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    # The best known such files are out of reach; here they represent others.
    monkeypatch.setattr("turnwire.hosting.services.roots._PROCESSES", ())
    async with workspace_in(Path("/proc/self"), limits=Limits(file_bytes=KiB)) as workspace:
        assert (await refused(workspace, READ, path="/proc/self/maps")).reason == "too_large"


@pytest.mark.parametrize("content", [b"\xff\xfe", b"\x89PNG\r\n", "é".encode("latin-1"), b"a\0b", b"\xe2\x82"])
async def test_what_is_no_utf8_text_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f").write_bytes(content)
    async with workspace_in(tmp_path) as workspace:
        error = await refused(workspace, READ, path=str(tmp_path / "f"))
        assert (error.jsonrpc, error.reason) == (INVALID_PARAMS, "not_text")


async def test_the_loop_goes_on_while_a_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_text(TEXT)
    reading, may_go = anyio.Event(), threading.Event()
    real = os.fstat

    def held_up(fd: int) -> os.stat_result:
        if threading.current_thread() is not threading.main_thread():
            anyio.from_thread.run_sync(reading.set)
            assert may_go.wait(WAIT_S)
        return real(fd)

    async with workspace_in(tmp_path) as workspace:
        await workspace.open()
        monkeypatch.setattr(os, "fstat", held_up)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, workspace, tmp_path / "f")
            with anyio.fail_after(WAIT_S):
                await reading.wait()
            may_go.set()


async def test_an_answer_holds_nothing_but_what_acp_says(tmp_path: Path) -> None:
    (tmp_path / "f").write_text(TEXT)
    async with workspace_in(tmp_path) as workspace:
        assert await ask(workspace, READ, path=str(tmp_path / "f")) == {"content": TEXT}
        assert await ask(workspace, WRITE, path=str(tmp_path / "g"), content="") == {}
    assert (tmp_path / "g").read_bytes() == b""
