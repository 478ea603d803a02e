"""What a failure is on the command line: a text that says what to do, and an exit code. The one place for both.

No traceback is shown unless `--debug` asks for it, and never the text of an exception that is not ours: who can
read it asks for it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Mapping
from typing import TextIO

import click

from turnwire import errors
from turnwire.cli.output import tell, tell_next

USAGE = 2
"""The command line itself makes no sense."""
DOCTOR_FAILED = 1
"""`turnwire doctor` found something that must be mended."""
CHECK_FAILED = 1
"""`turnwire check` found a rule that is broken."""
VERIFY_FAILED = 1
"""`turnwire verify` found that a file was altered."""
VERIFY_UNPROVEN = 4
"""`turnwire verify` found nothing that was altered, and no receipt that proves it up to the last end."""
BROKE_OFF = 3
"""The client left while `turnwire replay --break-at` stood still."""
INTERRUPTED = 130
"""Ctrl-C, and a turn that was cancelled."""
TERMINATED = 143
"""A second SIGTERM."""
BROKEN_PIPE = 141
"""Whoever read our output is gone."""

EXIT_CODES: Mapping[str, int] = {
    "end_turn": 0,
    "max_tokens": 10,
    "max_turn_requests": 11,
    "refusal": 12,
    "cancelled": INTERRUPTED,
}
"""Why a turn ended → exit code of `turnwire prompt`."""
OTHER_STOP_REASON = 13

NEXT: Mapping[type[errors.TurnwireError], str] = {
    errors.SessionNotFound: "`turnwire sessions` lists the sessions there are",
    errors.SessionClosed: "start another one: turnwire prompt --new TEXT",
    errors.PromptNotFound: "`turnwire queue SESSION` lists what waits, `turnwire tail SESSION` all that happened",
    errors.PromptNotQueued: "it has started or ended; `turnwire cancel SESSION PROMPT` stops one that runs",
    errors.QueueFull: "`turnwire queue SESSION` shows what waits; remove some, or wait",
    errors.LogLocked: "stop what uses it, or give this one a log of its own: --data DIR or --log",
    errors.LogTooNew: "update turnwire, or give another --data DIR",
    errors.AgentLaunchFailed: "`turnwire doctor -- AGENT COMMAND` tries to start it",
    errors.AuthRequired: "log in with the agent's own command on the daemon's machine, then try again",
    errors.ShuttingDown: "wait for it, then start it again: turnwire serve",
}
"""What to do, where the message of an error cannot know the commands."""


def fail(error: BaseException, *, debug: bool) -> int:
    """Tell what went wrong; gives the exit code."""
    error = leading(error)
    try:
        if debug:
            traceback.print_exception(error)
        _tell_failure(error)
    except OSError:
        # Nobody can be told; the exit code still says it.
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
        return errors.LogError.exit_status
    return errors.kind_of(error).exit_status


def leading(error: BaseException) -> BaseException:
    """The one error of a group that says most: one of ours before any other."""
    members = list(errors.leaves(error))
    return next((each for each in members if isinstance(each, errors.TurnwireError)), members[0])


def stop_code(stop_reason: str) -> int:
    """The exit code for the end of a turn."""
    return EXIT_CODES.get(stop_reason, OTHER_STOP_REASON)


def _keep_or_give_up(stream: TextIO) -> None:
    try:
        stream.flush()
    except OSError:
        _give_up(stream)


def _give_up(stream: TextIO) -> None:
    """So that the interpreter does not fail on it again when it ends."""
    # A stream without a number of its own is somebody's stand-in, and fails nobody.
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
