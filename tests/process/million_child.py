"""A program over a session of a million events: builds it, replays it, opens it, folds its view, reports the cost.

Its arguments are a task and the path of the log's file; it prints one line of JSON. Each task runs in a separate
process, so the peak of its memory is its own. It never uses a node: log, follow and hydrate are measured.
"""

from __future__ import annotations

import json
import sys
from contextlib import aclosing
from pathlib import Path

import anyio
from msgspec import Raw

from turnwire.ids import AgentSessionId, MessageId, PromptId, SessionId
from turnwire.limits import Limits
from turnwire.log import Durability, SqliteEventLog
from turnwire.log.base import Snapshot
from turnwire.runtime.folds import KeptViews, open_state
from turnwire.runtime.follow import follow, start_of
from turnwire.runtime.session import STATE
from turnwire.runtime.tail import Tail
from turnwire.session import events as ev
from turnwire.session.codec import encode, encode_state
from turnwire.session.evolve import fold
from turnwire.session.state import NOTHING, STATE_VERSION
from turnwire_testing.faults import FaultyLog

SESSION, PROMPT = SessionId("s1"), PromptId("@@@@@@")
TURNS, CHUNKS = 10_000, 96
EVENTS = 2 + TURNS * (CHUNKS + 4) - 2
"""A million: the last turn lacks two chunks, so that the head is a round number."""
KEPT_TURNS = 9_900
"""The snapshot of the state is this old."""

HELLO = Raw(b'[{"type":"text","text":"go"}]')
OPENING: list[ev.AnyEvent] = [
    ev.SessionCreated(at=1, session_id=SESSION, cwd="/work"),
    ev.AgentStarted(at=1, agent_session_id=AgentSessionId("a"), protocol_version=1, turn_end=ev.TurnEnd.RESPONSE),
]


def turn(chunks: int = CHUNKS) -> list[ev.AnyEvent]:
    """Return one turn; its prompt id is replaced in the encoded form."""
    text = b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"word "},"messageId":"m@@@@@@"}'
    update = ev.SessionUpdated(at=1, kind="agent_message_chunk", update=Raw(text), prompt_id=PROMPT)
    return [
        ev.PromptAccepted(at=1, prompt_id=PROMPT, after_offset=0),
        ev.UserMessage(at=1, prompt_id=PROMPT, message_id=MessageId("u@@@@@@"), content=HELLO),
        ev.TurnStarted(at=1, prompt_id=PROMPT),
        *[update] * chunks,
        ev.TurnCompleted(at=1, prompt_id=PROMPT, stop_reason="end_turn", ending=ev.Ending.RESPONSE),
    ]


def memory_kb(field: str) -> int:
    """Return the memory: `VmRSS` is the current size of this process, `VmHWM` its peak."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


async def build(log: SqliteEventLog) -> dict[str, int]:
    await log.create(SESSION)
    head = await log.append(SESSION, [*map(encode, OPENING)], expected=0, unsettled=False, durable=False)
    whole, last = b"\n".join(map(encode, turn())), b"\n".join(map(encode, turn(CHUNKS - 2)))
    for first in range(0, TURNS, 100):
        bodies: list[bytes] = []
        for number in range(first, first + 100):
            template = last if number == TURNS - 1 else whole
            bodies += template.replace(b"@@@@@@", b"%06d" % number).split(b"\n")
        head = await log.append(SESSION, bodies, expected=head, unsettled=False, durable=False)
        if first + 100 == KEPT_TURNS:
            await save_state(log, head)
    return {"head": head}


async def save_state(log: SqliteEventLog, head: int) -> None:
    """Store the state after one turn as that after many: only the id of a completed turn is retained."""
    state = fold([*OPENING, *turn()], NOTHING)
    await log.save_snapshot(SESSION, Snapshot(STATE, head, STATE_VERSION, encode_state(state)))


async def replay(log: SqliteEventLog) -> dict[str, int]:
    head = await log.head(SESSION)
    tail = Tail(Limits(), head.epoch, head.head)
    tail.end()
    seen = size = 0
    async with aclosing(follow(log, tail, SESSION, start_of(head.epoch), Limits())) as pages:
        async for page in pages:
            seen += len(page.frames)
            assert page.offset == seen
            size += sum(map(len, page.frames))
    return {"seen": seen, "bytes": size}


async def opened(log: SqliteEventLog) -> dict[str, int]:
    counting = FaultyLog(log, [])
    state = await open_state(counting, SESSION, Limits())
    assert state.state.last is not None
    return {"head": state.head, "reads": counting.calls["read"], "last": int(state.state.last.prompt_id)}


async def view(log: SqliteEventLog) -> dict[str, int]:
    folded = await KeptViews(log, Limits()).whole(SESSION)
    return {"head": folded.offset, "items": len(folded.items)}


TASKS = {"build": build, "replay": replay, "open": opened, "view": view, "view again": view}


async def main(task: str, path: str) -> None:
    async with await SqliteEventLog.open(path, limits=Limits(), durability=Durability.NORMAL) as log:
        before = memory_kb("VmRSS")
        result = await TASKS[task](log)
        result["grown_kb"] = memory_kb("VmHWM") - before
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2])
