"""Translation of session opening and options, between clients and agents of either version.

Params of clients become params for agents. The offers of agents, i.e. the answers with which they opened the
session, become results for clients. Only the members that differ are decoded; the rest is forwarded.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, NamedTuple

from msgspec import UNSET, Raw, Struct, UnsetType

from turnwire.errors import RemoteProtocolError
from turnwire.ids import SessionId
from turnwire.projections.dialect import AgentProfile
from turnwire.projections.translate.handshake import read_offered
from turnwire.projections.translate.offers import Modes, Options, commands_to_v1, commands_to_v2, without_booleans
from turnwire.projections.view.latest import Latest
from turnwire.session.json_members import entries, is_null, members, raw, text_of
from turnwire.session.state import NO_SETUP, SYSTEM_PROMPT, Setup
from turnwire.wire import methods as acp
from turnwire.wire.jsonrpc import INVALID_PARAMS, RESOURCE_NOT_FOUND
from turnwire.wire.schema.reading import read
from turnwire.wire.schema.v1 import LoadSessionRequest
from turnwire.wire.schema.v1 import NewSessionRequest as V1NewSession
from turnwire.wire.schema.v1 import ResumeSessionRequest as V1ResumeSession
from turnwire.wire.schema.v2 import NewSessionRequest, ResumeSessionRequest

_REQUESTS: Final[dict[tuple[str, int], Any]] = {
    (acp.SESSION_NEW, 1): V1NewSession,
    (acp.SESSION_LOAD, 1): LoadSessionRequest,
    (acp.SESSION_RESUME, 1): V1ResumeSession,
    (acp.SESSION_FORK, 1): V1ResumeSession,
    (acp.SESSION_NEW, 2): NewSessionRequest,
    (acp.SESSION_RESUME, 2): ResumeSessionRequest,
    (acp.SESSION_FORK, 2): ResumeSessionRequest,
}
_NO_ITEMS: Final = Raw(b"[]")


class Opening(Struct, frozen=True, kw_only=True):
    """A client's request to open a session."""

    cwd: str
    setup: Setup = NO_SETUP
    """Servers in the form of v2, in which every server has its type. `_meta` without our member."""
    session_id: SessionId | None = None
    """`None` for a new session."""
    replay: bool = False
    """The client requests the history before the answer."""


class SettingRequest(NamedTuple):
    """A request for the agent."""

    method: str
    params: Raw


# -- opening -------------------------------------------------------------------------------------------------


def read_opening(method: str, params: Raw, client_version: int) -> Opening:
    """Decode `session/new`, `load`, `resume` and `fork`. Raises `RemoteProtocolError` for invalid params."""
    kind = _REQUESTS.get((method, client_version))
    if kind is None:
        raise _invalid(f"`{method}` opens no session in version {client_version} of ACP")
    request = read(params, kind)
    fields = members(params)
    replay = getattr(request, "replay_from", None)
    if replay is not None and text_of(members(fields.get("replayFrom")), "type") != "start":
        raise _invalid('the history can be replayed from its start only; give `{"type":"start"}` or nothing')
    session_id = getattr(request, "session_id", None)
    setup = Setup(
        mcp_servers(fields.get("mcpServers", Raw(b"[]")), 2, keep_sse=True),
        tuple(request.additional_directories),
        meta_for_agent(fields.get("_meta")),
        _extra(fields),
    )
    return Opening(
        cwd=request.cwd,
        setup=setup,
        session_id=None if session_id is None else SessionId(session_id),
        replay=method == acp.SESSION_LOAD or replay is not None,
    )


_KNOWN: Final = frozenset({"sessionId", "cwd", "mcpServers", "additionalDirectories", "replayFrom", "_meta"})


def _extra(fields: dict[str, Raw]) -> Raw | UnsetType:
    """Return the members that turnwire does not know, such as `systemPrompt`: the agent gets them unchanged."""
    left = {name: value for name, value in fields.items() if name not in _KNOWN and not is_null(value)}
    return raw(left) if left else UNSET


def meta_for_agent(meta: Raw | None) -> Raw | UnsetType:
    """Return the `_meta` of a request without our member; unset if empty."""
    fields = members(meta)
    left = {name: value for name, value in fields.items() if name != acp.VENDOR}
    if not left or meta is None:
        return UNSET
    return meta if len(left) == len(fields) else raw(left)


