"""Stopping in good order: turns get time to end, what waits is kept, and other nodes get what is left.

The caller has stopped taking prompts. Where nodes share the log, sessions are let go as soon as nothing is at work
for them: at once if they are idle. One whose turn had to be ended stays until its agent has ended with this node.
"""

from __future__ import annotations

from contextlib import suppress

import anyio

from turnwire.core.inputs import AgentGone, HoldQueue
from turnwire.core.queue import STOPPING
from turnwire.errors import TurnwireError
from turnwire.ids import SessionId
from turnwire.runtime.clock import Clock
from turnwire.runtime.node import Node

STOPPED = "daemon_stopped"
AGAIN_S = 0.02
"""A prompt that came just before is being stored: some milliseconds, and then its turn runs."""


async def drain(node: Node, clock: Clock, seconds: float) -> None:
    """Hold every queue, let running turns end, then end the rest with `daemon_stopped`.

    What waits stays in the queue for the next start, or for the node that has the session next.
    """
    shared = await node.leave()
    async with anyio.create_task_group() as tasks:
        for session_id in node.loaded.keys() | shared:
            tasks.start_soon(_drain_session, node, clock, session_id, seconds)


async def _drain_session(node: Node, clock: Clock, session_id: SessionId, seconds: float) -> None:
    until = clock.monotonic() + seconds
    with suppress(TurnwireError):
        while session_id not in node.loaded or await _is_settled(
            node, clock, session_id, until - clock.monotonic()
        ):
            if await node.let_go(session_id) or clock.monotonic() >= until:
                return
            await clock.sleep(AGAIN_S)
        message = "the daemon was stopped before the turn ended"
        await node.submit(session_id, AgentGone(at=clock.now_ms(), code=STOPPED, message=message))


async def _is_settled(node: Node, clock: Clock, session_id: SessionId, seconds: float) -> bool:
    """Whether no turn runs, now or in time. Nothing starts meanwhile."""
    session = await node.session(session_id)
    if not session.state.unsettled:
        return True
    await node.submit(session_id, HoldQueue(at=clock.now_ms(), reason=STOPPING))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_at, clock, seconds, tasks.cancel_scope)
        await _until_quiet(node, session_id)
        tasks.cancel_scope.cancel()
    return (await node.session(session_id)).state.turn is None


async def _stop_at(clock: Clock, seconds: float, scope: anyio.CancelScope) -> None:
    await clock.sleep(seconds)
    scope.cancel()


async def _until_quiet(node: Node, session_id: SessionId) -> None:
    """Until no turn is active. Every step of a turn is an event, so the session's tail tells."""
    while True:
        session = await node.session(session_id)
        head = session.tail.head
        if session.state.turn is None:
            return
        await session.tail.wait(head)
