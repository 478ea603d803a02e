"""Stopping in good order: what runs may come to its end, what waits stays in the queue for the next start.

Takes a node and a number of seconds; returns when no turn is open any more. Turns that are still open at the
deadline get their end, `turn_error` with `daemon_stopped`. Never drops a queued prompt.
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


async def drain(node: Node, clock: Clock, seconds: float) -> None:
    """Hold every queue, let running turns end, then end the rest. The caller has stopped taking prompts."""
    async with anyio.create_task_group() as tasks:
        for session_id in list(node.loaded):
            tasks.start_soon(_drain_session, node, clock, session_id, seconds)


async def _drain_session(node: Node, clock: Clock, session_id: SessionId, seconds: float) -> None:
    with suppress(TurnwireError):
        session = await node.session(session_id)
        if not session.state.unsettled:
            return
        await node.submit(session_id, HoldQueue(at=clock.now_ms(), reason=STOPPING))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_stop_at, clock, seconds, tasks.cancel_scope)
            await _until_quiet(node, session_id)
            tasks.cancel_scope.cancel()
        if (await node.session(session_id)).state.turn is not None:
            message = "the daemon was stopped before the turn ended"
            gone = AgentGone(at=clock.now_ms(), code=STOPPED, message=message)
            await node.submit(session_id, gone)


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
