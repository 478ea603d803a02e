"""Sessions told on the connection's own stream, and clients lent to agents while they are there.

Takes seats whose readers came or went; keeps those tasks of each seat running that its standing asks for. On one
stream for everything every session is carried; on several, only one whose client has not opened its stream yet.
"""

from __future__ import annotations

from contextlib import aclosing

from msgspec import Raw

from turnwire.core.translate.members import members, named
from turnwire.errors import RequestRefused
from turnwire.ids import SessionId
from turnwire.server.access.identity import Role
from turnwire.server.acp.front import Front, logger
from turnwire.server.acp.questions import ELICITATION_ID
from turnwire.server.acp.reader import Reader
from turnwire.server.acp.seat import Seat
from turnwire.server.acp.teller import CANCEL_REQUEST
from turnwire.wire.jsonrpc import Failure, Notification, Request, encode, raw
from turnwire.wire.methods import is_extension


def settle(front: Front, seat: Seat) -> None:
    """Start or stop what the seat's standing asks for."""
    is_open = seat.start is not None and not seat.is_over
    wants_carrier = front.is_merged or (seat.streams == 0 and not seat.is_answered)
    if is_open and wants_carrier and front.notes.has_readers and not seat.carriers and not seat.is_carried:
        seat.is_carried = True
        front.start(_carry, front, seat)
    if is_open and seat.carriers and seat.lending is None:
        seat.lending = front.start(_lend, front, seat)
    elif seat.lending is not None and not (is_open and seat.carriers):
        seat.lending.cancel()
        seat.lending = None


async def _carry(front: Front, seat: Seat) -> None:
    is_done = False
    try:
        async with aclosing(Reader(front, seat, None, is_stream=False).pages()) as pages:
            async for page in pages:
                frames, version = [each.frame for each in page], seat.version
                while frames:
                    room = await front.notes.room()
                    if version < seat.paused_version:
                        break
                    front.notes.put_all(frames[:room])
                    frames = frames[room:]
        is_done = True
    finally:
        seat.is_carried = False
        # One that failed would fail again at once; it is tried again when somebody comes or goes.
        if is_done:
            settle(front, seat)


async def gate(front: Front, seat: Seat, version: int) -> None:
    """A client that said it would tell when it is ready, and does not, is not waited for longer than this."""
    await front.daemon.clock.sleep(front.daemon.limits.ready_s)
    if seat.version == version and not seat.is_ready:
        extra = {"event": "ready_missing", "session": seat.session_id}
        logger.info("a client did not send session/ready in time; it is told everything now", extra=extra)
        seat.ready()


# -- lending the client to the agent -------------------------------------------------------------------------


class _Doable(frozenset[str]):
    """The methods of ACP that a client does, and all that are somebody's own."""

    __slots__ = ()

    def __contains__(self, method: object) -> bool:
        return super().__contains__(method) or (isinstance(method, str) and is_extension(method))


class ClientProvider:
    """A client that does errands. Implements `runtime.errands.Provider`."""

    def __init__(self, front: Front, seat: Seat) -> None:
        self._front = front
        self._seat = seat
        client = front.client
        offered = {
            "fs/read_text_file": client.fs_read,
            "fs/write_text_file": client.fs_write,
            **dict.fromkeys(TERMINAL, client.terminal),
        }
        self._methods = _Doable(name for name, is_offered in offered.items() if is_offered)

    @property
    def methods(self) -> frozenset[str]:
        return self._methods

    async def serve(self, method: str, params: Raw) -> Raw:
        """Ask the client and wait. Raises `RequestRefused`."""
        front, seat = self._front, self._seat
        errand = front.questions.send(seat.session_id, method)
        front.put(encode(Request(errand.id, method, _ours(params, seat.session_id))), seat)
        try:
            await errand.done.wait()
        finally:
            front.questions.take_back(errand)
            if errand.outcome is None and not seat.is_over:
                front.put(encode(Notification(CANCEL_REQUEST, raw({"requestId": errand.id}))), seat)
        assert errand.outcome is not None, "whoever answers leaves an answer"
        if isinstance(errand.outcome, Failure):
            error = errand.outcome.error
            raise RequestRefused(error.message, jsonrpc=error.code, reason="client")
        return errand.outcome.result


TERMINAL = tuple(f"terminal/{each}" for each in ("create", "output", "wait_for_exit", "kill", "release"))


def _ours(params: Raw, session_id: SessionId) -> Raw:
    """The params with our name for the session."""
    return raw({**members(params), "sessionId": session_id})


async def _lend(front: Front, seat: Seat) -> None:
    """Meanwhile the client hears what the agent says beside ACP, and does what it asks for."""
    start, agents = seat.start, front.daemon.node.agents
    if start is None:
        return
    if front.who.role is Role.OBSERVER:
        await _listen(front, seat)
        return
    async with agents.offering(seat.session_id, start.client_id, ClientProvider(front, seat)):
        await _listen(front, seat)


async def _listen(front: Front, seat: Seat) -> None:
    """Each agent that takes the session is listened to."""
    while True:
        async with front.daemon.node.agents.listening(seat.session_id, _Ears(front, seat)):
            await seat.agent_wake.wait()


class _Ears:
    """What one client hears of a session's agent beside updates. Implements `runtime.connection.Listener`."""

    def __init__(self, front: Front, seat: Seat) -> None:
        self._front = front
        self._seat = seat

    @property
    def client(self) -> object:
        return self._front

    def heard(self, said: Notification) -> None:
        seat = self._seat
        self._front.put(encode(Notification(said.method, _ours(said.params, seat.session_id))), seat)

    def heard_by_all(self, said: Notification) -> None:
        self._front.put(encode(said), None)

    def completed(self, said: Notification) -> None:
        elicitation_id = named(said.params, ELICITATION_ID)
        if elicitation_id is not None and self._front.questions.has_elicited(self._seat.session_id, elicitation_id):
            self._front.put(encode(said), None)
