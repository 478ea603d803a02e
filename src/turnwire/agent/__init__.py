"""Write an ACP agent: one function for prompts, served in ACP v1 and v2 with turns that end exactly once."""

from turnwire.agent.agent import Agent
from turnwire.agent.connected_client import Sent
from turnwire.agent.folder_store import FolderStore
from turnwire.agent.options import AgentOptions, AuthMethod, Command, Mode, Option, Value
from turnwire.agent.own_workplace import Ran
from turnwire.agent.session import Session
from turnwire.agent.session_client import Readiness
from turnwire.agent.store import Kept, MemoryStore, Page, SessionStore
from turnwire.agent.tool_call import ToolCall
from turnwire.agent.turn import Choice, Entry, PermissionOption, Turn
from turnwire.errors import AgentFailure, NotOffered, RequestRefused

__all__ = [
    "Agent",
    "AgentFailure",
    "AgentOptions",
    "AuthMethod",
    "Choice",
    "Command",
    "Entry",
    "FolderStore",
    "Kept",
    "MemoryStore",
    "Mode",
    "NotOffered",
    "Option",
    "Page",
    "PermissionOption",
    "Ran",
    "Readiness",
    "RequestRefused",
    "Sent",
    "Session",
    "SessionStore",
    "ToolCall",
    "Turn",
    "Value",
]
