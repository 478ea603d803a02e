"""An agent writes text files of its session, each whole or not at all, and nothing else."""

from __future__ import annotations

import os
import shutil
import stat
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.unit.hosting.services.asking import refused, workspace_in, write

from turnwire.errors import RequestRefused
from turnwire.limits import KiB, Limits
from turnwire.wire.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

READ, WRITE = "fs/read_text_file", "fs/write_text_file"


def contents(directory: Path) -> dict[str, str]:
    return {each.name: each.read_text() for each in directory.iterdir()}


async def test_a_file_is_created_with_the_directories_above_it(tmp_path: Path) -> None:
    async with workspace_in(tmp_path) as workspace:
        await write(workspace, tmp_path / "x" / "y" / "f", "aß€\r\n")
    assert (tmp_path / "x" / "y" / "f").read_bytes() == "aß€\r\n".encode()
    umask = os.umask(0o022)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "x" / "y" / "f").stat().st_mode) == 0o666 & ~umask


async def test_a_file_is_replaced_as_a_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old and longer")
    (tmp_path / "f").chmod(0o755)
    with (tmp_path / "f").open() as held:
        async with workspace_in(tmp_path) as workspace:
            await write(workspace, tmp_path / "f", "new")
        assert held.read() == "old and longer"
    assert (tmp_path / "f").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o755
    assert os.listdir(tmp_path) == ["f"]


async def test_the_bits_that_run_a_program_as_its_owner_are_not_kept(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    (tmp_path / "f").chmod(0o4755)
    async with workspace_in(tmp_path) as workspace:
        await write(workspace, tmp_path / "f", "new")
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
async def test_a_file_keeps_its_owner_where_that_is_possible(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    os.chown(tmp_path / "f", 12345, 54321)
    async with workspace_in(tmp_path) as workspace:
        await write(workspace, tmp_path / "f", "new")
    found = (tmp_path / "f").stat()
    assert (found.st_uid, found.st_gid) == (12345, 54321)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
async def test_another_group_gets_nothing_of_what_the_old_one_could_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_text("old")
    os.chown(tmp_path / "f", 0, 54321)
    (tmp_path / "f").chmod(0o660)

    def not_ours(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "fchown", not_ours)
    async with workspace_in(tmp_path) as workspace:
        await write(workspace, tmp_path / "f", "new")
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
async def test_a_file_that_may_not_be_written_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    (tmp_path / "f").chmod(0o444)
    async with workspace_in(tmp_path) as workspace:
        assert (await refused(workspace, WRITE, path=str(tmp_path / "f"), content="x")).reason == "not_permitted"
    assert (tmp_path / "f").read_text() == "old"


async def test_a_link_that_stays_inside_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    async with workspace_in(tmp_path) as workspace:
        await write(workspace, tmp_path / "link", "first")
        await write(workspace, tmp_path / "link", "second")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "second"


@pytest.mark.parametrize("target", ["../away/f", "../away/new", "/etc/turnwire-test"])
async def test_a_link_that_leads_outside_is_not_written_through(tmp_path: Path, target: str) -> None:
    root, away = tmp_path / "root", tmp_path / "away"
    root.mkdir()
    away.mkdir()
    (away / "f").write_text("safe")
    (root / "link").symlink_to(target)
    async with workspace_in(root) as workspace:
        error = await refused(workspace, WRITE, path=str(root / "link"), content="x")
    assert (error.jsonrpc, error.reason) == (INVALID_PARAMS, "outside_roots")
    assert contents(away) == {"f": "safe"}


async def test_text_that_is_too_large_is_not_written(tmp_path: Path) -> None:
    async with workspace_in(tmp_path, limits=Limits(file_bytes=KiB)) as workspace:
        await write(workspace, tmp_path / "fits", "x" * KiB)
        error = await refused(workspace, WRITE, path=str(tmp_path / "f"), content="€" * KiB)
    assert error.reason == "too_large"
    assert os.listdir(tmp_path) == ["fits"]


@pytest.mark.parametrize(
    ("call", "number", "code", "reason"),
    [("rename", 28, INTERNAL_ERROR, "disk_full"), ("fchmod", 5, INTERNAL_ERROR, "io_error")],
)
async def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, code: int, reason: str
) -> None:
    (tmp_path / "f").write_text("old")

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, "foreign words")

    async with workspace_in(tmp_path) as workspace:
        monkeypatch.setattr(os, call, fail)
        error = await refused(workspace, WRITE, path=str(tmp_path / "f"), content="new")
    assert (error.jsonrpc, error.reason) == (code, reason)
    assert "foreign" not in str(error)
    assert contents(tmp_path) == {"f": "old"}


