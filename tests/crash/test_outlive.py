"""An agent outlives its daemon: the daemon is killed, and the next one continues its turns."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing, closing
from pathlib import Path
from random import Random

import anyio
import pytest
from tests.crash.daemon_life import TOKEN, WAIT_S, Daemons, Folder, Life, Manner, open_daemons
from tests.process.starting import needs_linux

from turnwire.client.daemon_client import DaemonClient, Envelope
from turnwire.errors import TurnError

pytestmark = [pytest.mark.anyio, needs_linux]

HOLD_S = 60


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


async def end_of(events: AsyncGenerator[Envelope]) -> Envelope:
    """Read on to the end of a turn."""
    async for each in events:
        if each.type in {"turn_complete", "turn_error"}:
            return each
    pytest.fail("the events ended before the turn")


def texts(events: list[Envelope]) -> list[str]:
    return [each.data["update"]["content"]["text"] for each in events if each.type == "session_update"]


async def test_a_running_turn_continues_after_a_kill(tmp_path: Path) -> None:
    with anyio.fail_after(WAIT_S), closing(Folder(tmp_path / "daemon", hold_s=HOLD_S)) as folder:
        async with open_daemons() as daemons:
            restarts = Restarts(folder, daemons)
            await restarts.start()
            async with DaemonClient(folder.url, TOKEN) as client:
                session_id = (await client.create_session(str(folder.path))).session_id
                seen: list[Envelope] = []
                async with anyio.create_task_group() as tasks, aclosing(client.events(session_id, 0)) as events:
                    tasks.start_soon(client.prompt, session_id, "s-1 work 2000")
                    async for each in events:
                        seen.append(each)
                        if len(texts(seen)) == 5:
                            await restarts.kill()
                            await restarts.start()
                        if each.type in {"turn_complete", "turn_error"}:
                            break
                print(seen[-1])
                print([(e.type, e.data) for e in seen])
                print(folder.errors.read_text())
                assert seen[-1].type == "turn_complete"


class Sessions:
    """Clients that prompt until told to stop, and what they saw."""

    def __init__(self, client: DaemonClient, random: Random) -> None:
        self._client = client
        self._random = random
        self.is_over = False
        self.ends: dict[str, str] = {}
        """How the turn of each tag ended."""
        self.seen: dict[str, list[str]] = {}
        """The texts of each session, in order."""
        self._number = 0
        self.waiting: set[str] = set()
        self.kinds: dict[str, tuple[str, str | None]] = {}

    async def run(self, session_id: str) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow, session_id)
            while not self.is_over:
                kinds = ["work 150", "flood 700", "quick", "ask word", "hold word", "queue"]
                kind = self._random.choice(kinds)
                if kind == "queue":
                    async with anyio.create_task_group() as queue:
                        for each in ("work 60", "quick", "flood 50"):
                            queue.start_soon(self._prompt, session_id, each)
                else:
                    await self._prompt(session_id, kind)
            tasks.cancel_scope.cancel()

    async def _prompt(self, session_id: str, kind: str) -> None:
        self._number += 1
        tag = f"{session_id[-4:]}-{self._number}"
        self.waiting.add(f"{tag} {kind}")
        try:
            self.ends[tag] = (await self._client.prompt(session_id, f"{tag} {kind}")).stop_reason
        except TurnError as error:
            self.ends[tag] = f"{kind}: {error.context.get('reason')} {error}"
        self.waiting.discard(f"{tag} {kind}")
        self.kinds[tag] = (kind, self.ends[tag])

    async def read_again(self, session_id: str) -> None:
        """Read the session from its first event on: what was read live must be its beginning."""
        live, whole = self.seen[session_id], list[str]()
        async with aclosing(self._client.events(session_id, 0)) as events:
            async for each in events:
                if each.type == "session_update":
                    whole += texts([each])
                elif each.type == "replay_complete":
                    break
        assert whole[: len(live)] == live
        self.seen[session_id] = whole

    def check(self) -> None:
        """Check that the updates of each turn are what the agent wrote: all, once, in order."""
        for tag, (kind, end) in self.kinds.items():
            if end is None:
                continue
            assert end == ("cancelled" if kind.startswith("hold") else "end_turn"), (tag, kind, end)
            got = [each for seen in self.seen.values() for each in seen if each.split(" ")[0] == tag]
            user, *rest = got
            assert user == f"{tag} {kind}"
            what, _, number = kind.partition(" ")
            if what == "flood":
                assert len(rest) == int(number), (tag, kind, len(rest))
            assert rest == ([tag] if what == "quick" else [f"{tag} {n}" for n in range(len(rest))]), (kind, rest)

    async def _follow(self, session_id: str) -> None:
        seen = self.seen[session_id] = []
        async with aclosing(self._client.events(session_id, 0)) as events:
            async for each in events:
                if each.type == "permission_request":
                    option = each.data["options"][0]["optionId"]
                    await self._client.answer_permission(session_id, each.data["requestId"], option)
                elif each.type == "session_update":
                    seen += texts([each])
                    text = texts([each])[0]
                    if text.endswith("hold word"):
                        await self._client.cancel(session_id, each.prompt_id)


async def test_turns_end_as_the_agent_ended_them_whenever_the_daemon_is_killed(tmp_path: Path) -> None:
    kills = int(os.environ.get("KILLS", "15"))
    random = Random(os.environ.get("SEED", "1"))
    with anyio.fail_after(30 + 4 * kills), closing(Folder(tmp_path / "daemon", hold_s=HOLD_S)) as folder:
        async with open_daemons() as daemons:
            restarts = Restarts(folder, daemons)
            await restarts.start()
            async with DaemonClient(folder.url, TOKEN) as client:
                sessions = Sessions(client, random)
                ids = [(await client.create_session(str(folder.path))).session_id for _ in range(3)]
                async with anyio.create_task_group() as tasks:
                    for each in ids:
                        tasks.start_soon(sessions.run, each)
                    for _ in range(kills):
                        await anyio.sleep(random.uniform(0, 1.5))
                        await restarts.kill()
                        await restarts.start()
                    sessions.is_over = True
                    with anyio.move_on_after(15):
                        while sessions.waiting:
                            await anyio.sleep(0.1)
                    print("WAITING", sessions.waiting)
                    for each in ids if sessions.waiting else ():
                        got = []
                        with anyio.move_on_after(1):
                            async with aclosing(client.events(each, 0)) as events:
                                async for x in events:
                                    got.append((x.id, x.type, x.data))
                        print(each, *[str(x)[:300] for x in got[-14:]], sep="\n   ")
                    print(folder.errors.read_text()[-6000:])
                    tasks.cancel_scope.cancel()
                for each in ids:
                    await sessions.read_again(each)
            print(len(sessions.ends), Counter(sessions.ends.values()))
            sessions.check()
            tags = Counter(tag for tag, _ in folder.tags())
            assert set(tags.values()) == {1}, tags
            print(folder.errors.read_text()[-3000:])
