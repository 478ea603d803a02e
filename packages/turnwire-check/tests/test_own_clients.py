"""turnwire's own clients keep every rule that applies: the Python SDK, and the daemon as a client of its agents.

The agent that judges them runs in this process, so that each case has a new one at once; for lines and dead agents,
which need bytes and processes, the SDK runs as a program.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from anyio.abc import TaskGroup
from click.testing import CliRunner
from tests.support.acp import V1, Json, Place, acp_daemon, connected

import turnwire
from test_own_agents import LinkTransport
from turnwire.cli.main import cli
from turnwire.client import Option, PermissionRequest, Session
from turnwire.errors import LinkError, TurnwireError
from turnwire.hosting.memory import MemoryLink, memory_pair
from turnwire.hosting.source import LinkedAgent
from turnwire_check.case import Case
from turnwire_check.catalogue import CLIENT_CASES
from turnwire_check.client_run import play, scene_of
from turnwire_check.client_verdict import ClientVerdict
from turnwire_check.run import Bounds
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[3]
BOUNDS = Bounds(patience_s=WAIT_S / 2, silence_s=0.02, has_drafts=True)
BYTES = ("client.wire.split", "client.wire.joined", "client.wire.blank", "client.turn.agent-gone")
"""Judged where there are bytes and processes: a link in this process has frames."""
ANSWERED_AS_V1 = {"client.init.no-capabilities", "client.init.nulls", "client.init.unknown-capabilities"}
"""Cases that answer in v1, which a client that asks for v2 need not support."""
NOT_SCORED = {
    "client.auth.offered": "a program says by which way it logs in",
    "client.new.directories-absolute": "it gives none",
    "client.fs.read-unclaimed": "it offers to",
    "client.fs.write-unclaimed": "it offers to",
    "client.terminal.unclaimed": "it offers them",
    "client.elicit.unclaimed": "it offers them",
    "client.elicit.content": "its user fills in no form",
}


class ClientLink(LinkTransport):
    """A link of this process, to a client that may leave."""

    async def send(self, raw: bytes) -> None:
        try:
            await super().send(raw)
        except LinkError:
            self.tape.end("it closed the link")


class JudgingSource:
    """Gives agents that judge by one case."""

    def __init__(self, case: Case, tasks: TaskGroup, verdicts: list[ClientVerdict]) -> None:
        self.verdicts = verdicts
        self.judged = anyio.Event()
        self._case = case
        self._tasks = tasks
        self._links: list[MemoryLink] = []

    async def disconnect(self) -> None:
        """End the connection of the newest agent."""
        await self._links[-1].aclose()

    async def connect(self) -> LinkedAgent:
        ours, theirs = memory_pair()
        self._links.append(theirs)
        transport = ClientLink(theirs)
        self._tasks.start_soon(transport.read)
        self._tasks.start_soon(play, self._case, transport, BOUNDS, self._tell)
        return LinkedAgent(ours)

    def _tell(self, verdict: ClientVerdict) -> None:
        self.verdicts.append(verdict)
        # The first agent of a client that loads a session after a disconnect sees no load.
        if scene_of(self._case) != "load" or len(self.verdicts) > 1:
            self.judged.set()


async def visit(session: Session, scene: str, source: JudgingSource) -> None:
    """A program that uses the SDK."""
    turn = session.prompt("hello")

    @session.on_update
    async def heard(update: object) -> None:
        if scene == "stop":
            await turn.cancel()

    @session.on_permission
    async def asked(request: PermissionRequest) -> Option | str | None:
        if scene == "stop-asked":
            await turn.cancel()
        if scene in ("stop-asked", "hold"):
            return None
        return request.options[0] if request.options else "reject"

    assert heard
    assert asked
    with suppress(TurnwireError):
        await turn
    if scene == "load":
        await source.disconnect()
    if scene in ("again", "load"):
        await session.prompt("hello again")


async def judged(case: Case, cwd: Path) -> ClientVerdict:
    """One case with a new client."""
    verdicts: list[ClientVerdict] = []
    async with anyio.create_task_group() as tasks:
        source = JudgingSource(case, tasks, verdicts)

        async def use() -> None:
            try:
                async with turnwire.connect(source) as client:
                    server = {"name": "files", "command": "/bin/files", "args": list[str](), "env": list[str]()}
                    session = await client.new_session(cwd, mcp_servers=[server])
                    await visit(session, scene_of(case), source)
                    await source.judged.wait()
            except TurnwireError:
                pass  # how it fails is its own; what it does on the wire is judged

        tasks.start_soon(use)
        with anyio.fail_after(WAIT_S):
            await source.judged.wait()
        tasks.cancel_scope.cancel()
    return verdicts[-1]


async def test_the_python_sdk_keeps_every_rule_that_applies(tmp_path: Path) -> None:
    cases = [each for each in CLIENT_CASES.values() if each.id not in BYTES]
    found = [(await judged(case, tmp_path)).outcome for case in cases]
    assert {each.case.id: each.words for each in found if each.verdict == "failed"} == {}
    unscored = {each.case.id: each.words for each in found if each.verdict == "not_scored"}
    assert set(unscored) == set(NOT_SCORED) | ANSWERED_AS_V1, unscored


DAEMON = ("client.init", "client.permission", "client.ready", "client.update", "client.v2")
"""Behind a daemon is the same code; what an editor in front of it answers comes through it."""


async def edit(place: Place) -> None:
    """An editor with the daemon as its agent."""
    # A daemon without an agent reports that; its messages to the agent are checked.
    with suppress(AssertionError):
        async with connected(place, V1) as editor:
            await editor.prompt(await editor.new(), "hello")
            asked = 0
            while True:
                request = await editor.until(lambda each: "method" in each and "id" in each, asked)
                asked = editor.frames.index(request) + 1
                await editor.send({"jsonrpc": "2.0", "id": request["id"], **answer(request)})


def answer(request: Json) -> Json:
    if request["method"] != "session/request_permission":
        return {"error": {"code": -32601, "message": "unknown"}}
    chosen = {"outcome": "selected", "optionId": request["params"]["options"][0]["optionId"]}
    return {"result": {"outcome": chosen}}


async def test_the_daemon_keeps_every_rule_that_applies() -> None:
    found: list[ClientVerdict] = []
    for case in CLIENT_CASES.values():
        if not case.id.startswith(DAEMON) or case.scenes:
            continue
        verdicts: list[ClientVerdict] = []
        async with anyio.create_task_group() as tasks:
            source = JudgingSource(case, tasks, verdicts)
            async with acp_daemon(source=source) as place:
                place.tasks.start_soon(edit, place)
                await source.judged.wait()
            tasks.cancel_scope.cancel()
        found += verdicts[:1]
    others = {each.outcome.case.id: each.outcome.words for each in found if each.outcome.verdict != "passed"}
    assert set(others) == ANSWERED_AS_V1, others


def test_the_python_sdk_as_a_program_keeps_the_rules_of_lines_and_dead_agents() -> None:
    client = [sys.executable, str(ROOT / "examples" / "prompt.py"), "{agent...}"]
    cases = [word for case in BYTES for word in ("--case", case)]
    ran = CliRunner().invoke(cli, ["check", "--client", *cases, "--", *client], obj={"debug": False})
    assert ran.exit_code == 0, ran.output
    assert f"{len(BYTES)} passed, 0 failed" in ran.output
