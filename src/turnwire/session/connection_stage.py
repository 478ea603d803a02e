"""The calls that are allowed in each stage of a client's connection, to the daemon or to an agent of the SDK.

`initialize` comes first. It may be repeated until another request arrives; then the agreement is final. If an agent
requires a login, it precedes everything else. No I/O: the caller sends the answers.

  CALLS   the verdict on each call in each stage
  STEPS   the following stage
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from turnwire.wire.jsonrpc import AUTH_REQUIRED, INVALID_REQUEST, ErrorObject


class ConnectionStage(Enum):
    """The stage of a connection."""

    NEW = "new"
    """No version is agreed."""
    AGREED = "agreed"
    """`initialize` was answered, and no request has arrived since."""
    AGREED_LOCKED = "agreed_locked"
    """As `AGREED`, and the client has to log in."""
    BEGUN = "begun"
    """A request has arrived, so the agreement is final."""
    BEGUN_LOCKED = "begun_locked"


class MessageKind(Enum):
    """The kind of a client's message."""

    INITIALIZE = "initialize"
    LOGIN = "login"
    """Login or logout."""
    REQUEST = "request"
    UNKNOWN = "unknown"
    """A method that the agent does not have."""
    UNANSWERED = "unanswered"
    """A notification, or an answer of the client: it gets no error response."""


class Admittance(Enum):
    """The verdict on a message."""

    TAKEN = "taken"
    IGNORED = "ignored"
    TOO_EARLY = "too_early"
    TOO_LATE = "too_late"
    LOCKED = "locked"
    NO_METHOD = "no_method"


class Step(Enum):
    """A transition of a connection."""

    AGREE = "agree"
    """`initialize` was answered."""
    AGREE_LOCKED = "agree_locked"
    """`initialize` was answered by an agent that requires a login."""
    BEGIN = "begin"
    """Another message was accepted."""
    LOG_IN = "log_in"
    LOG_OUT = "log_out"


_NEW, _AGREED, _BEGUN = ConnectionStage.NEW, ConnectionStage.AGREED, ConnectionStage.BEGUN
_AGREED_LOCKED, _BEGUN_LOCKED = ConnectionStage.AGREED_LOCKED, ConnectionStage.BEGUN_LOCKED
_TAKEN, _IGNORED, _NO_METHOD = Admittance.TAKEN, Admittance.IGNORED, Admittance.NO_METHOD
_EARLY, _LATE, _LOCKED = Admittance.TOO_EARLY, Admittance.TOO_LATE, Admittance.LOCKED

_COLUMNS = (
    MessageKind.INITIALIZE,
    MessageKind.LOGIN,
    MessageKind.REQUEST,
    MessageKind.UNKNOWN,
    MessageKind.UNANSWERED,
)
_ROWS: Final[dict[ConnectionStage, tuple[Admittance, ...]]] = {
    # An unknown method is reported before any login: no login would add it.
    _NEW: (_TAKEN, _EARLY, _EARLY, _EARLY, _IGNORED),
    _AGREED: (_TAKEN, _TAKEN, _TAKEN, _NO_METHOD, _TAKEN),
    _AGREED_LOCKED: (_TAKEN, _TAKEN, _LOCKED, _NO_METHOD, _TAKEN),
    _BEGUN: (_LATE, _TAKEN, _TAKEN, _NO_METHOD, _TAKEN),
    _BEGUN_LOCKED: (_LATE, _TAKEN, _LOCKED, _NO_METHOD, _TAKEN),
}

CALLS: Final[dict[tuple[ConnectionStage, MessageKind], Admittance]] = {
    (stage, call): verdict for stage, row in _ROWS.items() for call, verdict in zip(_COLUMNS, row, strict=True)
}

STEPS: Final[dict[tuple[ConnectionStage, Step], ConnectionStage]] = {
    **{(stage, Step.AGREE): _AGREED for stage in (_NEW, _AGREED, _AGREED_LOCKED)},
    **{(stage, Step.AGREE_LOCKED): _AGREED_LOCKED for stage in (_NEW, _AGREED, _AGREED_LOCKED)},
    # A repeated `initialize` may be answered after another message was accepted in the meantime.
    (_BEGUN, Step.AGREE): _BEGUN,
    (_BEGUN_LOCKED, Step.AGREE_LOCKED): _BEGUN_LOCKED,
    (_AGREED, Step.BEGIN): _BEGUN,
    (_AGREED_LOCKED, Step.BEGIN): _BEGUN_LOCKED,
    (_BEGUN, Step.BEGIN): _BEGUN,
    (_BEGUN_LOCKED, Step.BEGIN): _BEGUN_LOCKED,
    # Logins and logouts are requests, so the connection has begun by then.
    **{(stage, Step.LOG_IN): _BEGUN for stage in (_BEGUN, _BEGUN_LOCKED)},
    **{(stage, Step.LOG_OUT): _BEGUN_LOCKED for stage in (_BEGUN, _BEGUN_LOCKED)},
}
"""Pairs that are not listed cannot happen."""

REFUSALS: Final[dict[Admittance, ErrorObject]] = {
    _EARLY: ErrorObject(INVALID_REQUEST, "`initialize` comes first"),
    _LATE: ErrorObject(INVALID_REQUEST, "the connection is initialized already"),
    _LOCKED: ErrorObject(AUTH_REQUIRED, "log in first, by one of the agent's authMethods"),
}
"""The errors that reject requests. The caller creates the error for an unknown method."""


class Admission:
    """The state of one client's connection."""

    def __init__(self) -> None:
        self.stage = ConnectionStage.NEW

    @property
    def is_initialized(self) -> bool:
        return self.stage is not ConnectionStage.NEW

    def judge(self, call: MessageKind) -> Admittance:
        """Return the verdict on a message of this kind."""
        return CALLS[self.stage, call]

    def step(self, step: Step) -> None:
        """Proceed to the next stage."""
        after = STEPS.get((self.stage, step))
        assert after is not None, f"{step} cannot happen in {self.stage}"
        self.stage = after
