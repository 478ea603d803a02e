"""`turnwire record` and `turnwire replay` as a user runs them: pipes, files, signals, a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import stat
import subprocess
import sys
import termios
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from tests.cli.rig import PROGRAM, SCRIPTED, WAIT_S, Served, environment, run

from turnwire.ids import Epoch, SessionId
from turnwire.limits import Limits
from turnwire.server.telemetry.redaction import Redactor
from turnwire.session.stored_file import Head, StoredFile
from turnwire_testing.recording.proxy import Recorder

ASKED = b'{"jsonrpc":"2.0", "id":1 ,"method":"x","params":{"key":"opensesame","at":"/home/ann"}}'


def recorded(
    home: Path, *flags: str, agent: Sequence[str], said: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Run the proxy to its end. The agent's environment has a secret."""
    return subprocess.run(
        [*PROGRAM, "record", *flags, "--", *agent],
        cwd=home,
        env=environment(home, MODEL_KEY="opensesame"),
        input=said,
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded turn."""
    home = tmp_path_factory.mktemp("home")
    shown = run("prompt", "say 2 hi", "--", *PROGRAM, "record", "-o", "turn.jsonl", "--", *SCRIPTED, home=home)
    assert (shown.code, shown.out) == (0, "hihi\n")
    return home / "turn.jsonl"


def test_bytes_pass_untouched_and_only_the_file_is_redacted(tmp_path: Path) -> None:
    agent = ("sh", "-c", "printf 'warming up\\r\\n\\n'; cat; printf 'no end'; exit 3")
    for flags, secret, home in (
        ((), "***", "/home/user"),
        (("--redact", "home"), "opensesame", "/home/user"),
        (("--no-redact",), "opensesame", "/home/ann"),
    ):
        done = recorded(tmp_path, "-o", "out.jsonl", *flags, agent=agent, said=ASKED + b"\n")

        assert done.stdout == b"warming up\r\n\n" + ASKED + b"\nno end"
        assert done.returncode == 3
        written = tmp_path / done.stderr.decode().split()[-1]
        shown = lines(written)
        assert [each.get("text") for each in shown if each.get("from") == "agent"] == [
            "warming up",
            None,
            "no end",
            None,
        ]
        assert [each["frame"]["params"] for each in shown if "frame" in each] == [{"key": secret, "at": home}] * 2
        assert {"closed": True}.items() <= next(each for each in shown if "closed" in each).items()
        assert shown[-1]["exit"] == 3
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out-2.jsonl", "out-3.jsonl", "out.jsonl"]


@pytest.mark.full("starts several commands")
def test_each_start_has_a_file_of_its_own_in_a_folder(tmp_path: Path) -> None:
    for _ in range(2):
        assert recorded(tmp_path, agent=("true",)).returncode == 0
    names = [each.name for each in tmp_path.iterdir()]
    assert len(names) == 2
    assert all(each.startswith("true-") and each.endswith(".jsonl") for each in names)
    assert {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()} == {0o600}


class Full(BytesIO):
    """A disk with room for two lines."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 2

    def write(self, line: Any) -> int:
        if not self.left:
            raise OSError(28, "No space left on device")
        self.left -= 1
        return super().write(line)


def test_a_full_disk_ends_the_recording_and_not_the_conversation() -> None:
    recorder = Recorder(Full(), Redactor((), {}), lambda: 0.0, Limits())

    for _ in range(3):
        recorder.took("agent", b"{}\n")
    recorder.ended(0)

    assert (recorder.count, recorder.failure) == (1, "No space left on device")


@pytest.mark.full("starts several commands")
def test_a_signal_reaches_the_agent_and_its_exit_code_the_client(tmp_path: Path) -> None:
    catches = (
        "import signal, sys; signal.signal(15, lambda *_: sys.exit(5)); print('up', flush=True); signal.pause()"
    )
    process = subprocess.Popen(
        [*PROGRAM, "record", "-o", "out.jsonl", "--", sys.executable, "-c", catches],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.terminate()
        assert process.wait(WAIT_S) == 5
    assert lines(tmp_path / "out.jsonl")[-1]["exit"] == 5


@pytest.mark.full("starts several commands")
def test_an_agent_that_was_killed_is_told_as_a_shell_does(tmp_path: Path) -> None:
    done = recorded(tmp_path, "-o", "out.jsonl", agent=("sh", "-c", "kill -9 $$"))

    assert done.returncode == 128 + signal.SIGKILL
    assert lines(tmp_path / "out.jsonl")[-1]["exit"] == -signal.SIGKILL


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("record",), 2, "behind `--`"),
        (("record", "--redact", "env", "--no-redact", "--", "true"), 2, "exclude each other"),
        (("record", "--", "no-such-program"), 69, "no-such-program"),
        (("replay", "own.txt"), 65, "does not begin as a recording"),
        (("replay", "own.stored"), 65, "line 2 of own.stored cannot be read as an event"),
        (("replay", "own.txt", "--timing", "fast"), 2, "none, original, x2"),
        (("replay", "own.txt", "--timing", "x0"), 2, "none, original, x2"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_would(
    words: tuple[str, ...], code: int, says: str, tmp_path: Path
) -> None:
    (tmp_path / "own.txt").write_text("mine\n")
    head = StoredFile(Head(session_id=SessionId("s"), epoch=Epoch("e"), first=1)).head
    (tmp_path / "own.stored").write_bytes(head + b"{}\n")
    shown = run(*words, home=tmp_path)

    assert (shown.code, shown.out) == (code, "")
    assert says in shown.err


@pytest.mark.full("starts several commands")
def test_an_agent_that_cannot_be_started_leaves_no_file(tmp_path: Path) -> None:
    assert recorded(tmp_path, "-o", "out.jsonl", agent=("/no/such",)).returncode == 69
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_recorded_is_told_to_the_client_and_on_stderr(file: Path) -> None:
    shown = run("prompt", "say 3 hi", "--", *PROGRAM, "replay", str(file), home=file.parent)

    assert shown.code != 0
    assert "frame 5 (client: session/prompt 'say 2 hi')" in shown.err


GREETING = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}


@pytest.mark.full("starts several commands")
def test_without_a_terminal_it_ends_at_a_break_when_its_client_leaves(file: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, "replay", str(file), "--break-at", "3"],
        env=environment(file.parent),
        input=json.dumps(GREETING).encode() + b"\n",
        capture_output=True,
        timeout=WAIT_S,
        check=False,
        start_new_session=True,
    )
    assert (done.returncode, [json.loads(each)["id"] for each in done.stdout.splitlines()]) == (3, [1])
    assert b"stopped before frame 3 (client: session/new); to go on: kill -USR1 " in done.stderr
    assert b"the client left while it was stopped" in done.stderr


