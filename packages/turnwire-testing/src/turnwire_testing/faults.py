"""Fault injection: any link or log, and SQLite itself, with failures at points that the test names.

A wrapper of a healthy link or log has the same interface and adds the planned faults. No fault is random, and each
entry of the plan applies once. Counting starts at 1. Under `sqlite_faults` a test observes, blocks or fails every
SQLite connection opened meanwhile, statement by statement.

    FaultyLink(link, [Cut(after=3), Duplicate(at=2)])
    FaultyLog(log, [Fail(call="append", at=2, error=LogUnavailable("the disk is gone"))])
"""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar
from unittest.mock import patch

import anyio

from turnwire.clock import Clock
from turnwire.errors import ConfigError, LimitExceeded, LinkBroken, LinkClosed, LocalProtocolError, LogError
from turnwire.hosting.base import FrameLink
from turnwire.ids import SessionId
from turnwire.log.base import EventLog, Position, SessionHead, Snapshot, Stored
from turnwire_testing.patience import WAIT_S

T = TypeVar("T")
Side: TypeAlias = Literal["receive", "send"]
Call: TypeAlias = Literal[
    "create", "head", "append", "read", "sessions", "save_snapshot", "load_snapshot", "trim", "delete"
]


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The link breaks for both sides after this number of frames, or before the frame with this byte."""

    after: int | None = None
    after_bytes: int | None = None
    call: Side = "receive"

    def __post_init__(self) -> None:
        if (self.after is None) == (self.after_bytes is None):
            raise ConfigError("a Cut needs either `after`, in frames, or `after_bytes`")


@dataclass(frozen=True, kw_only=True)
class Delay:
    """A frame, or a call of a log, waits until an event is set or a clock reaches a time; later ones wait
    as well.
    """

    at: int
    until: anyio.Event | float
    clock: Clock | None = None
    call: Side | Call | None = None
    """Without it: `receive` of a link, `append` of a log."""

    def __post_init__(self) -> None:
        if isinstance(self.until, float | int) and self.clock is None:
            raise ConfigError("a Delay until a time needs the `clock` that shows it")

    async def wait(self) -> None:
        if isinstance(self.until, anyio.Event):
            await self.until.wait()
        elif self.clock is not None:
            await self.clock.sleep(self.until - self.clock.monotonic())


@dataclass(frozen=True, kw_only=True)
class Duplicate:
    """A frame is delivered twice."""

    at: int
    call: Side = "receive"


@dataclass(frozen=True, kw_only=True)
class Fail:
    """A call of a log fails; with `stored` the write succeeded and only the acknowledgement is lost."""

    call: Call
    at: int
    error: LogError
    stored: bool = False


LinkFault: TypeAlias = Cut | Delay | Duplicate
LogFault: TypeAlias = Fail | Delay


class _Lane:
    """Faults of the frames of one direction."""

    def __init__(self, side: Side, plan: Sequence[LinkFault]) -> None:
        mine = [fault for fault in plan if (fault.call or "receive") == side]
        self._cuts = [fault for fault in mine if isinstance(fault, Cut)]
        self._delays = {fault.at: fault for fault in mine if isinstance(fault, Delay)}
        self._doubles = {fault.at for fault in mine if isinstance(fault, Duplicate)}
        self._frames = 0
        self._bytes = 0

    def is_cut_before(self, frame: bytes) -> bool:
        return any(
            self._frames >= cut.after
            if cut.after is not None
            else self._bytes + len(frame) > (cut.after_bytes or 0)
            for cut in self._cuts
        )

    @property
    def is_cut(self) -> bool:
        """True if no further frame will pass."""
        return any(cut.after is not None and self._frames >= cut.after for cut in self._cuts)

    @property
    def delay(self) -> Delay | None:
        """Return the delay of the next frame."""
        return self._delays.get(self._frames + 1)

    async def wait(self) -> None:
        if self.delay is not None:
            await self.delay.wait()
            del self._delays[self._frames + 1]

    def passes(self, frame: bytes) -> int:
        """Count a frame; how often it comes out."""
        self._frames += 1
        self._bytes += len(frame)
        return 2 if self._frames in self._doubles else 1


class FaultyLink:
    """A link with faults. Otherwise it behaves like the wrapped link."""

    def __init__(self, link: FrameLink, plan: Sequence[LinkFault]) -> None:
        self._link = link
        self._inbound = _Lane("receive", plan)
        self._outbound = _Lane("send", plan)
        self._pending: deque[bytes] = deque()
        self._sending = anyio.Lock()
        self._is_receiving = False
        self._is_broken = False
        self._is_closed = False

    async def receive(self) -> list[bytes]:
        if self._is_receiving:
            raise LocalProtocolError("another task is already in receive(); a link has one reader")
        self._is_receiving = True
        try:
            return await self._receive()
        finally:
            self._is_receiving = False

    async def send(self, frame: bytes) -> None:
        async with self._sending:
            self._check_open()
            if self._outbound.is_cut_before(frame):
                await self._break()
            await self._outbound.wait()
            self._check_open()
            for _ in range(self._outbound.passes(frame)):
                await self._link.send(frame)

    def send_nowait(self, frame: bytes) -> None:
        """Send like `send`, but the peer notices a cut only when this side is closed, because closing has
        to wait.
        """
        self._check_open()
        if self._sending.locked() or self._outbound.delay is not None:
            raise LimitExceeded("a frame is delayed; use send() to wait", limit="delay")
        if self._outbound.is_cut_before(frame):
            self._is_broken = True
            self._check_open()
        self._link.send_nowait(frame)
        if self._outbound.passes(frame) == 2:
            self._link.send_nowait(frame)

    async def aclose(self) -> None:
        self._is_closed = True
        await self._link.aclose()

    async def _receive(self) -> list[bytes]:
        taken: list[bytes] = []
        while not taken:
            self._check_open()
            if self._inbound.is_cut:
                await self._break()
            if not self._pending:
                self._pending.extend(await self._link.receive())
            if self._inbound.is_cut_before(self._pending[0]):
                await self._break()
            await self._inbound.wait()
            self._check_open()
            while self._pending and self._inbound.delay is None:
                if self._inbound.is_cut_before(self._pending[0]):
                    break
                frame = self._pending.popleft()
                taken += [frame] * self._inbound.passes(frame)
        return taken

    def _check_open(self) -> None:
        if self._is_closed:
            raise LinkClosed("this end of the link is closed")
        if self._is_broken:
            raise LinkBroken("the link was cut by the plan of the test")

    async def _break(self) -> None:
        self._is_broken = True
        await self._link.aclose()
        self._check_open()


class FaultyLog:
    """A log with faults. Otherwise it behaves like the wrapped log. `calls` counts the calls."""

    def __init__(self, log: EventLog, plan: Sequence[LogFault]) -> None:
        self._log = log
        self._failures = {(fault.call, fault.at): fault for fault in plan if isinstance(fault, Fail)}
        self._delays = {(fault.call or "append", fault.at): fault for fault in plan if isinstance(fault, Delay)}
        self.calls: Counter[str] = Counter()

    async def create(self, session_id: SessionId) -> SessionHead:
        return await self._do("create", lambda: self._log.create(session_id))

    async def head(self, session_id: SessionId, *, anew: bool = False) -> SessionHead:
        return await self._do("head", lambda: self._log.head(session_id, anew=anew))

    async def append(
        self, session_id: SessionId, bodies: Sequence[bytes], *, expected: int, unsettled: bool, durable: bool
    ) -> int:
        return await self._do(
            "append",
            lambda: self._log.append(session_id, bodies, expected=expected, unsettled=unsettled, durable=durable),
        )

    async def read(
        self, session_id: SessionId, after: Position, *, max_events: int, max_bytes: int
    ) -> list[Stored]:
        return await self._do(
            "read", lambda: self._log.read(session_id, after, max_events=max_events, max_bytes=max_bytes)
        )

    async def sessions(
        self, *, unsettled_only: bool = False, after: SessionId | None = None, limit: int = 1000
    ) -> list[SessionHead]:
        return await self._do(
            "sessions", lambda: self._log.sessions(unsettled_only=unsettled_only, after=after, limit=limit)
        )

    async def save_snapshot(self, session_id: SessionId, snapshot: Snapshot) -> None:
        await self._do("save_snapshot", lambda: self._log.save_snapshot(session_id, snapshot))

    async def load_snapshot(self, session_id: SessionId, name: str) -> Snapshot | None:
        return await self._do("load_snapshot", lambda: self._log.load_snapshot(session_id, name))

    async def trim(self, session_id: SessionId, *, upto: int) -> int:
        return await self._do("trim", lambda: self._log.trim(session_id, upto=upto))

    async def delete(self, session_id: SessionId) -> None:
        await self._do("delete", lambda: self._log.delete(session_id))

    async def aclose(self) -> None:
        await self._log.aclose()

    async def _do(self, call: Call, act: Callable[[], Awaitable[T]]) -> T:
        self.calls[call] += 1
        place = (call, self.calls[call])
        if place in self._delays:
            await self._delays[place].wait()
        failure = self._failures.get(place)
        if failure is not None and not failure.stored:
            raise failure.error
        result = await act()
        if failure is not None:
            raise failure.error
        return result


class SqliteFaults:
    """Faults of the statements on connections opened under `sqlite_faults`."""

    def __init__(self) -> None:
        self.before: Callable[[sqlite3.Connection, str], None] | None = None
        """Called with every single statement; not with those that run many times."""
        self.reached = threading.Event()
        self._go_on = threading.Event()

    def fail(self, statement: str, code: int) -> None:
        """From now on a statement that begins so fails with this result code of SQLite."""

        def raise_it(_: sqlite3.Connection, sql: str) -> None:
            if sql.strip().startswith(statement):
                error = sqlite3.OperationalError("words of SQLite")
                error.sqlite_errorcode = code
                raise error

        self.before = raise_it

    def hold(self, statement: str) -> None:
        """The next statement that begins so sets `reached` and waits for `release`."""

        def wait(_: sqlite3.Connection, sql: str) -> None:
            if sql.strip().startswith(statement) and not self.reached.is_set():
                self.reached.set()
                assert self._go_on.wait(WAIT_S), "nobody released the statement"

        self.before = wait

    def release(self) -> None:
        """Release blocked statements, and all later ones."""
        self._go_on.set()


@contextmanager
def sqlite_faults() -> Generator[SqliteFaults]:
    """Every connection opened inside is under these faults."""
    faults = SqliteFaults()
    connect = sqlite3.connect

    class Faulty(sqlite3.Connection):
        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            if faults.before is not None:
                faults.before(self, sql)
            return super().execute(sql, parameters)

    def connect_faulty(path: str, **options: Any) -> sqlite3.Connection:
        return connect(path, factory=Faulty, **options)

    with patch.object(sqlite3, "connect", connect_faulty):
        yield faults
    faults.before = None
