"""The dialect of an agent, read from its handshake: v1, v1 with `turn_complete` and `session/ready`, or v2.

The functions turn the agent's frames into a profile of the agent and inputs for the session, and build the frames
that prompt, cancel and steer it. They keep no state: `session.speech` decides the meaning of a frame for a turn.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from turnwire.errors import RemoteProtocolError
from turnwire.ids import AgentSessionId, PermissionId, PromptId
from turnwire.session.events import TurnEnd
from turnwire.session.inputs import AgentAnswered, AgentAsks, SteerOutcome
from turnwire.session.state import Setup
from turnwire.wire.jsonrpc import INVALID_PARAMS, UNSUPPORTED_VERSION, ErrorObject, Request, raw
from turnwire.wire.methods import ELICITATION_CREATE, SESSION_REQUEST_PERMISSION, VENDOR
from turnwire.wire.peek import beside

NEWEST_VERSION = 2
PERMISSION_METHODS = frozenset({SESSION_REQUEST_PERMISSION, ELICITATION_CREATE})
"""Requests of the agent that users answer."""


class AgentProfile(Struct, frozen=True):
    """The agent's `initialize` result."""

    version: int
    turn_end: TurnEnd
    ready: bool
    steering: bool
    capabilities: Raw
    load: bool = False
    """True if it offers `session/load`, which replays the history."""
    resume: bool = False
    """True if it offers `session/resume`, which does not replay."""
    close: bool = False
    directories: bool = False
    """True if it offers `additionalDirectories` of a session."""
    auth_methods: Raw = Raw(b"[]")
    name: str | None = None
    release: str | None = None
    """The agent's version."""


def initialize_params(version: str, *, protocol: int = NEWEST_VERSION, services: bool = False) -> Raw:
    """Return our `initialize` params: one protocol version, with the fields of v1 and v2 side by side."""
    named = {"name": VENDOR, "title": VENDOR, "version": version}
    elicitation: dict[str, Any] = {"form": {}, "url": {}}
    v1: dict[str, Any] = {
        "fs": {"readTextFile": services, "writeTextFile": services},
        "terminal": services,
        "elicitation": elicitation,
        "subagents": {},
        "plan": {},
        # Agents list the logins that run in a terminal only to clients that show such a command to their user.
        "auth": {"terminal": True},
        "session": {
            "turnComplete": {},
            "configOptions": {"boolean": {}},
            "compaction": {},
            "notices": {},
        },
        "_meta": {VENDOR: {"turnComplete": {}}, "terminal-auth": True},
    }
    return raw(
        {
            "protocolVersion": protocol,
            "clientCapabilities": v1,
            "clientInfo": named,
            "capabilities": {
                "elicitation": elicitation,
                "auth": {"terminal": {}},
                "_meta": {"terminal-auth": True},
            },
            "info": named,
        }
    )


def read_initialize(result: Raw) -> AgentProfile:
    """Return the agent's profile. Every optional part may be missing or malformed; an unreadable part is not
    offered.

    Raises `RemoteProtocolError` if the agent chose an unsupported version.
    """
    answer = _object(result)
    chosen = answer.get("protocolVersion")
    if isinstance(chosen, int) and not isinstance(chosen, bool) and not 1 <= chosen <= NEWEST_VERSION:
        raise RemoteProtocolError(
            f"the agent speaks version {chosen} of ACP; turnwire speaks 1 to {NEWEST_VERSION}",
            jsonrpc=UNSUPPORTED_VERSION,
            reason="version",
        )
    v1, v2 = _member(answer, "agentCapabilities"), _member(answer, "capabilities")
    # The number decides. The one exception are v1 agents that echo the requested version: they answer with
    # `agentCapabilities`, which v2 does not have, and without `capabilities`.
    is_v2 = answer.get("protocolVersion") == 2 and ("capabilities" in answer or "agentCapabilities" not in answer)
    session, session2 = _member(v1, "sessionCapabilities"), _member(v2, "session")
    places = (
        session,
        _member(v1, "session"),
        _member(_member(v1, "_meta"), VENDOR),
        _member(session, "_meta"),
        _member(v1, "_meta"),
        session2,
        _member(session2, "_meta"),
        _member(_member(session2, "_meta"), VENDOR),
    )
    if is_v2:
        turn_end = TurnEnd.IDLE
    elif _offered(places, "turnComplete"):
        turn_end = TurnEnd.MARKER
    else:
        turn_end = TurnEnd.IDLE if _offered(places, "lifecycle") else TurnEnd.RESPONSE
    methods, info = answer.get("authMethods"), _member(answer, "info" if is_v2 else "agentInfo")
    name, release = info.get("name"), info.get("version")
    return AgentProfile(
        version=2 if is_v2 else 1,
        turn_end=turn_end,
        ready=_offered(places, "ready"),
        steering=any(_is_steerable(each.get("steering")) for each in (*places, _member(answer, "_meta"))),
        capabilities=raw(v2 if is_v2 else v1),
        load=not is_v2 and v1.get("loadSession") is True,
        # On v2 both are implied for every agent that has sessions at all.
        resume="session" in v2 if is_v2 else _offered((session,), "resume"),
        close="session" in v2 if is_v2 else _offered((session,), "close"),
        directories=_offered((session2 if is_v2 else session,), "additionalDirectories"),
        release=release if isinstance(release, str) else None,
        auth_methods=raw(methods) if isinstance(methods, list) else Raw(b"[]"),
        name=name if isinstance(name, str) else None,
    )


