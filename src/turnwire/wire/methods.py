"""The methods of ACP: one table of who handles what, in which version, and what must be advertised first.

Takes a method name, gives its row or nothing. Covers v1 and v2, stable and unstable, and the drafts turnwire
speaks. Never judges a message: an unknown method is the caller's to refuse or to ignore.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

PERMISSION: Final = "session/request_permission"


class Side(StrEnum):
    """Who handles a method, that is: who receives it."""

    AGENT = "agent"
    CLIENT = "client"
    BOTH = "both"


class Kind(StrEnum):
    """Whether a method is answered. `mcp/message` and `proxy/successor` come in both forms."""

    REQUEST = "request"
    NOTIFICATION = "notification"
    EITHER = "either"


class Stability(StrEnum):
    """How settled a method is. A draft is in no published schema; turnwire offers it by negotiation."""

    STABLE = "stable"
    UNSTABLE = "unstable"
    DRAFT = "draft"


class Method(NamedTuple):
    """One method in one version of the protocol."""

    name: str
    version: int
    side: Side
    kind: Kind
    session_scoped: bool
    """Its params name a session, so it belongs to that session's order."""
    gate: str
    """Where in `initialize` the handling side advertises it; empty if nothing needs to be advertised."""
    stability: Stability


_A, _C, _B = Side.AGENT, Side.CLIENT, Side.BOTH
_REQ, _NOTE, _ANY = Kind.REQUEST, Kind.NOTIFICATION, Kind.EITHER
_S, _U, _D = Stability.STABLE, Stability.UNSTABLE, Stability.DRAFT
_SESSION, _CONNECTION = True, False

_Row = tuple[str, Side, Kind, bool, str, Stability]

# The gates of an agent are paths in its `initialize` result, those of a client paths in its params.
_V1_SESSION = "agentCapabilities.sessionCapabilities"
_V2_SESSION = "capabilities.session"

_V1: Final[tuple[_Row, ...]] = (
    ("initialize", _A, _REQ, _CONNECTION, "", _S),
    ("authenticate", _A, _REQ, _CONNECTION, "authMethods", _S),
    ("logout", _A, _REQ, _CONNECTION, "agentCapabilities.auth.logout", _S),
    ("auth/status", _A, _REQ, _CONNECTION, "agentCapabilities.auth.status", _U),
    ("auth/status_update", _C, _NOTE, _CONNECTION, "", _U),
    ("session/new", _A, _REQ, _CONNECTION, "", _S),
    ("session/load", _A, _REQ, _SESSION, "agentCapabilities.loadSession", _S),
    ("session/resume", _A, _REQ, _SESSION, f"{_V1_SESSION}.resume", _S),
    ("session/fork", _A, _REQ, _SESSION, f"{_V1_SESSION}.fork", _U),
    ("session/list", _A, _REQ, _CONNECTION, f"{_V1_SESSION}.list", _S),
    ("session/delete", _A, _REQ, _SESSION, f"{_V1_SESSION}.delete", _S),
    ("session/close", _A, _REQ, _SESSION, f"{_V1_SESSION}.close", _S),
    ("session/status", _A, _REQ, _SESSION, f"{_V1_SESSION}.status", _U),
    ("session/archive", _A, _REQ, _SESSION, f"{_V1_SESSION}.archive", _U),
    ("session/unarchive", _A, _REQ, _SESSION, f"{_V1_SESSION}.archive", _U),
    ("session/set_title", _A, _REQ, _SESSION, f"{_V1_SESSION}.title", _U),
    ("session/set_mode", _A, _REQ, _SESSION, "", _S),
    ("session/set_config_option", _A, _REQ, _SESSION, "", _S),
    ("session/prompt", _A, _REQ, _SESSION, "", _S),
    ("session/cancel", _A, _NOTE, _SESSION, "", _S),
    ("session/ready", _A, _NOTE, _SESSION, f"{_V1_SESSION}.ready", _D),
    ("_session/ready", _A, _NOTE, _SESSION, f"{_V1_SESSION}.ready", _D),
    ("session/attach", _A, _REQ, _SESSION, f"{_V1_SESSION}.attach", _D),
    ("session/detach", _A, _REQ, _SESSION, f"{_V1_SESSION}.attach", _D),
    ("_session/steering", _A, _REQ, _SESSION, "", _D),
    ("providers/list", _A, _REQ, _CONNECTION, "agentCapabilities.providers", _U),
    ("providers/set", _A, _REQ, _CONNECTION, "agentCapabilities.providers", _U),
    ("providers/disable", _A, _REQ, _CONNECTION, "agentCapabilities.providers", _U),
    ("session/update", _C, _NOTE, _SESSION, "", _S),
    ("session/request_permission", _C, _REQ, _SESSION, "", _S),
    ("fs/read_text_file", _C, _REQ, _SESSION, "clientCapabilities.fs.readTextFile", _S),
    ("fs/write_text_file", _C, _REQ, _SESSION, "clientCapabilities.fs.writeTextFile", _S),
    ("terminal/create", _C, _REQ, _SESSION, "clientCapabilities.terminal", _S),
    ("terminal/output", _C, _REQ, _SESSION, "clientCapabilities.terminal", _S),
    ("terminal/wait_for_exit", _C, _REQ, _SESSION, "clientCapabilities.terminal", _S),
    ("terminal/kill", _C, _REQ, _SESSION, "clientCapabilities.terminal", _S),
    ("terminal/release", _C, _REQ, _SESSION, "clientCapabilities.terminal", _S),
    # A question may hang on a request instead of a session, so its scope is not in the table.
    ("elicitation/create", _C, _REQ, _CONNECTION, "clientCapabilities.elicitation", _S),
    ("elicitation/complete", _C, _NOTE, _CONNECTION, "clientCapabilities.elicitation", _S),
    ("mcp/message", _B, _ANY, _CONNECTION, "agentCapabilities.mcpCapabilities.acp", _U),
    ("proxy/initialize", _B, _REQ, _CONNECTION, "", _U),
    ("proxy/successor", _B, _ANY, _CONNECTION, "", _U),
    ("$/cancel_request", _B, _NOTE, _CONNECTION, "", _S),
)

