"""`turnwire check --url` as the docs have it, against `turnwire serve` as a user starts it in a folder."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import httpx
import pytest
from tests.patience import LONG_S

from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.full("starts a daemon and a dozen commands")

LOOK_S = 0.05
DOCS = Path(__file__).resolve().parents[3] / "docs" / "conformance.md"
TURNWIRE = [sys.executable, "-m", "turnwire"]


class Served(NamedTuple):
    """A daemon that runs."""

    folder: Path
    url: str
    token: str

    def check(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [*TURNWIRE, "check", *words, "--header", f"Authorization: Bearer {self.token}"]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=LONG_S, check=False)

    def running(self) -> list[Any]:
        """The sessions with a turn."""
        listed = httpx.get(f"{self.url}/session", headers={"Authorization": f"Bearer {self.token}"}).json()
        return [each["cwd"] for each in listed["sessions"] if each["hasActivePrompt"]]

    def documented(self, scheme: str) -> list[str]:
        """The words behind `turnwire check` in the docs, for this daemon."""
        [line] = re.findall(rf"^turnwire (check --url {scheme}://.*)$", DOCS.read_text(), re.MULTILINE)
        _, *words = shlex.split(line.replace("127.0.0.1:4170", self.url.removeprefix("http://")))
        place = words.index("--header")
        assert words[place + 1] == "Authorization: Bearer $TOKEN"
        return [*words[:place], *words[place + 2 :]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("project")
    words = [*TURNWIRE, "serve", "--json", "--port", "0", "--log", "memory"]
    with (
        (tmp_path_factory.mktemp("errors") / "stderr").open("wb") as errors,
        subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        assert process.stdout is not None
        started: dict[str, Any] = json.loads(process.stdout.readline())
        try:
            yield Served(folder, started["url"], started["token"])
        finally:
            process.terminate()
            process.wait(LONG_S)


def test_the_command_of_the_docs_judges_a_daemon_and_leaves_nothing_in_its_folder(served: Served) -> None:
    ran = served.check(*served.documented("ws"))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    # Drafts are advice: `turn_complete` goes to clients that did not ask for it.
    found = re.search(r"(\d+) passed, 0 failed, 1 not as they should be, (\d+) not scored", ran.stdout)
    assert found is not None, ran.stdout
    assert int(found[1]) > 200
    assert list(served.folder.iterdir()) == []


def test_over_http_it_is_the_same_command(served: Served) -> None:
    ran = served.check(*served.documented("http"), "--case", "v1.new", "--case", "v1.cancel", "--case", "http.open")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "0 failed, 0 not scored" in ran.stdout


def test_a_directory_that_the_server_does_not_allow_is_told_in_its_words_and_is_no_failure(served: Served) -> None:
    url = f"ws{served.url.removeprefix('http')}/acp"
    ran = served.check(
        "--url", url, "--case", "v1.new.works", "--case", "v1.turn.once", "--case", "v1.init.version"
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "v1.new.works" in ran.stdout
    assert "cwd is outside the allowed directories" in ran.stdout
    assert "give a directory that it takes: --cwd DIR: v1.turn.once" in ran.stdout
    assert "1 passed, 0 failed, 2 not scored" in ran.stdout


@pytest.mark.parametrize("words", [["--url", "ws://127.0.0.1:1/acp"], ["--rest", "http://127.0.0.1:1"]])
def test_a_directory_for_the_sessions_is_looked_at_before_the_server(words: list[str], tmp_path: Path) -> None:
    command = [*TURNWIRE, "check", *words, "--cwd", str(tmp_path / "missing")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, check=False)
    assert ran.returncode == 2
    assert "--cwd" in ran.stderr


@pytest.mark.parametrize(
    ("path", "token", "told"),
    [("/acp", "wrong", "does not let the suite in"), ("/nothing", "", "no ACP server answers there")],
)
def test_a_server_that_does_not_answer_over_http_is_told_as_such(
    served: Served, path: str, token: str, told: str
) -> None:
    ran = served._replace(token=token or served.token).check("--url", f"{served.url}{path}")
    assert told in ran.stderr, ran.stdout + ran.stderr
    assert ran.returncode == closed("ws").returncode


def closed(scheme: str) -> subprocess.CompletedProcess[str]:
    """A check of a port without a listener."""
    command = [*TURNWIRE, "check", "--url", f"{scheme}://127.0.0.1:1/acp"]
    return subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, check=False)


def test_a_closed_port_is_told_alike_over_every_transport() -> None:
    over = {scheme: closed(scheme) for scheme in ("ws", "http")}
    assert over["http"].returncode == over["ws"].returncode != 1
    assert all("no ACP server answers" in each.stderr for each in over.values())


@pytest.mark.parametrize("scheme", ["ws", "http"])
def test_nothing_is_left_running_at_a_server(served: Served, scheme: str) -> None:
    cases = ["v1.permission.waits", "v1.lifecycle.at-once", "v2.cancel"] + (["http"] if scheme == "http" else [])
    ran = served.check(*served.documented(scheme), *(word for each in cases for word in ("--case", each)))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    until = time.monotonic() + WAIT_S
    while (running := served.running()) and time.monotonic() < until:
        Event().wait(LOOK_S)
    assert running == []
