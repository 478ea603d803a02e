"""How an agent ended, in one line: for whoever waits for it, and for the daemon's log.

Takes what is known of an end; gives words. Never more of the agent's own than its last line on standard error, from
which secrets are gone already, and nothing in it that a terminal obeys.
"""

from __future__ import annotations

import signal

from turnwire.link.process import Exit

LINE = 300
"""Characters of an agent's own words in a message. What it wrote as a whole goes beside the message."""


def in_words(how: Exit | None) -> str | None:
    """Such as `the agent ended with exit code 3: cannot find config`; None if nobody saw it end."""
    if how is None:
        return None
    return end_in_words(how.exit_code, signal_name(how.signal) if how.signal else None, how.stderr_tail)


def end_in_words(exit_code: int | None, by_signal: str | None, stderr_tail: str | None) -> str | None:
    """The same from the members of an event."""
    if exit_code is None and by_signal is None:
        return None
    how = f"by {by_signal}" if by_signal is not None else f"with exit code {exit_code}"
    said = one_line((stderr_tail or "").strip().rpartition("\n")[2])
    return f"the agent ended {how}" + (f": {said}" if said else "; run its command by hand to see why")


def one_line(said: str) -> str:
    """Words of an agent as a part of ours."""
    line = "".join(each if each.isprintable() else " " for each in said).strip()
    return line if len(line) <= LINE else f"{line[:LINE]}…"


def signal_name(number: int) -> str:
    """`SIGKILL` and its like; `SIG35` for one that has only its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
