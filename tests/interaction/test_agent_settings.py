"""An agent's options, their values, and the operator's rules that answer for the users."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import json
from tests.support.driving import World

from turnwire.hosting.permission_rules import Rules
from turnwire.ids import SessionId
from turnwire.log import MemoryEventLog
from turnwire.runtime.node import open_node
from turnwire.session import events as ev
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
