"""`initialize` between a client and turnwire: the client's capabilities, and those offered to it.

The answer has the agent's capabilities in the client's version, and the ones that turnwire adds to every agent: it
lists, resumes, closes and deletes sessions and replays their history itself. No capability is offered that neither
has: a client that relies on an offer must not be rejected later. A profile does not change after the handshake: one
connection speaks one version.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple

from msgspec import Raw, Struct

from turnwire.errors import RemoteProtocolError, TurnwireError
from turnwire.projections.dialect import NEWEST_VERSION, AgentProfile
from turnwire.projections.meta_terminals import OUTPUT as TERMINAL_OUTPUT
from turnwire.session.child_names import ANNOUNCES
from turnwire.session.json_members import as_object, child, entries, is_offered, members, raw, text_of
from turnwire.wire.jsonrpc import INVALID_PARAMS, UNSUPPORTED_VERSION
from turnwire.wire.methods import VENDOR

# -- released clients ----------------------------------------------------------------------------------------


class Evidence(StrEnum):
    """The source of a row."""

    SEEN = "seen"
    """The client was run at that version, or its source of that day was read."""
    ASSUMED = "assumed"
    """The client is closed; the row follows from its SDK and from reports of agents."""


class KnownClient(NamedTuple):
    """A released client."""

    name: str
    """`clientInfo.name`, as the client writes it."""
    product: str
    version: str
    date: str
    """The date of that version, or of the source that was read."""
    evidence: Evidence
    why: str
    turn_complete: bool = False
    """True if it accepts the `turn_complete` update."""
    ready: bool = False
    """True if it sends `session/ready`."""


_SEEN, _ASSUMED = Evidence.SEEN, Evidence.ASSUMED
_LOGS = "its SDK knows a closed set of updates and logs others"
_IGNORES = "passes over updates that it does not know"
_NEITHER = "its source has neither word"

# Drafts are offered to every client that may know them. A client of this table does not: it would log updates that
# it cannot decode, or turnwire would wait for it in vain. Remove a row as soon as its client supports the draft.
# `docs/interop.md` shows the table as well.
KNOWN_CLIENTS: Final[tuple[KnownClient, ...]] = (
    KnownClient("zed", "Zed", "1.18.0", "2026-08-22", _SEEN, _LOGS),
    KnownClient("JetBrains.IntelliJ IDEA", "IntelliJ IDEA", "2026.1", "2026-04-30", _ASSUMED, _LOGS),
    KnownClient("JetBrains.PyCharm", "PyCharm", "2026.1", "2026-04-30", _ASSUMED, "as IntelliJ IDEA"),
    KnownClient("JetBrains.WebStorm", "WebStorm", "2026.1", "2026-04-30", _ASSUMED, "as IntelliJ IDEA"),
    KnownClient("JetBrains.GoLand", "GoLand", "2026.1", "2026-04-30", _ASSUMED, "as IntelliJ IDEA"),
    KnownClient("JetBrains.CLion", "CLion", "2026.1", "2026-04-30", _ASSUMED, "as IntelliJ IDEA"),
    KnownClient("JetBrains.PhpStorm", "PhpStorm", "2026.1", "2026-04-30", _ASSUMED, "as IntelliJ IDEA"),
    KnownClient("JetBrains.RubyMine", "RubyMine", "2026.1", "2026-04-30", _ASSUMED, "as IntelliJ IDEA"),
    KnownClient("JetBrains.RustRover", "RustRover", "2026.1", "2026-04-30", _ASSUMED, "as IntelliJ IDEA"),
    KnownClient("acpx", "acpx", "0.19.1", "2026-11-15", _SEEN, "prints an error for each update of another kind"),
    KnownClient("toad", "Toad", "0.6.18", "2026-05-17", _SEEN, _IGNORES),
    KnownClient("CodeCompanion.nvim", "CodeCompanion for Neovim", "19.22.0", "2026-08-08", _SEEN, _IGNORES),
    KnownClient("hermes", "hermes.nvim", "0.3.0", "2026-04-23", _SEEN, _LOGS),
    KnownClient("agent-shell", "agent-shell for Emacs", "0.40.1", "2026", _SEEN, _NEITHER),
    KnownClient("QtCreator", "Qt Creator", "20.0.1", "2026-08-21", _SEEN, _NEITHER),
    KnownClient("obsidian-agent-client", "Agent Client for Obsidian", "0.10.6", "2026-06-13", _SEEN, _LOGS),
    KnownClient("agent-console", "Agent Console for Obsidian", "2.3.0", "2026-08-15", _SEEN, _LOGS),
    KnownClient("obsidian-copilot", "Copilot for Obsidian", "4.0.2", "2026-08-22", _SEEN, _LOGS),
    KnownClient("vscode-acp-client", "ACP Client for VS Code", "0.2.0", "2026-05-16", _SEEN, _LOGS),
    KnownClient("vscode-acp", "VSCode ACP", "1.3.0", "2025-12-29", _SEEN, _LOGS),
    KnownClient("acp-ui", "ACP UI", "0.1.15", "2026-05-10", _SEEN, _LOGS),
    KnownClient("DeepChat", "DeepChat", "1.1.0-beta.12", "2026-08-08", _SEEN, _LOGS),
    KnownClient("mitto", "Mitto", "0.2.1", "2026-06-18", _SEEN, _LOGS),
    KnownClient("ngent", "Ngent", "0.4.0", "2026-06-21", _SEEN, _NEITHER),
)

_BY_NAME: Final[Mapping[str, KnownClient]] = {each.name.casefold(): each for each in KNOWN_CLIENTS}


def find_client(name: str | None) -> KnownClient | None:
    """Return the row of a client by its name, ignoring case; `None` for an unknown or unnamed client."""
    return None if name is None else _BY_NAME.get(name.casefold())


OLDEST_VERSION: Final = 1
_GATED: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "notice": (("session",), "notices"),
    "compaction_update": (("session",), "compaction"),
    "compaction_summary_chunk": (("session",), "compaction"),
    "plan_update": ((), "plan"),
    "plan_removed": ((), "plan"),
    ANNOUNCES: ((), "subagents"),
    "session_message": ((), "subagents"),
    "session_message_chunk": ((), "subagents"),
}
"""Updates that a v1 client must request, with the place of the request in its capabilities."""

# -- capabilities of the client ---------------------------------------------------------------------------------


class ClientProfile(Struct, frozen=True, kw_only=True):
    """The capabilities of a client. `version` is the version of the connection from here on."""

    version: int
    turn_complete: bool | None = None
    """The client accepts or rejects the `turn_complete` update; `None` if it declared neither."""
    lifecycle: bool = False
    """True if it requested the draft of the prompt lifecycle on v1."""
    ready: bool | None = None
    """The same for sending `session/ready`."""
    elicitation_form: bool = False
    elicitation_url: bool = False
    fs_read: bool = False
    fs_write: bool = False
    terminal: bool = False
    boolean_options: bool = True
    terminal_login: bool = False
    """True if it can run the agent's program for its user to log in there."""
    terminals: bool = False
    """True if it shows an agent's terminals by the `_meta` of tool calls, as Zed does."""
    withheld: frozenset[str] = frozenset()
    """Kinds of update that it did not request and must not be sent."""
    name: str | None = None
    raw: Raw = Raw(b"{}")
    """Its capabilities, unchanged."""

    @property
    def knows_children(self) -> bool:
        """True for a v1 client that declared support for child sessions. Every v2 client knows them."""
        return self.version == 1 and ANNOUNCES not in self.withheld

    @property
    def is_answered_at_once(self) -> bool:
        """True if its prompts are answered on acceptance instead of at their end."""
        return self.version == 2 or self.lifecycle


