"""Prompting a session, steering, cancelling and settling a turn, and reading the state of a prompt.

A prompt is answered with 202 at once: it is in the log, the answer is sent, and only then does the agent get the
prompt. A caller that asks for it explicitly gets the older blocking answer, which contains the end of the turn. No
turn depends on its request: a client that disconnects changes nothing. A cancel is requested here and confirmed by
the turn's end: the terminal event reports that a turn is over, no reply does.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field
from msgspec.structs import replace

from turnwire import new_ids
from turnwire.errors import (
    BadRequest,
    ContentRefused,
    IdempotencyConflict,
    LimitExceeded,
    LogFull,
    PromptNotFound,
    QueueFull,
    QueueTooLarge,
    SessionBusy,
    ShuttingDown,
    TurnError,
    TurnwireError,
    UnknownClient,
)
from turnwire.ids import PromptId, RequestId, SessionId
from turnwire.projections.view import View
from turnwire.server.access.tokens import Role
from turnwire.server.bodies import BodyKind
from turnwire.server.daemon.prompts import (
    KEY_LENGTH,
    STEER_ANSWER_S,
    Steered,
    Taken,
    digest,
    steered,
    take_prompt,
    wait_for,
)
from turnwire.server.endpoint import Call, Endpoint, Reply
from turnwire.server.routes.turns import (
    ACTS,
    READS,
    PromptReceipt,
    PromptStatus,
    detail_state,
    find_record,
    queued_at,
)
from turnwire.session.events import TurnCompleted, TurnFailed
from turnwire.session.inputs import Cancel, Prompt, Settle, WhenBusy
from turnwire.session.turn import TurnState
from turnwire.wire.jsonrpc import raw

APPLIED = {"Preference-Applied": "wait"}

_SECONDS = re.compile(r'\s*wait\s*(?:=\s*"?(?P<seconds>\d{1,9})"?\s*)?', re.IGNORECASE)

LONGEST_MS = 7 * 86_400_000
"""One week in milliseconds; a turn that may run longer needs no deadline."""

Content = Annotated[list[dict[str, Any]], Meta(min_length=1)]
"""Content blocks of ACP, at least one."""

REFUSALS: tuple[type[TurnwireError], ...] = (
    *ACTS,
    BadRequest,
    ContentRefused,
    SessionBusy,
    QueueFull,
    QueueTooLarge,
    IdempotencyConflict,
    ShuttingDown,
)
"""Errors that can reject a prompt."""


class SteerBody(Struct, frozen=True, kw_only=True, rename="camel"):
    """A prompt for the running turn."""

    prompt: Content
    meta: dict[str, Any] | None = field(default=None, name="_meta")
    """Metadata, forwarded to the agent unchanged."""
    deadline_ms: Annotated[int, Meta(gt=0, le=LONGEST_MS)] | None = None
    """The turn is cancelled if it has not ended after this many milliseconds, including its time in the queue."""
    prompt_request_id: RequestId | None = None
    """The caller's id for the prompt; the events of the turn's end repeat it."""


class PromptBody(SteerBody, frozen=True, kw_only=True, rename="camel"):
    """A prompt and its treatment if a turn is already running."""

    when_busy: WhenBusy | None = None
    """Defaults to the operator's choice, which `/capabilities` reports as `policy.whenBusy`."""


class PromptQuery(Struct, rename="camel"):
    """The form of the answer."""

    wait: (
        Annotated[
            str,
            Meta(
                pattern=r"^(true|false|\d{1,9})$",
                description="answer at the end of the turn, at most so many seconds later; as `Prefer: wait`",
            ),
        ]
        | None
    ) = None


