"""What a client sets and lists: modes, models, options, logins, sessions.

Takes checked requests; gives results in the client's version. How a choice reaches the agent and the other clients
is `server.choosing`, the same as over REST.
"""

from __future__ import annotations

import os
from typing import Any

from anyio import to_thread
from msgspec import Raw, Struct

from turnwire.core.translate.auth import can_log_out, has_login, is_terminal
from turnwire.core.translate.sessions import SET_MODE, current_offers, translate_setting, translate_setting_result
from turnwire.errors import RemoteProtocolError
from turnwire.ids import SessionId
from turnwire.server.acp.acting import EMPTY, Named
from turnwire.server.acp.failures import invalid, read_params
from turnwire.server.acp.front import Front
from turnwire.server.acp.opening import agent_version
from turnwire.server.daemon import configuration
from turnwire.server.daemon.session_list import SessionEntry, Wanted
from turnwire.wire.jsonrpc import METHOD_NOT_FOUND, Request, raw

PAGE = 100
"""Sessions in one answer to `session/list`."""
_AFTER = "after:"
"""How our cursors begin, so that another one is known as such."""


class _Mode(Struct, rename="camel"):
    mode_id: str


class _Model(Named, rename="camel"):
    model_id: str


class _Option(Struct, rename="camel"):
    config_id: str
    value: str | bool


class _Listing(Struct):
    cwd: str | None = None
    cursor: str | None = None


class _Login(Struct, rename="camel"):
    method_id: str


async def choose(front: Front, request: Request) -> Raw:
    """`session/set_mode` and `session/set_config_option`."""
    daemon, version = front.daemon, front.client.version
    session_id = read_params(request.params, Named).session_id
    who = await _chooser(front, session_id)
    agent = await agent_version(front, session_id)
    offers = current_offers((await daemon.node.view(session_id)).latest)
    wanted = translate_setting(request.method, request.params, version, agent, offers)
    result = EMPTY
    if wanted.method == SET_MODE:
        await configuration.set_mode(daemon, session_id, read_params(wanted.params, _Mode).mode_id, who)
    else:
        option = read_params(wanted.params, _Option)
        options = await configuration.set_option(daemon, session_id, option.config_id, option.value)
        result = raw({"configOptions": options})
    offers = current_offers((await daemon.node.view(session_id)).latest)
    takes = front.client.boolean_options
    return translate_setting_result(
        request.method, request.params, result, agent, version, offers, boolean_options=takes
    )


async def choose_model(front: Front, request: Request) -> Raw:
    """`session/set_model`."""
    wanted = read_params(request.params, _Model)
    who = await _chooser(front, wanted.session_id)
    await configuration.set_model(front.daemon, wanted.session_id, wanted.model_id, who)
    return EMPTY


async def _chooser(front: Front, session_id: SessionId) -> configuration.Chooser:
    seat = front.attached(session_id)
    seat.ready()
    await front.daemon.node.agents.wake(session_id)
    return configuration.Chooser(front.who.name, seat.client_id)


async def list_sessions(front: Front, request: Request) -> Raw:
    """`session/list`: the sessions that the client may enter, in the order of their ids."""
    wanted = read_params(request.params, _Listing)
    if wanted.cwd is not None and (not wanted.cwd.startswith("/") or "\0" in wanted.cwd):
        raise invalid("`cwd` must be an absolute path")
    cwd = None if wanted.cwd is None else await to_thread.run_sync(os.path.realpath, wanted.cwd)
    if wanted.cursor is not None and not wanted.cursor.startswith(_AFTER):
        raise invalid("this is no cursor of ours; list from the start, without one")
    after = None if wanted.cursor is None else SessionId(wanted.cursor.removeprefix(_AFTER))
    found, going_on = await front.daemon.sessions.page(front.who, Wanted(cwd, state="open"), after, PAGE)
    result: dict[str, Any] = {"sessions": [_shown(each) for each in found]}
    return raw(result if going_on is None else {**result, "nextCursor": _AFTER + going_on})


def _shown(entry: SessionEntry) -> dict[str, Any]:
    shown: dict[str, Any] = {"sessionId": entry.session_id, "cwd": entry.cwd, "updatedAt": entry.updated_at}
    if entry.additional_directories:
        shown["additionalDirectories"] = entry.additional_directories
    return shown if entry.title is None else {**shown, "title": entry.title}


async def login(front: Front, request: Request) -> Raw:
    """`authenticate`, or `auth/login`."""
    wanted = read_params(request.params, _Login)
    agent = await front.daemon.node.agents.profile()
    if not has_login(agent):
        raise _not_offered("this agent has no way to log in")
    if is_terminal(agent.auth_methods, wanted.method_id):
        raise invalid("this way to log in is a program that the client runs itself; run it, then connect anew")
    await front.daemon.node.agents.authenticate(front.who.session_id or SessionId(""), wanted.method_id)
    return EMPTY


async def logout(front: Front, request: Request) -> Raw:
    """`logout`, or `auth/logout`."""
    agents = front.daemon.node.agents
    if not can_log_out(await agents.profile()):
        raise _not_offered("this agent has no way to log out")
    await agents.logout()
    return EMPTY


def _not_offered(message: str) -> RemoteProtocolError:
    return RemoteProtocolError(message, jsonrpc=METHOD_NOT_FOUND, reason="not_offered")
