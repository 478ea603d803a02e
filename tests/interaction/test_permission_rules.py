"""Rules of the operator from the frames of an agent to its answer: earlier updates of a call count later."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from msgspec import json
from tests.support.acp import V1, V2
from tests.support.agents import HandAgent, HandSource
from tests.support.driving import events_of, fall_idle, of, prompt

from turnwire.hosting.permission_rules import Rules
from turnwire.ids import SessionId
from turnwire.log import MemoryEventLog
from turnwire.runtime.node import Node, open_node
from turnwire.session import events as ev
from turnwire.session.policy import read_rules
from turnwire_testing import ManualClock
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

S1 = SessionId("s1")
RULES = [
    {"answer": "reject_once", "path": "{cwd}/secret/*"},
    {"answer": "allow_once", "kind": "read", "path": "/srv/*"},
    {"answer": "allow_once", "kind": "other"},
]
OPTIONS = [{"optionId": each, "name": each, "kind": each} for each in ("allow_once", "reject_once")]


class Stage:
    def __init__(self, node: Node, log: MemoryEventLog, agent: HandAgent, clock: ManualClock) -> None:
        self.node, self.log, self.agent, self.clock = node, log, agent, clock

    def update(self, kind: str, /, **said: Any) -> None:
        update = {"sessionUpdate": kind, "toolCallId": "t", "title": "work", **said}
        self.agent.send({"method": "session/update", "params": {"sessionId": "a1", "update": update}})

    def ask(self, version: int = 1, **said: Any) -> None:
        call = {"toolCallId": "t", **said}
        about = {"toolCall": call} if version == 1 else {"subject": {"type": "tool_call", "toolCall": call}}
        params = {"sessionId": "a1", "title": "May I?", "options": OPTIONS, **about}
        self.agent.send({"id": 7, "method": "session/request_permission", "params": params})

    async def answer(self) -> str:
        result = await self.agent.next_result()
        return json.decode(result.result)["outcome"]["optionId"]


@asynccontextmanager
async def staged(greeting: object = V1, cwd: str = "/srv") -> AsyncGenerator[Stage]:
    log, source, clock = MemoryEventLog(), HandSource(), ManualClock()
    async with open_node(log, source, clock=clock, rules=Rules(read_rules(RULES))) as node:
        await node.create(cwd, session_id=S1)
        agent = await source.agent()
        await agent.greet(greeting)
        yield Stage(node, log, agent, clock)


async def begin(stage: Stage) -> None:
    with anyio.fail_after(WAIT_S):
        await stage.node.submit(S1, prompt("go"))
    await stage.agent.next("session/prompt")


@pytest.mark.parametrize(
    ("greeting", "version", "announced"), [(V1, 1, "tool_call"), (V2, 2, "tool_call_update")], ids=["v1", "v2"]
)
@pytest.mark.parametrize(("path", "chosen"), [("secret/key", "reject_once"), ("open", "allow_once")])
async def test_a_question_with_a_bare_call_id_is_judged_by_the_call(
    greeting: object, version: int, announced: str, path: str, chosen: str
) -> None:
    async with staged(greeting) as stage:
        await begin(stage)
        stage.update(announced, kind="read", locations=[{"path": f"/srv/{path}"}])
        stage.ask(version)
        assert await stage.answer() == chosen


async def test_a_question_about_a_call_nobody_heard_of_waits_for_a_user() -> None:
    async with staged() as stage:
        await begin(stage)
        stage.ask()
        await quiet()
        events = await events_of(stage.log, S1)
        assert len(of(events, ev.PermissionRequested)) == 1
        assert of(events, ev.PermissionResolved) == []
        assert stage.agent.waiting() == 0


async def test_rules_know_the_directory_of_a_session_that_is_put_away() -> None:
    async with staged(cwd="/srv/app[1]") as stage:
        await fall_idle(stage.clock)
        assert stage.node.loaded.keys() == frozenset()
        stage.ask(kind="read", locations=[{"path": "/srv/app[1]/secret/key"}])
        assert await stage.answer() == "reject_once"