class PromptReply(PromptReceipt, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The end of the turn, in the blocking answer."""

    stop_reason: str
    usage: Raw | UnsetType = UNSET


class PromptStatusQuery(Struct, rename="camel"):
    """The prompt to look up."""

    prompt_id: Annotated[str, Meta(description="by default the running one, else the newest one")] | None = None


# -- prompting -----------------------------------------------------------------------------------------------


async def prompt(call: Call) -> Reply:
    body: PromptBody = call.body
    seconds = _wanted_wait(call)
    taken = await take(call, body, body.when_busy)
    if seconds is None:
        became = None
        if body.when_busy is WhenBusy.STEER:
            # Not awaited: the answer is sent before the agent is asked.
            became = await steered(call.daemon, call.session_id, taken, 0, call.left)
        return receipt(taken, became)
    # The answer waits for the agent, so the agent must not wait for the answer.
    taken.told()
    end = await wait_for(call.daemon, call.session_id, taken, (TurnCompleted, TurnFailed), seconds, call.left)
    headers = APPLIED if call.query.wait is None else {}
    if end is None:
        return receipt(taken)._replace(headers=headers)
    if isinstance(end, TurnFailed):
        raise TurnError(
            end.message, reason=end.code, prompt_id=end.prompt_id, exit_code=end.exit_code, signal=end.signal
        )
    reply = PromptReply(
        prompt_id=end.prompt_id,
        last_event_id=taken.position.offset,
        event_epoch=taken.epoch,
        stop_reason=end.stop_reason,
        usage=end.usage,
    )
    return Reply(reply, 200, headers)


async def take(call: Call, body: SteerBody, when_busy: WhenBusy | None) -> Taken:
    """Accept the prompt with the request's or the operator's policy. Raises one of `REFUSALS`, without a turn."""
    daemon = call.daemon
    daemon.check_open()
    key = call.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= KEY_LENGTH:
        raise BadRequest(f"an Idempotency-Key has 1 to {KEY_LENGTH} characters")
    client_id = await call.known_client_id(call.session_id)
    now = daemon.clock.now_ms()
    wanted = Prompt(
        at=now,
        author=call.who.name,
        client_id=client_id,
        prompt_id=new_ids.prompt_id(),
        content=raw(body.prompt),
        when_busy=when_busy or WhenBusy(daemon.settings.when_busy),
        prompt_request_id=body.prompt_request_id,
        key=key,
        # The digest covers the client's values only: the operator's defaults may change between a prompt and its
        # repetition.
        digest=None if key is None else digest(body.prompt, body.meta, when_busy or WhenBusy.QUEUE),
        deadline_at=None if body.deadline_ms is None else now + body.deadline_ms,
    )
    return await take_prompt(daemon, call.session_id, wanted, body.meta or {}, call.headers)


def receipt(taken: Taken, became: Steered | None = None) -> Reply:
    """Return the answer to an accepted prompt, including the outcome of steering if requested."""
    accepted, turn = taken.accepted, taken.turn
    is_queued = turn is not None and turn.state in {TurnState.QUEUED, TurnState.OFFERED}
    told = PromptReceipt(
        prompt_id=accepted.prompt_id,
        last_event_id=accepted.after_offset,
        event_epoch=taken.epoch,
        queued=is_queued if became is None else became.outcome == "queued",
        repeated=accepted.repeated,
        outcome=None if became is None else became.outcome,
        reason=None if became is None else became.reason,
    )
    return Reply(told, then=taken.told)


def _wanted_wait(call: Call) -> float | None:
    """Return how long the answer waits for the end of the turn, or `None` if it is sent now.

    Waiting is only a preference of the caller: if the operator disabled it, the caller gets the normal answer.
    """
    asked = _asked_wait(call)
    longest = call.daemon.limits.blocking_s if call.daemon.settings.blocking else 0
    return None if asked is None or not longest else min(asked, longest)


def _asked_wait(call: Call) -> float | None:
    query: PromptQuery = call.query
    if query.wait is not None:
        return None if query.wait in {"false", "0"} else _most(query.wait)
    for header in call.request.headers.getlist("prefer") if "prefer" in call.headers else ():
        for preference in header.split(","):
            # An unreadable preference is ignored.
            found = _SECONDS.fullmatch(preference.partition(";")[0])
            if found is not None:
                return _most(found["seconds"] or "true") or None
    return None


def _most(text: str) -> float:
    return float("inf") if text == "true" else float(text)


# -- steering, cancelling and settling what runs --------------------------------------------------------------


class CancelBody(Struct, frozen=True, kw_only=True, rename="camel"):
    """The turn to cancel; the running one by default."""

    prompt_id: PromptId | None = None


class SettleBody(Struct, frozen=True, kw_only=True, rename="camel"):
    """The turn to settle."""

    prompt_id: PromptId


async def cancel(call: Call) -> Reply:
    await call.submit(Cancel, prompt_id=call.body.prompt_id)
    return Reply()


async def settle(call: Call) -> Reply:
    body: SettleBody = call.body
    try:
        await call.submit(Settle, prompt_id=body.prompt_id)
    except PromptNotFound:
        # For a request repeated much later: the state remembers only the session's last turn, the log all of them.
        record = await call.daemon.node.look(call.session_id, lambda view: find_record(view, body.prompt_id))
        if record.ended_at is None:
            raise
    return Reply()


async def steer(call: Call) -> Reply:
    taken = await take(call, call.body, WhenBusy.STEER)
    return receipt(taken, await steered(call.daemon, call.session_id, taken, STEER_ANSWER_S, call.left))


# -- asking --------------------------------------------------------------------------------------------------


async def prompt_status(call: Call) -> Reply:
    query: PromptStatusQuery = call.query
    status, is_active = await call.daemon.node.look(
        call.session_id, lambda view: _status(call.session_id, view, query.prompt_id)
    )
    if not is_active:
        return Reply(status)
    is_suspected, reasons = await _suspicion(call, status.prompt_id)
    return Reply(replace(status, suspected_complete=is_suspected, reasons=reasons))


def _status(session_id: SessionId, view: View, named: str | None) -> tuple[PromptStatus, bool]:
    """Return the status of a prompt, else of the running turn, else of the last; and if the agent works on it."""
    prompt_id = named or view.active or next(reversed(view.turns), None)
    if prompt_id is None:
        raise PromptNotFound("the session has had no prompt yet")
    record = find_record(view, prompt_id)
    outcome = record.outcome
    status = PromptStatus(
        session_id=session_id,
        prompt_id=record.prompt_id,
        state=detail_state(record),
        stop_reason=None if outcome is None else outcome.stop_reason,
        error=None if outcome is None else outcome.error,
        last_event_id=view.offset,
        queued_at=queued_at(record),
        started_at=record.started_at,
        ended_at=record.ended_at,
    )
    return status, view.active == prompt_id


async def _suspicion(call: Call, prompt_id: PromptId) -> tuple[bool, list[str]]:
    """Return the suspicion about a running turn, or nothing if it has ended since."""
    known = await call.daemon.node.agents.explain(call.session_id)
    return (known.suspected_complete, known.reasons) if known.prompt_id == prompt_id else (False, [])


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="POST",
        path="/session/{session_id}/prompt",
        act=prompt,
        summary="Prompt the session; the answer comes at once, the turn comes as events",
        role=Role.CONTROLLER,
        takes=PromptBody,
        body=BodyKind.CONTENT,
        query=PromptQuery,
        gives=PromptReceipt,
        status=202,
        also={200: PromptReply},
        refuses=(*REFUSALS, TurnError),
        tag="turns",
    ),
    Endpoint(
        method="GET",
        path="/session/{session_id}/prompt-status",
        act=prompt_status,
        summary="Where a prompt stands",
        role=Role.OBSERVER,
        query=PromptStatusQuery,
        gives=PromptStatus,
        refuses=(*READS, PromptNotFound),
        tag="turns",
    ),
    Endpoint(
        method="POST",
        path="/session/{session_id}/cancel",
        act=cancel,
        summary="Cancel what runs; does nothing if nothing does",
        role=Role.CONTROLLER,
        takes=CancelBody,
        status=204,
        refuses=(*READS, UnknownClient, LimitExceeded, LogFull),
        tag="turns",
    ),
    Endpoint(
        method="POST",
        path="/session/{session_id}/steer",
        act=steer,
        summary="Prompt into the running turn, if the agent takes it; else it is the next, and the answer says why",
        role=Role.CONTROLLER,
        takes=SteerBody,
        body=BodyKind.CONTENT,
        gives=PromptReceipt,
        status=202,
        refuses=REFUSALS,
        tag="turns",
    ),
    Endpoint(
        method="POST",
        path="/session/{session_id}/settle",
        act=settle,
        summary="Say that a turn is over although its agent never said so",
        role=Role.CONTROLLER,
        takes=SettleBody,
        status=204,
        refuses=(*ACTS, PromptNotFound),
        tag="turns",
    ),
)
"""The routes of prompts."""
