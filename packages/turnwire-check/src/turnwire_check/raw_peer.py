"""One side of a connection for a case: sent messages, automatic answers, and lookups on the tape.

It has no tolerance and no model of a session: a message is a dictionary or bytes, and received frames are looked
up. Its only automatic action is to answer requests of the peer, from a table that a case may change, because a peer
that waits for an answer shows nothing. Every wait has a bound; a frame that does not arrive within it leaves the
case unscored, unless the case itself checks for its arrival.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn, TypeAlias

import anyio

from turnwire_check.case import NoAnswer
from turnwire_check.tape import Frame, Match, Tape
from turnwire_check.transport import Transport

METHOD_NOT_FOUND, INVALID_PARAMS, CANCELLED, AUTH_REQUIRED = -32601, -32602, -32800, -32000

HOLD = object()
"""Entry in the table of answers that sends none."""

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
    """A sent request."""

    id: Any
    frame: Frame


class RawPeer:
    """One side of one connection, for one case."""

    def __init__(self, transport: Transport, patience_s: float, silence_s: float) -> None:
        self._transport = transport
        self._ids: Iterator[int] = itertools.count(1)
        self._served = 0
        self.patience_s = patience_s
        """Timeout of an answer."""
        self.silence_s = silence_s
        """Duration without any frame that proves a rule about silence."""
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

    # -- sending ----------------------------------------------------------------------------------------

    async def send(self, message: Mapping[str, Any] | list[Any]) -> Frame:
        return await self.send_line(_line(message))

    async def send_line(self, line: bytes) -> Frame:
        frame = self.tape.add(line, is_ours=True)
        await self._transport.send(line + b"\n")
        return frame

    async def send_pieces(self, *pieces: bytes) -> None:
        """Send bytes in separate writes, with a pause between, so that they are read one by one."""
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
        """Send a request and return its answer, which may be an error. Raises `NoAnswer`."""
        return await self.answer_to(await self.ask(method, params, id=id), method)

    # -- receiving --------------------------------------------------------------------------------------

    async def until(self, match: Match, since: int = 0, *, within: float | None = None) -> Frame | None:
        """Return the first matching frame of the peer from a position on, or `None` if it does not arrive
        in time.
        """
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
        """Return the answer. Raises `NoAnswer` if none arrives in time, or if its id has another type."""
        is_ours, is_mistyped = is_answer_to(request.id), is_mistyped_answer_to(request.id)
        found = await self.until(lambda frame: is_ours(frame) or is_mistyped(frame), request.frame.number)
        if found is not None and is_ours(found):
            return found
        if found is not None:
            raise NoAnswer(f"{what} was sent with the id {_json(request.id)} and answered with {_json(found.id)}")
        self.no_answer(what)

    def no_answer(self, what: str) -> NoReturn:
        """Raise `NoAnswer`: the peer exited, or did not answer in time."""
        if self.tape.ended:
            raise NoAnswer(f"{self.tape.ended} before it answered {what}")
        raise NoAnswer(f"no answer to {what} within {self.patience_s:g} s")

    async def pause(self) -> None:
        """Receive frames for a short while, where only time can prove that none arrives."""
        await self.until(lambda frame: False, self.place, within=self.silence_s)

    async def barrier(self) -> Frame:
        """Send an unknown request, wait for its answer, then for a moment of silence.

        All frames that the peer sent before that answer are then on the tape.
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
    """Return a predicate for the answer with this exact id: `7` is not `"7"`, and `true` is not `1`."""
    return lambda frame: frame.is_answer and type(frame.id) is type(id) and frame.id == id


def is_mistyped_answer_to(id: Any) -> Match:
    """Return a predicate for an answer whose id has the same text but another type: `"7"` for `7`."""
    return lambda frame: frame.is_answer and type(frame.id) is not type(id) and str(frame.id) == str(id)


def _json(id: Any) -> str:
    return json.dumps(id)


def _line(message: Mapping[str, Any] | list[Any]) -> bytes:
    """Return the line as UTF-8; a peer's invalid text is returned unchanged, in escapes."""
    try:
        return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(message, separators=(",", ":")).encode()


def _params(params: Mapping[str, Any] | None) -> dict[str, Any]:
    return {} if params is None else {"params": params}
