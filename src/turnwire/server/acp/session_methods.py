"""The methods by which a client opens, configures, lists and leaves sessions.

Opening attaches the client to the session's log and sets the start of its readers. The agent is not asked to load
anything: the log has the session, and the agent loads it with the next prompt. The response to a new session waits
for its agent, so that an agent's error reaches the client unchanged. Settings reach the agent and the other clients
as they do over REST.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from os.path import realpath
from typing import Annotated, Any, Literal, NamedTuple

from anyio import to_thread
from msgspec import UNSET, Meta, Raw, Struct, field
from msgspec.structs import replace

from turnwire.errors import (
    BadRequest,
    Forbidden,
    SessionClosed,
    SessionNotFound,
    TurnwireError,
)
from turnwire.ids import UNNAMED, AgentName, Epoch, SessionId
from turnwire.log.base import Position, SessionHead
from turnwire.log.rules import check_position
from turnwire.projections.translate.sessions import (
    current_offers,
    read_opening,
    session_result,
    translate_setting,
    translate_setting_result,
)
from turnwire.projections.view import View
from turnwire.projections.view.latest import latest_updates
from turnwire.runtime.node import Fork, Node
from turnwire.server.access.tokens import Role
from turnwire.server.acp.client_state import ClientState, NotificationRow, Row
from turnwire.server.acp.prompt_methods import answer_from_log, drop_waiting, give_owed, owed_upto, submit
from turnwire.server.acp.rpc import EMPTY, Named, read_params
from turnwire.server.acp.subscription import Start
from turnwire.server.daemon import configuration
from turnwire.server.daemon.creation import check_cwd, checked_setup, checked_title, create_session, hear_agent
from turnwire.server.daemon.session_list import Archived, SessionEntry, Wanted
from turnwire.server.readers.fanout import start_at
from turnwire.session.inputs import Archive, Cancel, ChangeSetup, Rename
from turnwire.session.json_members import members, text_of
from turnwire.session.state import Phase, Setup
from turnwire.wire import methods as acp
from turnwire.wire.jsonrpc import Request, invalid_params, raw

PAGE = 100
"""Sessions per response to `session/list`."""
_AFTER = "after:"
"""The prefix of our list cursors, by which foreign ones are recognised."""


# -- opening -------------------------------------------------------------------------------------------------


class _Cursor(Struct, frozen=True):
    after: Annotated[int, Meta(ge=0)] | None = None
    epoch: str | None = None


class _Vendors(Struct, frozen=True):
    cursor: _Cursor = field(default=_Cursor(), name=acp.VENDOR)


_NO_VENDORS = _Vendors()


class _Known(Struct, rename="camel"):
    """An existing session, and optionally the last event of it that the client has."""

    session_id: SessionId
    meta: _Vendors | None = field(default=None, name="_meta")

    @property
    def cursor(self) -> _Cursor:
        return (self.meta or _NO_VENDORS).cursor


class _Attaching(_Known, rename="camel"):
    history_policy: Literal["full", "pending_only", "none"] = "full"


class HistoryPolicy(NamedTuple):
    """The part of the past that a client requests."""

    after: int | None
    """The events after this offset; None requests no events."""
    now: bool = True
    """The latest value of each state-like update, and open permission requests."""
    epoch: str | None = None
    """The log epoch that `after` belongs to; None if the client does not name it."""
    resumes: bool = False
    """`after` is the last event that the client has."""


async def new(client: ClientState, request: Request) -> None:
    """`session/new`."""
    daemon = client.daemon
    daemon.check_open()
    if client.who.session_id is not None:
        raise Forbidden("this token is for one session; attach to that one")
    wanted = read_opening(request.method, request.params, client.profile.version)
    agent_name = _agent_of(client, request)
    cwd = await to_thread.run_sync(check_cwd, wanted.cwd, daemon.roots)
    setup = await _granted(client, wanted.setup, agent_name)
    await _create(client, request, cwd, setup, agent_name=agent_name)


def _agent_of(client: ClientState, request: Request) -> AgentName | None:
    """Return a new session's agent: `_meta.turnwire.agent`, else the address's. Raises `UnknownAgent`."""
    wanted = text_of(members(members(members(request.params).get("_meta")).get(acp.VENDOR)), "agent")
    agent_name = client.agent_name if wanted is None else AgentName(wanted)
    client.daemon.node.agents.named(agent_name)
    return agent_name


async def fork(client: ClientState, request: Request) -> None:
    """`session/fork`. Params that are missing are copied from the parent session, except for directories."""
    daemon = client.daemon
    daemon.check_open()
    if client.who.session_id is not None:
        raise Forbidden("this token is for one session; a fork is another one")
    parent = read_params(request.params, _Known).session_id
    client.check(parent)
    state = (await daemon.node.peek(parent)).state
    if state.phase is Phase.CLOSED:
        raise SessionClosed("the session is closed and its agent has forgotten it", session_id=parent)
    params = members(request.params)
    wanted = read_opening(request.method, raw({"cwd": state.cwd} | params), client.profile.version)
    cwd = state.cwd if "cwd" not in params else await to_thread.run_sync(check_cwd, wanted.cwd, daemon.roots)
    setup = await _granted(client, wanted.setup, state.agent_name)
    if "mcpServers" not in params:
        setup = replace(setup, mcp_servers=state.setup.mcp_servers)
    setup = _completed(setup, state.setup)
    await _create(client, request, cwd, setup, parent)


async def _granted(client: ClientState, setup: Setup, agent_name: AgentName | None) -> Setup:
    """Return the setup with real paths. Raises if its directories are not supported or not granted."""
    try:
        return await checked_setup(client.daemon, setup, agent_name)
    except BadRequest as refused:
        raise invalid_params(str(refused)) from None


async def _create(
    client: ClientState,
    request: Request,
    cwd: str,
    setup: Setup,
    fork_of: SessionId | None = None,
    *,
    agent_name: AgentName | None = None,
) -> None:
    daemon = client.daemon
    fork = None if fork_of is None else Fork(fork_of)
    session_id = await create_session(daemon, cwd, setup, author=client.who.name, fork=fork, agent_name=agent_name)
    await hear_agent(daemon, session_id)
    subscription = client.subscription(session_id)
    client_id = await daemon.clients.attach(session_id, client.who, connected=True)
    view, epoch = await daemon.node.newest(session_id)
    client.answer(request.id, await _result(client, session_id, view, named=True))
    client.open(subscription, Start(client_id, epoch, 0, 0))


async def load(client: ClientState, request: Request) -> None:
    """`session/load` and `session/resume`. `_meta.turnwire.after` requests only the events after that one."""
    wanted = read_opening(request.method, request.params, client.profile.version)
    named = read_params(request.params, _Known)
    client.check(named.session_id)
    state = (await client.daemon.node.peek(named.session_id)).state
    if await to_thread.run_sync(_true_path, wanted.cwd) != state.cwd:
        raise invalid_params("`cwd` is not the directory of this session; give its own, as `session/list` shows it")
    setup = _completed(await _granted(client, wanted.setup, state.agent_name), state.setup)
    await enter(client, request, named.session_id, _history(named.cursor, 0 if wanted.replay else None), setup)


def _completed(setup: Setup, known: Setup) -> Setup:
    """Return the setup with the members that the request does not have."""
    meta, extra = (
        known.meta if setup.meta is UNSET else setup.meta,
        known.extra if setup.extra is UNSET else setup.extra,
    )
    return replace(setup, meta=meta, extra=extra)


def _true_path(path: str) -> str | None:
    """Return the real path, under which sessions store their directory. None if the path is not absolute."""
    return realpath(path) if path.startswith("/") and "\0" not in path else None


async def attach(client: ClientState, request: Request) -> None:
    """`session/attach`. A cursor requests the events after it, as in `load`, regardless of the policy."""
    wanted = read_params(request.params, _Attaching)
    policy = wanted.history_policy
    history = _history(wanted.cursor, 0 if policy == "full" else None, now=policy != "none")
    await enter(client, request, wanted.session_id, history, named=True)


def _history(cursor: _Cursor, after: int | None, *, now: bool = True) -> HistoryPolicy:
    if cursor.after is not None:
        return HistoryPolicy(cursor.after, now=False, epoch=cursor.epoch, resumes=True)
    return HistoryPolicy(after, now=now, epoch=cursor.epoch)


async def enter(
    client: ClientState,
    request: Request,
    session_id: SessionId,
    history: HistoryPolicy,
    setup: Setup | None = None,
    *,
    named: bool = False,
) -> None:
    """Attach the client to an existing session. The response follows the history.

    `setup`: settings for the agent when it next has to open the session; an observer changes nothing.
    """
    try:
        await _enter(client, request, session_id, history, setup, named=named)
    except TurnwireError:
        # A paused session would get no other position to continue from, and its responses are pending.
        if (subscription := client.subscriptions.get(session_id)) is not None:
            subscription.resume()
        raise


async def _honoured(node: Node, session_id: SessionId, history: HistoryPolicy) -> SessionHead:
    """Return the log's head if the log has the position that the client continues from. Raises `PositionLost`."""
    epoch = None if history.epoch is None else Epoch(history.epoch)
    if history.after:
        head, _, _ = await start_at(node, session_id, epoch, history.after)
    else:
        head = await node.head(session_id)
    check_position(head, Position(epoch or head.epoch, history.after or head.first - 1))
    return head


