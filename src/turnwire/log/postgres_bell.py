"""The bell of a log in PostgreSQL: NOTIFY in parallel with the appends, and LISTEN.

It has two connections, each with a task. One sends: in a separate transaction without data, with all notices that
were queued during the previous one. Not within the append, because PostgreSQL serializes commits that notify, which
would include the disk and the standby. The other one listens, and reads the heads of all followed sessions every
`SWEEP_S`, which also shows if it can still receive notices.

A notice names sessions by their public id, so that a node that receives an unknown one need not look up its name.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Final

import anyio
import msgspec
from msgspec import Struct

from turnwire.errors import LogError
from turnwire.ids import SessionId
from turnwire.log import postgres_schema as sql
from turnwire.log.base import SessionHead
from turnwire.log.bell import NODES, SWEEP_S, HeadFollower, HeadListener, Subscribers
from turnwire.log.postgres_connection import BROKEN, Connection, Database, sqlstate
from turnwire.log.postgres_writer import head_of

RETRY_S: Final = 0.1
"""Pause between two tries to reach an unavailable database."""
MOST_NAMES: Final = 64
"""Maximum number of sessions in one notice."""
MOST_BYTES: Final = 7999
"""The maximum size of a notice in PostgreSQL."""

logger = logging.getLogger(__name__)


class Notice(Struct, array_like=True):
    """The content of a notice. An empty one means that there was more than fits."""

    heads: dict[SessionId, int] = {}
    words: list[str] = []


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Notice).decode


class PostgresBell:
    """A `Bell` in PostgreSQL. `run` sends and receives."""

    is_alone = False

    def __init__(self, database: Database) -> None:
        self._database = database
        self._subscribers = Subscribers()
        self._due = Notice()
        self._since: float | None = None
        """Time at which the oldest due notice was queued."""
        self._more = asyncio.Event()
        self._own = 0
        """The server's process id of the sending connection."""
        self._rung: deque[float] = deque()
        """Times at which notices were queued that were sent but not received by this node yet."""
        self._observe: Callable[[float], None] = _unmeasured
        self.is_deaf = True

    def tell(self, heads: Mapping[SessionId, int]) -> None:
        self._due.heads.update(heads)
        self._wake()

    def ring(self, word: str) -> None:
        if word not in self._due.words:
            self._due.words.append(word)
        self._wake()
        if word == NODES:
            self._subscribers.missed()  # this node has to check as well

    async def heard(self, word: str) -> None:
        await self._subscribers.heard(word)

    def add_listener(self, listener: HeadListener) -> None:
        self._subscribers.add(listener)

    def set_follower(self, follower: HeadFollower | None) -> None:
        self._subscribers.follower = follower

    def set_meter(self, observe: Callable[[float], None]) -> None:
        """Measure the way of a notice back to its own node: this avoids comparing two clocks."""
        self._observe = observe

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._ring_all)
            tasks.start_soon(self._listen)

    def _wake(self) -> None:
        if self._since is None:
            self._since = asyncio.get_running_loop().time()
        self._more.set()

    # -- ringing -------------------------------------------------------------------------------------------

    async def _ring_all(self) -> None:
        while True:
            with suppress(LogError, *BROKEN):
                await self._ring_on_one_connection()
            # Unsent heads and words go with the next notice; followers check the log meanwhile.
            await _pause(RETRY_S)

    async def _ring_on_one_connection(self) -> None:
        connection = await self._database.connect("bell")
        try:
            with self._database.bounded(connection):
                channel: str = await connection.fetchval(sql.CHANNEL)
                await connection.execute(sql.RINGS_ONLY)
            self._own = connection.get_server_pid()
            self._rung.clear()
            while True:
                await self._more.wait()
                await self._ring(connection, channel)
        finally:
            connection.terminate()

    async def _ring(self, connection: Connection, channel: str) -> None:
        due, since = self._due, self._since
        assert since is not None, "whoever wakes says when"
        self._due, self._since = Notice(), None
        self._more.clear()
        payloads = notices(due)
        self._rung.extend([since] * len(payloads))
        try:
            with self._database.bounded(connection):
                await connection.execute(sql.RING, channel, payloads)
        except BaseException:
            # Newer heads replace older ones.
            self._due.heads = due.heads | self._due.heads
            self._due.words = list(dict.fromkeys(due.words + self._due.words))
            self._since = since
            self._more.set()
            raise

    # -- listening -----------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        while True:
            try:
                await self._listen_on_one_connection()
            except (LogError, *BROKEN) as error:
                extra = {"event": "bell_deaf", "sqlstate": sqlstate(error) or type(error).__name__}
                logger.warning("what other nodes ring cannot be heard; it is tried again", extra=extra)
            finally:
                self.is_deaf = True
            await _pause(RETRY_S)

    async def _listen_on_one_connection(self) -> None:
        connection = await self._database.connect("ears")
        broken = asyncio.Event()
        connection.add_termination_listener(lambda _: broken.set())
        try:
            with self._database.bounded(connection):
                await connection.add_listener(await connection.fetchval(sql.CHANNEL), self._hear)
            self.is_deaf = False
            self._subscribers.missed()
            while not broken.is_set():
                await self._sweep(connection)
                with anyio.move_on_after(SWEEP_S):
                    await broken.wait()
        finally:
            connection.terminate()

    def _hear(self, _connection: Connection, pid: int, _channel: str, payload: str) -> None:
        if pid == self._own:
            if self._rung:
                self._observe(asyncio.get_running_loop().time() - self._rung.popleft())
            return
        try:
            notice = _decode(payload)
        except msgspec.DecodeError:
            self._subscribers.missed()  # sent by a later release, or by another program
            return
        if notice.heads:
            self._subscribers.grown(notice.heads)
        if notice.words:
            self._subscribers.said(notice.words)
        if not notice.heads and not notice.words:
            self._subscribers.missed()

    async def _sweep(self, connection: Connection) -> None:
        followed = list(self._subscribers.followed())
        with self._database.bounded(connection):
            rows = await connection.fetch(sql.HEADS, followed)
        heads: dict[SessionId, SessionHead | None] = dict.fromkeys(followed)
        heads |= {SessionId(row[0]): head_of(SessionId(row[0]), row[1:]) for row in rows}
        self._subscribers.found(heads)


def notices(due: Notice) -> list[str]:
    """Return the due notice as payloads that fit."""
    parts: list[str] = []
    names = iter(due.heads.items())
    while heads := dict(islice(names, MOST_NAMES)):
        parts += _fitting(heads)
    if due.words:
        parts.append(_encode(Notice(words=due.words)).decode())
    return parts


def _fitting(heads: dict[SessionId, int]) -> list[str]:
    encoded = _encode(Notice(heads))
    if len(encoded) <= MOST_BYTES:
        return [encoded.decode()]
    if len(heads) == 1:
        return [_encode(Notice()).decode()]
    return [part for name, head in heads.items() for part in _fitting({name: head})]


async def _pause(seconds: float) -> None:
    with anyio.move_on_after(seconds):
        await anyio.sleep_forever()


def _unmeasured(_seconds: float) -> None:
    """Do nothing: no meter is set."""
