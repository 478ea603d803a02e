"""Stopping a daemon: gracefully at the first signal, at once at the second."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest
from tests.cli.rig import WAIT_S, Served, finish, is_there, lines_of, served


def open_gate(path: Path) -> None:
    path.write_text("")


def signalled(daemon: Served, session: str, number: int = signal.SIGTERM) -> list[str]:
    """Send a signal to a daemon that has a reader; return the reader's events.

    Returns when the stream has ended by itself, so the daemon has received the signal. A reader that is cut raises.
    """
    types = daemon.types(session)
    first = next(types)
    daemon.process.send_signal(number)
    return [first, *types]


@pytest.mark.guarantee("G3", "G7")
def test_a_turn_that_runs_may_end_and_a_prompt_that_waits_runs_after_the_restart(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with served(tmp_path) as daemon:
        session = daemon.session()
        running = daemon.prompt(session, f"gate {gate}\nsay 1 done")
        waiting = daemon.prompt(session, "say 1 later")
        daemon.until(session, "state_changed")
        assert "replay_complete" in signalled(daemon, session)
        open_gate(gate)
        assert daemon.process.wait(WAIT_S) == 0

    with served(tmp_path) as daemon:
        daemon.until(session, "pending_prompt_completed")
        ended = daemon.turn(session, running)
        assert (ended["state"], ended["stopReason"], ended["resultText"]) == ("completed", "end_turn", "done")
        queued = daemon.turn(session, waiting)
        assert (queued["state"], queued["resultText"]) == ("completed", "later")
        assert daemon.stop(signal.SIGINT) == 0


@pytest.mark.guarantee("G3")
def test_a_turn_that_does_not_end_in_time_gets_its_end_from_the_daemon(tmp_path: Path) -> None:
    with served(tmp_path, "--limit", "drain_s=0.3") as daemon:
        session = daemon.session()
        prompt = daemon.prompt(session, "never")
        daemon.until(session, "prompt_sent")
        assert daemon.stop() == 0

    with served(tmp_path) as daemon:
        ended = daemon.turn(session, prompt)
        assert (ended["state"], ended["error"]["code"]) == ("error", "daemon_stopped")


def test_nothing_new_is_taken_while_it_stops(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with served(tmp_path) as daemon:
        session = daemon.session()
        daemon.prompt(session, f"gate {gate}")
        daemon.until(session, "prompt_sent")
        signalled(daemon, session)
        shown = daemon.run("prompt", "-s", session, "one more")
        assert shown.code in (69, 75)
        open_gate(gate)
        assert daemon.process.wait(WAIT_S) == 0


@pytest.mark.guarantee("G3", "G14")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_does_not_wait_and_still_no_agent_is_left_behind(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    with served(tmp_path) as daemon:
        session = daemon.session()
        prompt = daemon.prompt(session, "never")
        daemon.until(session, "prompt_sent")
        agent = daemon.ask("GET", f"/session/{session}/explain")["agent"]["pid"]
        assert is_there(agent)
        signalled(daemon, session, number)
        daemon.process.send_signal(number)
        assert daemon.process.wait(WAIT_S) == code

    with served(tmp_path) as daemon:
        ended = daemon.turn(session, prompt)
        assert (ended["state"], ended["error"]["code"]) == ("error", "daemon_restarted")
        assert not is_there(agent)


@pytest.mark.guarantee("G7", "G9")
def test_a_command_that_waits_says_so_and_goes_on_after_the_restart(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with served(tmp_path, "--port", port) as daemon:
        session = daemon.session()
        daemon.prompt(session, f"gate {gate}")
        daemon.until(session, "prompt_sent")
        with daemon.begun("prompt", "-s", session, "say 1 later") as process:
            daemon.until(session, "pending_prompt_added")
            signalled(daemon, session)
            open_gate(gate)
            assert daemon.process.wait(WAIT_S) == 0
            assert any("the daemon is away" in line for line in lines_of(process))
            with served(tmp_path, "--port", port):
                shown = finish(process)
            assert (shown.code, shown.out.splitlines()[-1]) == (0, "later")