async def _enter(
    client: ClientState,
    request: Request,
    session_id: SessionId,
    history: HistoryPolicy,
    setup: Setup | None,
    *,
    named: bool,
) -> None:
    daemon = client.daemon
    daemon.check_open()
    client.check(session_id)
    log = await _honoured(daemon.node, session_id, history)
    subscription = client.subscription(session_id)
    was_here = subscription.client_id is not None
    client_id = subscription.client_id or await daemon.clients.attach(session_id, client.who, connected=True)
    if setup is not None and client.who.role.covers(Role.CONTROLLER):
        now = daemon.clock.now_ms()
        changed = ChangeSetup(at=now, author=client.who.name, client_id=client_id, setup=setup)
        await daemon.node.submit(session_id, changed)
    view, _ = await daemon.node.newest(session_id)
    head = view.offset
    after = head if history.after is None else history.after
    result = await _result(client, session_id, view, named=named, head=head)
    is_whole = history.after == 0 and log.first <= 1
    start = Start(
        client_id,
        log.epoch,
        max(after, log.first - 1),
        head,
        # A client with every event knows the state.
        tells_state=not (history.resumes and was_here),
        greeting=latest_updates(view.latest, view.session.title, await client.agent_version(session_id))
        if history.now and not is_whole
        else (),
        asks=history.now or history.after is not None,
        resumes=history.resumes,
        answer=partial(client.answer, request.id, result),
        refuse=partial(client.fail, request.id),
    )
    owed = await owed_upto(client, session_id, head)
    # No await between this and the opening: from then on readers answer prompts that end after the head, and none
    # before.
    give_owed(client, subscription, owed)
    client.open(subscription, start)