def _object(value: Raw) -> dict[str, Any]:
    try:
        return msgspec.json.decode(value, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def _member(parent: dict[str, Any], name: str) -> dict[str, Any]:
    value = parent.get(name)
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _offered(places: tuple[dict[str, Any], ...], name: str) -> bool:
    """True if a capability is `true` or an object in any of its places; anything else offers nothing."""
    return any(place.get(name) is True or isinstance(place.get(name), dict) for place in places)


def _is_steerable(value: object) -> bool:
    """Released agents write `{"supported": true}`; without that member the object alone offers it."""
    return value is True or (isinstance(value, dict) and value.get("supported", True) is not False)  # pyright: ignore[reportUnknownMemberType]


# -- to the agent --------------------------------------------------------------------------------------------


def prompt_params(session_id: AgentSessionId, content: Raw, meta: Raw | UnsetType = UNSET) -> Raw:
    """Return the params of `session/prompt`."""
    params = {"sessionId": session_id, "prompt": content}
    return raw(params if meta is UNSET else params | {"_meta": meta})


def steering_params(session_id: AgentSessionId, content: Raw, meta: Raw | UnsetType = UNSET) -> Raw:
    """Return the params of `_session/steering`. An agent without a turn must not start one: it would be prompted
    as well.
    """
    known: dict[str, Any] = {} if meta is UNSET else _object(meta)
    return prompt_params(
        session_id, content, raw({**known, "steering": {"idleBehavior": SteerOutcome.PROMPT_REQUIRED}})
    )


def session_params(session_id: AgentSessionId) -> Raw:
    """Return the params of `session/cancel`, `session/ready` and `session/close`."""
    return raw({"sessionId": session_id})


def opening_params(session_id: AgentSessionId | None, cwd: str, setup: Setup) -> Raw:
    """Return the params of `session/new`; with an id those of `session/load`, `session/resume` and
    `session/fork`.
    """
    params: dict[str, Any] = {} if session_id is None else {"sessionId": session_id}
    params |= {"cwd": cwd, "mcpServers": setup.mcp_servers}
    if setup.additional_directories:
        params["additionalDirectories"] = setup.additional_directories
    if setup.extra is not UNSET:
        params = {**_object(setup.extra), **params}
    return raw(params if setup.meta is UNSET else params | {"_meta": setup.meta})


def read_steer_result(result: Raw) -> SteerOutcome:
    """Return the outcome of `_session/steering`."""
    outcome = _object(result).get("outcome")
    return SteerOutcome(outcome) if outcome in [*SteerOutcome] else SteerOutcome.FAILED


# -- from the agent ------------------------------------------------------------------------------------------


class _PromptResult(Struct, rename="camel"):
    stop_reason: Any = None
    in_old_words: Any = field(name="stop_reason", default=None)
    """Drafts of ACP spelled it so, and some agents still do."""
    message_id: Any = None
    usage: Raw | UnsetType = UNSET


_OF_AN_ANSWER = frozenset({"stopReason", "stop_reason", "messageId", "usage"})


def read_prompt_result(at: int, prompt_id: PromptId, result: Raw) -> AgentAnswered:
    """Decode the answer to `session/prompt`; fields of a wrong type read as absent."""
    try:
        answer = msgspec.json.decode(result, type=_PromptResult)
    except msgspec.DecodeError:
        return AgentAnswered(at=at, prompt_id=prompt_id)
    said = (answer.stop_reason, answer.in_old_words)
    return AgentAnswered(
        at=at,
        prompt_id=prompt_id,
        stop_reason=next((each for each in said if isinstance(each, str)), None),
        message_id=answer.message_id if isinstance(answer.message_id, str) else None,
        usage=None if answer.usage is UNSET or bytes(answer.usage) == b"null" else answer.usage,
        beside=beside(result, _OF_AN_ANSWER),
    )


UNKNOWN_MODE = ErrorObject(INVALID_PARAMS, "an elicitation is a form or a url; no other mode was offered")


def is_offered_permission_request(request: Request) -> bool:
    """True if users can be asked this: an elicitation only in the modes that were offered to agents."""
    return request.method != ELICITATION_CREATE or _object(request.params).get("mode", "form") in ("form", "url")


class _Option(Struct, rename="camel"):
    option_id: str


class _Options(Struct):
    options: list[_Option] = []


def read_permission_request(at: int, request: Request, request_id: PermissionId) -> AgentAsks:
    """Decode a request that users answer. With unreadable options no option can be selected: users can only reject
    it.
    """
    try:
        options = tuple(each.option_id for each in msgspec.json.decode(request.params, type=_Options).options)
    except msgspec.DecodeError:
        options = ()
    return AgentAsks(
        at=at,
        request_id=request_id,
        agent_request_id=request.id,
        method=request.method,
        params=request.params,
        options=options,
    )


class _NewSession(Struct, rename="camel"):
    session_id: str


def read_session_id(result: Raw) -> AgentSessionId | None:
    """Return the id in an answer to `session/new` or `session/fork`."""
    try:
        return AgentSessionId(msgspec.json.decode(result, type=_NewSession).session_id)
    except msgspec.DecodeError:
        return None


class _CancelRequest(Struct, rename="camel"):
    request_id: int | str


def read_cancel_request(params: Raw) -> int | str | None:
    """Return the id of the request that the agent withdraws with `$/cancel_request`."""
    try:
        return msgspec.json.decode(params, type=_CancelRequest).request_id
    except msgspec.DecodeError:
        return None
