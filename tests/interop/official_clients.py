"""The official SDKs as clients of turnwire: each runs one tour and returns its sent and received frames.

The input is a client's name, a transport and turnwire's address; the result is the frames of both of its
connections. Without the SDK the test is skipped with the reason (see `peers.absent`). A program that does not end
is killed. `check_tour` checks the required frames of each tour with an agent that understands `agents/words.md`.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import msgspec
from tests.interop.peers import NODE, PEERS, ROOT, absent
from tests.interop.schema_check import Frame, Json, check_frames
from tests.patience import LONG_S

CLIENTS = Path(__file__).parent / "clients"
PYTHON_COMPLAINT = "ERROR:root:Unhandled error while handling notification method=session/update"
NODE_COMPLAINT = "Error handling notification { method: 'session/update', code: -32602, message: 'Invalid params' }"
_COMPLAINS = re.compile("(ERROR|Error|WARNING)\\b")
"""Beginnings of log lines of either SDK that are not a traceback."""
STDIO = (sys.executable, "-m", "turnwire", "stdio")
SCRIPTED_PROMPTS = ("ask edit allow_once,reject_once\nsay 1 done", "say 1 waiting\nnever", "say 2 again")
OFFICIAL_PROMPTS = ("edit the file", "wait for me", "hello again")
"""The same for agents that execute a first word (`agents/words.md`)."""


class OfficialClient(NamedTuple):
    """One official SDK in one version of ACP."""

    name: str
    version: int
    """The ACP version."""
    needs: Path
    program: tuple[str, ...]
    complaint: str = ""
    """Its output for an update of an unknown kind; empty if it is never sent one."""

    async def tour(
        self, transport: str, cwd: Path, prompts: Sequence[str] = SCRIPTED_PROMPTS, **where: Any
    ) -> list[Connection]:
        """Run the tour over this transport; `where` has turnwire's address."""
        if self.program[0] == "node" and shutil.which("node") is None:
            absent("the program 'node' is not on PATH")
        if not self.needs.exists():
            absent(f"{self.needs.relative_to(ROOT)} is not there; run: make peers")
        wanted = {"transport": transport, "cwd": str(cwd), "prompts": prompts, **where}
        given = msgspec.json.encode(wanted).decode()
        with anyio.fail_after(LONG_S):
            ran = await anyio.run_process([*self.program, given], check=False)
        assert ran.returncode == 0, ran.stderr.decode()
        said = msgspec.json.decode(ran.stdout, type=list[_Said])
        found = [Connection(self.version, [Frame(*each) for each in one.frames], one.handled) for one in said]
        self._check_complaints(ran.stderr.decode(), found)
        return found

    def _check_complaints(self, printed: str, connections: Sequence[Connection]) -> None:
        """Check that it complains of each `turn_complete` and of nothing else, as documented in docs/interop.md."""
        unknown = sum(len(each.updates()) - len(each.known_updates()) for each in connections)
        complaints = [line for line in printed.splitlines() if _COMPLAINS.match(line)]
        assert len(complaints) == unknown, printed
        assert all(self.complaint in line for line in complaints), printed
        assert self.complaint or not unknown


class _Said(msgspec.Struct):
    frames: list[tuple[bool, Json]]
    handled: int


class Connection(NamedTuple):
    """One connection of a tour."""

    version: int
    frames: list[Frame]
    handled: int
    """Updates that the SDK handed to its client."""

    @property
    def received(self) -> list[Json]:
        return [each.message for each in self.frames if each.is_received]

    def updates(self) -> list[Json]:
        return [each["params"]["update"] for each in self.received if each.get("method") == "session/update"]

    def known_updates(self) -> list[Json]:
        """Return updates of kinds that the SDK knows. It logs and drops any other."""
        return [each for each in self.updates() if each["sessionUpdate"] != "turn_complete"]

    def place(self, method: str) -> int:
        """Return the index of the frame that answers the first request of this method."""
        ids = [each.message["id"] for each in self.frames if each.message.get("method") == method]
        return next(
            at
            for at, (is_received, message) in enumerate(self.frames)
            if is_received and "method" not in message and message["id"] == ids[0]
        )

    def answers(self, method: str) -> list[Any]:
        """The results of all requests of this method, in the order of their answers."""
        ids = [each.message["id"] for each in self.frames if each.message.get("method") == method]
        return [each["result"] for each in self.received if "method" not in each and each["id"] in ids]

    def stop_reasons(self) -> list[str]:
        """Return the turns' stop reasons, in this version's form."""
        if self.version == 1:
            return [each["stopReason"] for each in self.answers("session/prompt")]
        return [each["stopReason"] for each in self.updates() if each.get("stopReason")]

    def split(self, at: int) -> tuple[Connection, Connection]:
        """Return the frames before a frame, and those from it on."""
        return self._replace(frames=self.frames[:at]), self._replace(frames=self.frames[at:])

    def said(self) -> str:
        """Return the agent's text, from chunks and whole messages."""
        return "".join(map(words, self.updates()))


def words(update: Json) -> str:
    """Return the agent's text in an update."""
    if update["sessionUpdate"] == "agent_message_chunk":
        return update["content"]["text"]
    if update["sessionUpdate"] == "agent_message":
        return "".join(block["text"] for block in update["content"])
    return ""


def _python(name: str, environment: str, version: int) -> OfficialClient:
    program = (str(PEERS / environment / "bin" / "python"), str(CLIENTS / f"acp_py_v{version}.py"))
    complaint = PYTHON_COMPLAINT if version == 1 else ""
    return OfficialClient(name, version, PEERS / environment / ".installed", program, complaint)


def _node(version: int) -> OfficialClient:
    program = (*NODE, str(PEERS / "node" / "clients" / f"acp_js_v{version}.mjs"))
    complaint = NODE_COMPLAINT if version == 1 else ""
    return OfficialClient(f"js-v{version}", version, PEERS / "node" / ".installed", program, complaint)


CLIENTS_OF_ACP = (
    _python("py-0.12-v1", "py-v1", 1),
    _python("py-1.0-v1", "py-v2", 1),
    _python("py-1.0-v2", "py-v2", 2),
    _node(1),
    _node(2),
)


def stdio_command(data: Path, agent: Sequence[str]) -> list[str]:
    """Return the command by which an editor starts turnwire in place of this agent."""
    return [*STDIO, "--data", str(data), "--", *agent]


def check_tour(connections: Sequence[Connection]) -> None:
    """Check a turn with a permission and one that is cancelled; then, in a new process, all of it again and one
    more.
    """
    first, second = connections
    assert first.answers("initialize")[0]["protocolVersion"] == first.version
    opening, _ = first.split(first.place("session/new"))
    assert not opening.updates(), "the answer to session/new comes before everything of that session"
    assert len([each for each in first.received if each.get("method") == "session/request_permission"]) == 1
    assert first.stop_reasons() == ["end_turn", "cancelled"]
    assert first.said() == "editedwaiting"
    at = second.place("session/load" if second.version == 1 else "session/resume")
    history, more = second.split(at)
    assert history.said() == "editedwaiting"
    assert more.said() == "You said: hello again."
    assert second.stop_reasons()[-1] == "end_turn"
    if first.version == 1:
        turn, _ = first.split(first.place("session/prompt"))
        assert turn.updates()[-1]["sessionUpdate"] == "turn_complete", (
            "the answer stands behind the mark of its end"
        )
    for each in connections:
        assert each.handled == len(each.known_updates()), "the SDK has taken every update"
        seen = check_frames(each.version, each.frames).seen
        assert {"initialize answered", "session/update", "session/prompt answered"} <= seen
