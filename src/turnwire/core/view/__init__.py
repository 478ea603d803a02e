"""What clients read of a session, folded from its log: transcript, latest values, turns, open questions. Pure."""

from turnwire.core.view.items import (
    AnyItem,
    Compaction,
    Item,
    Message,
    MessageRole,
    ToolCall,
    Unknown,
)
from turnwire.core.view.latest import MAIN_PLAN, Latest, Usage
from turnwire.core.view.snapshot import VIEW_VERSION, decode_view, encode_view
from turnwire.core.view.terminals import Terminal
from turnwire.core.view.turns import Outcome, TurnError, TurnRecord
from turnwire.core.view.view import Session, View

__all__ = [
    "MAIN_PLAN",
    "VIEW_VERSION",
    "AnyItem",
    "Compaction",
    "Item",
    "Latest",
    "Message",
    "MessageRole",
    "Outcome",
    "Session",
    "Terminal",
    "ToolCall",
    "TurnError",
    "TurnRecord",
    "Unknown",
    "Usage",
    "View",
    "decode_view",
    "encode_view",
]
