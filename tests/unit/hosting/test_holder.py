"""The holder as a separate program, by a daemon that knows its published protocol only."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from turnwire.hosting.guard import control_group, remove_control_group
from turnwire.hosting.held import BOOT, HOLDER
from turnwire.hosting.process import GUARD
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at the table of processes of Linux")

ECHO = ("cat",)
FOREVER = ("sh", "-c", "trap '' TERM; echo ready; while :; do read line || sleep 0.05; done")
MiB = 1 << 20


class Daemon:
    """One connection to a holder."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(WAIT_S)
        self.socket.connect(str(path))
        self.hello: dict[str, Any] = {}
        self.notes: dict[bytes, bytes] = {}
        self.output = b""
        self.first = -1
        """Position of the first byte of output."""
        self.errors = b""
        self.status: dict[str, Any] = {}
        self.kinds: list[bytes] = []
        self.until(lambda: b"." in self.kinds)

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        self.socket.sendall(message(kind, payload))

    def round(self, input: bytes = b"", *, ack: int = 0, **notes: bytes | None) -> None:
        self.send(b"R", round_of(input, ack=ack, **notes))

    def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self.receive()

    def receive(self) -> None:
        kind, size = struct.unpack("<cI", self._read(5))
        payload = self._read(size)
        self.kinds.append(kind)
        match kind:
            case b"H":
                self.hello = json.loads(payload)
            case b"N":
                size = struct.unpack_from("<I", payload)[0]
                self.notes[payload[4 : 4 + size]] = payload[4 + size :]
            case b"O":
                position = struct.unpack_from("<Q", payload)[0]
                if self.first < 0:
                    self.first = position
                assert position == self.first + len(self.output), "output has a gap"
                self.output += payload[8:]
            case b"E":
                self.errors += payload
            case b"S":
                self.status |= json.loads(payload)
            case _:
                pass

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            chunk = self.socket.recv(size - len(found))
            if not chunk:
                raise EOFError
            found += chunk
        return found

    def close(self) -> None:
        self.socket.close()

    def leave(self) -> None:
        """Disconnect, and return when the holder knows it."""
        self.socket.shutdown(socket.SHUT_WR)
        while self.socket.recv(MiB):
            pass


def message(kind: bytes, payload: bytes = b"") -> bytes:
    return struct.pack("<cI", kind, len(payload)) + payload


def round_of(input: bytes, *, ack: int = 0, **notes: bytes | None) -> bytes:
    parts = [struct.pack("<QI", ack, len(notes))]
    for name, value in notes.items():
        parts.append(struct.pack("<II", len(name), 0xFFFF_FFFF if value is None else len(value)))
        parts += [name.encode(), value or b""]
    return b"".join([*parts, input])


class Held:
    """A holder with an agent below it, and the daemons that connect to it one after the other."""

    def __init__(self, folder: Path, command: tuple[str, ...], hold_s: float) -> None:
        self.path = folder / "a.sock"
        self._daemons: list[Daemon] = []
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.path))
            listener.listen()
            self.program = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", "-c", BOOT, str(GUARD), str(HOLDER)),
                    *(str(listener.fileno()), str(self.path), str(hold_s), str(64 * MiB), str(MiB), "/", "--"),
                    *command,
                ],
                pass_fds=(listener.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def connect(self) -> Daemon:
        daemon = Daemon(self.path)
        self._daemons.append(daemon)
        return daemon

    def end(self) -> None:
        for each in self._daemons:
            each.close()
        self.program.terminate()
        try:
            self.program.wait(WAIT_S)
        finally:
            self.program.kill()
            self.program.wait()
            remove_control_group(control_group(self.program.pid))


Hold = Callable[..., Held]


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Hold]:
    """Start holders, and end them at the end of the test."""
    started: list[Held] = []

    def start(*command: str, hold_s: float = WAIT_S) -> Held:
        held = Held(tmp_path, command, hold_s)
        started.append(held)
        return held

    yield start
    for each in started:
        each.end()


