"""Trace one request through the code: the modules it touches, and the number of control transfers between them.

    python scripts/walk.py            all walks, one line each
    python scripts/walk.py --check    also fail if a walk is longer than its ceiling; ceilings only go down
    python scripts/walk.py --modules  also the modules, with the calls into each, and the most frequent changes
    python scripts/walk.py --steps    also every call in its order, a line for each function, set off by module

A module that a request merely passes through costs its reader a file. Each walk starts the real program in a
separate process under a profiler, warms it up with one turn, and measures the next: every call of a Python function
of turnwire counts for its module; a change is a call into another module than the call before it. Resuming a
coroutine counts as a call, as it does for a reader. Only the thread of the event loop is profiled: the log's writer
counts as one step.

The numbers include more than the path that a reader follows. A turn is several batches of events, and each passes
through the same steps (decide, append, publish, notify the streams), each event of it through the fold and the
projection. `changes` counts every round, `pairs` counts each change from one module to another once, and `layers`
counts those between two layers alone (`session` and `log`, for example): the minimum if each layer were one file. A
property, a port that returns the time and the frames around a resumed coroutine are calls like any other.
Background work of the daemon during the turn is included: the watchdog of the loop, the index of the search. If the
disk is slow, the log uses its thread. So two runs differ by some ten changes, and more on a busy machine.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from types import FrameType
from typing import IO, Any, NamedTuple

from websockets.sync.client import connect

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
AGENT = [sys.executable, "-m", "turnwire_testing.agent"]
TOKEN = "a-token-for-the-walk"
HEADERS = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
WAIT_S = 30.0
MOST_CHANGES = 40
AIMS = {"REST prompt": (45, 220)}
"""Modules and changes that a walk should not exceed."""
CEILINGS = {
    "REST prompt": (53, 380),
    "permission round trip, REST": (59, 650),
    "v1 agent, v2 client, WebSocket": (63, 510),
    "agent SDK turn, v1 client, stdio": (33, 200),
}
"""Maximum modules and changes of each walk: the measured numbers, with a margin of changes for a busy machine."""

Json = dict[str, Any]


class Steps(NamedTuple):
    """The recorded steps of one walk."""

    functions: list[tuple[str, str]]
    """Every call in its order: the module, and the function in it."""

    @property
    def calls(self) -> Counter[str]:
        """By module."""
        return Counter(module for module, _ in self.functions)

    @property
    def changes(self) -> Counter[str]:
        """Count changes by the modules before and after them."""
        modules = (module for module, _ in self.functions)
        return Counter(f"{one} → {other}" for one, other in pairwise(modules) if one != other)

    @property
    def between_layers(self) -> int:
        """Count control transfers between layers."""
        layers = [module.split(".")[1] for module, _ in self.functions if "." in module]
        return sum(one != other for one, other in pairwise(layers))


# ---- inside the program that is watched


class Watch:
    """Notes calls, in the thread of the event loop, while it is switched on."""

    def __init__(self, report: int) -> None:
        self._report = report
        self._is_on = False
        self._functions: list[tuple[str, str]] = []
        self._modules: dict[str, str] = {}

    def start(self) -> None:
        signal.signal(signal.SIGUSR1, self._begin)
        signal.signal(signal.SIGUSR2, self._end)
        sys.setprofile(self._see)

    def _begin(self, number: int, frame: FrameType | None) -> None:
        self._functions.clear()
        self._is_on = True
        os.write(self._report, b"{}\n")

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._is_on = False
        os.write(self._report, json.dumps({"functions": self._functions}).encode() + b"\n")

    def _see(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or not self._is_on:
            return
        module = self._module(frame.f_code.co_filename)
        if module:
            self._functions.append((module, frame.f_code.co_qualname))

    def _module(self, filename: str) -> str:
        """Return the dotted name of a module of turnwire; empty for any other module."""
        if filename not in self._modules:
            path = Path(filename)
            parts = path.relative_to(SOURCE).with_suffix("").parts if path.is_relative_to(SOURCE) else ()
            self._modules[filename] = ".".join(parts)
        return self._modules[filename]


def run_watched(what: str, arguments: list[str]) -> None:
    """The command line, or a small agent of the SDK, as this process."""
    Watch(int(os.environ.pop("WALK_REPORT"))).start()
    if what == "agent":
        from turnwire.agent import Agent, Turn

        agent = Agent("walk")

        @agent.prompt
        async def answer(turn: Turn) -> None:
            await turn.say("hello")

        agent.run()
    else:
        from turnwire.cli.main import main

        sys.argv = ["turnwire", *arguments]
        main()


# ---- outside: the peers, which import nothing of turnwire


class Program:
    """A program under the profiler, and the way to switch it on and off."""

    def __init__(self, process: subprocess.Popen[bytes], report: IO[bytes]) -> None:
        self._process = process
        self._report = report
        assert process.stdin is not None
        assert process.stdout is not None
        self.stdin = process.stdin
        self.stdout = process.stdout

    def walked(self, step: Callable[[], None]) -> Steps:
        """Return the steps of the program during `step`. The first time is a warm-up."""
        step()
        self._signal(signal.SIGUSR1)
        step()
        told = self._signal(signal.SIGUSR2)
        return Steps(told["functions"])

    def _signal(self, number: signal.Signals) -> Json:
        self._process.send_signal(number)
        return json.loads(self._report.readline())


@contextmanager
def program(what: str, *arguments: str) -> Generator[Program]:
    """Start this file again as the program that is watched."""
    reader, writer = os.pipe()
    command = [sys.executable, __file__, "--watched", what, *arguments]
    environment = os.environ | {"WALK_REPORT": str(writer), "TURNWIRE_TOKEN": TOKEN}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[writer], env=environment, cwd=ROOT
    ) as process:
        os.close(writer)
        try:
            with open(reader, "rb") as report:
                yield Program(process, report)
        finally:
            process.terminate()
            process.communicate(timeout=WAIT_S)


class Daemon:
    """A daemon with a scripted v1 agent and one session."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._connection = http.client.HTTPConnection(address, timeout=WAIT_S)
        self.session = self.post("/session", {"cwd": str(ROOT)})["sessionId"]
        self._events = self._follow()

    def post(self, path: str, body: Json) -> Json:
        self._connection.request("POST", path, json.dumps(body), HEADERS)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise SystemExit(f"walk: POST {path}: {answer.status} {text.decode()}")
        return json.loads(text)

    def prompt(self, text: str) -> None:
        self.post(f"/session/{self.session}/prompt", {"prompt": [{"type": "text", "text": text}]})

    def until(self, kind: str) -> Json:
        """The next event of this type."""
        return next(event["data"] for event in self._events if event["type"] == kind)

    def _follow(self) -> Iterator[Json]:
        connection = http.client.HTTPConnection(self.address, timeout=WAIT_S)
        connection.request("GET", f"/session/{self.session}/events?after=0", headers=HEADERS)
        stream = connection.getresponse()
        while line := stream.readline():
            if line.startswith(b"data: "):
                yield json.loads(line[6:])

    def rest_prompt(self) -> None:
        self.prompt("hello")
        self.until("turn_complete")

    def permission(self) -> None:
        self.prompt("ask t allow_once,reject_once")
        request = self.until("permission_request")
        answer: Json = {"outcome": {"outcome": "selected", "optionId": request["options"][0]["optionId"]}}
        self.post(f"/session/{self.session}/permissions/{request['requestId']}", answer)
        self.until("turn_complete")


