"""turnwire's own agents keep every rule that applies to them: the agent SDK, the built-in agent, the stdio front.

All are served in this process, so that each case has a new agent at once; the front is the real program, too,
with a real agent behind it, for a case of each part.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.daemons import Running, running_daemon

from turnwire.agent import Agent, AgentFailure, FolderStore, Turn
from turnwire.cli.relay import Connector, Relay, RelayProcess, socket_url
from turnwire.demo.agent import demo_agent
from turnwire.errors import LinkError
from turnwire.hosting.base import FrameLink
from turnwire.hosting.memory import MemoryLink, memory_pair
from turnwire.hosting.stdio import StdioLink
from turnwire.limits import Limits
from turnwire_check.case import Carrier, Case, Scene
from turnwire_check.catalogue import CASES
from turnwire_check.provocation import RECIPES
from turnwire_check.run import Bounds, Outcome, probe, run
from turnwire_check.tape import Tape
from turnwire_check.transport import Opener, OwnStdio, Transport, process_opener

pytestmark = pytest.mark.anyio

BOUNDS = Bounds()
"""The defaults of `turnwire check`."""
BYTES = ("v1.wire.split", "v1.wire.joined")
"""Judged where there are bytes: a link in this process has frames."""


class LinkTransport:
    """A link of this process."""

    def __init__(self, link: MemoryLink) -> None:
        self.tape = Tape()
        self._link = link

    async def send(self, raw: bytes) -> None:
        for line in filter(None, raw.split(b"\n")):
            await self._link.send(line)

    async def more(self, length: int) -> bool:
        await self.tape.longer_than(length)
        return len(self.tape.frames) > length

    async def read(self) -> None:
        try:
            while True:
                for frame in await self._link.receive():
                    self.tape.add(frame, is_ours=False)
        except LinkError:
            self.tape.end("it closed the link")


def link_opener(serve: Callable[[FrameLink], Coroutine[Any, Any, None]]) -> Opener:
    @asynccontextmanager
    async def opened() -> AsyncGenerator[Transport]:
        ours, theirs = memory_pair()
        transport = LinkTransport(ours)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve, theirs)
            tasks.start_soon(transport.read)
            yield transport
            await ours.aclose()

    return opened


async def judged(
    opener: Opener, cwd: Path, cases: list[Case], bounds: Bounds, prompts: dict[Scene, str] | None = None
) -> list[Outcome]:
    """Run as stdio; run cases for several clients as a server, since all links lead to one agent."""
    found: dict[str, Outcome] = {}
    carriers: tuple[Carrier, ...] = ("stdio", "websocket")
    for carrier in carriers:
        subject = await probe(opener, str(cwd), carrier=carrier, given=prompts, bounds=bounds)
        chosen = [each for each in cases if carrier in each.carriers and each.id not in found]
        found |= {each.case.id: each for each in await run(chosen, opener, subject, jobs=8)}
    return [found[each.id] for each in cases]


ADVISED = {"v1.turn-complete.asked-for"}
"""Our agents send `turn_complete` to every client that does not refuse it. The suite advises against that."""


def failed(outcomes: list[Outcome]) -> dict[str, str]:
    found = {each.case.id: each.words for each in outcomes if each.verdict in ("failed", "unanswered")}
    return {case: words for case, words in found.items() if case not in ADVISED}


def unscored(outcomes: list[Outcome]) -> list[str]:
    return [each.case.id for each in outcomes if each.verdict == "not_scored"]


def sdk_agent(folder: Path) -> Agent:
    """An agent of an author who uses all that the SDK has."""
    agent = Agent("sdk-agent", version="1", store=FolderStore(folder))

    @agent.prompt
    async def answer(turn: Turn) -> None:
        match turn.text.split(" ", 1)[0]:
            case "ask":
                async with turn.tool("Edit a file", kind="edit") as call:
                    await turn.ask(call)
            case "tool":
                async with turn.tool("Look", kind="read", locations=["/tmp/notes.txt"]):
                    turn.say("looking")
            case "wait":
                turn.say("waiting")
                await anyio.sleep_forever()
            case "plan":
                turn.plan(["look", "tell"])
            case "fail":
                turn.say("so far")
                raise AgentFailure("it failed")
            case _:
                turn.say(f"You said: {turn.text}")

    return agent


PROMPTS: dict[Scene, str] = {"wait": "wait", "ask": "ask", "tool": "tool", "fail": "fail", "plan": "plan"}


async def test_agents_of_the_sdk_keep_every_rule_that_applies(tmp_path: Path) -> None:
    cases = [each for each in CASES.values() if each.id not in BYTES]
    outcomes = await judged(link_opener(sdk_agent(tmp_path / "s").serve), tmp_path, cases, BOUNDS, PROMPTS)
    assert failed(outcomes) == {}
    assert len([each for each in outcomes if each.verdict == "passed"]) > 100


NOT_BUILT_IN = {
    "v1.init.same-version",  # Its newest is 2.
    *("v1.auth.unknown-method", "v1.auth.required"),  # It wants no login.
    "v2.auth.login",
    "v1.turn.audio",  # It takes none.
    "v1.elicit.own-ids",  # It sends nobody to an address,
    "v1.extension.named",  # has no methods of its own,
    "v2.resume.no-notices",  # tells no notices in its turns,
    "v1.mode.agrees",  # and has its mode as the only option.
    *(each for each in CASES if each.startswith(("v1.child.a", "v1.child.s", "v2.child."))),  # No child sessions.
    *(each for each in CASES if each.startswith("v2.background.")),  # Nothing that it does goes on.
}


async def test_the_built_in_agent_keeps_every_rule_that_applies(tmp_path: Path) -> None:
    cases = [each for each in CASES.values() if each.id not in BYTES]
    outcomes = await judged(link_opener(demo_agent().serve), tmp_path, cases, BOUNDS)
    assert failed(outcomes) == {}
    assert set(unscored(outcomes)) == NOT_BUILT_IN


def front_opener(daemon: Running) -> Opener:
    """Open the relay of `turnwire stdio` in this process, at pipes as a client has them."""

    async def serve(link: StdioLink) -> None:
        way = Connector(socket_url(daemon.url), daemon.token, Limits())
        await RelayProcess(way, Relay(), link, Limits()).run()
        await link.aclose()

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Transport]:
        (there_out, there_in), (back_out, back_in) = os.pipe(), os.pipe()
        transport = OwnStdio(back_out, there_in)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve, StdioLink(there_out, back_in))
            tasks.start_soon(transport.read_lines)
            yield transport
            os.close(there_in)
        os.close(back_out)

    return opened


AT_PIPES = {
    *(each for each in CASES if each.startswith(("v1.child.", "v2.child.", "v2.background."))),
    # Cases that need a v2 agent, see `test_own_servers.py`.
    *("v1.init.same-version", "v1.auth.unknown-method", "v1.auth.required"),  # As the built-in agent.
    "v1.tool.paths",  # The scripted agent names none,
    *("v2.update.paths", "v1.elicit.own-ids", "v1.extension.named", "v2.resume.no-notices", "v2.auth.login"),
    *("v1.terminal.shown", "v2.update.terminal-cwd", "v2.update.terminal-ids"),  # shows no terminals,
    *(each for each in CASES if each.startswith("v1.params.directories-")),  # and takes no further directories.
    "v1.resume.directories",
}


@pytest.mark.full("takes a minute")
async def test_the_stdio_front_keeps_every_rule_that_applies(tmp_path: Path) -> None:
    cases = [each for each in CASES.values() if "stdio" in each.carriers]
    prompts = dict(RECIPES["turnwire-scripted-agent"])
    async with running_daemon(tmp_path / "data") as running:
        opener = front_opener(running)
        subject = await probe(opener, str(tmp_path), given=prompts, bounds=BOUNDS)
        outcomes = await run(cases, opener, subject, jobs=4)
    assert failed(outcomes) == {}
    assert set(unscored(outcomes)) <= AT_PIPES, set(unscored(outcomes)) - AT_PIPES


FRONT = (
    *("v1.wire.only-messages", "v1.wire.joined", "v1.load.answer-last"),
    *("v1.turn.nothing-after", "v1.permission.rejected", "v1.cancel.reason"),
)


@pytest.mark.full("starts the front for each case")
async def test_the_stdio_front_keeps_the_rules_with_an_agent_behind_it(tmp_path: Path) -> None:
    agent = [sys.executable, "-m", "turnwire_testing.agent"]
    front = [sys.executable, "-m", "turnwire", "stdio", "--log", "memory", "--", *agent]
    prompts = dict(RECIPES["turnwire-scripted-agent"])
    opener = process_opener(front, str(tmp_path))
    outcomes = await judged(opener, tmp_path, [CASES[each] for each in FRONT], BOUNDS, prompts)
    assert failed(outcomes) == {}
    assert unscored(outcomes) == []
