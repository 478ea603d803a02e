"""Client SDK: connect to an agent or a daemon, prompt, receive every update, await every end."""

from turnwire.client.client import Client, connect
from turnwire.client.daemon_client import (
    DaemonClient,
    Envelope,
    OpenedSession,
    PromptResult,
    SessionStatus,
    TurnStatus,
)
from turnwire.client.form import Form
from turnwire.client.permission import Option, PermissionRequest
from turnwire.client.permission import PermissionRequest as Question  # its earlier name
from turnwire.client.port import Accepted
from turnwire.client.progress import TurnResult
from turnwire.client.session import Session
from turnwire.client.tool_call import FileDiff, ToolCall
from turnwire.client.turn import Steered, Turn
from turnwire.client.update import Update
from turnwire.wire.schema.common import TurnCompleteUpdate

__all__ = [
    "Accepted",
    "Client",
    "DaemonClient",
    "Envelope",
    "FileDiff",
    "Form",
    "OpenedSession",
    "Option",
    "PermissionRequest",
    "PromptResult",
    "Question",
    "Session",
    "SessionStatus",
    "Steered",
    "ToolCall",
    "Turn",
    "TurnCompleteUpdate",
    "TurnResult",
    "TurnStatus",
    "Update",
    "connect",
]
