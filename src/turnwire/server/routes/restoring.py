"""Coming back to a session, and going on from one: load, resume, fork.

Takes checked calls; attaches the caller and gives where the session stands, with its history or without. The agent
is not asked: the log knows the session, and the agent gets it back with the next prompt. A fork is a new session
that its agent makes of the old one.
"""

from __future__ import annotations

from typing import Any, Literal

from anyio import to_thread
from msgspec import Struct
from msgspec.structs import asdict, fields, replace

from turnwire.core.recovery import RESTARTED
from turnwire.core.state import Phase
from turnwire.core.view import TurnRecord, View
from turnwire.errors import (
    BadRequest,
    Forbidden,
    InvalidCwd,
    InvalidMetadata,
    LimitExceeded,
    LocalProtocolError,
    PositionLost,
    SessionClosed,
    SessionExists,
    SessionLimitReached,
    ShuttingDown,
)
from turnwire.ids import PromptId
from turnwire.runtime.node import STOPPED
from turnwire.server.door.cwd import check_cwd
from turnwire.server.door.identity import Role
from turnwire.server.endpoint import Call, Endpoint, Reply
from turnwire.server.entering import SessionOpened, enter, hear_agent
from turnwire.server.routes.sessions import OPENING, CreateQuery, GivenId, checked_id, checked_title
from turnwire.server.streams.replay import replay

TERMINALS = 1000
"""Ends of turns that an answer tells, newest kept."""
INTERRUPTED = frozenset({RESTARTED, STOPPED})
"""Ends of turns that are the daemon's own."""


class Restoring(Struct, frozen=True, kw_only=True):
    """Nothing is needed; `cwd` is the session's own, whatever is given."""

    cwd: str | None = None


class PromptTerminal(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """How a turn ended."""

    v: int
    prompt_id: PromptId
    terminal: Literal["completed", "cancelled", "error", "interrupted"]
    stop_reason: str | None = None
    code: str | None = None
    at: int


class SessionResumed(SessionOpened, frozen=True, kw_only=True, rename="camel"):
    """A session that the caller came back to."""

    prompt_terminals: list[PromptTerminal]


class SessionLoaded(SessionResumed, frozen=True, kw_only=True, rename="camel"):
    """The same with its history: envelopes of events, older ones in short."""

    compacted_replay: list[dict[str, Any]]
    live_journal: list[dict[str, Any]]


class Fork(Struct, frozen=True, kw_only=True, rename="camel"):
    """Where the new session works, and its name; the old one's directory if none is given."""

    cwd: str | None = None
    session_id: GivenId | None = None
    title: str | None = None


async def resume(call: Call) -> Reply:
    call.daemon.check_open()
    entered = await enter(call, call.session_id, attached=True)
    return Reply(_members(entered.opened) | {"promptTerminals": _terminals(entered.view)})


async def load(call: Call) -> Reply:
    daemon = call.daemon
    daemon.check_open()
    entered = await enter(call, call.session_id, attached=True)
    history = await replay(daemon.log, call.session_id, entered.offset, daemon.limits)
    told = {"compactedReplay": history.compacted, "liveJournal": history.journal}
    return Reply(_members(entered.opened) | {"promptTerminals": _terminals(entered.view)} | told)


async def fork(call: Call) -> Reply:
    daemon, wanted = call.daemon, call.body
    daemon.check_open()
    if call.who.session_id is not None:
        raise Forbidden("this token is for one session; a fork is another one")
    state = (await daemon.node.session(call.session_id)).state
    if state.phase is Phase.CLOSED:
        raise SessionClosed("the session is closed and its agent has forgotten it", session_id=call.session_id)
    cwd = await to_thread.run_sync(check_cwd, wanted.cwd or state.cwd, daemon.roots)
    try:
        session_id = await daemon.node.create(
            cwd,
            session_id=checked_id(wanted.session_id),
            setup=replace(state.setup, additional_directories=()),
            fork_of=call.session_id,
            author=call.who.name,
            title=checked_title(wanted.title),
        )
    except LimitExceeded as error:
        raise SessionLimitReached(str(error), limit=daemon.limits.loaded_sessions) from None
    if call.query.wait:
        await hear_agent(daemon, session_id)
    return Reply((await enter(call, session_id, attached=False)).opened)


def _members(opened: SessionOpened) -> dict[str, Any]:
    names = {each.name: each.encode_name for each in fields(opened)}
    return {names[name]: value for name, value in asdict(opened).items()}


def _terminals(view: View) -> list[PromptTerminal]:
    ended = [each for each in view.turns.values() if each.outcome is not None]
    return [_terminal(each) for each in ended[-TERMINALS:]]


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


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="POST",
        path="/session/{session_id}/load",
        act=load,
        summary="Come back to a session, with its history",
        role=Role.OBSERVER,
        takes=Restoring,
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
        gives=SessionResumed,
        refuses=(SessionClosed, ShuttingDown),
    ),
    Endpoint(
        method="POST",
        path="/session/{session_id}/fork",
        act=fork,
        summary="Make a new session that goes on from this one, if the agent can",
        role=Role.CONTROLLER,
        takes=Fork,
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
        ),
    ),
)
"""The routes that bring a session back."""