async def test_a_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    async with workspace_in(tmp_path) as workspace:
        for method in (READ, WRITE):
            error = await refused(workspace, method, path=str(tmp_path / ("n" * 300)), content="x")
            assert (error.jsonrpc, error.reason) == (INVALID_PARAMS, "name_too_long")
        await write(workspace, tmp_path / ("n" * 255), "fits")


async def test_a_leftover_of_a_killed_daemon_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []
    real = os.rename

    def watched(source: str, *args: Any, **options: Any) -> None:
        used.append(source)
        real(source, *args, **options)

    monkeypatch.setattr(os, "rename", watched)
    async with workspace_in(tmp_path) as workspace:
        await write(workspace, tmp_path / "f", "one")
        stem, _, number = used[0].rpartition("-")
        for step in (1, 2, 3):
            (tmp_path / f"{stem}-{int(number) + step}").touch()
        await write(workspace, tmp_path / "f", "two")
    assert used[1] == f"{stem}-{int(number) + 4}"
    assert (tmp_path / "f").read_text() == "two"


async def test_writers_at_the_same_time_leave_one_whole_text(tmp_path: Path) -> None:
    texts = [str(number) * 20_000 for number in range(8)]
    async with workspace_in(tmp_path) as workspace, anyio.create_task_group() as tasks:
        for text in texts:
            tasks.start_soon(write, workspace, tmp_path / "deep" / "f", text)
    assert (tmp_path / "deep" / "f").read_text() in texts
    assert os.listdir(tmp_path / "deep") == ["f"]


async def test_a_cancelled_write_has_written_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cancelled while its thread is directly before the last step."""
    loop_may_cancel, thread_may_go = anyio.Event(), threading.Event()
    real = os.rename

    def held_up(*args: Any, **options: Any) -> None:
        anyio.from_thread.run_sync(loop_may_cancel.set)
        assert thread_may_go.wait(WAIT_S)
        real(*args, **options)

    monkeypatch.setattr(os, "rename", held_up)
    async with workspace_in(tmp_path) as workspace, anyio.create_task_group() as tasks:
        tasks.start_soon(write, workspace, tmp_path / "f", "whole")
        with anyio.fail_after(WAIT_S):
            await loop_may_cancel.wait()
        tasks.cancel_scope.cancel()
        thread_may_go.set()
    assert contents(tmp_path) == {"f": "whole"}


async def test_flipping_a_component_for_ever_lets_no_write_out(tmp_path: Path) -> None:
    root, away = tmp_path / "root", tmp_path / "away"
    (root / "a").mkdir(parents=True)
    away.mkdir()
    over = threading.Event()

    def flip() -> None:
        while not over.is_set():
            # A write may recreate the directory at any moment, so any step may fail; the next round fixes it.
            with suppress(OSError):
                (root / "a").rename(root / "put-away")
                (root / "a").symlink_to("../away")
                (root / "a").unlink()
            shutil.rmtree(root / "a" if (root / "put-away").exists() else root / "none", ignore_errors=True)
            with suppress(OSError):
                (root / "put-away").rename(root / "a")

    flipping = threading.Thread(target=flip)
    async with workspace_in(root) as workspace:
        await workspace.open()
        flipping.start()
        try:
            for number in range(300):
                with suppress(RequestRefused):
                    await write(workspace, root / "a" / "f", str(number))
        finally:
            over.set()
            flipping.join(timeout=WAIT_S)
    assert os.listdir(away) == []
