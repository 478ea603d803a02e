"""Every turn has exactly one end, whatever an author's function does, and no later output is attributed to it.

Hypothesis writes the functions: they send text and thoughts, leave tools open, ask, spawn work that outlives the
turn, raise, cancel themselves, swallow cancellation, return nonsense, hang. The client cancels somewhere in the
middle.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from typing import Any, NamedTuple

import anyio
import anyio.lowlevel
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.agent.kit import DIALECTS, Driver, Json, check, served, word_of
from tests.support.acp_client import is_answer, update_of

from turnwire.agent import Agent, AgentFailure, Turn

FINAL = {"completed", "failed", "cancelled"}
REASONS = {"end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"}

SAYING = [
    "say",
    "think",
    "plan",
    "notify",
    "tool",
    "open tool",
    "start tool",
    "failing tool",
    "denied tool",
    "spawn",
]
WAITING = ["checkpoint", "ask", "await say", "children", "swallow", "shield"]
ENDING = ["return", "reason", "nonsense", "fail", "break", "group", "cancel itself", "hang"]


class Behaviour(NamedTuple):
    """One function, and the time at which its client cancels."""

    steps: list[str]
    ending: str
    cancel_at: int | None
    """The step before which the client cancels; None for no cancel."""


behaviours = st.builds(
    Behaviour,
    st.lists(st.sampled_from(SAYING + WAITING), max_size=8),
    st.sampled_from(ENDING),
    st.none() | st.integers(0, 8),
)


class Author:
    """Performs a behaviour."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.reached = anyio.Event()
        self.over = anyio.Event()
        self.agent = Agent("any")
        self.agent.prompt(self.answer)

    async def answer(self, turn: Turn) -> Any:
        if turn.text == "plain":
            return None
        for index, step in enumerate(self.behaviour.steps):
            if index == self.behaviour.cancel_at:
                self.reached.set()
            await self.step(turn, step)
        self.reached.set()
        return await self.end(turn)

    async def step(self, turn: Turn, step: str) -> None:
        match step:
            case "say":
                turn.say("said ")
            case "think":
                turn.think("hm")
            case "plan":
                turn.plan(["one"])
            case "notify":
                turn.session.notify({"sessionUpdate": "usage_update", "used": 1, "size": 2}, 2)
            case "tool" | "failing tool" | "denied tool":
                await self.tool(turn, step)
            case "open tool":
                turn.tool("Open").announce()
            case "start tool":
                turn.tool("Started").start()
            case "spawn":
                turn.session.background(self.speak_late, turn, turn.tool("Spawned"))
            case _:
                await self.wait(turn, step)

    async def tool(self, turn: Turn, step: str) -> None:
        try:
            async with turn.tool("Tool") as call:
                if step == "denied tool":
                    call.deny()
                call.say("output")
                await anyio.lowlevel.checkpoint()
                if step == "failing tool":
                    raise ZeroDivisionError
        except ZeroDivisionError:
            pass

    async def wait(self, turn: Turn, step: str) -> None:
        match step:
            case "ask":
                async with turn.tool("Asking") as call:
                    await turn.ask(call)
            case "await say":
                await turn.say("waited ")
            case "children":
                async with anyio.create_task_group() as tasks:
                    for _ in range(2):
                        tasks.start_soon(self.tool, turn, "tool")
            case "swallow":
                try:
                    await anyio.lowlevel.checkpoint()
                except BaseException:  # noqa: BLE001  what a careless author writes
                    turn.say("swallowed ")
            case "shield":
                with anyio.CancelScope(shield=True):
                    await anyio.lowlevel.checkpoint()
                    turn.say("shielded ")
            case _:
                await anyio.lowlevel.checkpoint()

    async def speak_late(self, turn: Turn, call: Any) -> None:
        await self.over.wait()
        turn.say("late")
        call.say("late")
        call.fail("late")
        turn.think("late")

    async def end(self, turn: Turn) -> Any:
        match self.behaviour.ending:
            case "reason":
                return "refusal"
            case "nonsense":
                return {"not": "a reason"}.get("x", 42)
            case "fail":
                raise AgentFailure("on purpose", jsonrpc=-32099)
            case "break":
                raise KeyError("unexpected")
            case "group":
                raise ExceptionGroup("several", [ValueError(), AgentFailure("in a group")])
            case "cancel itself":
                raise asyncio.CancelledError
            case "hang":
                await anyio.sleep_forever()
            case _:
                return None


