"""`turnwire restart`: the program is replaced, and the turns of its agents continue."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest
from tests.cli.rig import WAIT_S, is_there, run, served
from tests.cli.test_daemon_stop import open_gate


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


@pytest.mark.guarantee("G15", "G14")
def test_turns_and_queued_prompts_continue_over_a_restart_and_end_with_a_stop(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with served(tmp_path, "--port", free_port(), TURNWIRE_LIMITS_HOLD_S="60") as daemon:
        session = daemon.session()
        running = daemon.prompt(session, f"say 1 begun\ngate {gate}\nsay 1 done")
        waiting = daemon.prompt(session, "say 1 later")
        daemon.until(session, "session_update")
        agent = daemon.ask("GET", f"/session/{session}/explain")["agent"]["pid"]
        for _ in range(2):
            done = daemon.run("restart")
            assert (done.code, done.out) == (0, f"restarted: {daemon.url}\n"), done.err
            assert is_there(agent)
        assert daemon.ask("GET", f"/session/{session}/explain")["agent"]["pid"] == agent
        open_gate(gate)
        assert daemon.ended(session, running)["stopReason"] == "end_turn"
        assert daemon.ended(session, waiting)["stopReason"] == "end_turn"
        assert daemon.turn(session, running)["resultText"] == "begundone"
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(WAIT_S) == 0
        assert not is_there(agent)


def test_a_command_that_waits_for_a_turn_waits_over_a_restart(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with served(tmp_path, "--port", free_port(), TURNWIRE_LIMITS_HOLD_S="60") as daemon:
        session = daemon.session()
        with daemon.begun("prompt", "-s", session, f"say 1 begun\ngate {gate}\nsay 1 done") as process:
            daemon.until(session, "session_update")
            assert daemon.run("restart").code == 0
            open_gate(gate)
            out, _ = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0
        assert "done" in out


def test_a_restart_needs_a_daemon_of_this_machine(tmp_path: Path) -> None:
    done = run("restart", home=tmp_path)
    assert done.code != 0
    assert "turnwire serve" in done.err
