"""What a client may call in which stage of its connection, whoever is its agent: the daemon, or one of the SDK.

`initialize` comes first. It may come again as long as nothing else was asked: then the agreement stands. Where an
agent requires it, logging in comes before everything else. Pure: answers are the caller's to send.

    CALLS   what becomes of each call in each stage
    STEPS   which stage follows
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from turnwire.wire.jsonrpc import AUTH_REQUIRED, INVALID_REQUEST, ErrorObject


class ConnectionStage(Enum):
    """How far a connection is."""

    NEW = "new"
    """Nothing is agreed."""
    AGREED = "agreed"
    """`initialize` was answered, and nothing was asked since."""
    AGREED_LOCKED = "agreed_locked"
    """The same, and the client has to log in."""
    BEGUN = "begun"
    """Something was asked, so the agreement stands."""
    BEGUN_LOCKED = "begun_locked"


class MessageKind(Enum):
    """What a client's message asks for."""

    INITIALIZE = "initialize"
    LOGIN = "login"
    """To log in, or out."""
    REQUEST = "request"
    UNKNOWN = "unknown"
    """A method that the agent does not have."""
    UNANSWERED = "unanswered"
    """A notification, or an answer of the client: nobody waits for a refusal."""


class Admittance(Enum):
    """What becomes of a message."""

    TAKEN = "taken"
    IGNORED = "ignored"
    TOO_EARLY = "too_early"
    TOO_LATE = "too_late"
    LOCKED = "locked"
    NO_METHOD = "no_method"


class Step(Enum):
    """What moves a connection on."""

    AGREE = "agree"
    """`initialize` was answered."""
    AGREE_LOCKED = "agree_locked"
    """It was, by an agent that requires a login."""
    BEGIN = "begin"
    """Another message was taken."""
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
    # An unknown method is told as such before any login: no login would make it known.
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
    # An `initialize` that came again may be answered when another message was taken in the meantime.
    (_BEGUN, Step.AGREE): _BEGUN,
    (_BEGUN_LOCKED, Step.AGREE_LOCKED): _BEGUN_LOCKED,
    (_AGREED, Step.BEGIN): _BEGUN,
    (_AGREED_LOCKED, Step.BEGIN): _BEGUN_LOCKED,
    (_BEGUN, Step.BEGIN): _BEGUN,
    (_BEGUN_LOCKED, Step.BEGIN): _BEGUN_LOCKED,
    # To log in or out is to ask something, so the connection has begun by then.
    **{(stage, Step.LOG_IN): _BEGUN for stage in (_BEGUN, _BEGUN_LOCKED)},
    **{(stage, Step.LOG_OUT): _BEGUN_LOCKED for stage in (_BEGUN, _BEGUN_LOCKED)},
}
"""Pairs that are not here cannot happen."""

REFUSALS: Final[dict[Admittance, ErrorObject]] = {
    _EARLY: ErrorObject(INVALID_REQUEST, "`initialize` comes first"),
    _LATE: ErrorObject(INVALID_REQUEST, "the connection is initialized already"),
    _LOCKED: ErrorObject(AUTH_REQUIRED, "log in first, by one of the agent's authMethods"),
}
"""How a request is refused. What is said of an unknown method is the caller's."""


class Admission:
    """One client's connection."""

    def __init__(self) -> None:
        self.stage = ConnectionStage.NEW

    @property
    def is_initialized(self) -> bool:
        return self.stage is not ConnectionStage.NEW

    def judge(self, call: MessageKind) -> Admittance:
        """What becomes of a message that asks for this."""
        return CALLS[self.stage, call]

    def step(self, step: Step) -> None:
        """Move on."""
        after = STEPS.get((self.stage, step))
        assert after is not None, f"{step} cannot happen in {self.stage}"
        self.stage = after
