"""Submitting a prompt to the log and waiting for its events.

Over REST the agent gets a prompt only after `Taken.told` was called, so that the client gets its answer first. The
session decides if a prompt runs, waits or is rejected. A caller that waits here for a turn, or stops waiting,
changes nothing.
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

from turnwire.errors import TurnwireError
from turnwire.ids import Epoch, PromptId, SessionId
from turnwire.log.base import Position
from turnwire.runtime.node import Node
from turnwire.server.daemon.daemon import Daemon
from turnwire.session import events as ev
from turnwire.session.codec import decode, stored_prefix
from turnwire.session.inputs import Prompt, WhenBusy
from turnwire.session.queue import Accepted
from turnwire.session.state import Turn, find_turn
from turnwire.session.turn import TurnState
from turnwire.wire.jsonrpc import raw

KEY_LENGTH = 255
"""Longest idempotency key, in characters."""

Found = TypeVar("Found", bound=ev.TurnEvent)


class Taken(NamedTuple):
    """A prompt that is in the log."""

    accepted: Accepted
    epoch: Epoch
    turn: Turn | None
    """The current state of its turn; `None` if the turn has ended."""
    told: Callable[[], None]
    """Called when the client has its answer or cannot get it. May be called twice."""

    @property
    def prompt_id(self) -> PromptId:
        return self.accepted.prompt_id

    @property
    def position(self) -> Position:
        """Return the position from which a reader sees the whole turn."""
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
    """Submit the prompt. Its agent gets `meta`, with the trace that begins here or that `carrier` names.

    `waits`: the agent gets the prompt only after the second part of the result is called. Raises the session's
    rejection; then there is no turn.
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
    """Submit a prompt for a caller that is answered at once; the agent gets it after `Taken.told` is called."""
    accepted, told = await submit_prompt(daemon, session_id, prompt, meta, carrier, waits=True)
    try:
        session = await daemon.node.peek(session_id)
        return Taken(accepted, session.epoch, find_turn(session.state, accepted.prompt_id), told)
    except BaseException:
        # The prompt is accepted even if the log failed after it or its client disconnected: the agent need not wait
        # any longer.
        told()
        raise


STEER_ANSWER_S = 10.0
"""Seconds in which the agent can answer a steering request; measured agents answer within one."""
ASKED = "asked"
"""Reason of a steering prompt that waits because the agent has not answered yet."""

_STEERED = (ev.PromptInjected, ev.TurnStarted, ev.SteerDeclined, ev.TurnCompleted, ev.TurnFailed)
"""Events that decide the outcome of a steering prompt. One that ended before its injection was only queued."""


class Steered(NamedTuple):
    """Outcome of a steering prompt, and the reason if it was not injected."""

    outcome: Literal["injected", "queued", "started"]
    reason: str | None = None
    """One of `SteerRefusal`, or `ASKED`."""


async def steered(
    daemon: Daemon, session_id: SessionId, taken: Taken, seconds: float, left: Callable[[], Awaitable[object]]
) -> Steered:
    """Return the outcome of a steering prompt, waiting up to `seconds` for the agent's answer.

    If it waits, the agent does not wait for the client's answer, because that answer waits for the agent.
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
        case ev.PromptInjected():
            return Steered("injected")
        case ev.TurnStarted():
            return Steered("started", ev.SteerRefusal.NO_TURN)
        case ev.SteerDeclined(reason=reason):
            # It may have started with the same commit.
            is_waiting = await _is_waiting(daemon.node, session_id, taken.prompt_id)
            return Steered("queued" if is_waiting else "started", reason)
        case None:
            return Steered("queued", ASKED)
        case _:
            return Steered("queued", ev.SteerRefusal.DECLINED)


async def _is_waiting(node: Node, session_id: SessionId, prompt_id: PromptId) -> bool:
    """Return whether a prompt has not started; also true for one that ended without a start."""
    turn = find_turn((await node.peek(session_id)).state, prompt_id)
    if turn is not None:
        return turn.state is TurnState.QUEUED
    record = await node.look(session_id, lambda view: view.turn(prompt_id))
    return record is None or record.started_at is None


def digest(prompt: Any, meta: dict[str, Any] | None, when_busy: WhenBusy) -> str:
    """Return a digest that equal prompts share. The order of members and the trace of the request do not count."""
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
    """Wait for the first event of one of `kinds` about this prompt.

    Returns `None` on timeout, when the daemon stops, or when `left` returns because the caller has disconnected.
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
    begins = tuple(stored_prefix(kind) for kind in kinds)
    try:
        async with aclosing(node.follow(session_id, taken.position)) as pages:
            async for page in pages:
                for body in page.frames:
                    # Nearly all events are updates, which can be told apart without decoding.
                    if not body.startswith(begins):
                        continue
                    event = decode(body)
                    if isinstance(event, kinds) and event.prompt_id == taken.prompt_id:
                        return event
    except TurnwireError:
        # The prompt stays accepted; its client can follow it from there.
        return None
    return None
