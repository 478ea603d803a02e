"""The TypeScript client against a real daemon: cuts, lost answers, a kill, slow handlers, its page's examples."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import subprocess
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import asynccontextmanager
from itertools import repeat
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from tests.cli.rig import Served, served
from tests.interop.peers import absent
from tests.support.cut_proxy import CuttingProxy, cutting

from turnwire_testing.patience import WAIT_S
from turnwire_testing.plugin import find_tool

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[2]
WEB = ROOT / "web"
TSC = WEB / "node_modules" / "typescript" / "bin" / "tsc"
PAGE = ROOT / "docs" / "typescript.md"
SCENARIOS = Path(__file__).parent / "clients" / "scenarios.mjs"
EVENT = b"\nid: "
"""The beginning of each event of a stream, except the first."""
LINE_BYTES = 1 << 24


def compiled(project: str, into: Path) -> Path:
    """The package's sources as JavaScript. Without node and its modules the test is skipped, or fails."""
    node = find_tool("node")
    if not TSC.exists():
        absent("web/node_modules is not there; run: make web")
    (into / "package.json").write_text('{"type": "module"}')
    command = [node, str(TSC), "-p", str(WEB / "client" / project), "--outDir", str(into)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stdout
    return into


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled("tsconfig.build.json", tmp_path_factory.mktemp("client")) / "index.js"


@pytest.fixture(scope="module")
def daemon(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    """Run one daemon for all tests that only use it; after the package, so that nothing is started for skipped
    tests.
    """
    with served(tmp_path_factory.mktemp("home")) as running:
        yield running


class Program:
    """A running scenario."""

    def __init__(self, process: Process) -> None:
        self._process = process
        assert process.stdout is not None
        self._lines = BufferedByteReceiveStream(process.stdout)

    async def told(self) -> Any:
        """Return its next report."""
        return json.loads(await self._lines.receive_until(b"\n", LINE_BYTES))

    async def until(self, member: str) -> Any:
        """Return its next report that has this member."""
        while member not in (told := await self.told()):
            pass
        return told

    async def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        await self._process.stdin.send(f"{line}\n".encode())

    async def ended(self) -> None:
        """Wait for its end by itself: nothing that was closed keeps it running."""
        assert await self._process.wait() == 0


@asynccontextmanager
async def scenario(package: Path, name: str, daemon: Served, url: str | None = None) -> AsyncGenerator[Program]:
    token = daemon.headers["Authorization"].removeprefix("Bearer ")
    command = [find_tool("node"), str(SCENARIOS), str(package), name, url or daemon.url, token]
    with anyio.fail_after(WAIT_S):
        async with await anyio.open_process(command, stderr=None) as process:
            try:
                yield Program(process)
            except BaseException:
                process.kill()
                raise


async def outcome(package: Path, name: str, daemon: Served, url: str | None = None, line: str = "") -> Any:
    """Return the reports of a scenario, once it has ended."""
    async with scenario(package, name, daemon, url) as program:
        await program.tell(line)
        told = await program.told()
        await program.ended()
        return told


@asynccontextmanager
async def cut_at_every(count: int, daemon: Served) -> AsyncGenerator[CuttingProxy]:
    plan: Iterable[int] = repeat(count)
    async with cutting(daemon.url, plan, EVENT) as proxy:
        yield proxy


async def test_the_examples_of_its_page_do_what_they_say(package: Path, daemon: Served, tmp_path: Path) -> None:
    """Compiled as a user's program, against the package as it is published, and run."""
    installed = tmp_path / "node_modules" / "@turnwire" / "client"
    installed.mkdir(parents=True)
    (installed / "dist").symlink_to(package.parent)
    shutil.copy(WEB / "client" / "package.json", installed)
    first, *pieces = re.findall(r"^```ts\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    token = daemon.headers["Authorization"].removeprefix("Bearer ")
    imports = re.compile(r"^import .*\n", flags=re.MULTILINE)
    program = [
        'import assert from "node:assert/strict";',
        *imports.findall("".join([first, *pieces])),
        f"const TOKEN = {json.dumps(token)};",
        f"{{\n{imports.sub('', first)}\n}}",
        f"const client = await connect({json.dumps(daemon.url)}, {{ token: TOKEN }});",
        *(f"{{\nconst session = await client.create();\n{imports.sub('', each)}\n}}" for each in pieces),
        "client.close();",
    ]
    (tmp_path / "page.ts").write_text("\n".join(program).replace("http://127.0.0.1:4170", daemon.url))
    options = {
        "strict": True,
        "target": "ES2022",
        "module": "NodeNext",
        "typeRoots": [str(WEB / "node_modules" / "@types")],
        "types": ["node"],
    }
    (tmp_path / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "files": ["page.ts"]}))
    compiled(str(tmp_path / "tsconfig.json"), tmp_path)
    with anyio.fail_after(WAIT_S):
        done = await anyio.run_process([find_tool("node"), str(tmp_path / "page.js")], check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.startswith(b"{ type: 'text', text: 'he' }"), done.stdout.decode()


async def test_the_package_passes_its_own_tests(tmp_path: Path) -> None:
    into = compiled("tsconfig.json", tmp_path)
    done = await anyio.run_process([find_tool("node"), "--test", str(into / "test")], check=False)
    assert done.returncode == 0, done.stdout.decode()


@pytest.mark.guarantee("G1", "G9", "G12")
@pytest.mark.parametrize("acp", ["1", "2", "agent"])
async def test_ids_come_once_each_with_a_cut_at_every_fiftieth_event(
    package: Path, daemon: Served, acp: str
) -> None:
    async with cut_at_every(50, daemon) as proxy:
        told = await outcome(package, "cuts", daemon, proxy.url, acp)
    assert told["ids"] == list(range(1, told["head"] + 1))
    assert told["looped"] == [str(number) for number in range(1000)]
    assert told["stopReason"] == "end_turn"
    assert told["blocks"] == [f"{number}{part}" for number in range(20) for part in "abc"]
    assert proxy.made >= 1000 // 50


@pytest.mark.guarantee("G7", "G9")
async def test_cuts_at_any_byte_of_streams_and_answers_lose_nothing_and_repeat_nothing(
    package: Path, daemon: Served
) -> None:
    chance = random.Random(5)
    # The first leaves room for one-time requests; each has room for an event, so that waits are short.
    plan = [2000, *(chance.randint(1000, 4000) for _ in range(100))]
    async with cutting(daemon.url, plan) as proxy:
        told = await outcome(package, "cuts", daemon, proxy.url, "1")
    assert told["ids"] == list(range(1, told["head"] + 1))
    assert told["looped"] == [str(number) for number in range(1000)]
    assert told["blocks"] == [f"{number}{part}" for number in range(20) for part in "abc"]
    assert proxy.made >= 50


@pytest.mark.guarantee("G3", "G12")
async def test_a_thousand_instantaneous_turns_end_once_each_without_a_hang(package: Path, daemon: Served) -> None:
    for each in await outcome(package, "instantaneous", daemon):
        assert each["ids"] == list(range(1, len(each["ids"]) + 1))
        assert (each["turns"], each["isEachOnce"], each["isOurs"]) == (250, True, True)


@pytest.mark.guarantee("G3", "G7", "G9")
async def test_a_turn_has_one_end_when_the_daemon_is_killed_in_it_and_what_waited_runs(
    package: Path, tmp_path: Path
) -> None:
    async with cutting("http://127.0.0.1:9") as proxy:
        with served(tmp_path) as first:
            proxy.aim(first.url)
            async with scenario(package, "killed", first, proxy.url) as program:
                await program.until("running")
                first.stop(signal.SIGKILL)
                with served(tmp_path) as second:
                    proxy.aim(second.url)
                    await program.tell("it is back")
                    told = await program.until("reason")
                    await program.ended()
    running, waiting = told["prompts"]
    assert told["ends"] == [[running, "turn_error"], [waiting, "turn_complete"]]
    assert (told["reason"], told["after"], told["seen"]) == ("daemon_restarted", "after", ["before"])
    assert told["ids"] == list(range(1, len(told["ids"]) + 1))


async def test_a_permission_request_that_is_answered_elsewhere_is_given_up(package: Path, daemon: Served) -> None:
    async with scenario(package, "elsewhere", daemon) as program:
        asked = await program.told()
        assert asked["title"] == "t1"
        body = {"outcome": {"outcome": "selected", "optionId": "allow_once"}}
        daemon.ask("POST", f"/session/{asked['session']}/permissions/{asked['request']}", body)
        told = await program.told()
        await program.ended()
    assert told == {
        "text": "selected allow_once",
        "resolved": ["allow_once"],
        "isAborted": True,
        "won": False,
    }


@pytest.mark.guarantee("G12")
async def test_await_returns_after_handlers_that_are_slower_than_the_stream(package: Path, daemon: Served) -> None:
    told = await outcome(package, "slow", daemon)
    assert told["looped"] == 2000
    assert told["finishedAtEnd"] < told["finished"], "the handlers were behind when the last update came"
    # The user's own message is an update of the session too.
    assert told["finished"] == 2001


@pytest.mark.guarantee("G7")
async def test_a_prompt_whose_answer_is_lost_is_one_prompt(package: Path, daemon: Served) -> None:
    told = await outcome(package, "lost", daemon)
    turns = daemon.ask("GET", f"/session/{told['session']}/turns")["turns"]
    assert told["texts"] == [str(number) for number in range(10)]
    assert (told["lost"], len(turns)) == (11, 11)
    assert (told["isSame"], told["repeated"], told["looped"]) == (True, True, ["0"])


@pytest.mark.guarantee("G9")
async def test_many_sessions_on_one_stream_come_once_each_through_cuts_and_from_a_cursor(
    package: Path, daemon: Served
) -> None:
    async with cut_at_every(50, daemon) as proxy:
        told = await outcome(package, "many", daemon, proxy.url)
    for heard, head in zip(told["heard"], told["heads"], strict=True):
        assert heard == list(range(heard[0], head + 1))
    assert proxy.made >= 600 // 50


@pytest.mark.parametrize("acp", ["1", "2", "agent"])
async def test_the_text_of_a_result_is_the_daemons(package: Path, daemon: Served, acp: str) -> None:
    for ours, theirs in await outcome(package, "texts", daemon, line=acp):
        assert ours == theirs


async def test_queue_cancel_settle_and_choices_do_what_they_say(package: Path, daemon: Served) -> None:
    assert await outcome(package, "control", daemon) == {
        "refused": "busy",
        "queue": ["say 1 c", "say 1 edited"],
        "outcome": "queued",
        "reason": "not_offered",
        "cancelled": ["cancelled", True],
        "results": [["edited", "end_turn"], ["", "cancelled"], ["c", "end_turn"]],
        "settled": "settled",
        "mode": "code",
        "title": "renamed",
        "listed": "renamed",
        "closed": "session_closed",
    }
