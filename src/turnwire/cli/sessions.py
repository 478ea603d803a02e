"""`turnwire sessions` and `turnwire export`: what sessions there are, and all of one in a file.

Takes a daemon's lists page by page and its logs piece by piece, so that neither has to fit into memory.
"""

from __future__ import annotations

import sys
from contextlib import aclosing
from typing import Any, BinaryIO
from urllib.parse import urlencode

import click
from msgspec import Struct

from turnwire.cli.examples import Command
from turnwire.cli.failing import tell
from turnwire.cli.folders import sendable_folder
from turnwire.cli.reaching import Reach, reaching, run
from turnwire.cli.showing import print_json, print_table
from turnwire.cli.wholefile import whole_file
from turnwire.client.http import Http, segment

SESSIONS_EXAMPLES = """
turnwire sessions                  every session
turnwire sessions --open           without those that are closed
turnwire sessions --cwd ~/code/app those that work in this folder
turnwire sessions --json | jq -r '.sessionId'
"""
EXPORT_EXAMPLES = """
turnwire export SESSION -o session.ndjson     every event, a JSON line each
turnwire export SESSION | gzip > session.gz
"""


class _Page(Struct, rename="camel"):
    sessions: list[dict[str, Any]]
    next_cursor: str | None = None


@click.command(cls=Command, examples=SESSIONS_EXAMPLES)
@click.option("--open", "only_open", is_flag=True, help="Leave out sessions that are closed.")
@click.option("--cwd", metavar="DIR", help="Only sessions that work in this folder.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line per session.")
@reaching
def sessions(reach: Reach, only_open: bool, cwd: str | None, as_json: bool) -> None:
    """List the sessions of the daemon."""
    wanted = {"size": "100"} | ({"state": "open"} if only_open else {})
    if cwd is not None:
        wanted["cwd"] = sendable_folder(cwd)
    found = run(reach, lambda http: _list(http, wanted))
    if as_json:
        for each in found:
            print_json(each)
        return
    names = ("session", "state", "updated", "title", "folder")
    print_table(names, [_row(each) for each in found])
    if not found:
        tell("there are no sessions; `turnwire prompt TEXT` makes one")


async def _list(http: Http, wanted: dict[str, str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        page = (await http.ask("GET", f"/session?{urlencode(wanted)}", patient=False)).read(_Page)
        found += page.sessions
        if page.next_cursor is None:
            return found
        wanted = {**wanted, "cursor": page.next_cursor}


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    shown = (entry.get(name) for name in ("sessionId", "state", "updatedAt", "title", "cwd"))
    return tuple("-" if each is None else str(each) for each in shown)


@click.command(cls=Command, examples=EXPORT_EXAMPLES)
@click.argument("session")
@click.option("-o", "--output", metavar="FILE", help="The file to write; `-` is stdout.  [default: stdout]")
@reaching
def export(reach: Reach, session: str, output: str | None) -> None:
    """Write the whole log of a session to a file."""
    if output in (None, "-"):
        run(reach, lambda http: _copy(http, session, sys.stdout.buffer))
        return
    with whole_file(output) as file:
        size = run(reach, lambda http: _copy(http, session, file))
    tell(f"wrote {size} bytes to {output}")


async def _copy(http: Http, session: str, to: BinaryIO) -> int:
    size = 0
    async with aclosing(http.stream(f"/session/{segment(session)}/export")) as pieces:
        async for piece in pieces:
            size += to.write(piece)
    to.flush()
    return size
