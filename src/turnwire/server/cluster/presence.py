"""Reports of this node's clients to the other nodes: whether a session is attended, and its number of clients.

Every other node receives the clients at sessions here: changes, and the whole list every `RENEWED_EVERY_S`, because
entries that are not renewed expire. So a node already knows the clients when a session moves to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import anyio

from turnwire.clock import Clock
from turnwire.errors import NodeUnreachable, ShuttingDown
from turnwire.ids import SessionId
from turnwire.server.cluster.link import NodeLinks
from turnwire.server.daemon.clients import Clients, There

RENEWED_EVERY_S: Final = 20.0
GATHERED_S: Final = 0.2
"""Interval in which changes are combined: a crowd that reconnects is one message, not a thousand."""
LOOKED_EVERY_S: Final = 1.0
"""Maximum delay until a new node is notified."""
REACHED_S: Final = 2.0
"""Timeout for a node that does not answer, during which the others wait for the next message."""


class Presence:
    """Sender of this node's clients to the other nodes."""

    def __init__(self, life: int, clients: Clients, links: NodeLinks, clock: Clock) -> None:
        self._life = life
        self._clients = clients
        self._links = links
        self._clock = clock
        self._told: dict[int, Mapping[SessionId, There]] = {}
        """The last list that each incarnation was sent."""
        self._changed = anyio.Event()
        clients.changed = self._wake

    def _wake(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        """Send lists and changes. Runs until cancelled."""
        renewed_at = -math.inf
        while True:
            await self._until_changed()
            is_changed, self._changed = self._changed.is_set(), anyio.Event()
            is_due = self._clock.monotonic() - renewed_at >= RENEWED_EVERY_S
            if is_due:
                renewed_at = self._clock.monotonic()
            others = {each.number for each in self._links.lives()} - {self._life}
            if is_due or is_changed or not self._told.keys() >= others:
                await self._tell_all(others, is_due=is_due)
                await self._clock.sleep(GATHERED_S)

    async def _until_changed(self) -> None:
        """Wait for a change, or for `LOOKED_EVERY_S`."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._time, tasks.cancel_scope)
            await self._changed.wait()
            tasks.cancel_scope.cancel()

    async def _time(self, waiting: anyio.CancelScope) -> None:
        await self._clock.sleep(LOOKED_EVERY_S)
        waiting.cancel()

    async def _tell_all(self, others: set[int], *, is_due: bool) -> None:
        there = self._clients.there()
        async with anyio.create_task_group() as tasks:
            for life in others:
                tasks.start_soon(self._tell, life, there, is_due)
        self._told = {life: told for life, told in self._told.items() if life in others}

    async def _tell(self, life: int, there: Mapping[SessionId, There], is_due: bool) -> None:
        # Removed until the send succeeds: after a failure the node is sent the whole list.
        before = self._told.pop(life, None)
        whole = is_due or before is None
        news = there if whole or before is None else _changes(before, there)
        if news or (whole and before):
            try:
                with anyio.fail_after(REACHED_S):
                    (await self._links.reach(life)).present(news, whole=whole)
            except (NodeUnreachable, ShuttingDown, TimeoutError):
                return
        self._told[life] = there


def _changes(before: Mapping[SessionId, There], there: Mapping[SessionId, There]) -> dict[SessionId, There]:
    gone = {name: There() for name in before if name not in there}
    return gone | {name: each for name, each in there.items() if before.get(name) != each}
