"""What a daemon says when it accepts requests: one block for a person, or one line of JSON for a program.

Takes a daemon and its address; prints to stdout. A token is printed when it is made, this once, and in JSON also
when it was given. Never prints one that was made before: nobody knows it any more.
"""

from __future__ import annotations

import os
import shlex
import sys

import click

from turnwire import __version__
from turnwire.cli.builtin import agent_name
from turnwire.cli.failing import printable
from turnwire.cli.showing import print_json
from turnwire.server.daemon import Daemon
from turnwire.server.settings.sources import Loaded, Source

USUAL = "http://127.0.0.1:4170"
"""Where commands look for a daemon when nobody says where it is."""


def announce(loaded: Loaded, daemon: Daemon, url: str, *, as_json: bool) -> None:
    """Say where it is and how to get in."""
    data = daemon.settings.data
    if as_json:
        token = daemon.settings.token or (None if daemon.settings.no_auth else daemon.first_token)
        print_json({"url": url, "token": token, "pid": os.getpid(), "data": None if data is None else str(data)})
    else:
        click.echo(f"turnwire {__version__} listens on {url}\n")
        for name, words in [*_lines(daemon, url), ("try", _first_command(loaded, daemon, url)), ("stop", "Ctrl-C")]:
            click.echo(f"  {name:<6} {printable(words)}")
        click.echo()
    # Whoever reads it through a pipe waits for it.
    sys.stdout.flush()


def _lines(daemon: Daemon, url: str) -> list[tuple[str, str]]:
    settings = daemon.settings
    lines = [
        ("agent", settings.agent_import or settings.agent_url or agent_name(settings.agent)),
        ("data", "in memory, gone at the end" if settings.data is None else str(settings.data)),
        ("token", _token(daemon)),
    ]
    if settings.page and not settings.no_auth:
        lines.insert(
            0, ("page", f"{daemon.login.login_link(url)}  (works once, for ten minutes; then turnwire login)")
        )
    elif settings.page:
        lines.insert(0, ("page", f"{url}/"))
    return lines


def _token(daemon: Daemon) -> str:
    if daemon.settings.no_auth:
        return "none is asked for: everybody on this machine gets in"
    if daemon.settings.token is not None:
        return "the one you gave"
    if daemon.first_token is not None:
        return f"{daemon.first_token}  (shown this once)"
    return "made at an earlier start; turnwire token create NAME makes another"


def _first_command(loaded: Loaded, daemon: Daemon, url: str) -> str:
    """With what another shell must know to find this daemon, where that is not as usual."""
    settings = daemon.settings
    words = [] if url == USUAL else [f"TURNWIRE_URL={url}"]
    if settings.data is None and not settings.no_auth:
        words.append("TURNWIRE_TOKEN=...")
    elif any(each.name == "data" and each.source is Source.FLAG for each in loaded.explained()):
        words.append(f"TURNWIRE_DATA={shlex.quote(str(settings.data))}")
    return " ".join([*words, 'turnwire prompt "hello"'])
