"""How an agent ended: in one line of words, as an input for its session, and as the error that a caller gets.

There is never more of the agent's own in a message than its last line on standard error, from which secrets are
gone already, and nothing in it that a terminal obeys. All that it wrote goes beside the message.
"""

from __future__ import annotations

from msgspec import UNSET, Raw, Struct, json

from turnwire.core.events import AgentExited
from turnwire.core.inputs import AgentGone
from turnwire.errors import AgentError, AgentLaunchFailed, AgentUnavailable, AuthRequired
from turnwire.link.process import Exit, signal_name

LINE = 300
"""Characters of an agent's own words in a message."""


def in_words(how: Exit | None) -> str | None:
    """Such as `the agent ended with exit code 3: cannot find config`; None if nobody saw it end."""
    if how is None:
        return None
    return end_in_words(how.exit_code, signal_name(how.signal) if how.signal else None, how.stderr_tail)


def end_in_words(exit_code: int | None, by_signal: str | None, stderr_tail: str | None) -> str | None:
    """The same from the members of an event."""
    how = _manner(exit_code, by_signal)
    if how is None:
        return None
    said = one_line((stderr_tail or "").strip().rpartition("\n")[2])
    return f"the agent ended {how}" + (f": {said}" if said else "; run its command by hand to see why")


def manner(how: Exit | None) -> str | None:
    """`by SIGKILL`, or `with exit code 3`; None if nobody saw it end."""
    return None if how is None else _manner(how.exit_code, signal_name(how.signal) if how.signal else None)


def _manner(exit_code: int | None, by_signal: str | None) -> str | None:
    if by_signal is not None:
        return f"by {by_signal}"
    return None if exit_code is None else f"with exit code {exit_code}"


def one_line(said: str) -> str:
    """Words of an agent as a part of ours."""
    line = "".join(each if each.isprintable() else " " for each in said).strip()
    return line if len(line) <= LINE else f"{line[:LINE]}…"


def agent_gone(at: int, code: str, message: str, how: Exit | None = None, error: Raw | None = None) -> AgentGone:
    """The end of an agent as an input, with all that is known of it."""
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
    """Why no agent has the session, from the event that says so."""
    message = _message(event)
    if event.reason == AuthRequired.code and event.agent_error is not UNSET:
        return AuthRequired(message, methods=bytes(json.decode(event.agent_error, type=_Refusal).data.auth_methods))
    if event.reason == AgentUnavailable.code:
        return AgentUnavailable(message, **_end(event))
    refusal = None if event.agent_error is UNSET else bytes(event.agent_error)
    return AgentLaunchFailed(message, definite=False, agent_error=refusal, reason=event.reason, **_end(event))


def _end(event: AgentExited) -> dict[str, str | int | None]:
    """What whoever waits is told beside the message: the same as the end of a turn tells."""
    return {"exit_code": event.exit_code, "signal": event.signal, "stderr_tail": event.stderr_tail}


def _message(event: AgentExited) -> str:
    if event.reason == "agent_exited":
        # It answered `initialize` and died over the session; the event only says that it is gone.
        words = end_in_words(event.exit_code, event.signal, event.stderr_tail)
    elif event.reason == AgentLaunchFailed.code and event.agent_error is not UNSET:
        words = f"{event.message}: {one_line(json.decode(event.agent_error, type=_Said).message)}"
    else:
        words = None
    return words or event.message or "no agent could be started for the session"