async def _result(
    client: ClientState, session_id: SessionId, view: View, *, named: bool, head: int | None = None
) -> Raw:
    """Return the result. `head`: the last event of the history before it, so that a client knows the end."""
    version = await client.agent_version(session_id)
    result = session_result(
        current_offers(view.latest),
        version,
        client.profile.version,
        session_id if named else None,
        boolean_options=client.profile.boolean_options,
    )
    if head is None:
        return result
    told = members(result)
    meta = {**members(told.get("_meta")), acp.VENDOR: {"lastEventId": head}}
    return raw({**told, "_meta": meta})


# -- settings ------------------------------------------------------------------------------------------------


class _Mode(Struct, rename="camel"):
    mode_id: str


class _Model(Named, rename="camel"):
    model_id: str


class _Option(Struct, rename="camel"):
    config_id: str
    value: str | bool


async def set_option(client: ClientState, request: Request) -> Raw:
    """`session/set_mode` and `session/set_config_option`."""
    daemon, version = client.daemon, client.profile.version
    session_id = read_params(request.params, Named).session_id
    who = await _chooser(client, session_id)
    agent = await client.agent_version(session_id)
    offers = current_offers((await daemon.node.newest(session_id))[0].latest)
    wanted = translate_setting(request.method, request.params, version, agent, offers)
    result = EMPTY
    if wanted.method == acp.SESSION_SET_MODE:
        await configuration.set_mode(daemon, session_id, read_params(wanted.params, _Mode).mode_id, who)
    else:
        option = read_params(wanted.params, _Option)
        options = await configuration.set_option(daemon, session_id, option.config_id, option.value, who)
        result = raw({"configOptions": options})
    offers = current_offers((await daemon.node.newest(session_id))[0].latest)
    takes = client.profile.boolean_options
    return translate_setting_result(
        request.method, request.params, result, agent, version, offers, boolean_options=takes
    )


