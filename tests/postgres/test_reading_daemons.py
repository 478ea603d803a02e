"""Two daemons over one database: turns of one are read at the other, over REST and its streams."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import pytest
from tests.support.daemons import Running, running_daemon
from tests.support.postgres import PostgresServer, share_log

from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def two_daemons(
    postgres: PostgresServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[tuple[Running, Running, httpx.AsyncClient, httpx.AsyncClient]]:
    """The daemons, and a client of each."""
    share_log(monkeypatch)
    address = postgres.new_log()
    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(running_daemon(folder / name, log=address)) for name in ("a", "b")
        ]
        here, there = [await stack.enter_async_context(each.client()) for each in (first, second)]
        yield first, second, here, there


async def created(client: httpx.AsyncClient, **more: Any) -> dict[str, Any]:
    answer = await client.post("/session", json=more)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def say(client: httpx.AsyncClient, session: dict[str, Any], text: str) -> str:
    sent = {"prompt": [{"type": "text", "text": text}]}
    headers = {"X-Turnwire-Client-Id": session["clientId"]}
    answer = await client.post(f"/session/{session['sessionId']}/prompt", json=sent, headers=headers)
    assert answer.status_code == 202, answer.text
    return answer.json()["promptId"]


async def types_until(client: httpx.AsyncClient, path: str, last: str) -> list[tuple[int | None, str]]:
    """Ids and types of a stream's events, up to one of this type."""
    told: list[tuple[int | None, str]] = []
    with anyio.move_on_after(WAIT_S):
        async with client.stream("GET", path) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    event = msgspec.json.decode(line[6:])
                    told.append((event.get("id"), event["type"]))
                    if event["type"] == last:
                        return told
    raise AssertionError(f"no {last} came on {client.base_url} {path}: {told}")


async def test_streams_of_the_other_daemon_tell_the_same_events(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_daemons(postgres, tmp_path, monkeypatch) as (_, far, here, there):
        session = await created(here)
        path = f"/session/{session['sessionId']}/events?after=0"
        told: dict[str, list[tuple[int | None, str]]] = {}

        async def read(name: str, client: httpx.AsyncClient, path: str) -> None:
            told[name] = await types_until(client, path, "turn_complete")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, "near", here, path)
            tasks.start_soon(read, "far", there, path)
            tasks.start_soon(read, "all", there, "/events")
            await until_open(far)
            await say(here, session, "hello")
        assert told["near"] == told["far"]
        assert [each for each in told["all"] if each in told["near"]] == told["all"]
        assert not far.daemon.node.loaded, "reading claims nothing"


async def until_open(daemon: Running) -> None:
    with anyio.fail_after(WAIT_S):
        while len(daemon.daemon.metrics.subscribers) < 2:
            await anyio.lowlevel.checkpoint()


async def test_lists_and_looks_of_the_other_daemon_show_what_runs(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_daemons(postgres, tmp_path, monkeypatch) as (_, far, here, there):
        session = await created(here)
        path = f"/session/{session['sessionId']}"
        prompt_id = await say(here, session, "ask t1 yes,no")
        with anyio.fail_after(WAIT_S):
            while not (await there.get(f"{path}/permissions")).json()["permissions"]:
                pass
        [entry] = (await there.get("/session")).json()["sessions"]
        assert entry["activePromptId"] == prompt_id
        assert entry["isWaitingForPermission"]
        # Nodes that cannot reach each other report only their own clients.
        near_status, far_status = [(await each.get(f"{path}/status")).json() for each in (here, there)]
        assert far_status | {"clientCount": near_status["clientCount"]} == near_status
        assert (await there.get(f"{path}/turns/current")).json() == (await here.get(f"{path}/turns/current")).json()
        near_view, far_view = (await here.get(f"{path}/transcript")), (await there.get(f"{path}/transcript"))
        assert near_view.json() == far_view.json()
        assert not far.daemon.node.loaded


async def test_one_session_is_shared_by_a_directory_whatever_daemon_is_asked(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_daemons(postgres, tmp_path, monkeypatch) as (near, far, _, _):
        entered = 0
        for daemon in (near, far) * 3:
            async with daemon.daemon.sessions.sharing():
                entered += 1
        held, most = 0, 0

        async def share(daemon: Running) -> None:
            nonlocal held, most
            async with daemon.daemon.sessions.sharing():
                held += 1
                most = max(most, held)
                await daemon.daemon.log.sessions()
                held -= 1

        with anyio.fail_after(WAIT_S):
            async with anyio.create_task_group() as tasks:
                for daemon in (near, far) * 4:
                    tasks.start_soon(share, daemon)
        assert (entered, most) == (6, 1)


async def test_words_are_found_at_every_daemon(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_daemons(postgres, tmp_path, monkeypatch) as (_, _, here, there):
        session = await created(here)
        await say(here, session, "say a rare marmalade")
        await types_until(here, f"/session/{session['sessionId']}/events?after=0", "turn_complete")
        with anyio.fail_after(WAIT_S):
            while True:
                [*found] = (await there.get("/session?search=marmalade")).json()["sessions"]
                if found and found[0].get("matches"):
                    break
        await here.delete(f"/session/{session['sessionId']}?purge=true")
        with anyio.fail_after(WAIT_S):
            while (await there.get("/session?search=marmalade")).json()["sessions"]:
                pass
