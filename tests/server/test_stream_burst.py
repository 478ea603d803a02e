"""A burst of events as fast as an agent can send them reaches every reader."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from tests.patience import LONG_S
from tests.server.counting import Counter, count_stream
from tests.server.serving import more_files, serving

pytestmark = [pytest.mark.anyio, pytest.mark.guarantee("G10")]

CHUNKS = 20_000
CLOSE = 100
"""One in this number of readers checks each id."""


@pytest.mark.parametrize(
    ("subscribers", "chunks"),
    [(1, CHUNKS), (50, CHUNKS // 4), pytest.param(1_000, CHUNKS, marks=pytest.mark.full("takes 10 s"))],
)
async def test_every_subscriber_of_a_burst_gets_every_event(tmp_path: Path, subscribers: int, chunks: int) -> None:
    more_files()
    async with serving(tmp_path / "d") as daemon:
        with anyio.fail_after(LONG_S):
            readers: list[Counter] = [
                await count_stream(daemon.url, daemon.path, daemon.headers, ends=1, close=number % CLOSE == 0)
                for number in range(subscribers)
            ]
            await daemon.prompt(f"flood {chunks}")
            for each in readers:
                await each.done.wait()
        assert {each.ends for each in readers} == {1}
        assert len({each.frames for each in readers}) == 1
        assert readers[0].frames > chunks
        for each in readers[::CLOSE]:
            ids = each.ids()
            assert ids == list(range(ids[0], ids[0] + each.frames))
            each.close()
        for each in readers:
            each.close()