@contextmanager
def daemon() -> Generator[tuple[Program, Daemon]]:
    data = tempfile.mkdtemp(prefix="walk-")
    serve = ["serve", "--json", "--port", "0", "--data", data, "--cwd", str(ROOT), "--log-level", "error"]
    try:
        with program("serve", *serve, "--", *AGENT) as running:
            told: Json = json.loads(running.stdout.readline())
            yield running, Daemon(told["url"].removeprefix("http://").rstrip("/"))
    finally:
        shutil.rmtree(data, ignore_errors=True)


def websocket_v2(running: Program, address: str) -> Steps:
    """Run a v2 client on a WebSocket, with the v1 agent."""
    with connect(f"ws://{address}/acp", additional_headers=HEADERS, close_timeout=WAIT_S) as socket:
        numbers = iter(range(1_000))

        def ask(method: str, params: Json) -> int:
            number = next(numbers)
            socket.send(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}))
            return number

        def until(is_wanted: Callable[[Json], bool]) -> Json:
            while True:
                message: Json = json.loads(socket.recv(timeout=WAIT_S))
                if is_wanted(message):
                    return message

        def answer(number: int) -> Json:
            return until(lambda message: message.get("id") == number)["result"]

        implementation = {"name": "walk", "version": "1"}
        answer(ask("initialize", {"protocolVersion": 2, "capabilities": {}, "info": implementation}))
        session = answer(ask("session/new", {"cwd": str(ROOT), "mcpServers": []}))["sessionId"]

        def is_idle(message: Json) -> bool:
            update = message.get("params", {}).get("update", {})
            return update.get("sessionUpdate") == "state_update" and update.get("state") == "idle"

        def turn() -> None:
            blocks = [{"type": "text", "text": "hello"}]
            answer(ask("session/prompt", {"sessionId": session, "prompt": blocks}))
            until(is_idle)

        return running.walked(turn)


