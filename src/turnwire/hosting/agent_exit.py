"""Descriptions of an agent's end: as one line of text, as an input for its session, and as an error for a caller.

A message contains no more of the agent's output than its last line on standard error. Secrets and terminal control
sequences are removed from it. The complete output is attached separately.
"""

from __future__ import annotations

import re

from msgspec import UNSET, Raw, Struct, json

from turnwire.errors import AgentError, AgentLaunchFailed, AgentUnavailable, AuthRequired
from turnwire.hosting.process import Exit, signal_name
from turnwire.session.events import AgentExited
from turnwire.session.inputs import AgentGone

LINE = 300
"""Maximum number of characters of agent output in a message."""


def in_words(how: Exit | None) -> str | None:
    """Return a text such as `the agent ended with exit code 3: cannot find config`; `None` if its end was not
    observed.
    """
    if how is None:
        return None
    return end_in_words(how.exit_code, signal_name(how.signal) if how.signal else None, how.stderr_tail)


def end_in_words(exit_code: int | None, by_signal: str | None, stderr_tail: str | None) -> str | None:
    """Return the same from the members of an event."""
    how = _manner(exit_code, by_signal)
    if how is None:
        return None
    said = one_line(_telling_line(stderr_tail or ""))
    return f"the agent ended {how}" + (f": {said}" if said else "; run its command by hand to see why")


_NODE = re.compile(r"Node\.js v[\d.]+")
_ERROR = re.compile(r"(?i)^(?!at )[^ ]*.*\b\w*(error|exception|fatal|panic)\b")


def _telling_line(output: str) -> str:
    """Return the line that says why a program ended: the last one, unless Node has printed its version there."""
    lines = [each.strip() for each in output.strip().splitlines()]
    if not lines or not _NODE.fullmatch(lines[-1]):
        return lines[-1] if lines else ""
    return next((each for each in reversed(lines) if _ERROR.match(each)), lines[-1])


def manner(how: Exit | None) -> str | None:
    """Return `by SIGKILL`, or `with exit code 3`; `None` if its end was not observed."""
    return None if how is None else _manner(how.exit_code, signal_name(how.signal) if how.signal else None)


def _manner(exit_code: int | None, by_signal: str | None) -> str | None:
    if by_signal is not None:
        return f"by {by_signal}"
    return None if exit_code is None else f"with exit code {exit_code}"


def one_line(said: str) -> str:
    """Return agent output in a form that is safe inside our messages."""
    line = "".join(each if each.isprintable() else " " for each in said).strip()
    return line if len(line) <= LINE else f"{line[:LINE]}…"


def agent_gone(at: int, code: str, message: str, how: Exit | None = None, error: Raw | None = None) -> AgentGone:
    """Return the end of an agent as an input, with all known details."""
    return AgentGone(
        at=at,
        code=code,
        message=message,
        exit_code=how.exit_code if how else None,
        signal=signal_name(how.signal) if how and how.signal else None,
        stderr_tail=(how.stderr_tail or None) if how else None,
        error=error,
    )


class _Offered(Struct, rename="camel"):
    auth_methods: Raw = Raw(b"[]")


class _Refusal(Struct):
    data: _Offered


class _Said(Struct):
    message: str = ""


def failure_of(event: AgentExited) -> AgentError:
    """Return the error for a session without an agent, from the event that records it."""
    message = _message(event)
    if event.reason == AuthRequired.code and event.agent_error is not UNSET:
        return AuthRequired(message, methods=bytes(json.decode(event.agent_error, type=_Refusal).data.auth_methods))
    if event.reason == AgentUnavailable.code:
        return AgentUnavailable(message, **_end(event))
    refusal = None if event.agent_error is UNSET else bytes(event.agent_error)
    return AgentLaunchFailed(message, definite=False, agent_error=refusal, reason=event.reason, **_end(event))


def _end(event: AgentExited) -> dict[str, str | int | None]:
    """Return the details that accompany the message: the same as at the end of a turn."""
    return {"exit_code": event.exit_code, "signal": event.signal, "stderr_tail": event.stderr_tail}


def _message(event: AgentExited) -> str:
    if event.reason == "agent_exited":
        # The agent answered `initialize` and died while opening the session; the event only records that it is
        # gone.
        words = end_in_words(event.exit_code, event.signal, event.stderr_tail)
    elif event.reason == AgentLaunchFailed.code and event.agent_error is not UNSET:
        words = f"{event.message}: {one_line(json.decode(event.agent_error, type=_Said).message)}"
    else:
        words = None
    return words or event.message or "no agent could be started for the session"
