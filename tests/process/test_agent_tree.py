"""No orphans of a node: an agent's processes end with its session, its agent and the daemon, however they end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from tests.interop.node_session import WAIT_S, Talk
from tests.process.hosted import hosted, scripted
from tests.process.starting import Watched, needs_linux, parent_of, watching

from turnwire.hosting.process import AgentProcess
from turnwire.limits import Limits

pytestmark = [pytest.mark.anyio, needs_linux, pytest.mark.guarantee("G14")]


def wrapped(command: list[str]) -> list[str]:
    """The agent below a shell, as a package runner starts it."""
    return ["sh", "-c", '"$@"; exit $?', "sh", *command]


def child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


async def watch_tree(process: AgentProcess, talk: Talk, watched: Watched) -> None:
    """Have the agent start a grandchild, and watch the guard, the wrapper, the agent and the grandchild."""
    grandchild = int(await talk.said("fork held"))
    pids = {parent_of(process.pid), process.pid, child_of(process.pid), grandchild}
    assert len(pids) == 4
    watched.add(*pids)


@pytest.mark.parametrize("deaf", [False, True])
async def test_the_tree_goes_with_the_node(deaf: bool) -> None:
    limits = Limits(stop_eof_s=0.2, stop_term_s=0.2)
    with watching() as tree:
        async with hosted(wrapped(scripted()), limits=limits) as host:
            talk = await host.talk()
            await watch_tree(host.source.newest, talk, tree)
            if deaf:
                prompt_id = await talk.prompt("ignore-signal SIGTERM\nignore-cancel\nsay 1 x\nnever")
                await talk.until_said("x", prompt_id)
        await tree.gone()


async def test_the_tree_goes_at_once_when_the_node_is_lost() -> None:
    """Another node may own its sessions by now, so nothing is asked of it first."""
    async with hosted(wrapped(scripted()), limits=Limits(stop_eof_s=WAIT_S, stop_term_s=WAIT_S)) as host:
        talk = await host.talk()
        with watching() as tree:
            await watch_tree(host.source.newest, talk, tree)
            prompt_id = await talk.prompt("ignore-signal SIGTERM\nignore-cancel\nsay 1 x\nnever")
            await talk.until_said("x", prompt_id)
            before = (await host.node.log.head(talk.session_id)).head
            host.node.lose()
            await tree.gone()
        assert (await host.node.log.head(talk.session_id)).head == before


DAEMON = """
import sys, anyio
from turnwire.session.inputs import Prompt
from turnwire.log import MemoryEventLog
from turnwire.runtime.follow import start_of
from turnwire.runtime.node import open_node
from turnwire.hosting.source import ProcessSource
from turnwire.wire.jsonrpc import raw

async def main():
    log = MemoryEventLog()
    async with open_node(log, ProcessSource(sys.argv[2:])) as node:
        session_id = await node.create(sys.argv[1])
        script = f"fork held\\nterminal sh -c 'echo $$ > {sys.argv[1]}/part; mv part pid; exec sleep 600'"
        await node.submit(session_id, Prompt(at=1, prompt_id="p", content=raw([{"type": "text", "text": script}])))
        async for page in node.follow(session_id, start_of((await log.head(session_id)).epoch)):
            for frame in page.frames:
                if b"agent_message_chunk" in frame:
                    print(frame.decode().split('"text":"')[1].split('"')[0])
                    print((await node.agents.explain(session_id)).agent.pid, flush=True)

anyio.run(main)
"""


@contextmanager
def daemon_in(folder: Path, command: list[str]) -> Generator[subprocess.Popen[bytes]]:
    """Run a process that runs a node, with one session in a folder."""
    with subprocess.Popen(
        [sys.executable, "-c", DAEMON, str(folder), *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as daemon:
        try:
            yield daemon
        finally:
            daemon.kill()


@pytest.mark.parametrize("number", ["SIGKILL", "SIGTERM"])
async def test_the_tree_and_the_terminals_go_when_the_daemon_is_killed(number: str, tmp_path: Path) -> None:
    with daemon_in(tmp_path, wrapped(scripted())) as daemon, watching() as tree:
        assert daemon.stdout is not None
        read = daemon.stdout.readline
        with anyio.fail_after(WAIT_S):
            grandchild, wrapper = [int(await anyio.to_thread.run_sync(read)) for _ in range(2)]
            note = tmp_path / "pid"
            while not note.exists():
                await anyio.lowlevel.checkpoint()
        terminal = int(note.read_text())
        tree.add(parent_of(wrapper), wrapper, child_of(wrapper), grandchild, parent_of(terminal), terminal)
        if number == "SIGKILL":
            daemon.kill()
        else:
            daemon.terminate()
        await tree.gone()
