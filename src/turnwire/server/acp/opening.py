"""Opening sessions for a client: new, load, resume, attach, fork.

Takes checked requests; attaches the client to the session's log and says from where its readers begin. The agent is
not asked to load anything: the log knows the session, and the agent gets it back with the next prompt. A new
session is answered once its agent has it, so that an agent that refuses is heard in its own words.
"""

from __future__ import annotations

from functools import partial
from os.path import realpath
from typing import Annotated, Literal, NamedTuple

from anyio import to_thread
from msgspec import UNSET, Meta, Raw, Struct, field
from msgspec.structs import replace

from turnwire.core.dialect import VENDOR
from turnwire.core.inputs import ChangeSetup
from turnwire.core.state import Phase, Setup
from turnwire.core.translate.members import members
from turnwire.core.translate.sessions import current_offers, read_opening, session_result
from turnwire.core.view import View
from turnwire.errors import (
    BadRequest,
    Forbidden,
    LimitExceeded,
    SessionClosed,
    SessionLimitReached,
    TurnwireError,
)
from turnwire.ids import Epoch, SessionId
from turnwire.log.base import Position
from turnwire.log.rules import check_position
from turnwire.server.access.directories import check_cwd
from turnwire.server.access.identity import Role
from turnwire.server.acp import carrying, repeating
from turnwire.server.acp.failures import invalid, read_params
from turnwire.server.acp.front import Front
from turnwire.server.acp.latest import latest_updates
from turnwire.server.acp.seat import Seat, Start, go_on
from turnwire.server.daemon.creation import checked_setup, hear_agent, profile_of
from turnwire.wire.jsonrpc import Request, raw


class _Cursor(Struct, frozen=True):
    after: Annotated[int, Meta(ge=0)] | None = None
    epoch: str | None = None


class _Vendors(Struct, frozen=True):
    turnwire: _Cursor = _Cursor()


_NO_VENDORS = _Vendors()


class _Known(Struct, rename="camel"):
    """A session that is there, and perhaps the last event of it that the client has."""

    session_id: SessionId
    meta: _Vendors | None = field(default=None, name="_meta")

    @property
    def cursor(self) -> _Cursor:
        return (self.meta or _NO_VENDORS).turnwire


class _Attaching(_Known, rename="camel"):
    history_policy: Literal["full", "pending_only", "none"] = "full"


class History(NamedTuple):
    """What of the past a client wants."""

    after: int | None
    """Events after this one; none wants no events."""
    now: bool = True
    """The latest value of each state-like update, and open questions."""
    epoch: str | None = None
    """The life of the log that `after` is of; none if the client does not say."""
    resumes: bool = False
    """`after` is the last event that the client has."""


async def new(front: Front, request: Request) -> None:
    """`session/new`."""
    daemon = front.daemon
    daemon.check_open()
    if front.who.session_id is not None:
        raise Forbidden("this token is for one session; attach to that one")
    wanted = read_opening(request.method, request.params, front.client.version)
    cwd = await to_thread.run_sync(check_cwd, wanted.cwd, daemon.roots)
    await _create(front, request, cwd, await _granted(front, wanted.setup))


async def fork(front: Front, request: Request) -> None:
    """`session/fork`. What it does not name is as in the session that it goes on from, but for directories."""
    daemon = front.daemon
    daemon.check_open()
    if front.who.session_id is not None:
        raise Forbidden("this token is for one session; a fork is another one")
    parent = read_params(request.params, _Known).session_id
    front.check(parent)
    state = (await daemon.node.session(parent)).state
    if state.phase is Phase.CLOSED:
        raise SessionClosed("the session is closed and its agent has forgotten it", session_id=parent)
    given = members(request.params)
    wanted = read_opening(request.method, raw({"cwd": state.cwd} | given), front.client.version)
    cwd = state.cwd if "cwd" not in given else await to_thread.run_sync(check_cwd, wanted.cwd, daemon.roots)
    setup = await _granted(front, wanted.setup)
    if "mcpServers" not in given:
        setup = replace(setup, mcp_servers=state.setup.mcp_servers)
    if setup.meta is UNSET:
        setup = replace(setup, meta=state.setup.meta)
    await _create(front, request, cwd, setup, parent)


async def _granted(front: Front, setup: Setup) -> Setup:
    """The setup with true paths. Raises if the agent takes no directories, or one of them cannot be granted."""
    try:
        return await checked_setup(front.daemon, setup)
    except BadRequest as refused:
        raise invalid(str(refused)) from None


