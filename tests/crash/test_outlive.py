"""A turn outlives its daemon: the daemon is killed at any instant, and the next one continues what the agent does.

The agent records its prompts itself, and numbers the chunks of each turn. So the test knows what every turn has to
contain: all chunks, each once, in order, and one end that is the agent's.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager, closing
from pathlib import Path
from random import Random
from typing import Any, cast

import anyio
import pytest
from tests.crash.daemon_life import TOKEN, WAIT_S, Daemons, Folder, Life, Manner, open_daemons, processes_with
from tests.patience import LONG_S
from tests.process.starting import needs_linux

from turnwire.client.daemon_client import DaemonClient, Envelope
from turnwire.errors import TurnError

pytestmark = [pytest.mark.anyio, needs_linux, pytest.mark.guarantee("G15")]

HOLD_S = 120
VERSIONS = pytest.mark.parametrize("habits", [("clings",), ("clings", "v2")], ids=["v1", "v2"])
SESSIONS = 3
KILLS = 500 if os.environ.get("TURNWIRE_SOAK") == "1" else 6
LONGEST_LIFE_S = 1.5
"""Longest time from a start to the next kill. Some kills hit a daemon that is still adopting."""
KINDS = ("work 150", "flood 700", "quick", "ask word", "hold word", "queue")
QUEUE = ("work 60", "quick", "flood 50")


class Restarts:
    """Daemons on one folder, each started after the one before was killed."""

    def __init__(self, folder: Folder, daemons: Daemons) -> None:
        self.folder = folder
        self._daemons = daemons
        self._number = 0
        self._life: Life | None = None

    async def start(self) -> None:
        self._number += 1
        self._life = await self._daemons.start(self.folder.start(Manner(number=self._number)))
        await self._life.announced()

    async def kill(self) -> None:
        assert self._life is not None
        self._life.kill()
        await self._daemons.bury(self._life)

    async def restart(self) -> None:
        await self.kill()
        await self.start()


@asynccontextmanager
async def restarting(
    path: Path, *habits: str, hold_s: float = HOLD_S
) -> AsyncGenerator[tuple[Restarts, DaemonClient]]:
    """Run a daemon that can be killed, and a client of it."""
    with closing(Folder(path, hold_s=hold_s, habits=habits)) as folder:
        async with open_daemons() as daemons, DaemonClient(folder.url, TOKEN) as client:
            restarts = Restarts(folder, daemons)
            await restarts.start()
            yield restarts, client


def text_of(event: Envelope) -> str | None:
    """Return the text of a message, or of its chunk."""
    if event.type != "session_update":
        return None
    content: Any = event.data["update"].get("content")
    blocks = cast("list[Any]", content) if isinstance(content, list) else [content]
    return next((each["text"] for each in blocks if each), None)


class Clients:
    """Clients that prompt until told to stop."""

    def __init__(self, client: DaemonClient, random: Random) -> None:
        self._client = client
        self._random = random
        self._number = 0
        self.is_over = False
        self.ends: dict[str, tuple[str, str]] = {}
        """What each tag was to do, and how its turn ended."""

    async def run(self, session_id: str) -> None:
        """Prompt one session again and again. Answer its permission requests and cancel what holds."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow, session_id)
            while not self.is_over:
                kind = self._random.choice(KINDS)
                async with anyio.create_task_group() as prompts:
                    for each in QUEUE if kind == "queue" else (kind,):
                        prompts.start_soon(self._prompt, session_id, each)
            tasks.cancel_scope.cancel()

    async def _prompt(self, session_id: str, kind: str) -> None:
        self._number += 1
        tag = f"{session_id[-4:]}-{self._number}"
        try:
            self.ends[tag] = kind, (await self._client.prompt(session_id, f"{tag} {kind}")).stop_reason
        except TurnError as error:
            self.ends[tag] = kind, f"{error.context.get('reason')}: {error}"

    async def _follow(self, session_id: str) -> None:
        async with aclosing(self._client.events(session_id, 0)) as events:
            async for each in events:
                if each.type == "permission_request":
                    option = each.data["options"][0]["optionId"]
                    await self._client.answer_permission(session_id, each.data["requestId"], option)
                elif (text_of(each) or "").endswith("hold word"):
                    await self._client.cancel(session_id, each.prompt_id)

    def check(self, texts: list[str]) -> None:
        """Check how the turns ended, and that their texts are what the agent wrote: all, each once, in order."""
        for tag, (kind, end) in self.ends.items():
            assert end == ("cancelled" if kind.startswith("hold") else "end_turn"), (tag, kind, end)
            user, *rest = (each for each in texts if each.split(" ")[0] == tag)
            assert user == f"{tag} {kind}"
            what, _, number = kind.partition(" ")
            count = int(number) if what == "flood" else len(rest)
            assert rest == ([tag] if what == "quick" else [f"{tag} {each}" for each in range(count)]), (tag, kind)


