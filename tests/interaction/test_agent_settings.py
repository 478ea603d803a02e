"""An agent's options, their values, and the operator's rules that answer for the users."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import UNSET, Raw, json
from tests.support.agents import HandSource
from tests.support.driving import World, content

from turnwire.errors import LocalProtocolError, RemoteProtocolError
from turnwire.hosting.permission_rules import Rules
from turnwire.ids import PromptId, SessionId
from turnwire.log import MemoryEventLog
from turnwire.runtime.node import open_node
from turnwire.session import events as ev
from turnwire.session.inputs import ModeSet, Prompt
from turnwire.session.policy import read_rules
from turnwire_testing import ManualClock, Profile
from turnwire_testing.patience import quiet
from turnwire_testing.scripted.agent import ScriptedSource

pytestmark = pytest.mark.anyio

S1 = SessionId("s1")


@asynccontextmanager
async def ruled(profile: Profile, *rules: dict[str, Any]) -> AsyncGenerator[tuple[World, Rules]]:
    clock, log, given = ManualClock(), MemoryEventLog(), Rules(read_rules(rules))
    async with (
        ScriptedSource(profile) as source,
        open_node(log, source, clock=clock, rules=given) as node,
    ):
        world = World(node, log, source, clock)
        await world.create()
        yield world, given


@pytest.mark.parametrize("profile", ["v1", "v2"])
async def test_a_rule_answers_before_the_users_are_asked(profile: Profile) -> None:
    reject = {"answer": "reject_once", "name": "no asking"}
    async with ruled(profile, reject) as (world, _):
        await world.prompt("ask t1 allow_once,reject_once")
        await world.end()
        [resolved] = [each for each in await world.events() if isinstance(each, ev.PermissionResolved)]
    assert resolved.author == "policy: no asking"
    assert json.decode(resolved.answer) == {"outcome": {"outcome": "selected", "optionId": "reject_once"}}


async def test_a_rule_for_unattended_sessions_waits_while_somebody_is_there() -> None:
    async with ruled("v1", {"answer": "reject_once", "when": "unattended"}) as (world, rules):
        rules.attended = lambda session_id: session_id == S1
        await world.prompt("ask t1 allow_once,reject_once")
        asked = await world.until_kind(ev.PermissionRequested)
        await quiet()
        events = await world.events()
        assert not any(isinstance(each, ev.PermissionResolved) for each in events)
        await world.answer(asked.request_id, "allow_once")
        await world.end()


async def test_what_the_agent_offers_is_in_the_view_and_can_be_set() -> None:
    async with ruled("v1") as (world, _):
        await world.until_kind(ev.AgentStarted)
        latest = (await world.node.view(S1)).latest
        assert latest.modes is not UNSET
        modes = [each["id"] for each in json.decode(latest.modes)]
        assert latest.mode in modes
        other = next(each for each in modes if each != latest.mode)
        await world.node.agents.configure(S1, "session/set_mode", {"modeId": other})
        await world.node.submit(S1, ModeSet(at=1, mode=other, previous=latest.mode, author="ann"))
        assert (await world.node.view(S1)).latest.mode == other
        with pytest.raises(RemoteProtocolError, match="refused"):
            await world.node.agents.configure(S1, "session/set_mode", {"modeId": "magic"})


async def test_a_setting_needs_an_agent() -> None:
    clock, log = ManualClock(), MemoryEventLog()
    async with ScriptedSource("v1") as source, open_node(log, source, clock=clock) as node:
        await node.create("/w", session_id=S1)
        await quiet()
    async with ScriptedSource("v1") as source, open_node(log, source, clock=clock) as node:
        with pytest.raises(LocalProtocolError, match="no agent"):
            await node.agents.configure(S1, "session/set_mode", {"modeId": "plan"})


async def test_the_meta_of_a_prompt_reaches_the_agent_also_from_the_queue() -> None:
    source = HandSource()
    async with open_node(MemoryEventLog(), source, clock=ManualClock()) as node:
        await node.create("/", session_id=S1)
        agent = await source.agent()
        await agent.greet()
        meta = Raw(b'{"traceparent":"00-1-2-01","mine":[1]}')
        for prompt_id in ("p0", "p1"):
            given = Prompt(at=1, prompt_id=PromptId(prompt_id), content=content("hello"), meta=meta)
            await node.submit(S1, given)
        for _ in range(2):
            asked = await agent.answer("session/prompt", {"stopReason": "end_turn"})
            assert json.decode(asked.params)["_meta"] == {"traceparent": "00-1-2-01", "mine": [1]}
