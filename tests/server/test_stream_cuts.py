"""A stream that is cut repeatedly, anywhere: in the end its reader has the log, once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.server.reading import (
    MARKERS,
    Seen,
    after,
    cut_after,
    ended,
    is_end,
    offsets,
    open_session,
    prompt,
    reading,
)
from tests.support.daemons import running_daemon

pytestmark = [pytest.mark.anyio, pytest.mark.every_log, pytest.mark.guarantee("G9")]

CHUNKS = 2_000
SEED = 20_261_116


async def test_a_stream_that_is_cut_at_any_byte_gives_each_event_once(tmp_path: Path) -> None:
    places = random.Random(SEED)
    async with running_daemon(tmp_path / "d") as running:
        session_id = await open_session(running)
        path = f"/session/{session_id}/events"
        await prompt(running, session_id, f"flood {CHUNKS}")
        events: list[Seen] = []
        cuts = 0
        while not (events and is_end(events[-1])):
            cursor = after(events[-1].offset if events else 0)
            came = await cut_after(running, path, cursor, places.randrange(1, 20_000), is_end)
            events += (each for each in came if each.type not in MARKERS)
            cuts += 1
        head = await ended(running, session_id)
        assert offsets(events) == list(range(1, head + 1))
        assert cuts > 20


async def test_a_stream_of_many_sessions_that_is_cut_at_any_byte_gives_each_event_of_each_once(
    tmp_path: Path,
) -> None:
    places = random.Random(SEED)
    async with running_daemon(tmp_path / "d") as running:
        sessions = [await open_session(running, f"s{number}") for number in range(3)]
        path = "/events?sessions=" + ",".join(sessions)
        async with running.client() as client, reading(client, path) as stream:
            cursor = stream.sse.last_event_id
        starts = {each: (await running.daemon.node.head(each)).head for each in sessions}
        for session_id in sessions:
            await prompt(running, session_id, f"flood {CHUNKS // 5}")
        got: dict[str, list[int]] = {each: [] for each in sessions}
        open_turns = len(sessions)
        while open_turns:
            for event in await cut_after(running, path, after(cursor), places.randrange(1, 20_000), is_end):
                if event.type in MARKERS:
                    continue
                cursor = event.id
                got[event.data["sessionId"]].append(event.offset)
                open_turns -= is_end(event)
        for session_id in sessions:
            head = await ended(running, session_id)
            assert got[session_id] == list(range(starts[session_id] + 1, head + 1))
