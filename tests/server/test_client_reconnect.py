"""Clients and bad networks: connections cut at any byte, answers lost, a daemon that is restarted."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup, TaskStatus
from tests.patience import LONG_S
from tests.support.cut_proxy import CuttingProxy, cutting
from tests.support.daemons import SCRIPTED, TOKEN, Running, running_daemon

import turnwire
from turnwire.client import DaemonClient, PromptResult
from turnwire.client.daemon_client import Envelope
from turnwire.errors import DaemonUnreachable, TurnError
from turnwire.limits import Limits

pytestmark = pytest.mark.anyio

CHUNKS = 3000
CUTS = 60


def cuts(seed: int, many: int = CUTS) -> list[int]:
    """Byte counts: the first leaves room for the answers before the stream, the others cut at any byte."""
    chance = random.Random(seed)
    return [6000, *(chance.randint(600, 4000) for _ in range(many))]


@asynccontextmanager
async def cut_daemon(folder: Path, plan: list[int]) -> AsyncGenerator[tuple[Running, CuttingProxy]]:
    with anyio.fail_after(LONG_S):
        async with running_daemon(folder / "data") as daemon, cutting(daemon.url, plan) as proxy:
            yield daemon, proxy


@pytest.mark.guarantee("G9", "G12")
async def test_handlers_and_loops_hear_every_update_once_through_fifty_cuts(tmp_path: Path) -> None:
    plan = cuts(2, 2 * CUTS)
    async with cut_daemon(tmp_path, plan) as (_, proxy), turnwire.connect(proxy.url, token=TOKEN) as client:
        session = await client.new_session(tmp_path)
        heard: list[str] = []
        session.on_update(lambda update: heard.append(update.text))
        turn = session.prompt(f"flood {CHUNKS}")
        looped = [update.text async for update in turn]
        await turn
        assert heard == looped == [str(number) for number in range(CHUNKS)]
        assert proxy.made >= 50


@pytest.mark.guarantee("G9", "G11")
@pytest.mark.parametrize("acp", ["1", "2", "agent"])
async def test_what_one_event_is_told_as_comes_once_through_cuts_anywhere(tmp_path: Path, acp: str) -> None:
    async with (
        running_daemon(tmp_path / "data", agent=(*SCRIPTED, "--profile", "v2")) as daemon,
        DaemonClient(daemon.url, TOKEN) as straight,
    ):
        session_id, end = (await straight.create_session()).session_id, None
        for number in range(12):
            parts = [{"type": "text", "text": f"part {number}.{part}"} for part in range(6)]
            end = (await straight.prompt(session_id, parts)).event_id

        async def read(client: DaemonClient) -> list[Envelope]:
            seen: list[Envelope] = []
            async with aclosing(client.events(session_id, 0, acp=acp)) as events:
                async for event in events:
                    seen += [event] if event.type != "replay_complete" else []
                    if event.id == end:
                        return seen
            raise AssertionError("the stream ended first")

        with anyio.fail_after(LONG_S):
            told = await read(straight)
            chance = random.Random(4)
            # Most have room for a whole event, so that the client comes on and does not wait longer each time.
            room = 3200 if acp == "1" else 700
            plan = [chance.randint(room, room + 2300) for _ in range(40)]
            async with cutting(daemon.url, plan) as proxy, DaemonClient(proxy.url, TOKEN) as client:
                assert await read(client) == told
                assert proxy.made >= 10
    pieces = [each for each in told if each.meta.get("event") == "user_message"]
    assert len(pieces) == (72 if acp == "1" else 12)
    assert [each.id for each in told if each.id is not None] == list(range(1, (end or 0) + 1))


@pytest.mark.guarantee("G7")
async def test_a_prompt_whose_answer_is_cut_at_any_byte_is_one_prompt(tmp_path: Path) -> None:
    async with cut_daemon(tmp_path, []) as (daemon, _), DaemonClient(daemon.url, TOKEN) as straight:
        session_id = (await straight.create_session()).session_id
        places = range(1, 2400, 200)
        for place in places:
            async with cutting(daemon.url, [place]) as proxy, DaemonClient(proxy.url, TOKEN) as client:
                assert (await client.prompt(session_id, "say 1 x")).stop_reason == "end_turn"
                assert proxy.made == 1
        assert len(await straight.turns(session_id)) == len(places)


class Restarting:
    """A daemon with a proxy that can be stopped and restarted over the same log."""

    def __init__(self, tasks: TaskGroup, proxy: CuttingProxy, data: Path) -> None:
        self._tasks = tasks
        self._proxy = proxy
        self._data = data
        self._stopping = anyio.Event()
        self._stopped = anyio.Event()

    async def start(self) -> None:
        self._stopping, self._stopped = anyio.Event(), anyio.Event()
        await self._tasks.start(self._run)

    async def _run(self, *, task_status: TaskStatus[None]) -> None:
        async with running_daemon(self._data) as daemon:
            self._proxy.aim(daemon.url)
            task_status.started()
            await self._stopping.wait()
        self._stopped.set()

    async def stop(self) -> None:
        self._stopping.set()
        await self._stopped.wait()


@asynccontextmanager
async def restarting(folder: Path) -> AsyncGenerator[tuple[Restarting, CuttingProxy]]:
    with anyio.fail_after(LONG_S):
        async with cutting("http://127.0.0.1:9") as proxy, anyio.create_task_group() as tasks:
            daemon = Restarting(tasks, proxy, folder / "data")
            await daemon.start()
            yield daemon, proxy
            await daemon.stop()


@pytest.mark.guarantee("G3", "G7")
async def test_clients_live_through_a_restart_of_the_daemon(tmp_path: Path) -> None:
    """The running turn ends as `daemon_restarted`, queued prompts run, and an observer receives the same."""
    async with (
        restarting(tmp_path) as (daemon, proxy),
        turnwire.connect(proxy.url, token=TOKEN) as client,
        turnwire.connect(proxy.url, token=TOKEN) as watching,
        anyio.create_task_group() as tasks,
    ):
        session = await client.new_session(tmp_path)
        watched = await watching.attach(session.session_id)
        heard: list[str] = []
        watched.on_update(lambda update: heard.append(update.text))
        running = session.prompt("say 1 before\nnever", request_id="running")
        async for update in running:
            assert update.text == "before"
            break
        waiting = session.prompt("say 1 after", request_id="waiting")
        await waiting.accepted
        results: list[PromptResult] = []
        errors: list[TurnError] = []

        async def ask() -> None:
            async with DaemonClient(proxy.url, TOKEN) as plain:
                results.append(await plain.prompt(session.session_id, "say 1 last"))

        async def observe() -> None:
            try:
                await watched.completed("running")
            except TurnError as error:
                errors.append(error)

        tasks.start_soon(ask)
        tasks.start_soon(observe)
        while len((await session.view()).turns) < 3:
            await anyio.lowlevel.checkpoint()
        await daemon.stop()
        await daemon.start()
        with pytest.raises(TurnError) as caught:
            await running
        assert caught.value.reason == "daemon_restarted"
        assert (await waiting).text == "after"
        assert (await watched.completed("waiting")).text == "after"
        with anyio.fail_after(LONG_S):
            while not (results and errors and "last" in heard):
                await anyio.lowlevel.checkpoint()
        assert results[0].stop_reason == "end_turn"
        assert errors[0].reason == "daemon_restarted"
        assert heard == ["before", "after", "last"]


async def test_a_prompt_that_is_asked_while_the_daemon_restarts_waits_for_it(tmp_path: Path) -> None:
    async with restarting(tmp_path) as (daemon, proxy), DaemonClient(proxy.url, TOKEN) as client:
        session_id = (await client.create_session()).session_id
        await client.prompt(session_id, "say 1 x")
        await daemon.stop()
        results: list[PromptResult] = []
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                results.append(await client.prompt(session_id, "say 1 y"))

            tasks.start_soon(ask)
            before = proxy.opened
            while proxy.opened == before:
                await anyio.lowlevel.checkpoint()
            await daemon.start()
        assert results[0].stop_reason == "end_turn"


async def test_a_daemon_that_stays_away_is_told_to_whoever_waits_and_can_be_attached_to_when_it_is_back(
    tmp_path: Path,
) -> None:
    limits = Limits(reconnect_s=0.5, request_retry_s=0.2)
    async with (
        cut_daemon(tmp_path, []) as (_, proxy),
        turnwire.connect(proxy.url, token=TOKEN, limits=limits) as client,
    ):
        session = await client.new_session(tmp_path)
        turn = session.prompt("say 1 x\nnever")
        async for _ in turn:
            break
        proxy.refusing = True
        proxy.cut_all()
        with pytest.raises(DaemonUnreachable):
            await turn
        proxy.refusing = False
        again = await client.attach(session.session_id)
        await again.cancel()
        assert (await again.prompt("say 1 back")).text == "back"
        assert (await (await client.attach(session.session_id)).prompt("say 1 same")).text == "same"