def read_client(params: Raw, *, newest: int = NEWEST_VERSION) -> ClientProfile:
    """Return the client's profile, in the highest common version. An unreadable capability reads as absent.

    Raises:
        RemoteProtocolError: `jsonrpc` is -32022, with `requested`, if there is no such version, and -32602 if the
            client names no version.
    """
    fields = as_object(params)
    requested = fields.get("protocolVersion")
    if not isinstance(requested, int) or isinstance(requested, bool):
        raise RemoteProtocolError(
            "`initialize` needs `protocolVersion`, a number", jsonrpc=INVALID_PARAMS, reason="malformed"
        )
    if requested < OLDEST_VERSION:
        raise RemoteProtocolError(
            f"turnwire speaks versions {OLDEST_VERSION} to {newest} of ACP",
            jsonrpc=UNSUPPORTED_VERSION,
            reason="version",
            requested=requested,
        )
    # The number decides, unless a client that requests 2 describes itself only in the members of v1.
    is_v1_shaped = "info" not in fields and not fields.keys().isdisjoint(("clientInfo", "clientCapabilities"))
    if min(requested, newest) >= NEWEST_VERSION and not is_v1_shaped:
        return _read_v2(fields)
    return _read_v1(fields)


def version_refusal(error: TurnwireError, *, newest: int = NEWEST_VERSION) -> Raw | None:
    """Return the error object if `read_client` found no common version; `None` for any other error."""
    requested = error.context.get("requested")
    return unsupported_version(requested, newest=newest) if isinstance(requested, int) else None


