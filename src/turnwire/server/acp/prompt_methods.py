"""The methods by which a client sends prompts, cancels them and responds to requests.

A prompt is answered from the log, on the stream that carries the session: nearly always by a reader of the client
(`frame_writer`). This module searches the log for the prompts that no reader answers: a request whose idempotency
key the session knows, and a prompt whose client was not attached when it ended.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import Annotated, Any, NamedTuple

import msgspec
from anyio import sleep_forever
from msgspec import Meta, Raw, Struct, field, json
from msgspec.structs import replace

from turnwire import new_ids
from turnwire.errors import (
    InvalidOption,
    PermissionNotFound,
    PositionLost,
    PromptNotFound,
    TurnwireError,
)
from turnwire.ids import ChildId, PermissionId, PromptId, RequestId, SessionId
from turnwire.log.base import Position
from turnwire.projections.dialect import read_cancel_request
from turnwire.projections.encoder import Answer, Fail, SessionEncoder
from turnwire.projections.translate.permissions import translate_answer
from turnwire.server.access.tokens import Role
from turnwire.server.acp.client_state import (
    AwaitedRequest,
    ClientState,
    NotificationRow,
    OutgoingRequest,
    Row,
    SentPrompt,
)
from turnwire.server.acp.rpc import EMPTY, Named, failure_of, read_params
from turnwire.server.acp.subscription import Subscription
from turnwire.server.daemon.prompts import KEY_LENGTH, STEER_ANSWER_S, digest, steered, submit_prompt, take_prompt
from turnwire.session import events as ev
from turnwire.session.codec import STORED_UPDATE, decode
from turnwire.session.correlation import exact
from turnwire.session.inputs import (
    AnswerPermission,
    AnyInput,
    Cancel,
    CancelChild,
    Prompt,
    Settle,
    SteerOutcome,
    WhenBusy,
)
from turnwire.session.permissions import NOT_ANSWERED
from turnwire.session.queue import steer_refusal
from turnwire.session.state import SessionState, find_turn
from turnwire.wire.jsonrpc import Failure, Request, Result, encode, encode_failure, raw
from turnwire.wire.methods import (
    CANCEL_REQUEST,
    SESSION_CANCEL,
    SESSION_PROMPT,
    SESSION_SETTLE,
    SESSION_STEERING,
    VENDOR,
)

# -- prompting -----------------------------------------------------------------------------------------------


class _Ours(Struct, rename="camel"):
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=KEY_LENGTH)] | None = None
    when_busy: WhenBusy | None = None


class _Vendors(Struct):
    ours: _Ours | None = field(default=None, name=VENDOR)


class _Prompting(Named, rename="camel"):
    prompt: Raw
    meta: dict[str, Any] | None = field(default=None, name="_meta")

    @property
    def for_agent(self) -> dict[str, Any]:
        """The `_meta` without our own member."""
        return {name: value for name, value in (self.meta or {}).items() if name != VENDOR}


class _ForUs(Struct):
    meta: _Vendors | None = field(default=None, name="_meta")

    @property
    def ours(self) -> _Ours:
        return (None if self.meta is None else self.meta.ours) or _Ours()


async def prompt(client: ClientState, request: Request) -> None:
    """`session/prompt`. Rejected here, or answered from the log.

    With `_meta.turnwire.idempotencyKey`, repeated requests are one prompt, and each request is answered. `whenBusy`
    next to it selects the behaviour while a turn runs.
    """
    daemon = client.daemon
    daemon.check_open()
    wanted, ours = read_params(request.params, _Prompting), read_params(request.params, _ForUs).ours
    key = ours.idempotency_key
    subscription = client.attached(wanted.session_id)
    sent = SentPrompt(new_ids.prompt_id(), wanted.session_id, request.id)
    asked = Prompt(
        at=daemon.clock.now_ms(),
        author=client.who.name,
        client_id=subscription.client_id,
        prompt_id=sent.prompt_id,
        content=wanted.prompt,
        when_busy=ours.when_busy or await _when_busy(client, wanted.session_id),
        prompt_request_id=request.id,
        key=key,
        digest=None if key is None else _digest(wanted),
    )
    carrier = {name: value for name, value in (wanted.meta or {}).items() if isinstance(value, str)}
    # Added before the prompt is accepted: a reader may send its end before the acceptance is known here.
    client.prompts.add(sent)
    try:
        accepted, _ = await submit_prompt(daemon, wanted.session_id, asked, wanted.for_agent, carrier)
    except TurnwireError:
        client.prompts.drop(sent.prompt_id)
        raise
    client.prompts.accepted(accepted.prompt_id, accepted.after_offset)
    if accepted.repeated:
        client.prompts.drop(sent.prompt_id)
        repeated = sent._replace(prompt_id=accepted.prompt_id, after=accepted.after_offset)
        client.prompts.repeat(repeated)
        client.start(answer_from_log, client, subscription, repeated)


class _IdleBehavior(Struct, frozen=True, rename="camel"):
    idle_behavior: str | None = None


class _SteeringMeta(Struct, frozen=True):
    steering: _IdleBehavior = _IdleBehavior()


class _Steering(Struct):
    meta: _SteeringMeta = field(default=_SteeringMeta(), name="_meta")


async def steer(client: ClientState, request: Request) -> Raw:
    """`_session/steering`: a prompt for the running turn, which is in the log like any other.

    A prompt that the agent does not inject runs as the next turn: `startedNewTurn`. With `promptRequired` a prompt
    is accepted only while a turn runs that can be steered.
    """
    daemon = client.daemon
    daemon.check_open()
    wanted = read_params(request.params, _Prompting)
    subscription = client.attached(wanted.session_id)
    state = (await daemon.node.peek(wanted.session_id)).state
    is_required = read_params(request.params, _Steering).meta.steering.idle_behavior == SteerOutcome.PROMPT_REQUIRED
    refusal = steer_refusal(state)
    if is_required and refusal is not None:
        reason = "noRunningTurn" if refusal is ev.SteerRefusal.NO_TURN else refusal
        return raw({"outcome": SteerOutcome.PROMPT_REQUIRED, "reason": reason})
    asked = Prompt(
        at=daemon.clock.now_ms(),
        author=client.who.name,
        client_id=subscription.client_id,
        prompt_id=new_ids.prompt_id(),
        content=wanted.prompt,
        when_busy=WhenBusy.STEER,
    )
    meta = {name: value for name, value in wanted.for_agent.items() if name != "steering"}
    taken = await take_prompt(daemon, wanted.session_id, asked, meta, {})
    taken.told()
    became = await steered(daemon, wanted.session_id, taken, STEER_ANSWER_S, sleep_forever)
    outcome = SteerOutcome.INJECTED if became.outcome == "injected" else SteerOutcome.STARTED
    return raw({"outcome": outcome, "_meta": {VENDOR: {"promptId": taken.prompt_id, "reason": became.reason}}})


async def _when_busy(client: ClientState, session_id: SessionId) -> WhenBusy:
    """Return the default for a busy session: the operator's setting, unless the agent places prompts.

    Such an agent places every prompt of a client that supports this, also while a turn runs.
    """
    state = (await client.daemon.node.peek(session_id)).state
    if client.profile.version == 2 and state.inserts:
        return WhenBusy.AGENT
    return WhenBusy(client.daemon.settings.when_busy)


def _digest(wanted: _Prompting) -> str:
    return digest(read_params(wanted.prompt, list[Any]), wanted.for_agent, WhenBusy.QUEUE)


# -- cancelling ----------------------------------------------------------------------------------------------


async def cancel(client: ClientState, params: Raw) -> None:
    """`session/cancel`: cancel the running turn; on v2 also this client's waiting prompts."""
    session_id = read_params(params, Named).session_id
    parent = client.parent(session_id)
    if parent is not None:
        await submit(client, parent, CancelChild, child=ChildId(session_id))
        return
    subscription = client.attached(session_id)
    if client.profile.version == 2:
        await drop_waiting(client, subscription)
    await submit(client, subscription, Cancel)


