"""The answer to a prompt that was sent before, found in the log.

Takes a request whose idempotency key the session knows; reads the log from where that prompt was accepted and gives
the answer that the first request gets, to this one as well: now, or when it comes. It stands behind the event that
it comes from. Never starts a turn and never ends one.
"""

from __future__ import annotations

from contextlib import aclosing

from msgspec.structs import replace

from turnwire.core import events as ev
from turnwire.core.codec import decode
from turnwire.core.face import Answer, Face, Fail
from turnwire.errors import TurnwireError
from turnwire.log.base import Position
from turnwire.server.acp.failures import failed, failure_of
from turnwire.server.acp.front import Front
from turnwire.server.acp.prompts import Sent
from turnwire.server.acp.seat import Seat
from turnwire.wire.jsonrpc import Result, encode

_UPDATE = b'{"type":"session_update"'
"""How stored updates begin, which answer nothing."""


async def answer(front: Front, seat: Seat, sent: Sent, after: int) -> None:
    """Answer the request. `after`: where the log stood before the prompt was accepted."""
    try:
        frame, offset = await _found(front, sent, after)
    except TurnwireError as error:
        frame, offset = failure_of(sent.request_id, error), 0
    finally:
        front.prompts.repeated(sent)
    seat.note(frame, offset)


async def _found(front: Front, sent: Sent, after: int) -> tuple[bytes, int]:
    node = front.daemon.node
    face = Face(front.dialect, sent.session_id)
    start = Position((await node.head(sent.session_id)).epoch, after)
    async with aclosing(node.follow(sent.session_id, start)) as pages:
        async for page in pages:
            for offset, body in enumerate(page.frames, page.offset - len(page.frames) + 1):
                frame = None if body.startswith(_UPDATE) else _take(face, decode(body), sent)
                if frame is not None:
                    return frame, offset
    raise TurnwireError("the session ended before this prompt was answered")


def _take(face: Face, event: ev.AnyEvent, sent: Sent) -> bytes | None:
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
