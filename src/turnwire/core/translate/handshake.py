"""`initialize` between a client and us: what the client can take, and what it is offered.

The answer is the agent's capabilities in the client's words, with what turnwire adds to every agent: it lists,
resumes, closes and deletes sessions and replays their history itself. Never offers what neither has: a client that
relies on an offer must not be refused later. A profile does not change after the handshake: one connection speaks
one version.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

from msgspec import Raw, Struct

from turnwire.core.child_names import ANNOUNCES
from turnwire.core.dialect import NEWEST_VERSION, AgentProfile
from turnwire.core.json_members import as_object, child, entries, is_offered, members, raw, text_of
from turnwire.core.known_clients import find_client
from turnwire.errors import RemoteProtocolError, TurnwireError
from turnwire.wire.jsonrpc import INVALID_PARAMS, UNSUPPORTED_VERSION
from turnwire.wire.methods import VENDOR

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
"""Updates that a v1 client must ask for, and where in its capabilities it does."""

# -- what the client can take -----------------------------------------------------------------------------------


class ClientProfile(Struct, frozen=True, kw_only=True):
    """What a client can take. `version` is the one that the connection speaks from here on."""

    version: int
    turn_complete: bool | None = None
    """Whether it said that it takes the `turn_complete` update, or that it does not; none if it said nothing."""
    lifecycle: bool = False
    """It asked for the draft of the prompt lifecycle on v1."""
    ready: bool | None = None
    """The same of sending `session/ready`."""
    elicitation_form: bool = False
    elicitation_url: bool = False
    fs_read: bool = False
    fs_write: bool = False
    terminal: bool = False
    boolean_options: bool = True
    terminal_login: bool = False
    """It can run the agent's program for its user to log in there."""
    withheld: frozenset[str] = frozenset()
    """Kinds of update that it did not ask for and must not be sent."""
    name: str | None = None
    raw: Raw = Raw(b"{}")
    """Its capabilities, as they came."""

    @property
    def knows_children(self) -> bool:
        """Whether it is a v1 client that said that it knows child sessions. On v2 every client does."""
        return self.version == 1 and ANNOUNCES not in self.withheld

    @property
    def is_answered_at_once(self) -> bool:
        """Whether its prompts are answered when they are taken, and not at their end."""
        return self.version == 2 or self.lifecycle


