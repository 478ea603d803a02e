"""Sessions: create, load, resume, fork, list, read, rename, archive, close.

A create is answered once the session is recorded and its agent has accepted it, so the caller learns of a rejection
at once. A slow agent continues to open the session after the answer, and its early updates follow in the log. A
load or a resume does not involve the agent: the log has the session, and the agent gets it back with the next
prompt. A fork is a new session that the agent makes of the old one.

Create, load, resume and fork attach the caller and share one answer. The position and the values in it are of the
same moment, so a caller that follows the events from there misses nothing and sees nothing twice.
"""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal, NamedTuple

from anyio import to_thread
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field
from msgspec.structs import asdict, fields, replace

from turnwire.errors import (
    AgentLaunchFailed,
    AgentUnavailable,
    AuthRequired,
    BadRequest,
    CredentialsNotStored,
    Forbidden,
    InvalidCwd,
    InvalidMetadata,
    InvalidMode,
    LinkBroken,
    LocalProtocolError,
    NotFound,
    PositionLost,
    RemoteProtocolError,
    SessionClosed,
    SessionExists,
    SessionLimitReached,
    ShuttingDown,
    TurnwireError,
    UnknownAgent,
    UnknownClient,
)
from turnwire.ids import AgentName, ClientId, Epoch, PromptId, SessionId
from turnwire.projections.translate.views import latest_in
from turnwire.projections.view import Latest, TurnRecord, Usage, View
from turnwire.projections.view.latest import offered_choice
from turnwire.runtime.draining import STOPPED
from turnwire.runtime.node import Fork
from turnwire.server.access.tokens import Role
from turnwire.server.bodies import BodyKind
from turnwire.server.daemon import configuration
from turnwire.server.daemon.creation import (
    TITLE_CHARACTERS,
    check_cwd,
    checked_setup,
    checked_title,
    context_of,
    create_session,
    hear_agent,
    workspace_of,
)
from turnwire.server.daemon.session_list import Archived, SessionEntry, Standing, Wanted, iso
from turnwire.server.endpoint import Call, Endpoint, Reply, ShapeQuery
from turnwire.server.readers.history import replay, snapshot_of
from turnwire.session.child_names import session_of
from turnwire.session.choices import MODE, MODEL
from turnwire.session.ending import NODE_LOST, RESTARTED
from turnwire.session.inputs import Archive, Close, Rename
from turnwire.session.state import SYSTEM_PROMPT, Phase, SessionState, Setup
from turnwire.wire.jsonrpc import raw

DOTS = frozenset({".", ".."})
"""Path segments that every client would remove from a URL."""

GivenId = Annotated[str, Meta(pattern="^[A-Za-z0-9_.-]{1,128}$", max_length=128)]
LARGEST_PAGE = 100
PageSize = Annotated[int, Meta(ge=1, le=LARGEST_PAGE)]

TERMINALS = 1000
"""Number of turn ends in an answer, the newest ones."""
INTERRUPTED = frozenset({RESTARTED, NODE_LOST, STOPPED})
"""Ends of turns that the daemon itself caused."""


class NewSession(Struct, frozen=True, kw_only=True, rename="camel"):
    """The session to create. All members are optional."""

    cwd: str | None = None
    """The working directory; the daemon's first directory by default."""
    agent: str | None = None
    """The name of its agent, as in `GET /agents`; the default agent if absent."""
    session_id: GivenId | None = None
    session_scope: Literal["single", "thread"] | None = None
    """`single` attaches to the newest open session of that directory, if there is one."""
    title: str | None = None
    approval_mode: str | None = None
    mcp_servers: list[dict[str, Raw]] = []
    additional_directories: list[str] = []
    """Further working directories, if the agent accepts any."""
    system_prompt: dict[str, Raw] | None = None
    """`{mode, content}` as in ACP, if the agent offers it."""
    meta: dict[str, Raw] | None = field(default=None, name="_meta")
    """Metadata, forwarded to the agent unchanged."""


class CreateQuery(ShapeQuery, frozen=True):
    wait: bool = True
    """True to wait for the agent's answer."""


