"""Where a screen writes: finished text that stays, a tail that still grows, and a line that tells what is going on.

Finished text is written once and never touched again. The tail and the line below it are drawn over and over, and
leave no trace. `TerminalSink` is for commands that own their terminal, or write to none; a line editor has its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from turnwire.cli.output import printable

FRAMES_S = 12
"""How often the tail is drawn, in a second."""
SPINNER = 3
"""Columns beside the words of the footer."""
ROOM = 2
"""Rows of the terminal that the tail leaves free."""


class Sink(Protocol):
    """Where a screen writes."""

    draws: bool
    """Somebody looks at the agent's words: they are drawn, and have a tail. Else they are given as they are."""

    def words(self, text: str) -> None:
        """Words of the agent as they come, where they are not drawn."""
        ...

    def print(self, block: RenderableType) -> None:
        """Words of the agent that are finished, where they are drawn."""
        ...

    def note(self, block: RenderableType) -> None:
        """Something finished that is not the agent's words."""
        ...

    def tail(self, block: Callable[[int], RenderableType] | None) -> None:
        """What still grows, for at most so many rows; asked for again with every drawing. None if nothing does."""
        ...

    def footer(self, words: str | None) -> None:
        """What is going on; none if nothing is."""
        ...

    def pause(self) -> None:
        """Somebody else writes now: leave nothing that is drawn over."""
        ...


class TerminalSink:
    """Stdout and stderr of this process. Notes are on stderr, unless both are the same terminal."""

    def __init__(self) -> None:
        is_out, is_err = sys.stdout.isatty(), sys.stderr.isatty()
        out, err = _console(stderr=False, is_terminal=is_out), _console(stderr=True, is_terminal=is_err)
        self.draws = is_out and not out.is_dumb_terminal
        self._is_terminal = is_out
        self._out = out
        self._err = out if is_out and is_err else err
        self._drawing = self._out if self.draws else self._err if is_err and not err.is_dumb_terminal else None
        """Where the tail and the line are."""
        self._live: Live | None = None
        self._tail: Callable[[int], RenderableType] | None = None
        self._footer: Spinner | None = None
        self._at_start = True
        """The last line of words that are not drawn is finished."""

    def words(self, text: str) -> None:
        self._stop()
        sys.stdout.write(printable(text) if self._is_terminal else text)
        sys.stdout.flush()
        self._at_start = text.endswith("\n")

    def print(self, block: RenderableType) -> None:
        self._write(self._out, block)

    def note(self, block: RenderableType) -> None:
        self._write(self._err, block)

    def tail(self, block: Callable[[int], RenderableType] | None) -> None:
        self._tail = block
        self._draw()

    def footer(self, words: str | None) -> None:
        said = Text(printable(words or ""), style="dim")
        if self._drawing is not None:
            # One line: what is drawn over must not wrap.
            said.truncate(max(1, self._drawing.width - SPINNER), overflow="ellipsis")
        if words is None:
            self._footer = None
        elif self._footer is None:
            self._footer = Spinner("dots", said)
        else:
            self._footer.update(text=said)
        self._draw()

    def pause(self) -> None:
        self._tail = self._footer = None
        self._stop()
        if not self._at_start:
            self.words("\n")

    def _write(self, console: Console, block: RenderableType) -> None:
        if console is not self._drawing:
            self._stop()
        elif self._live is not None:
            # What becomes finished text must be gone from the tail first, or it is there twice for a moment.
            self._live.refresh()
        if not self._at_start:
            self.words("\n")
        # Without a terminal nothing is wrapped.
        console.print(block, soft_wrap=not console.is_terminal)

    def _draw(self) -> None:
        if self._drawing is None or not self._at_start:
            return
        if self._tail is None and self._footer is None:
            self._stop()
        elif self._live is None:
            self._live = Live(
                console=self._drawing,
                transient=True,
                get_renderable=self._frame,
                refresh_per_second=FRAMES_S,
                redirect_stdout=False,
                redirect_stderr=False,
                vertical_overflow="crop",
            )
            self._live.start()

    def _frame(self) -> RenderableType:
        """Called by the thread that draws; what it reads is replaced and never changed."""
        console, tail, footer = self._drawing, self._tail, self._footer
        rows = max(1, (24 if console is None else console.height) - ROOM)
        return Group(*([] if tail is None else [tail(rows)]), *([] if footer is None else [footer]))

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def _console(*, stderr: bool, is_terminal: bool) -> Console:
    return Console(stderr=stderr, force_terminal=is_terminal, highlight=False, markup=False, emoji=False)
