"""One side of a connection as a case has it: what it sends, what it answers by itself, what it finds on the tape.

It has no tolerance and no model of a session: a message is a dictionary or bytes, and what came is looked up. The
one thing that it does by itself is to answer requests of the peer, by a table that a case may change, because a
peer that waits for an answer shows nothing. Every wait has a bound; a frame that does not come within it leaves
the case unjudged, unless the case itself asks whether it comes.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import anyio

from turnwire.conformance.case import unscored
from turnwire.conformance.tape import Frame, Match, Tape
from turnwire.conformance.transport import Transport

METHOD_NOT_FOUND, INVALID_PARAMS, CANCELLED, AUTH_REQUIRED = -32601, -32602, -32800, -32000

HOLD = object()
"""In the table of answers: give none."""

Answer: TypeAlias = Callable[[Frame], Any]
"""The members of an answer to a request of the peer, `{"result": …}` or `{"error": …}`, or `HOLD`."""


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def error(code: int, message: str = "refused by the suite") -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}


def gives(**members: Any) -> Answer:
    """Always the same answer."""
    return lambda asked: members


class Request(NamedTuple):
    """A request that was sent."""

    id: Any
    frame: Frame


class RawPeer:
    """One side of one connection, for one case."""

    def __init__(self, transport: Transport, patience_s: float, silence_s: float) -> None:
        self._transport = transport
        self._ids = itertools.count(1)
        self._served = 0
        self.patience_s = patience_s
        """How long an answer may take."""
        self.silence_s = silence_s
        """How long nothing must come where a rule says that nothing comes."""
        self.answers: dict[str, Answer] = {}

    @property
    def transport(self) -> Transport:
        return self._transport

    @property
    def tape(self) -> Tape:
        return self._transport.tape

    @property
    def place(self) -> int:
        """The end of the tape."""
        return len(self.tape.frames)

    # -- what is sent -----------------------------------------------------------------------------------

    async def send(self, message: Mapping[str, Any] | list[Any]) -> Frame:
        return await self.send_line(_line(message))

    async def send_line(self, line: bytes) -> Frame:
        frame = self.tape.add(line, is_ours=True)
        await self._transport.send(line + b"\n")
        return frame

    async def send_pieces(self, *pieces: bytes) -> None:
        """Bytes in writes of their own, with a pause between, so that they are read one by one."""
        self.tape.add(b"".join(pieces).strip(), is_ours=True)
        for piece in pieces:
            await self._transport.send(piece)
            await self.pause()

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> Frame:
        return await self.send({"jsonrpc": "2.0", "method": method, **_params(params)})

    async def ask(self, method: str, params: Mapping[str, Any] | None = None, *, id: Any = None) -> Request:
        """Send a request, and wait for nothing."""
        number = next(self._ids) if id is None else id
        sent = await self.send({"jsonrpc": "2.0", "id": number, "method": method, **_params(params)})
        return Request(number, sent)

    async def call(self, method: str, params: Mapping[str, Any] | None = None, *, id: Any = None) -> Frame:
        """Send a request and give its answer, be it an error. Raises `NotScored` when none comes."""
        return await self.answer_to(await self.ask(method, params, id=id), method)

    # -- what comes -------------------------------------------------------------------------------------

    async def until(self, match: Match, since: int = 0, *, within: float | None = None) -> Frame | None:
        """The first frame of the peer that matches from a place on, or `None` when it does not come in time."""
        looked = since
        with anyio.move_on_after(self.patience_s if within is None else within):
            while True:
                await self._serve()
                for frame in self.tape.heard(looked):
                    if match(frame):
                        return frame
                looked = max(looked, self.place)
                if not await self._transport.more(looked):
                    return None
        return None

    async def answer_to(self, request: Request, what: str) -> Frame:
        """Raises `NotScored` when it does not come."""
        found = await self.until(is_answer_to(request.id), request.frame.number)
        if found is not None:
            return found
        if self.tape.ended:
            unscored(f"{self.tape.ended} before it answered {what}")
        unscored(f"no answer to {what} within {self.patience_s:g} s")

    async def pause(self) -> None:
        """Hear what comes in a short while, where only time can tell that nothing comes."""
        await self.until(lambda frame: False, self.place, within=self.silence_s)

    async def barrier(self) -> Frame:
        """Ask for what nobody has, wait for the answer, then for a moment of silence.

        What the peer had to say before that answer is then on the tape.
        """
        answer = await self.call("_turnwire_check/barrier", {}, id=f"barrier-{next(self._ids)}")
        await self.pause()
        return answer

    async def _serve(self) -> None:
        """Answer the requests of the peer that have come, in their order."""
        while self._served < self.place:
            frame = self.tape.frames[self._served]
            self._served += 1
            if frame.is_ours or not frame.is_request:
                continue
            answer = self.answers.get(frame.method or "", gives(**error(METHOD_NOT_FOUND)))(frame)
            if answer is not HOLD:
                await self.respond(frame, answer)

    async def respond(self, asked: Frame, members: Mapping[str, Any]) -> Frame:
        return await self.send({"jsonrpc": "2.0", "id": asked.id, **members})


def is_answer_to(id: Any) -> Match:
    """An answer with this id, as it is: `7` is not `"7"`, and `true` is not `1`."""
    return lambda frame: frame.is_answer and type(frame.id) is type(id) and frame.id == id


def _line(message: Mapping[str, Any] | list[Any]) -> bytes:
    """As UTF-8; and where a peer's own text is none, as it came, in escapes."""
    try:
        return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(message, separators=(",", ":")).encode()


def _params(params: Mapping[str, Any] | None) -> dict[str, Any]:
    return {} if params is None else {"params": params}
