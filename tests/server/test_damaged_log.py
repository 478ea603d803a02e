"""A log whose bytes were damaged on the disk: no reader gets invalid JSON, anywhere in the log."""

from __future__ import annotations

import sqlite3
from contextlib import closing, nullcontext
from pathlib import Path
from weakref import WeakValueDictionary

import anyio
import pytest
from tests.server.acp.http_client import load
from tests.server.acp.socket_client import open_socket
from tests.server.reading import after, ended, open_session, prompt
from tests.support.daemons import running_daemon

from turnwire.errors import LogCorrupt
from turnwire.ids import PromptId, SessionId
from turnwire.limits import Limits
from turnwire.log import MemoryEventLog
from turnwire.log.base import Position
from turnwire.projections.envelope import Shape, ShapeFold
from turnwire.runtime.follow import Cursor, follow, start_of
from turnwire.runtime.shadow import Shadows
from turnwire.runtime.tail import Tail
from turnwire.server.acp.reader import Feed
from turnwire.server.acp.subscription import Wake
from turnwire.server.readers.fanout import ProjectedLog
from turnwire.session import events as ev
from turnwire.session.codec import encode_all
from turnwire.wire.jsonrpc import raw
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio


SAID = b'"text":"word"}'
DAMAGED = b'"text":"word}}'
NOT_UTF8 = b'"text":"wo\xffd"}'


def damage(file: Path, new: bytes) -> None:
    """Change a few bytes in the middle of a batch, as a bad disk would."""
    with closing(sqlite3.connect(file)) as database, database:
        [(key, bodies)] = [
            (key, bodies)
            for key, bodies in database.execute("SELECT key, bodies FROM segments")
            if bodies.count(SAID) > 9
        ]
        parts = bodies.split(SAID)
        middle = len(parts) // 2
        bodies = SAID.join(parts[:middle]) + new + SAID.join(parts[middle:])
        database.execute("UPDATE segments SET bodies = ? WHERE key = ?", (bodies, key))


@pytest.mark.parametrize("new", [DAMAGED, NOT_UTF8])
async def test_a_damaged_event_in_a_burst_is_a_damaged_log_to_every_reader(tmp_path: Path, new: bytes) -> None:
    async with running_daemon(tmp_path / "d") as running:
        session_id = await open_session(running, "s1")
        # Opening the log checks its ends; the damage is between them.
        for prompt_id, text in (("p1", "hello"), ("p2", "say 40 word"), ("p3", "hello")):
            await prompt(running, session_id, text, prompt_id)
            await ended(running, session_id)
    damage(tmp_path / "d" / "turnwire.db", new)
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        async with client.stream("GET", f"/session/{session_id}/events", headers=after(0)) as response:
            told = b"".join([each async for each in response.aiter_raw()])
        assert (new in told, b"replay_complete" in told) == (False, False)
        assert response.status_code == 200 or b"log_corrupt" in told
        log = await client.get(f"/session/{session_id}/log?after=0&limit=100")
        assert log.json()["code"] == "log_corrupt"


async def test_a_client_that_loads_a_session_with_a_damaged_log_is_answered_and_may_go_on(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running:
        session_id = await open_session(running, "s1")
        await prompt(running, session_id, "say 40 word")
        await ended(running, session_id)
    async with running_daemon(tmp_path / "d") as running, open_socket(running) as socket:
        await socket.start()
        # From now on the daemon has the session's state, and reads the log for the history alone.
        await socket.call("session/load", load(session_id, running.daemon.roots[0], 0)["params"])
        await socket.call("session/close", {"sessionId": session_id})
        damage(tmp_path / "d" / "turnwire.db", DAMAGED)
        await socket.send(load(session_id, running.daemon.roots[0], 7))
        refusal = (await socket.answer(7))["error"]
        assert refusal["data"]["code"] == "log_corrupt"
        other = await socket.new()
        asked = await socket.prompt(other, "say 1 well")
        assert (await socket.answer(asked))["result"]["stopReason"] == "end_turn"


UPDATES = [
    ev.SessionUpdated(
        at=1, kind="agent_message_chunk", update=raw({"text": f"word {number}"}), prompt_id=PromptId("p")
    )
    for number in range(20)
]


async def damaged_log(old: bytes, new: bytes) -> tuple[MemoryEventLog, Tail]:
    """Return a log of one batch, and the tail of a reader that attaches later."""
    log, session_id = MemoryEventLog(), SessionId("s1")
    epoch = (await log.create(session_id)).epoch
    bodies = [body.replace(old, new) for body in encode_all(UPDATES)]
    await log.append(session_id, bodies, expected=0, unsettled=False, durable=False)
    return log, Tail(Limits(), epoch, len(bodies))


@pytest.mark.parametrize(("old", "new"), [(b'"word 9"', b'"word 9}'), (b"word 9", b"wor\xff 9"), (b"9", b"\0")])
async def test_whoever_passes_payloads_on_undecoded_looks_at_what_was_read_from_the_disk(
    old: bytes, new: bytes
) -> None:
    log, tail = await damaged_log(old, new)
    session_id, shape = SessionId("s1"), Shape.AGENT
    shaped = ProjectedLog(log, session_id, tail.epoch, shape, Limits())
    with pytest.raises(LogCorrupt):
        await shaped.read(ShapeFold(session_id, shape, 0))
    feed = Feed(Cursor(log, tail, session_id, start_of(tail.epoch), Limits()), Wake())
    assert feed.next_offset is None
    await feed.read()
    assert isinstance(feed.error, LogCorrupt)
    assert feed.next_offset is None, "and nothing of it is held"


async def test_line_ends_between_the_tokens_of_an_event_are_no_damage() -> None:
    log, tail = await damaged_log(b'{"text"', b'{\n "text"')
    feed = Feed(Cursor(log, tail, SessionId("s1"), start_of(tail.epoch), Limits()), Wake())
    assert feed.next_offset is None
    await feed.read()
    assert (feed.error, feed.next_offset) == (None, 1)


@pytest.mark.parametrize("holds", [True, False], ids=["state kept", "ring alone"])
@pytest.mark.parametrize("new", [b'word 2"', b"wor\xff 2"])
async def test_what_another_node_stored_damaged_ends_its_readers_here_instead_of_reaching_them(
    new: bytes, holds: bool
) -> None:
    updates = [
        ev.SessionUpdated(at=1, kind="agent_message_chunk", update=raw({"text": f"word {number}"}))
        for number in range(4)
    ]
    log, session_id = MemoryEventLog(), SessionId("s1")
    epoch = (await log.create(session_id)).epoch
    await log.append(session_id, encode_all(updates), expected=0, unsettled=False, durable=False)
    tails: WeakValueDictionary[SessionId, Tail] = WeakValueDictionary()
    told: list[bytes] = []
    async with anyio.create_task_group() as tasks:
        shadows = Shadows(log, Limits(), tasks, tails, {}, lambda _: nullcontext())
        shadow = await shadows.peek(session_id)
        tail = shadow.tail
        if not holds:
            # It was not requested for a while; its readers hold the ring.
            shadows = Shadows(log, Limits(), tasks, tails, {}, lambda _: nullcontext())
        damaged = [each.replace(b"word 2", new) for each in encode_all(updates)]
        await log.append(session_id, damaged, expected=4, unsettled=False, durable=False)
        shadows.grown({session_id: 8})
        with anyio.fail_after(WAIT_S):
            async for page in follow(log, tail, session_id, Position(epoch, 4), Limits()):
                told += page.frames
        assert (told, tail.is_over) == ([], True)
