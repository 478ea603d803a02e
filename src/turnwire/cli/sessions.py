"""`turnwire sessions`, `archive` and `export`: what sessions there are, which are put away, all of one in a file.

A log is read piece by piece, so that it does not have to fit into memory.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import aclosing, closing, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import click

from turnwire.cli.commands import Command, sendable_folder
from turnwire.cli.completion import session_ids
from turnwire.cli.failure import tell
from turnwire.cli.output import TerminalJson, in_bytes, print_json, print_table, progress
from turnwire.cli.reach import Reach, list_sessions, run, tell_daemon, with_reach
from turnwire.cli.record import redaction_options, rules_of
from turnwire.client.http import Http, segment

SESSIONS_EXAMPLES = """
turnwire sessions                  every session, the newest first
turnwire sessions --open           without those that are closed
turnwire sessions --cwd ~/code/app those that work in this folder
turnwire sessions --search "parser bug"
turnwire sessions --archived       those that were archived
turnwire sessions --json | jq -r '.sessionId'
"""
ARCHIVE_EXAMPLES = """
turnwire archive SESSION           lists leave it out; a prompt brings it back
turnwire archive SESSION --undo
"""
EXPORT_EXAMPLES = """
turnwire export SESSION -o session.ndjson     every event, a JSON line each
turnwire export SESSION | gzip > session.gz
turnwire export SESSION --stored -o session.stored   as it is stored, for `turnwire verify`
turnwire export SESSION -o session.ndjson --redact all     to be given away; `turnwire replay` plays it
"""


@click.command(cls=Command, examples=SESSIONS_EXAMPLES)
@click.option("--open", "only_open", is_flag=True, help="Leave out sessions that are closed.")
@click.option("--cwd", metavar="DIR", help="Only sessions that work in this folder.")
@click.option(
    "--search", metavar="WORDS", help="Only sessions with all of these words in title, folder or a message."
)
@click.option("--archived", is_flag=True, help="List those that were archived instead.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line per session.")
@with_reach
def sessions(
    reach: Reach, only_open: bool, cwd: str | None, search: str | None, archived: bool, as_json: bool
) -> None:
    """List the sessions of the daemon, the one in which something happened most recently first."""
    wanted = {"state": "open"} if only_open else {}
    if cwd is not None:
        wanted["cwd"] = sendable_folder(cwd)
    if search is not None:
        wanted["search"] = search
    if archived:
        wanted["archived"] = "true"
    found = run(reach, lambda http: list_sessions(http, wanted))
    if as_json:
        for each in found:
            print_json(each)
        return
    names = ("session", "state", "updated", "title", "folder")
    print_table(names, [_row(each) for each in found])
    if not found and (search is not None or archived):
        tell("there are no such sessions")
    elif not found:
        tell("there are no sessions; `turnwire prompt TEXT` makes one")


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    shown = (entry.get(name) for name in ("sessionId", "state", "updatedAt", "title", "cwd"))
    return tuple("-" if each is None else str(each) for each in shown)


@click.command(cls=Command, examples=ARCHIVE_EXAMPLES)
@click.argument("session", shell_complete=session_ids)
@click.option("--undo", is_flag=True, help="Take it back.")
@with_reach
def archive(reach: Reach, session: str, undo: bool) -> None:
    """Put a session away: lists leave it out. Its log stays, and a prompt brings it back."""
    tell_daemon(reach, "POST", f"/session/{segment(session)}/{'unarchive' if undo else 'archive'}")
    tell(f"{'took back' if undo else 'archived'} {session}")


@click.command(cls=Command, examples=EXPORT_EXAMPLES)
@click.argument("session", shell_complete=session_ids)
@click.option("-o", "--output", metavar="FILE", help="The file to write; `-` is stdout.  [default: stdout]")
@click.option("--stored", is_flag=True, help="Every event byte for byte as it is stored, with secrets.")
@redaction_options("nothing")
@with_reach
def export(
    reach: Reach, session: str, output: str | None, stored: bool, redact: tuple[str, ...], no_redact: bool
) -> None:
    """Write the whole log of a session to a file."""
    rules = rules_of(redact, no_redact, ())
    if stored and rules:
        raise click.UsageError("--stored is byte for byte, so that it can be verified; leave out --redact")
    path = f"/session/{segment(session)}/export{'/stored' if stored else ''}"
    if output in (None, "-"):
        if sys.stdout.isatty():
            run(reach, lambda http: _copy(http, path, TerminalJson(), rules))
            return
        to = sys.stdout.buffer
        with progress("exporting") as say:
            run(reach, lambda http: _copy(http, path, to, rules, say))
        return
    with whole_file(output) as file, progress("exporting") as say:
        size = run(reach, lambda http: _copy(http, path, file, rules, say))
    tell(f"wrote {size} bytes to {output}")


class _Sink(Protocol):
    """What takes a file piece by piece."""

    def write(self, piece: bytes, /) -> int: ...


async def _copy(
    http: Http,
    path: str,
    to: BinaryIO | TerminalJson,
    rules: Sequence[str],
    say: Callable[[str], None] = lambda _: None,
) -> int:
    size = await (_copy_redacted(http, path, to, rules, say) if rules else _pass_on(http, path, to, say))
    to.flush()
    return size


async def _copy_redacted(http: Http, path: str, to: _Sink, rules: Sequence[str], say: Callable[[str], None]) -> int:
    """Once all of it is there: only then is known what must be taken out."""
    from turnwire.recording.redaction import Redactor, Rule
    from turnwire.recording.second_look import Spool

    with closing(Spool(Redactor([Rule(each) for each in rules], os.environ))) as spool:
        await _pass_on(http, path, spool, say)
        return sum(to.write(line) for line in spool.lines())


async def _pass_on(http: Http, path: str, to: _Sink, say: Callable[[str], None]) -> int:
    size = 0
    async with aclosing(http.stream(path)) as pieces:
        async for piece in pieces:
            size += to.write(piece)
            say(f"exporting: {in_bytes(size)}")
    return size


@contextmanager
def whole_file(path: str) -> Generator[BinaryIO]:
    """A file that is at `path` once the block has ended without an error. Raises `OSError` with the user's path."""
    mode = _mode(path)
    if mode is not None and not stat.S_ISREG(mode):
        with open(path, "wb") as direct:
            yield direct
        return
    target = Path(os.path.realpath(path))
    # In the same folder, so that it can take the target's place in one step.
    unfinished = target.with_name(f".turnwire-{secrets.token_hex(8)}.part")
    try:
        file = unfinished.open("xb")
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    try:
        with file:
            if mode is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            yield file
        unfinished.replace(target)
    except BaseException as error:
        unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(unfinished)):
            raise OSError(error.errno, error.strerror, path) from None
        raise


def _mode(path: str) -> int | None:
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None
