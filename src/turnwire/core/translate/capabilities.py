"""What an agent offers, in the words of either version, with what turnwire adds to it.

Takes an agent's capabilities; gives them for a client. turnwire itself lists, resumes, closes and deletes sessions
and replays their history, so these are there whatever the agent can do.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Raw, Struct

from turnwire.core.dialect import VENDOR
from turnwire.core.translate.members import as_object, child, is_offered

_BLOCKS: Final = ("image", "audio", "embeddedContext")
_SERVERS: Final = ("stdio", "http", "sse")
_SERVED: Final[dict[str, Any]] = {"list": {}, "resume": {}, "close": {}, "delete": {}}
"""What v1 clients find at every session. On v2 all but deleting need no word."""


class Host(Struct, frozen=True, kw_only=True):
    """What the node itself brings to every session."""

    version: str
    """Of turnwire."""
    turn_complete: bool = True
    """Offer the `turn_complete` update."""
    ready: bool = True
    """Offer to wait for `session/ready`."""
    strict: bool = False
    """Name what is only a draft of ACP nowhere but in `_meta`."""
    passed: frozenset[str] = frozenset()
    """Session capabilities of agents that the node passes on, such as `additionalDirectories`."""

    def drafts(self, ready: Any) -> dict[str, Any]:
        """The drafts that are switched on. `ready`: the value that stands for it."""
        drafts: dict[str, Any] = {"turnComplete": {}} if self.turn_complete else {}
        return {**drafts, "ready": ready} if self.ready else drafts


class Offered(Struct, frozen=True, kw_only=True):
    """What an agent offers, in the words of neither version."""

    blocks: tuple[str, ...]
    """Types of content in prompts beyond text and links."""
    servers: tuple[str, ...]
    """Transports of MCP servers."""
    session: dict[str, Any]
    """Markers that are spelt the same in both versions."""
    meta: dict[str, Any]


def read_offered(capabilities: Raw, version: int) -> Offered:
    """The capabilities of an agent of that version."""
    given = as_object(capabilities)
    if version == 2:
        session = child(given, "session")
        prompt, servers = child(session, "prompt"), child(session, "mcp")
        markers = session
    else:
        prompt, servers = child(given, "promptCapabilities"), child(given, "mcpCapabilities")
        markers = child(given, "sessionCapabilities")
    return Offered(
        blocks=tuple(each for each in _BLOCKS if is_offered(prompt, each)),
        # v1 has no word for stdio: every agent takes it.
        servers=tuple(each for each in _SERVERS if is_offered(servers, each) or (each, version) == ("stdio", 1)),
        session={name: value for name, value in markers.items() if isinstance(value, dict)},
        meta=child(given, "_meta"),
    )


def capabilities_v1(offered: Offered, host: Host, *, logout: bool) -> dict[str, Any]:
    """`agentCapabilities` for a v1 client."""
    drafts, passed = host.drafts({}), _passed(offered, host)
    session: dict[str, Any] = {**passed, **_SERVED, **({} if host.strict else drafts)}
    meta = {**offered.meta, **({VENDOR: drafts} if host.strict and drafts else {})}
    return {
        "loadSession": True,
        "promptCapabilities": dict.fromkeys(offered.blocks, True),
        "mcpCapabilities": {each: True for each in offered.servers if each != "stdio"},
        "sessionCapabilities": session,
        **({"auth": {"logout": {}}} if logout else {}),
        **({"_meta": meta} if meta else {}),
    }


def capabilities_v2(offered: Offered, host: Host) -> dict[str, Any]:
    """`capabilities` for a v2 client. The end of a turn is a state there, so no marker of it is offered."""
    servers: dict[str, Any] = {each: {} for each in offered.servers if each != "sse"}
    session: dict[str, Any] = {
        **_passed(offered, host),
        "delete": {},
        "prompt": {each: {} for each in offered.blocks},
        "mcp": servers,
    }
    if host.ready and not host.strict:
        session["ready"] = True
    drafts = host.drafts({})
    if host.strict and drafts:
        session["_meta"] = {VENDOR: drafts}
    return {"session": session, **({"_meta": offered.meta} if offered.meta else {})}


def _passed(offered: Offered, host: Host) -> dict[str, Any]:
    return {name: value for name, value in offered.session.items() if name in host.passed}
