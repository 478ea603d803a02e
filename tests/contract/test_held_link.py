"""The link to a held agent keeps the contract of links, over a holder and an agent that only copies."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio
import pytest

from turnwire.hosting.base import FrameLink
from turnwire.hosting.held import HeldProcess, Holders
from turnwire.hosting.stdio import StdioLink
from turnwire.limits import Limits
from turnwire_testing.contracts.frame_link import CHECKS, Check, Pair
from turnwire_testing.patience import WAIT_S

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="opens pipes by their names")]

COPY = 'exec 3<"$1" 4>"$2"; echo ready; cat <&3 4>&- & exec 3<&- 1>&-; exec cat >&4 4>&-'
"""An agent whose output is one named pipe, and whose input goes to another. First it says that it has both."""
ECHO = ("cat",)


@pytest.mark.parametrize("check", CHECKS, ids=str)
async def test_the_link_to_a_held_agent_keeps_the_contract(check: Check, tmp_path: Path) -> None:
    agents: list[HeldProcess] = []

    async def open_pair() -> Pair:
        limits = Limits(link_buffer_bytes=64 * 1024, stop_eof_s=0.1, stop_term_s=0.1, stop_kill_s=0.1)
        inward, outward = tmp_path / "inward", tmp_path / "outward"
        for each in (inward, outward):
            os.mkfifo(each)
        # For reading and writing, so that no end waits for the other one to be opened.
        ends = [os.open(each, os.O_RDWR | os.O_NONBLOCK) for each in (inward, outward)]
        agent = await start(tmp_path, "sh", "-c", COPY, "sh", str(inward), str(outward), limits=limits)
        agents.append(agent)
        far = StdioLink(os.open(outward, os.O_RDONLY), os.open(inward, os.O_WRONLY), limits)
        assert await frames(agent.held, 1) == [b"ready"]
        for each in ends:
            os.close(each)
        return agent.held, far

    await check(open_pair)
    for each in agents:
        await each.aclose()


async def start(folder: Path, *command: str, limits: Limits | None = None, hold_s: float = WAIT_S) -> HeldProcess:
    holders = Holders(folder / "held", hold_s)
    agent = await holders.start(command, cwd="/", env=dict(os.environ), limits=limits or Limits())
    assert isinstance(agent, HeldProcess)
    return agent


async def found(folder: Path) -> HeldProcess:
    """Connect to the one holder that was left, as the next process does."""
    [agent] = await Holders(folder / "held", WAIT_S).find(Limits(), [])
    return agent


async def frames(link: FrameLink, count: int) -> list[bytes]:
    received: list[bytes] = []
    with anyio.fail_after(WAIT_S):
        while len(received) < count:
            received += await link.receive()
    return received


async def test_frames_are_received_again_until_they_are_acknowledged(tmp_path: Path) -> None:
    first = await start(tmp_path, *ECHO)
    for number in range(5):
        first.held.send_nowait(b"%d" % number)
        assert await frames(first.held, 1) == [b"%d" % number]
    first.held.acknowledge(3)
    first.held.leave()
    second = await found(tmp_path)
    assert (second.pid, second.held.acknowledged) == (first.pid, 3)
    assert await frames(second.held, 2) == [b"3", b"4"]
    await second.aclose()


async def test_notes_and_frames_of_one_step_are_stored_together(tmp_path: Path) -> None:
    first = await start(tmp_path, *ECHO)
    first.held.note("a", b"1")
    first.held.note("b", b"2")
    first.held.send_nowait(b"x")
    first.held.note("b", None)
    await first.held.stored()
    first.held.leave()
    second = await found(tmp_path)
    assert dict(second.held.notes) == {"a": b"1"}
    assert await frames(second.held, 1) == [b"x"]
    await second.aclose()


async def test_a_leftover_of_a_killed_holder_is_removed(tmp_path: Path) -> None:
    agent = await start(tmp_path, *ECHO)
    agent.held.kill()
    with anyio.fail_after(WAIT_S):
        assert (await agent.exited()).exit_code is None
    assert list((tmp_path / "held").iterdir())
    assert await Holders(tmp_path / "held", WAIT_S).find(Limits(), []) == []
    assert not list((tmp_path / "held").iterdir())
    await agent.aclose()


async def test_a_folder_with_a_long_name_will_do(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    agent = await start(folder, *ECHO)
    agent.held.leave()
    await (await found(folder)).aclose()
