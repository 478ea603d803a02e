"""A session as one ACP client sees it: events in, that client's frames out. Pure."""

from turnwire.core.face.face import FOLDED, Face
from turnwire.core.face.outgoing import Answer, Ask, Fail, Notify, Outgoing, Tell, Withdraw

__all__ = ["FOLDED", "Answer", "Ask", "Face", "Fail", "Notify", "Outgoing", "Tell", "Withdraw"]
