"""What a client does in a session: prompt, cancel, take back, answer, close, leave.

Takes checked requests; hands inputs to the session. A prompt is answered by what the log says of it, on whatever
stream the session is told. Never ends a turn because a client left.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta, Raw, Struct, field, json

from turnwire.core.correlation import exact
from turnwire.core.dialect import VENDOR, read_cancel_request
from turnwire.core.inputs import AnswerPermission, Cancel, Prompt, WhenBusy
from turnwire.core.permissions import NOT_ANSWERED
from turnwire.core.queue import Accepted
from turnwire.core.translate.permissions import translate_answer
from turnwire.errors import InvalidOption, PermissionNotFound, SessionError, SessionNotFound, TurnwireError
from turnwire.ids import PermissionId, RequestId, SessionId
from turnwire.runtime import mint
from turnwire.server.access.identity import Role
from turnwire.server.acp import carrying, repeating
from turnwire.server.acp.failures import read_params
from turnwire.server.acp.front import Front
from turnwire.server.acp.opening import agent_version
from turnwire.server.acp.prompts import Sent
from turnwire.server.acp.questions import Errand, Question
from turnwire.server.acp.seat import Seat
from turnwire.server.daemon.prompts import KEY_LENGTH, digest
from turnwire.wire.jsonrpc import Failure, Request, Result, raw

EMPTY = Raw(b"{}")


class Named(Struct, rename="camel"):
    """A request about one session."""

    session_id: SessionId


class _Ours(Struct, rename="camel"):
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=KEY_LENGTH)] | None = None


class _Vendors(Struct):
    turnwire: _Ours | None = None


class _Prompting(Named, rename="camel"):
    prompt: Raw
    meta: dict[str, Any] | None = field(default=None, name="_meta")

    @property
    def for_agent(self) -> dict[str, Any]:
        """The `_meta` without what is for us."""
        return {name: value for name, value in (self.meta or {}).items() if name != VENDOR}


class _Keyed(Struct):
    meta: _Vendors | None = field(default=None, name="_meta")

    @property
    def key(self) -> str | None:
        ours = None if self.meta is None else self.meta.turnwire
        return None if ours is None else ours.idempotency_key


class _Selected(Struct, frozen=True, rename="camel"):
    outcome: str = ""
    option_id: str | None = None


class _Outcome(Struct):
    outcome: _Selected = _Selected()


# -- prompting -----------------------------------------------------------------------------------------------


async def prompt(front: Front, request: Request) -> None:
    """`session/prompt`. Refused here, or answered by the log.

    With `_meta.turnwire.idempotencyKey` it is one prompt, however often it is sent, and each request is answered.
    """
    daemon = front.daemon
    daemon.check_open()
    wanted, key = read_params(request.params, _Prompting), read_params(request.params, _Keyed).key
    seat = front.attached(wanted.session_id)
    trace = daemon.traces.begin(
        {name: value for name, value in (wanted.meta or {}).items() if isinstance(value, str)}
    )
    meta = {**wanted.for_agent, **trace.meta}
    sent = Sent(mint.prompt_id(), wanted.session_id, request.id)
    given = Prompt(
        at=daemon.clock.now_ms(),
        author=front.who.name,
        client_id=seat.client_id,
        prompt_id=sent.prompt_id,
        content=wanted.prompt,
        prompt_request_id=request.id,
        key=key,
        digest=None if key is None else _digest(wanted),
        meta=raw(meta) if meta else None,
    )
    front.prompts.add(sent)
    seat.ready()
    try:
        accepted = cast("Accepted", await daemon.node.submit(wanted.session_id, given))
    except TurnwireError as error:
        front.prompts.drop(sent.prompt_id)
        trace.refused(error)
        raise
    trace.accepted(wanted.session_id, accepted.prompt_id)
    front.prompts.accepted(accepted.prompt_id, accepted.after_offset)
    if accepted.repeated:
        front.prompts.drop(sent.prompt_id)
        repeated = sent._replace(prompt_id=accepted.prompt_id, after=accepted.after_offset)
        front.prompts.repeat(repeated)
        front.start(repeating.answer, front, seat, repeated)


def _digest(wanted: _Prompting) -> str:
    return digest(read_params(wanted.prompt, list[Any]), wanted.for_agent, WhenBusy.QUEUE)


async def cancel(front: Front, params: Raw) -> None:
    """`session/cancel`: what runs; on v2 also what this client has waiting."""
    session_id = read_params(params, Named).session_id
    seat = front.attached(session_id)
    if front.client.version == 2:
        await drop_waiting(front, seat)
    await front.daemon.node.submit(session_id, _cancel(front, seat))


async def drop_waiting(front: Front, seat: Seat) -> None:
    """Take back this client's prompts that have not started."""
    state = (await front.daemon.node.session(seat.session_id)).state
    waiting = [each.prompt_id for each in state.queue if each.prompt_id in front.prompts]
    for prompt_id in waiting:
        await front.daemon.node.submit(seat.session_id, _cancel(front, seat, prompt_id=prompt_id))


