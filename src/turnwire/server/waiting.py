"""Waiting for one event of a turn on behalf of a request.

Takes a position in a session's log and what to look for; gives the first event that is it, or none when the time is
over, the daemon stops or the client has left. Never touches the turn: whoever waits, or stops waiting, changes
nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import TypeVar

import anyio
from starlette.requests import Request

from turnwire.core.codec import decode
from turnwire.core.events import Event, TurnEvent
from turnwire.errors import TurnwireError
from turnwire.ids import PromptId, SessionId
from turnwire.log.base import Position
from turnwire.runtime.node import Node
from turnwire.server.endpoint import Call

Found = TypeVar("Found", bound=TurnEvent)


async def wait_for(
    call: Call, after: Position, prompt_id: PromptId, kinds: tuple[type[Found], ...], seconds: float
) -> Found | None:
    """The first event of one of `kinds` about this prompt."""
    daemon = call.daemon
    found: Found | None = None
    async with anyio.create_task_group() as tasks:

        async def give_up_after(wait: Callable[[], Awaitable[object]]) -> None:
            await wait()
            tasks.cancel_scope.cancel()

        tasks.start_soon(give_up_after, partial(daemon.clock.sleep, seconds))
        tasks.start_soon(give_up_after, daemon.stopping.wait)
        tasks.start_soon(give_up_after, partial(_left, call.request))
        found = await _find(daemon.node, call.session_id, after, prompt_id, kinds)
        tasks.cancel_scope.cancel()
    return found


async def _find(
    node: Node, session_id: SessionId, after: Position, prompt_id: PromptId, kinds: tuple[type[Found], ...]
) -> Found | None:
    begins = tuple(map(_beginning, kinds))
    try:
        async with aclosing(node.follow(session_id, after)) as pages:
            async for page in pages:
                for body in page.frames:
                    # Nearly all events are updates; those need no decoding to be known as something else.
                    if not body.startswith(begins):
                        continue
                    event = decode(body)
                    if isinstance(event, kinds) and event.prompt_id == prompt_id:
                        return event
    except TurnwireError:
        # The prompt is accepted all the same; its client can follow it from there.
        return None
    return None


def _beginning(kind: type[Event]) -> bytes:
    """How the stored form of an event of this kind begins, in every version of it."""
    return b'{"type":"%b' % str(kind.__struct_config__.tag).encode()


async def _left(request: Request) -> None:
    """Until the client is gone. What it sends meanwhile means nothing."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
