"""How a command prints: answers as tables or JSON on stdout, lines for whoever runs it on stderr.

There is colour only where a person looks at it. What comes from peers cannot steer a terminal: control characters
are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click


def printable(text: str) -> str:
    """Text without anything that a terminal obeys: what peers say must not steer it."""
    return "".join(each for each in text if each in "\n\t" or each.isprintable())


def print_json(value: Any) -> None:
    """One line of JSON."""
    # Here, so that the overview of the commands does not pay for it.
    import json

    click.echo(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


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


def moment(at_ms: int | None) -> str:
    """A time as the log has it, for a person here."""
    if at_ms is None:
        return "-"
    return datetime.fromtimestamp(at_ms / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def tell(message: str) -> None:
    """A line for whoever runs the command."""
    click.echo(f"turnwire: {printable(message)}", err=True)


def tell_next(advice: str) -> None:
    """What to do about the line before."""
    click.echo(f"  next: {printable(advice)}", err=True)