def unsupported_version(requested: int, *, newest: int = NEWEST_VERSION) -> Raw:
    """Return the error object for a client without a common version."""
    supported = list(range(OLDEST_VERSION, newest + 1))
    message = "there is no version of ACP that both sides speak"
    facts = {"requested": requested, "supported": supported}
    return raw({"code": UNSUPPORTED_VERSION, "message": message, "data": facts})


def _read_v1(fields: dict[str, Any]) -> ClientProfile:
    offered = child(fields, "clientCapabilities")
    session, files, elicitation = child(offered, "session"), child(offered, "fs"), child(offered, "elicitation")
    places = (session, child(offered, "_meta", VENDOR), child(session, "_meta", VENDOR), child(offered, "_meta"))
    return ClientProfile(
        version=1,
        turn_complete=_said(places, "turnComplete"),
        lifecycle=_said(places, "lifecycle") is True,
        ready=_said(places, "ready"),
        elicitation_form=is_offered(elicitation, "form"),
        elicitation_url=is_offered(elicitation, "url"),
        fs_read=files.get("readTextFile") is True,
        fs_write=files.get("writeTextFile") is True,
        terminal=offered.get("terminal") is True,
        boolean_options=is_offered(child(session, "configOptions"), "boolean"),
        terminal_login=child(offered, "auth").get("terminal") is True
        or child(offered, "_meta").get("terminal-auth") is True,
        terminals=child(offered, "_meta").get(TERMINAL_OUTPUT) is True,
        withheld=_withheld(
            tuple(kind for kind, (place, name) in _GATED.items() if not is_offered(child(offered, *place), name))
        ),
        name=_name(child(fields, "clientInfo")),
        raw=raw(offered),
    )


@lru_cache(64)
def _withheld(kinds: tuple[str, ...]) -> frozenset[str]:
    """Return one shared set for all clients with these kinds."""
    return frozenset(kinds)


def _read_v2(fields: dict[str, Any]) -> ClientProfile:
    offered = child(fields, "capabilities")
    elicitation = child(offered, "elicitation")
    return ClientProfile(
        version=2,
        ready=_said((child(offered, "session"), child(offered, "_meta", VENDOR)), "ready"),
        elicitation_form=is_offered(elicitation, "form"),
        elicitation_url=is_offered(elicitation, "url"),
        terminal_login=is_offered(child(offered, "auth"), "terminal"),
        name=_name(child(fields, "info")),
        raw=raw(offered),
    )


def _said(places: tuple[dict[str, Any], ...], name: str) -> bool | None:
    """True if any place offers it, else False if any place declines it, else `None`."""
    if any(is_offered(place, name) for place in places):
        return True
    return False if any(place.get(name) is False for place in places) else None


def _name(named: dict[str, Any]) -> str | None:
    name = named.get("name")
    return name if isinstance(name, str) else None


# -- drafts: exactly the offered ones are applied ---------------------------------------------------------------


class TurnCompletePolicy(StrEnum):
    """The v1 clients that are offered and sent the `turn_complete` update. An operator or an author decides."""

    AUTO = "auto"
    """All clients except those that declined it and those known not to have it."""
    ALWAYS = "always"
    ASKED = "asked"
    """Clients that declared that they accept it."""
    OFF = "off"


def gets_turn_complete(policy: TurnCompletePolicy, client: ClientProfile) -> bool:
    """True if the client is offered the update, and sent it. On v2 the state replaces it."""
    if client.version != 1 or policy is TurnCompletePolicy.OFF:
        return False
    if policy is TurnCompletePolicy.ALWAYS:
        return True
    if policy is TurnCompletePolicy.ASKED or client.lifecycle or client.turn_complete is not None:
        # The lifecycle draft has a different end.
        return client.turn_complete is True
    known = find_client(client.name)
    return known is None or known.turn_complete


def is_awaited(timeout_s: float | None, client: ClientProfile) -> bool:
    """True if turnwire offers to wait for the client's `session/ready`, and waits.

    `timeout_s`: the maximum wait, `None` without a limit. Zero disables the wait.
    """
    if timeout_s == 0:
        return False
    if client.ready is not None:
        return client.ready
    known = find_client(client.name)
    return known is None or known.ready