def read_client(params: Raw, *, newest: int = NEWEST_VERSION) -> ClientProfile:
    """The client's profile, in the highest version that both speak. What cannot be read is not taken.

    Raises:
        RemoteProtocolError: `jsonrpc` is -32022, with `requested`, if there is no such version, and -32602 if the
            client names none.
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
    # v2 clients name themselves in `info`; without it, this is v1 whatever the number says.
    if min(requested, newest) >= NEWEST_VERSION and isinstance(fields.get("info"), dict):
        return _read_v2(fields)
    return _read_v1(fields)


def version_refusal(error: TurnwireError, *, newest: int = NEWEST_VERSION) -> Raw | None:
    """The error object if `read_client` found no version that both sides speak; none if it had another reason."""
    requested = error.context.get("requested")
    return unsupported_version(requested, newest=newest) if isinstance(requested, int) else None


def unsupported_version(requested: int, *, newest: int = NEWEST_VERSION) -> Raw:
    """The error object for a client that speaks no version of ours."""
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
        terminal_login=child(offered, "auth").get("terminal") is True,
        withheld=_withheld(
            tuple(kind for kind, (place, name) in _GATED.items() if not is_offered(child(offered, *place), name))
        ),
        name=_name(child(fields, "clientInfo")),
        raw=raw(offered),
    )


@lru_cache(64)
def _withheld(kinds: tuple[str, ...]) -> frozenset[str]:
    """One set for all clients that are alike."""
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
    """Yes in any place is yes, no in any other is no. What is neither says nothing."""
    if any(is_offered(place, name) for place in places):
        return True
    return False if any(place.get(name) is False for place in places) else None


def _name(named: dict[str, Any]) -> str | None:
    name = named.get("name")
    return name if isinstance(name, str) else None


# -- which drafts it gets: offered is what is done, and nothing else --------------------------------------------


class TurnCompletePolicy(StrEnum):
    """Which v1 clients are offered and sent the `turn_complete` update. An operator or an author decides."""

    AUTO = "auto"
    """All, but those that said no and those that are known not to have it."""
    ALWAYS = "always"
    ASKED = "asked"
    """Those that said that they take it."""
    OFF = "off"


def gets_turn_complete(policy: TurnCompletePolicy, client: ClientProfile) -> bool:
    """Whether the client is offered the update, and sent it. On v2 the state says it."""
    if client.version != 1 or policy is TurnCompletePolicy.OFF:
        return False
    if policy is TurnCompletePolicy.ALWAYS:
        return True
    if policy is TurnCompletePolicy.ASKED or client.lifecycle or client.turn_complete is not None:
        # The lifecycle draft has an end of its own.
        return client.turn_complete is True
    known = find_client(client.name)
    return known is None or known.turn_complete


def is_awaited(timeout_s: float | None, client: ClientProfile) -> bool:
    """Whether the client is offered to be waited for until it sends `session/ready`, and is.

    `timeout_s`: how long, none for ever. Zero waits for nobody.
    """
    if timeout_s == 0:
        return False
    if client.ready is not None:
        return client.ready
    known = find_client(client.name)
    return known is None or known.ready


# -- what it is offered -----------------------------------------------------------------------------------------


_BLOCKS: Final = ("image", "audio", "embeddedContext")
_SERVERS: Final = ("stdio", "http", "sse")
_SERVED: Final[dict[str, Any]] = {"list": {}, "resume": {}, "close": {}, "delete": {}}
"""What v1 clients find at every session. On v2 all but deleting need no word."""


class HostOffer(Struct, frozen=True, kw_only=True):
    """What the node itself brings to every session."""

    version: str
    """Of turnwire."""
    turn_complete: bool = True
    """Offer the `turn_complete` update."""
    ready: bool = True
    """Offer to wait for `session/ready`."""
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
        # v1 has no word for stdio: every agent takes it.
        servers=tuple(each for each in _SERVERS if is_offered(servers, each) or (each, version) == ("stdio", 1)),
        session={name: value for name, value in markers.items() if isinstance(value, dict)},
        meta=child(fields, "_meta"),
    )


def initialize_result(agent: AgentProfile | None, client: ClientProfile, host: HostOffer) -> Raw:
    """The answer to `initialize`. Without an agent, what every agent has with us."""
    version = 1 if agent is None else agent.version
    capabilities = Raw(b"{}") if agent is None else agent.capabilities
    listed = Raw(b"[]") if agent is None else agent.auth_methods
    offered = read_offered(capabilities, version)
    methods = auth_methods(listed, version, client.version, terminal=client.terminal_login)
    title = VENDOR if agent is None or agent.name is None else agent.name
    us = {"name": VENDOR, "title": title, "version": host.version}
    logout = agent is not None and can_log_out(agent)
    return raw(initialize_answer(client.version, us, offered, host, methods, logout=logout))


def initialize_answer(
    version: int, named: dict[str, Any], offered: Offered, host: HostOffer, methods: Sequence[Any], *, logout: bool
) -> dict[str, Any]:
    """The answer in a version of ACP, by whoever is the agent to the client."""
    if version == 2:
        capabilities = capabilities_v2(offered, host)
        return {"protocolVersion": 2, "info": named, "capabilities": capabilities, "authMethods": methods}
    result = {
        "protocolVersion": 1,
        "agentCapabilities": capabilities_v1(offered, host, logout=logout),
        "authMethods": methods,
        "agentInfo": named,
    }
    # The draft of `session/ready` shows it in the place that v2 has for capabilities.
    mirror = host.drafts(True)
    return {**result, "capabilities": {"session": mirror}} if mirror else result


def capabilities_v1(offered: Offered, host: HostOffer, *, logout: bool) -> dict[str, Any]:
    """`agentCapabilities` for a v1 client."""
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
    """`capabilities` for a v2 client. The end of a turn is a state there, so no marker of it is offered."""
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
    return {name: value for name, value in offered.session.items() if name in host.passed}


# -- ways to log in: by id in v1, by methodId and with a type in v2 ---------------------------------------------


def auth_methods(
    methods: Raw, agent_version: int, client_version: int, *, terminal: bool, losses: Counter[str] | None = None
) -> list[Raw]:
    """The methods. `terminal`: the client can run the agent's program to log in there."""
    counted = Counter[str]() if losses is None else losses
    found = (members(each) for each in entries(methods))
    usable = [each for each in found if terminal or text_of(each, "type") != "terminal"]
    if agent_version == client_version:
        return [raw(each) for each in usable]
    translated = (_to_v2(each) if client_version == 2 else _to_v1(each, counted) for each in usable)
    return [raw(each) for each in translated if each is not None]


def is_terminal(methods: Raw, method_id: str) -> bool:
    """Whether this way to log in is a program that the client runs itself, and so no request to the agent."""
    found = (members(each) for each in entries(methods))
    return any(
        text_of(each, "type") == "terminal" and method_id in (text_of(each, "id"), text_of(each, "methodId"))
        for each in found
    )


def has_login(agent: AgentProfile) -> bool:
    """On v2 there are requests for logging in and out only where there is a way to log in."""
    return agent.version == 1 or bool(entries(agent.auth_methods))


def can_log_out(agent: AgentProfile) -> bool:
    """On v2, logging out belongs to every agent that has a way to log in; on v1 it is offered by itself."""
    if agent.version == 2:
        return has_login(agent)
    return is_offered(child(as_object(agent.capabilities), "auth"), "logout")


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