async def set_model(client: ClientState, request: Request) -> Raw:
    """`session/set_model`."""
    wanted = read_params(request.params, _Model)
    who = await _chooser(client, wanted.session_id)
    await configuration.set_model(client.daemon, wanted.session_id, wanted.model_id, who)
    return EMPTY


async def _chooser(client: ClientState, session_id: SessionId) -> configuration.Chooser:
    subscription = client.attached(session_id)
    await client.daemon.node.agents.wake(session_id)
    return configuration.Chooser(client.who.name, subscription.client_id)


# -- listing -------------------------------------------------------------------------------------------------


_ARCHIVED: dict[str | None, Archived] = {None: "false", "exclude": "false", "include": "all", "only": "true"}


class _Listing(Struct):
    cwd: str | None = None
    cursor: str | None = None
    archived: str | None = None


async def list_sessions(client: ClientState, request: Request) -> Raw:
    """`session/list`: the sessions that the client may access, ordered by id."""
    wanted = read_params(request.params, _Listing)
    if wanted.cwd is not None and (not wanted.cwd.startswith("/") or "\0" in wanted.cwd):
        raise invalid_params("`cwd` must be an absolute path")
    if wanted.archived not in _ARCHIVED:
        raise invalid_params("`archived` is `exclude`, `include` or `only`")
    cwd = None if wanted.cwd is None else await to_thread.run_sync(realpath, wanted.cwd)
    if wanted.cursor is not None and not wanted.cursor.startswith(_AFTER):
        raise invalid_params("this is no cursor of ours; list from the start, without one")
    after = None if wanted.cursor is None else SessionId(wanted.cursor.removeprefix(_AFTER))
    found, going_on = await client.daemon.sessions.page(
        client.who,
        Wanted(cwd, state="open", agent=client.agent_name, archived=_ARCHIVED[wanted.archived]),
        after,
        PAGE,
    )
    result: dict[str, Any] = {"sessions": [_shown(each) for each in found]}
    return raw(result if going_on is None else {**result, "nextCursor": _AFTER + going_on})


def _shown(entry: SessionEntry) -> dict[str, Any]:
    shown: dict[str, Any] = {"sessionId": entry.session_id, "cwd": entry.cwd, "updatedAt": entry.updated_at}
    if entry.agent != UNNAMED:
        shown["_meta"] = {acp.VENDOR: {"agent": entry.agent}}
    if entry.additional_directories:
        shown["additionalDirectories"] = entry.additional_directories
    return shown if entry.title is None else {**shown, "title": entry.title}


# -- the session's entry in lists, which is turnwire's and not the agent's --------------------------------------


class _Titled(Named, rename="camel"):
    title: str


async def set_title(client: ClientState, request: Request) -> Raw:
    """`session/set_title`."""
    wanted = read_params(request.params, _Titled)
    title = checked_title(wanted.title)
    if title is None:
        raise invalid_params("`title` is empty; give one line of text")
    await _change(client, wanted.session_id, Rename, title=title)
    return raw({"title": title})


async def archive(client: ClientState, request: Request) -> Raw:
    """`session/archive` and `session/unarchive`. Repeating one changes nothing."""
    session_id = read_params(request.params, Named).session_id
    await _change(client, session_id, Archive, archived=request.method == acp.SESSION_ARCHIVE)
    return EMPTY


async def _change(client: ClientState, session_id: SessionId, kind: type[Rename | Archive], **change: Any) -> None:
    """Change a session that the client may access, whether it is attached or not."""
    client.check(session_id)
    subscription = client.subscriptions.get(session_id)
    client_id = None if subscription is None else subscription.client_id
    now = client.daemon.clock.now_ms()
    await client.daemon.node.submit(session_id, kind(at=now, author=client.who.name, client_id=client_id, **change))


