"""Random histories of a SQLite log give the same as the log in memory, also over reopening."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwire.errors import TurnwireError
from turnwire.ids import Epoch, SessionId
from turnwire.limits import Limits
from turnwire.log import Durability, EventLog, MemoryEventLog, Position, Snapshot, SqliteEventLog

Step = Callable[[EventLog], Awaitable[Any]]

NAMES = st.sampled_from([SessionId("a"), SessionId("b"), SessionId("c")])
OFFSETS = st.integers(-1, 12)
BODIES = st.lists(st.binary(max_size=20), max_size=4)


def create(name: SessionId) -> Step:
    return lambda log: log.create(name)


def delete(name: SessionId) -> Step:
    return lambda log: log.delete(name)


def append(name: SessionId, bodies: list[bytes], off_by: int, unsettled: bool, durable: bool) -> Step:
    async def step(log: EventLog) -> int:
        expected = (await log.head(name)).head + off_by
        return await log.append(name, bodies, expected=expected, unsettled=unsettled, durable=durable)

    return step


def read(name: SessionId, after: int, max_events: int, max_bytes: int) -> Step:
    async def step(log: EventLog) -> object:
        epoch = (await log.head(name)).epoch
        return await log.read(name, Position(epoch, after), max_events=max_events, max_bytes=max_bytes)

    return step


def read_another_epoch(name: SessionId, epoch: int) -> Step:
    return lambda log: log.read(name, Position(Epoch(f"e{epoch}"), 0), max_events=5, max_bytes=100)


def trim(name: SessionId, upto: int) -> Step:
    return lambda log: log.trim(name, upto=upto)


def save(name: SessionId, fold: str, offset: int, body: bytes) -> Step:
    return lambda log: log.save_snapshot(name, Snapshot(fold, offset, 1, body))


def load(name: SessionId, fold: str) -> Step:
    return lambda log: log.load_snapshot(name, fold)


async def reopen(log: EventLog) -> None:
    """A mark: the test closes and reopens the log if possible."""


APPENDS = st.builds(append, NAMES, BODIES, st.sampled_from([0, 0, 0, 1, -1]), st.booleans(), st.booleans())
STEPS = st.one_of(
    st.builds(create, NAMES),
    APPENDS,
    APPENDS,
    st.builds(read, NAMES, OFFSETS, st.integers(1, 5), st.integers(1, 60)),
    st.builds(read_another_epoch, NAMES, st.integers(0, 3)),
    st.builds(trim, NAMES, OFFSETS),
    st.builds(delete, NAMES),
    st.builds(save, NAMES, st.sampled_from(["state", "view"]), OFFSETS, st.binary(max_size=5)),
    st.builds(load, NAMES, st.sampled_from(["state", "view"])),
    st.just(reopen),
)


async def outcome(step: Step, log: EventLog) -> object:
    try:
        return await step(log)
    except TurnwireError as error:
        return type(error), error.context


async def compare(steps: list[Step], path: Path) -> None:
    number = 0

    def epochs() -> Epoch:
        return Epoch(f"e{number}")

    async def opened() -> SqliteEventLog:
        return await SqliteEventLog.open(path, limits=Limits(), durability=Durability.NORMAL, epochs=epochs)

    model, log = MemoryEventLog(epochs), await opened()
    try:
        for number, step in enumerate(steps):  # noqa: B007  `epochs` reads it
            if step is reopen:
                await log.aclose()
                log = await opened()
            assert await outcome(step, log) == await outcome(step, model)
            assert await log.sessions() == await model.sessions()
            assert await log.sessions(unsettled_only=True) == await model.sessions(unsettled_only=True)
    finally:
        await log.aclose()


@pytest.mark.guarantee("G1")
@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, min_size=5, max_size=40))
def test_any_history_gives_what_memory_gives(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(compare([create(SessionId("a")), *steps], Path(folder) / "log.db"))
