"""The daemons that are measured, as processes: turnwire, a bare writer as the limit, and `qwen serve` where it is.

Takes a free port and an empty folder for each start; gives a `Running` that answers requests, and ends it with all
its processes. Each is started as its users start it; what differs from the defaults is in the commands below, and
only lifts limits that would refuse the measurement.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench.daemon_http import HOST, WAIT_S, request

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = Path(__file__).parent / "peers"
AGENT = PROGRAMS / "daemon_agent.py"
QWEN = ROOT / ".peers" / "qwen-serve"
TOKEN = "the-owner-of-what-is-measured"
STOP_S = 20.0
POLL_S = 0.002


class Target(NamedTuple):
    """One daemon."""

    name: str
    command: Callable[[int, Path], list[str]]
    source: Path = ROOT / "src"
    """Where turnwire's own code is taken from: another revision's, to compare with it."""
    is_ours: bool = False
    """It takes our token, and says on stdout when it serves."""
    needs: Path | None = None
    stream_query: str = ""
    most_subscribers: int = 1_000_000

    @property
    def missing(self) -> str | None:
        """Why it cannot run here."""
        if self.needs is not None and not self.needs.exists():
            return "skipped; to have it here, run: bench/peers/install_qwen_serve.sh"
        return None


def cpu_s(pid: int) -> float:
    """What a process has used of the processors, with all threads that it has and without its children."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text().split()[0]) for each in threads) / 1e9


class Running(NamedTuple):
    """A daemon that answers."""

    target: Target
    port: int
    pid: int
    headers: dict[str, str]
    cwd: str
    healthy_s: float
    """From its start until it answered."""

    def get(self, path: str) -> bytes:
        return request("GET", path, self.headers)

    def post(self, path: str, body: Any) -> bytes:
        return request("POST", path, self.headers, body)

    def create(self) -> bytes:
        return self.post("/session", {"cwd": self.cwd, "sessionScope": "thread"})

    def prompt(self, session_id: str, text: str) -> bytes:
        return self.post(f"/session/{session_id}/prompt", {"prompt": [{"type": "text", "text": text}]})

    def events(self, session_id: str) -> bytes:
        return self.get(f"/session/{session_id}/events{self.target.stream_query}")

    def cpu_s(self) -> float:
        """What the daemon's own process has used of the processors, all its threads."""
        return cpu_s(self.pid)

    def rss_kb(self) -> int:
        """The resident memory of the daemon's own process."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])


def _turnwire(port: int, folder: Path) -> list[str]:
    return serve_command(port, folder, "--data", str(folder / "state"))


def _in_memory(port: int, folder: Path) -> list[str]:
    return serve_command(port, folder, "--log", "memory")


def serve_command(port: int, folder: Path, *log: str) -> list[str]:
    """`turnwire serve` as it is measured, with its log where `log` says."""
    # One client asks here as fast as hundreds would.
    options = ["--json", "--port", str(port), "--cwd", str(folder), "--limit", "request_rate=1000000"]
    options += ["--token", TOKEN]
    return [sys.executable, "-m", "turnwire", "serve", *options, *log, "--", sys.executable, str(AGENT)]


def _qwen(port: int, folder: Path, *web: str) -> list[str]:
    program = [str(QWEN / "node_modules/node/bin/node"), str(QWEN / "node_modules/@qwen-code/qwen-code/cli.js")]
    limits = ["--max-sessions", "0", "--max-connections", "0", "--max-pending-prompts-per-session", "0"]
    return [*program, "serve", "--port", str(port), "--workspace", str(folder), *web, *limits]


def _qwen_without_page(port: int, folder: Path) -> list[str]:
    return _qwen(port, folder, "--no-web")


def _bare(port: int, folder: Path) -> list[str]:
    return [sys.executable, str(PROGRAMS / "bare_sse.py"), str(port)]


TURNWIRE = Target("turnwire", _turnwire, is_ours=True)
IN_MEMORY = Target("with --log memory", _in_memory, is_ours=True)
BARE = Target("bare", _bare)
QWEN_SERVE = Target(
    "qwen serve 0.24.4",
    _qwen_without_page,
    needs=QWEN / ".installed",
    stream_query="?maxQueued=2048",
    most_subscribers=64,
)
QWEN_PAGE = QWEN_SERVE._replace(command=_qwen)


def free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        return listener.getsockname()[1]


def _environment(folder: Path, source: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": str(source),
        "QWEN_CLI_ENTRY": str(PROGRAMS / "qwen_entry.mjs"),
        "QWEN_USAGE_STATISTICS_ENABLED": "false",
        "BENCH_PYTHON": sys.executable,
        "BENCH_AGENT": str(AGENT),
    }


@contextmanager
def empty_folder() -> Generator[Path]:
    """What a daemon needs, gone after it."""
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running(target: Target) -> Generator[Running]:
    """A daemon of its own in a folder of its own, until the end of the block."""
    with empty_folder() as folder, running_in(folder, target) as daemon:
        yield daemon


@contextmanager
def running_in(folder: Path, target: Target) -> Generator[Running]:
    """A daemon in a folder that may have the data of one before it, until the end of the block."""
    port = free_port()
    begun = time.perf_counter()
    with (folder / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            target.command(port, folder),
            cwd=folder,
            env=_environment(folder, target.source),
            stdout=subprocess.PIPE if target.is_ours else subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
    try:
        headers = {"Host": f"{HOST}:{port}"}
        _await_health(
            process, port, request("GET", "/health", {**headers, "Connection": "close"}), folder / "stderr"
        )
        healthy_s = time.perf_counter() - begun
        yield Running(target, port, process.pid, headers | _credential(process), str(folder), healthy_s)
    finally:
        _stop(process)


def _credential(process: subprocess.Popen[bytes]) -> dict[str, str]:
    if process.stdout is None:
        return {}
    process.stdout.readline()
    return {"Authorization": f"Bearer {TOKEN}"}


def _await_health(process: subprocess.Popen[bytes], port: int, asked: bytes, stderr: Path) -> None:
    deadline = time.perf_counter() + WAIT_S
    while time.perf_counter() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args} ended with {process.returncode}: {stderr.read_text()[-2000:]}")
        try:
            with socket.create_connection((HOST, port), timeout=WAIT_S) as connection:
                connection.sendall(asked)
                if connection.recv(64).startswith(b"HTTP/1.1 200"):
                    return
        except OSError:
            pass
        # Also notices at once when the process is gone.
        with_timeout(process, POLL_S)
    raise TimeoutError(f"{process.args} did not answer within {WAIT_S:g} s: {stderr.read_text()[-2000:]}")


def with_timeout(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for the end of a process; false if it goes on."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        if not with_timeout(process, STOP_S):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.stdout is not None:
        process.stdout.close()
