"""What an ACP client is sent in its own dialect: of a turn (`encoder`), of a session's events (`session`). Pure."""

from turnwire.core.encoder.encoder import Dialect, Emission, EndedTurn, encoder_for
from turnwire.core.encoder.outgoing import Answer, Ask, Fail, Notify, Outgoing, Tell, TellBlocked, Withdraw
from turnwire.core.encoder.session import FOLDED, SessionEncoder

__all__ = [
    "FOLDED",
    "Answer",
    "Ask",
    "Dialect",
    "Emission",
    "EndedTurn",
    "Fail",
    "Notify",
    "Outgoing",
    "SessionEncoder",
    "Tell",
    "TellBlocked",
    "Withdraw",
    "encoder_for",
]
