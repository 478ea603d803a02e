"""A mode that a user chose holds for the session, even when the process of its agent is replaced."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cli.editor import editor
from tests.cli.rig import Served, served

PROGRAM = (sys.executable, str(Path(__file__).with_name("mode_agent.py")))


class Safe:
    """A daemon with that agent, and a session in which a user has chosen the safe mode."""

    def __init__(self, daemon: Served, heard: Path, session: str) -> None:
        self.daemon = daemon
        self.session = session
        self._heard = heard

    def said(self, text: str = "go") -> str:
        """Return the agent's answer to a prompt: its current mode and option."""
        return self.daemon.run("prompt", "-s", self.session, text).out.strip()

    def heard(self) -> list[str]:
        """Return the requests to the agent since the last call."""
        lines = self._heard.read_text().split() if self._heard.exists() else []
        self._heard.unlink(missing_ok=True)
        return lines

    def choose(self, **choice: str) -> None:
        path = f"/session/{self.session}"
        if "mode" in choice:
            self.daemon.ask("POST", f"{path}/mode", {"modeId": choice["mode"]})
        else:
            self.daemon.ask("POST", f"{path}/config", {"configId": "effort", "value": choice["effort"]})

    def events(self) -> list[dict[str, Any]]:
        return self.daemon.ask("GET", f"/session/{self.session}/log")["events"]


@contextmanager
def safe(home: Path, session: str | None = None) -> Generator[Safe]:
    heard = home / "heard"
    with served(home, "--", *PROGRAM, str(heard)) as daemon:
        found = Safe(daemon, heard, session or daemon.session())
        if session is None:
            found.choose(mode="read-only")
            found.choose(effort="high")
            assert found.said() == "read-only high"
            found.heard()
        yield found


REOPENED = ["initialize", "session/resume", "session/set_config_option", "session/set_mode", "session/prompt"]


def test_an_agent_that_died_is_told_the_choices_before_the_next_prompt(tmp_path: Path) -> None:
    with safe(tmp_path) as place:
        for _ in range(2):
            place.said("die")
            place.heard()
            assert place.said() == "read-only high"
            assert place.heard() == REOPENED


def test_a_killed_daemon_changes_nothing_about_it(tmp_path: Path) -> None:
    with safe(tmp_path) as place:
        session = place.session
        place.daemon.process.kill()
        place.daemon.process.wait()
    place.heard()
    with safe(tmp_path, session) as again:
        assert again.said() == "read-only high"
        assert again.heard() == REOPENED


def test_the_newest_choice_counts(tmp_path: Path) -> None:
    with safe(tmp_path) as place:
        place.choose(mode="auto")
        place.said("die")
        assert place.said() == "auto high"


@pytest.mark.parametrize(("flag", "lost"), [("refuse", "mode"), ("deaf", "effort")])
def test_an_agent_that_does_not_take_them_holds_the_queue_until_a_user_chooses(
    tmp_path: Path, flag: str, lost: str
) -> None:
    with safe(tmp_path) as place:
        place.said("die")
        (tmp_path / flag).touch()
        refused = place.daemon.run("prompt", "-s", place.session, "go")
        assert refused.code != 0
        assert "choices_lost" in refused.err
        assert lost in refused.err
        assert REOPENED[-1] not in place.heard()[-3:], "nothing was asked"
        waiting = place.daemon.prompt(place.session, "go")
        assert place.daemon.turn(place.session, waiting)["state"] == "queued"
        (tmp_path / flag).unlink()
        place.choose(mode="read-only")
        place.choose(effort="high")
        assert place.said() == "read-only high"
        assert place.daemon.turn(place.session, waiting)["stopReason"] == "end_turn"


def test_a_user_may_let_the_queue_go_on_as_it_is(tmp_path: Path) -> None:
    with safe(tmp_path) as place:
        place.said("die")
        (tmp_path / "refuse").touch()
        place.said()
        (tmp_path / "refuse").unlink()
        place.daemon.ask("PATCH", f"/session/{place.session}/queue", {"held": False})
        assert place.said() == "auto low"


def test_an_editor_hears_it_as_the_error_of_its_prompt(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    with editor(tmp_path, "--", *PROGRAM, str(heard)) as started:
        session = started.open(tmp_path)
        started.ask("session/set_mode", {"sessionId": session, "modeId": "read-only"})
        started.answer(started.prompt(session, "die"))
        (tmp_path / "refuse").touch()
        error = started.answer(started.prompt(session, "go"))["error"]
        assert "read-only" in error["message"]
        (tmp_path / "refuse").unlink()
        started.ask("session/set_mode", {"sessionId": session, "modeId": "read-only"})
        assert started.ended(started.prompt(session, "go")) == "end_turn"
        assert started.text() == "read-only low"
