"""A reader that stops reading costs one page, delays no other, and misses nothing when it resumes."""

from __future__ import annotations

import statistics
from itertools import pairwise
from pathlib import Path

import anyio
import pytest
from tests.patience import LONG_S
from tests.server.counting import Counter, count_stream
from tests.server.reading import WAIT_S, after, ended, is_end, offsets, open_session, prompt, reading
from tests.server.serving import Serving, serving
from tests.support.daemons import running_daemon

from turnwire.limits import Limits
from turnwire.server.telemetry.metrics import Metrics

pytestmark = [pytest.mark.anyio, pytest.mark.guarantee("G10")]

FLOOD = 50_000
WARM = 3
"""Bursts before any reader stalls: their own cost is not that of the stalled reader."""
BURSTS = 3
BURST_MB = 12
"""Size of the frames of one burst."""
TURNS = 60
ROUNDS = 3
"""The best counts: the machine holds up a turn now and then, a reader that delays others would do it always."""
SMALL = 4096
"""Bytes that the kernel buffers for a reader that does not read, so that the daemon notices soon."""


async def stall(url: str, path: str, headers: dict[str, str], *, close: bool = False) -> Counter:
    """Open a stream that has begun, and whose reader then stops reading."""
    reader = await count_stream(url, path, headers, ends=1, close=close, buffer=SMALL)
    assert reader.transport is not None
    reader.transport.pause_reading()
    return reader


async def turn_times(daemon: Serving, reader: Counter) -> list[float]:
    """Return the durations of small turns, from the prompt to the end as a reader sees it."""
    took: list[float] = []
    for _ in range(TURNS):
        reader.expect(1)
        started = anyio.current_time()
        await daemon.prompt("say 1 word")
        await reader.done.wait()
        took.append(anyio.current_time() - started)
    return took


def p99(took: list[float]) -> float:
    return statistics.quantiles(took, n=100)[98]


async def burst(daemon: Serving, reader: Counter) -> float:
    """Send a burst until one reader has received all of it; return the memory of the daemon's process then."""
    reader.expect(1)
    await daemon.prompt(f"flood {FLOOD}")
    await reader.done.wait()
    return daemon.memory_mb()


@pytest.mark.full("takes 10 s")
async def test_a_stalled_reader_costs_the_daemon_a_page_and_delays_nobody_and_misses_nothing(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path / "d") as daemon:
        with anyio.fail_after(LONG_S):
            live = await count_stream(daemon.url, daemon.path, daemon.headers, ends=1)
            memory_mb = max([await burst(daemon, live) for _ in range(WARM)])
            before_s = p99(await turn_times(daemon, live))
            stalled = await stall(daemon.url, daemon.path, daemon.headers, close=True)
            held_mb = [await burst(daemon, live) for _ in range(BURSTS)]
            # A process allocates memory in steps, sometimes one as large as a burst. A daemon that stored data for
            # a stalled reader would grow by a burst each time.
            grown = [later - earlier for earlier, later in pairwise([memory_mb, *held_mb])]
            assert min(grown) < BURST_MB / 2, held_mb
            assert sum(grown) < BURSTS * BURST_MB, held_mb
            assert stalled.frames < FLOOD
            during_s = min([p99(await turn_times(daemon, live)) for _ in range(ROUNDS)])
            stalled.expect(BURSTS + ROUNDS * TURNS)
            assert stalled.transport is not None
            stalled.transport.resume_reading()
            await stalled.done.wait()
        # Generous, because the machine does other work. A daemon that waits for a reader would end no turn at all.
        assert during_s < 5 * before_s + 0.25
        ids = stalled.ids()
        assert ids == list(range(ids[0], ids[0] + stalled.frames))
        assert stalled.frames > BURSTS * FLOOD
        stalled.close()
        live.close()


@pytest.fixture
def let_go(monkeypatch: pytest.MonkeyPatch) -> anyio.Event:
    """Set when a daemon has counted a stalled reader."""
    event = anyio.Event()
    count = Metrics.subscriber_stalled

    def counted(metrics: Metrics) -> None:
        count(metrics)
        event.set()

    monkeypatch.setattr(Metrics, "subscriber_stalled", counted)
    return event


@pytest.mark.full("takes 10 s")
async def test_a_reader_that_takes_nothing_for_too_long_is_dropped_and_comes_back_without_loss(
    tmp_path: Path, let_go: anyio.Event
) -> None:
    limits = Limits(write_timeout_s=0.5)
    async with running_daemon(tmp_path / "d", limits=limits) as running:
        session_id = await open_session(running)
        path = f"/session/{session_id}/events"
        await prompt(running, session_id, "flood 20000 200")
        head = await ended(running, session_id)
        reader = await stall(running.url, f"{path}?after=0", running.headers, close=True)
        with anyio.fail_after(WAIT_S):
            await let_go.wait()
            assert b"turnwire_subscribers_stalled_total 1.0" in running.daemon.metrics.render()
            assert b"turnwire_subscribers 0.0" in running.daemon.metrics.render()
            assert reader.transport is not None
            reader.transport.resume_reading()
            await reader.done.wait()  # the connection is gone, with what was on its way
        seen = reader.ids()
        assert seen == list(range(1, len(seen) + 1))
        assert len(seen) < head
        cursor = after(seen[-1] if seen else 0)
        async with running.client() as client, reading(client, path, **cursor) as stream:
            rest = await stream.until(is_end)
        assert seen + offsets(rest) == list(range(1, head + 1))
