"""Leaving a turn with Ctrl-C, however badly the way to the daemon works."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
from tests.cli.rig import WAIT_S, Served, finish, lines_of, start
from tests.patience import SOON_S


class Between(ThreadingHTTPServer):
    """A proxy of a daemon that forwards everything but cancels, which it accepts without an answer."""

    block_on_close = False

    def __init__(self, daemon: Served) -> None:
        super().__init__(("127.0.0.1", 0), _Carrying)
        self.daemon = daemon
        self.heard = threading.Event()
        self.over = threading.Event()
        self.fails = False
        """Answer cancels with an error instead."""


class _Carrying(BaseHTTPRequestHandler):
    server: Between  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        self._carry(b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not self.path.endswith("/cancel"):
            self._carry(body)
            return
        self.server.heard.set()
        if self.server.fails:
            self.send_error(500)
        else:
            self.server.over.wait(WAIT_S)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _carry(self, body: bytes) -> None:
        headers = {
            name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")
        }
        url = self.server.daemon.url + self.path
        with (
            suppress(OSError, httpx.HTTPError),
            httpx.stream(self.command, url, headers=headers, content=body, timeout=WAIT_S) as answer,
        ):
            self.send_response(answer.status_code)
            for name in ("content-type", "retry-after"):
                if name in answer.headers:
                    self.send_header(name, answer.headers[name])
            self.end_headers()
            for piece in answer.iter_raw():
                self.wfile.write(piece)


@contextmanager
def between(daemon: Served) -> Generator[Between]:
    with Between(daemon) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield server
        finally:
            server.over.set()
            server.shutdown()
            serving.join(WAIT_S)


def test_the_second_interrupt_is_heard_while_the_cancel_is_on_its_way(daemon: Served) -> None:
    session = daemon.session()
    with between(daemon) as server:
        env = {**daemon.env, "TURNWIRE_URL": f"http://127.0.0.1:{server.server_port}"}
        with start("prompt", "-s", session, "tool t1 read Begun\nnever", home=daemon.home, env=env) as process:
            try:
                assert any("Begun" in line for line in lines_of(process))
                process.send_signal(signal.SIGINT)
                assert server.heard.wait(WAIT_S)
                process.send_signal(signal.SIGINT)
                assert process.wait(SOON_S) == 130
                assert "goes on without us" in finish(process).out
            finally:
                process.kill()
        assert daemon.ask("GET", f"/session/{session}/turns/current")["state"] == "running"
        daemon.ask("POST", f"/session/{session}/cancel", {})
        daemon.until(session, "turn_complete")


def test_two_quick_interrupts_cancel_the_turn_before_they_leave(daemon: Served) -> None:
    session = daemon.session()
    with daemon.begun("prompt", "-s", session, "ignore-cancel\ntool t1 read Begun\nnever") as process:
        for line in lines_of(process):
            if "Begun" in line or "cancelling" in line:
                process.send_signal(signal.SIGINT)
            if "goes on without us" in line:
                assert "it is asked to stop" in line
                break
        assert finish(process).code == 130
    prompt = daemon.ask("GET", f"/session/{session}/turns/current")["promptId"]
    events = daemon.run("tail", session, "--until-now", "--json").lines
    assert any(each["type"] == "prompt_cancelled" for each in events)
    daemon.ask("POST", f"/session/{session}/settle", {"promptId": prompt})


def test_a_cancel_that_fails_is_told_and_the_turn_is_stayed_with(daemon: Served) -> None:
    session = daemon.session()
    with between(daemon) as server:
        server.fails = True
        env = {**daemon.env, "TURNWIRE_URL": f"http://127.0.0.1:{server.server_port}"}
        with start("prompt", "-s", session, "tool t1 read Begun\nnever", home=daemon.home, env=env) as process:
            try:
                assert any("Begun" in line for line in lines_of(process))
                process.send_signal(signal.SIGINT)
                assert any("could not be cancelled" in line for line in lines_of(process))
                daemon.ask("POST", f"/session/{session}/cancel", {})
                shown = finish(process)
            finally:
                process.kill()
    assert shown.code == 130
    assert f"turnwire cancel {session}" in shown.out
    assert "the turn ended: cancelled" in shown.out