class _Settled(Named, rename="camel"):
    prompt_id: PromptId | None = None
    prompt_request_id: RequestId | None = None
    """The id of the client's own request; with neither name, the running turn is meant."""


async def settle(client: ClientState, request: Request) -> Raw:
    """`_turnwire/session/settle`: end a turn although its agent has not reported the end.

    Raises `PromptNotFound` if no such turn is open.
    """
    named = read_params(request.params, _Settled)
    subscription = client.attached(named.session_id)
    prompt_id = named.prompt_id
    if prompt_id is None and named.prompt_request_id is not None:
        sent = client.prompts.find(named.prompt_request_id)
        prompt_id = None if sent is None else sent.prompt_id
    elif prompt_id is None:
        turn = (await client.daemon.node.peek(named.session_id)).state.turn
        prompt_id = None if turn is None else turn.prompt_id
    if prompt_id is None:
        raise PromptNotFound("no such turn is open; it may have ended already", session_id=named.session_id)
    await submit(client, subscription, Settle, prompt_id=prompt_id)
    return EMPTY


async def drop_waiting(client: ClientState, subscription: Subscription) -> None:
    """Withdraw this client's prompts that have not started."""
    state = (await client.daemon.node.peek(subscription.session_id)).state
    waiting = [each.prompt_id for each in (*state.queue, *state.offered) if each.prompt_id in client.prompts]
    for prompt_id in waiting:
        await submit(client, subscription, Cancel, prompt_id=prompt_id)


