"""The answer to `initialize`: what the agent is, and what it offers to this client.

Takes the client's profile and the agent's settings; gives the result. Every agent of this kit lists, loads,
resumes, forks, closes and deletes sessions. Never offers what is switched off.
"""

from __future__ import annotations

from typing import Any

from turnwire.agent.authored import Authored
from turnwire.agent.options import AuthMethod
from turnwire.agent.words import Json
from turnwire.core.dialect import VENDOR
from turnwire.core.translate.handshake import ClientProfile, Host, Offered, capabilities_v1, capabilities_v2

_MARKERS: Json = {"fork": {}, "additionalDirectories": {}}


def initialize_result(authored: Authored, client: ClientProfile) -> Json:
    """What the client is told of the agent."""
    options = authored.options
    host = Host(
        version=authored.version,
        turn_complete=options.offers_turn_complete,
        ready=options.offers_ready,
        strict=options.drafts == "strict",
        passed=frozenset(_MARKERS),
    )
    blocks = {"image": options.image, "audio": options.audio, "embeddedContext": options.embedded_context}
    servers = {"stdio": True, "http": options.mcp_http, "sse": options.mcp_sse}
    offered = Offered(
        blocks=tuple(each for each, is_taken in blocks.items() if is_taken),
        servers=tuple(each for each, is_taken in servers.items() if is_taken),
        session=_MARKERS,
        meta={},
    )
    named: Json = {"name": authored.name, "version": authored.version}
    if authored.title is not None:
        named["title"] = authored.title
    listed = [each for each in options.auth_methods if each.type == "agent" or client.terminal_login]
    if client.version == 2:
        capabilities = capabilities_v2(offered, host)
        _add_own(capabilities["session"], authored)
        methods = [_method_v2(each) for each in listed]
        return {"protocolVersion": 2, "info": named, "capabilities": capabilities, "authMethods": methods}
    capabilities = capabilities_v1(offered, host, logout=bool(options.auth_methods))
    _add_own(capabilities, authored)
    result: Json = {
        "protocolVersion": 1,
        "agentCapabilities": capabilities,
        "authMethods": [_method_v1(each) for each in listed],
        "agentInfo": named,
    }
    # The draft of `session/ready` shows it in the place that v2 has for capabilities.
    mirror = {} if host.strict else host.drafts(True)
    return {**result, "capabilities": {"session": mirror}} if mirror else result


def _add_own(place: Json, authored: Authored) -> None:
    """What is an extension of ACP, in `_meta`."""
    if authored.hooks.steer is None:
        return
    meta: Json = place.setdefault("_meta", {})
    meta[VENDOR] = {**meta.get(VENDOR, {}), "steering": {}}


def _method_v1(method: AuthMethod) -> Json:
    listed = _named({"id": method.id}, method)
    if method.type == "agent":
        return listed
    return {**listed, "type": "terminal", "args": list(method.args), "env": dict(method.env)}


def _method_v2(method: AuthMethod) -> Json:
    listed = _named({"type": method.type, "methodId": method.id}, method)
    if method.type == "agent":
        return listed
    env = [{"name": name, "value": value} for name, value in method.env]
    return {**listed, "args": list(method.args), "env": env}


def _named(listed: dict[str, Any], method: AuthMethod) -> Json:
    named = {**listed, "name": method.name}
    return named if method.description is None else {**named, "description": method.description}
