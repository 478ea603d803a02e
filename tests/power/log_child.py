"""The program whose disk loses power: clients of the SQLite log, each step written to a ledger before and after.

Arguments: a folder, the path of the ledger, the name of a workload, a seed, the durability level. The ledger's
lines are calls and acknowledgements (`tests.power.promises`). They are system calls like those on the log, so the
trace has both in their order.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import msgspec
from tests.power.promises import Call, Kind, Line, body

from turnwire.ids import SessionId
from turnwire.limits import KiB, Limits
from turnwire.log.base import Snapshot
from turnwire.log.sqlite import SqliteEventLog
from turnwire.log.sqlite_writer import Durability

LIMITS = Limits(checkpoint_bytes=256 * KiB)
"""A write-ahead log so short that some hundred appends restart it."""


class Client:
    """The only writer of its sessions. Every method makes one change and notes it."""

    def __init__(self, path: Path, ledger: Path, seed: str, durability: Durability) -> None:
        self.chance = Random(seed)
        self._path = path
        self._durability = durability
        self._ledger = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._number = 0
        self._heads: dict[str, int] = {}
        self._firsts: dict[str, int] = {}
        self._lives: dict[str, int] = {}

    async def open(self) -> None:
        self._log = await SqliteEventLog.open(self._path, limits=LIMITS, durability=self._durability)

    async def close(self) -> None:
        await self._noted(Call(Kind.CLOSE, "", durable=True), self._log.aclose)

    async def create(self, session: str) -> None:
        self._heads[session], self._firsts[session] = 0, 1
        self._lives[session] = life = self._lives.get(session, 0) + 1
        call = Call(Kind.CREATE, session, life=life, durable=self._durability is Durability.FULL)
        await self._noted(call, lambda: self._log.create(SessionId(session)))

    async def append(self, session: str, count: int, *, size: int = 200, durable: bool) -> None:
        expected = self._heads[session]
        self._heads[session] = last = expected + count
        unsettled = bool(self.chance.getrandbits(1))
        call = Call(
            Kind.APPEND, session, self._lives[session], self._firsts[session], last, unsettled,
            durable or self._durability is Durability.FULL,
        )  # fmt: skip
        bodies = [body(session, call.life, offset, last, size) for offset in range(expected + 1, last + 1)]
        await self._noted(
            call,
            lambda: self._log.append(
                SessionId(session), bodies, expected=expected, unsettled=unsettled, durable=durable
            ),
        )

    async def trim(self, session: str, upto: int) -> None:
        self._firsts[session] = upto + 1
        call = Call(Kind.TRIM, session, first=upto + 1, durable=self._durability is Durability.FULL)
        await self._noted(call, lambda: self._log.trim(SessionId(session), upto=upto))

    async def delete(self, session: str) -> None:
        call = Call(Kind.DELETE, session, durable=True)
        await self._noted(call, lambda: self._log.delete(SessionId(session)))

    async def save_snapshot(self, session: str) -> None:
        head = self._heads[session]
        await self._log.save_snapshot(SessionId(session), Snapshot("fold", head, 1, b"%d" % head * 500))

    async def _noted(self, call: Call, change: Callable[[], Awaitable[object]]) -> None:
        self._number += 1
        number = self._number
        self._note(Line(number, call))
        await change()
        self._note(Line(number, None))

    def _note(self, line: Line) -> None:
        os.write(self._ledger, msgspec.json.encode(line) + b"\n")


# -- workloads -------------------------------------------------------------------------------------------------


async def one_writer(client: Client) -> None:
    """Durable appends of one session, one after the other."""
    await client.create("s")
    for _ in range(40):
        await client.append("s", client.chance.randint(1, 4), durable=True)


async def many_sessions(client: Client) -> None:
    """Sessions that append at the same time and share syncs."""

    async def write(session: str) -> None:
        await client.create(session)
        for _ in range(10):
            await client.append(session, client.chance.randint(1, 5), durable=client.chance.random() < 0.6)

    await _together(*(write(f"s{number}") for number in range(8)))


async def chunks(client: Client) -> None:
    """Turns: a durable start, many relaxed chunks, a durable end."""

    async def turns(session: str) -> None:
        await client.create(session)
        for _ in range(4):
            await client.append(session, 1, durable=True)
            for _ in range(client.chance.randint(3, 12)):
                await client.append(session, client.chance.randint(1, 30), size=80, durable=False)
            await client.append(session, 2, durable=True)
        await client.append(session, 5, durable=False)

    await _together(turns("s1"), turns("s2"))


async def big_payloads(client: Client) -> None:
    """Events of many pages next to small ones."""

    async def write(session: str, size: int) -> None:
        await client.create(session)
        for number in range(8):
            await client.append(session, 1 + number % 3, size=size, durable=number % 2 == 0)

    await _together(write("big", 90_000), write("small", 50))


async def volume(client: Client) -> None:
    """Write enough bytes that the write-ahead log is checkpointed and restarts several times."""

    async def write(session: str) -> None:
        await client.create(session)
        for number in range(30):
            await client.append(session, 20, size=400, durable=client.chance.random() < 0.3)
            if number % 8 == 7:
                await client.save_snapshot(session)

    await _together(*(write(f"s{number}") for number in range(3)))


async def deletion(client: Client) -> None:
    """Sessions that are trimmed, deleted and created again."""

    async def live(session: str) -> None:
        for _ in range(3):
            await client.create(session)
            for number in range(4):
                await client.append(session, 6, durable=number % 2 == 1)
            await client.trim(session, upto=client.chance.randint(1, 20))
            await client.append(session, 2, durable=client.chance.random() < 0.5)
            await client.delete(session)
        await client.create(session)
        await client.append(session, 3, durable=True)

    await _together(live("s1"), live("s2"))


async def restarts(client: Client) -> None:
    """Close and reopen a log: its write-ahead log is removed and recreated."""
    await client.create("s")
    for number in range(5):
        for _ in range(3):
            await client.append("s", 4, durable=client.chance.random() < 0.5)
        await client.close()
        await client.open()
        await client.append("s", 2, durable=number % 2 == 0)


WORKLOADS = {
    each.__name__: each for each in (one_writer, many_sessions, chunks, big_payloads, volume, deletion, restarts)
}


async def _together(*each: Awaitable[None]) -> None:
    await asyncio.gather(*each)


async def main(folder: str, ledger: str, workload: str, seed: str, durability: str) -> None:
    client = Client(Path(folder, "data", "log.db"), Path(ledger), seed, Durability(durability))
    await client.open()
    await WORKLOADS[workload](client)
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