# -- capabilities offered to the client -------------------------------------------------------------------------


_BLOCKS: Final = ("image", "audio", "embeddedContext")
_SERVERS: Final = ("stdio", "http", "sse")
_SERVED: Final[dict[str, Any]] = {"list": {}, "resume": {}, "close": {}, "delete": {}}
"""Capabilities of every session for v1 clients. On v2 all but deletion are implied."""
_LISTED: Final[dict[str, Any]] = {"archive": {}, "title": {}, "status": {}}
"""Capabilities of a daemon's session list."""


class HostOffer(Struct, frozen=True, kw_only=True):
    """The capabilities that the node adds to every session."""

    version: str
    """The version of turnwire."""
    turn_complete: bool = True
    """Offer the `turn_complete` update."""
    ready: bool = True
    """Offer to wait for `session/ready`."""
    passed: frozenset[str] = frozenset()
    """Session capabilities of agents that the node forwards, such as `additionalDirectories`."""
    lists: bool = False
    """Offer to archive, to rename and to look at the sessions of its list."""

    def drafts(self, ready: Any) -> dict[str, Any]:
        """Return the enabled drafts. `ready`: the value that represents that draft."""
        drafts: dict[str, Any] = {"turnComplete": {}} if self.turn_complete else {}
        return {**drafts, "ready": ready} if self.ready else drafts


class Offered(Struct, frozen=True, kw_only=True):
    """The offers of an agent, independent of the version."""

    blocks: tuple[str, ...]
    """Types of content in prompts beyond text and links."""
    servers: tuple[str, ...]
    """Transports of MCP servers."""
    session: dict[str, Any]
    """Markers that are spelled the same in both versions."""
    meta: dict[str, Any]


def read_offered(capabilities: Raw, version: int) -> Offered:
    """Decode the capabilities of an agent of that version."""
    fields = as_object(capabilities)
    if version == 2:
        session = child(fields, "session")
        prompt, servers = child(session, "prompt"), child(session, "mcp")
        markers = session
    else:
        prompt, servers = child(fields, "promptCapabilities"), child(fields, "mcpCapabilities")
        markers = child(fields, "sessionCapabilities")
    return Offered(
        blocks=tuple(each for each in _BLOCKS if is_offered(prompt, each)),
        # v1 has no capability for stdio: every agent accepts it.
        servers=tuple(each for each in _SERVERS if is_offered(servers, each) or (each, version) == ("stdio", 1)),
        session={name: value for name, value in markers.items() if isinstance(value, dict)},
        meta=child(fields, "_meta"),
    )


def initialize_result(agent: AgentProfile | None, client: ClientProfile, host: HostOffer) -> Raw:
    """Return the answer to `initialize`. Without an agent, it has the capabilities of every agent."""
    version = 1 if agent is None else agent.version
    capabilities = Raw(b"{}") if agent is None else agent.capabilities
    listed = Raw(b"[]") if agent is None else agent.auth_methods
    offered = read_offered(capabilities, version)
    methods = auth_methods(listed, version, client.version, terminal=client.terminal_login)
    title = VENDOR if agent is None or agent.name is None else agent.name
    us = {"name": VENDOR, "title": title, "version": host.version}
    logout = agent is not None and can_log_out(agent)
    answer = initialize_answer(client.version, us, offered, host, methods, logout=logout)
    # Clients look for it where the released agents have it.
    if agent is not None:
        _add_agents_own(answer["capabilities" if client.version == 2 else "agentCapabilities"], agent)
        if agent.steering:
            answer["_meta"] = {"steering": {"supported": True}}
    return raw(answer)


def _add_agents_own(capabilities: dict[str, Any], agent: AgentProfile) -> None:
    """Add capabilities that are about the agent and no session; the requests are passed on."""
    if has_auth_status(agent):
        capabilities["auth"] = {**capabilities.get("auth", {}), "status": {}}
    if has_providers(agent):
        capabilities["providers"] = {}


def initialize_answer(
    version: int, named: dict[str, Any], offered: Offered, host: HostOffer, methods: Sequence[Any], *, logout: bool
) -> dict[str, Any]:
    """Return the answer in a version of ACP, for the daemon or for an agent of the SDK."""
    if version == 2:
        capabilities = capabilities_v2(offered, host)
        return {"protocolVersion": 2, "info": named, "capabilities": capabilities, "authMethods": methods}
    result = {
        "protocolVersion": 1,
        "agentCapabilities": capabilities_v1(offered, host, logout=logout),
        "authMethods": methods,
        "agentInfo": named,
    }
    # The draft of `session/ready` repeats it where v2 has its capabilities.
    mirror = host.drafts(True)
    return {**result, "capabilities": {"session": mirror}} if mirror else result