@pytest.mark.full("starts several commands")
def test_under_a_client_it_waits_at_a_break_until_it_is_told_to_go_on(file: Path) -> None:
    player = (*PROGRAM, "replay", str(file), "--break-at", "agent_message_chunk")
    process = subprocess.Popen(
        [*PROGRAM, "prompt", "say 2 hi", "--", *player],
        cwd=file.parent,
        env=environment(file.parent),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        told = process.stderr.readline()
        assert "(agent: session/update agent_message_chunk); to go on: kill -USR1 " in told
        os.kill(int(told.split()[-1]), signal.SIGUSR1)
        assert process.stdout.read() == "hihi\n"
        assert process.wait(WAIT_S) == 0


@pytest.mark.full("starts several commands")
@pytest.mark.parametrize(
    ("wanted", "code", "says"),
    [
        ("tool_call", 2, "no frame is 'tool_call'; there are 1 to "),
        ("session/prompt", 0, "--break-at session/prompt was never reached"),
    ],
)
def test_a_break_that_never_comes_is_told(wanted: str, code: int, says: str, file: Path) -> None:
    shown = run("replay", str(file), "--break-at", wanted, home=file.parent)
    assert (shown.code, says in shown.err) == (code, True), shown.err


@pytest.mark.full("starts several commands")
@pytest.mark.parametrize("way", ["key", "signal"])
def test_on_a_terminal_it_waits_where_it_breaks(way: str, file: Path) -> None:
    near, far = pty.openpty()
    process = subprocess.Popen(
        [*PROGRAM, "replay", str(file), "--break-at", "initialize"],
        cwd=file.parent,
        env=environment(file.parent),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(far,),
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(far, termios.TIOCSCTTY, 0),
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(json.dumps(GREETING).encode() + b"\n")
        process.stdin.flush()
        assert b"stopped before frame 1 (client: initialize)" in process.stderr.readline()
        if way == "key":
            os.write(near, b"\n")
        else:
            process.send_signal(signal.SIGUSR1)
        assert json.loads(process.stdout.readline())["result"]["protocolVersion"] == 1
        process.stdin.close()
        assert process.wait(WAIT_S) == 0
    os.close(near)
    os.close(far)


KEY = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"


@pytest.mark.full("starts several commands")
def test_a_recording_that_was_killed_has_its_lines_redacted_each_by_itself(tmp_path: Path) -> None:
    pieces = [
        {"method": "session/update", "params": {"sessionId": "s", "update": chunk(each)}} for each in ("ab", KEY)
    ]
    says = "\n".join(json.dumps(each) for each in pieces)
    process = subprocess.Popen(
        [*PROGRAM, "record", "-o", "out.jsonl", "--", "sh", "-c", 'echo "$1"; cat', "sh", says],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        assert [process.stdout.readline() != b"" for _ in pieces] == [True, True]
        process.kill()
    texts = [each["frame"]["params"]["update"]["content"]["text"] for each in lines(tmp_path / "out.jsonl")[1:]]
    assert texts == ["ab", "***"]


def chunk(text: str) -> dict[str, Any]:
    return {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}


def test_an_export_without_secrets_is_played(daemon: Served, tmp_path: Path) -> None:
    session, path = daemon.session(cwd=str(daemon.home)), tmp_path / "session.ndjson"
    assert daemon.run("prompt", "-s", session, "say 1 ask-ann@example.com").code == 0
    assert daemon.run("export", session, "-o", str(path), "--redact", "email").code == 0

    assert "ann@example.com" not in path.read_text()
    player = (*PROGRAM, "replay", str(path), "--timing", "x1000")
    shown = run("prompt", "say 1 user@example.org", "--", *player, home=tmp_path)
    assert (shown.code, shown.out) == (0, "user@example.org\n")


@pytest.mark.full("starts several commands")
def test_an_export_as_it_is_stored_is_played(daemon: Served, tmp_path: Path) -> None:
    session, path = daemon.session(cwd=str(daemon.home)), tmp_path / "session.ndjson"
    assert daemon.run("prompt", "-s", session, "say 1 hi").code == 0
    assert daemon.run("export", session, "-o", str(path)).code == 0

    player = (*PROGRAM, "replay", str(path), "--timing", "x1000")
    shown = run("prompt", "say 1 hi", "--", *player, home=tmp_path)
    assert (shown.code, shown.out) == (0, "hi\n")
