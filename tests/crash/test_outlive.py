"""An agent outlives its daemon: the daemon is killed, and the next one continues its turns."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, closing
from pathlib import Path

import anyio
import pytest
from tests.crash.daemon_life import TOKEN, WAIT_S, Daemons, Folder, Life, Manner, open_daemons
from tests.process.starting import needs_linux

from turnwire.client.daemon_client import DaemonClient, Envelope

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
                print(texts(seen))
                print(folder.errors.read_text())
                assert seen[-1].type == "turn_complete"
