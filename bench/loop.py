"""Events per second through the whole loop, against the least that decoding and storing them can cost.

Takes a number of updates; prints one table. The baseline decodes the same lines with bare msgspec and inserts the
same bodies into SQLite, many in a row and a transaction, nothing else. The loop is everything: link, peer, routing,
decide, encode, commit, publish, and 1, 10 or 100 followers that read every event. What receipts take of it is CPU,
with one follower. All in one run; compare within it only.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeVar
from unittest.mock import patch

import anyio
import msgspec

from bench.feed import FeedLink, update_line
from turnwire.core.codec import encode_all
from turnwire.core.decide import take
from turnwire.core.draft import Draft
from turnwire.core.events import AnyEvent, SessionUpdated, TurnEnd
from turnwire.core.inputs import AgentPieces, AgentReady, CreateSession, Prompt
from turnwire.core.receipts import Chain
from turnwire.core.state import NOTHING, SessionState
from turnwire.ids import AgentSessionId, PromptId, SessionId
from turnwire.limits import Limits
from turnwire.log.sqlite import SqliteEventLog
from turnwire.log.sqlite_wal import Durability
from turnwire.runtime.follow import start_of
from turnwire.runtime.node import Node, open_node
from turnwire.wire.jsonrpc import raw
from turnwire.wire.peek import PieceReader, Pieces

_T = TypeVar("_T")

BATCH = 1024
FOLLOWERS = (1, 10, 100)
RUNS = 3
"""Others use the machine too: of several runs, the best tells most about the code."""
PAIRS = 9
"""Loops with and without receipts: a share that small needs more than a few."""
PROMPT = raw([{"type": "text", "text": "go"}])


class _Content(msgspec.Struct):
    sessionUpdate: str


class _Params(msgspec.Struct):
    sessionId: str
    update: _Content


class _Line(msgspec.Struct):
    method: str
    params: _Params


def baseline(lines: list[bytes], bodies: list[bytes], path: Path) -> float:
    """Seconds for decode and insert of the same events, nothing else."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("CREATE TABLE segments (last INTEGER PRIMARY KEY, bodies BLOB NOT NULL)")
    decoder = msgspec.json.Decoder(_Line)
    begun = time.perf_counter()
    for start in range(0, len(lines), BATCH):
        for line in lines[start : start + BATCH]:
            decoder.decode(line)
        connection.execute("BEGIN IMMEDIATE")
        some = bodies[start : start + BATCH]
        connection.execute("INSERT INTO segments VALUES (?, ?)", (start + len(some), b"".join(some)))
        connection.execute("COMMIT")
    spent = time.perf_counter() - begun
    connection.close()
    return spent


async def whole_loop(lines: list[bytes], followers: int, path: Path) -> float:
    """Seconds from the prompt until every follower has read the turn's end."""
    log = await SqliteEventLog.open(path, limits=Limits(), durability=Durability.NORMAL)
    try:
        async with open_node(log, FeedLink(lines)) as node:
            session_id = await node.create("/")
            return await _timed(node, log, session_id, len(lines), followers)
    finally:
        await log.aclose()


async def _timed(node: Node, log: SqliteEventLog, session_id: SessionId, expected: int, followers: int) -> float:
    epoch = (await log.head(session_id)).epoch

    async def read() -> None:
        seen = 0
        async for page in node.follow(session_id, start_of(epoch)):
            seen += len(page.frames)
            if page.frames[-1].startswith(b'{"type":"turn_complete"'):
                break
        assert seen > expected, f"a follower saw {seen} of more than {expected} events"

    begun = time.perf_counter()
    async with anyio.create_task_group() as readers:
        for _ in range(followers):
            readers.start_soon(read)
        await node.submit(session_id, Prompt(at=0, prompt_id=PromptId("p"), content=PROMPT))
    return time.perf_counter() - begun


def receipts_share(lines: list[bytes]) -> str:
    """What receipts take of the loop's CPU, all threads: inside of the chain, and against the loop without one.

    The first is of one run, so that whatever else uses the machine meets both parts of it; the second also has
    what is not inside, and needs a quiet machine.
    """
    shares: list[float] = []
    spent: list[tuple[float, float]] = []
    for _ in range(PAIRS):
        with patch.multiple(Chain, seal=_unsealed, take=_untaken, copy=_itself):
            without = _cpu(lines)
        clock = _InsideChain()
        with patch.multiple(Chain, seal=clock.around(Chain.seal), take=clock.around(Chain.take)):
            whole = _cpu(lines)
        spent.append((without, whole))
        shares.append(clock.spent / whole)
    without, whole = map(min, zip(*spent, strict=True))
    spread = f"{min(shares):.1%} to {max(shares):.1%}"
    return f"{median(shares):.1%} ({spread} in {PAIRS} loops), against loops without them {1 - without / whole:.1%}"