def mcp_servers(servers: Raw, version: int, *, keep_sse: bool = False, losses: Counter[str] | None = None) -> Raw:
    """Return the servers in the form of a version, from either form. v2 does not support SSE."""
    found: list[dict[str, Any]] = []
    for server in map(members, entries(servers)):
        kind = text_of(server, "type") or "stdio"
        if kind == "sse" and version == 2 and not keep_sse:
            if losses is not None:
                losses["mcp_sse"] += 1
            continue
        untagged = {name: value for name, value in server.items() if name != "type"}
        wanted = {"stdio": ("args", "env"), "http": ("headers",), "sse": ("headers",)}.get(kind, ())
        filled: dict[str, Any] = {**untagged, **{name: _NO_ITEMS for name in wanted if name not in server}}
        found.append(filled if kind == "stdio" and version == 1 else {"type": kind, **filled})
    return raw(found)


def unwanted_servers(servers: Raw, agent: AgentProfile) -> str | None:
    """Return the reason for which the agent must not be sent these servers; `None` if it offers all their
    transports.

    Transports that begin with `_` are between the client and the agent. v2 agents accept no servers over SSE, and
    `mcp_servers` omits them.
    """
    offered = read_offered(agent.capabilities, agent.version).servers
    kinds = {text_of(members(each), "type") or "stdio" for each in entries(servers)}
    left_out = {"sse"} if agent.version == 2 else set[str]()
    unwanted = sorted(each for each in kinds - left_out - {*offered} if not each.startswith("_"))
    if not unwanted:
        return None
    known = ", ".join(offered) or "nothing"
    return f"the agent takes MCP servers over {known}, and not over {', '.join(unwanted)}; leave those out"


def has_system_prompt(setup: Setup) -> bool:
    """True if the session has a system prompt, which an agent must offer before it is sent."""
    return setup.extra is not UNSET and SYSTEM_PROMPT in members(setup.extra)


def takes_system_prompt(agent: AgentProfile) -> bool:
    """True if the agent offers `systemPrompt`."""
    return SYSTEM_PROMPT in read_offered(agent.capabilities, agent.version).session


NO_SYSTEM_PROMPT: Final = "this agent does not offer systemPrompt; leave it out"


def session_result(
    offers: Raw,
    agent_version: int,
    client_version: int,
    session_id: SessionId | None,
    *,
    boolean_options: bool = True,
    losses: Counter[str] | None = None,
) -> Raw:
    """Return the answer to `session/new`, with `session_id`, or to `session/load` and `session/resume`, without."""
    fields, counted = members(offers), Counter[str]() if losses is None else losses
    fields.pop("sessionId", None)
    result: dict[str, Any] = {} if session_id is None else {"sessionId": session_id}
    if agent_version == client_version == 1:
        # v1 reports commands only by updates: its answer has no member for them.
        fields.pop("availableCommands", None)
        return raw({**result, **_takeable(fields, counted, booleans=boolean_options)})
    if agent_version == client_version:
        return raw({**result, **fields})
    commands = fields.pop("availableCommands", None)
    had_options = fields.pop("configOptions", None) is not None
    fields.pop("models", None)
    result |= fields
    if client_version == 2:
        result.pop("modes", None)
        result["configOptions"] = Modes(counted, offers).listed()
        result["availableCommands"] = [] if commands is None else commands_to_v2(commands)
        return raw(result)
    options = Options(counted, offers, booleans=boolean_options)
    modes = options.modes()
    result |= {} if modes is None else {"modes": modes}
    return raw({**result, "configOptions": options.listed()} if had_options else result)


def _takeable(answer: dict[str, Raw], losses: Counter[str], *, booleans: bool) -> dict[str, Raw]:
    """Return an answer of a v1 agent for a v1 client, without the options that this client must not be sent."""
    options = answer.get("configOptions")
    if booleans or options is None:
        return answer
    return {**answer, "configOptions": without_booleans(options, losses)}


