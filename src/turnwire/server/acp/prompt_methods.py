"""The methods by which a client prompts, cancels and answers what it is asked.

A prompt is answered by what the log says of it, on whatever stream the session is told: nearly always by a reader
of the client (`frame_writer`). What no reader answers is found in the log here: a request whose idempotency key the
session knows, and a prompt whose client was not there when it ended.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Raw, Struct, field, json
from msgspec.structs import replace

from turnwire.core import events as ev
from turnwire.core.codec import STORED_UPDATE, decode
from turnwire.core.correlation import exact
from turnwire.core.dialect import read_cancel_request
from turnwire.core.encoder import Answer, Fail, SessionEncoder
from turnwire.core.inputs import AnswerPermission, Cancel, CancelChild, Prompt, WhenBusy
from turnwire.core.permissions import NOT_ANSWERED
from turnwire.core.state import SessionState, find_turn
from turnwire.core.translate.permissions import translate_answer
from turnwire.errors import (
    InvalidOption,
    PermissionNotFound,
    PositionLost,
    TurnwireError,
)
from turnwire.ids import ChildId, PermissionId, SessionId
from turnwire.log.base import Position
from turnwire.runtime import new_ids
from turnwire.server.access.identity import Role
from turnwire.server.acp.client_state import (
    AwaitedRequest,
    ClientState,
    NotificationRow,
    OutgoingRequest,
    Row,
    SentPrompt,
)
from turnwire.server.acp.rpc import Named, failure_of, read_params
from turnwire.server.acp.subscription import Subscription
from turnwire.server.daemon.prompts import KEY_LENGTH, digest, submit_prompt
from turnwire.wire.jsonrpc import Failure, Request, Result, encode, encode_failure
from turnwire.wire.methods import CANCEL_REQUEST, SESSION_CANCEL, SESSION_PROMPT, VENDOR

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
        """The `_meta` without what is for us."""
        return {name: value for name, value in (self.meta or {}).items() if name != VENDOR}


class _ForUs(Struct):
    meta: _Vendors | None = field(default=None, name="_meta")

    @property
    def ours(self) -> _Ours:
        return (None if self.meta is None else self.meta.ours) or _Ours()


async def prompt(client: ClientState, request: Request) -> None:
    """`session/prompt`. Refused here, or answered by the log.

    With `_meta.turnwire.idempotencyKey` it is one prompt, however often it is sent, and each request is answered;
    `whenBusy` beside it says what it wants when a turn runs.
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
    # Before it is accepted: a reader may tell its end before we hear of that.
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


async def _when_busy(client: ClientState, session_id: SessionId) -> WhenBusy:
    """What a prompt wants that does not say: as the operator chose, unless an agent decides where prompts go.

    Such an agent decides it of every prompt of a client that knows this, also while a turn runs.
    """
    state = (await client.daemon.node.peek(session_id)).state
    if client.profile.version == 2 and state.inserts:
        return WhenBusy.AGENT
    return WhenBusy(client.daemon.settings.when_busy)


def _digest(wanted: _Prompting) -> str:
    return digest(read_params(wanted.prompt, list[Any]), wanted.for_agent, WhenBusy.QUEUE)


# -- cancelling ----------------------------------------------------------------------------------------------


async def cancel(client: ClientState, params: Raw) -> None:
    """`session/cancel`: what runs; on v2 also what this client has waiting."""
    session_id = read_params(params, Named).session_id
    parent = client.parent(session_id)
    if parent is not None:
        await _cancel_child(client, parent, ChildId(session_id))
        return
    subscription = client.attached(session_id)
    if client.profile.version == 2:
        await drop_waiting(client, subscription)
    await client.daemon.node.submit(session_id, cancel_input(client, subscription))


async def _cancel_child(client: ClientState, parent: Subscription, child_id: ChildId) -> None:
    wanted = CancelChild(
        at=client.daemon.clock.now_ms(), author=client.who.name, client_id=parent.client_id, child=child_id
    )
    await client.daemon.node.submit(parent.session_id, wanted)


async def drop_waiting(client: ClientState, subscription: Subscription) -> None:
    """Take back this client's prompts that have not started."""
    state = (await client.daemon.node.peek(subscription.session_id)).state
    waiting = [each.prompt_id for each in (*state.queue, *state.offered) if each.prompt_id in client.prompts]
    for prompt_id in waiting:
        await client.daemon.node.submit(
            subscription.session_id, cancel_input(client, subscription, prompt_id=prompt_id)
        )


