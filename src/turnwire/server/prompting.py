"""A prompt on its way from a request into the log.

Takes a checked body and the headers that go with it; gives what the log says of it. The agent hears of the prompt
only after `told`, which the caller hands on as `Reply.then`, or calls itself when the answer depends on the agent.
Never decides whether a prompt runs, waits or is refused: the session does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct, field

from turnwire.core.inputs import Prompt, WhenBusy
from turnwire.core.queue import Accepted
from turnwire.core.state import Turn, find_turn
from turnwire.errors import (
    BadRequest,
    ContentRefused,
    IdempotencyConflict,
    QueueFull,
    SessionBusy,
    ShuttingDown,
    TurnwireError,
)
from turnwire.ids import Epoch, PromptId, RequestId
from turnwire.log.base import Position
from turnwire.runtime import new_ids
from turnwire.server.endpoint import Call
from turnwire.server.turn_shapes import ACTS
from turnwire.wire.jsonrpc import raw

KEY_LENGTH = 255
"""An idempotency key is an id, not a document."""
LONGEST_MS = 7 * 86_400_000
"""A week; a turn that may take longer needs no deadline."""

Content = Annotated[list[dict[str, Any]], Meta(min_length=1)]
"""Content blocks of ACP, at least one."""

REFUSALS: tuple[type[TurnwireError], ...] = (
    *ACTS,
    BadRequest,
    ContentRefused,
    SessionBusy,
    QueueFull,
    IdempotencyConflict,
    ShuttingDown,
)
"""What a prompt may be refused with."""


class SteerBody(Struct, frozen=True, kw_only=True, rename="camel"):
    """A prompt."""

    prompt: Content
    meta: dict[str, Any] | None = field(default=None, name="_meta")
    """For the agent, as it is."""
    deadline_ms: Annotated[int, Meta(gt=0, le=LONGEST_MS)] | None = None
    """The turn is cancelled if it has not ended after so many milliseconds, waiting included."""
    prompt_request_id: RequestId | None = None
    """The caller's own id for the prompt; events of the turn's end repeat it."""


class PromptBody(SteerBody, frozen=True, kw_only=True, rename="camel"):
    """A prompt, and what it wants when a turn is running already."""

    when_busy: WhenBusy = WhenBusy.QUEUE


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


async def take_prompt(call: Call, body: SteerBody, when_busy: WhenBusy) -> Taken:
    """Have the prompt accepted. Raises one of `REFUSALS`; then there is no turn."""
    daemon, session_id = call.daemon, call.session_id
    daemon.check_open()
    key = _key(call)
    client_id = await daemon.clients.known(session_id, call.client_id, call.who)
    trace = daemon.traces.begin(call.request.headers)
    now = daemon.clock.now_ms()
    meta = {**(body.meta or {}), **trace.meta}
    given = Prompt(
        at=now,
        author=call.who.name,
        client_id=client_id,
        prompt_id=new_ids.prompt_id(),
        content=raw(body.prompt),
        when_busy=when_busy,
        prompt_request_id=body.prompt_request_id,
        key=key,
        digest=None if key is None else digest(body.prompt, body.meta, when_busy),
        meta=raw(meta) if meta else None,
        deadline_at=None if body.deadline_ms is None else now + body.deadline_ms,
    )
    try:
        accepted, told = await daemon.node.accept(session_id, given)
    except TurnwireError as error:
        trace.refused(error)
        raise
    trace.accepted(session_id, accepted.prompt_id)
    session = await daemon.node.session(session_id)
    return Taken(accepted, session.epoch, find_turn(session.state, accepted.prompt_id), told)


def _key(call: Call) -> str | None:
    key = call.request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= KEY_LENGTH:
        raise BadRequest(f"an Idempotency-Key has 1 to {KEY_LENGTH} characters")
    return key


def digest(prompt: Any, meta: dict[str, Any] | None, when_busy: WhenBusy) -> str:
    """What makes two prompts the same: not the order of members, and not the trace of the request."""
    meta = {name: value for name, value in (meta or {}).items() if name not in {"traceparent", "tracestate"}}
    same = {"prompt": prompt, "whenBusy": when_busy, "_meta": meta}
    return hashlib.sha256(msgspec.json.encode(same, order="sorted")).hexdigest()
