"""What the methods of one client act on: who it is, what was agreed with it, its sessions, and its way out.

Takes answers and tasks; puts the answers where the client looks for them. Never decides anything about a session.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskGroup
from msgspec import Raw

from turnwire.core.correlation import ExactId
from turnwire.core.face.dialect import Dialect
from turnwire.core.translate.members import members, text_of
from turnwire.core.translate.profile import ClientProfile
from turnwire.errors import Forbidden, SessionNotFound, TurnwireError
from turnwire.ids import RequestId, SessionId
from turnwire.server.access.identity import Identity, Role
from turnwire.server.acp.failures import failure_of
from turnwire.server.acp.notes import Notes
from turnwire.server.acp.prompts import Prompts
from turnwire.server.acp.questions import Questions
from turnwire.server.acp.seat import Seat
from turnwire.server.daemon import Daemon
from turnwire.wire.jsonrpc import Result, encode

logger = logging.getLogger(__name__)


class Front:
    """One client, as its methods see it."""

    def __init__(self, daemon: Daemon, who: Identity, tasks: TaskGroup) -> None:
        self.daemon = daemon
        self.who = who
        self.client = ClientProfile(version=1)
        self.dialect = Dialect(version=1)
        self.shows_offsets = False
        """Whether the client asked to see the offsets of events in `_meta`."""
        self.notes = Notes(daemon.limits.held_frames)
        """What is tied to no session, and what sessions without a stream of their own are told on."""
        self.seats: dict[SessionId, Seat] = {}
        self.prompts = Prompts()
        self.questions = Questions()
        self.is_merged = False
        """One stream carries everything, so every session is told on it."""
        self.requests: dict[ExactId, anyio.CancelScope] = {}
        """Open requests of the client that can be taken back."""
        self.carriers_changed: Callable[[Seat], None] = _nothing
        """Hears of a reader that comes or goes."""
        self._lanes: dict[SessionId, anyio.Lock] = {}
        self._tasks = tasks
        self._scopes: set[anyio.CancelScope] = set()

    # -- tasks ---------------------------------------------------------------------------------------------

    def start(self, do: Callable[..., Awaitable[None]], *args: object) -> anyio.CancelScope:
        """Run something beside everything else. It ends with the connection, or when its scope is cancelled."""
        scope = anyio.CancelScope()
        self._scopes.add(scope)
        self._tasks.start_soon(self._run, scope, do, args)
        return scope

    async def _run(
        self, scope: anyio.CancelScope, do: Callable[..., Awaitable[None]], args: tuple[object, ...]
    ) -> None:
        try:
            with scope:
                await do(*args)
        except TurnwireError as error:
            logger.info("a client's task ended early", extra={"event": "acp_task_ended", "code": error.code})
        except Exception:  # whatever it is, it must not end the other tasks of the client
            logger.exception("a client's task failed", extra={"event": "acp_task_failed"})
        finally:
            self._scopes.discard(scope)

    def stop(self) -> None:
        """End all tasks."""
        for scope in list(self._scopes):
            scope.cancel()

    def lane(self, session_id: SessionId) -> anyio.Lock:
        """Messages of one session are taken one after the other, in the order in which they came."""
        lock = self._lanes.setdefault(session_id, anyio.Lock())
        for each in [each for each, lane in self._lanes.items() if lane is not lock and not lane.locked()]:
            del self._lanes[each]
        return lock

    # -- sessions ------------------------------------------------------------------------------------------

    def check(self, session_id: SessionId) -> None:
        """Raises `SessionNotFound` if the client may not touch the session, whether there is one or not."""
        if not self.who.may_touch(session_id):
            raise unknown(session_id)

    def seat(self, session_id: SessionId) -> Seat:
        """The session's place here, attached or not. Raises `SessionNotFound` if the client may not touch it."""
        self.check(session_id)
        seat = self.seats.get(session_id)
        if seat is None:
            seat = self.seats[session_id] = Seat(session_id, self.daemon.limits.held_frames)
        return seat

    def attached(self, session_id: SessionId) -> Seat:
        """The session's place here. Raises `SessionNotFound` if the client is not attached to it."""
        seat = self.seats.get(session_id)
        if seat is None or seat.start is None:
            raise unknown(session_id)
        return seat

    def need(self, role: Role) -> None:
        """Raises `Forbidden` if the client may not do what needs this role."""
        if not self.who.role.covers(role):
            raise Forbidden(f"this needs the role {role.value!r}; the token has {self.who.role.value!r}")

    def can_answer(self, method: str, params: Raw) -> bool:
        """Whether the client can put this question to its user."""
        if method != "elicitation/create":
            return True
        is_url = text_of(members(params), "mode") == "url"
        return self.client.elicitation_url if is_url else self.client.elicitation_form

    # -- answers -------------------------------------------------------------------------------------------

    def answer(self, request_id: RequestId, result: Raw, seat: Seat | None = None) -> None:
        """The result of a request: on the session's stream, or on the connection's."""
        self.put(encode(Result(request_id, result)), seat)

    def fail(self, request_id: RequestId, error: TurnwireError, seat: Seat | None = None) -> None:
        """The refusal of a request."""
        self.put(failure_of(request_id, error), seat)

    def put(self, frame: bytes, seat: Seat | None) -> None:
        """Any frame that is in no log: behind what the session's log has now, or on the connection's stream."""
        if seat is None or seat.start is None:
            self.notes.put(frame)
            return
        loaded = self.daemon.node.loaded.get(seat.session_id)
        seat.note(frame, 0 if loaded is None else loaded.head)


def unknown(session_id: SessionId) -> SessionNotFound:
    """What a client hears of a session that is not there, not its own, or not attached."""
    return SessionNotFound(
        "there is no such session on this connection; load, resume or attach it first", session_id=session_id
    )


def _nothing(seat: Seat) -> None:
    """Nobody wants to hear it."""
