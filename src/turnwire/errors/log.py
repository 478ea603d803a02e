"""Errors of the event log. See `turnwire.errors`."""

from __future__ import annotations

from turnwire.errors.base import TurnwireError


class LogError(TurnwireError):
    """The event log refused or failed. What it had acknowledged before is still there."""

    code = "log_error"


class AppendConflict(LogError):
    code = "append_conflict"
    retryable = True


class PositionLost(LogError):
    """`context["why"]` is `epoch`, `trimmed` or `ahead`."""

    code = "position_lost"


class LogUnavailable(LogError):
    code = "log_unavailable"
    retryable = True


class LogLocked(LogUnavailable):
    code = "log_locked"


class LogFull(LogUnavailable):
    code = "log_full"


class LogCorrupt(LogError):
    code = "log_corrupt"


class LogTooNew(LogError):
    code = "log_too_new"
