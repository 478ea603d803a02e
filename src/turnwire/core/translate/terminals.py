"""Terminals of a v2 agent, as text for a v1 client, which knows only terminals of its own.

Takes the updates of a terminal; gives what it shows now, in words. Bytes are joined before they are read, because a
piece may end inside a character. Never shows control sequences, and of a long output only the end.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Raw

from turnwire.core.events import SessionUpdated
from turnwire.core.translate.diffs import fenced
from turnwire.core.translate.members import members, text_of
from turnwire.core.view import tools
from turnwire.core.view.tools import Terminal

_SHOWN: Final = 64 * 1024
"""Bytes of output that are shown. All of it goes out again with each change, so it must stay small."""
_CONTROLS: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)"  # OSC and other strings
    r"|\x1b[ -/]*[0-~]?"  # other escapes, and one that was cut
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]",
    re.DOTALL,
)
_LINE_ENDS: Final = re.compile(r"\r*\n|\r")
_NO_TIME: Final = 0


class Terminals:
    """The terminals of one session."""

    def __init__(self) -> None:
        self._known: dict[str, Terminal] = {}

    def take(self, kind: str, update: Raw) -> str | None:
        """Apply an update; gives the id of its terminal, none if it could not be applied."""
        event = SessionUpdated(at=_NO_TIME, kind=kind, update=update)
        fold = tools.update_terminal if kind == "terminal_update" else tools.append_output
        return text_of(members(update), "terminalId") if fold(self._known, event, 0) else None

    def size(self, terminal_id: str) -> int:
        """How much it has put out."""
        terminal = self._known.get(terminal_id)
        return 0 if terminal is None else len(terminal.output)

    def as_text(self, terminal_id: str) -> str:
        """What it shows now."""
        terminal = self._known.get(terminal_id)
        if terminal is None:
            return f"[terminal {terminal_id}]"
        output = terminal.output[-_SHOWN:].decode(errors="replace")
        lines = [] if terminal.command is None else [f"$ {terminal.command}"]
        if len(terminal.output) > _SHOWN:
            lines.append("[earlier output is left out]")
        shown = sanitized(output)
        if shown:
            lines.append(shown.removesuffix("\n"))
        ended = _ended(terminal)
        return fenced("\n".join(lines if ended is None else [*lines, ended]))


def sanitized(output: str) -> str:
    """Text without what would move the cursor, ring, or pretend to be something else."""
    return _LINE_ENDS.sub("\n", _CONTROLS.sub("", output))


def _ended(terminal: Terminal) -> str | None:
    if not isinstance(terminal.exit_status, Raw):
        return None
    status = members(terminal.exit_status)
    signal = text_of(status, "signal")
    if signal is not None:
        return f"[ended by {signal}]"
    code = status.get("exitCode")
    return "[ended]" if code is None else f"[exit code {bytes(code).decode()}]"
