"""Steering, cancelling and settling what runs.

A cancel is asked for here and confirmed by the turn's end. No answer says that a turn is over: its terminal event
does.
"""

from __future__ import annotations

from msgspec import Struct

from turnwire.core.inputs import Cancel, Settle, WhenBusy
from turnwire.errors import LimitExceeded, LogFull, PromptNotFound, UnknownClient
from turnwire.ids import PromptId
from turnwire.server.access.identity import Role
from turnwire.server.bodies import BodyKind
from turnwire.server.daemon.prompts import STEER_ANSWER_S, steered
from turnwire.server.endpoint import Call, Endpoint, Reply
from turnwire.server.routes.prompts import REFUSALS, SteerBody, receipt, take
from turnwire.server.routes.turns import ACTS, READS, PromptReceipt, find_record


class CancelBody(Struct, frozen=True, kw_only=True, rename="camel"):
    """Which turn; by default the one that runs."""

    prompt_id: PromptId | None = None


class SettleBody(Struct, frozen=True, kw_only=True, rename="camel"):
    """Which turn."""

    prompt_id: PromptId


async def cancel(call: Call) -> Reply:
    body: CancelBody = call.body
    client_id = await call.daemon.clients.known(call.session_id, call.client_id, call.who)
    now = call.daemon.clock.now_ms()
    cancelled = Cancel(at=now, author=call.who.name, client_id=client_id, prompt_id=body.prompt_id)
    await call.daemon.node.submit(call.session_id, cancelled)
    return Reply()


async def settle(call: Call) -> Reply:
    body: SettleBody = call.body
    client_id = await call.daemon.clients.known(call.session_id, call.client_id, call.who)
    now = call.daemon.clock.now_ms()
    settled = Settle(at=now, author=call.who.name, client_id=client_id, prompt_id=body.prompt_id)
    try:
        await call.daemon.node.submit(call.session_id, settled)
    except PromptNotFound:
        # Asked again long after: the session's state only remembers its last turn, the log all of them.
        if find_record(await call.daemon.node.view(call.session_id), body.prompt_id).ended_at is None:
            raise
    return Reply()


async def steer(call: Call) -> Reply:
    taken = await take(call, call.body, WhenBusy.STEER)
    return receipt(taken, await steered(call.daemon, call.session_id, taken, STEER_ANSWER_S, call.left))


ENDPOINTS: tuple[Endpoint, ...] = (
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
"""The routes of control."""
