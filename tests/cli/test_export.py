"""The files that `turnwire export -o` writes, and those it does not touch."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path

import pytest
from tests.cli.rig import WAIT_S, Served

from turnwire.cli.export import whole_file


@pytest.fixture(scope="module")
def session(daemon: Served) -> str:
    made = daemon.session()
    assert daemon.run("prompt", "-s", made, "say 2 hi").code == 0
    return made


def is_whole(content: str) -> bool:
    *_, end, last = map(json.loads, content.splitlines())
    return end["type"] == "turn_complete" and "sha256" in last


def test_a_part_file_of_the_users_is_left_alone(daemon: Served, session: str, tmp_path: Path) -> None:
    own = tmp_path / "out.part"
    own.write_text("mine")

    assert daemon.run("export", session, "-o", str(tmp_path / "out")).code == 0
    assert daemon.run("export", "nowhere", "-o", str(tmp_path / "out")).code == 66
    assert own.read_text() == "mine"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out", "out.part"]


def test_a_link_stays_and_what_it_leads_to_is_written(daemon: Served, session: str, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "real", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o644)
    link.symlink_to(target)
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "there" / "new")

    for path in (link, dangling):
        assert daemon.run("export", session, "-o", str(path)).code == 0
        assert path.is_symlink()
        assert is_whole(path.read_text())
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_a_pipe_is_written_to_and_stays_a_pipe(daemon: Served, session: str, tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()

    assert daemon.run("export", session, "-o", str(pipe)).code == 0
    assert pipe.is_fifo()
    reader.join(WAIT_S)
    assert is_whole(read[0])


def test_a_dash_is_stdout(daemon: Served, session: str) -> None:
    shown = daemon.run("export", session, "-o", "-")

    assert is_whole(shown.out)
    assert not (daemon.home / "-").exists()


def test_a_new_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with whole_file(str(tmp_path / "new")) as file:
            assert [stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()] == [0o600]
            file.write(b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600


def test_what_fails_names_the_users_path_and_keeps_the_old_file(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text("kept")
    with pytest.raises(OSError, match="No space") as failed, whole_file(str(old)):
        raise OSError(28, "No space left on device")

    assert failed.value.filename == str(old)
    assert [each.name for each in tmp_path.iterdir()] == ["old"]
    assert old.read_text() == "kept"
    with pytest.raises(OSError, match="no/x") as failed, whole_file(str(tmp_path / "no/x")):
        pass
    assert failed.value.filename == str(tmp_path / "no/x")
