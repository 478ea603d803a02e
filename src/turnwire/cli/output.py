"""Output and exit codes of commands: tables or JSON on stdout, messages on stderr.

Colour is used on terminals only. Text of peers cannot control a terminal or disguise itself: `printable` makes text
harmless, and JSON is escaped, which does not change its meaning. A pipe gets JSON unchanged. `fail` turns every
error into a message with an exit code. Tracebacks are shown with `--debug` only, because texts of foreign
exceptions may contain secrets.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import os
import pwd
import re
import sqlite3
import sys
import traceback
import unicodedata
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from turnwire import errors

if TYPE_CHECKING:
    from rich.text import Text

_MARK = re.compile("⟨U\\+[0-9A-F]{4,6}⟩")


def printable(text: str) -> str:
    """Return text that cannot control a terminal or hide a part of itself.

    Control characters are removed. Bidirectional and zero-width characters become visible marks: `⟨U+202E⟩`.
    """
    if text.isprintable():
        return text
    return "".join(each if each in "\n\t" or each.isprintable() else _visible(each) for each in text)


def _visible(sign: str) -> str:
    category = unicodedata.category(sign)
    if category == "Zs":
        return " "
    return f"⟨U+{ord(sign):04X}⟩" if category == "Cf" else ""


def has_hidden(text: str) -> bool:
    """Return whether the text has marks of `printable`."""
    return _MARK.search(text) is not None


def print_json(value: Any) -> None:
    """Print one line of JSON."""
    # Imported here, so that the overview of the commands does not pay for it.
    import json

    print_json_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def print_json_text(text: str | bytes) -> None:
    """Print a line of encoded JSON."""
    if sys.stdout.isatty():
        text = escaped(text if isinstance(text, str) else text.decode(errors="replace"))
    click.echo(text)


def escaped(text: str) -> str:
    """Return JSON with the same meaning, without characters that control a terminal, except line ends."""
    return "".join(each if each == "\n" or each.isprintable() else _escape(each) for each in text)


def _escape(sign: str) -> str:
    # Between the members of an object these are blanks; inside a text JSON has none of them.
    if sign in "\t\r":
        return " "
    units = sign.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


class TerminalJson:
    """Lines of JSON that arrive in chunks, written to a terminal."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, piece: bytes, /) -> int:
        sys.stdout.write(escaped(self._decoder.decode(piece)))
        return len(piece)

    def flush(self) -> None:
        sys.stdout.flush()


def print_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns. Without a terminal nothing is cut and nothing is drawn, so that `awk` can read it."""
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
    """Show a progress line on the terminal inside the block. Yields a function that changes it.

    Without a terminal nothing is written. Print nothing inside the block.
    """
    if not sys.stderr.isatty() or os.environ.get("TERM") in (None, "", "dumb"):
        yield lambda words: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True, highlight=False).status(Text(printable(words))) as status:
        yield lambda words: status.update(Text(printable(words)))


def in_bytes(size: int) -> str:
    """Format a size for people."""
    return f"{size} bytes" if size < 100_000 else f"{size / 1_000_000:.1f} MB"


def moment(at_ms: int | None) -> str:
    """Format a time of the log in the local time zone."""
    if at_ms is None:
        return "-"
    return datetime.fromtimestamp(at_ms / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def ago(moment: str) -> str:
    """Return how long ago a time of the API was, for a person; the text itself if it is not a time."""
    from turnwire.clock import SystemClock

    try:
        seconds = SystemClock().now_ms() / 1000 - datetime.fromisoformat(moment).timestamp()
    except (TypeError, ValueError):
        return moment
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return "just now"


STOPPED = "stopped before"
"""Start of the message by which `turnwire replay --break-at` reports its stop; commands that run it forward it."""


def tell(message: str) -> None:
    """Print a line for the user to stderr."""
    click.echo(f"turnwire: {printable(message)}", err=True)


def tell_next(advice: str) -> None:
    """Print advice about the line before."""
    click.echo(f"  next: {printable(advice)}", err=True)


MAKE_ROOM = "make room on the disk with the daemon's data folder; everything continues by itself"
"""Advice for a full disk."""


def log_trouble(code: str) -> str:
    """Describe why the log of a daemon cannot be written, from the code of its error."""
    reasons = {
        "log_full": "its disk is full",
        "log_corrupt": "its event log is damaged",
        "log_too_slow": "its disk does not answer",
        "log_unavailable": "its event log cannot be written",
        "shutting_down": "it is stopping",
    }
    return reasons.get(code, code)


def is_full(error: BaseException) -> bool:
    """Return whether an error reports a full disk."""
    is_sqlite = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    return is_sqlite or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT))


def foreign_folder(path: Path) -> str:
    """Describe a file or folder that this user may not use."""
    owner, me = path.stat().st_uid, os.getuid()
    if owner == me:
        return f"{path} cannot be written by you, its owner; run `chmod -R u+rwX {path}`"
    return f"{path} belongs to {_user(owner)}, and you are {_user(me)}; change its owner, or give --data DIR"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def print_block(block: Text, *, err: bool = False) -> None:
    """Print text, in colour on a terminal. Long lines are not wrapped."""
    from rich.console import Console

    Console(stderr=err, highlight=False, soft_wrap=True, emoji=False, markup=False).print(block)


# -- failures and exit codes --------------------------------------------------------------------------------------


USAGE = 2
"""The command line is invalid."""
DOCTOR_FAILED = 1
"""`turnwire doctor` found a problem that must be fixed."""
CHECK_FAILED = 1
"""`turnwire check` found a rule that is broken."""
VERIFY_FAILED = 1
"""`turnwire verify` found that a file was altered."""
BROKE_OFF = 3
"""The client disconnected while `turnwire replay --break-at` was stopped."""
INTERRUPTED = 130
"""Ctrl-C, or a cancelled turn."""
TERMINATED = 143
"""A second SIGTERM."""
BROKEN_PIPE = 141
"""The reader of the output is gone."""

EXIT_CODES: Mapping[str, int] = {
    "end_turn": 0,
    "max_tokens": 10,
    "max_turn_requests": 11,
    "refusal": 12,
    "cancelled": INTERRUPTED,
}
"""Exit codes of `turnwire prompt` by the reason of the turn's end."""
OTHER_STOP_REASON = 13

