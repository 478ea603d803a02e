"""Our own client over the same transports: it speaks to a stdio process or a daemon as to any agent.

A process that is held to v1 is spoken to in v1 with both drafts, which our client always asks for; any other in v2.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.lowlevel import checkpoint
from tests.cli.rig import environment
from tests.fan.harness import Harness, tool_calls
from tests.fan.matrix import ASKING, fan
from tests.fan.programs import TOKEN, Way
from tests.support.heard import WAIT_S
from tests.support.limited import LIMITED

from turnwire.client import Client, Question, Update, connect
from turnwire.errors import ContentRefused
from turnwire.projections.view.transcript import Message

pytestmark = pytest.mark.anyio

OWN = ["available_commands_update", "available_commands_update", "session_info_update", "usage_update"]


@asynccontextmanager
async def opened(harness: Harness) -> AsyncGenerator[Client]:
    """Connect our client to this pair's agent over this pair's transport."""
    way: Way = "held-to-v1" if harness.pair.dialect == "v1plus" else "usual"
    with anyio.fail_after(2 * WAIT_S):
        if harness.pair.transport == "stdio":
            program = harness.programs.program(harness.pair.agent)
            command = [*LIMITED, "stdio", *harness.programs.flags(program, way)]
            opening = connect(command, env=environment(program.home))
        else:
            url = harness.host(way).url + "/acp"
            opening = connect(url if harness.pair.transport == "http" else f"ws{url[4:]}", token=TOKEN)
        async with opening as client:
            yield client


@fan(dialects=ASKING)
async def test_a_session_is_opened_and_its_turns_end_when_all_is_handled(harness: Harness) -> None:
    handled: list[Update] = []
    has_own = anyio.Event()
    async with opened(harness) as client:

        @client.on_update
        async def handle(update: Update) -> None:
            await checkpoint()
            handled.append(update)
            if update.kind == "usage_update":
                has_own.set()

        session = await client.new_session(harness.programs.cwd)
        # It waits for ready without limit, so the client has sent it; and all held updates arrived.
        await has_own.wait()
        assert [each.kind for each in handled if each.kind in OWN][-4:] == OWN
        handled.clear()
        for reason in ("max_tokens", "end_turn"):
            result = await session.prompt(f"flood 60\nstop {reason}")
            spoken = [each.text for each in handled if each.text]
            assert spoken == [str(number) for number in range(60)], "all of it was handled before the end"
            assert result.stop_reason == reason
            assert result.ending == {"v1plus": "marker", "v2": "idle"}[harness.pair.dialect]
            handled.clear()
        with pytest.raises(ContentRefused):
            await session.prompt([{"type": "audio", "data": "AA==", "mimeType": "audio/wav"}])
        messages = [each for each in (await session.view()).items if isinstance(each, Message)]
        assert sum(each.role == "user" for each in messages) == 2, "a prompt and its echo are one"


@fan(dialects=ASKING)
async def test_a_cancelled_turn_leaves_nothing_open_and_hears_the_agent_to_its_end(harness: Harness) -> None:
    async with opened(harness) as client:
        session, gate = await client.new_session(harness.programs.cwd), harness.gate()
        asked = anyio.Event()

        @session.on_permission
        async def never_answer(question: Question) -> str:
            asked.set()
            await anyio.sleep_forever()
            raise AssertionError(question)

        held = ("on-cancel say 1 stopping", f"on-cancel gate {gate}", "on-cancel tool t1")
        turn = session.prompt("\n".join((*held, "tool-open t1", "ask t2 allow_once,reject_once", "never")))
        await asked.wait()
        await turn.cancel()
        async for update in turn:
            if update.text == "stopping":
                break
        # The agent was notified of the request's end before that of the cancel.
        assert await tool_calls(session) == {"t1": ("pending", True), "t2": ("failed", True)}
        gate.touch()
        assert (await turn).stop_reason == "cancelled"
        assert (await tool_calls(session))["t1"][0] == "completed"
        # The question is settled: the next turn is not held up by it.
        assert (await session.prompt("say 1 again")).text == "again"
