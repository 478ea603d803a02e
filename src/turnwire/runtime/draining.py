"""Graceful shutdown: running turns get time to end, queued prompts stay queued, other nodes get the sessions.

The caller has stopped accepting prompts. If nodes share the log, each session is released as soon as nothing works
for it: at once if it is idle. A session whose turn had to be ended stays until its agent ends together with this
node.
"""

from __future__ import annotations

from contextlib import suppress

import anyio

from turnwire.clock import Clock
from turnwire.errors import TurnwireError
from turnwire.ids import SessionId
from turnwire.runtime.node import Node
from turnwire.session.inputs import AgentGone, HoldQueue
from turnwire.session.queue import STOPPING

STOPPED = "daemon_stopped"
AGAIN_S = 0.02
"""Pause while a prompt that arrived just before is being stored. That takes some milliseconds; then its
turn runs.
"""


async def drain(node: Node, clock: Clock, seconds: float) -> None:
    """Hold every queue, wait for running turns, then end the rest with `daemon_stopped`.

    Queued prompts stay in the queue for the next start, or for the next owner of the session.
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
    """Return true if no turn runs, now or within `seconds`. No turn starts meanwhile."""
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
    await clock.sleep(max(0.0, seconds))
    scope.cancel()


async def _until_quiet(node: Node, session_id: SessionId) -> None:
    """Wait until no turn is active. Every step of a turn is an event, so watching the session's tail is enough."""
    while True:
        session = await node.session(session_id)
        head = session.tail.head
        if session.state.turn is None:
            return
        await session.tail.wait(head)
