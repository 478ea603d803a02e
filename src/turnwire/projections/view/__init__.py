"""The view that clients read of a session, folded from its log: transcript, latest values, turns, requests.
Pure.
"""

from turnwire.projections.view.latest import MAIN_PLAN, Latest, Usage
from turnwire.projections.view.tools import Terminal, terminal_ids
from turnwire.projections.view.transcript import (
    AnyItem,
    ChildSession,
    Compaction,
    Item,
    Message,
    MessageRole,
    ToolCall,
    Unknown,
)
from turnwire.projections.view.turns import Outcome, TurnError, TurnRecord
from turnwire.projections.view.view import (
    VIEW_VERSION,
    ChildRecord,
    Session,
    View,
    decode_view,
    encode_view,
)

__all__ = [
    "MAIN_PLAN",
    "VIEW_VERSION",
    "AnyItem",
    "ChildRecord",
    "ChildSession",
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
    "terminal_ids",
]
