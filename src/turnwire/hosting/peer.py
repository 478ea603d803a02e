"""A peer: a link with request bookkeeping, which matches answers to their requests.

It sends requests and notifications and delivers everything that arrives, one frame at a time and strictly in order:
answers to their callback, all other frames to `incoming`. Callbacks are plain functions that only enqueue, so
nothing a callback does can overtake or stall the next frame. After each batch the reader awaits `settled`, where a
full inbox holds the peer back.

A line that is no frame, or answers nothing, is a breach: counted by reason, stored with its first bytes, never
fatal.

If the link has a journal, the peer may outlive this process, and the next one continues here:

    J1  Frames are numbered. `frame` is the number of the one that is being delivered.
    J2  A request of the peer is noted until it is answered and its frame is acknowledged, so it is answered once:
        one that is received again after its answer is skipped, and one that is open is delivered again.
    J3  An id of ours is used once, by all processes together: they are reserved in blocks before use.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

import anyio
from anyio.lowlevel import checkpoint
from msgspec import Raw

from turnwire.errors import LimitExceeded, LinkBroken, LinkError, RemoteProtocolError
from turnwire.hosting.base import FrameLink, Journal
from turnwire.ids import RequestId
from turnwire.limits import MiB
from turnwire.session.correlation import Correlation, ExactId, exact
from turnwire.wire.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Batch,
    ErrorObject,
    Failure,
    Frame,
    Notification,
    Request,
    Result,
    decode,
    encode,
)
from turnwire.wire.peek import FEW, PieceReader, Pieces, UpdateParams, read_update_line

Answer: TypeAlias = Callable[[Result | Failure | None], None]
"""Receives the answer to one request; `None` when the peer is gone and there will be no answer."""

Incoming: TypeAlias = Callable[[Request | Notification], None]

Updated: TypeAlias = Callable[[UpdateParams | Pieces], None]
"""Receives valid `session/update` frames, the most frequent kind, one or many. Without it, `incoming` receives
these.
"""

UNKNOWN_METHOD = ErrorObject(METHOD_NOT_FOUND, "method not found")
BAD_ANSWER = ErrorObject(INTERNAL_ERROR, "the agent's answer was malformed")
"""The error for the caller of a request with an invalid answer: the request itself was correct."""
NO_BATCHES = ErrorObject(INVALID_REQUEST, "ACP has no batches; send one message at a time")

AT_ONCE = 1024
"""Lines that are read before other tasks run and before a full inbox holds the peer back: some milliseconds."""
AT_ONCE_BYTES = 2 * MiB
"""Size after which fewer lines are read at once, if they are long on average."""
KEPT_BREACHES = 64
KEPT_BYTES = 256


IDS = 1000
"""Ids of ours that are reserved together."""
_IDS = "ids"
_ASKED = "asked:"
"""Name of the note of a request of the peer, before the number of its frame. It is empty after the answer."""


class Breach(NamedTuple):
    """A violation of JSON-RPC by the peer."""

    reason: str
    head: bytes
    """Its first bytes, for inspection."""


def _at_once(lines: list[bytes]) -> int:
    size = sum(map(len, lines))
    return AT_ONCE if size <= AT_ONCE_BYTES else max(1, min(AT_ONCE, AT_ONCE_BYTES * len(lines) // size))


class Peer:
    """One peer over one link."""

    def __init__(
        self,
        link: FrameLink,
        incoming: Incoming,
        settled: Callable[[], Awaitable[None]],
        updated: Updated | None = None,
        journal: Journal | None = None,
    ) -> None:
        self._journal = journal
        notes: Mapping[str, bytes] = {} if journal is None else journal.notes
        self.delivered = 0 if journal is None else journal.acknowledged
        """Number of the newest frame that was delivered."""
        self.frame: int | None = None
        """Number of the frame that is being delivered; `None` between frames."""
        self._reserved = int(notes.get(_IDS, b"0"))
        self._noted = {
            int(name.removeprefix(_ASKED)): line for name, line in notes.items() if name.startswith(_ASKED)
        }
        """Requests of the peer that the earlier process has noted, by frame."""
        self._asked_at: dict[ExactId, int] = {}
        """The frames of open requests of the peer."""
        self._answered_at: deque[int] = deque()
        """The frames of answered ones that are not acknowledged yet."""
        self._link = link
        self._incoming = incoming
        self._updated = updated
        self._pieces = PieceReader()
        self._settled = settled
        self._correlation: Correlation[Answer, str] = Correlation(self._reserved)
        self.breaches: Counter[str] = Counter()
        self.last_breaches: deque[Breach] = deque(maxlen=KEPT_BREACHES)
        self._lost = "the peer went away before it answered"
        """The error for callers whose requests are not answered. A broken link has a more precise one."""

    async def run(self) -> None:
        """Read until the link ends. Returns when the peer is gone; every open request is answered with `None`."""
        try:
            while True:
                lines = await self._link.receive()
                at_once = _at_once(lines)
                for start in range(0, len(lines), at_once):
                    if start:
                        await checkpoint()
                    self._hear(lines[start : start + at_once])
                    await self._settled()
        except LinkBroken as broken:
            self._lost = str(broken)
        except LinkError:
            return
        finally:
            for answer in self._correlation.end():
                answer(None)

    def _hear(self, lines: list[bytes]) -> None:
        updated = self._updated
        if updated is None:
            for line in lines:
                self._receive(line)
            return
        for each in self._pieces.read(lines) if len(lines) >= FEW else lines:
            update = each if isinstance(each, Pieces) else read_update_line(each)
            self.frame = self.delivered + (len(each.updates) if isinstance(each, Pieces) else 1)
            if update is not None:
                updated(update)
            elif isinstance(each, bytes):
                self._receive(each)
            self.delivered = self.frame
        self.frame = None

    def _receive(self, line: bytes) -> None:
        try:
            frame = decode(line)
        except RemoteProtocolError as error:
            self._breach(str(error.context.get("reason")), line)
            self._tell(error.context)
            return
        if isinstance(frame, Notification):
            self._incoming(frame)
        elif isinstance(frame, Result | Failure):
            answer = self._correlation.close(frame.id)
            if answer is None:
                self._breach("answers_nothing", line)
            else:
                answer(frame)
        elif isinstance(frame, Batch):
            self._breach("batch", line)
            with suppress(LinkError, LimitExceeded):
                self._send(Failure(None, NO_BATCHES))
        elif self._noted.get(self.frame or 0) == b"":
            # The earlier process has answered it.
            self._answered_at.append(self.frame or 0)
        elif self._correlation.asked(frame.id, frame.method):
            self._note_request(frame, line)
            self._incoming(frame)
        else:
            self._breach("id_in_use", line)

    def _note_request(self, request: Request, line: bytes) -> None:
        if self._journal is not None and self.frame is not None:
            self._asked_at[exact(request.id)] = self.frame
            self._journal.note(f"{_ASKED}{self.frame}", line)

    def _note_answer(self, request_id: RequestId) -> None:
        number = self._asked_at.pop(exact(request_id), None)
        if self._journal is not None and number is not None:
            self._answered_at.append(number)
            self._journal.note(f"{_ASKED}{number}", b"")

    def deliver_noted(self) -> None:
        """Deliver the requests again that the peer made of an earlier process, that are open, and whose frames were
        acknowledged. Others are received again.
        """
        for number, line in sorted(self._noted.items()):
            if number <= self.delivered:
                if line:
                    self.frame = number
                    self._receive(line)
                    self.frame = None
                else:
                    self._answered_at.append(number)

    def acknowledge(self, frame: int) -> None:
        """Record that everything up to this frame was dealt with."""
        if self._journal is None:
            return
        self._journal.acknowledge(frame)
        answered, self._answered_at = self._answered_at, deque()
        for number in answered:
            if number <= self._journal.acknowledged:
                self._noted.pop(number, None)
                self._journal.note(f"{_ASKED}{number}", None)
            else:
                self._answered_at.append(number)

    def _tell(self, context: dict[str, Any]) -> None:
        """Report a malformed frame to the caller of the request, or to the peer that waits for an answer."""
        if (answered := context.get("response_id")) is not None:
            answer = self._correlation.close(answered)
            if answer is not None:
                answer(Failure(answered, BAD_ANSWER))
        elif (asked := context.get("request_id")) is not None:
            with suppress(LinkError, LimitExceeded):
                self._send(Failure(asked, ErrorObject(int(context["jsonrpc"]), "malformed frame")))

    def _breach(self, reason: str, line: bytes) -> None:
        self.breaches[reason] += 1
        self.last_breaches.append(Breach(reason, bytes(line[:KEPT_BYTES])))

    # -- sending: enqueues and returns; raises `LimitExceeded` if the peer does not read -------------------

    def _send(self, frame: Frame) -> None:
        self._link.send_nowait(encode(frame))

    def ask(self, method: str, params: Raw, answer: Answer) -> RequestId:
        """Send a request; `answer` receives the outcome in order with the incoming frames."""
        request_id = self._correlation.open(answer)
        if self._journal is not None and isinstance(request_id, int) and request_id > self._reserved:
            self._reserved += IDS
            self._journal.note(_IDS, b"%d" % self._reserved)
        try:
            self._send(Request(request_id, method, params))
        except BaseException:
            self._correlation.close(request_id)
            raise
        return request_id

    def reopen(self, request_id: RequestId, answer: Answer) -> None:
        """Expect the answer to a request that an earlier process has sent."""
        self._correlation.reopen(request_id, answer)

    async def call(self, method: str, params: Raw) -> Result | Failure:
        """Send a request and wait for its answer. Raises `LinkBroken` if the peer ends first. Cancel-safe."""
        done = anyio.Event()
        outcome: list[Result | Failure | None] = []

        def answer(frame: Result | Failure | None) -> None:
            outcome.append(frame)
            done.set()

        self.ask(method, params, answer)
        await done.wait()
        if outcome[0] is None:
            raise LinkBroken(self._lost, method=method)
        return outcome[0]

    def notify(self, method: str, params: Raw) -> None:
        """Send a notification."""
        self._send(Notification(method, params))

    def answer(self, request_id: RequestId, result: Raw) -> None:
        """Answer a request of the peer. Raises `LocalProtocolError` if it is not open."""
        self._correlation.answered(request_id)
        self._note_answer(request_id)
        self._send(Result(request_id, result))

    def refuse(self, request_id: RequestId, error: ErrorObject = UNKNOWN_METHOD) -> None:
        """Answer a request of the peer with an error."""
        self._correlation.answered(request_id)
        self._note_answer(request_id)
        self._send(Failure(request_id, error))

    @property
    def open_requests(self) -> int:
        """The number of our requests that the peer has not answered."""
        return self._correlation.open_requests

    def has_asked(self, request_id: RequestId) -> bool:
        """Return true if a request of the peer is still open."""
        return self._correlation.find_asked(request_id) is not None
