"""The ACP method table: receiver, versions, required capability and serving part of turnwire, for each method.

Covers v1 and v2, stable and unstable methods, and the drafts that turnwire speaks. Each part that serves methods
has a handler for every row that names it (tested), and looks up here whether a version has a method. How to treat
an unknown method is up to each part. Method names are spelled only here.
"""

from __future__ import annotations

from enum import Flag, StrEnum, auto
from typing import Final, NamedTuple

INITIALIZE: Final = "initialize"
AUTHENTICATE: Final = "authenticate"
AUTH_LOGIN: Final = "auth/login"
LOGOUT: Final = "logout"
AUTH_LOGOUT: Final = "auth/logout"
AUTH_STATUS: Final = "auth/status"
PROVIDERS_LIST: Final = "providers/list"
PROVIDERS_SET: Final = "providers/set"
PROVIDERS_DISABLE: Final = "providers/disable"
SESSION_NEW: Final = "session/new"
SESSION_LOAD: Final = "session/load"
SESSION_RESUME: Final = "session/resume"
SESSION_FORK: Final = "session/fork"
SESSION_ATTACH: Final = "session/attach"
SESSION_DETACH: Final = "session/detach"
SESSION_READY: Final = "session/ready"
SESSION_READY_DRAFT: Final = "_session/ready"
"""`session/ready` in extension spelling, for peers that reject a draft under its future name."""
SESSION_LIST: Final = "session/list"
SESSION_CLOSE: Final = "session/close"
SESSION_DELETE: Final = "session/delete"
SESSION_STATUS: Final = "session/status"
SESSION_ARCHIVE: Final = "session/archive"
SESSION_UNARCHIVE: Final = "session/unarchive"
SESSION_SET_TITLE: Final = "session/set_title"
SESSION_SET_MODE: Final = "session/set_mode"
SESSION_SET_MODEL: Final = "session/set_model"
SESSION_SET_CONFIG_OPTION: Final = "session/set_config_option"
SESSION_PROMPT: Final = "session/prompt"
SESSION_STEERING: Final = "_session/steering"
SESSION_CANCEL: Final = "session/cancel"
TOOL_CALL_CANCEL: Final = "tool_call/cancel"
TERMINAL_CANCEL: Final = "terminal/cancel"
SESSION_UPDATE: Final = "session/update"
SESSION_REQUEST_PERMISSION: Final = "session/request_permission"
ELICITATION_CREATE: Final = "elicitation/create"
ELICITATION_COMPLETE: Final = "elicitation/complete"
FS_READ_TEXT_FILE: Final = "fs/read_text_file"
FS_WRITE_TEXT_FILE: Final = "fs/write_text_file"
TERMINAL_CREATE: Final = "terminal/create"
TERMINAL_OUTPUT: Final = "terminal/output"
TERMINAL_WAIT_FOR_EXIT: Final = "terminal/wait_for_exit"
TERMINAL_KILL: Final = "terminal/kill"
TERMINAL_RELEASE: Final = "terminal/release"
CANCEL_REQUEST: Final = "$/cancel_request"

VENDOR: Final = "turnwire"
"""Our key in `_meta`, and the prefix of our extension methods."""
SESSION_SETTLE: Final = f"_{VENDOR}/session/settle"
"""Ends a turn whose agent does not report its end, such as one that offers `turnComplete` and never sends it."""
STATE_RESYNC_REQUIRED: Final = f"_{VENDOR}/state_resync_required"
"""First message on a stream whose cursor the server cannot resume from."""


class Side(StrEnum):
    """The receiver of a method."""

    AGENT = "agent"
    CLIENT = "client"
    BOTH = "both"


class Kind(StrEnum):
    """Request or notification. `mcp/message` and `proxy/successor` exist in both forms."""

    REQUEST = "request"
    NOTIFICATION = "notification"
    EITHER = "either"


class Stability(StrEnum):
    """Stability of a method. A draft is in no published schema; turnwire offers it by negotiation."""

    STABLE = "stable"
    UNSTABLE = "unstable"
    DRAFT = "draft"


class Part(Flag):
    """The parts of turnwire that serve methods."""

    SERVER = auto()
    """The daemon, in its role as agent: `server/acp`."""
    SDK = auto()
    """An agent written with `turnwire.agent`."""
    SCRIPTED = auto()
    """The scripted agent of `turnwire_testing`."""
    NODE = auto()
    """The runtime, in its role as client of its agents."""


class Method(NamedTuple):
    """One method in one version of the protocol."""

    name: str
    version: int
    side: Side
    kind: Kind
    session_scoped: bool
    """Its params name a session, and it is ordered with that session's other messages."""
    gate: str
    """Path in `initialize` where the receiver advertises it; empty if it need not be advertised."""
    stability: Stability
    served_by: Part


