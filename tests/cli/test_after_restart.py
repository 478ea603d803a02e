"""Prompts that were queued when a daemon was killed: they run by themselves, or wait until a user resumes them."""

from __future__ import annotations

from pathlib import Path

from tests.cli.rig import SCRIPTED, Served, served


def leave_waiting(home: Path) -> tuple[str, list[str]]:
    """Return a session whose daemon was killed with one running turn and two prompts queued after it."""
    with served(home, "--", *SCRIPTED) as daemon:
        session = daemon.session()
        prompts = [daemon.prompt(session, text) for text in ("say 1 x\nnever", "say 1 two", "say 1 three")]
        daemon.until(session, "prompt_sent")
        daemon.process.kill()
        daemon.process.wait()
    return session, prompts


def state(daemon: Served, session: str, prompt: str) -> str:
    return daemon.turn(session, prompt)["state"]


def test_they_run_by_themselves_unless_the_operator_says_otherwise(tmp_path: Path) -> None:
    session, prompts = leave_waiting(tmp_path)
    with served(tmp_path, "--", *SCRIPTED) as daemon:
        daemon.run("prompt", "-s", session, "say 1 four")
        assert [state(daemon, session, each) for each in prompts[1:]] == ["completed", "completed"]


def test_they_are_held_with_the_reason_until_one_call_releases_them(tmp_path: Path) -> None:
    session, (first, *waiting) = leave_waiting(tmp_path)
    with served(tmp_path, "--after-restart", "hold", "--", *SCRIPTED) as daemon:
        assert daemon.turn(session, first)["error"]["code"] == "daemon_restarted"
        queue = daemon.ask("GET", f"/session/{session}/queue")
        assert (queue["held"], queue["heldReason"]) == (True, "daemon_restarted")
        assert [each["promptId"] for each in queue["prompts"]] == waiting
        assert daemon.ask("GET", f"/session/{session}/status")["queueHeld"] == "daemon_restarted"
        explained = daemon.run("explain", session).out
        assert "the queue is held (daemon_restarted), 2 prompts wait" in explained
        later = daemon.prompt(session, "say 1 four")
        assert [state(daemon, session, each) for each in (*waiting, later)] == ["queued"] * 3
        daemon.process.kill()
        daemon.process.wait()
    with served(tmp_path, "--after-restart", "hold", "--", *SCRIPTED) as daemon:
        assert [state(daemon, session, each) for each in (*waiting, later)] == ["queued"] * 3
        daemon.run("queue", session, "release")
        daemon.run("prompt", "-s", session, "say 1 five")
        assert [state(daemon, session, each) for each in (*waiting, later)] == ["completed"] * 3
        assert "queueHeld" not in daemon.ask("GET", f"/session/{session}/status")