NEXT: Mapping[type[errors.TurnwireError], str] = {
    errors.SessionNotFound: "`turnwire sessions` lists the sessions there are",
    errors.SessionClosed: "start another one: turnwire prompt --new TEXT",
    errors.PromptNotFound: "`turnwire queue SESSION` lists what waits, `turnwire tail SESSION` all that happened",
    errors.PromptNotQueued: "it has started or ended; `turnwire cancel SESSION PROMPT` stops one that runs",
    errors.QueueFull: "`turnwire queue SESSION` shows what waits; remove some, or wait",
    errors.QueueTooLarge: "`turnwire queue SESSION` shows what waits; remove some, or wait",
    errors.LogLocked: "stop what uses it, or give this one a log of its own: --data DIR or --log",
    errors.LogFull: MAKE_ROOM,
    errors.LogVersionMismatch: "use the turnwire that wrote it, or give another --data DIR",
    errors.AgentLaunchFailed: "`turnwire doctor -- AGENT COMMAND` tries to start it",
    errors.AuthRequired: "log in with the agent's own command on the daemon's machine, then try again",
    errors.ShuttingDown: "wait for it, then start it again: turnwire serve",
}
"""Advice for errors whose message cannot know the commands."""


def fail(error: BaseException, *, debug: bool) -> int:
    """Print an error; return the exit code."""
    error = leading(error)
    try:
        if debug:
            traceback.print_exception(error)
        _tell_failure(error)
    except OSError:
        # No message can be printed; the exit code still reports it.
        _give_up(sys.stderr)
    if isinstance(error, BrokenPipeError):
        _give_up(sys.stdout)
    elif isinstance(error, OSError):
        _keep_or_give_up(sys.stdout)
    return _exit_code(error)


def _tell_failure(error: BaseException) -> None:
    if isinstance(error, click.ClickException):
        error.show()
    elif isinstance(error, KeyboardInterrupt | click.Abort | BrokenPipeError):
        return
    elif isinstance(error, errors.TurnwireError):
        tell(str(error) or error.code)
        advice = NEXT.get(type(error))
        if advice is not None:
            tell_next(advice)
    elif isinstance(error, OSError) and error.filename is not None:
        tell(f"{error.filename}: {error.strerror}")
    elif isinstance(error, OSError) and error.errno is not None:
        tell(f"the output cannot be written, or something cannot be read: {error.strerror}")
        tell_next("look where stdout and stderr go: are they open for writing, and is there room?")
    else:
        tell(f"something went wrong that should not ({type(error).__name__})")
        tell_next("run it again as `turnwire --debug …` to see where, and report that")


def _exit_code(error: BaseException) -> int:
    if isinstance(error, click.ClickException):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        return BROKEN_PIPE
    if isinstance(error, OSError) and error.errno is not None:
        return (errors.LogFull if is_full(error) else errors.LogError).exit_status
    return errors.kind_of(error).exit_status


def leading(error: BaseException) -> BaseException:
    """Return the most informative error of a group: a turnwire error before any other."""
    members = list(errors.leaves(error))
    return next((each for each in members if isinstance(each, errors.TurnwireError)), members[0])


def stop_code(stop_reason: str) -> int:
    """Return the exit code for the end of a turn."""
    return EXIT_CODES.get(stop_reason, OTHER_STOP_REASON)


def _keep_or_give_up(stream: TextIO) -> None:
    try:
        stream.flush()
    except OSError:
        _give_up(stream)


def _give_up(stream: TextIO) -> None:
    """Close a broken stream, so that the interpreter does not fail on it again at exit."""
    # A stream without a file descriptor is a substitute, and needs no cleanup.
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
