"""Sessions: create, list, look at, rename, close.

Takes checked calls; hands inputs to the node and gives what the log says of a session. A create answers once the
session is recorded and its agent has it, so that an agent that refuses is heard at once; an agent that is slow goes
on opening, and what it says early is in the log after the answer.
"""

from __future__ import annotations

import os
import unicodedata
from typing import Annotated, Any, Literal

from anyio import to_thread
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field
from msgspec.structs import fields

from turnwire.core.inputs import Close, Rename
from turnwire.core.setup import Setup
from turnwire.core.view import Usage
from turnwire.errors import (
    AgentLaunchFailed,
    AgentUnavailable,
    AuthRequired,
    BadRequest,
    Forbidden,
    InvalidCwd,
    InvalidMetadata,
    InvalidMode,
    LimitExceeded,
    LinkBroken,
    LocalProtocolError,
    NotFound,
    RemoteProtocolError,
    SessionClosed,
    SessionExists,
    SessionLimitReached,
    ShuttingDown,
    TurnwireError,
    UnknownClient,
)
from turnwire.ids import Epoch, PromptId, SessionId
from turnwire.server import choosing
from turnwire.server.door.cwd import check_cwd
from turnwire.server.door.identity import Role
from turnwire.server.endpoint import Call, Endpoint, Reply
from turnwire.server.entering import SessionOpened, enter, granted, hear_agent
from turnwire.server.listing import SessionEntry, Standing, Wanted, entry_of, newest, page
from turnwire.server.streams.snapshot import snapshot_of
from turnwire.server.workspaces import workspace_of
from turnwire.wire.jsonrpc import raw

TITLE_CHARACTERS = 256
DOTS = frozenset({".", ".."})
"""What every client would take out of a URL."""

GivenId = Annotated[str, Meta(pattern="^[A-Za-z0-9_.-]{1,128}$", max_length=128)]
LARGEST_PAGE = 100
PageSize = Annotated[int, Meta(ge=1, le=LARGEST_PAGE)]


class NewSession(Struct, frozen=True, kw_only=True, rename="camel"):
    """What to create. All of it is optional."""

    cwd: str | None = None
    """Where it works; the daemon's first directory if none is given."""
    session_id: GivenId | None = None
    session_scope: Literal["single", "thread"] | None = None
    """`single` enters the newest open session of that directory, if there is one."""
    title: str | None = None
    approval_mode: str | None = None
    mcp_servers: list[dict[str, Raw]] = []
    additional_directories: list[str] = []
    """Further directories to work in, if the agent takes any."""
    meta: dict[str, Raw] | None = field(default=None, name="_meta")
    """For the agent, as it is."""


class CreateQuery(Struct, frozen=True):
    wait: bool = True
    """Whether to wait for the agent's answer."""


class ListQuery(Struct, frozen=True):
    size: PageSize = 20
    cursor: str | None = None
    cwd: str | None = None
    state: Standing | Literal["open"] | None = None


class PageQuery(Struct, frozen=True):
    size: Annotated[int, Meta(ge=1, le=1000)] = 20
    """Clients of this contract ask for so many; they get fewer, and a cursor."""
    cursor: str | None = None


class DeleteQuery(Struct, frozen=True):
    purge: bool = False
    """Remove the log as well."""


