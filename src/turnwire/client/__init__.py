"""The client half of the SDK: connect to an agent, prompt its sessions, hear every update, await every end."""

from turnwire.client.client import Client, connect
from turnwire.client.port import Accepted
from turnwire.client.progress import TurnResult
from turnwire.client.question import Option, Question
from turnwire.client.session import Session
from turnwire.client.turn import Turn
from turnwire.client.update import Update

__all__ = ["Accepted", "Client", "Option", "Question", "Session", "Turn", "TurnResult", "Update", "connect"]
