"""The run of cases against a client: turnwire is the agent, with one connection for each case.

`play` is the agent's side of one case. `run_client` starts a client once for each case: with the command of the
checking agent, whose verdict comes from a pipe that this agent writes to; or with the address at which this process
is that agent.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio.abc import Process

from turnwire.errors import AgentLaunchFailed
from turnwire_check.capability import in_words, offers
from turnwire_check.case import Carrier, Case, unscored
from turnwire_check.client_verdict import ClientVerdict, of_line
from turnwire_check.judging_agent import JudgingAgent
from turnwire_check.listener import listening
from turnwire_check.plain_text import quoted
from turnwire_check.run import Bounds, Outcome, outcome_of, run_each
from turnwire_check.tape import at
from turnwire_check.transport import LEAVING_S, STDERR_BYTES, Transport, kill, pieces

URL = "{url}"
"""In a client's command: the address of the agent. With it, no agent is started."""
AGENT_WORDS = "{agent...}"
"""Placeholder in a client's command for the agent's command as separate arguments."""
NAMES = {
    "ACP_AGENT_COMMAND": "{agent}",
    "ACP_AGENT_URL": URL,
    "ACP_CHECK_SCENE": "{scene}",
    "ACP_CHECK_CASE": "{case}",
    "ACP_CHECK_CWD": "{cwd}",
}
"""The placeholder of each variable in a command: the agent's command line or address, the scene, the case, an empty
directory.
"""
PIECE_BYTES = 64 * 1024


async def play(case: Case, transport: Transport, bounds: Bounds, told: Callable[[ClientVerdict], None]) -> None:
    """Check the client at the other end with one case, report the verdict, and continue as an agent until it has
    disconnected.
    """
    agent = JudgingAgent(transport, case.version, patience_s=bounds.patience_s, silence_s=bounds.silence_s)
    outcome = await outcome_of(case, _judge(case, agent, bounds), [agent.tape])
    told(ClientVerdict(_name(agent), outcome))
    await agent.finish()


async def _judge(case: Case, agent: JudgingAgent, bounds: Bounds) -> None:
    if case.severity == "draft" and not bounds.has_drafts:
        unscored("it is a draft of turnwire; judge it with --drafts if the client implements it")
    if case.capability:
        hello = await agent.initialized()
        if not offers(hello.params, case.capability):
            unscored(f"it does not claim {in_words(case.capability)}")
    await case.judge(agent)


def _name(agent: JudgingAgent) -> str:
    hello = next((each for each in agent.tape.heard() if each.method == "initialize"), None)
    who = None if hello is None else at(hello.params, "clientInfo") or at(hello.params, "info")
    return " ".join(filter(None, (quoted(at(who, each)) for each in ("name", "version"))))


@dataclass(frozen=True)
class ClientCommand:
    """The command that starts a client which starts our agent."""

    words: Sequence[str]
    """Its command, with `{agent}` and the like where they belong."""
    folder: Path
    """Parent folder of each case's directory."""
    bounds: Bounds

    @property
    def carrier(self) -> Carrier:
        """The client's transport to its agent."""
        return "websocket" if any(URL in word for word in self.words) else "stdio"

    def agent(self, case: Case, pipe: Path) -> list[str]:
        """The command of the agent that judges this case and writes its verdict there."""
        bounds = ["--patience", f"{self.bounds.patience_s:g}", "--silence", f"{self.bounds.silence_s:g}"]
        drafts = ["--drafts"] if self.bounds.has_drafts else []
        asked = ["--client", "--case", case.id, "--report", str(pipe), *drafts, *bounds]
        return [sys.executable, "-m", "turnwire", "check", *asked]

    def told(self, case: Case, agent: Sequence[str], url: str) -> dict[str, str]:
        """Return the client's variables; `{agent}` and the like in its command have the same values."""
        return {
            "ACP_AGENT_COMMAND": shlex.join(agent),
            "ACP_AGENT_URL": url,
            "ACP_CHECK_SCENE": scene_of(case),
            "ACP_CHECK_CASE": case.id,
            "ACP_CHECK_CWD": str(self.folder / case.id),
        }

    def filled(self, told: Mapping[str, str], agent: Sequence[str]) -> list[str]:
        found: list[str] = []
        for word in self.words:
            if word == AGENT_WORDS:
                found += agent
                continue
            for variable, name in NAMES.items():
                word = word.replace(name, told[variable])
            found.append(word)
        return found


def scene_of(case: Case) -> str:
    """Return the scene that the client should perform."""
    return case.scenes[0] if case.scenes else "visit"


async def run_client(
    cases: Sequence[Case],
    command: ClientCommand,
    *,
    jobs: int = 1,
    told: Callable[[Outcome], None] = lambda outcome: None,
) -> list[ClientVerdict]:
    """Judge each case, in its own start of the client."""
    program = command.words[0]
    if shutil.which(program) is None:
        raise AgentLaunchFailed(
            f"{program!r} is no program that can be started; look at the command behind `--`", definite=True
        )
    found: dict[str, ClientVerdict] = {}

    async def judge(case: Case) -> Outcome:
        found[case.id] = await _visit(case, command)
        return found[case.id].outcome

    await run_each(cases, judge, jobs=jobs, told=told)
    return [found[case.id] for case in cases]