async def submit(
    client: ClientState, subscription: Subscription, kind: Callable[..., AnyInput], **members: Any
) -> None:
    """Submit an input of the client to a session. Raises the session's rejection."""
    now, author = client.daemon.clock.now_ms(), client.who.name
    wanted = kind(at=now, author=author, client_id=subscription.client_id, **members)
    await client.daemon.node.submit(subscription.session_id, wanted)


async def cancel_request(client: ClientState, params: Raw) -> None:
    """`$/cancel_request`: cancel or dequeue a prompt; abandon any other request."""
    request_id = read_cancel_request(params)
    if request_id is None:
        return
    scope = client.incoming.get(exact(request_id))
    if scope is not None:
        scope.cancel()
    sent = client.prompts.find(request_id)
    subscription = None if sent is None else client.subscriptions.get(sent.session_id)
    if sent is not None and subscription is not None:
        client.need(Role.CONTROLLER)
        client.audit(CANCEL_REQUEST, sent.session_id)
        await submit(client, subscription, Cancel, prompt_id=sent.prompt_id)


# -- responses to requests -----------------------------------------------------------------------------------


class _Selected(Struct, frozen=True, rename="camel"):
    outcome: str = ""
    option_id: str | None = None


class _Outcome(Struct):
    outcome: _Selected = _Selected()


async def answer(client: ClientState, frame: Result | Failure) -> None:
    """Process the client's response to a request. One that is not awaited is ignored."""
    request = client.outgoing.answer(frame.id)
    if isinstance(request, AwaitedRequest):
        request.outcome = frame
        request.done.set()
    elif request is not None and request.permission_id is not None:
        await _answer_permission(client, request, request.permission_id, frame)


async def _answer_permission(
    client: ClientState, request: OutgoingRequest, permission_id: PermissionId, frame: Result | Failure
) -> None:
    no = NOT_ANSWERED[request.method]
    result, option_id = no, None
    if isinstance(frame, Result):
        version = await client.agent_version(request.session_id)
        result = translate_answer(request.method, frame.result, client.profile.version, version)
        option_id = _selected(frame.result)
    subscription = client.subscriptions.get(request.session_id)
    answered = AnswerPermission(
        at=client.daemon.clock.now_ms(),
        author=client.who.name,
        client_id=None if subscription is None else subscription.client_id,
        request_id=permission_id,
        answer=result,
        option_id=option_id,
    )
    client.audit(request.method, request.session_id)
    node = client.daemon.node
    # A request that another client answered, or that ended with its turn, needs no message to the client.
    with suppress(PermissionNotFound):
        try:
            await node.submit(request.session_id, answered)
        except InvalidOption:
            # An option that was not offered is not an approval.
            await node.submit(request.session_id, replace(answered, answer=no, option_id=None))


def _selected(result: Raw) -> str | None:
    try:
        outcome = json.decode(result, type=_Outcome).outcome
    except msgspec.DecodeError:
        return None
    return outcome.option_id if outcome.outcome == "selected" else None


# -- answers from the log ------------------------------------------------------------------------------------


class OwedAnswer(NamedTuple):
    """The response to a prompt, and the offset of the event that it follows."""

    sent: SentPrompt
    frame: bytes
    offset: int


