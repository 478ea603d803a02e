"""The last line of a terminal: what is going on now. It leaves no trace.

Takes a few words; draws them beside a spinner on stderr. Made only where stderr is a terminal.
"""

from __future__ import annotations

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from turnwire.cli.failing import printable


class Footer:
    """One line that is there or not."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._live: Live | None = None

    def show(self, words: str) -> None:
        spinner = Spinner("dots", Text(printable(words), style="dim", overflow="ellipsis", no_wrap=True))
        if self._live is None:
            self._live = Live(
                spinner, console=self._console, transient=True, redirect_stdout=False, redirect_stderr=False
            )
            self._live.start()
        else:
            self._live.update(spinner)

    def hide(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
