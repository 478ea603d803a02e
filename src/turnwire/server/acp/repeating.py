"""The answer to a prompt that no reader of the client gives, found in the log.

Takes a request whose idempotency key the session knows, or whose client was not there when its prompt was answered;
reads the log from where that prompt was accepted and gives the answer: now, or when it comes. It stands behind the
event that it comes from. Never starts a turn and never ends one, and never answers what a reader will.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple

from msgspec.structs import replace

from turnwire.core import events as ev
from turnwire.core.codec import decode
from turnwire.core.encoder import Answer, Fail, SessionEncoder
from turnwire.core.state import SessionState, find_turn
from turnwire.errors import PositionLost, TurnwireError
from turnwire.ids import SessionId
from turnwire.log.base import Position
from turnwire.server.acp.failures import failed, failure_of
from turnwire.server.acp.front import Front
from turnwire.server.acp.prompts import Sent
from turnwire.server.acp.seat import Seat
from turnwire.wire.jsonrpc import Result, encode

_UPDATE = b'{"type":"session_update"'
"""How stored updates begin, which answer nothing."""


class Owed(NamedTuple):
    """The answer to a prompt, and the event that it stands behind."""

    sent: Sent
    frame: bytes
    offset: int


async def answer(front: Front, seat: Seat, sent: Sent) -> None:
    """Answer the request, when the log does."""
    try:
        owed = await _found(front, sent)
        if owed is None:
            raise TurnwireError("the session ended before this prompt was answered")
    except TurnwireError as error:
        owed = Owed(sent, failure_of(sent.request_id, error), 0)
    finally:
        front.prompts.repeated(sent)
    if seat.start is None:
        # The session's own stream may have gone with the client.
        front.put(owed.frame, None)
    else:
        seat.note(owed.frame, owed.offset)


async def owed_upto(front: Front, session_id: SessionId, head: int) -> list[Owed]:
    """The answers to open prompts of the client that the log has up to `head`."""
    found: list[Owed] = []
    state = (await front.daemon.node.session(session_id)).state
    for sent in front.prompts.open_in(session_id):
        if _is_to_come(front, state, sent):
            continue
        try:
            owed = await _found(front, sent, head)
        except PositionLost as error:
            # It has ended, and how is forgotten.
            owed = Owed(sent, failure_of(sent.request_id, error), 0)
        if owed is not None:
            found.append(owed)
    return found


def give(front: Front, seat: Seat, found: list[Owed]) -> None:
    """Answer them, but for those that a reader has answered meanwhile."""
    for each in found:
        if front.prompts.is_open(each.sent.prompt_id):
            front.prompts.answer(each.sent.prompt_id)
            seat.note(each.frame, each.offset)


def _is_to_come(front: Front, state: SessionState, sent: Sent) -> bool:
    """Whether it is clear without the log that a reader will answer this one."""
    waits = find_turn(state, sent.prompt_id)
    return waits is not None and (front.client.version == 1 or waits in state.queue)


async def _found(front: Front, sent: Sent, upto: int | None = None) -> Owed | None:
    face = SessionEncoder(front.dialect, sent.session_id)
    async with aclosing(_events(front, sent, upto)) as events:
        async for offset, body in events:
            frame = None if body.startswith(_UPDATE) else _take(face, decode(body), sent)
            if frame is not None:
                return Owed(sent, frame, offset)
    return None


async def _events(front: Front, sent: Sent, upto: int | None) -> AsyncGenerator[tuple[int, bytes]]:
    """The events since the prompt was accepted, up to this one or without end."""
    node = front.daemon.node
    if upto is not None and sent.after >= upto:
        return
    start = Position((await node.head(sent.session_id)).epoch, sent.after)
    async with aclosing(node.follow(sent.session_id, start)) as pages:
        async for page in pages:
            for each in enumerate(page.frames, page.offset - len(page.frames) + 1):
                yield each
                if each[0] == upto:
                    return


def _take(face: SessionEncoder, event: ev.AnyEvent, sent: Sent) -> bytes | None:
    """The answer, if this event gives it."""
    own = getattr(event, "prompt_id", None) == sent.prompt_id
    if own and isinstance(event, ev.TurnCompleted | ev.TurnFailed):
        # Ids are local to a connection: this one knows the prompt by its own request.
        event = replace(event, prompt_request_id=sent.request_id)
    for each in face.take(event, own=own):
        if isinstance(each, Answer) and each.prompt_id == sent.prompt_id:
            return encode(Result(sent.request_id, each.result))
        if isinstance(each, Fail) and each.prompt_id == sent.prompt_id:
            return failed(sent.request_id, each.error)
    return None
