"""Errors that the SDK tells its caller. See `turnwire.errors`."""

from __future__ import annotations

from turnwire.errors.base import TurnwireError


class ClientError(TurnwireError):
    """The SDK cannot give its caller what was asked for."""

    code = "client_error"


class TurnError(ClientError):
    """A turn ended with an error. `reason` is the stable code of its end, such as `agent_exited`.

    What the agent said of it (`stderr_tail`, `agent_error`) is for the caller and stays out of `context`.
    """

    code = "turn_failed"

    def __init__(
        self,
        message: str,
        *,
        reason: str,
        prompt_id: str,
        exit_code: int | None = None,
        signal: str | None = None,
        stderr_tail: str | None = None,
        agent_error: bytes | None = None,
    ) -> None:
        super().__init__(message, reason=reason, prompt_id=prompt_id, exit_code=exit_code, signal=signal)
        self.reason = reason
        self.prompt_id = prompt_id
        self.exit_code = exit_code
        self.signal = signal
        self.stderr_tail = stderr_tail
        self.agent_error = agent_error
        """The error object of the agent as JSON."""


class DaemonUnreachable(ClientError):
    """Nothing answers at the daemon's URL. What was asked may have been done if only the answer was lost."""

    code = "daemon_unreachable"
    retryable = True


class DaemonRefused(ClientError):
    """The daemon, or something in front of it, refused with a code that is not known here."""

    code = "daemon_refused"


class ClientClosed(ClientError):
    code = "client_closed"
