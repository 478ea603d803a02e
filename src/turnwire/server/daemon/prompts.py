"""A prompt on its way into the log, and what the log then says of it.

Over REST the agent hears of a prompt only after `Taken.told`: whoever sent it shall have the answer first. Whether
a prompt runs, waits or is refused is decided by the session. Whoever waits here for a turn, or stops, changes
nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar, cast

import anyio
import msgspec
from msgspec.structs import replace

from turnwire.core.codec import decode, stored_prefix
from turnwire.core.events import (
    PromptInjected,
    SteerDeclined,
    SteerRefusal,
    TurnCompleted,
    TurnEvent,
    TurnFailed,
    TurnStarted,
)
from turnwire.core.inputs import Prompt, WhenBusy
from turnwire.core.queue import Accepted
from turnwire.core.state import Turn, find_turn
from turnwire.core.turn import TurnState
from turnwire.errors import TurnwireError
from turnwire.ids import Epoch, PromptId, SessionId
from turnwire.log.base import Position
from turnwire.runtime.node import Node
from turnwire.server.daemon.daemon import Daemon
from turnwire.wire.jsonrpc import raw

KEY_LENGTH = 255
"""An idempotency key is an id, not a document."""

Found = TypeVar("Found", bound=TurnEvent)


class Taken(NamedTuple):
    """A prompt that is in the log."""

    accepted: Accepted
    epoch: Epoch
    turn: Turn | None
    """Its turn as it stands now; none if that has ended."""
    told: Callable[[], None]
    """Says that the client has its answer, or cannot have it. May be called twice."""

    @property
    def prompt_id(self) -> PromptId:
        return self.accepted.prompt_id

    @property
    def position(self) -> Position:
        """Where a reader starts who wants all of the turn."""
        return Position(self.epoch, self.accepted.after_offset)


async def submit_prompt(
    daemon: Daemon,
    session_id: SessionId,
    prompt: Prompt,
    meta: Mapping[str, Any],
    carrier: Mapping[str, str],
    *,
    waits: bool = False,
) -> tuple[Accepted, Callable[[], None]]:
    """Have the prompt accepted. Its agent gets `meta`, with the trace that begins here or that `carrier` names.

    `waits`: the agent is not asked before the second part is called. Raises what the session refuses it with; then
    there is no turn.
    """
    trace = daemon.traces.begin(carrier)
    meta = {**meta, **trace.meta}
    if meta:
        prompt = replace(prompt, meta=raw(meta))
    try:
        if waits:
            accepted, told = await daemon.node.accept(session_id, prompt)
        else:
            accepted, told = cast("Accepted", await daemon.node.submit(session_id, prompt)), _nobody_waits
    except TurnwireError as error:
        trace.refused(error)
        raise
    trace.accepted(session_id, accepted.prompt_id)
    return accepted, told


def _nobody_waits() -> None: ...


async def take_prompt(
    daemon: Daemon, session_id: SessionId, prompt: Prompt, meta: Mapping[str, Any], carrier: Mapping[str, str]
) -> Taken:
    """`submit_prompt` for who is answered at once, with where the prompt stands; its agent waits for that."""
    accepted, told = await submit_prompt(daemon, session_id, prompt, meta, carrier, waits=True)
    try:
        session = await daemon.node.peek(session_id)
        return Taken(accepted, session.epoch, find_turn(session.state, accepted.prompt_id), told)
    except BaseException:
        # It is accepted all the same: the log went away behind it, or its client did. Nobody is left to wait for.
        told()
        raise


STEER_ANSWER_S = 10.0
"""How long the agent gets to say whether it takes a prompt in; measured agents answer within one."""
ASKED = "asked"
"""Why a steering prompt waits whose agent has not said yet whether it takes it."""

_STEERED = (PromptInjected, TurnStarted, SteerDeclined, TurnCompleted, TurnFailed)
"""What tells what became of a steering prompt. One that ended before it was taken in was only queued."""


class Steered(NamedTuple):
    """What became of a steering prompt, and why, if it is not what was wanted."""

    outcome: Literal["injected", "queued", "started"]
    reason: str | None = None
    """One of `SteerRefusal`, or `ASKED`."""


async def steered(
    daemon: Daemon, session_id: SessionId, taken: Taken, seconds: float, left: Callable[[], Awaitable[object]]
) -> Steered:
    """What became of a steering prompt, waiting so long for the agent's word.

    The agent does not wait for its client's answer then, since that waits for the agent.
    """
    try:
        return await _steered(daemon, session_id, taken, seconds, left)
    except BaseException:
        taken.told()
        raise


async def _steered(
    daemon: Daemon, session_id: SessionId, taken: Taken, seconds: float, left: Callable[[], Awaitable[object]]
) -> Steered:
    if taken.turn is not None and taken.turn.steering:
        if not seconds:
            return Steered("queued", ASKED)
        taken.told()
    told = await wait_for(daemon, session_id, taken, _STEERED, seconds or STEER_ANSWER_S, left)
    match told:
        case PromptInjected():
            return Steered("injected")
        case TurnStarted():
            return Steered("started", SteerRefusal.NO_TURN)
        case SteerDeclined(reason=reason):
            # It may have started with the same commit.
            is_waiting = await _is_waiting(daemon.node, session_id, taken.prompt_id)
            return Steered("queued" if is_waiting else "started", reason)
        case None:
            return Steered("queued", ASKED)
        case _:
            return Steered("queued", SteerRefusal.DECLINED)


async def _is_waiting(node: Node, session_id: SessionId, prompt_id: PromptId) -> bool:
    """Whether a prompt has not started; also one that ended without."""
    turn = find_turn((await node.peek(session_id)).state, prompt_id)
    if turn is not None:
        return turn.state is TurnState.QUEUED
    record = await node.look(session_id, lambda view: view.turn(prompt_id))
    return record is None or record.started_at is None


def digest(prompt: Any, meta: dict[str, Any] | None, when_busy: WhenBusy) -> str:
    """What makes two prompts the same: not the order of members, and not the trace of the request."""
    meta = {name: value for name, value in (meta or {}).items() if name not in {"traceparent", "tracestate"}}
    same = {"prompt": prompt, "whenBusy": when_busy, "_meta": meta}
    return hashlib.sha256(msgspec.json.encode(same, order="sorted")).hexdigest()


async def wait_for(
    daemon: Daemon,
    session_id: SessionId,
    taken: Taken,
    kinds: tuple[type[Found], ...],
    seconds: float,
    left: Callable[[], Awaitable[object]],
) -> Found | None:
    """The first event of one of `kinds` about this prompt.

    None when the time is over, the daemon stops, or `left` returns: then whoever wanted to know is gone.
    """
    found: Found | None = None
    async with anyio.create_task_group() as tasks:

        async def give_up_after(wait: Callable[[], Awaitable[object]]) -> None:
            await wait()
            tasks.cancel_scope.cancel()

        tasks.start_soon(give_up_after, partial(daemon.clock.sleep, seconds))
        tasks.start_soon(give_up_after, daemon.stopping.wait)
        tasks.start_soon(give_up_after, left)
        found = await _find(daemon.node, session_id, taken, kinds)
        tasks.cancel_scope.cancel()
    return found


async def _find(node: Node, session_id: SessionId, taken: Taken, kinds: tuple[type[Found], ...]) -> Found | None:
    begins = tuple(stored_prefix(kind, any_version=True) for kind in kinds)
    try:
        async with aclosing(node.follow(session_id, taken.position)) as pages:
            async for page in pages:
                for body in page.frames:
                    # Nearly all events are updates; those need no decoding to be known as something else.
                    if not body.startswith(begins):
                        continue
                    event = decode(body)
                    if isinstance(event, kinds) and event.prompt_id == taken.prompt_id:
                        return event
    except TurnwireError:
        # The prompt is accepted all the same; its client can follow it from there.
        return None
    return None
