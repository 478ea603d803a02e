"""The progress of a run: an updated line on a terminal, and some lines on stderr where there is none."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import click

from turnwire.cli.output import printable, progress

INTERVAL_S = 5.0
"""Between two lines on a pipe: a run of a minute writes a dozen."""


@contextmanager
def counting(words: str, total: int) -> Generator[Callable[[str], None]]:
    """Show progress while cases are judged. Yield a function to call with the id of each case that is done."""
    done = 0
    is_terminal = sys.stderr.isatty()
    shown_s = time.monotonic()
    with progress(words) as change:
        if not is_terminal:
            click.echo(f"turnwire: {printable(words)}", err=True)

        def case_done(name: str) -> None:
            nonlocal done, shown_s
            done += 1
            line = f"{done} of {total}: {name}"
            change(line)
            if not is_terminal and time.monotonic() >= shown_s + INTERVAL_S:
                shown_s = time.monotonic()
                click.echo(f"turnwire: {printable(line)}", err=True)

        yield case_done