def eventually(is_so: Callable[[], bool]) -> None:
    """Wait, with a bound, for a change that another process makes in a file."""
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline
        select.select([], [], [], 0.01)


def wait_for_end(pid: int) -> None:
    """Wait until a process that is no child of ours has ended."""
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            assert select.select([handle], [], [], WAIT_S)[0], f"process {pid} still runs"
        finally:
            os.close(handle)


def test_output_is_counted_and_received_again_until_it_is_acknowledged(hold: Hold) -> None:
    """H1."""
    held = hold(*ECHO)
    first = held.connect()
    assert (first.hello["version"], first.hello["holder"], first.hello["first"]) == (1, held.program.pid, 0)
    first.round(b"one\ntwo\n")
    first.until(lambda: first.output == b"one\ntwo\n")
    second = held.connect()
    second.until(lambda: second.output == b"one\ntwo\n")
    assert second.first == 0
    second.round(b"three\n", ack=4)
    second.until(lambda: second.output.endswith(b"three\n"))
    third = held.connect()
    assert third.hello["first"] == 4
    third.until(lambda: third.output == b"two\nthree\n")
    assert third.first == 4


def test_a_round_takes_effect_as_a_whole_or_not_at_all(hold: Hold) -> None:
    """H2, H3."""
    held = hold(*ECHO)
    first = held.connect()
    first.round(b"one\n", colour=b"red", size=b"5")
    whole = message(b"R", round_of(b"two\n", colour=b"blue"))
    first.socket.sendall(whole[:-1])
    first.close()
    second = held.connect()
    assert second.notes == {b"colour": b"red", b"size": b"5"}
    second.round(b"three\n", colour=None)
    second.until(lambda: second.output.endswith(b"three\n"))
    assert second.output == b"one\nthree\n"
    assert held.connect().notes == {b"size": b"5"}


def test_what_a_dead_daemon_has_sent_is_obeyed_before_the_next_is_answered(hold: Hold) -> None:
    """H4. The holder is stopped meanwhile, so both connections wait for it at once."""
    held = hold(*ECHO)
    first = held.connect()
    held.program.send_signal(signal.SIGSTOP)
    for number in range(50):
        first.round(b"%d\n" % number, number=b"%d" % number)
    first.close()
    with socket.socket(socket.AF_UNIX) as waiting:
        waiting.connect(str(held.path))
        held.program.send_signal(signal.SIGCONT)
    last = held.connect()
    assert last.notes == {b"number": b"49"}
    last.until(lambda: last.output.endswith(b"49\n"))
    assert last.output == b"".join(b"%d\n" % number for number in range(50))


@pytest.mark.guarantee("G14")
def test_without_a_daemon_the_whole_tree_ends_after_the_holding_time(hold: Hold) -> None:
    """H5. The grandchild has its own process session, so no signal to a group reaches it."""
    held = hold("sh", "-c", "setsid sh -c 'echo $$; exec sleep 1000' & exec sleep 1000", hold_s=0.2)
    daemon = held.connect()
    daemon.until(lambda: daemon.output.endswith(b"\n"))
    agent, grandchild = daemon.status["pid"], int(daemon.output)
    daemon.close()
    assert held.program.wait(WAIT_S) == 0
    wait_for_end(agent)
    wait_for_end(grandchild)
    assert not held.path.exists()


def test_the_holding_time_begins_again_with_each_daemon(hold: Hold) -> None:
    """H5: a connected daemon is never too late."""
    held = hold(*ECHO, hold_s=1)
    held.connect().close()
    daemon = held.connect()
    daemon.until(lambda: b"W" in daemon.kinds and "pid" in daemon.status)
    assert not select.select([daemon.socket], [], [], 1.5)[0], "the holder has hung up"
    assert held.program.poll() is None