async def answer_from_log(client: ClientState, subscription: Subscription, sent: SentPrompt) -> None:
    """Answer the request once the log has the answer."""
    try:
        owed = await _found(client, sent)
        if owed is None:
            raise TurnwireError("the session ended before this prompt was answered")
    except TurnwireError as error:
        owed = OwedAnswer(sent, failure_of(sent.request_id, error), 0)
    finally:
        client.prompts.repeated(sent)
    if not subscription.is_attached:
        # The session's own stream may have ended with the client.
        client.put(owed.frame, None)
    else:
        subscription.put(owed.frame, owed.offset)


async def owed_upto(client: ClientState, session_id: SessionId, head: int) -> list[OwedAnswer]:
    """Return the responses to the client's open prompts that the log has up to `head`."""
    found: list[OwedAnswer] = []
    state = (await client.daemon.node.peek(session_id)).state
    for sent in client.prompts.open_in(session_id):
        if _is_to_come(client, state, sent):
            continue
        try:
            owed = await _found(client, sent, head)
        except PositionLost as error:
            # The prompt has ended, but the log no longer has the outcome.
            owed = OwedAnswer(sent, failure_of(sent.request_id, error), 0)
        if owed is not None:
            found.append(owed)
    return found


def give_owed(client: ClientState, subscription: Subscription, found: list[OwedAnswer]) -> None:
    """Send the responses, except those that a reader has sent meanwhile."""
    for each in found:
        if client.prompts.is_open(each.sent.prompt_id):
            client.prompts.answer(each.sent.prompt_id)
            subscription.put(each.frame, each.offset)


def _is_to_come(client: ClientState, state: SessionState, sent: SentPrompt) -> bool:
    """Return whether a reader is certain to answer this prompt, without searching the log."""
    waits = find_turn(state, sent.prompt_id)
    is_at_end = not client.profile.is_answered_at_once
    return waits is not None and (is_at_end or waits in (*state.queue, *state.offered))


async def _found(client: ClientState, sent: SentPrompt, upto: int | None = None) -> OwedAnswer | None:
    encoder = SessionEncoder(client.dialect, sent.session_id)
    async with aclosing(_events(client, sent, upto)) as events:
        async for offset, body in events:
            # Nearly all events are updates, which answer no prompt.
            frame = None if body.startswith(STORED_UPDATE) else _take(encoder, decode(body), sent)
            if frame is not None:
                return OwedAnswer(sent, frame, offset)
    return None


async def _events(client: ClientState, sent: SentPrompt, upto: int | None) -> AsyncGenerator[tuple[int, bytes]]:
    """Yield the events since the prompt was accepted, up to this one or without end."""
    node = client.daemon.node
    if upto is not None and sent.after >= upto:
        return
    start = Position((await node.head(sent.session_id)).epoch, sent.after)
    async with aclosing(node.follow(sent.session_id, start)) as pages:
        async for page in pages:
            for each in enumerate(page.frames, page.offset - len(page.frames) + 1):
                yield each
                if each[0] == upto:
                    return


def _take(encoder: SessionEncoder, event: ev.AnyEvent, sent: SentPrompt) -> bytes | None:
    """Return the response, if this event determines it."""
    own = getattr(event, "prompt_id", None) == sent.prompt_id
    if own and isinstance(event, ev.TurnCompleted | ev.TurnFailed):
        # Ids are local to a connection: this one knows the prompt by the id of its own request.
        event = replace(event, prompt_request_id=sent.request_id)
    for each in encoder.take(event, own=own):
        if isinstance(each, Answer) and each.prompt_id == sent.prompt_id:
            return encode(Result(sent.request_id, each.result))
        if isinstance(each, Fail) and each.prompt_id == sent.prompt_id:
            return encode_failure(sent.request_id, each.error)
    return None


# -- the table -----------------------------------------------------------------------------------------------

ROWS: dict[str, Row] = {
    SESSION_PROMPT: Row(prompt, Role.CONTROLLER, is_slow=False, on_session=True),
    SESSION_STEERING: Row(steer, Role.CONTROLLER, on_session=True),
    SESSION_SETTLE: Row(settle, Role.CONTROLLER, on_session=True),
}
NOTIFICATIONS: dict[str, NotificationRow] = {
    SESSION_CANCEL: NotificationRow(cancel, Role.CONTROLLER),
    CANCEL_REQUEST: NotificationRow(cancel_request, Role.OBSERVER),
}
