"""A client from opening to closing: many sessions, no leaks, and notification of the end."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.support.clients import WAIT_S, Connected, seated

from turnwire.client import Client, Session, Turn, Update, connect, embedded
from turnwire.client.attachment import Attachment
from turnwire.errors import ClientClosed, ConfigError, PositionLost, SessionNotFound, TurnError
from turnwire.hosting.source import AgentHandle
from turnwire.limits import Limits
from turnwire.log import MemoryEventLog
from turnwire_testing import Profile
from turnwire_testing.patience import quiet
from turnwire_testing.scripted.agent import ScriptedSource

pytestmark = pytest.mark.anyio


async def awaited(turn: Turn) -> object:
    return await turn


async def looped(turn: Turn) -> object:
    return [update async for update in turn]


async def asked_again(turn: Turn) -> object:
    await turn.accepted
    return await turn


@pytest.mark.parametrize("waits", [awaited, looped, asked_again])
async def test_whoever_waits_for_a_turn_when_the_client_closes_hears_so(
    waits: Callable[[Turn], Awaitable[object]],
) -> None:
    heard: list[type[BaseException]] = []
    turns: list[Turn] = []

    async def wait(turn: Turn) -> None:
        try:
            await waits(turn)
        except ClientClosed as error:
            heard.append(type(error))

    async with anyio.create_task_group() as tasks, seated() as seat:
        turns.append(seat.session.prompt("say 1 x\nnever"))
        tasks.start_soon(wait, turns[0])
        tasks.start_soon(wait, turns[0])
        await turns[0].accepted
        await quiet()
    assert heard == [ClientClosed, ClientClosed]
    with pytest.raises(ClientClosed):
        await turns[0]
    with pytest.raises(ClientClosed):
        await seat.session.prompt("hello")
    with pytest.raises(ClientClosed):
        await seat.client.new_session()


async def test_a_prompt_that_was_never_submitted_hears_of_the_closing_too() -> None:
    async with seated() as seat:
        turn = seat.session.prompt("hello")
    with pytest.raises(ClientClosed):
        await turn.accepted


async def test_a_handler_that_is_still_running_is_cancelled_by_closing_and_its_turn_is_not_drained() -> None:
    begun = anyio.Event()
    heard: list[str] = []

    async with anyio.create_task_group() as tasks, seated() as seat:

        @seat.session.on_update
        async def stay(update: Update) -> None:
            begun.set()
            await seat.session.prompt("never")

        async def wait(turn: Turn) -> None:
            with pytest.raises(ClientClosed):
                await turn
            heard.append("closed")

        turn = seat.session.prompt("say 1 x")
        tasks.start_soon(wait, turn)
        await begun.wait()
        assert [update.text async for update in turn] == ["x"]
        await quiet()
    assert heard == ["closed"]


async def divide(source: ScriptedSource) -> None:
    async with connect(source) as client:
        await client.new_session()
        raise ZeroDivisionError


async def fail(source: ScriptedSource) -> None:
    async with connect(source) as client:
        await (await client.new_session()).prompt("error -32001 boom")


async def test_what_the_program_raises_comes_out_as_it_is() -> None:
    async with ScriptedSource() as source:
        with pytest.raises(ZeroDivisionError):
            await divide(source)
        with pytest.raises(TurnError):
            await fail(source)


async def test_cancelling_the_program_passes_through_the_client() -> None:
    async with ScriptedSource() as source:
        with anyio.move_on_after(0.01) as scope:
            async with connect(source) as client:
                await (await client.new_session()).prompt("never")
        assert scope.cancelled_caught


class Closing:
    """A source that records its close."""

    def __init__(self, source: ScriptedSource) -> None:
        self._source = source
        self.closed = 0

    async def connect(self) -> AgentHandle:
        return await self._source.connect()

    async def aclose(self) -> None:
        self.closed += 1


async def test_leaving_closes_the_source_and_leaves_no_task() -> None:
    before = asyncio.all_tasks()
    async with ScriptedSource() as scripted:
        source = Closing(scripted)
        async with connect(source) as client:
            sessions = [await client.new_session() for _ in range(5)]
            for session in sessions:
                session.on_update(lambda update: None)
                await session.prompt("say 3 x")
                session.prompt("never")
        assert source.closed == 1
    await quiet()
    assert asyncio.all_tasks() == before


async def test_turns_leave_no_task_behind_while_the_client_is_open() -> None:
    async with seated() as seat:

        @seat.session.on_update
        async def follow_up(update: Update) -> None:
            if update.text == "ping":
                await seat.session.prompt("say 1 pong")

        await seat.session.prompt("say 1 ping")
        await quiet()
        tasks = len(asyncio.all_tasks())
        for _ in range(50):
            await seat.session.prompt("say 1 ping")
        await quiet()
        assert len(asyncio.all_tasks()) == tasks


@pytest.mark.guarantee("G12")
async def test_many_sessions_run_in_parallel_and_each_keeps_its_order() -> None:
    counted: dict[str, list[str]] = {}

    async def run(client: Client, session: Session) -> None:
        @session.on_update
        async def count(update: Update) -> None:
            await anyio.lowlevel.checkpoint()
            counted.setdefault(session.session_id, []).append(update.text)

        result = await session.prompt("flood 50")
        assert counted[session.session_id] == [str(number) for number in range(50)]
        assert result.text == "".join(counted[session.session_id])

    async with seated() as seat, anyio.create_task_group() as tasks:
        for _ in range(40):
            tasks.start_soon(run, seat.client, await seat.client.new_session())
    assert len(counted) == 40


@pytest.mark.parametrize("profile", ["v1", "v2"])
async def test_a_long_session_keeps_a_bounded_log_and_its_whole_view(
    profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs: list[MemoryEventLog] = []

    def make() -> MemoryEventLog:
        logs.append(MemoryEventLog())
        return logs[-1]

    monkeypatch.setattr(embedded, "MemoryEventLog", make)
    async with seated(profile, limits=Limits(kept_events=100)) as seat:
        most = last = 0
        for number in range(30):
            await seat.session.prompt(f"say 30 x\nsay 1 {number}")
            head = await logs[0].head(seat.session.session_id)
            most, last = max(most, head.head - head.first + 1), head.head
        assert last > 900
        # Twice the bound, plus the events of one turn before the next sweep.
        assert most <= 2 * 100 + 2 * 45
        view = await seat.session.view()
        assert len(view.turns) == 30
        prompts = [view.user_text(prompt_id) for prompt_id in view.turns]
        assert prompts[0] == "say 30 x\nsay 1 0"


async def test_a_turn_that_the_program_holds_is_not_forgotten() -> None:
    async with seated(limits=Limits(kept_events=16, ring_events=16)) as seat:
        held = seat.session.prompt("flood 10")
        first = await held
        for _ in range(20):
            await seat.session.prompt("flood 30")
        assert len([update async for update in held]) == 10
        again = seat.session.prompt("flood 30", key="k")
        accepted = await again.accepted
        await again
        del held, again
        for _ in range(20):
            await seat.session.prompt("flood 30")
        late = seat.session.prompt("flood 30", key="k")
        assert await late.accepted == accepted._replace(repeated=True)
        with pytest.raises(PositionLost):
            _ = [update async for update in late]
        assert first.text == "0123456789"


@pytest.mark.parametrize("end", ["say 1 x\nstop max_tokens", "error -32001 boom"])
async def test_how_a_forgotten_turn_ended_is_still_known(end: str) -> None:
    async def ended(turn: Turn) -> object:
        try:
            return await turn
        except TurnError as error:
            return error.reason, error.prompt_id, error.agent_error

    async with seated(limits=Limits(kept_events=16, ring_events=16, remembered_turns=1)) as seat:
        first = await ended(seat.session.prompt(end, key="k", request_id=7))
        for _ in range(20):
            await seat.session.prompt("flood 30")
        assert await ended(seat.session.prompt(end, key="k")) == first


def attachments() -> int:
    gc.collect()
    return len([each for each in gc.get_objects() if isinstance(each, Attachment)])


@pytest.mark.usefixtures("has_small_heap")
async def test_sessions_that_are_closed_and_let_go_leave_nothing_behind() -> None:
    async with seated() as seat:
        await seat.session.prompt("say 1 x")
        before = attachments()
        for _ in range(5):
            session = await seat.client.new_session()
            session.on_update(lambda update: None)
            turn = session.prompt("say 1 x")
            await turn
            await session.close()
            assert [update.text async for update in turn] == ["x"]
            del session, turn
        await quiet()
        assert attachments() == before


async def test_a_session_in_a_log_of_the_program_outlives_the_client() -> None:
    log = MemoryEventLog()
    async with seated(log=log) as seat:
        await seat.session.prompt("say 1 first")
        session_id = seat.session.session_id
    async with seated(log=log) as seat:
        assert session_id in await seat.client.sessions()
        session = await seat.client.attach(session_id)
        heard: list[str] = []
        session.on_update(lambda update: heard.append(update.text))
        assert (await session.prompt("say 1 second")).text == "second"
        assert heard == ["second"]
        assert len((await session.view()).turns) == 2
        with pytest.raises(SessionNotFound):
            await seat.client.attach("nobody")


async def test_a_turn_that_began_before_the_client_attached_is_found_by_its_key() -> None:
    log = MemoryEventLog()
    with anyio.fail_after(WAIT_S):
        async with ScriptedSource() as source, connect(source, log=log) as client:
            session = await client.new_session()
            ended = await session.prompt("say 2 x", key="k")
        async with ScriptedSource() as source, connect(source, log=log) as client:
            again = (await client.attach(session.session_id)).prompt("say 2 x", key="k")
            assert await again == ended
            assert [update.text async for update in again] == ["x", "x"]


async def test_attaching_twice_is_one_session_with_one_order() -> None:
    async with seated() as seat:
        again = await seat.client.attach(seat.session.session_id)
        heard: list[str] = []
        seat.session.on_update(lambda update: heard.append(f"one {update.text}"))
        again.on_update(lambda update: heard.append(f"two {update.text}"))
        await again.prompt("say 2 x")
        assert heard == ["one x", "two x", "one x", "two x"]


async def test_an_empty_command_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError):
        connect("")
    with pytest.raises(ConfigError):
        connect([])


async def test_connecting_to_anything_but_an_agent_says_what_to_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without a running daemon, to which `connect()` would connect.
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    wrong: list[Any] = [None, 5, object(), [1], b"x", {"a": 1}, ["agent", None], "'open"]
    for agent in wrong:
        with pytest.raises(ConfigError, match=r"give|text"):
            connect(agent)


async def test_a_client_is_entered_once_and_a_second_time_harms_nothing() -> None:
    async with seated() as seat:
        with pytest.raises(ConfigError, match="connect"):
            await seat.client.__aenter__()
        assert (await seat.session.prompt("say 1 x")).text == "x"
    with pytest.raises(ConfigError, match="connect"):
        await seat.client.__aenter__()


async def test_every_use_of_a_closed_client_says_that_it_is_closed(connected: Connected) -> None:
    async with connected() as seat:
        client, session = seat.client, seat.session
        turn = session.prompt("say 1 x")
        await turn
    uses: list[Callable[[], Awaitable[object]]] = [
        session.view,
        session.cancel,
        session.close,
        turn.cancel,
        turn.settle,
        turn.remove,
        lambda: turn.edit("y"),
        lambda: looped(turn),
        lambda: session.completed("x"),
        lambda: session.prompt("x").result(),
        lambda: client.completed("x"),
        lambda: client.attach(session.session_id),
        client.sessions,
        client.new_session,
    ]
    with anyio.fail_after(WAIT_S):
        for use in uses:
            with pytest.raises(ClientClosed):
                await use()
        assert (await turn).text == "x", "what was heard before is known"


async def test_calls_that_are_on_their_way_hear_that_the_client_closes(connected: Connected) -> None:
    heard: list[str] = []

    async def call(function: Callable[[], Awaitable[object]]) -> None:
        try:
            await function()
        except ClientClosed:
            heard.append("closed")
        else:
            heard.append("answered")

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks, connected() as seat:
            for function in (seat.session.view, seat.session.cancel, seat.client.new_session):
                tasks.start_soon(call, function)
            await anyio.lowlevel.checkpoint()
    assert len(heard) == 3
    assert "closed" in heard