async def status(client: ClientState, request: Request) -> Raw:
    """`session/status`: `open` if an agent has the session in memory."""
    session_id = read_params(request.params, Named).session_id
    client.check(session_id)
    state = (await client.daemon.node.peek(session_id)).state
    return raw({"status": "saved" if state.agent is None else "open"})


# -- leaving -------------------------------------------------------------------------------------------------


async def ready(client: ClientState, params: Raw) -> None:
    """`session/ready`. Does nothing when repeated, or for a session that is not open here."""
    subscription = client.subscriptions.get(read_params(params, Named).session_id)
    if subscription is not None:
        client.be_ready(subscription)


async def detach(client: ClientState, request: Request) -> Raw:
    """`session/detach`: detach the client; its prompts continue, and are answered when they end."""
    subscription = client.attached(read_params(request.params, Named).session_id)
    for sent in client.prompts.open_in(subscription.session_id):
        client.prompts.follow(sent)
        client.start(answer_from_log, client, subscription, sent)
    await client.leave(subscription)
    return EMPTY


async def close(client: ClientState, request: Request) -> Raw | None:
    """`session/close`: end the client's turn and detach it. The session stays open for others."""
    session_id = read_params(request.params, Named).session_id
    subscription = client.subscriptions.get(session_id)
    if subscription is None or not subscription.is_attached:
        return EMPTY
    await drop_waiting(client, subscription)
    session = await client.daemon.node.peek(session_id)
    turn = session.state.turn
    others = session.state.clients.keys() - {subscription.client_id}
    if turn is not None and (turn.client_id == subscription.client_id or not others):
        await submit(client, subscription, Cancel, prompt_id=turn.prompt_id)
        while session.state.turn is not None and session.state.turn.prompt_id == turn.prompt_id:
            if not await session.tail.wait(session.tail.head):
                break
    # The client is detached once it was sent everything: the end of the turn, and the response.
    client.answer(request.id, EMPTY, subscription)
    subscription.call_behind_queue(partial(client.start, client.leave, subscription))
    return None


async def delete(client: ClientState, request: Request) -> Raw:
    """`session/delete`: delete the session with its log. Succeeds for a session that does not exist."""
    session_id = read_params(request.params, Named).session_id
    if client.who.may_touch(session_id):
        with suppress(SessionNotFound):
            await client.daemon.delete(session_id)
    subscription = client.subscriptions.get(session_id)
    if subscription is not None:
        subscription.close()
    return EMPTY


# -- the table -----------------------------------------------------------------------------------------------

_READ, _ACT, _OWN = Role.OBSERVER, Role.CONTROLLER, Role.OWNER

ROWS: dict[str, Row] = {
    acp.SESSION_NEW: Row(new, _ACT),
    acp.SESSION_FORK: Row(fork, _ACT),
    acp.SESSION_LIST: Row(list_sessions, _READ, tells_who=False),
    acp.SESSION_LOAD: Row(load, _READ, is_slow=False),
    acp.SESSION_RESUME: Row(load, _READ, is_slow=False),
    acp.SESSION_ATTACH: Row(attach, _READ, is_slow=False),
    acp.SESSION_DETACH: Row(detach, _READ, is_slow=False),
    acp.SESSION_CLOSE: Row(close, _ACT, on_session=True),
    acp.SESSION_DELETE: Row(delete, _OWN),
    acp.SESSION_SET_TITLE: Row(set_title, _ACT),
    acp.SESSION_ARCHIVE: Row(archive, _ACT),
    acp.SESSION_UNARCHIVE: Row(archive, _ACT),
    acp.SESSION_STATUS: Row(status, _READ, tells_who=False),
    acp.SESSION_SET_MODE: Row(set_option, _ACT, on_session=True),
    acp.SESSION_SET_MODEL: Row(set_model, _ACT, on_session=True),
    acp.SESSION_SET_CONFIG_OPTION: Row(set_option, _ACT, on_session=True),
}
NOTIFICATIONS: dict[str, NotificationRow] = {
    acp.SESSION_READY: NotificationRow(ready, _READ),
    acp.SESSION_READY_DRAFT: NotificationRow(ready, _READ),
}
