"""Background work of an agent: it prevents unloading of its session and agent, is shown, and can be stopped."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
from tests.server.acp.recorder import V2_AGENT, Recorder, v1_agent
from tests.support.acp import TOKEN, acp_daemon
from tests.support.heard import Json

from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.server.app import create_app
from turnwire.server.daemon import Daemon
from turnwire_testing import ManualClock
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

MINUTE = 60.0
TOOL, SHELL, JOB = (
    {"type": "tool_call", "toolCallId": "build"},
    {"type": "terminal", "terminalId": "shell"},
    {"type": "_job", "n": 1},
)
RESUMING = v1_agent(sessionCapabilities={"resume": {}})


class Rig:
    """A daemon on a stopped clock, a scripted agent, and one session."""

    def __init__(self, daemon: Daemon, agent: Recorder, clock: ManualClock, client: httpx.AsyncClient) -> None:
        self.daemon = daemon
        self.agent = agent
        self.clock = clock
        self.client = client

    async def ask(self, method: str, rest: str, status: int = 200, body: object = None) -> Any:
        reply = await self.client.request(method, f"/session/s1/{rest}", json=body)
        assert reply.status_code == status, reply.text
        return reply.json() if reply.content else None

    async def status(self) -> Any:
        await quiet()
        return await self.ask("GET", "status")

    async def leave_open(self, *tools: str) -> None:
        """Run a whole turn of a v1 agent, at the end of which calls are in progress."""
        await self.ask("POST", "prompt", 202, {"prompt": [{"type": "text", "text": "go"}]})
        asked = await self.agent.prompted()
        for each in tools:
            self.agent.update("tool_call", toolCallId=each, title=f"Run {each}", status="in_progress")
        self.agent.send({"id": asked["id"], "result": {"stopReason": "end_turn"}})
        await quiet()

    async def pass_time(self, seconds: float) -> None:
        """Let time pass in the steps in which the node looks around."""
        for _ in range(int(seconds / MINUTE)):
            await self.clock.wait_for_sleepers(1)
            self.clock.advance(MINUTE)
            await quiet()

    @property
    def is_loaded(self) -> bool:
        return SessionId("s1") in self.daemon.node.loaded

    async def is_connected(self) -> bool:
        return (await self.ask("GET", "explain"))["agent"]["connected"]


@asynccontextmanager
async def rig(says: Json, **replies: Any) -> AsyncGenerator[Rig]:
    clock, limits = ManualClock(), Limits(idle_unload_s=5 * MINUTE, agent_idle_s=10 * MINUTE)
    async with (
        Recorder(says, **replies) as agent,
        acp_daemon(source=agent, clock=clock, limits=limits) as place,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app=create_app(place.daemon)),
            base_url="http://127.0.0.1",
            headers={"Authorization": f"Bearer {TOKEN}"},
        ) as client,
    ):
        made = await client.post("/session", json={"sessionId": "s1"})
        assert made.status_code == 200, made.text
        yield Rig(place.daemon, agent, clock, client)


async def test_listed_work_of_forty_minutes_keeps_session_and_agent_is_shown_and_can_be_stopped() -> None:
    async with rig(V2_AGENT, tool_call__cancel={"result": {}}) as given:
        agent = given.agent
        agent.update(
            "tool_call_update", toolCallId="build", title="Build", status="in_progress", capabilities={"cancel": {}}
        )
        agent.update("terminal_update", terminalId="shell", command="make")
        agent.update("state_update", state="idle", background=[TOOL, SHELL, JOB])
        await given.pass_time(40 * MINUTE)
        assert given.is_loaded
        assert await given.is_connected()
        assert (await given.status())["background"] == [
            {"kind": "tool_call", "id": "build", "title": "Build", "cancellable": True},
            {"kind": "terminal", "id": "shell", "title": "make", "cancellable": False},
            {"kind": "_job", "cancellable": False},
        ]
        explained = await given.ask("GET", "explain")
        assert [each["kind"] for each in explained["background"]] == ["tool_call", "terminal", "_job"]
        await given.ask("POST", "background/build/cancel", 204)
        assert (await agent.asked("tool_call/cancel"))["params"] == {"sessionId": "a1", "toolCallId": "build"}
        agent.update("tool_call_update", toolCallId="build", status="cancelled")
        assert [each["kind"] for each in (await given.status())["background"]] == ["terminal", "_job"]
        agent.update("state_update", state="idle", background=[])
        assert "background" not in await given.status()
        await given.pass_time(6 * MINUTE)
        assert not given.is_loaded


async def test_work_that_cannot_be_stopped_or_does_not_run_is_refused_with_a_reason() -> None:
    async with rig(V2_AGENT, terminal__cancel={"error": {"code": -32602, "message": "it is over"}}) as given:
        given.agent.update("terminal_update", terminalId="shell", capabilities={"cancel": {}})
        given.agent.update("state_update", state="idle", background=[TOOL, SHELL])
        await quiet()
        assert (await given.ask("POST", "background/other/cancel", 404))["code"] == "not_found"
        refused = await given.ask("POST", "background/build/cancel", 409)
        assert "close the session" in refused["error"]
        assert (await given.ask("POST", "background/shell/cancel", 502))["code"] == "peer_broke_protocol"


async def test_a_call_that_outlives_its_turn_keeps_an_agent_that_lists_nothing_for_an_hour() -> None:
    async with rig(RESUMING) as given:
        await given.leave_open("build")
        await given.pass_time(40 * MINUTE)
        assert given.is_loaded
        assert await given.is_connected()
        [work] = (await given.status())["background"]
        assert (work["kind"], work["id"], work["title"], work["cancellable"]) == (
            "tool_call",
            "build",
            "Run build",
            False,
        )
        await given.ask("POST", "background/build/cancel", 409)
        given.agent.update("tool_call_update", toolCallId="build", content=[])
        await quiet()
        await given.pass_time(50 * MINUTE)
        assert await given.is_connected()
        assert (await given.status())["background"]
        await given.pass_time(25 * MINUTE)
        assert not await given.is_connected()
        assert "background" not in await given.status()


async def test_closing_the_session_stops_all_of_it() -> None:
    async with rig(V2_AGENT, session__close={"result": {}}) as given:
        given.agent.update("tool_call_update", toolCallId="build", status="in_progress")
        given.agent.update("state_update", state="idle", background=[TOOL])
        await quiet()
        assert (await given.client.delete("/session/s1")).is_success
        await given.agent.asked("session/close")
        assert "background" not in await given.status()
        transcript = await given.ask("GET", "transcript?acp=agent")
        assert [each["status"] for each in transcript["items"]] == ["cancelled"]


async def test_work_is_over_with_its_agent() -> None:
    async with rig(RESUMING) as given:
        await given.leave_open("build")
        await given.agent.cut()
        with anyio.fail_after(WAIT_S):
            while "background" in await given.status():
                pass
        transcript = await given.ask("GET", "transcript")
        assert [each["status"] for each in transcript["items"] if "toolCallId" in each] == ["failed"]