async def drive(behaviour: Behaviour, hello: Json) -> None:
    author = Author(behaviour)
    cancels = behaviour.cancel_at is not None or behaviour.ending == "hang"
    async with served(author.agent, hello, checks=False) as driver:
        session = await driver.new()
        request = await driver.prompt(session, "odd")
        if cancels:
            await author.reached.wait()
            await driver.notify("session/cancel", sessionId=session)
        end = await driver.end_of(request)
        at = place_of_end(driver, request)
        author.over.set()
        # Another turn goes its own way, and has its own end.
        assert await driver.take_turn(session, "plain") == "end_turn"
        await driver.call("session/list")
        check_end(driver, request, end, is_cancelled=cancels)
        check_after(driver, at)
        check_tools(driver, at)
    check(driver)


def place_of_end(driver: Driver, request: int | str) -> int:
    for index, each in enumerate(driver.frames):
        if word_of(each) == "idle" if driver.version == 2 else is_answer(each, request):
            return index
    raise AssertionError("the turn has no end")


def check_end(driver: Driver, request: int | str, end: str | Json, *, is_cancelled: bool) -> None:
    assert isinstance(end, dict) or end in REASONS
    assert len([each for each in driver.frames if is_answer(each, request)]) == 1
    if driver.version == 2:
        assert driver.kinds().count("idle") == 2
        states = [each["state"] for each in driver.updates("state_update")]
        assert states[0] == "running"
        assert all(one != other for one, other in pairwise(states))
    marks = [each for each in driver.updates("turn_complete") if each["promptRequestId"] == request]
    gets = driver.version == 1 and "turnComplete" not in str(driver.hello)
    assert (len(marks), len(driver.updates("turn_complete"))) == ((1, 2) if gets else (0, 0))
    if marks:
        assert marks[0]["stopReason"] == (end if isinstance(end, str) else "refusal")
    if is_cancelled and isinstance(end, dict):
        # It had ended by itself when the cancel came.
        assert end["code"] in {-32603, -32099}


def check_after(driver: Driver, at: int) -> None:
    """Check that output after the end belongs to the next turn, or is marked as late."""
    begun = next(
        (index for index, each in enumerate(driver.frames) if index > at and word_of(each) == "user_message"),
        len(driver.frames),
    )
    for each in driver.frames[at + 1 : begun]:
        update = update_of(each)
        if update and update["sessionUpdate"] not in {"state_update", "turn_complete", "session_info_update"}:
            assert update.get("_meta", {}).get("turnwire", {}).get("late") is True, update
    late = [each for each in driver.updates() if "late" in str(each.get("content"))]
    assert all(each["_meta"]["turnwire"]["late"] for each in late)


def check_tools(driver: Driver, at: int) -> None:
    """Each call is announced before anything else of it, and has one final status before the end."""
    finals: Counter[str] = Counter()
    seen: set[str] = set()
    for index, frame in enumerate(driver.frames):
        update = update_of(frame)
        call = update.get("toolCallId")
        if call is None:
            continue
        is_late = update.get("_meta", {}).get("turnwire", {}).get("late")
        if call not in seen and not is_late:
            assert update["status"] == "pending"
            assert update["title"]
        seen.add(call)
        if update.get("status") in FINAL and not is_late:
            finals[call] += 1
            assert index < at
    assert all(count == 1 for count in finals.values())
    announced = {
        each["toolCallId"]
        for each in driver.updates("tool_call", "tool_call_update")
        if each.get("status") == "pending" and "late" not in str(each.get("_meta"))
    }
    assert set(finals) == announced


@pytest.mark.parametrize("name", DIALECTS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(behaviour=Behaviour(["say", "open tool", "spawn", "ask"], "hang", 3))
@example(behaviour=Behaviour(["swallow", "shield", "start tool"], "return", 0))
@example(behaviour=Behaviour(["children", "spawn"], "cancel itself", None))
@example(behaviour=Behaviour(["children", "tool", "swallow"], "cancel itself", 1))
@given(behaviour=behaviours)
def test_whatever_a_function_does_its_turn_ends_once(name: str, behaviour: Behaviour) -> None:
    anyio.run(drive, behaviour, DIALECTS[name])
