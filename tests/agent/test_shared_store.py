"""One session in two processes: no process overwrites changes it has not seen, and a deleted session stays deleted.

An agent with a separate store represents another process: they share the folder, and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.agent.kit import CWD, DIALECTS, V1, V2, Driver, Json, served
from tests.support.acp_client import update_of

from turnwire.agent import Agent, AgentFailure, FolderStore, Kept, MemoryStore, Mode, Session, Turn
from turnwire.agent.store import SessionStore
from turnwire.hosting.services.roots import MARK

pytestmark = pytest.mark.anyio

each_dialect = pytest.mark.parametrize("hello", DIALECTS.values(), ids=DIALECTS.keys())


def counting(store: SessionStore, go: anyio.Event | None = None) -> Agent:
    """Counts its turns in the state, and names the session after the first. `wait` waits for `go`."""
    agent, opened = Agent("counting", store=store), list[str]()

    @agent.opened
    def open_it(session: Session) -> None:
        session.modes = [Mode("ask", "Ask"), Mode("plan", "Plan")]
        opened.append(session.id)
        session.state["opened"] = f"{id(agent)} {len(opened)}"

    @agent.prompt
    async def answer(turn: Turn) -> None:
        count = turn.session.state.get("n", 0) + 1
        turn.session.title = turn.session.title or turn.text
        if go is not None and turn.text == "wait":
            turn.say("waiting")
            await go.wait()
        turn.session.state["n"] = count
        turn.say(f"{turn.session.mode} {turn.session.state['n']}")

    return agent


async def resume(driver: Driver, session: str, cwd: str = CWD) -> Any:
    return await driver.call("session/resume", sessionId=session, cwd=cwd, mcpServers=[])


async def choose(driver: Driver, session: str, mode: str) -> None:
    kind = {"type": "id"} if driver.version == 2 else {}
    await driver.call("session/set_config_option", sessionId=session, configId="mode", value=mode, **kind)


async def stored(folder: Path, session: str) -> Kept:
    found = await FolderStore(folder).load(session)
    assert found is not None
    return found


def texts(kept: Kept) -> list[str]:
    """Return the text of all its turns."""
    lines = [each.decode() for each in kept.history if b"agent_message_chunk" in each]
    return [each.rsplit('"text":"', 1)[1].split('"')[0] for each in lines]


@each_dialect
async def test_a_process_that_only_looked_writes_nothing(hello: Json, tmp_path: Path) -> None:
    async with served(counting(FolderStore(tmp_path)), hello) as looks:
        async with served(counting(FolderStore(tmp_path)), hello) as works:
            session = await works.new()
            await works.take_turn(session, "first")
            # Neither another directory nor an author's action on opening is a change.
            await resume(looks, session, "/")
            for _ in range(3):
                await works.take_turn(session)
            await choose(works, session, "plan")
        before = await stored(tmp_path, session)
        assert (before.state["n"], before.mode, before.title) == (4, "plan", "first")
    assert await stored(tmp_path, session) == before


@each_dialect
async def test_a_process_goes_on_with_what_another_one_kept_since(hello: Json, tmp_path: Path) -> None:
    async with served(counting(FolderStore(tmp_path)), hello) as two:
        async with served(counting(FolderStore(tmp_path)), hello) as one:
            session = await one.new()
            await resume(two, session)
            await two.notify("session/ready", sessionId=session)
            await one.take_turn(session, "named by one")
            await two.take_turn(session)
            await one.take_turn(session)
            await choose(one, session, "plan")
        await two.take_turn(session)
        assert two.said() == "ask 2plan 4"
        titles = [each["title"] for each in two.updates("session_info_update") if "title" in each]
        assert titles[-1] == "named by one"
        options = two.updates("config_option_update")[-1]["configOptions"]
        assert options[0]["currentValue"] == "plan"
    found = await stored(tmp_path, session)
    assert texts(found) == ["ask 1", "ask 2", "ask 3", "plan 4"]
    assert (found.state["n"], found.title) == (4, "named by one")


async def test_a_choice_and_a_turn_elsewhere_are_both_kept(tmp_path: Path) -> None:
    async with (
        served(counting(FolderStore(tmp_path)), V1) as one,
        served(counting(FolderStore(tmp_path)), V2) as two,
    ):
        session = await one.new()
        await resume(two, session)
        await one.take_turn(session)
        await choose(two, session, "plan")
        await two.take_turn(session)
        assert two.said() == "plan 2"
    assert (await stored(tmp_path, session)).mode == "plan"


async def test_of_two_turns_at_the_same_time_the_state_of_the_first_to_end_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    go = anyio.Event()
    async with (
        served(counting(FolderStore(tmp_path), go), V1) as slow,
        served(counting(FolderStore(tmp_path)), V1) as fast,
    ):
        session = await slow.new()
        await resume(fast, session)
        request = await slow.prompt(session, "wait")
        await slow.update("agent_message_chunk")
        for _ in range(2):
            await fast.take_turn(session)
        go.set()
        assert await slow.end_of(request) == "end_turn"
        await slow.take_turn(session)
        assert slow.said() == "waitingask 1ask 3"
    found = await stored(tmp_path, session)
    assert found.state["n"] == 3
    said = "".join(texts(found))
    assert [said.count(f"ask {number}") for number in (1, 2, 3)] == [2, 1, 1]
    assert caplog.text.count("changed the state of session") == 1


@each_dialect
async def test_what_another_process_deleted_stays_deleted(
    hello: Json, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(counting(FolderStore(tmp_path)), hello) as deletes:
        async with served(counting(FolderStore(tmp_path)), hello) as has_it:
            quiet, busy = await has_it.new(), await has_it.new()
            await has_it.take_turn(quiet)
            for each in (quiet, busy):
                await deletes.call("session/delete", sessionId=each)
            assert await has_it.take_turn(busy) == "end_turn"
        assert (await deletes.call("session/list"))["sessions"] == []
    assert os.listdir(tmp_path) == [MARK]
    assert "was deleted meanwhile" in caplog.text


async def test_a_session_whose_author_refuses_to_open_it_again_is_left_as_it_was(tmp_path: Path) -> None:
    async with served(counting(FolderStore(tmp_path)), V1) as driver:
        session = await driver.new()
        await driver.take_turn(session)
    before, agent = await stored(tmp_path, session), counting(FolderStore(tmp_path))

    @agent.opened
    def refuse(session: Session) -> None:
        session.state.clear()
        raise AgentFailure("not today")

    async with served(agent, V1) as driver:
        await driver.fails("session/resume", sessionId=session, cwd="/", mcpServers=[])
    assert await stored(tmp_path, session) == before


class Unsure(MemoryStore):
    """A store that saves the changes of the second turn, and reports that it did not."""

    has_failed = False

    async def save(self, record: Kept) -> None:
        await super().save(record)
        if record.state.get("n") == 2 and not self.has_failed:
            self.has_failed = True
            raise OSError("the disk has gone")


async def test_a_save_that_was_made_but_seemed_to_fail_is_no_change_of_another_process(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Unsure()
    async with served(counting(store), V1) as driver:
        session = await driver.new()
        for _ in range(3):
            await driver.take_turn(session)
        assert driver.said() == "ask 1ask 2ask 3"
    found = await store.load(session)
    assert found is not None
    assert found.state["n"] == 3
    assert texts(found) == ["ask 1", "ask 2", "ask 3"]
    assert store.has_failed
    assert "changed the state" not in caplog.text


# -- what a lost process left open ---------------------------------------------------------------------------------


def called(name: str, **members: Any) -> bytes:
    status = "".join(f',"{key}":"{value}"' for key, value in members.items())
    return f'{{"sessionUpdate":"tool_call_update","toolCallId":"{name}"{status}}}'.encode()


async def replayed(driver: Driver, session: str) -> list[Json]:
    """Return the tool call updates that a client receives when it loads a session."""
    start = len(driver.frames)
    if driver.version == 2:
        params: Json = {"replayFrom": {"type": "start"}}
        await driver.call("session/resume", sessionId=session, cwd=CWD, **params)
    else:
        await driver.call("session/load", sessionId=session, cwd=CWD, mcpServers=[])
    return [each for each in map(update_of, driver.frames[start:]) if "toolCallId" in each]


def ends(calls: Sequence[Json]) -> dict[str, str]:
    """The last status of each call."""
    return {each["toolCallId"]: each["status"] for each in calls if each.get("status")}


@each_dialect
async def test_a_tool_call_that_lost_its_process_is_told_with_an_end(hello: Json, tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    await store.save(Kept(id="killed", cwd=CWD))
    history = [
        called("done", title="Done", status="pending"),
        called("done", status="completed"),
        called("done", title="Done and named again"),
        called("asked", title="Asked", status="pending"),
        called("silent", title="Says no status"),
        called("running", title="Running", status="in_progress"),
    ]
    await store.append("killed", history)
    agent = counting(FolderStore(tmp_path))

    @agent.command("call", "Call a tool while others load the session")
    async def call(turn: Turn, arguments: str) -> None:
        async with turn.tool("Another"):
            await anyio.sleep_forever()

    async with served(agent, hello) as driver, served(agent, hello) as joins:
        calls = await replayed(driver, "killed")
        assert ends(calls) == {"done": "completed", "asked": "failed", "silent": "failed", "running": "failed"}
        assert [each["status"] for each in calls[-3:]] == ["failed"] * 3
        await driver.prompt("killed", "/call")
        live = await driver.update("tool_call_update" if driver.version == 2 else "tool_call", title="Another")
        # A running call has an owner that ends it.
        assert ends(await replayed(joins, "killed"))[live["toolCallId"]] == "pending"
    found = await FolderStore(tmp_path).load("killed")
    assert found is not None
    assert list(found.history[: len(history)]) == history
    assert sum(b"failed" in each for each in found.history) == 0