def cancel_input(client: ClientState, subscription: Subscription, **which: Any) -> Cancel:
    """The input that cancels: what runs, or the prompt that is named."""
    return Cancel(
        at=client.daemon.clock.now_ms(), author=client.who.name, client_id=subscription.client_id, **which
    )


async def cancel_request(client: ClientState, params: Raw) -> None:
    """`$/cancel_request`: a prompt is cancelled or leaves the queue; another request is given up."""
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
        await client.daemon.node.submit(
            sent.session_id, cancel_input(client, subscription, prompt_id=sent.prompt_id)
        )


# -- answering what the client is asked ----------------------------------------------------------------------


class _Selected(Struct, frozen=True, rename="camel"):
    outcome: str = ""
    option_id: str | None = None


class _Outcome(Struct):
    outcome: _Selected = _Selected()


async def answer(client: ClientState, frame: Result | Failure) -> None:
    """The client's answer to something it was asked. One that nobody waits for is ignored."""
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
    submit = client.daemon.node.submit
    # One that somebody answered before, or that ended with its turn, needs no word to the client.
    with suppress(PermissionNotFound):
        try:
            await submit(request.session_id, answered)
        except InvalidOption:
            # What was not offered is no approval.
            await submit(request.session_id, replace(answered, answer=no, option_id=None))


def _selected(result: Raw) -> str | None:
    try:
        outcome = json.decode(result, type=_Outcome).outcome
    except msgspec.DecodeError:
        return None
    return outcome.option_id if outcome.outcome == "selected" else None


# -- answers that no reader gives ----------------------------------------------------------------------------


class OwedAnswer(NamedTuple):
    """The answer to a prompt, and the event that it stands behind."""

    sent: SentPrompt
    frame: bytes
    offset: int


async def answer_from_log(client: ClientState, subscription: Subscription, sent: SentPrompt) -> None:
    """Answer the request, when the log does."""
    try:
        owed = await _found(client, sent)
        if owed is None:
            raise TurnwireError("the session ended before this prompt was answered")
    except TurnwireError as error:
        owed = OwedAnswer(sent, failure_of(sent.request_id, error), 0)
    finally:
        client.prompts.repeated(sent)
    if not subscription.is_attached:
        # The session's own stream may have gone with the client.
        client.put(owed.frame, None)
    else:
        subscription.put(owed.frame, owed.offset)


async def owed_upto(client: ClientState, session_id: SessionId, head: int) -> list[OwedAnswer]:
    """The answers to open prompts of the client that the log has up to `head`."""
    found: list[OwedAnswer] = []
    state = (await client.daemon.node.peek(session_id)).state
    for sent in client.prompts.open_in(session_id):
        if _is_to_come(client, state, sent):
            continue
        try:
            owed = await _found(client, sent, head)
        except PositionLost as error:
            # It has ended, and how is forgotten.
            owed = OwedAnswer(sent, failure_of(sent.request_id, error), 0)
        if owed is not None:
            found.append(owed)
    return found


def give_owed(client: ClientState, subscription: Subscription, found: list[OwedAnswer]) -> None:
    """Answer them, but for those that a reader has answered meanwhile."""
    for each in found:
        if client.prompts.is_open(each.sent.prompt_id):
            client.prompts.answer(each.sent.prompt_id)
            subscription.put(each.frame, each.offset)


def _is_to_come(client: ClientState, state: SessionState, sent: SentPrompt) -> bool:
    """Whether it is clear without the log that a reader will answer this one."""
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
    """The events since the prompt was accepted, up to this one or without end."""
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
    """The answer, if this event gives it."""
    own = getattr(event, "prompt_id", None) == sent.prompt_id
    if own and isinstance(event, ev.TurnCompleted | ev.TurnFailed):
        # Ids are local to a connection: this one knows the prompt by its own request.
        event = replace(event, prompt_request_id=sent.request_id)
    for each in encoder.take(event, own=own):
        if isinstance(each, Answer) and each.prompt_id == sent.prompt_id:
            return encode(Result(sent.request_id, each.result))
        if isinstance(each, Fail) and each.prompt_id == sent.prompt_id:
            return encode_failure(sent.request_id, each.error)
    return None


# -- the table -----------------------------------------------------------------------------------------------

ROWS: dict[str, Row] = {SESSION_PROMPT: Row(prompt, Role.CONTROLLER, is_slow=False, on_session=True)}
NOTIFICATIONS: dict[str, NotificationRow] = {
    SESSION_CANCEL: NotificationRow(cancel, Role.CONTROLLER),
    CANCEL_REQUEST: NotificationRow(cancel_request, Role.OBSERVER),
}
