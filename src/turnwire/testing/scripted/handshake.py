"""The first words between a client and a scripted agent: version, capabilities, authentication.

Takes the params of `initialize`; gives the version to speak and the answer. Never keeps state.
"""

from __future__ import annotations

from typing import cast

from turnwire.testing.scripted.options import AgentOptions, Profile
from turnwire.testing.scripted.peer import Refused
from turnwire.testing.scripted.shapes import Json, V1Shapes, V2Shapes, member
from turnwire.wire.jsonrpc import INVALID_PARAMS, UNSUPPORTED_VERSION

IDENTITY = {"name": "turnwire-scripted-agent", "title": "Scripted agent", "version": "1"}

AUTH_METHOD = "token"
"""The one way to authenticate, where that is required."""


def choose_shapes(profile: Profile, options: AgentOptions, params: Json) -> V1Shapes:
    """The version this connection speaks. Raises `Refused` if there is none in common."""
    asked = params.get("protocolVersion")
    if not isinstance(asked, int) or isinstance(asked, bool):
        raise Refused(INVALID_PARAMS, "protocolVersion must be an integer")
    if profile != "v2":
        return V1Shapes()
    if asked >= V2Shapes.version:
        return V2Shapes()
    if options.accept_v1 and asked == V1Shapes.version:
        return V1Shapes()
    supported = [1, 2] if options.accept_v1 else [2]
    raise Refused(UNSUPPORTED_VERSION, "no common protocol version", {"requested": asked, "supported": supported})


def client_capabilities(shapes: V1Shapes, params: Json) -> Json:
    """What the client offers in the version that was chosen."""
    key = "capabilities" if isinstance(shapes, V2Shapes) else "clientCapabilities"
    found = member(params, key)
    return cast("Json", found) if isinstance(found, dict) else {}


def initialize_result(shapes: V1Shapes, profile: Profile, options: AgentOptions) -> Json:
    """The answer to `initialize`."""
    return _result_v2(options) if isinstance(shapes, V2Shapes) else _result_v1(profile, options)


def _result_v1(profile: Profile, options: AgentOptions) -> Json:
    session: Json = {"list": {}, "delete": {}, "resume": {}, "close": {}, "fork": {}}
    capabilities: Json = {
        "loadSession": True,
        "promptCapabilities": {"image": True, "audio": True, "embeddedContext": True},
        "mcpCapabilities": {"http": True, "sse": True},
        "sessionCapabilities": session,
    }
    result: Json = {
        "protocolVersion": V1Shapes.version,
        "agentCapabilities": capabilities,
        "agentInfo": IDENTITY,
        "authMethods": [{"id": AUTH_METHOD, "name": "Token"}] if options.auth_required else [],
    }
    if options.auth_required:
        capabilities["auth"] = {"logout": {}}
    if options.steering:
        capabilities["_meta"] = {"steering": {}}
    if profile == "v1plus":
        # The marker stands where either draft puts it; `protocolVersion` alone decides the version.
        session |= {"turnComplete": {}, "ready": {}}
        result["capabilities"] = {"session": {"ready": True, "turnComplete": {}}}
    return result


def _result_v2(options: AgentOptions) -> Json:
    session: Json = {
        "prompt": {"image": {}, "audio": {}, "embeddedContext": {}},
        "mcp": {"stdio": {}, "http": {}},
        "delete": {},
        "fork": {},
    }
    if options.steering:
        session["_meta"] = {"steering": {}}
    method = {"type": "agent", "methodId": AUTH_METHOD, "name": "Token"}
    return {
        "protocolVersion": V2Shapes.version,
        "info": IDENTITY,
        "capabilities": {"session": session},
        "authMethods": [method] if options.auth_required else [],
    }
