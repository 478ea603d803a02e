"""The methods that an agent answers, applied to the client's open sessions.

The table at the end has a row for each; `wire.methods` has the ACP versions of each method. Params are read only as
far as a method needs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import PurePath
from typing import Any, Final, NamedTuple

from msgspec import Raw

from turnwire.agent.client_sessions import Answered, ClientSessions
from turnwire.agent.definition import call
from turnwire.agent.options import MODE
from turnwire.agent.store import Kept
from turnwire.agent.v2_updates import Json, user_message
from turnwire.errors import SessionNotFound
from turnwire.projections.translate.sessions import Opening, read_opening
from turnwire.session.connection_stage import Step
from turnwire.session.json_members import as_object, is_null, members, read_entries, text_of
from turnwire.wire.jsonrpc import invalid_params, raw
from turnwire.wire.methods import (
    AUTH_LOGIN,
    AUTH_LOGOUT,
    AUTHENTICATE,
    LOGOUT,
    SESSION_CANCEL,
    SESSION_CLOSE,
    SESSION_DELETE,
    SESSION_FORK,
    SESSION_LIST,
    SESSION_LOAD,
    SESSION_NEW,
    SESSION_READY,
    SESSION_READY_DRAFT,
    SESSION_RESUME,
    SESSION_SET_CONFIG_OPTION,
    SESSION_SET_MODE,
    SESSION_STEERING,
)


class Row(NamedTuple):
    """A method."""

    act: Callable[[ClientSessions, Raw], Awaitable[Answered]]
    is_there: Callable[[ClientSessions], bool] = lambda sessions: True
    """Whether this agent offers it. `wire.methods` has its ACP versions."""


# -- sessions ------------------------------------------------------------------------------------------------------


async def new_session(sessions: ClientSessions, params: Raw) -> Answered:
    return await sessions.open_new(_opening(sessions, SESSION_NEW, params), _meta(params))


async def load_session(sessions: ClientSessions, params: Raw) -> Answered:
    return await sessions.reopen(_opening(sessions, SESSION_LOAD, params), _meta(params))


async def resume_session(sessions: ClientSessions, params: Raw) -> Answered:
    return await sessions.reopen(_opening(sessions, SESSION_RESUME, params), _meta(params))


async def fork_session(sessions: ClientSessions, params: Raw) -> Answered:
    asked = _opening(sessions, SESSION_FORK, params)
    assert asked.session_id is not None, "the shape of the params has it"
    kept = await sessions.kept(asked.session_id)
    return await sessions.open_new(asked, _meta(params), kept)


async def list_sessions(sessions: ClientSessions, params: Raw) -> Answered:
    fields = members(params)
    for name in ("cwd", "cursor"):
        if name in fields and not is_null(fields[name]) and text_of(fields, name) is None:
            raise invalid_params(f"`{name}` is a string")
    page = await sessions.definition.store.list(text_of(fields, "cwd"), text_of(fields, "cursor"))
    result: Json = {"sessions": [_listed(each) for each in page.sessions]}
    return Answered(result if page.next_cursor is None else {**result, "nextCursor": page.next_cursor})


async def close_session(sessions: ClientSessions, params: Raw) -> Answered:
    try:
        live, _ = sessions.find(_session_id(params))
    except SessionNotFound:
        if sessions.connected.profile.version == 2:
            return Answered({})
        raise
    await sessions.end(live)
    return Answered({})


async def delete_session(sessions: ClientSessions, params: Raw) -> Answered:
    session_id = _session_id(params)
    live = sessions.live.get(session_id)
    if live is not None:
        live.is_kept = False
        await sessions.end(live)
    await sessions.definition.store.delete(session_id)
    return Answered({})


def _opening(sessions: ClientSessions, method: str, params: Raw) -> Opening:
    """Return the checked params of a request that opens a session."""
    asked = read_opening(method, params, sessions.connected.profile.version)
    for name, paths in (("cwd", (asked.cwd,)), ("additionalDirectories", asked.setup.additional_directories)):
        if not all(PurePath(each).is_absolute() for each in paths):
            raise invalid_params(f"`{name}` takes absolute paths only")
    options = sessions.definition.options
    taken = {"stdio", *(["http"] if options.mcp_http else []), *(["sse"] if options.mcp_sse else [])}
    for each in read_entries(asked.setup.mcp_servers) or ():
        kind = text_of(members(each), "type")
        if kind not in taken:
            raise invalid_params(f"this agent takes no MCP servers of type `{kind}`; see its capabilities")
    return asked


def _listed(kept: Kept) -> Json:
    listed: Json = {"sessionId": kept.id, "cwd": kept.cwd, "additionalDirectories": list(kept.directories)}
    if kept.title is not None:
        listed["title"] = kept.title
    return {**listed, "updatedAt": kept.updated_at} if kept.updated_at else listed


# -- settings ------------------------------------------------------------------------------------------------------


async def set_mode(sessions: ClientSessions, params: Raw) -> Answered:
    fields = members(params)
    await _set(sessions, _session_id(params), MODE, text_of(fields, "modeId"))
    return Answered({})


async def set_config_option(sessions: ClientSessions, params: Raw) -> Answered:
    fields = as_object(params)
    option_id, value = fields.get("configId"), fields.get("value")
    if not isinstance(option_id, str):
        raise invalid_params("`configId` is a string")
    if sessions.connected.profile.version == 2 and fields.get("type") != (
        "boolean" if isinstance(value, bool) else "id"
    ):
        raise invalid_params("`type` must be `id` for a value of a list and `boolean` for on and off")
    return await _set(sessions, _session_id(params), option_id, value)


async def _set(sessions: ClientSessions, session_id: str, option_id: str, value: Any) -> Answered:
    live, client = sessions.find(session_id)
    async with live.settling:
        before = live.offers.value(option_id)
        if live.offers.choose(option_id, value):
            try:
                await call(sessions.definition.hooks.changed, live.session, option_id, value)
            except BaseException:
                live.offers.choose(option_id, before)
                raise
            live.tell_options()
    listed = raw({"configOptions": live.offers.listed_options()})
    return Answered(client.setting_result(listed))


# -- the rest ------------------------------------------------------------------------------------------------------


async def authenticate(sessions: ClientSessions, params: Raw) -> Answered:
    method_id = text_of(members(params), "methodId")
    listed = {each.id for each in sessions.definition.options.auth_methods if each.type == "agent"}
    if method_id not in listed:
        raise invalid_params("`methodId` must be one of the agent's authMethods that are not for a terminal")
    await call(sessions.definition.hooks.authenticate, method_id)
    sessions.connected.admission.step(Step.LOG_IN)
    return Answered({})


async def logout(sessions: ClientSessions, params: Raw) -> Answered:
    if sessions.definition.options.auth_required:
        sessions.connected.admission.step(Step.LOG_OUT)
    return Answered({})


async def steer(sessions: ClientSessions, params: Raw) -> Answered:
    """Offer a prompt to the turn that runs."""
    live, _ = sessions.find(_session_id(params))
    content = sessions.content(members(params).get("prompt"))
    turn = live.session.running
    if turn is None or not await call(sessions.definition.hooks.steer, turn, content):
        return Answered({"outcome": "promptRequired"})
    turn.publish(user_message(turn.new_id("u"), content))
    return Answered({"outcome": "injected"})


async def extension(sessions: ClientSessions, method: str, params: Raw) -> Any:
    """Call an extension method of the author."""
    fields = as_object(params)
    live = sessions.peek(fields.get("sessionId"))
    return await call(sessions.definition.hooks.extensions[method], fields, None if live is None else live.session)


def cancel(sessions: ClientSessions, params: Raw) -> None:
    live, client = sessions.find(_session_id(params))
    live.turns.cancel(client)


def ready(sessions: ClientSessions, params: Raw) -> None:
    sessions.be_ready(_session_id(params))


def _session_id(params: Raw) -> str:
    found = text_of(members(params), "sessionId")
    if found is None:
        raise invalid_params("`sessionId` is a string")
    return found


def _meta(params: Raw) -> Json:
    fields = members(params)
    return as_object(fields["_meta"]) if "_meta" in fields else {}


def _steers(sessions: ClientSessions) -> bool:
    return sessions.definition.hooks.steer is not None


def _logs_in(sessions: ClientSessions) -> bool:
    return bool(sessions.definition.options.auth_methods)


REQUESTS: Final[dict[str, Row]] = {
    SESSION_NEW: Row(new_session),
    SESSION_LOAD: Row(load_session),
    SESSION_RESUME: Row(resume_session),
    SESSION_FORK: Row(fork_session),
    SESSION_LIST: Row(list_sessions),
    SESSION_CLOSE: Row(close_session),
    SESSION_DELETE: Row(delete_session),
    SESSION_SET_MODE: Row(set_mode),
    SESSION_SET_CONFIG_OPTION: Row(set_config_option),
    AUTHENTICATE: Row(authenticate, _logs_in),
    AUTH_LOGIN: Row(authenticate, _logs_in),
    LOGOUT: Row(logout, _logs_in),
    AUTH_LOGOUT: Row(logout, _logs_in),
    SESSION_STEERING: Row(steer, is_there=_steers),
}
"""All requests that an agent answers except `initialize` and `session/prompt`, which the connection handles."""

LOGIN: Final = frozenset({AUTHENTICATE, AUTH_LOGIN, LOGOUT, AUTH_LOGOUT})
"""Methods allowed before login."""

NOTIFICATIONS: Final[dict[str, Callable[[ClientSessions, Raw], None]]] = {
    SESSION_CANCEL: cancel,
    SESSION_READY: ready,
    SESSION_READY_DRAFT: ready,
}
