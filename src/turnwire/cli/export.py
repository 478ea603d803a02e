"""`turnwire export` and `turnwire verify`: the log of a session in a file, and the check of such a file.

A log is copied in chunks, so it does not have to fit into memory.
"""

from __future__ import annotations

import gzip
import os
import secrets
import stat
import sys
import zlib
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import aclosing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import click
import msgspec

from turnwire.cli.commands import Command
from turnwire.cli.output import (
    VERIFY_FAILED,
    TerminalJson,
    in_bytes,
    print_json_text,
    printable,
    progress,
    tell,
)
from turnwire.cli.reach import LAST, Reach, run, session_ids, with_reach
from turnwire.client.http import Http, segment
from turnwire.errors import ConfigError
from turnwire.session.stored_file import Report, check, read_head

EXPORT_EXAMPLES = """
turnwire export SESSION -o session.ndjson     every event, a JSON line each; `turnwire verify` checks it
turnwire export SESSION | gzip > session.gz
turnwire export SESSION -o session.ndjson --redact all     to be given away; `turnwire replay` plays it
"""


RULES = ("token", "secret", "env", "home", "email")
"""Values of `turnwire.server.telemetry.redaction.Rule`, which only a running command imports."""


def redaction_options(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `--redact` and `--no-redact` to a command."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        chosen = click.option(
            "--redact",
            multiple=True,
            type=click.Choice(("all", *RULES)),
            help=f"What to take out; may be given several times.  [default: {default}]",
        )
        kept = click.option("--no-redact", is_flag=True, help="Take nothing out.")
        return chosen(kept(function))

    return decorate


def rules_of(redact: Collection[str], no_redact: bool, default: Collection[str]) -> tuple[str, ...]:
    """Return the rules that the flags select. Raises `UsageError`."""
    if redact and no_redact:
        raise click.UsageError("--redact and --no-redact exclude each other; give one of them")
    wanted = () if no_redact else redact or default
    return RULES if "all" in wanted else tuple(each for each in RULES if each in wanted)


@click.command(cls=Command, examples=EXPORT_EXAMPLES)
@click.argument("session", default=LAST, shell_complete=session_ids)
@click.option("-o", "--output", metavar="FILE", help="The file to write; `-` is stdout.  [default: stdout]")
@redaction_options("nothing")
@with_reach
def export(reach: Reach, session: str, output: str | None, redact: tuple[str, ...], no_redact: bool) -> None:
    """Write the whole log of a session to a file that only you can read.

    The events are written byte for byte as they are stored, secrets included, so that `turnwire verify` can check
    them. This needs the role owner. With `--redact` they are written as clients see them, and cannot be verified.
    """
    rules = rules_of(redact, no_redact, ())
    path = f"/session/{segment(session)}/export{'' if rules else '/stored'}"
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
    """A writer that receives a file in chunks."""

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
    from turnwire.server.telemetry.redaction import Redactor, Rule

    redacted = _RedactedSink(to, Redactor([Rule(each) for each in rules], os.environ).line)
    await _pass_on(http, path, redacted, say)
    return redacted.size


class _RedactedSink:
    """A sink that redacts each line before it passes it on. Every line of an export ends with a newline."""

    def __init__(self, to: _Sink, redact: Callable[[bytes], bytes]) -> None:
        self.size = 0
        self._to = to
        self._redact = redact
        self._begun = b""

    def write(self, piece: bytes, /) -> int:
        *lines, self._begun = (self._begun + piece).split(b"\n")
        self.size += sum(self._to.write(self._redact(each) + b"\n") for each in lines)
        return len(piece)


async def _pass_on(http: Http, path: str, to: _Sink, say: Callable[[str], None]) -> int:
    size = 0
    async with aclosing(http.stream(path)) as pieces:
        async for piece in pieces:
            size += to.write(piece)
            say(f"exporting: {in_bytes(size)}")
    return size


@contextmanager
def whole_file(path: str) -> Generator[BinaryIO]:
    """Write a file of mode 0600 that replaces `path` once the block has ended without an error.

    Raises `OSError` with the user's path. A pipe or device at `path` is written to directly.
    """
    if _is_special(path):
        with open(path, "wb") as direct:
            yield direct
        return
    target = Path(os.path.realpath(path))
    # In the same folder, so that an atomic rename can replace the target.
    unfinished = target.with_name(f".turnwire-{secrets.token_hex(8)}.part")
    try:
        file = os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    try:
        with file:
            yield file
        unfinished.replace(target)
    except BaseException as error:
        unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(unfinished)):
            raise OSError(error.errno, error.strerror, path) from None
        raise


def _is_special(path: str) -> bool:
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return False


# -- `turnwire verify` --------------------------------------------------------------------------------------------


VERIFY_EXAMPLES = """
turnwire export SESSION -o session.ndjson
turnwire verify session.ndjson
turnwire verify session.ndjson --receipt HASH    the last turn must have this receipt
turnwire verify session.ndjson.gz --json
"""
GZIP = b"\x1f\x8b"
AS_CLIENTS_SEE = b'"serverTimestamp"'
"""Part of every event in a redacted export."""


@click.command(cls=Command, examples=VERIFY_EXAMPLES)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--receipt", metavar="HASH", help="The receipt of the last turn, as a client or a webhook received it."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as one line of JSON.")
def verify(file: str, receipt: str | None, as_json: bool) -> None:
    """Check that an exported session is complete and unchanged.

    FILE was written by `turnwire export`, and may be packed with gzip. The receipt of every turn is computed again;
    the first turn that does not match is named, and the exit code is 1. Only `--receipt` finds that all receipts
    were computed again, or that the last turns were removed.
    """
    with progress(f"checking {file}"):
        report = _check(file, None if receipt is None else receipt.strip().lower())
    if as_json:
        print_json_text(msgspec.json.encode(report))
    else:
        _print_report(report)
    if report.problem is not None:
        sys.exit(VERIFY_FAILED)


def _check(file: str, receipt: str | None) -> Report:
    try:
        with _open_lines(file) as lines:
            first = lines.readline()
            head = read_head(first)
            if head is not None:
                return check(head, chain((first,), lines), receipt)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise ConfigError(f"{file} cannot be unpacked; get it again") from None
    why = "it is not a file of `turnwire export`"
    if AS_CLIENTS_SEE in first:
        why = "it was exported with --redact or saved from the page, so it is not byte for byte what was stored"
    raise ConfigError(f"{file} cannot be verified: {why}. Write another with: turnwire export SESSION -o FILE")


def _open_lines(file: str) -> BinaryIO:
    with open(file, "rb") as opened:
        is_packed = opened.read(len(GZIP)) == GZIP
    return cast("BinaryIO", gzip.open(file)) if is_packed else open(file, "rb")


def _print_report(report: Report) -> None:
    if report.problem is not None:
        click.echo(printable(f"FAILED: session {report.session_id}: {report.problem}"))
        return
    proven = f"{report.turns} turns, last receipt {report.hash}" if report.turns else "no complete turn"
    click.echo(printable(f"ok: session {report.session_id}, events {report.first}-{report.last}, {proven}"))
    for first, last in report.unproven:
        click.echo(f"events {first}-{last} have no receipt in this file")