class ListQuery(Struct, frozen=True):
    size: PageSize = 20
    cursor: str | None = None
    cwd: str | None = None
    state: Standing | Literal["open"] | None = None
    agent: str | None = None
    """Only the sessions of this agent."""
    archived: Archived = "false"
    """By default archived sessions are omitted; `true` lists only them, `all` lists both."""
    search: Annotated[str, Meta(max_length=TITLE_CHARACTERS)] = ""
    """Only sessions that contain all these words in their title or directory, or in one message of a user or the
    agent or one title of a tool call. Case is ignored. The last word may be a prefix when messages and tool calls
    are searched.
    """


class PageQuery(Struct, frozen=True):
    size: Annotated[int, Meta(ge=1, le=1000)] = 20
    """Page size. Clients of this contract may ask for more; they get fewer sessions and a cursor."""
    cursor: str | None = None
    archived: Archived = "false"


class SessionPage(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Sessions in the order of their ids."""

    sessions: list[SessionEntry]
    next_cursor: str | None = None


class SessionSnapshot(SessionEntry, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The state of a session."""

    is_closed: bool
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


class DeleteQuery(Struct, frozen=True):
    purge: bool = False
    """Delete the log as well."""


class Metadata(Struct, frozen=True, kw_only=True, rename="camel"):
    """A new title; `displayName` is an alias of `title`. Null removes the title."""

    title: str | UnsetType | None = UNSET
    display_name: str | UnsetType | None = UNSET


class MetadataChanged(Struct, frozen=True, kw_only=True, rename="camel"):
    session_id: SessionId
    title: str | None
    display_name: str | None


class AgentState(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The offered and the selected settings of the agent, in the form of the requested ACP version."""

    modes: dict[str, Any] | UnsetType = UNSET
    models: dict[str, Any] | UnsetType = UNSET
    config_options: Raw | UnsetType = UNSET
    available_commands: Raw | UnsetType = UNSET


class SessionOpened(Struct, frozen=True, kw_only=True, rename="camel"):
    """A session that the caller is now attached to."""

    session_id: SessionId
    workspace_cwd: str
    agent: AgentName
    attached: bool
    """True if the session existed already."""
    client_id: ClientId
    created_at: str
    has_active_prompt: bool
    last_event_id: int
    event_epoch: Epoch
    state: AgentState


class Entered(NamedTuple):
    """The state of a session for an attaching client."""

    opened: SessionOpened
    offset: int


class Restoring(Struct, frozen=True, kw_only=True):
    """No member is required. `cwd` is ignored: the session's own is used."""

    cwd: str | None = None


class PromptTerminal(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The end of a turn."""

    v: int
    prompt_id: PromptId
    terminal: Literal["completed", "cancelled", "error", "interrupted"]
    stop_reason: str | None = None
    code: str | None = None
    at: int


class SessionResumed(SessionOpened, frozen=True, kw_only=True, rename="camel"):
    """A session that the caller has resumed."""

    prompt_terminals: list[PromptTerminal]


class SessionLoaded(SessionResumed, frozen=True, kw_only=True, rename="camel"):
    """A resumed session with its history: envelopes of events, older ones compacted."""

    compacted_replay: list[dict[str, Any]]
    live_journal: list[dict[str, Any]]


class NewFork(Struct, frozen=True, kw_only=True, rename="camel"):
    """The working directory and the title of the new session; the old session's directory by default."""

    cwd: str | None = None
    agent: str | None = None
    """Another agent, which continues from the conversation as text. By default the session's agent forks."""
    session_id: GivenId | None = None
    title: str | None = None


# -- making one ----------------------------------------------------------------------------------------------


async def create(call: Call) -> Reply:
    daemon, wanted = call.daemon, call.body
    daemon.check_open()
    if call.who.session_id is not None and call.who.session_id != wanted.session_id:
        raise Forbidden("this token is for another session")
    agent = daemon.node.agents.named(_agent_name(wanted.agent))
    cwd = await to_thread.run_sync(check_cwd, wanted.cwd or str(daemon.roots[0]), daemon.roots)
    if wanted.session_scope != "single":
        return Reply(await _create(call, cwd))
    async with daemon.sessions.sharing():
        found = await daemon.sessions.newest(call.who, Wanted(cwd, state="open", agent=agent.name))
        if found is None:
            return Reply(await _create(call, cwd))
    return Reply((await enter(call, found.session_id, attached=True)).opened)


async def _create(call: Call, cwd: str) -> SessionOpened:
    daemon, wanted = call.daemon, call.body
    setup = Setup(
        raw(wanted.mcp_servers),
        tuple(wanted.additional_directories),
        raw(wanted.meta) if wanted.meta else UNSET,
        raw({SYSTEM_PROMPT: wanted.system_prompt}) if wanted.system_prompt is not None else UNSET,
    )
    session_id = await create_session(
        daemon,
        cwd,
        await checked_setup(daemon, setup, _agent_name(wanted.agent)),
        author=call.who.name,
        session_id=checked_id(wanted.session_id),
        title=checked_title(wanted.title),
        agent_name=_agent_name(wanted.agent),
    )
    if call.query.wait:
        await hear_agent(daemon, session_id)
    if wanted.approval_mode is not None:
        try:
            await configuration.set_mode(
                daemon, session_id, wanted.approval_mode, configuration.Chooser(call.who.name)
            )
        except TurnwireError:
            await daemon.delete(session_id)
            raise
    return (await enter(call, session_id, attached=False)).opened


def _agent_name(given: str | None) -> AgentName | None:
    return None if given is None else AgentName(given)


async def enter(call: Call, session_id: SessionId, *, attached: bool) -> Entered:
    """Attach the caller. Raises `SessionNotFound`, `SessionClosed`."""
    node = call.daemon.node
    client_id = await call.daemon.clients.attach(session_id, call.who)
    view, epoch = await node.newest(session_id)
    offset = view.offset
    opened = SessionOpened(
        session_id=session_id,
        workspace_cwd=view.session.cwd,
        agent=node.agents.name_of(view.session.agent_name),
        attached=attached,
        client_id=client_id,
        created_at=iso(view.session.created_at),
        has_active_prompt=view.active is not None,
        last_event_id=offset,
        event_epoch=epoch,
        state=_agent_state(latest_in(view, call.query.shape.version)),
    )
    return Entered(opened, offset)


def _agent_state(latest: Latest) -> AgentState:
    """Return the latest values of the agent's settings."""
    return AgentState(
        modes=_choice(*offered_choice(latest, MODE), "currentModeId", "availableModes"),
        models=_choice(*offered_choice(latest, MODEL), "currentModelId", "availableModels"),
        config_options=latest.config_options,
        available_commands=latest.commands,
    )


def _choice(
    current: str | None, offered: Raw | UnsetType, current_key: str, offered_key: str
) -> dict[str, Any] | UnsetType:
    return UNSET if offered is UNSET else {current_key: current, offered_key: offered}


def checked_id(session_id: str | None) -> SessionId | None:
    """Return the id if it can be in a URL unescaped. Raises `BadRequest`."""
    if session_id is None:
        return None
    if session_id in DOTS or not session_id.isprintable():
        raise BadRequest("this session id cannot be in a URL; use letters, digits and `_.-`")
    if session_of(session_id) is not None:
        raise BadRequest("a dot and a number at the end make the id of a child session; give another id")
    return SessionId(session_id)


# -- coming back to one --------------------------------------------------------------------------------------


async def resume(call: Call) -> Reply:
    call.daemon.check_open()
    entered = await enter(call, call.session_id, attached=True)
    return Reply(_members(entered.opened) | await _ends(call))


async def load(call: Call) -> Reply:
    daemon = call.daemon
    daemon.check_open()
    entered = await enter(call, call.session_id, attached=True)
    history = await replay(daemon.node, call.session_id, entered.offset, call.query.shape)
    told = {"compactedReplay": history.compacted, "liveJournal": history.journal}
    return Reply(_members(entered.opened) | await _ends(call) | told)


async def fork(call: Call) -> Reply:
    daemon, wanted = call.daemon, call.body
    daemon.check_open()
    if call.who.session_id is not None:
        raise Forbidden("this token is for one session; a fork is another one")
    state = (await daemon.node.peek(call.session_id)).state
    if state.phase is Phase.CLOSED:
        raise SessionClosed("the session is closed and its agent has forgotten it", session_id=call.session_id)
    cwd = await to_thread.run_sync(check_cwd, wanted.cwd or state.cwd, daemon.roots)
    is_other, setup = _is_other_agent(call, state), replace(state.setup, additional_directories=())
    session_id = await create_session(
        daemon,
        cwd,
        await checked_setup(daemon, replace(setup, meta=UNSET), _agent_name(wanted.agent)) if is_other else setup,
        author=call.who.name,
        session_id=checked_id(wanted.session_id),
        title=checked_title(wanted.title),
        fork=Fork(call.session_id, await context_of(daemon, call.session_id) if is_other else None),
        agent_name=_agent_name(wanted.agent),
    )
    if call.query.wait:
        await hear_agent(daemon, session_id)
    return Reply((await enter(call, session_id, attached=False)).opened)


def _is_other_agent(call: Call, state: SessionState) -> bool:
    """Return whether a fork is for another agent than the session's. Raises `UnknownAgent`."""
    agents, wanted = call.daemon.node.agents, call.body
    return wanted.agent is not None and agents.named(_agent_name(wanted.agent)).name != agents.name_of(
        state.agent_name
    )


def _members(opened: SessionOpened) -> dict[str, Any]:
    names = {each.name: each.encode_name for each in fields(opened)}
    return {names[name]: value for name, value in asdict(opened).items()}


async def _ends(call: Call) -> dict[str, Any]:
    return {"promptTerminals": await call.daemon.node.look(call.session_id, _terminals)}


def _terminals(view: View) -> list[PromptTerminal]:
    count = view.turn_count
    # All turns that have not ended are in memory.
    newest = view.turns_between(max(count - len(view.turns) - TERMINALS, 0), count)
    return [_terminal(each) for each in newest if each.outcome is not None][-TERMINALS:]


def _terminal(record: TurnRecord) -> PromptTerminal:
    outcome = record.outcome
    assert outcome is not None, "the turn has ended"
    error = outcome.error
    if error is not None:
        terminal = "interrupted" if error.code in INTERRUPTED else "error"
    else:
        terminal = "cancelled" if outcome.stop_reason == "cancelled" else "completed"
    return PromptTerminal(
        v=1,
        prompt_id=record.prompt_id,
        terminal=terminal,
        stop_reason=outcome.stop_reason,
        code=None if error is None else error.code,
        at=record.ended_at or 0,
    )


# -- looking -------------------------------------------------------------------------------------------------


async def list_all(call: Call) -> Reply:
    query: ListQuery = call.query
    cwd = None if query.cwd is None else await _true_path(query.cwd)
    wanted = Wanted(
        cwd,
        state=query.state,
        agent=_agent_name(query.agent),
        archived=query.archived,
        words=tuple(query.search.split()),
    )
    return await _page(call, wanted, query.size, query.cursor)


async def list_workspace(call: Call) -> Reply:
    named: str = call.request.path_params["cwd_or_id"]
    cwd = workspace_of(call.daemon.roots, named) or named
    if not cwd.startswith("/"):
        raise NotFound("there is no such workspace; GET /capabilities lists them")
    query: PageQuery = call.query
    wanted = Wanted(await _true_path(cwd), below=True, archived=query.archived)
    return await _page(call, wanted, min(query.size, LARGEST_PAGE), query.cursor)


async def _true_path(path: str) -> str:
    """Return the real path: sessions store their directory as one."""
    if "\0" in path:
        raise BadRequest("a path cannot have a null character in it")
    return await to_thread.run_sync(os.path.realpath, path)


async def _page(call: Call, wanted: Wanted, size: int, cursor: str | None) -> Reply:
    after = None if cursor is None else SessionId(cursor)
    found, going_on = await call.daemon.sessions.page(call.who, wanted, after, size)
    return Reply(SessionPage(sessions=found, next_cursor=going_on))


async def show(call: Call) -> Reply:
    node, session_id = call.daemon.node, call.session_id
    queue = (await node.peek(session_id)).state.queue
    view, epoch = await node.newest(session_id)
    offset = view.offset
    snapshot = snapshot_of(session_id, view, epoch, offset, queue, call.query.shape)
    entry = await call.daemon.sessions.entry(session_id)
    shown = {each.encode_name: getattr(entry, each.name) for each in fields(entry)}
    known = {name: value for name, value in shown.items() if value is not None}
    # The entry was read later, so the position must be the snapshot's, whose values belong to this event.
    return Reply(snapshot | known | {"lastEventId": offset, "eventEpoch": epoch})


# -- changing ------------------------------------------------------------------------------------------------


async def rename(call: Call) -> Reply:
    body: Metadata = call.body
    name = body.title if body.title is not UNSET else body.display_name
    if name is UNSET:
        raise InvalidMetadata("there is nothing to change; give a `title` or a `displayName`")
    title = checked_title(name)
    await call.submit(Rename, title=title)
    return Reply(MetadataChanged(session_id=call.session_id, title=title, display_name=title))


async def archive(call: Call) -> Reply:
    await call.submit(Archive, archived=True)
    return Reply()


async def unarchive(call: Call) -> Reply:
    await call.submit(Archive, archived=False)
    return Reply()


async def close(call: Call) -> Reply:
    if call.query.purge:
        if not call.who.role.covers(Role.OWNER):
            raise Forbidden("removing a log needs the role 'owner'; close the session without `purge`")
        await call.daemon.delete(call.session_id)
        return Reply()
    await call.submit(Close)
    return Reply()


# -- the rows ------------------------------------------------------------------------------------------------


OPENING = (AgentLaunchFailed, AgentUnavailable, AuthRequired, SessionLimitReached, ShuttingDown)
"""Errors of every route that creates a session."""

_CHANGES = (InvalidMetadata, UnknownClient, SessionClosed)

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="POST",
        path="/session",
        act=create,
        summary="Create a session, or enter the newest open one of its directory",
        role=Role.CONTROLLER,
        takes=NewSession,
        body=BodyKind.CONTENT,
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
            UnknownAgent,
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
        query=ShapeQuery,
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
        method="POST",
        path="/session/{session_id}/archive",
        act=archive,
        summary="Put a session away: lists leave it out until it is prompted or taken back; its log stays",
        role=Role.CONTROLLER,
        status=204,
        refuses=(UnknownClient,),
    ),
    Endpoint(
        method="POST",
        path="/session/{session_id}/unarchive",
        act=unarchive,
        summary="Take a session back that was archived",
        role=Role.CONTROLLER,
        status=204,
        refuses=(UnknownClient,),
    ),
    Endpoint(
        method="DELETE",
        path="/session/{session_id}",
        act=close,
        summary="Close a session: its turn and its streams end; with `purge` its log goes as well",
        role=Role.CONTROLLER,
        query=DeleteQuery,
        status=204,
        refuses=(CredentialsNotStored, Forbidden, UnknownClient),
    ),
    Endpoint(
        method="POST",
        path="/session/{session_id}/load",
        act=load,
        summary="Come back to a session, with its history",
        role=Role.OBSERVER,
        takes=Restoring,
        query=ShapeQuery,
        gives=SessionLoaded,
        refuses=(PositionLost, SessionClosed, ShuttingDown),
    ),
    Endpoint(
        method="POST",
        path="/session/{session_id}/resume",
        act=resume,
        summary="Come back to a session, without its history",
        role=Role.OBSERVER,
        takes=Restoring,
        query=ShapeQuery,
        gives=SessionResumed,
        refuses=(SessionClosed, ShuttingDown),
    ),
    Endpoint(
        method="POST",
        path="/session/{session_id}/fork",
        act=fork,
        summary="Make a new session that goes on from this one, if the agent can",
        role=Role.CONTROLLER,
        takes=NewFork,
        query=CreateQuery,
        gives=SessionOpened,
        refuses=(
            *OPENING,
            BadRequest,
            Forbidden,
            InvalidCwd,
            InvalidMetadata,
            LocalProtocolError,
            SessionClosed,
            SessionExists,
            UnknownAgent,
        ),
    ),
)
"""The routes of sessions."""
