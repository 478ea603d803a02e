"""The player: an agent that repeats a recorded agent's actions in order towards a live client.

It walks the recording from the first frame to the last. A frame of the agent is sent; at a frame of the client it
waits until the client has sent that one. So output that followed an input in the recording follows it in the
replay, and the agent's requests are sent again and wait for their answers.

    Y1  Frames of the agent are sent in the recorded order, each once.
    Y2  None is sent before the client has sent all that it had sent before it in the recording, unless that is
        skipped: a client may omit frames other than its prompts, if it is not matched strictly.
    Y3  A client frame belongs to the first recorded frame that it fits and that has no live frame yet. It may come
        early: it is stored until its position is reached.
    Y4  A request that fits none is answered at once with an error that names the frame which is expected.
    Y5  An answer to the agent that decides something else than the recorded one ends the replay: the rest of the
        recording would be untrue.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import anyio

from turnwire.clock import Clock
from turnwire.errors import LinkBroken, LinkError, RecordingMismatch, RemoteProtocolError
from turnwire.hosting.base import FrameLink
from turnwire.ids import RequestId
from turnwire.projections.dialect import PERMISSION_METHODS
from turnwire.server.telemetry.redaction import Redactor
from turnwire.session.correlation import ExactId, exact
from turnwire.wire.jsonrpc import (
    Batch,
    ErrorObject,
    Failure,
    Frame,
    Notification,
    Request,
    Result,
    decode,
    encode,
    raw,
    refusal_of,
)
from turnwire.wire.methods import SESSION_PROMPT
from turnwire_testing.recording.format import Entry, members
from turnwire_testing.recording.matching import SESSION, Match, Names, decides_the_same, fits

GONE: Final = 0
"""The exit code when the client disconnects and nothing else is recorded."""


def _keep_to_itself(_: str) -> None:
    pass


class Player:
    """Plays one recording to one client, once."""

    def __init__(
        self,
        link: FrameLink,
        entries: Sequence[Entry],
        *,
        clock: Clock,
        match: Match = Match.STRICT,
        speed: float | None = None,
        redactor: Redactor | None = None,
        before: Callable[[Entry], Awaitable[None]] | None = None,
        note: Callable[[str], None] = _keep_to_itself,
    ) -> None:
        """Play over a link.

        Args:
            link: To the client. The caller closes it.
            entries: The recording's entries.
            clock: The clock for waits.
            match: The condition under which a client frame matches a recorded one.
            speed: The factor by which the replay is faster than the recording; None does not wait at all.
            redactor: The redactor of the recording, so that redacted values still match.
            before: Awaited before each frame, of either side.
            note: Called with client actions that are not in the recording.
        """
        self._link = link
        self._entries = entries
        self._clock = clock
        self._match = match
        self._speed = speed
        self._redactor = redactor
        self._before = before
        self._note = note
        self._names = Names()
        self._came: set[int] = set()
        """Positions of the recording whose frame the client has sent."""
        self._skipped: set[int] = set()
        self._asked: dict[ExactId, Request] = {}
        """Requests of the client without an answer."""
        self._changed = anyio.Event()
        self._mismatch: RecordingMismatch | None = None
        self._left = anyio.Event()

    async def left(self) -> None:
        """Wait until the client has disconnected."""
        await self._left.wait()

    async def play(self) -> int:
        """Play until the client disconnects or the recorded agent ends; return the exit code of the agent.

        Raises:
            RecordingMismatch: The client decided something that the recording does not have (Y5). It was notified.
        """
        code = GONE
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._listen)
            try:
                code = await self._walk()
            except LinkError:
                code = self._recorded_end()
            tasks.cancel_scope.cancel()
        if self._mismatch is not None:
            raise self._mismatch
        return code

    # -- what the agent does -------------------------------------------------------------------------------

    async def _walk(self) -> int:
        last_ms = 0
        for place, entry in enumerate(self._entries):
            if self._before is not None and place not in self._skipped:
                await self._before(entry)
            if entry.side == "client":
                await self._heard(place, entry)
            elif place not in self._skipped:
                await self._pause(entry.ms - last_ms)
                if entry.exit is not None:
                    return entry.exit
                await self._say(entry)
            if self._mismatch is not None:
                await self._fail_open(self._mismatch)
                return GONE
            last_ms = entry.ms
        while not self._left.is_set():
            await self._wait()
        return GONE

    async def _heard(self, place: int, entry: Entry) -> None:
        """Wait until the client has sent this frame, or never will."""
        while not (place in self._came or place in self._skipped or self._mismatch is not None):
            if self._left.is_set():
                if entry.closed:
                    return
                raise LinkBroken("the client has left")
            await self._wait()

    async def _wait(self) -> None:
        self._changed = anyio.Event()
        await self._changed.wait()

    async def _pause(self, milliseconds: int) -> None:
        if self._speed is not None and milliseconds > 0:
            await self._clock.sleep(milliseconds / 1000 / self._speed)

    async def _say(self, entry: Entry) -> None:
        message = entry.message
        line = self._names.told(entry)
        if isinstance(message, Result | Failure) and message.id is not None:
            self._asked.pop(exact(message.id), None)
        await self._link.send(line)

    async def _fail_open(self, mismatch: RecordingMismatch) -> None:
        for request in self._asked.values():
            await self._refuse(request, mismatch)

    def _recorded_end(self) -> int:
        """Return the agent's recorded exit code after its client disconnected."""
        if not any(each.closed for each in self._entries):
            return GONE
        return next((each.exit for each in reversed(self._entries) if each.exit is not None), GONE)

    # -- what the client does ------------------------------------------------------------------------------

    async def _listen(self) -> None:
        try:
            while True:
                for line in await self._link.receive():
                    await self._take(line)
                    self._changed.set()
        except LinkError:
            self._left.set()
            self._changed.set()

    async def _take(self, line: bytes) -> None:
        try:
            frame = decode(line)
        except RemoteProtocolError as error:
            refusal = refusal_of(error)
            if refusal is not None:
                await self._link.send(encode(refusal))
            return
        if isinstance(frame, Batch):
            return
        compared = decode(self._redactor.line(line)) if self._redactor is not None else frame
        assert not isinstance(compared, Batch), "redaction changes texts only"
        match frame:
            case Request():
                await self._take_request(frame, payload_of(compared))
            case Notification():
                self._take_notification(frame, payload_of(compared))
            case _:
                self._take_answer(frame, payload_of(compared))

    async def _take_request(self, request: Request, payload: dict[str, Any]) -> None:
        place = self._find(request, payload)
        missing = [] if place is None else self._open_before(place, payload)
        kept = [each for each in missing if not self._may_skip(self._entries[each])]
        if place is None or kept:
            await self._refuse(request, self._unexpected(request, payload, kept))
            return
        for each in missing:
            self._skip(each)
        self._belongs(place, request)
        recorded = self._entries[place].message
        assert isinstance(recorded, Request), "it fits a request"
        self._asked[exact(recorded.id)] = request

    def _take_notification(self, note: Notification, payload: dict[str, Any]) -> None:
        place = self._find(note, payload)
        if place is None:
            self._note(f"the client sent {note.method}, which is not in the recording; passed over")
        else:
            self._belongs(place, note)

    def _take_answer(self, answer: Result | Failure, payload: dict[str, Any]) -> None:
        for place, entry in enumerate(self._entries):
            recorded = entry.message
            if not (entry.side == "client" and isinstance(recorded, Result | Failure) and place not in self._came):
                continue
            if not _is_same(recorded.id, answer.id):
                continue
            if self._match is not Match.ORDER and not self._goes_on(entry, answer, payload):
                hint = "`--match order` takes any answer"
                self._mismatch = RecordingMismatch(
                    f"{entry} decided something else than this client; {hint}", frame=entry.number
                )
            self._belongs(place, answer)
            return

    def _goes_on(self, entry: Entry, answer: Result | Failure, payload: dict[str, Any]) -> bool:
        """Return True if the agent would continue after this answer as recorded. Contents of files and terminals
        may differ.
        """
        asked = (
            each.message for each in self._entries if each.side == "agent" and isinstance(each.message, Request)
        )
        method = next((each.method for each in asked if _is_same(each.id, answer.id)), None)
        return method not in PERMISSION_METHODS or decides_the_same(entry, answer, payload)

    def _find(self, live: Request | Notification, payload: dict[str, Any]) -> int | None:
        for place, entry in enumerate(self._entries):
            if self._is_open(place) and fits(entry, live, payload, self._match, self._names):
                return place
        return None

    def _is_open(self, place: int) -> bool:
        """Return True if this is a client frame that has not arrived yet."""
        return self._entries[place].side == "client" and place not in self._came and place not in self._skipped

    def _open_before(self, end: int, payload: dict[str, Any]) -> list[int]:
        """Return the client frames due before this position in the same session; answers may come at any time."""
        return [
            place
            for place, entry in enumerate(self._entries[:end])
            if self._is_open(place) and entry.method is not None and self._is_beside(entry, payload)
        ]

    def _is_beside(self, entry: Entry, payload: dict[str, Any]) -> bool:
        named = entry.payload.get(SESSION)
        return named is None or self._names.is_session(named, payload.get(SESSION))

    def _may_skip(self, entry: Entry) -> bool:
        return self._match is not Match.STRICT and entry.method != SESSION_PROMPT

    def _skip(self, place: int) -> None:
        """Skip a frame that the client omitted, together with its answer."""
        self._skipped.add(place)
        asked = self._entries[place].message
        if isinstance(asked, Request):
            places = range(place, len(self._entries))
            self._skipped |= {at for at in places if self._entries[at].answers(asked)}

    def _belongs(self, place: int, live: Frame) -> None:
        self._came.add(place)
        self._names.learn(self._entries[place], live, payload_of(live))

    def _unexpected(self, request: Request, payload: dict[str, Any], kept: list[int]) -> RecordingMismatch:
        sent = Entry(0, 0, "client", encode(request)).named()
        places = range(len(self._entries))
        still_open = [each for each in places if self._is_open(each) and self._entries[each].method is not None]
        expected = kept or self._open_before(len(self._entries), payload) or still_open
        if not expected:
            return RecordingMismatch(f"the recording has nothing more of the client, and this is {sent}", frame=0)
        first = self._entries[expected[0]]
        hint = "" if self._match is Match.ORDER else "; `--match loose` and `--match order` ask for less"
        return RecordingMismatch(
            f"the recording goes on with {first}, and this is {sent}{hint}", frame=first.number
        )

    async def _refuse(self, request: Request, why: RecordingMismatch) -> None:
        self._note(str(why))
        told = raw({"code": why.code, **why.context})
        await self._link.send(encode(Failure(request.id, ErrorObject(why.jsonrpc_code, str(why), told))))


def payload_of(frame: Frame) -> dict[str, Any]:
    """The params or the result as Python values."""
    if isinstance(frame, Request | Notification):
        return members(frame.params)
    return members(frame.result) if isinstance(frame, Result) else {}


def _is_same(one: RequestId | None, other: RequestId | None) -> bool:
    return one is not None and other is not None and exact(one) == exact(other)
