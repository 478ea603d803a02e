"""What an ACP client is sent in its own dialect: of a turn (`encoder`), of a session's events (`session`). Pure."""

from turnwire.core.encoder.encoder import (
    Answer,
    Ask,
    Dialect,
    EndedTurn,
    Fail,
    Outgoing,
    Tell,
    TellBlocked,
    Withdraw,
    encoder_for,
)
from turnwire.core.encoder.session import FOLDED, SessionEncoder

__all__ = [
    "FOLDED",
    "Answer",
    "Ask",
    "Dialect",
    "EndedTurn",
    "Fail",
    "Outgoing",
    "SessionEncoder",
    "Tell",
    "TellBlocked",
    "Withdraw",
    "encoder_for",
]