def updates_after(
    offers: Raw, agent_version: int, client_version: int, losses: Counter[str] | None = None
) -> list[Raw]:
    """Return the offers that the client's version has in no answer, as updates to send after it: commands,
    in v1.
    """
    commands = members(offers).get("availableCommands")
    if client_version != 1 or agent_version != 2 or commands is None:
        return []
    listed = commands_to_v1(commands, Counter[str]() if losses is None else losses)
    return [raw({"sessionUpdate": "available_commands_update", "availableCommands": listed})]


def current_offers(latest: Latest) -> Raw:
    """Return the agent's current offers, in the form of its answer that opened the session."""
    offers: dict[str, Any] = {} if latest.beside is UNSET else {**members(latest.beside)}
    if latest.modes is not UNSET:
        offers["modes"] = {"currentModeId": latest.mode, "availableModes": latest.modes}
    if latest.models is not UNSET:
        offers["models"] = {"currentModelId": latest.model, "availableModels": latest.models}
    if latest.config_options is not UNSET:
        offers["configOptions"] = latest.config_options
    if latest.commands is not UNSET:
        offers["availableCommands"] = latest.commands
    return raw(offers)


# -- settings ------------------------------------------------------------------------------------------------


def translate_setting(
    method: str, params: Raw, client_version: int, agent_version: int, offers: Raw
) -> SettingRequest:
    """Translate a client's `session/set_mode` or `session/set_config_option` for the agent.

    Raises `RemoteProtocolError` if the agent has no equivalent.
    """
    fields = members(params)
    if agent_version == client_version:
        return SettingRequest(method, params)
    if agent_version == 2:
        return SettingRequest(acp.SESSION_SET_CONFIG_OPTION, raw(_setting_to_v2(method, fields, offers)))
    if text_of(fields, "configId") == Modes(Counter(), offers).standing_id:
        mode = {name: value for name, value in fields.items() if name not in {"configId", "type", "value"}}
        return SettingRequest(acp.SESSION_SET_MODE, raw({**mode, "modeId": fields.get("value")}))
    if text_of(fields, "type") == "id":
        fields.pop("type")
    return SettingRequest(acp.SESSION_SET_CONFIG_OPTION, raw(fields))


def _setting_to_v2(method: str, fields: dict[str, Raw], offers: Raw) -> dict[str, Any]:
    if method == acp.SESSION_SET_CONFIG_OPTION:
        is_boolean = bytes(fields.get("value", b"")) in {b"true", b"false"}
        return {**fields, "type": "boolean" if is_boolean else "id"}
    option = Options(Counter(), offers, booleans=True).mode_option()
    if option is None:
        raise _invalid("this agent has no modes")
    others = {name: value for name, value in fields.items() if name != "modeId"}
    return {**others, "configId": option["configId"], "type": "id", "value": fields.get("modeId")}


def translate_setting_result(
    method: str,
    params: Raw,
    result: Raw,
    agent_version: int,
    client_version: int,
    offers: Raw,
    *,
    boolean_options: bool = True,
) -> Raw:
    """Translate the agent's answer to a setting that `translate_setting` made of the client's `method` and
    `params`.
    """
    answered = members(result)
    if agent_version == client_version:
        return result if boolean_options else raw(_takeable(answered, Counter(), booleans=False))
    if method == acp.SESSION_SET_MODE:
        return raw({})
    options = answered.get("configOptions")
    if client_version == 1:
        known = Options(Counter(), raw({"configOptions": options or []}), booleans=boolean_options)
        return raw({**answered, "configOptions": known.listed()})
    modes, wanted = Modes(Counter(), offers), members(params)
    if text_of(wanted, "configId") == modes.standing_id:
        modes.mode(text_of(wanted, "value") or "")
    elif options is not None:
        modes.options(options)
    return raw({**answered, "configOptions": modes.listed()})


# -- failures ------------------------------------------------------------------------------------------------


def unknown_session(session_id: str) -> Raw:
    """Return the error object for a session that does not exist, or is not active."""
    message = "there is no such session; list the sessions, or open a new one"
    return raw({"code": RESOURCE_NOT_FOUND, "message": message, "data": {"sessionId": session_id}})


def _invalid(message: str) -> RemoteProtocolError:
    return RemoteProtocolError(message, jsonrpc=INVALID_PARAMS, reason="malformed")
