"""Whatever an agent writes about one session, another receives exactly its own updates, and every line is
counted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Raw, UnsetType

from turnwire.errors import LinkBroken, RemoteProtocolError
from turnwire.hosting.agent_connection import AgentConnection
from turnwire.hosting.last_frames import LastFrames
from turnwire.hosting.process import Exit
from turnwire.hosting.source import LinkedAgent
from turnwire.hosting.stdio import StdioLink
from turnwire.ids import AgentSessionId, RequestId, SessionId
from turnwire.limits import KiB, Limits
from turnwire.projections.dialect import PERMISSION_METHODS, opening_params, read_session_id
from turnwire.session.state import NO_SETUP
from turnwire.wire.jsonrpc import Failure, Notification, Request, Result, decode
from turnwire.wire.methods import SESSION_UPDATE
from turnwire.wire.peek import peek_session_id, peek_update_params
from turnwire_testing.patience import WAIT_S

LIMITS = Limits(frame_bytes=64 * KiB, stop_eof_s=0.0)
BROKEN, SOUND = "broken-session", "sound-one"


def frame(method: str, request_id: object = None, **params: object) -> bytes:
    named = {} if request_id is None else {"id": request_id}
    return msgspec.json.encode({"jsonrpc": "2.0", **named, "method": method, "params": params})


def update(session_id: str, text: str) -> bytes:
    content = {"type": "text", "text": text}
    return frame(
        SESSION_UPDATE, sessionId=session_id, update={"sessionUpdate": "agent_message_chunk", "content": content}
    )


PROPER = [
    update(BROKEN, "words"),
    update("nobody", "words"),
    frame(SESSION_UPDATE, sessionId=BROKEN, update=7),
    frame("_vendor/thing", x=[1]),
    *(frame("session/request_permission", each, sessionId=BROKEN, options=[]) for each in (1, "1", 2)),
    frame("session/request_permission", 3, sessionId="nobody"),
    frame("fs/read_text_file", 4, sessionId=BROKEN, path="/x"),
    frame("$/cancel_request", requestId=1),
    b'{"jsonrpc":"2.0","id":0,"result":{}}',
    b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"x"}}',
]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Return a valid frame with a few bytes changed, removed or inserted."""
    line = bytearray(draw(st.sampled_from(PROPER)))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(line) - 1)))
        line[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return bytes(line)


lines = st.lists(
    st.one_of(st.sampled_from(PROPER), mutated(), st.binary(max_size=30), st.just(b"x" * 70_000)), max_size=20
)
bursts = st.lists(st.tuples(st.integers(1, 9), st.sampled_from([*PROPER, b"x" * 70_000]) | mutated()), max_size=9)
"""Lines with repetition counts: repeated lines are read together."""


class Room:
    """A session on the connection that records its calls."""

    def __init__(self) -> None:
        self.session_id = SessionId("s1")
        self.frames = LastFrames()
        self.heard: list[bytes] = []
        self.ends = 0
        self.agent_session_id: AgentSessionId | None = None
        self.children: frozenset[str] = frozenset()

    def on_update(self, update: Raw, child: str | None = None, extra: Raw | UnsetType = UNSET) -> None:
        self.heard.append(bytes(update))

    def on_chunks(self, kind: str, updates: Sequence[Raw]) -> None:
        self.heard += map(bytes, updates)

    def on_permission_request(self, request: Request, child: str | None = None) -> None: ...

    def on_client_request(
        self,
        request: Request,
        answer: Callable[[Result | Failure], None],
        mark: Callable[[Callable[[int], None]], None] | None = None,
        refused: set[object] | None = None,
    ) -> bool:
        return False

    def owners(self, method: str) -> set[str | None]:
        return {None}

    def on_registered(self) -> None: ...

    def on_cancel_request(self, request_id: RequestId) -> None: ...

    def on_gone(self, how: Exit | None, code: str) -> None:
        self.ends += 1

    def opened(self, frame: Result | Failure) -> AgentSessionId | None:
        return read_session_id(frame.result) if isinstance(frame, Result) else None

    def mark(self, reached: Callable[[int], None]) -> None:
        reached(0)

    async def room(self) -> None:
        return


class Account:
    """The expected handling of each line, by the rules alone."""

    def __init__(self) -> None:
        self.breaches = 0
        self.strays = 0
        self.updates: list[bytes] = []
        self._asked: set[tuple[bool, RequestId]] = set()

    def take(self, line: bytes) -> None:
        try:
            found = decode(line) if len(line) <= LIMITS.frame_bytes else None
        except RemoteProtocolError:
            found = None
        if isinstance(found, Notification):
            self._notification(found)
        elif isinstance(found, Request):
            self._request(found)
        else:
            self.breaches += 1

    def _notification(self, found: Notification) -> None:
        if found.method == "$/cancel_request":
            return
        try:
            params = peek_update_params(found.params) if found.method == SESSION_UPDATE else None
        except RemoteProtocolError:
            params = None
        if params is not None and params.session_id == BROKEN:
            self.updates.append(bytes(params.update))
        else:
            self.strays += 1

    def _request(self, found: Request) -> None:
        key = isinstance(found.id, str), found.id
        if key in self._asked:
            self.breaches += 1
        elif found.method in PERMISSION_METHODS:
            if peek_session_id(found.params) == BROKEN:
                self._asked.add(key)
            else:
                self.strays += 1


class Play:
    """An agent's side of two pipes, and a connection at the other with two sessions on it."""

    def __init__(self) -> None:
        (self._heard, out), (come, self._said) = os.pipe(), os.pipe()
        self.ours = StdioLink(come, out, LIMITS)
        self.theirs = StdioLink(self._heard, self._said, LIMITS)
        self.connection = AgentConnection(LinkedAgent(self.ours), LIMITS)
        self.broken, self.sound = Room(), Room()

    async def answer(self, result: Any) -> None:
        [line] = await self.theirs.receive()
        asked = decode(line)
        assert isinstance(asked, Request)
        await self.theirs.send(msgspec.json.encode({"jsonrpc": "2.0", "id": asked.id, "result": result}))

    async def greet(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.connection.handshake)
            await self.answer({"protocolVersion": 1})
        for room, session_id in ((self.broken, BROKEN), (self.sound, SOUND)):
            params = opening_params(None, "/", NO_SETUP)
            self.connection.open_session(room, "session/new", params, room.opened, None)
            await self.answer({"sessionId": session_id})

    async def read_answers(self) -> None:
        try:
            while True:
                await self.theirs.receive()
        except LinkBroken:
            return

    async def run(self, written: list[bytes], *, apart: bool = True) -> None:
        """Run the test. `apart`: a line of the other session follows each."""
        with anyio.fail_after(WAIT_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.connection.run)
                await self.greet()
                tasks.start_soon(self.read_answers)
                for number, line in enumerate(written):
                    await self.theirs.send(line)
                    if apart:
                        await self.theirs.send(update(SOUND, str(number)))
                self.theirs.end_output()
        await self.theirs.aclose()


@settings(deadline=None, max_examples=80)
@given(lines)
@example([b"\n\n", b"a\nb", b"\xff", *PROPER, *PROPER])
def test_every_line_is_accounted_for_and_the_other_session_hears_exactly_its_own(written: list[bytes]) -> None:
    async def main() -> Play:
        play = Play()
        await play.run(written)
        return play

    play = anyio.run(main)
    check(play, written)
    texts = [msgspec.json.decode(each)["content"]["text"] for each in play.sound.heard]
    assert texts == [str(number) for number in range(len(written))]
    assert (play.broken.ends, play.sound.ends) == (1, 1), "both hear of the end, once, and not before it"


@settings(deadline=None, max_examples=80)
@given(bursts)
@example([(9, update(BROKEN, "words")), (1, b"{"), (9, update(BROKEN, "words")), (5, update("nobody", "words"))])
def test_every_line_of_a_burst_is_accounted_for(written: list[tuple[int, bytes]]) -> None:
    everything = [line for count, line in written for _ in range(count)]

    async def main() -> Play:
        play = Play()
        await play.run(everything, apart=False)
        return play

    check(anyio.run(main), everything)


def check(play: Play, written: list[bytes]) -> None:
    account = Account()
    for each in b"\n".join(written).split(b"\n"):
        if each.strip():
            account.take(each.removesuffix(b"\r"))
    assert play.broken.heard == account.updates
    assert play.ours.breaches.total() + play.connection.peer.breaches.total() == account.breaches
    assert play.connection.strays.total() == account.strays
