"""`initialize` between a client and us: what the client can take, and what it is offered.

Takes the client's params; gives its profile. Takes what the agent behind us offers; gives the answer for this
client: the agent's capabilities in the client's words, and what turnwire adds to every agent. Never offers what
neither has: a client that relies on an offer must not be refused later.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Raw

from turnwire.core.dialect import NEWEST_VERSION, VENDOR, AgentProfile
from turnwire.core.translate.auth import auth_methods, can_log_out
from turnwire.core.translate.capabilities import Host, capabilities_v1, capabilities_v2, read_offered
from turnwire.core.translate.members import as_object, child, is_offered, raw
from turnwire.core.translate.profile import ClientProfile
from turnwire.errors import RemoteProtocolError
from turnwire.wire.jsonrpc import INVALID_PARAMS, UNSUPPORTED_VERSION

OLDEST_VERSION: Final = 1
_GATED: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "notice": (("session",), "notices"),
    "compaction_update": (("session",), "compaction"),
    "compaction_summary_chunk": (("session",), "compaction"),
    "plan_update": ((), "plan"),
    "plan_removed": ((), "plan"),
    "subagent_update": ((), "subagents"),
    "session_message": ((), "subagents"),
    "session_message_chunk": ((), "subagents"),
}
"""Updates that a v1 client must ask for, and where in its capabilities it does."""


# -- what the client can take --------------------------------------------------------------------------------


def read_client(params: Raw, *, newest: int = NEWEST_VERSION) -> ClientProfile:
    """The client's profile, in the highest version that both speak. What cannot be read is not taken.

    Raises:
        RemoteProtocolError: `jsonrpc` is -32022, with `requested`, if there is no such version, and -32602 if the
            client names none.
    """
    given = as_object(params)
    requested = given.get("protocolVersion")
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
    if min(requested, newest) >= NEWEST_VERSION and isinstance(given.get("info"), dict):
        return _read_v2(given)
    return _read_v1(given)


def unsupported_version(requested: int, *, newest: int = NEWEST_VERSION) -> Raw:
    """The error object for a client that speaks no version of ours."""
    supported = list(range(OLDEST_VERSION, newest + 1))
    message = "there is no version of ACP that both sides speak"
    facts = {"requested": requested, "supported": supported}
    return raw({"code": UNSUPPORTED_VERSION, "message": message, "data": facts})


def _read_v1(given: dict[str, Any]) -> ClientProfile:
    offered = child(given, "clientCapabilities")
    session, files, questions = child(offered, "session"), child(offered, "fs"), child(offered, "elicitation")
    places = (session, child(offered, "_meta", VENDOR), child(session, "_meta", VENDOR), child(offered, "_meta"))
    return ClientProfile(
        version=1,
        turn_complete=_asked(places, "turnComplete"),
        lifecycle=_asked(places, "lifecycle"),
        ready=_asked(places, "ready"),
        elicitation_form=is_offered(questions, "form"),
        elicitation_url=is_offered(questions, "url"),
        fs_read=files.get("readTextFile") is True,
        fs_write=files.get("writeTextFile") is True,
        terminal=offered.get("terminal") is True,
        boolean_options=is_offered(child(session, "configOptions"), "boolean"),
        terminal_login=child(offered, "auth").get("terminal") is True,
        withheld=frozenset(
            kind for kind, (place, name) in _GATED.items() if not is_offered(child(offered, *place), name)
        ),
        name=_name(child(given, "clientInfo")),
        raw=raw(offered),
    )


def _read_v2(given: dict[str, Any]) -> ClientProfile:
    offered = child(given, "capabilities")
    questions, own = child(offered, "elicitation"), child(offered, "_meta", VENDOR)
    return ClientProfile(
        version=2,
        turn_complete=is_offered(own, "turnComplete"),
        ready=is_offered(own, "ready") or is_offered(child(offered, "session"), "ready"),
        elicitation_form=is_offered(questions, "form"),
        elicitation_url=is_offered(questions, "url"),
        terminal_login=is_offered(child(offered, "auth"), "terminal"),
        name=_name(child(given, "info")),
        raw=raw(offered),
    )


def _asked(places: tuple[dict[str, Any], ...], name: str) -> bool:
    return any(is_offered(place, name) for place in places)


def _name(named: dict[str, Any]) -> str | None:
    name = named.get("name")
    return name if isinstance(name, str) else None


# -- what it is offered --------------------------------------------------------------------------------------


def initialize_result(agent: AgentProfile | None, client: ClientProfile, host: Host) -> Raw:
    """The answer to `initialize`. Without an agent, what every agent has with us."""
    version = 1 if agent is None else agent.version
    given = Raw(b"{}") if agent is None else agent.capabilities
    listed = Raw(b"[]") if agent is None else agent.auth_methods
    offered = read_offered(given, version)
    methods = auth_methods(listed, version, client.version, terminal=client.terminal_login)
    title = VENDOR if agent is None or agent.name is None else agent.name
    us = {"name": VENDOR, "title": title, "version": host.version}
    if client.version == 2:
        capabilities = capabilities_v2(offered, host)
        return raw({"protocolVersion": 2, "info": us, "capabilities": capabilities, "authMethods": methods})
    logout = agent is not None and can_log_out(agent)
    result = {
        "protocolVersion": 1,
        "agentCapabilities": capabilities_v1(offered, host, logout=logout),
        "authMethods": methods,
        "agentInfo": us,
    }
    # The draft of `session/ready` shows it in the place that v2 has for capabilities.
    mirror = {} if host.strict else host.drafts(True)
    return raw({**result, "capabilities": {"session": mirror}} if mirror else result)