async def _create(front: Front, request: Request, cwd: str, setup: Setup, fork_of: SessionId | None = None) -> None:
    daemon = front.daemon
    try:
        session_id = await daemon.node.create(cwd, setup=setup, fork_of=fork_of, author=front.who.name)
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
    named = read_params(request.params, _Known)
    front.check(named.session_id)
    state = (await front.daemon.node.session(named.session_id)).state
    if await to_thread.run_sync(_true_path, wanted.cwd) != state.cwd:
        raise invalid("`cwd` is not the directory of this session; give its own, as `session/list` shows it")
    setup = await _granted(front, wanted.setup)
    if setup.meta is UNSET:
        setup = replace(setup, meta=state.setup.meta)
    await enter(front, request, named.session_id, _history(named.cursor, 0 if wanted.replay else None), setup)


def _true_path(path: str) -> str | None:
    """Sessions know their directory by its true path. None for what is no absolute path."""
    return realpath(path) if path.startswith("/") and "\0" not in path else None


async def attach(front: Front, request: Request) -> None:
    """`session/attach`. A cursor asks for the events after it, as in `load`, whatever the policy says."""
    wanted = read_params(request.params, _Attaching)
    policy = wanted.history_policy
    history = _history(wanted.cursor, 0 if policy == "full" else None, now=policy != "none")
    await enter(front, request, wanted.session_id, history, named=True)


def _history(cursor: _Cursor, after: int | None, *, now: bool = True) -> History:
    if cursor.after is not None:
        return History(cursor.after, now=False, epoch=cursor.epoch, resumes=True)
    return History(after, now=now, epoch=cursor.epoch)


async def enter(
    front: Front,
    request: Request,
    session_id: SessionId,
    history: History,
    setup: Setup | None = None,
    *,
    named: bool = False,
) -> None:
    """Attach the client to a session that is there. It is answered behind the history.

    `setup`: what its agent is given when it next has to open the session; an observer changes nothing.
    """
    try:
        await _enter(front, request, session_id, history, setup, named=named)
    except TurnwireError:
        # Nobody says any more from where a session that is paused goes on, and its answers are owed.
        if (seat := front.seats.get(session_id)) is not None:
            go_on(seat)
        raise


async def _enter(
    front: Front, request: Request, session_id: SessionId, history: History, setup: Setup | None, *, named: bool
) -> None:
    daemon = front.daemon
    daemon.check_open()
    front.check(session_id)
    log = await daemon.node.head(session_id)
    epoch = log.epoch if history.epoch is None else Epoch(history.epoch)
    check_position(log, Position(epoch, history.after or log.first - 1))
    seat = front.seat(session_id)
    was_here = seat.client_id is not None
    client_id = seat.client_id or await daemon.clients.attach(session_id, front.who)
    if setup is not None and front.who.role.covers(Role.CONTROLLER):
        now = daemon.clock.now_ms()
        changed = ChangeSetup(at=now, author=front.who.name, client_id=client_id, setup=setup)
        await daemon.node.submit(session_id, changed)
    view, head = await daemon.node.view_at(session_id)
    after = head if history.after is None else history.after
    result = await _result(front, session_id, view, named=named, head=head)
    is_whole = history.after == 0 and log.first <= 1
    start = Start(
        client_id,
        log.epoch,
        max(after, log.first - 1),
        head,
        # Who has every event knows the state.
        tells_state=not (history.resumes and was_here),
        greeting=latest_updates(view, await agent_version(front, session_id))
        if history.now and not is_whole
        else (),
        asks=history.now or history.after is not None,
        resumes=history.resumes,
        answer=partial(front.answer, request.id, result),
    )
    owed = await repeating.owed_upto(front, session_id, head)
    # At once with the opening: from here on readers answer what comes behind the head, and nothing before.
    repeating.give(front, seat, owed)
    open_seat(front, seat, start)


def open_seat(front: Front, seat: Seat, start: Start) -> None:
    """The client's readers of the session begin."""
    is_gated = front.client.ready
    seat.open(start, is_gated=is_gated)
    if is_gated:
        front.start(carrying.gate, front, seat, seat.version)
    carrying.settle(front, seat)


async def _result(front: Front, session_id: SessionId, view: View, *, named: bool, head: int | None = None) -> Raw:
    """The answer. `head`: the last event of the history before it, so that a client knows when it has all."""
    version = await agent_version(front, session_id)
    result = session_result(
        current_offers(view.latest),
        version,
        front.client.version,
        session_id if named else None,
        boolean_options=front.client.boolean_options,
    )
    if head is None:
        return result
    given = members(result)
    meta = {**members(given.get("_meta")), VENDOR: {"lastEventId": head}}
    return raw({**given, "_meta": meta})


async def agent_version(front: Front, session_id: SessionId) -> int:
    """The version that the values in the view are in: the agent's, or the client's if there never was one."""
    agent = (await front.daemon.node.session(session_id)).state.agent
    if agent is not None:
        return agent.protocol_version
    known = await profile_of(front.daemon)
    return front.client.version if known is None else known.version
