"""What the checks of the event log's contract are made of.

Takes and gives what a check needs; never checks anything of the contract itself.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import NamedTuple

import anyio

from turnwire.errors import TurnwireError
from turnwire.ids import SessionId
from turnwire.log.base import EventLog, Position, Stored

OpenLog = Callable[[], AbstractAsyncContextManager[EventLog]]
"""Opens the log under test; leaving the context closes it."""

DEADLINE_S = 30
"""For each check, so that a log that waits for ever fails."""

A, B = SessionId("a"), SessionId("b")


class Check(NamedTuple):
    """One check. Call it with a way to open a log."""

    obligation: str
    name: str
    run: Callable[[OpenLog], Awaitable[None]]
    reopens: bool
    """Wants a log that keeps its events over a close."""

    def __str__(self) -> str:
        return f"{self.obligation}-{self.name}"

    async def __call__(self, open_log: OpenLog) -> None:
        try:
            with anyio.fail_after(DEADLINE_S):
                await self.run(open_log)
        except (AssertionError, TurnwireError, TimeoutError) as error:
            raise AssertionError(f"{self.obligation} {self.name}: {error!r}") from error


def check(obligation: str, *, reopens: bool = False) -> Callable[[Callable[[OpenLog], Awaitable[None]]], Check]:
    """Makes a function a check; its name is a sentence that the log must make true."""
    return lambda run: Check(obligation, run.__name__, run, reopens)


@contextmanager
def refused(error: type[TurnwireError], **context: str) -> Generator[None]:
    try:
        yield
    except error as refusal:
        found = {name: refusal.context.get(name) for name in context}
        assert found == context, f"{error.__name__} says {found}, not {context}"
    else:
        raise AssertionError(f"{error.__name__} was not raised")


@asynccontextmanager
async def log_with(open_log: OpenLog, *session_ids: SessionId) -> AsyncGenerator[EventLog]:
    async with open_log() as log:
        for session_id in session_ids:
            await log.create(session_id)
        yield log


def bodies(first: int, last: int) -> list[bytes]:
    return [b"event %d" % number for number in range(first, last + 1)]


async def append(log: EventLog, session_id: SessionId, bodies: Sequence[bytes], *, expected: int) -> int:
    return await log.append(session_id, bodies, expected=expected, unsettled=False, durable=False)


async def read(log: EventLog, session_id: SessionId, after: int = 0) -> list[Stored]:
    epoch = (await log.head(session_id)).epoch
    return await log.read(session_id, Position(epoch, after), max_events=10_000, max_bytes=1 << 30)


async def expect(log: EventLog, session_id: SessionId, first: int, last: int) -> None:
    """Exactly the events first..last are kept, with the bodies of `bodies`."""
    assert await read(log, session_id, first - 1) == [*map(Stored, range(first, last + 1), bodies(first, last))]
    head = await log.head(session_id)
    assert (head.first, head.head) == (first, last), f"head says {head}"
