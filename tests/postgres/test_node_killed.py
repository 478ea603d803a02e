"""A node is killed with its turns running: another one ends them, and queued prompts continue there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

import anyio
import pytest
from tests.support.driving import Terminal, check_ends, events_of, of
from tests.support.postgres import PostgresServer

from turnwire.clock import SystemClock
from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.log.owners import NodeIdentity
from turnwire.log.postgres import PostgresEventLog, open_postgres_log
from turnwire.runtime.node import open_node
from turnwire.session import events as ev
from turnwire_testing.patience import WAIT_S
from turnwire_testing.scripted.agent import ScriptedSource

pytestmark = pytest.mark.anyio

SESSIONS = 40
FIRST = """
import sys, anyio
from turnwire.session.inputs import Prompt
from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.log import Durability
from turnwire.log.owners import NodeIdentity
from turnwire.log.postgres import open_postgres_log
from turnwire.runtime.node import open_node
from turnwire.hosting.source import ProcessSource
from turnwire.wire.jsonrpc import raw

async def main():
    node = NodeIdentity("first", "x", "", "", "first")
    opening = open_postgres_log(
        sys.argv[1], limits=Limits(), node=node, alone=False
    )
    async with opening as log:
        async with open_node(log, ProcessSource(sys.argv[3:]), owners=log.owners) as node:
            for number in range(int(sys.argv[2])):
                session_id = SessionId(f"n{number}")
                await node.create("/tmp", session_id=session_id)
                for prompt_id, text in (("p1", "never"), ("p2", "echo hello"), ("p3", "echo hello")):
                    content = raw([{"type": "text", "text": text}])
                    await node.submit(session_id, Prompt(at=1, prompt_id=prompt_id, content=content))
            print(log.owners.life, await log.owners.beat(), flush=True)
            await anyio.sleep_forever()

anyio.run(main)
"""


@contextmanager
def first_node(address: str) -> Generator[subprocess.Popen[bytes]]:
    """Run a process with a node that beats once, when all its turns run."""
    agent = [sys.executable, "-m", "turnwire_testing.agent"]
    command = [sys.executable, "-c", FIRST, address, str(SESSIONS), *agent]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


async def end_of(log: PostgresEventLog, session_id: SessionId, prompt_id: str) -> Terminal:
    with anyio.fail_after(WAIT_S):
        while True:
            for event in await events_of(log, session_id):
                if isinstance(event, Terminal) and event.prompt_id == prompt_id:
                    return event
            await SystemClock().sleep(0.02)


@pytest.mark.guarantee("G1", "G3", "G7")
async def test_turns_of_a_node_that_was_killed_end_with_node_lost_and_their_queues_go_on_elsewhere(
    postgres: PostgresServer,
) -> None:
    address = postgres.new_log()
    second = NodeIdentity("second", "x", "", "", "second")
    opening = open_postgres_log(address, limits=Limits(), node=second, alone=False)
    with first_node(address) as process:
        assert process.stdout is not None
        with anyio.fail_after(WAIT_S):
            life, beat = map(int, (await anyio.to_thread.run_sync(process.stdout.readline)).split())
        async with opening as log, ScriptedSource() as source, open_node(log, source, owners=log.owners) as node:
            await node.recovered()
            sessions = [SessionId(f"n{number}") for number in range(SESSIONS)]
            assert {await log.owners.owner(each) for each in sessions} == {life}
            seen = {each: await events_of(log, each) for each in sessions}
            process.kill()
            process.wait()
            await log.owners.beat()
            assert await log.owners.bury(life, beat)
            for session_id in sessions:
                last = await end_of(log, session_id, "p3")
                assert isinstance(last, ev.TurnCompleted)
                events = await events_of(log, session_id)
                assert events[: len(seen[session_id])] == seen[session_id], "what was seen stays"
                assert [(each.prompt_id, each.code) for each in of(events, ev.TurnFailed)] == [("p1", "node_lost")]
                check_ends(events)
                assert await log.owners.owner(session_id) == log.owners.life
