"""Frames for an ACP client in its dialect: of a turn (`encoder`) and of a session's events (`session`). Pure."""

from turnwire.projections.encoder.encoder import (
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
from turnwire.projections.encoder.session import FOLDED, SessionEncoder

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