def _cpu(lines: list[bytes]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        begun = time.process_time()
        anyio.run(whole_loop, lines, 1, Path(folder) / "loop.sqlite")
        return time.process_time() - begun


class _InsideChain:
    """The CPU that calls of a chain take, those inside of others once."""

    def __init__(self) -> None:
        self.spent = 0.0
        self._depth = 0

    def around(self, function: Callable[..., None]) -> Callable[..., None]:
        def timed(*given: object) -> None:
            begun = time.thread_time()
            self._depth += 1
            function(*given)
            self._depth -= 1
            if not self._depth:
                self.spent += time.thread_time() - begun

        return timed


def _unsealed(chain: Chain, events: list[AnyEvent], bodies: list[bytes], runs: object) -> None:
    """No receipts."""


def _untaken(chain: Chain, bodies: list[bytes], runs: object) -> None:
    """No hash."""


def _itself(chain: Chain) -> Chain:
    return chain


def _running() -> SessionState:
    draft = Draft(NOTHING, 0, Limits())
    take(draft, CreateSession(at=0, session_id=SessionId("s"), cwd="/"))
    take(draft, Prompt(at=0, prompt_id=PromptId("p"), content=PROMPT))
    take(
        draft,
        AgentReady(at=0, agent_session_id=AgentSessionId("a"), protocol_version=1, turn_end=TurnEnd.RESPONSE),
    )
    return draft.state


def stages(lines: list[bytes]) -> tuple[dict[str, float], list[bytes]]:
    """Seconds that each pure stage of the loop takes alone, and the bodies that come out."""
    spent: dict[str, float] = {}

    def timed(name: str, work: Callable[[], _T]) -> _T:
        begun = time.perf_counter()
        result = work()
        spent[name] = time.perf_counter() - begun
        return result

    reader, parts = PieceReader(), range(0, len(lines), BATCH)
    found = timed("read", lambda: [each for at in parts for each in reader.read(lines[at : at + BATCH])])
    inputs = [
        AgentPieces(at=0, kind=each.kind, updates=each.updates, lines=each.lines)
        for each in found
        if isinstance(each, Pieces)
    ]
    draft = Draft(_running(), 4, Limits())
    timed("decide", lambda: [take(draft, each) for each in inputs])
    events: list[AnyEvent] = [each for each in draft.events if isinstance(each, SessionUpdated)]
    bodies = timed("encode", partial(encode_all, events))
    timed("receipts", lambda: Chain().take(bodies, draft.runs))
    return spent, bodies


def main(updates: int) -> None:
    lines = [update_line(number) for number in range(updates)]
    costs, bodies = stages(lines)
    bases: list[float] = []
    loops: dict[int, list[float]] = {followers: [] for followers in FOLLOWERS}
    for run in range(RUNS):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            bases.append(baseline(lines, bodies, folder / "baseline.sqlite"))
            for followers, spent in loops.items():
                path = folder / f"loop-{followers}-{run}.sqlite"
                spent.append(anyio.run(whole_loop, lines, followers, path))
    print(f"{updates} updates of {len(lines[0])} bytes, stored as {len(bodies[0])}; one session, one turn")
    print(f"{f'best of {RUNS} runs in turn':24}{'events/s':>12}{'of baseline':>14}{'µs/event':>11}")
    _row("decode + insert alone", min(bases), min(bases), updates)
    for followers, spent in loops.items():
        _row(f"loop, {followers} follower{'s' if followers > 1 else ''}", min(spent), min(bases), updates)
    each = ", ".join(f"{name} {1e6 * spent / updates:.2f}" for name, spent in costs.items())
    print(f"pure stages of the loop alone, µs/event: {each}; together {1e6 * sum(costs.values()) / updates:.2f}")
    print("the rest of the loop is the commit, publish and followers")
    print(f"receipts: share of the loop's CPU {receipts_share(lines)}")


def _row(name: str, spent: float, base: float, updates: int) -> None:
    print(f"{name:24}{updates / spent:12,.0f}{base / spent:13.0%} {1e6 * spent / updates:10.2f}")
