"""The daemons that are measured: turnwire and `qwen serve`.

A daemon is started as its users start it, on a free port in an empty folder. Options that differ from the defaults
only lift limits that would reject the measurement.
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

from bench.client import HOST, ROOT, WAIT_S, request

PROGRAMS = Path(__file__).parent / "peers"
AGENT = PROGRAMS / "daemon_agent.py"
QWEN = ROOT / ".peers" / "qwen-serve"
TOKEN = "the-owner-of-what-is-measured"
STOP_S = 20.0
POLL_S = 0.002


class Target(NamedTuple):
    """A measured daemon."""

    name: str
    serve: Callable[[int, Path], list[str]]
    """Its command, by port and folder."""
    needs: Path | None = None
    source: Path = ROOT / "src"
    """The code of turnwire that is run."""
    is_ours: bool = False
    stream_query: str = ""
    most_subscribers: int = 1_000_000

    @property
    def missing(self) -> str | None:
        """Return the reason why it cannot run here, or `None`."""
        if self.needs is not None and not self.needs.exists():
            return f"{self.name}: skipped; to install it, run: bench/peers/install_qwen_serve.sh"
        return None


class Running(NamedTuple):
    """A running server."""

    target: Target
    port: int
    pid: int
    headers: dict[str, str]
    cwd: str
    healthy_s: float
    """From its start to its first answer."""

    def get(self, path: str) -> bytes:
        return request("GET", path, self.headers)

    def create(self) -> bytes:
        return request("POST", "/session", self.headers, {"cwd": self.cwd, "sessionScope": "thread"})

    def prompt(self, session_id: str, text: str) -> bytes:
        body: dict[str, Any] = {"prompt": [{"type": "text", "text": text}]}
        return request("POST", f"/session/{session_id}/prompt", self.headers, body)

    def events(self, session_id: str) -> bytes:
        return self.get(f"/session/{session_id}/events{self.target.stream_query}")

    def cpu_s(self) -> float:
        """CPU time of the server's process and its threads, without its children."""
        threads = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((each / "schedstat").read_text().split()[0]) for each in threads) / 1e9

    def rss_kb(self) -> int:
        """Resident memory of the server's process."""
        return int(Path(f"/proc/{self.pid}/status").read_text().split("VmRSS:")[1].split()[0])


def _turnwire(port: int, folder: Path) -> list[str]:
    # One client sends as many requests here as hundreds would.
    options = ["--json", "--port", str(port), "--cwd", str(folder), "--limit", "request_rate=1000000"]
    options += ["--token", TOKEN, "--data", str(folder / "state")]
    return [sys.executable, "-m", "turnwire", "serve", *options, "--", sys.executable, str(AGENT)]


def _qwen(port: int, folder: Path) -> list[str]:
    program = [str(QWEN / "node_modules/node/bin/node"), str(QWEN / "node_modules/@qwen-code/qwen-code/cli.js")]
    limits = ["--max-sessions", "0", "--max-connections", "0", "--max-pending-prompts-per-session", "0"]
    return [*program, "serve", "--port", str(port), "--workspace", str(folder), *limits]


def _qwen_without_page(port: int, folder: Path) -> list[str]:
    return [*_qwen(port, folder), "--no-web"]


TURNWIRE = Target("turnwire", _turnwire, is_ours=True)
QWEN_SERVE = Target(
    "qwen serve 0.24.4",
    _qwen_without_page,
    needs=QWEN / ".installed",
    stream_query="?maxQueued=2048",
    most_subscribers=64,
)
QWEN_PAGE = QWEN_SERVE._replace(serve=_qwen)


@contextmanager
def empty_folder() -> Generator[Path]:
    """Create a temporary folder. Files that a daemon still uses there are ignored."""
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running(target: Target, folder: Path | None = None) -> Generator[Running]:
    """Run a daemon, in an empty folder or in one with the data of an earlier run."""
    if folder is None:
        with empty_folder() as empty, running(target, empty) as daemon:
            yield daemon
        return
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": str(target.source),
        "QWEN_CLI_ENTRY": str(PROGRAMS / "qwen_entry.mjs"),
        "QWEN_USAGE_STATISTICS_ENABLED": "false",
        "BENCH_PYTHON": sys.executable,
        "BENCH_AGENT": str(AGENT),
    }
    begun = time.perf_counter()
    with (folder / "stderr").open("wb") as stderr, (folder / "stdout").open("wb") as stdout:
        process = subprocess.Popen(
            target.serve(port, folder),
            cwd=folder,
            env=environment,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    try:
        headers = {"Host": f"{HOST}:{port}"}
        _await_health(process, port, folder / "stderr")
        healthy_s = time.perf_counter() - begun
        credential = {"Authorization": f"Bearer {TOKEN}"} if target.is_ours else {}
        yield Running(target, port, process.pid, headers | credential, str(folder), healthy_s)
    finally:
        _stop(process)


def _await_health(process: subprocess.Popen[bytes], port: int, stderr: Path) -> None:
    asked = request("GET", "/health", {"Host": f"{HOST}:{port}", "Connection": "close"})
    deadline = time.perf_counter() + WAIT_S
    while time.perf_counter() < deadline:
        try:
            with socket.create_connection((HOST, port), timeout=WAIT_S) as connection:
                connection.sendall(asked)
                if connection.recv(64).startswith(b"HTTP/1.1 200"):
                    return
        except OSError:
            pass
        if _ends_within(process, POLL_S):
            raise RuntimeError(f"{process.args} ended with {process.returncode}: {stderr.read_text()[-2000:]}")
    raise TimeoutError(f"{process.args} did not answer within {WAIT_S:g} s: {stderr.read_text()[-2000:]}")


def _ends_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        if not _ends_within(process, STOP_S):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