_A, _C, _B = Side.AGENT, Side.CLIENT, Side.BOTH
_REQ, _NOTE, _ANY = Kind.REQUEST, Kind.NOTIFICATION, Kind.EITHER
_S, _U, _D = Stability.STABLE, Stability.UNSTABLE, Stability.DRAFT
_SES, _CON = True, False
_SERVER, _SDK, _SCRIPTED, _NODE = Part.SERVER, Part.SDK, Part.SCRIPTED, Part.NODE
_AGENTS, _ALL, _NONE = _SERVER | _SDK | _SCRIPTED, ~Part(0), Part(0)
_NO: Final = None
"""The version does not have the method."""

_Row = tuple[str, Side, Kind, bool, Stability, str | None, str | None, Part]

# The gates of an agent are paths in its `initialize` result, those of a client paths in its params.
_V1_SESSION = "agentCapabilities.sessionCapabilities"
_V2_SESSION = "capabilities.session"

_ROWS: Final[tuple[_Row, ...]] = (
    # name, side, kind, scope, stability, gate in v1, gate in v2, served by
    (INITIALIZE, _A, _REQ, _CON, _S, "", "", _AGENTS),
    (AUTHENTICATE, _A, _REQ, _CON, _S, "authMethods", _NO, _AGENTS),
    (AUTH_LOGIN, _A, _REQ, _CON, _S, _NO, "authMethods", _AGENTS),
    (LOGOUT, _A, _REQ, _CON, _S, "agentCapabilities.auth.logout", _NO, _AGENTS),
    (AUTH_LOGOUT, _A, _REQ, _CON, _S, _NO, "authMethods", _AGENTS),
    (AUTH_STATUS, _A, _REQ, _CON, _U, "agentCapabilities.auth.status", "capabilities.auth.status", _SERVER),
    ("auth/status_update", _C, _NOTE, _CON, _U, "", "", _NONE),
    (SESSION_NEW, _A, _REQ, _CON, _S, "", _V2_SESSION, _AGENTS),
    (SESSION_LOAD, _A, _REQ, _SES, _S, "agentCapabilities.loadSession", _NO, _AGENTS),
    (SESSION_RESUME, _A, _REQ, _SES, _S, f"{_V1_SESSION}.resume", _V2_SESSION, _AGENTS),
    (SESSION_FORK, _A, _REQ, _SES, _U, f"{_V1_SESSION}.fork", f"{_V2_SESSION}.fork", _AGENTS),
    (SESSION_ATTACH, _A, _REQ, _SES, _D, f"{_V1_SESSION}.attach", f"{_V2_SESSION}.attach", _SERVER),
    (SESSION_DETACH, _A, _REQ, _SES, _D, f"{_V1_SESSION}.attach", f"{_V2_SESSION}.attach", _SERVER),
    (SESSION_READY, _A, _NOTE, _SES, _D, f"{_V1_SESSION}.ready", f"{_V2_SESSION}.ready", _AGENTS),
    (SESSION_READY_DRAFT, _A, _NOTE, _SES, _D, f"{_V1_SESSION}.ready", f"{_V2_SESSION}.ready", _AGENTS),
    (SESSION_LIST, _A, _REQ, _CON, _S, f"{_V1_SESSION}.list", _V2_SESSION, _AGENTS),
    (SESSION_CLOSE, _A, _REQ, _SES, _S, f"{_V1_SESSION}.close", _V2_SESSION, _AGENTS),
    (SESSION_DELETE, _A, _REQ, _SES, _S, f"{_V1_SESSION}.delete", f"{_V2_SESSION}.delete", _AGENTS),
    (SESSION_STATUS, _A, _REQ, _SES, _U, f"{_V1_SESSION}.status", f"{_V2_SESSION}.status", _SERVER),
    (SESSION_ARCHIVE, _A, _REQ, _SES, _U, f"{_V1_SESSION}.archive", f"{_V2_SESSION}.archive", _SERVER),
    (SESSION_UNARCHIVE, _A, _REQ, _SES, _U, f"{_V1_SESSION}.archive", f"{_V2_SESSION}.archive", _SERVER),
    (SESSION_SET_TITLE, _A, _REQ, _SES, _U, f"{_V1_SESSION}.title", f"{_V2_SESSION}.title", _SERVER),
    (SESSION_SET_MODE, _A, _REQ, _SES, _S, "", _NO, _AGENTS),
    # From older schemas; peers that still send it offer a configuration option as well.
    (SESSION_SET_MODEL, _A, _REQ, _SES, _U, "", _NO, _SERVER),
    (SESSION_SET_CONFIG_OPTION, _A, _REQ, _SES, _S, "", "", _AGENTS),
    (SESSION_PROMPT, _A, _REQ, _SES, _S, "", _V2_SESSION, _AGENTS),
    (SESSION_STEERING, _A, _REQ, _SES, _D, "", "", _AGENTS),
    (SESSION_CANCEL, _A, _NOTE, _SES, _S, "", _V2_SESSION, _AGENTS),
    (SESSION_SETTLE, _A, _REQ, _SES, _D, "", "", _SERVER),
    # Advertised by each item while it can be cancelled, not in `initialize`.
    (TOOL_CALL_CANCEL, _A, _REQ, _SES, _S, _NO, "", _SERVER),
    (TERMINAL_CANCEL, _A, _REQ, _SES, _S, _NO, "", _SERVER),
    (PROVIDERS_LIST, _A, _REQ, _CON, _U, "agentCapabilities.providers", "capabilities.providers", _SERVER),
    (PROVIDERS_SET, _A, _REQ, _CON, _U, "agentCapabilities.providers", "capabilities.providers", _SERVER),
    (PROVIDERS_DISABLE, _A, _REQ, _CON, _U, "agentCapabilities.providers", "capabilities.providers", _SERVER),
    (SESSION_UPDATE, _C, _NOTE, _SES, _S, "", "", _NODE),
    (SESSION_REQUEST_PERMISSION, _C, _REQ, _SES, _S, "", "", _NODE),
    # An elicitation may belong to a request instead of a session, so its scope is not in the table.
    (ELICITATION_CREATE, _C, _REQ, _CON, _S, "clientCapabilities.elicitation", "capabilities.elicitation", _NODE),
    (
        ELICITATION_COMPLETE,
        _C,
        _NOTE,
        _CON,
        _S,
        "clientCapabilities.elicitation",
        "capabilities.elicitation",
        _NODE,
    ),
    (FS_READ_TEXT_FILE, _C, _REQ, _SES, _S, "clientCapabilities.fs.readTextFile", _NO, _NODE),
    (FS_WRITE_TEXT_FILE, _C, _REQ, _SES, _S, "clientCapabilities.fs.writeTextFile", _NO, _NODE),
    (TERMINAL_CREATE, _C, _REQ, _SES, _S, "clientCapabilities.terminal", _NO, _NODE),
    (TERMINAL_OUTPUT, _C, _REQ, _SES, _S, "clientCapabilities.terminal", _NO, _NODE),
    (TERMINAL_WAIT_FOR_EXIT, _C, _REQ, _SES, _S, "clientCapabilities.terminal", _NO, _NODE),
    (TERMINAL_KILL, _C, _REQ, _SES, _S, "clientCapabilities.terminal", _NO, _NODE),
    (TERMINAL_RELEASE, _C, _REQ, _SES, _S, "clientCapabilities.terminal", _NO, _NODE),
    ("mcp/message", _B, _ANY, _CON, _U, "agentCapabilities.mcpCapabilities.acp", f"{_V2_SESSION}.mcp.acp", _NONE),
    ("proxy/initialize", _B, _REQ, _CON, _U, "", "", _NONE),
    ("proxy/successor", _B, _ANY, _CON, _U, "", "", _NONE),
    (CANCEL_REQUEST, _B, _NOTE, _CON, _S, "", "", _ALL),
)

METHODS: Final[dict[tuple[str, int], Method]] = {
    (name, version): Method(name, version, side, kind, scope, gate, stability, part)
    for name, side, kind, scope, stability, *gates, part in _ROWS
    for version, gate in enumerate(gates, start=1)
    if gate is not None
}
"""Every method by name and protocol version."""


_NAMES: Final = frozenset(name for name, _ in METHODS)


def find_method(name: str, version: int) -> Method | None:
    """Return the method in that version, or None if ACP does not have it."""
    return METHODS.get((name, version))


def served_by(part: Part, kind: Kind) -> frozenset[str]:
    """Return the methods of any version that a part must handle."""
    return frozenset(each.name for each in METHODS.values() if part in each.served_by and each.kind is kind)


def is_extension(name: str) -> bool:
    """Return whether the name has the prefix of extension methods."""
    return name.startswith("_")


def is_foreign(name: str) -> bool:
    """Return whether no version of ACP has the method.

    Some vendors' methods lack the underscore. `$/…` is reserved for JSON-RPC itself.
    """
    return is_extension(name) or (name not in _NAMES and not name.startswith("$/"))
