"""The client of a case about HTTP: sends the case's requests, and reads streams of events line by line.

It is strict: an answer is a status, headers and bytes, an event is its lines. Every wait has a bound; a missing
answer leaves the case unscored, unless the case checks for exactly that.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar
from urllib.parse import quote

import anyio

from turnwire_check.case import NoAnswer, unscored
from turnwire_check.http_exchange import HttpBody, HttpCall, HttpPeer
from turnwire_check.tape import Frame, Tape

JSON = "application/json"
ADDRESS = "/?&=%:;,+@!$'()*~"
"""Characters that are not escaped in a path or a query. An id that a server generated may contain any character."""


@dataclass(frozen=True)
class HttpSubject:
    """The known facts about the server, including those learned during the run."""

    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Headers sent with each request: the caller's credentials."""
    patience_s: float = 10.0
    silence_s: float = 0.25
    given_up: dict[str, str] = field(default_factory=dict[str, str])
    """Steps that were waited for in vain, with the reason: no other case waits for them again."""


class Answer(NamedTuple):
    """A complete answer."""

    status: int
    headers: Mapping[str, str]
    raw: bytes
    value: Any
    """The decoded JSON; `None` if invalid."""
    frame: Frame

    @property
    def media(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


@dataclass(frozen=True, eq=False)
class Event:
    """Lines between two blank lines of a stream, with data."""

    lines: tuple[str, ...]
    value: Any
    """The decoded JSON; `None` if invalid."""
    frame: Frame

    def field(self, name: str) -> list[str]:
        """The values of the lines of this name."""
        pairs = (each.partition(":") for each in self.lines)
        return [value.removeprefix(" ") for key, _, value in pairs if key == name]


E = TypeVar("E", bound=Event)


class Stream(Generic[E]):
    """One stream of events, from its head on."""

    def __init__(
        self,
        body: HttpBody,
        tape: Tape,
        name: str,
        bounds: HttpSubject,
        event: Callable[[tuple[str, ...], Any, Frame], E],
    ) -> None:
        self.body = body
        self.head = shown(tape, body, b"a stream")
        self.events: list[E] = []
        self.comments = 0
        self._tape = tape
        self._name = name
        self._bounds = bounds
        self._event = event
        self._read = 0
        self._rest = ""

    async def until(self, match: Callable[[E], bool], *, since: int = 0, within: float | None = None) -> E | None:
        """Return the first matching event from a position on; `None` if it does not arrive in time."""
        bound_s = self._bounds.patience_s if within is None else within
        looked = since
        with anyio.move_on_after(bound_s):
            while True:
                self._parse()
                for event in self.events[looked:]:
                    if match(event):
                        return event
                looked = max(looked, len(self.events))
                if not await self.body.more(self._read, bound_s):
                    return None
        return None

    async def pause(self) -> None:
        """Read events for a short while, where only time can prove that none arrives."""
        await self.until(lambda event: False, within=self._bounds.silence_s)

    async def is_ended(self) -> bool:
        """Return True if the server ends the stream in time."""
        await self.until(lambda event: False)
        return self.body.is_over

    async def cut(self) -> None:
        self._parse()
        await self.body.cut()

    def _parse(self) -> None:
        piece = bytes(self.body.received[self._read :])
        self._read += len(piece)
        # Invalid UTF-8 is invalid JSON as well.
        text = (self._rest + piece.decode("utf-8", "replace")).replace("\r\n", "\n")
        *blocks, self._rest = text.split("\n\n")
        for block in blocks:
            self._take(tuple(filter(None, block.split("\n"))))

    def _take(self, lines: tuple[str, ...]) -> None:
        self.comments += sum(each.startswith(":") for each in lines)
        data = [each.partition(":")[2].removeprefix(" ") for each in lines if each.partition(":")[0] == "data"]
        if not data:
            return
        frame = self._tape.add("\n".join(lines).encode(), is_ours=False, channel=self._name)
        self.events.append(self._event(lines, as_json("\n".join(data)), frame))


def as_json(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def shown(tape: Tape, found: HttpBody, body: bytes) -> Frame:
    media = found.headers.get("content-type", "")
    return tape.add(f"{found.status} {media} ".encode() + body, is_ours=False, channel="answer")


class HttpClient:
    """The requests of one case."""

    def __init__(self, peer: HttpPeer, bounds: HttpSubject) -> None:
        self.tape = Tape()
        self._bounds = bounds
        self._peer = peer
        self._numbers = itertools.count(1)

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        raw: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        stranger: bool = False,
    ) -> Answer | None:
        """Return the answer, or `None` if none arrives in time. A stranger sends no credentials."""
        if raw is None and body is not None:
            raw = json.dumps(body).encode()
        found = await self.open(method, path, raw, headers, stranger=stranger)
        if found is None:
            return None
        length = 0
        while await found.more(length, self._bounds.patience_s):
            length = len(found.received)
        if not found.is_over:
            await found.cut()
            return None
        content = bytes(found.received)
        return Answer(found.status, found.headers, content, as_json(content), shown(self.tape, found, content))

    async def call(self, method: str, path: str, body: Any = None, **more: Any) -> Answer:
        """Send a request and return its answer. Raises `NoAnswer`."""
        route = path.partition("?")[0]
        known = f"{method} {route.rpartition('/')[2] if route.count('/') > 2 else route} is not answered"
        self.not_in_vain(known)
        found = await self.ask(method, path, body, **more)
        return found if found is not None else self.give_up(known)

    def not_in_vain(self, known: str) -> None:
        """Raise `NoAnswer` if this was waited for in vain before."""
        if known in self._bounds.given_up:
            raise NoAnswer(known)

    def give_up(self, known: str) -> NoReturn:
        self._bounds.given_up[known] = known
        raise NoAnswer(known)

    async def open(
        self,
        method: str,
        path: str,
        raw: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        stranger: bool = False,
    ) -> HttpBody | None:
        given = dict({} if stranger else self._bounds.headers)
        if raw is not None:
            given["Content-Type"] = JSON
        given |= dict(headers or {})
        if not all(each.isascii() and each.isprintable() for each in given.values()):
            unscored("what it gave as an id cannot be sent in a header")
        call = HttpCall(method, quote(path, safe=ADDRESS, errors="surrogatepass"), given, raw)
        self.tape.add(call.shown(), is_ours=True)
        return await self._peer.open(call, self._bounds.patience_s)
