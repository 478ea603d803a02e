"""`await turn` returns after the last handler call of the turn: over real pipes, with slow handlers, many times.

The clock is stopped and the event loop rejects timers while turns run, so nothing here can depend on time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import anyio
import pytest
from anyio.lowlevel import checkpoint
from tests.interop.node_session import WAIT_S
from tests.interop.peers import scripted

from turnwire.client import Client, Update
from turnwire.client.client import connect
from turnwire_testing import ManualClock

pytestmark = pytest.mark.anyio

PROFILES = ("v1", "v1plus", "v2")
RUNS = 334
"""Runs of each profile; 1,002 in all."""


@asynccontextmanager
async def standing_still(profile: str) -> AsyncGenerator[Client]:
    with anyio.fail_after(WAIT_S):
        async with connect(scripted("--profile", profile), clock=ManualClock()) as client:
            yield client


def _no_timer(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("a timer was started while a turn ran")


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("profile", PROFILES)
async def test_a_thousand_updates_are_all_handled_when_await_returns(
    profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with standing_still(profile) as client:
        session = await client.new_session("/")
        handled: list[str] = []

        @session.on_update
        async def _(update: Update) -> None:
            for _ in range(10):
                await checkpoint()
            if update.text:
                handled.append(update.text)

        await session.prompt("echo ready")
        handled.clear()
        monkeypatch.setattr(asyncio.get_running_loop(), "call_at", _no_timer)
        ended = await session.prompt("flood 1000")
        monkeypatch.undo()
        assert handled == [str(number) for number in range(1000)]
        assert ended.stop_reason == "end_turn"


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("profile", PROFILES)
async def test_no_turn_of_many_is_given_back_before_its_last_handler_call(
    profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with standing_still(profile) as client:
        session = await client.new_session("/")
        handled = 0

        @session.on_update
        async def _(update: Update) -> None:
            nonlocal handled
            for _ in range(3):
                await checkpoint()
            handled += update.kind == "agent_message_chunk"

        await session.prompt("echo ready")
        monkeypatch.setattr(asyncio.get_running_loop(), "call_at", _no_timer)
        for run in range(RUNS):
            handled, size = 0, 1 + run % 13
            await session.prompt(f"flood {size}")
            assert handled == size, f"run {run}"
        monkeypatch.undo()