def capabilities_v1(offered: Offered, host: HostOffer, *, logout: bool) -> dict[str, Any]:
    """Return `agentCapabilities` for a v1 client."""
    session: dict[str, Any] = {**_passed(offered, host), **_SERVED, **host.drafts({}), "lifecycle": {}}
    return {
        "loadSession": True,
        "promptCapabilities": dict.fromkeys(offered.blocks, True),
        "mcpCapabilities": {each: True for each in offered.servers if each != "stdio"},
        "sessionCapabilities": session,
        **({"auth": {"logout": {}}} if logout else {}),
        **({"_meta": offered.meta} if offered.meta else {}),
    }


def capabilities_v2(offered: Offered, host: HostOffer) -> dict[str, Any]:
    """Return `capabilities` for a v2 client. The end of a turn is a state there, so no marker of it is offered."""
    servers: dict[str, Any] = {each: {} for each in offered.servers if each != "sse"}
    session: dict[str, Any] = {
        **_passed(offered, host),
        "delete": {},
        "prompt": {each: {} for each in offered.blocks},
        "mcp": servers,
    }
    if host.ready:
        session["ready"] = True
    return {"session": session, **({"_meta": offered.meta} if offered.meta else {})}


def _passed(offered: Offered, host: HostOffer) -> dict[str, Any]:
    passed = {name: value for name, value in offered.session.items() if name in host.passed}
    return passed | _LISTED if host.lists else passed


# -- login methods: by id in v1, by methodId and with a type in v2 ----------------------------------------------


def auth_methods(
    methods: Raw, agent_version: int, client_version: int, *, terminal: bool, losses: Counter[str] | None = None
) -> list[Raw]:
    """Return the login methods. `terminal`: the client can run the agent's program to log in there."""
    counted = Counter[str]() if losses is None else losses
    found = (members(each) for each in entries(methods))
    usable = [each for each in found if terminal or text_of(each, "type") != "terminal"]
    if agent_version == client_version:
        return [raw(each) for each in usable]
    translated = (_to_v2(each) if client_version == 2 else _to_v1(each, counted) for each in usable)
    return [raw(each) for each in translated if each is not None]


def is_terminal(methods: Raw, method_id: str) -> bool:
    """True if this login method is a program that the client runs itself, and so no request to the agent."""
    found = (members(each) for each in entries(methods))
    return any(
        text_of(each, "type") == "terminal" and method_id in (text_of(each, "id"), text_of(each, "methodId"))
        for each in found
    )


def has_login(agent: AgentProfile) -> bool:
    """True if logins and logouts are supported: on v2 only if the agent has a login method."""
    return agent.version == 1 or bool(entries(agent.auth_methods))


def can_log_out(agent: AgentProfile) -> bool:
    """True if the agent supports logout: on v2 if it has a login method; on v1 if it is offered."""
    if agent.version == 2:
        return has_login(agent)
    return is_offered(child(as_object(agent.capabilities), "auth"), "logout")


def has_auth_status(agent: AgentProfile) -> bool:
    """True if the agent reports whether its user is logged in."""
    return is_offered(child(as_object(agent.capabilities), "auth"), "status")


def has_providers(agent: AgentProfile) -> bool:
    """True if the agent's model providers can be listed and changed."""
    return is_offered(as_object(agent.capabilities), "providers")


def _to_v2(method: dict[str, Raw]) -> dict[str, Any]:
    named: dict[str, Any] = {("methodId" if name == "id" else name): value for name, value in method.items()}
    if text_of(method, "type") != "terminal":
        return {**named, "type": "agent"}
    env = members(method.get("env"))
    return {**named, "env": [{"name": name, "value": value} for name, value in env.items()]}


def _to_v1(method: dict[str, Raw], losses: Counter[str]) -> dict[str, Any] | None:
    kind = text_of(method, "type")
    named: dict[str, Any] = {
        ("id" if name == "methodId" else name): value for name, value in method.items() if name != "type"
    }
    if kind == "terminal":
        env = [members(each) for each in entries(method.get("env"))]
        pairs = {text_of(each, "name") or "": each["value"] for each in env if "value" in each}
        return {**named, "type": kind, "env": pairs}
    if kind == "agent":
        return named
    losses["auth_method"] += 1
    return None
