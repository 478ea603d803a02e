"""`turnwire open` and `serve --open`: a browser is started with a file that leads to a login link."""

from __future__ import annotations

import html
import os
import re
import select
import stat
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx
import pytest
from tests.cli.rig import WAIT_S, Served, run, served

pytestmark = pytest.mark.guarantee("G13")


class Browser:
    """A stand-in for a browser: it reports its arguments."""

    def __init__(self, folder: Path, exit_code: int = 0) -> None:
        pipe, program = folder / "opened", folder / "browser.py"
        os.mkfifo(pipe)
        self._pipe = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        program.write_text(f"import sys; open({str(pipe)!r}, 'w').write(sys.argv[1]); sys.exit({exit_code})\n")
        self.command = f"{sys.executable} {program} %s"

    def opened(self) -> str:
        """The address that it was started with."""
        assert select.select([self._pipe], [], [], WAIT_S)[0]
        return os.read(self._pipe, 4096).decode()


def link_in(address: str) -> str:
    """The link that the file at an address leads to, and that only its owner may read."""
    parts = urlsplit(address)
    assert parts.scheme == "file"
    file = Path(unquote(parts.path))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = re.search(r'content="0;url=([^"]+)"', file.read_text())
    assert found is not None
    return html.unescape(found[1])


def log_in(url: str, link: str) -> int:
    assert link.startswith(f"{url}/login#")
    return httpx.post(f"{url}/login", json={"code": link.partition("#")[2]}, timeout=WAIT_S).status_code


def test_the_page_is_opened_and_its_link_is_in_no_output_and_no_list_of_processes(
    tmp_path: Path, daemon: Served
) -> None:
    browser = Browser(tmp_path)
    shown = daemon.run("open", BROWSER=browser.command)
    address = browser.opened()
    link = link_in(address)
    code = link.partition("#")[2]
    assert (shown.code, shown.out, code in shown.err) == (0, "", False)
    assert code not in address
    assert log_in(daemon.url, link) == 204


def test_the_link_is_printed_if_that_is_asked_for_or_no_browser_can_be_started(
    tmp_path: Path, daemon: Served
) -> None:
    for words, env in (
        (["--print"], {"BROWSER": "/nowhere/browser"}),
        ([], {}),
        ([], {"BROWSER": "/nowhere/browser"}),
        ([], {"BROWSER": Browser(tmp_path, exit_code=1).command}),
    ):
        shown = daemon.run("open", *words, **env)
        assert shown.code == 0
        assert log_in(daemon.url, shown.out.strip()) == 204


def test_a_daemon_opens_its_page_once_it_listens(tmp_path: Path) -> None:
    browser = Browser(tmp_path)
    with served(tmp_path, "--open", BROWSER=browser.command) as daemon:
        assert log_in(daemon.url, link_in(browser.opened())) == 204
        assert daemon.stop() == 0


def test_a_daemon_without_credentials_opens_its_address(tmp_path: Path) -> None:
    browser = Browser(tmp_path)
    with served(tmp_path, "--open", "--no-auth", BROWSER=browser.command) as daemon:
        assert link_in(browser.opened()) == f"{daemon.url}/"


def test_a_daemon_without_a_display_says_how_to_get_a_link_and_runs(tmp_path: Path) -> None:
    with served(tmp_path, "--open") as daemon:
        assert daemon.run("sessions").code == 0
        assert daemon.stop() == 0
        assert "turnwire login" in daemon.err.read_text()


def test_a_page_that_is_turned_off_is_not_opened(tmp_path: Path) -> None:
    shown = run("serve", "--open", "--no-page", home=tmp_path)
    assert shown.code == 2
    assert "--open" in shown.err
