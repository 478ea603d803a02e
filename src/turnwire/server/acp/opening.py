"""Opening sessions for a client: new, load, resume, attach, fork.

Takes checked requests; attaches the client to the session's log and says from where its readers begin. The agent is
not asked to load anything: the log knows the session, and the agent gets it back with the next prompt. A new
session is answered once its agent has it, so that an agent that refuses is heard in its own words.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple

from anyio import to_thread
from msgspec import UNSET, Raw, Struct, UnsetType, field

from turnwire.core.state import Phase
from turnwire.core.translate.members import text_of
from turnwire.core.translate.sessions import (
    current_offers,
    mcp_servers,
    read_opening,
    session_result,
)
from turnwire.core.view import View
from turnwire.errors import Forbidden, LimitExceeded, PositionLost, SessionClosed, SessionLimitReached
from turnwire.ids import SessionId
from turnwire.log.base import SessionHead
from turnwire.server.acp import carrying
from turnwire.server.acp.agreeing import profile_of
from turnwire.server.acp.failures import invalid, read_params
from turnwire.server.acp.front import Front
from turnwire.server.acp.latest import latest_updates
from turnwire.server.acp.seat import Seat, Start
from turnwire.server.cwd import check_cwd
from turnwire.server.entering import hear_agent
from turnwire.wire.jsonrpc import Request


class _Cursor(Struct, frozen=True):
    after: int | None = None
    epoch: str | None = None


class _Vendors(Struct, frozen=True):
    turnwire: _Cursor = _Cursor()


class _Named(Struct, rename="camel"):
    session_id: SessionId
    meta: _Vendors | None = field(default=None, name="_meta")
    replay_from: dict[str, Raw] | UnsetType | None = UNSET


class _Attaching(Struct, rename="camel"):
    session_id: SessionId
    history_policy: Literal["full", "pending_only", "none"] = "full"


class _Forking(Struct, rename="camel"):
    session_id: SessionId
    cwd: str | UnsetType = UNSET


class History(NamedTuple):
    """What of the past a client wants."""

    after: int | None
    """Events after this one; none wants no events."""
    now: bool = True
    """The latest value of each state-like update, and open questions."""


async def new(front: Front, request: Request) -> None:
    """`session/new`."""
    daemon = front.daemon
    daemon.check_open()
    if front.who.session_id is not None:
        raise Forbidden("this token is for one session; attach to that one")
    wanted = read_opening(request.method, request.params, front.client.version)
    if wanted.additional_directories:
        raise invalid("additional directories are not offered here; leave them out")
    cwd = await to_thread.run_sync(check_cwd, wanted.cwd, daemon.roots)
    agent = await profile_of(daemon)
    version = front.client.version if agent is None else agent.version
    await _create(front, request, cwd, mcp_servers(wanted.mcp_servers, version))


async def fork(front: Front, request: Request) -> None:
    """`session/fork`."""
    daemon = front.daemon
    daemon.check_open()
    if front.who.session_id is not None:
        raise Forbidden("this token is for one session; a fork is another one")
    wanted = read_params(request.params, _Forking)
    front.check(wanted.session_id)
    state = (await daemon.node.session(wanted.session_id)).state
    if state.phase is Phase.CLOSED:
        raise SessionClosed("the session is closed and its agent has forgotten it", session_id=wanted.session_id)
    cwd = state.cwd if wanted.cwd is UNSET else await to_thread.run_sync(check_cwd, wanted.cwd, daemon.roots)
    await _create(front, request, cwd, state.mcp_servers, wanted.session_id)


async def _create(front: Front, request: Request, cwd: str, servers: Raw, fork_of: SessionId | None = None) -> None:
    daemon = front.daemon
    try:
        session_id = await daemon.node.create(cwd, mcp_servers=servers, fork_of=fork_of, author=front.who.name)
    except LimitExceeded as error:
        raise SessionLimitReached(str(error), limit=daemon.limits.loaded_sessions) from None
    await hear_agent(daemon, session_id)
    seat = front.seat(session_id)
    client_id = await daemon.clients.attach(session_id, front.who)
    view = await daemon.node.view(session_id)
    epoch = (await daemon.node.head(session_id)).epoch
    front.answer(request.id, await _result(front, session_id, view, named=True))
    open_seat(front, seat, Start(client_id, epoch, 0, 0))


async def load(front: Front, request: Request) -> None:
    """`session/load` and `session/resume`. `_meta.turnwire.after` asks for the events after that one only."""
    wanted = read_opening(request.method, request.params, front.client.version)
    named = read_params(request.params, _Named)
    if isinstance(named.replay_from, dict) and text_of(named.replay_from, "type") != "start":
        raise invalid('the history can be replayed from its start only; give `{"type":"start"}` or nothing')
    cursor = named.meta.turnwire if named.meta is not None else _Cursor()
    if cursor.after is not None:
        history = History(cursor.after, now=False)
    else:
        history = History(0 if wanted.replay else None)
    await enter(front, request, named.session_id, history, cursor.epoch)


async def attach(front: Front, request: Request) -> None:
    """`session/attach`."""
    wanted = read_params(request.params, _Attaching)
    policy = wanted.history_policy
    history = History(0 if policy == "full" else None, now=policy != "none")
    await enter(front, request, wanted.session_id, history, named=True)


async def enter(
    front: Front,
    request: Request,
    session_id: SessionId,
    history: History,
    epoch: str | None = None,
    *,
    named: bool = False,
) -> None:
    """Attach the client to a session that is there. It is answered behind the history."""
    daemon = front.daemon
    daemon.check_open()
    front.check(session_id)
    log = await daemon.node.head(session_id)
    _check_cursor(history.after or 0, log, epoch)
    seat = front.seat(session_id)
    client_id = seat.client_id or await daemon.clients.attach(session_id, front.who)
    view, head = await daemon.node.view_at(session_id)
    after = head if history.after is None else history.after
    result = await _result(front, session_id, view, named=named)
    is_whole = history.after == 0 and log.first <= 1
    start = Start(
        client_id,
        log.epoch,
        max(after, log.first - 1),
        head,
        tells_state=True,
        greeting=latest_updates(view, await agent_version(front, session_id))
        if history.now and not is_whole
        else (),
        asks=history.now or history.after is not None,
        answer=partial(front.answer, request.id, result),
    )
    open_seat(front, seat, start)


def _check_cursor(after: int, log: SessionHead, epoch: str | None) -> None:
    if epoch is not None and epoch != log.epoch:
        raise PositionLost("this position is of another life of the session; load it from the start", why="epoch")
    if not 0 <= after <= log.head:
        raise PositionLost("this position is not in the log; load it from the start", why="ahead", head=log.head)
    if 0 < after < log.first - 1:
        raise PositionLost("the log does not reach back to this position; load it from the start", why="trimmed")


def open_seat(front: Front, seat: Seat, start: Start) -> None:
    """The client's readers of the session begin."""
    is_gated = front.client.ready
    seat.open(start, is_gated=is_gated)
    if is_gated:
        front.start(carrying.gate, front, seat, seat.version)
    carrying.settle(front, seat)


async def _result(front: Front, session_id: SessionId, view: View, *, named: bool) -> Raw:
    version = await agent_version(front, session_id)
    return session_result(
        current_offers(view.latest),
        version,
        front.client.version,
        session_id if named else None,
        boolean_options=front.client.boolean_options,
    )


async def agent_version(front: Front, session_id: SessionId) -> int:
    """The version that the values in the view are in: the agent's, or the client's if there never was one."""
    agent = (await front.daemon.node.session(session_id)).state.agent
    if agent is not None:
        return agent.protocol_version
    known = await profile_of(front.daemon)
    return front.client.version if known is None else known.version