_V2: Final[tuple[_Row, ...]] = (
    ("initialize", _A, _REQ, _CONNECTION, "", _S),
    ("auth/login", _A, _REQ, _CONNECTION, "authMethods", _S),
    ("auth/logout", _A, _REQ, _CONNECTION, "authMethods", _S),
    ("auth/status", _A, _REQ, _CONNECTION, "capabilities.auth.status", _U),
    ("auth/status_update", _C, _NOTE, _CONNECTION, "", _U),
    ("session/new", _A, _REQ, _CONNECTION, _V2_SESSION, _S),
    ("session/list", _A, _REQ, _CONNECTION, _V2_SESSION, _S),
    ("session/resume", _A, _REQ, _SESSION, _V2_SESSION, _S),
    ("session/close", _A, _REQ, _SESSION, _V2_SESSION, _S),
    ("session/prompt", _A, _REQ, _SESSION, _V2_SESSION, _S),
    ("session/cancel", _A, _NOTE, _SESSION, _V2_SESSION, _S),
    ("session/delete", _A, _REQ, _SESSION, f"{_V2_SESSION}.delete", _S),
    ("session/fork", _A, _REQ, _SESSION, f"{_V2_SESSION}.fork", _U),
    ("session/status", _A, _REQ, _SESSION, f"{_V2_SESSION}.status", _U),
    ("session/archive", _A, _REQ, _SESSION, f"{_V2_SESSION}.archive", _U),
    ("session/unarchive", _A, _REQ, _SESSION, f"{_V2_SESSION}.archive", _U),
    ("session/set_title", _A, _REQ, _SESSION, f"{_V2_SESSION}.title", _U),
    ("session/set_config_option", _A, _REQ, _SESSION, "", _S),
    # Advertised by each item while it can be cancelled, not in `initialize`.
    ("tool_call/cancel", _A, _REQ, _SESSION, "", _S),
    ("terminal/cancel", _A, _REQ, _SESSION, "", _S),
    ("session/ready", _A, _NOTE, _SESSION, f"{_V2_SESSION}.ready", _D),
    ("_session/ready", _A, _NOTE, _SESSION, f"{_V2_SESSION}.ready", _D),
    ("session/attach", _A, _REQ, _SESSION, f"{_V2_SESSION}.attach", _D),
    ("session/detach", _A, _REQ, _SESSION, f"{_V2_SESSION}.attach", _D),
    ("_session/steering", _A, _REQ, _SESSION, "", _D),
    ("providers/list", _A, _REQ, _CONNECTION, "capabilities.providers", _U),
    ("providers/set", _A, _REQ, _CONNECTION, "capabilities.providers", _U),
    ("providers/disable", _A, _REQ, _CONNECTION, "capabilities.providers", _U),
    ("session/update", _C, _NOTE, _SESSION, "", _S),
    ("session/request_permission", _C, _REQ, _SESSION, "", _S),
    ("elicitation/create", _C, _REQ, _CONNECTION, "capabilities.elicitation", _S),
    ("elicitation/complete", _C, _NOTE, _CONNECTION, "capabilities.elicitation", _S),
    ("mcp/message", _B, _ANY, _CONNECTION, f"{_V2_SESSION}.mcp.acp", _U),
    ("proxy/initialize", _B, _REQ, _CONNECTION, "", _U),
    ("proxy/successor", _B, _ANY, _CONNECTION, "", _U),
    ("$/cancel_request", _B, _NOTE, _CONNECTION, "", _S),
)

METHODS: Final[dict[tuple[str, int], Method]] = {
    (row[0], version): Method(row[0], version, *row[1:]) for version, rows in ((1, _V1), (2, _V2)) for row in rows
}
"""Every method by name and protocol version."""


def find_method(name: str, version: int) -> Method | None:
    """What a method is on a connection of that version, if it is one of ACP's."""
    return METHODS.get((name, version))


def is_extension(name: str) -> bool:
    """Whether a method is somebody's own: its name begins with an underscore."""
    return name.startswith("_")