def test_a_full_spool_makes_the_agent_wait_and_loses_nothing(hold: Hold, tmp_path: Path) -> None:
    """H1. The agent appends to a file after each MiB, so the file shows where it waits."""
    progress = tmp_path / "progress"
    program = (
        "import sys\nfor n in range(24):\n"
        " sys.stdout.write('%07d\\n' % n * (1 << 17)); sys.stdout.flush()\n"
        " print(n, file=open(sys.argv[1], 'a'), flush=True)"
    )
    held = hold(sys.executable, "-c", program, str(progress))
    held.connect().close()
    eventually(lambda: progress.exists() and progress.read_text().count("\n") >= 8)
    # The spool has 8 MiB and the pipe a quarter of one; the agent cannot have written the tenth.
    assert progress.read_text().count("\n") <= 9
    daemon = held.connect()
    daemon.until(lambda: b"o" in daemon.kinds)
    assert daemon.output == b"".join(b"%07d\n" % number * (1 << 17) for number in range(24))


def test_an_agent_that_ends_in_the_gap_is_reported_to_the_next_daemon(hold: Hold, tmp_path: Path) -> None:
    """H6."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    held = hold("sh", "-c", 'read line <"$1"; echo last words; echo why >&2; exit 3', "sh", str(gate))
    held.connect().leave()
    gate.write_text("go\n")
    second = held.connect()
    second.until(lambda: {b"o", b"e"} <= {*second.kinds} and "left" in second.status)
    assert (second.output, second.errors) == (b"last words\n", b"why\n")
    assert (second.status["exit_code"], second.status["left"]) == (3, 0)
    assert held.program.poll() is None
    second.send(b"Q")
    assert held.program.wait(WAIT_S) == 0
    assert not held.path.exists()


def test_an_agent_that_cannot_be_started_is_reported(hold: Hold) -> None:
    daemon = hold("/nowhere/agent").connect()
    daemon.until(lambda: "launch_error" in daemon.status)
    assert daemon.status["at"] == "exec"


def test_the_end_of_its_input_follows_all_input(hold: Hold) -> None:
    daemon = hold(*ECHO).connect()
    daemon.round(b"x" * MiB + b"\n")
    daemon.send(b"C")
    daemon.until(lambda: "exit_code" in daemon.status and b"o" in daemon.kinds)
    assert len(daemon.output) == MiB + 1
    assert daemon.status["exit_code"] == 0


def test_an_order_to_terminate_is_a_request_and_an_order_to_kill_is_not(hold: Hold) -> None:
    daemon = hold(*FOREVER).connect()
    daemon.until(lambda: daemon.output == b"ready\n")
    daemon.send(b"T")
    daemon.send(b"K")
    daemon.until(lambda: "left" in daemon.status)
    assert (daemon.status["signal"], daemon.status["left"]) == (signal.SIGKILL, 0)


@pytest.mark.guarantee("G14")
def test_a_killed_holder_takes_its_agent_with_it(hold: Hold) -> None:
    held = hold(*FOREVER)
    daemon = held.connect()
    daemon.until(lambda: daemon.output == b"ready\n")
    held.program.kill()
    wait_for_end(daemon.status["pid"])


def test_input_that_the_agent_does_not_read_does_not_delay_orders(hold: Hold) -> None:
    daemon = hold("sleep", "1000").connect()
    daemon.round(b"x" * (8 * MiB))
    daemon.send(b"K")
    daemon.until(lambda: "left" in daemon.status)


def test_the_end_of_a_long_standard_error_is_kept_for_the_next_daemon(hold: Hold) -> None:
    held = hold(
        "sh", "-c", "read line; yes abcdefg | head -c 1000000 >&2; echo end >&2; echo done; exec sleep 1000"
    )
    first = held.connect()
    first.round(b"go\n")
    first.close()
    second = held.connect()
    second.until(lambda: second.output == b"done\n" and second.errors.endswith(b"end\n"))
    assert len(second.errors) <= 1_000_004


def test_accepted_input_is_counted(hold: Hold) -> None:
    daemon = hold(*ECHO).connect()
    daemon.round(b"x" * (2 * MiB) + b"\n")
    daemon.until(lambda: daemon.kinds.count(b"W") >= 2 and len(daemon.output) == 2 * MiB + 1)