async def _visit(case: Case, command: ClientCommand) -> ClientVerdict:
    """Start the client once."""
    if command.carrier not in case.carriers:
        return ClientVerdict("", Outcome(case, "not_scored", f"it is about {' and '.join(case.carriers)}"))
    (command.folder / case.id).mkdir()
    visit = Visit(case, command.bounds)
    if command.carrier == "websocket":
        async with listening(visit.judge) as url:
            return await _started(visit, command, [], url)
    async with _piped(visit, command.folder / f"{case.id}.verdict") as pipe:
        return await _started(visit, command, command.agent(case, pipe), "")


@asynccontextmanager
async def _piped(visit: Visit, pipe: Path) -> AsyncGenerator[Path]:
    """Create a pipe on which agents that the client starts report their verdicts."""
    os.mkfifo(pipe)
    # Open for both, so that it never ends when one of several agents does.
    visit.reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        yield pipe
    finally:
        os.close(visit.reader)


async def _started(visit: Visit, command: ClientCommand, agent: Sequence[str], url: str) -> ClientVerdict:
    """Start the client with the data it needs to reach its agent."""
    told = command.told(visit.case, agent, url)
    process = await anyio.open_process(
        command.filled(told, agent),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        env={**os.environ, **told},
        start_new_session=True,
    )
    try:
        return await visit.verdict(process)
    finally:
        kill(process)
        with anyio.CancelScope(shield=True):
            await process.aclose()


class Visit:
    """A running client, and the verdicts about it so far."""

    def __init__(self, case: Case, bounds: Bounds) -> None:
        self.case = case
        self.reader: int | None = None
        """The pipe for verdicts of the agents that the client starts."""
        self._bounds = bounds
        self._found: ClientVerdict | None = None
        self._printed = b""
        self._connections = 0
        self._none_open: anyio.Event | None = None
        """Set, if this process is the agent, when the client has closed all of its connections. None before the
        first.
        """
        self._judged = anyio.Event()
        self._told = anyio.Event()

    async def judge(self, transport: Transport) -> None:
        """Be the agent of a client that has connected."""
        if not self._connections:
            self._none_open = anyio.Event()
        self._connections += 1
        try:
            await play(self.case, transport, self._bounds, self.tell)
        finally:
            self._connections -= 1
            if not self._connections and self._none_open is not None:
                self._none_open.set()

    def tell(self, verdict: ClientVerdict) -> None:
        """Store a verdict. An inconclusive one is kept only until another arrives."""
        # A client may start its agent twice, once just to see whether it is there.
        if not self._judged.is_set():
            self._found = verdict
        if verdict.outcome.verdict != "not_scored":
            self._judged.set()

    async def verdict(self, process: Process) -> ClientVerdict:
        """Wait for a verdict, or for the client's end; and a client that stays after that is ended."""
        with anyio.move_on_after(3 * self._bounds.patience_s + LEAVING_S):
            async with anyio.create_task_group() as tasks:
                if self.reader is not None:
                    tasks.start_soon(self._hear, self.reader)
                tasks.start_soon(self._let_leave, process)
                tasks.start_soon(self._print, process)
                tasks.start_soon(self._end, process)
                await self._told.wait()
                tasks.cancel_scope.cancel()
        if self._found is not None:
            return self._found
        printed = self._printed.decode(errors="replace").strip()
        last = f"; it printed: {printed.splitlines()[-1]}" if printed else ""
        return ClientVerdict("", Outcome(self.case, "not_scored", f"no agent of its told a verdict{last}"))

    async def _hear(self, reader: int) -> None:
        """Read verdicts from the pipe until a conclusive one arrives."""
        rest = b""
        while not self._judged.is_set():
            await anyio.wait_readable(reader)
            *lines, rest = (rest + os.read(reader, PIECE_BYTES)).split(b"\n")
            for line in lines:
                found = of_line(line, {self.case.id: self.case})
                if found is not None:
                    self.tell(found)

    async def _let_leave(self, process: Process) -> None:
        await self._judged.wait()
        with anyio.move_on_after(LEAVING_S):
            await process.wait()
        self._told.set()

    async def _print(self, process: Process) -> None:
        assert process.stdout is not None
        async for piece in pieces(process.stdout):
            self._printed = (self._printed + piece)[-STDERR_BYTES:]

    async def _end(self, process: Process) -> None:
        """Wait for the client's end: a remaining verdict of its agent comes at once, or never."""
        await process.wait()
        if self._none_open is None:
            with anyio.move_on_after(LEAVING_S):
                await self._told.wait()
        else:
            # It is judged here, and to the end: that has no time but an answer's.
            with anyio.move_on_after(self._bounds.patience_s):
                await self._none_open.wait()
        self._told.set()