def _cancel(front: Front, seat: Seat, **which: Any) -> Cancel:
    return Cancel(at=front.daemon.clock.now_ms(), author=front.who.name, client_id=seat.client_id, **which)


async def take_back(front: Front, params: Raw) -> None:
    """`$/cancel_request`: a prompt is cancelled or leaves the queue; another request is given up."""
    request_id = read_cancel_request(params)
    if request_id is None:
        return
    scope = front.requests.get(exact(request_id))
    if scope is not None:
        scope.cancel()
    sent = front.prompts.find(request_id)
    seat = None if sent is None else front.seats.get(sent.session_id)
    if sent is not None and seat is not None:
        front.need(Role.CONTROLLER)
        await front.daemon.node.submit(sent.session_id, _cancel(front, seat, prompt_id=sent.prompt_id))


# -- answering -----------------------------------------------------------------------------------------------


async def answer(front: Front, frame: Result | Failure) -> None:
    """The client's answer to something it was asked. One that nobody waits for is ignored."""
    question = front.questions.answer(frame.id)
    if isinstance(question, Errand):
        question.outcome = frame
        question.done.set()
    elif question is not None and question.permission_id is not None:
        await _answer_users(front, question, question.permission_id, frame)


async def _answer_users(
    front: Front, question: Question, permission_id: PermissionId, frame: Result | Failure
) -> None:
    no = NOT_ANSWERED[question.method]
    result, option_id = no, None
    if isinstance(frame, Result):
        version = await agent_version(front, question.session_id)
        result = translate_answer(question.method, frame.result, front.client.version, version)
        option_id = _selected(frame.result)
    seat = front.seats.get(question.session_id)
    given = AnswerPermission(
        at=front.daemon.clock.now_ms(),
        author=front.who.name,
        client_id=None if seat is None else seat.client_id,
        request_id=permission_id,
        answer=result,
        option_id=option_id,
    )
    submit = front.daemon.node.submit
    # One that somebody answered before, or that ended with its turn, needs no word to the client.
    with suppress(PermissionNotFound):
        try:
            await submit(question.session_id, given)
        except InvalidOption:
            # What was not offered is no approval.
            await submit(question.session_id, msgspec.structs.replace(given, answer=no, option_id=None))


def _selected(result: Raw) -> str | None:
    try:
        outcome = json.decode(result, type=_Outcome).outcome
    except msgspec.DecodeError:
        return None
    return outcome.option_id if outcome.outcome == "selected" else None


# -- leaving -------------------------------------------------------------------------------------------------


async def ready(front: Front, params: Raw) -> None:
    """`session/ready`. Repeated, or about a session that is not here, it does nothing."""
    seat = front.seats.get(read_params(params, Named).session_id)
    if seat is not None:
        seat.ready()


async def detach(front: Front, request: Request) -> Raw:
    """`session/detach`: the client leaves; what it began goes on, and is answered when it ends."""
    seat = front.attached(read_params(request.params, Named).session_id)
    for sent in front.prompts.open_in(seat.session_id):
        front.prompts.follow(sent)
        front.start(repeating.answer, front, seat, sent)
    await leave(front, seat)
    return EMPTY


async def close(front: Front, request: Request) -> Raw:
    """`session/close`: what runs for this client ends, and it leaves. The session stays for others."""
    session_id = read_params(request.params, Named).session_id
    seat = front.seats.get(session_id)
    if seat is None or seat.start is None:
        return EMPTY
    await drop_waiting(front, seat)
    session = await front.daemon.node.session(session_id)
    turn = session.state.turn
    others = session.state.clients.keys() - {seat.client_id}
    if turn is not None and (turn.client_id == seat.client_id or not others):
        await front.daemon.node.submit(session_id, _cancel(front, seat, prompt_id=turn.prompt_id))
        while session.state.turn is not None and session.state.turn.prompt_id == turn.prompt_id:
            if not await session.tail.wait(session.tail.head):
                break
    return EMPTY


async def leave(front: Front, seat: Seat) -> None:
    """The client is not attached to the session any more."""
    client_id = seat.client_id
    seat.close()
    carrying.settle(front, seat)
    if client_id is not None:
        with suppress(SessionError):
            await front.daemon.clients.detach(seat.session_id, client_id)


async def delete(front: Front, request: Request) -> Raw:
    """`session/delete`: the session with its log. One that is not there is deleted already."""
    session_id = read_params(request.params, Named).session_id
    if front.who.may_touch(session_id):
        with suppress(SessionNotFound):
            await front.daemon.node.delete(session_id)
    seat = front.seats.get(session_id)
    if seat is not None:
        seat.close()
        carrying.settle(front, seat)
    return EMPTY


def known_ids(front: Front, request_id: RequestId) -> bool:
    """Whether a request with this id is open already."""
    return exact(request_id) in front.requests or front.prompts.has_open(request_id)
