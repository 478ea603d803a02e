"""How a command prints: answers as tables or JSON on stdout, lines for whoever runs it on stderr.

There is colour only where a person looks at it. What comes from peers cannot steer a terminal: control characters
are left out of text, and escaped in JSON, which then says the same. A pipe gets JSON as it is.
"""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.text import Text


def printable(text: str) -> str:
    """Text without anything that a terminal obeys: what peers say must not steer it."""
    return "".join(each for each in text if each in "\n\t" or each.isprintable())


def print_json(value: Any) -> None:
    """One line of JSON."""
    # Here, so that the overview of the commands does not pay for it.
    import json

    print_json_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def print_json_text(text: str | bytes) -> None:
    """A line of JSON that is written already."""
    if sys.stdout.isatty():
        text = escaped(text if isinstance(text, str) else text.decode(errors="replace"))
    click.echo(text)


def escaped(text: str) -> str:
    """JSON with the same meaning and without anything that a terminal obeys, but for ends of lines."""
    return "".join(each if each == "\n" or each.isprintable() else _escape(each) for each in text)


def _escape(sign: str) -> str:
    # Between the members of an object these are blanks; inside of a text JSON has none of them.
    if sign in "\t\r":
        return " "
    units = sign.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


class TerminalJson:
    """Lines of JSON that come in pieces, written to a terminal."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, piece: bytes, /) -> int:
        sys.stdout.write(escaped(self._decoder.decode(piece)))
        return len(piece)

    def flush(self) -> None:
        sys.stdout.flush()


def print_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns that line up. Without a terminal nothing is cut and nothing is drawn, so that `awk` can read it."""
    cells = [[printable(each).replace("\n", " ").replace("\t", " ") for each in row] for row in rows]
    if not sys.stdout.isatty():
        for row in cells:
            click.echo("\t".join(row))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        table.add_column(name, overflow="fold")
    for row in cells:
        table.add_row(*(Text(each) for each in row))
    Console(highlight=False).print(table)


@contextmanager
def progress(words: str) -> Generator[Callable[[str], None]]:
    """Meanwhile a line on the terminal says what is done, and goes when it is. Gives a way to change it.

    Without a terminal nothing is written. Print nothing meanwhile.
    """
    if not sys.stderr.isatty() or os.environ.get("TERM") in (None, "", "dumb"):
        yield lambda words: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True, highlight=False).status(Text(printable(words))) as status:
        yield lambda words: status.update(Text(printable(words)))


@contextmanager
def counting(words: str, total: int) -> Generator[Callable[[str], None]]:
    """The same while things are done one by one. Gives a way to say which one is done."""
    done = 0
    with progress(words) as tell:

        def told(name: str) -> None:
            nonlocal done
            done += 1
            tell(f"{done} of {total}: {name}")

        yield told


def in_bytes(size: int) -> str:
    """A size for a person."""
    return f"{size} bytes" if size < 100_000 else f"{size / 1_000_000:.1f} MB"


def moment(at_ms: int | None) -> str:
    """A time as the log has it, for a person here."""
    if at_ms is None:
        return "-"
    return datetime.fromtimestamp(at_ms / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


STOPPED = "stopped before"
"""How `turnwire replay --break-at` begins to tell that it stands still; a command that runs it passes this on."""


def tell(message: str) -> None:
    """A line for whoever runs the command."""
    click.echo(f"turnwire: {printable(message)}", err=True)


def tell_next(advice: str) -> None:
    """What to do about the line before."""
    click.echo(f"  next: {printable(advice)}", err=True)


def print_block(block: Text, *, err: bool = False) -> None:
    """Text in colour where a person looks at it, else only text. Lines are as long as they are."""
    from rich.console import Console

    Console(stderr=err, highlight=False, soft_wrap=True, emoji=False, markup=False).print(block)