def sdk_turn() -> Steps:
    """Run a v1 client with an agent of the SDK, over its pipes."""
    with program("agent") as running:
        numbers = iter(range(1_000))

        def answer(method: str, params: Json) -> Json:
            number = next(numbers)
            message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            running.stdin.write(json.dumps(message).encode() + b"\n")
            running.stdin.flush()
            while True:
                heard: Json = json.loads(running.stdout.readline())
                if heard.get("id") == number:
                    return heard["result"]

        answer("initialize", {"protocolVersion": 1, "clientCapabilities": {}})
        session = answer("session/new", {"cwd": str(ROOT), "mcpServers": []})["sessionId"]
        blocks = [{"type": "text", "text": "hello"}]

        def turn() -> None:
            answer("session/prompt", {"sessionId": session, "prompt": blocks})

        return running.walked(turn)


def walks() -> Iterator[tuple[str, Steps]]:
    with daemon() as (running, client):
        yield "REST prompt", running.walked(client.rest_prompt)
        yield "permission round trip, REST", running.walked(client.permission)
    with daemon() as (running, client):
        yield "v1 agent, v2 client, WebSocket", websocket_v2(running, client.address)
    yield "agent SDK turn, v1 client, stdio", sdk_turn()


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the modules that one request passes through.")
    parser.add_argument("--modules", action="store_true", help="also print the modules and the changes")
    parser.add_argument("--steps", action="store_true", help="also print every call in its order")
    parser.add_argument("--check", action="store_true", help="fail if a walk is longer than its ceiling")
    wanted = parser.parse_args()
    too_long: list[str] = []
    print(f"{'walk':<34} {'modules':>8} {'pairs':>8} {'changes':>8} {'layers':>8} {'calls':>8}   aim")
    for name, steps in walks():
        aim = "at most {} modules, {} changes".format(*AIMS[name]) if name in AIMS else ""
        calls, changes = steps.calls, steps.changes
        counts = len(calls), len(changes), changes.total(), steps.between_layers, calls.total()
        most_modules, most_changes = CEILINGS[name]
        if len(calls) > most_modules or changes.total() > most_changes:
            too_long.append(f"{name}: at most {most_modules} modules and {most_changes} changes")
        print(f"{name:<34} {' '.join(f'{each:>8}' for each in counts)}   {aim}")
        if wanted.modules:
            for module, times in calls.most_common():
                print(f"    {times:>5}  {module}")
            for change, times in changes.most_common(MOST_CHANGES):
                print(f"        {times:>5}  {change}")
        if wanted.steps:
            for module, run in groupby(steps.functions, key=itemgetter(0)):
                print(f"    {module}")
                for _, function in run:
                    print(f"        {function}")
    if wanted.check and too_long:
        raise SystemExit("walk: too long: " + "; ".join(too_long))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--watched"]:
        run_watched(sys.argv[2], sys.argv[3:])
    else:
        main()
