"""The scripted agent as a real process: pipes, exits, signals, floods, grandchildren."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from threading import Event
from typing import NamedTuple

import pytest
from anyio import fail_after, to_thread

from turnwire.errors import LinkBroken
from turnwire.hosting.stdio import StdioLink
from turnwire_testing import BareClient
from turnwire_testing.patience import WAIT_S
from turnwire_testing.scripted.client import prompt_params

pytestmark = pytest.mark.anyio

AGENT = [sys.executable, "-m", "turnwire_testing.agent"]
INITIALIZE = b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}\n'
MIB = 1024 * 1024


class Running(NamedTuple):
    process: subprocess.Popen[bytes]
    link: StdioLink
    stdout: int
    client: BareClient
    session_id: str

    async def start(self, script: str) -> int | str:
        return await self.client.request("session/prompt", prompt_params(self.session_id, script))

    async def returncode(self) -> int:
        with fail_after(WAIT_S):
            return await to_thread.run_sync(self.process.wait, abandon_on_cancel=True)


def spawn(*arguments: str) -> tuple[subprocess.Popen[bytes], int, int]:
    """The agent as a child, and our ends of its standard output and input."""
    (stdin_out, stdin_in), (stdout_out, stdout_in) = os.pipe(), os.pipe()
    process = subprocess.Popen([*AGENT, *arguments], stdin=stdin_out, stdout=stdout_in, stderr=subprocess.PIPE)
    os.close(stdin_out)
    os.close(stdout_in)
    return process, stdout_out, stdin_in


@asynccontextmanager
async def running(*arguments: str, version: int = 1) -> AsyncGenerator[Running]:
    process, stdout, stdin = spawn(*arguments)
    link = StdioLink(stdout, stdin)
    try:
        client = BareClient(link)
        await client.initialize(version)
        yield Running(process, link, stdout, client, await client.new_session())
    finally:
        await link.aclose()
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


@pytest.mark.parametrize(("profile", "version"), [("v1", 1), ("v1plus", 1), ("v2", 2)])
async def test_a_turn_over_real_pipes_and_exit_0_when_stdin_closes(profile: str, version: int) -> None:
    async with running("--profile", profile, version=version) as agent:
        end = await agent.client.prompt(agent.session_id, "hello over pipes")
        assert "end_turn" in str(end)
        assert agent.client.text() == "hello over pipes"
        await agent.link.aclose()
        assert await agent.returncode() == 0


async def test_stdin_that_closes_in_the_middle_of_a_turn_ends_the_agent() -> None:
    async with running() as agent:
        await agent.start("say 1 x\nnever")
        await agent.client.update("agent_message_chunk")
        await agent.link.aclose()
        assert await agent.returncode() == 0


@pytest.mark.parametrize("code", [0, 3])
async def test_an_exit_has_its_code_and_everything_said_before_arrives(code: int) -> None:
    async with running() as agent:
        await agent.start(f"flood 2000\nexit {code}")
        with pytest.raises(LinkBroken):
            await agent.client.until(lambda _: False)
        assert len(agent.client.updates()) == 2000
        assert await agent.returncode() == code


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGABRT"])
async def test_a_signal_ends_it_by_that_signal(name: str) -> None:
    async with running() as agent:
        await agent.start(f"say 1 last\nsignal {name}")
        with pytest.raises(LinkBroken):
            await agent.client.until(lambda _: False)
        assert agent.client.text() == "last"
        assert await agent.returncode() == -signal.Signals[name]


async def test_a_flood_arrives_complete_and_does_not_grow_the_agent() -> None:
    async with running() as agent:
        before = peak_memory(agent.process.pid)
        request_id = await agent.start("flood 20000 2000")
        await agent.client.update("agent_message_chunk")
        wait_until_stuck(agent.process.pid, agent.stdout)
        # 40 MB are to come without a reader; the queue inside the agent is bounded.
        assert peak_memory(agent.process.pid) - before < 8 * MIB
        await agent.client.until(lambda frame: frame.get("id") == request_id and "result" in frame)
        numbers = [int(each["content"]["text"].split()[0]) for each in agent.client.updates()]
        assert numbers == list(range(20_000))


@pytest.mark.parametrize("pipes", ["held", "closed"])
async def test_a_fork_leaves_a_grandchild_that_outlives_the_agent(pipes: str) -> None:
    async with running() as agent:
        await agent.client.prompt(agent.session_id, f"fork {pipes}")
        grandchild = int(agent.client.text())
        try:
            assert os.getsid(grandchild) == grandchild
            has_pipe = standard_output(grandchild) == standard_output(agent.process.pid)
            assert has_pipe == (pipes == "held")
            agent.process.kill()
            await agent.returncode()
            os.kill(grandchild, 0)
        finally:
            with suppress(ProcessLookupError):
                os.kill(grandchild, signal.SIGKILL)


async def test_a_gate_opens_when_its_file_appears(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with running() as agent:
        request_id = await agent.start(f"gate {gate}\nsay 1 through")
        assert (await agent.client.call("_echo", {}))["result"] == {}
        assert agent.client.text() == ""
        gate.touch()
        await agent.client.until(lambda frame: frame.get("id") == request_id and "result" in frame)
        assert agent.client.text() == "through"


def test_a_client_that_does_not_read_ends_it_without_a_traceback() -> None:
    with subprocess.Popen(AGENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, complaint = process.communicate(INITIALIZE, timeout=WAIT_S)
        assert (process.returncode, complaint) == (0, b"")


def peak_memory(pid: int) -> int:
    """The most memory a process has held so far, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    [kilobytes] = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(kilobytes) * 1024


def wait_until_stuck(pid: int, stdout: int) -> None:
    """Return once a process sleeps at a full pipe. Our own event loop is blocked, so nothing reads."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        [waiting] = struct.unpack("i", fcntl.ioctl(stdout, termios.FIONREAD, b"\0" * 4))
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
        if waiting > 60_000 and state == "S":
            return
        Event().wait(0.02)
    pytest.fail("the agent did not fill its pipe")


def standard_output(pid: int) -> str:
    """Return the type of a process's standard output, by name."""
    return os.readlink(f"/proc/{pid}/fd/1")
