"""`turnwire verify`: are the events of an exported session all there, in order and as they were stored?

Needs the file and nothing else. The exit code is 1 when something was altered, and 4 when no receipt proves the
last end. What is behind that has none yet, and is no failure.
"""

from __future__ import annotations

import gzip
import re
import sys
import zlib
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

import click
import msgspec

from turnwire.cli.commands import Command
from turnwire.cli.failure import VERIFY_FAILED, VERIFY_UNPROVEN
from turnwire.cli.output import print_json_text, printable, progress
from turnwire.core.stored_file import Report, Span, check, read_head
from turnwire.errors import ConfigError

EXAMPLES = """
turnwire export SESSION --stored -o session.stored
turnwire verify session.stored
turnwire verify session.stored --receipt HASH    the last end must have this one, as somebody was told it
turnwire verify session.stored.gz --json
"""
GZIP = b"\x1f\x8b"


class Hash(click.ParamType[str]):
    """A SHA-256, as receipts have it."""

    name = "HASH"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        given = str(value).strip().lower()
        if re.fullmatch("[0-9a-f]{64}", given) is None:
            self.fail(f"{value!r} is no hash of a receipt; it has 64 digits, 0 to 9 and a to f", param, ctx)
        return given


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--receipt", type=Hash(), help="The hash of the last end's receipt, as a client or a webhook was told it."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as one line of JSON.")
def verify(file: str, receipt: str | None, as_json: bool) -> None:
    """Prove that an exported session is whole and as it was.

    The file is one that `turnwire export --stored` wrote, packed with gzip or not. No daemon is asked. With
    `--receipt` the last turn's end must have this hash, which you have from somewhere that nobody could alter;
    without it, who made all receipts anew or took the last turns away is not found. Exits with 1 if something was
    altered, with 4 if no receipt proves the last end.
    """
    with progress(f"checking {file}"):
        report = _check(file, receipt)
    if as_json:
        print_json_text(msgspec.json.encode(report))
    else:
        _print(report)
    if report.problem is not None:
        sys.exit(VERIFY_FAILED)
    if report.ends and not report.is_last_end_proven:
        sys.exit(VERIFY_UNPROVEN)


def _check(file: str, receipt: str | None) -> Report:
    try:
        with _opened(file) as lines:
            head = read_head(lines.readline())
            if head is None:
                raise ConfigError(
                    f"{file} does not have the events as they are stored;"
                    " write such a file with: turnwire export SESSION --stored -o FILE"
                )

            def from_the_start() -> Iterable[bytes]:
                lines.seek(0)
                return lines

            return check(head, from_the_start, receipt)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise ConfigError(f"{file} cannot be unpacked; get it again") from None


@contextmanager
def _opened(file: str) -> Generator[BinaryIO]:
    with open(file, "rb") as packed:
        is_packed = packed.read(len(GZIP)) == GZIP
        packed.seek(0)
        if not is_packed:
            yield packed
            return
        with gzip.open(packed) as lines:
            yield cast("BinaryIO", lines)


def _print(report: Report) -> None:
    click.echo(printable(f"session {report.session_id}, events {report.first}-{report.last}"))
    if report.problem is not None:
        problem = report.problem
        click.echo(f"FAILED: event {problem.event} was {problem.fault}: {problem.why}")
        return
    if report.proven:
        click.echo(f"proven by {report.receipts} receipts: {_spans(report.proven)}; last receipt {report.hash}")
        if report.proven[0].first > 1:
            click.echo(f"starts at event {report.proven[0].first}")
    if report.first > 1:
        click.echo("the session's id is only what the file says: the event that made it is not in the file")
    if report.unproven:
        click.echo(f"no receipt: {_spans(report.unproven)}")
    if report.ends and not report.is_last_end_proven:
        what = "its last end" if report.proven else "anything of it"
        click.echo(f"NOT PROVEN: no receipt proves {what}; the receipts may have been taken out")


def _spans(spans: Iterable[Span]) -> str:
    return ", ".join(f"{each.first}-{each.last}" if each.first < each.last else f"{each.first}" for each in spans)