async def texts_of(client: DaemonClient, session_id: str) -> list[str]:
    found: list[str] = []
    async with aclosing(client.events(session_id, 0)) as events:
        async for each in events:
            if each.type == "replay_complete":
                break
            if (text := text_of(each)) is not None:
                found.append(text)
    return found


@VERSIONS
@pytest.mark.soaked
@pytest.mark.full("starts a daemon again and again")
async def test_turns_end_as_their_agent_ended_them_whenever_the_daemon_is_killed(
    tmp_path: Path, habits: tuple[str, ...]
) -> None:
    seed = os.environ.get("TURNWIRE_CRASH_SEED") or secrets.token_hex(4)
    random = Random(seed)
    with anyio.fail_after(LONG_S + 5 * KILLS):
        async with restarting(tmp_path / "daemon", *habits) as (restarts, client):
            clients = Clients(client, random)
            sessions = [
                (await client.create_session(str(restarts.folder.path))).session_id for _ in range(SESSIONS)
            ]
            async with anyio.create_task_group() as tasks:
                for each in sessions:
                    tasks.start_soon(clients.run, each)
                for _ in range(KILLS):
                    await anyio.sleep(random.uniform(0, LONGEST_LIFE_S))
                    await restarts.restart()
                clients.is_over = True
            texts = [text for each in sessions for text in await texts_of(client, each)]
            prompts = Counter(tag for tag, _ in restarts.folder.tags())
            complaints = restarts.folder.complaints()
    why = f"TURNWIRE_CRASH_SEED={seed}"
    clients.check(texts)
    assert set(prompts.values()) == {1}, f"{why}: the agent got a prompt twice"
    assert clients.ends.keys() <= prompts.keys(), why
    assert not complaints, f"{why}: {complaints[:5]}"


async def until(events: AsyncGenerator[Envelope], is_it: Callable[[Envelope], bool]) -> Envelope:
    """Read on to an event."""
    async for each in events:
        if is_it(each):
            return each
    pytest.fail("the events ended before that")


@VERSIONS
async def test_a_permission_request_is_answered_once_after_the_daemon_was_killed(
    tmp_path: Path, habits: tuple[str, ...]
) -> None:
    with anyio.fail_after(WAIT_S):
        async with (
            restarting(tmp_path / "daemon", *habits) as (restarts, client),
            anyio.create_task_group() as tasks,
        ):
            session_id = (await client.create_session(str(restarts.folder.path))).session_id
            tasks.start_soon(client.prompt, session_id, "s-1 ask word")
            async with aclosing(client.events(session_id, 0)) as events:
                asked = await until(events, lambda each: each.type == "permission_request")
                await restarts.restart()
                request_id, option = asked.data["requestId"], asked.data["options"][0]["optionId"]
                assert await client.answer_permission(session_id, request_id, option)
                await restarts.restart()
                end = await until(events, lambda each: each.type in {"turn_complete", "turn_error"})
                assert end.data["stopReason"] == "end_turn"


@pytest.mark.guarantee("G14")
async def test_agents_end_when_no_daemon_comes_in_time(tmp_path: Path) -> None:
    """The agent has a grandchild in its own process session, which ends as well."""
    with anyio.fail_after(WAIT_S):
        async with restarting(tmp_path / "daemon", "clings", hold_s=0.5) as (restarts, client):
            session_id = (await client.create_session(str(restarts.folder.path))).session_id
            ends: list[object] = []

            async def prompt() -> None:
                with pytest.raises(TurnError) as raised:
                    await client.prompt(session_id, "s-1 hold on")
                ends.append(raised.value.context["reason"])

            async with anyio.create_task_group() as tasks, aclosing(client.events(session_id, 0)) as events:
                tasks.start_soon(prompt)
                await until(events, lambda each: each.type == "prompt_sent")
                await restarts.kill()
                await restarts.folder.agents_gone(1)
                assert not list((restarts.folder.log.parent / "held").iterdir())
                await restarts.start()
            assert ends == ["daemon_restarted"]


async def test_an_agent_that_ends_while_no_daemon_runs_ends_its_turn_with_its_exit(tmp_path: Path) -> None:
    with anyio.fail_after(WAIT_S):
        async with restarting(tmp_path / "daemon") as (restarts, client):
            session_id = (await client.create_session(str(restarts.folder.path))).session_id
            async with anyio.create_task_group() as tasks, aclosing(client.events(session_id, 0)) as events:

                async def prompt() -> None:
                    with pytest.raises(TurnError):
                        await client.prompt(session_id, "s-1 hold on")

                tasks.start_soon(prompt)
                await until(events, lambda each: each.type == "prompt_sent")
                await restarts.kill()
                mark = f"recording_agent.py\0{restarts.folder.record}".encode()
                [agent] = [each for each in processes_with(mark) if is_agent(each)]
                os.kill(agent, 9)
                await restarts.start()
                end = await until(events, lambda each: each.type == "turn_error")
                assert (end.data["code"], end.data["signal"]) == ("agent_exited", "SIGKILL")


def is_agent(pid: int) -> bool:
    """Return whether this is the agent itself and not its holder, whose command line contains the agent's."""
    return b"--" not in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