class SessionPage(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Sessions in the order of their ids."""

    sessions: list[SessionEntry]
    next_cursor: str | None = None


class SessionSnapshot(SessionEntry, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Where a session stands."""

    last_event_id: int
    event_epoch: Epoch
    is_closed: bool
    active_prompt_id: PromptId | None = None
    commands: Raw | UnsetType = UNSET
    mode: str | None = None
    modes: Raw | UnsetType = UNSET
    model: str | None = None
    models: Raw | UnsetType = UNSET
    config_options: Raw | UnsetType = UNSET
    usage: Usage | None = None
    background: Raw | UnsetType = UNSET
    plans: dict[str, Raw]
    queue: list[dict[str, Any]]
    permissions: list[dict[str, Any]]


class Metadata(Struct, frozen=True, kw_only=True, rename="camel"):
    """A new name; `displayName` is another word for `title`. Null takes the name away."""

    title: str | UnsetType | None = UNSET
    display_name: str | UnsetType | None = UNSET


class MetadataChanged(Struct, frozen=True, kw_only=True, rename="camel"):
    session_id: SessionId
    title: str | None
    display_name: str | None


async def create(call: Call) -> Reply:
    daemon, wanted = call.daemon, call.body
    daemon.check_open()
    if call.who.session_id is not None and call.who.session_id != wanted.session_id:
        raise Forbidden("this token is for another session")
    cwd = await to_thread.run_sync(check_cwd, wanted.cwd or str(daemon.roots[0]), daemon.roots)
    if wanted.session_scope != "single":
        return Reply(await _create(call, cwd))
    async with daemon.summaries.choosing:
        found = await newest(daemon, call.who, Wanted(cwd, state="open"))
        if found is None:
            return Reply(await _create(call, cwd))
    return Reply((await enter(call, found.session_id, attached=True)).opened)


async def _create(call: Call, cwd: str) -> SessionOpened:
    daemon, wanted = call.daemon, call.body
    setup = Setup(
        raw(wanted.mcp_servers),
        tuple(wanted.additional_directories),
        raw(wanted.meta) if wanted.meta else UNSET,
    )
    setup = await granted(daemon, setup)
    try:
        session_id = await daemon.node.create(
            cwd,
            session_id=checked_id(wanted.session_id),
            setup=setup,
            author=call.who.name,
            title=checked_title(wanted.title),
        )
    except LimitExceeded as error:
        raise SessionLimitReached(str(error), limit=daemon.limits.loaded_sessions) from None
    if call.query.wait:
        await hear_agent(daemon, session_id)
    if wanted.approval_mode is not None:
        try:
            await choosing.set_mode(daemon, session_id, wanted.approval_mode, choosing.Chooser(call.who.name))
        except TurnwireError:
            await daemon.node.delete(session_id)
            raise
    return (await enter(call, session_id, attached=False)).opened


async def list_all(call: Call) -> Reply:
    query: ListQuery = call.query
    cwd = None if query.cwd is None else await _true_path(query.cwd)
    return await _page(call, Wanted(cwd, state=query.state), query.size, query.cursor)


async def list_workspace(call: Call) -> Reply:
    named: str = call.request.path_params["cwd_or_id"]
    cwd = workspace_of(call.daemon.roots, named) or named
    if not cwd.startswith("/"):
        raise NotFound("there is no such workspace; GET /capabilities lists them")
    query: PageQuery = call.query
    wanted = Wanted(await _true_path(cwd), below=True)
    return await _page(call, wanted, min(query.size, LARGEST_PAGE), query.cursor)


async def _true_path(path: str) -> str:
    """Sessions know their directory by its true path."""
    if "\0" in path:
        raise BadRequest("a path cannot have a null character in it")
    return await to_thread.run_sync(os.path.realpath, path)


async def _page(call: Call, wanted: Wanted, size: int, cursor: str | None) -> Reply:
    after = None if cursor is None else SessionId(cursor)
    found, going_on = await page(call.daemon, call.who, wanted, after, size)
    return Reply(SessionPage(sessions=found, next_cursor=going_on))


async def show(call: Call) -> Reply:
    node, session_id = call.daemon.node, call.session_id
    queue = (await node.session(session_id)).state.queue
    view, offset = await node.view_at(session_id)
    epoch = (await node.head(session_id)).epoch
    entry = await entry_of(call.daemon, session_id)
    shown = {each.encode_name: getattr(entry, each.name) for each in fields(entry)}
    known = {name: value for name, value in shown.items() if value is not None}
    return Reply(snapshot_of(session_id, view, epoch, offset, queue) | known)


async def rename(call: Call) -> Reply:
    body: Metadata = call.body
    given = body.title if body.title is not UNSET else body.display_name
    if given is UNSET:
        raise InvalidMetadata("there is nothing to change; give a `title` or a `displayName`")
    title = checked_title(given)
    client_id = await call.daemon.clients.known(call.session_id, call.client_id, call.who)
    now = call.daemon.clock.now_ms()
    await call.daemon.node.submit(
        call.session_id, Rename(at=now, title=title, author=call.who.name, client_id=client_id)
    )
    return Reply(MetadataChanged(session_id=call.session_id, title=title, display_name=title))


def checked_id(session_id: str | None) -> SessionId | None:
    """An id that can be in a URL as it is. Raises `BadRequest`."""
    if session_id is None:
        return None
    if session_id in DOTS or not session_id.isprintable():
        raise BadRequest("this session id cannot be in a URL; use letters, digits and `_.-`")
    return SessionId(session_id)


def checked_title(title: str | None) -> str | None:
    """A title that can be shown in one line; an empty one is none. Raises `InvalidMetadata`."""
    title = (title or "").strip()
    if len(title) > TITLE_CHARACTERS:
        raise InvalidMetadata("the title is too long; shorten it", limit=TITLE_CHARACTERS, value=len(title))
    if any(unicodedata.category(each) in {"Cc", "Cs", "Zl", "Zp"} for each in title):
        raise InvalidMetadata("the title has control characters; give one line of text")
    return title or None


async def close(call: Call) -> Reply:
    node = call.daemon.node
    if call.query.purge:
        if not call.who.role.covers(Role.OWNER):
            raise Forbidden("removing a log needs the role 'owner'; close the session without `purge`")
        await node.delete(call.session_id)
        return Reply()
    client_id = await call.daemon.clients.known(call.session_id, call.client_id, call.who)
    given = Close(at=call.daemon.clock.now_ms(), author=call.who.name, client_id=client_id)
    await node.submit(call.session_id, given)
    return Reply()


OPENING = (AgentLaunchFailed, AgentUnavailable, AuthRequired, SessionLimitReached, ShuttingDown)
"""What every route that makes a session may refuse with."""

_CHANGES = (InvalidMetadata, UnknownClient, SessionClosed)

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="POST",
        path="/session",
        act=create,
        summary="Create a session, or enter the newest open one of its directory",
        role=Role.CONTROLLER,
        takes=NewSession,
        query=CreateQuery,
        gives=SessionOpened,
        narrows=True,
        refuses=(
            *OPENING,
            BadRequest,
            Forbidden,
            InvalidCwd,
            InvalidMetadata,
            InvalidMode,
            LinkBroken,
            LocalProtocolError,
            RemoteProtocolError,
            SessionClosed,
            SessionExists,
        ),
    ),
    Endpoint(
        method="GET",
        path="/session",
        act=list_all,
        summary="List sessions in the order of their ids, a page at a time",
        role=Role.OBSERVER,
        query=ListQuery,
        gives=SessionPage,
        narrows=True,
        refuses=(BadRequest,),
    ),
    Endpoint(
        method="GET",
        path="/workspace/{cwd_or_id:path}/sessions",
        act=list_workspace,
        summary="List the sessions that work in a directory or below it",
        role=Role.OBSERVER,
        query=PageQuery,
        gives=SessionPage,
        narrows=True,
        refuses=(BadRequest, NotFound),
    ),
    Endpoint(
        method="GET",
        path="/session/{session_id}",
        act=show,
        summary="Where a session stands",
        role=Role.OBSERVER,
        gives=SessionSnapshot,
    ),
    Endpoint(
        method="PATCH",
        path="/session/{session_id}",
        act=rename,
        summary="Rename a session",
        role=Role.CONTROLLER,
        takes=Metadata,
        gives=MetadataChanged,
        refuses=_CHANGES,
    ),
    Endpoint(
        method="PATCH",
        path="/session/{session_id}/metadata",
        act=rename,
        summary="Rename a session",
        role=Role.CONTROLLER,
        takes=Metadata,
        gives=MetadataChanged,
        refuses=_CHANGES,
    ),
    Endpoint(
        method="DELETE",
        path="/session/{session_id}",
        act=close,
        summary="Close a session: its turn and its streams end; with `purge` its log goes as well",
        role=Role.CONTROLLER,
        query=DeleteQuery,
        status=204,
        refuses=(Forbidden, UnknownClient),
    ),
)
"""The routes of sessions."""
