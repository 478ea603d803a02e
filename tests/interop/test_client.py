"""The client of our SDK with agents of the official ones: one process per peer, several sessions."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncGenerator

import anyio
import pytest
from tests.interop.node_session import WAIT_S
from tests.interop.peers import Peer

import turnwire
from turnwire.client import Client, Question, Session, TurnResult, Update
from turnwire.client.turn import Turn
from turnwire.errors import TurnError

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def client(peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Client]:
    async with turnwire.connect(peer.command(tmp_path_factory.mktemp(peer.name))) as opened:
        yield opened


@pytest.fixture
async def session(client: Client) -> Session:
    with anyio.fail_after(WAIT_S):
        return await client.new_session("/")


async def result(turn: Turn, within_s: float = WAIT_S) -> TurnResult:
    with anyio.fail_after(within_s):
        return await turn


async def heard(turn: Turn, text: str) -> None:
    """Wait until the agent has sent this in the turn."""
    with anyio.fail_after(WAIT_S):
        async for update in turn:
            if update.text == text:
                return


@pytest.mark.guarantee("G12")
async def test_every_handler_call_of_a_turn_is_finished_when_await_returns(session: Session) -> None:
    finished: list[str] = []

    @session.on_update
    async def _(update: Update) -> None:
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        if update.kind == "agent_message_chunk":
            finished.append(update.text)

    ended = await result(session.prompt("hello there"))
    assert finished == ["You said: ", "hello there", "."]
    assert (ended.stop_reason, ended.text) == ("end_turn", "You said: hello there.")


async def test_a_loop_over_a_turn_gives_its_updates_and_ends_with_it(session: Session) -> None:
    turn = session.prompt("hello there")
    with anyio.fail_after(WAIT_S):
        pieces = [update.text async for update in turn if update.text]
    assert pieces == ["You said: ", "hello there", "."]
    assert (await result(turn)).stop_reason == "end_turn"


async def test_a_permission_function_answers_the_agent(session: Session) -> None:
    asked: list[list[str]] = []

    @session.on_permission
    def _(question: Question) -> str:
        asked.append([option.option_id for option in question.options])
        return "yes" if len(asked) == 1 else "reject"

    assert (await result(session.prompt("edit the file"))).text == "edited"
    assert (await result(session.prompt("edit the file"))).text == "left alone"
    assert asked == [["yes", "no"], ["yes", "no"]]


async def test_a_cancelled_turn_says_so_and_the_session_can_be_used(session: Session) -> None:
    turn = session.prompt("wait for me")
    await heard(turn, "waiting")
    await turn.cancel()
    assert (await result(turn)).stop_reason == "cancelled"
    assert (await result(session.prompt("hello again"))).text == "You said: hello again."


async def test_a_turn_whose_agent_is_killed_raises_within_a_second_and_the_next_one_works(session: Session) -> None:
    pid = int((await result(session.prompt("pid"))).text)
    turn = session.prompt("wait for me")
    await heard(turn, "waiting")
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(TurnError) as raised:
        await result(turn, within_s=1.0)
    assert (raised.value.reason, raised.value.signal) == ("agent_exited", "SIGKILL")
    assert (await result(session.prompt("count"))).text == "3 prompts"
