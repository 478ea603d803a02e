"""A client that is cut repeatedly, on a stream or on a socket: in the end it has received each event once."""

from __future__ import annotations

import random
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.server.acp.http_client import (
    EVENTS,
    PATH,
    WAIT_S,
    Client,
    Heard,
    Ids,
    connect,
    is_mark,
    load,
)
from tests.server.acp.socket_client import Socket, started
from tests.server.reading import Wire, open_session, prompt
from tests.support.daemons import Running, running_daemon

from turnwire.ids import SessionId
from turnwire.limits import MiB
from turnwire.wire.sse import SseReader

pytestmark = [pytest.mark.anyio, pytest.mark.guarantee("G8", "G9")]

CHUNKS = 2_000
EVERY = 50
SEED = 20_261_117
IDS: dict[str, Any] = {"_meta": {"turnwire": {"eventIds": True}}}


def check_once(heard: list[Heard], count: int) -> None:
    """Each event once and in order, and each chunk of the flood."""
    ids = [each.id for each in heard if each.id is not None]
    assert ids == sorted(set(ids))
    numbers = [int(each.text.split()[0]) for each in heard if each.text]
    assert numbers == list(range(numbers[0], numbers[0] + count))


async def test_a_stream_that_is_cut_at_any_byte_gives_each_event_once(tmp_path: Path) -> None:
    places = random.Random(SEED)
    async with running_daemon(tmp_path / "d") as running, running.client() as http:
        client, session_id = await entered(running, await connect(running, http))
        await prompt(running, session_id, f"flood {CHUNKS}")
        heard: list[Heard] = []
        cursor, cuts = 0, 0
        while not (heard and is_mark(heard[-1])):
            came = await cut_after(client, session_id, cursor, places.randrange(1, 50_000))
            # A frame without an id is repeated with the event that it belongs to.
            whole = [place for place, each in enumerate(came, 1) if each.id is not None]
            came = came[: whole[-1]] if whole else []
            heard += came
            cursor = came[-1].id or cursor if came else cursor
            cuts += 1
        check_once(heard, CHUNKS)
        assert cuts > 10


async def entered(running: Running, client: Client) -> tuple[Client, SessionId]:
    """Return a session that the client has loaded."""
    session_id = await open_session(running)
    async with client.stream() as connection:
        await client.call(connection, "session/load", load(session_id, client.cwd, 0)["params"])
    return client, session_id


async def cut_after(client: Client, session_id: str, cursor: int, most: int) -> list[Heard]:
    """Return the complete frames in the first `most` bytes of a stream, or up to the end of the turn."""
    headers = client.headers(session_id, Accept=EVENTS) | {"Last-Event-ID": str(cursor)}
    reader, ids = SseReader(64 * MiB), Ids(str(cursor))
    heard: list[Heard] = []
    with anyio.fail_after(WAIT_S):
        async with aclosing(Wire(client.running, PATH, headers).read(most)) as parts:
            async for part in parts:
                heard += ids.heard(reader.feed(part))
                if any(map(is_mark, heard)):
                    break
    return heard


async def test_a_socket_that_is_cut_again_and_again_gives_each_event_once(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running:
        session_id = await open_session(running)
        await prompt(running, session_id, f"flood {CHUNKS}")
        heard: list[Heard] = []
        cursor, cuts = 0, 0
        while not (heard and is_mark(heard[-1])):
            async with started(running, **IDS) as socket:
                resume = load(session_id, socket.cwd, "r", _meta={"turnwire": {"after": cursor}})
                await socket.send(resume | {"method": "session/resume"})
                heard += await some(socket)
                socket.cut()
            cursor = heard[-1].id or 0
            cuts += 1
        check_once(heard, CHUNKS)
        assert cuts > 3


async def some(socket: Socket) -> list[Heard]:
    """Return some messages, up to one that a cursor can follow."""
    heard: list[Heard] = []
    while len(heard) < EVERY * 4 or heard[-1].id is None:
        heard.append(await socket.next())
        if is_mark(heard[-1]):
            break
    return heard
