"""The browser of whoever sits at this machine, started with a login link.

The words that a program is started with can be read by every user of the machine, and a login link lets in whoever
comes first. So the browser is started with a file that its user alone can read, and that file leads to the link.
There is one such file, and its link works once, within ten minutes. A machine without a display has no browser to
start: then the link is said.
"""

from __future__ import annotations

import html
import os
import sys
import threading
import webbrowser
from collections.abc import Mapping

from turnwire.cli.failure import tell
from turnwire.link.local_daemon import folder_of
from turnwire.server.access.token_file import write_private

FILE = "open.html"
"""Beside the records of the daemons that run here."""
DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
"""Variables of a session with a browser; the last one names it."""


def start_browser(link: str, environ: Mapping[str, str]) -> bool:
    """Show what a link leads to. Gives whether a browser was started."""
    folder = folder_of(environ)
    if folder is None or (sys.platform == "linux" and not any(environ.get(each) for each in DISPLAYS)):
        # Where there is no display, Python would start a browser that takes the terminal.
        return False
    file = folder / FILE
    try:
        write_private(file, _leading_to(link))
        return webbrowser.open(file.absolute().as_uri())
    except (OSError, webbrowser.Error):
        return False


def open_meanwhile(link: str) -> None:
    """`start_browser` for a daemon, which neither waits for a browser nor stays because one does."""

    def run() -> None:
        if not start_browser(link, os.environ):
            tell("no browser can be started here; open the link of `turnwire login` in one")

    threading.Thread(target=run, name="turnwire-browser", daemon=True).start()


def _leading_to(link: str) -> bytes:
    to = html.escape(link)
    return (
        f'<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer"><title>turnwire</title>'
        f'<meta http-equiv="refresh" content="0;url={to}"><p><a href="{to}">Open turnwire</a></p>\n'
    ).encode()
