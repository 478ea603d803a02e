"""The queue of a session: waiting prompts in order, for any client to read and change.

The routes named `pending-prompts` show the same in the form of older clients, with the running prompt first.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct

from turnwire.errors import (
    BadRequest,
    ContentRefused,
    PromptNotFound,
    PromptNotQueued,
    ShuttingDown,
)
from turnwire.ids import ClientId, PromptId
from turnwire.projections.view import View
from turnwire.server.access.tokens import Role
from turnwire.server.bodies import BodyKind
from turnwire.server.endpoint import Call, Endpoint, Reply
from turnwire.server.routes.prompts import Content
from turnwire.server.routes.turns import ACTS, READS, find_record, queued_at
from turnwire.session.events import Origin
from turnwire.session.inputs import HoldQueue, ReleaseQueue, RemovePrompt, UpdatePrompt
from turnwire.session.state import SessionState, Turn
from turnwire.wire.jsonrpc import raw


class QueuedPrompt(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A waiting prompt."""

    prompt_id: PromptId
    content: Raw
    text: str
    queued_at: int
    position: int | None = None
    """Position in the queue, 0 is next; absent if the prompt has left the queue since."""
    author: str | None = None
    originator_client_id: ClientId | None = None
    steering: bool = False
    """True while the agent is being asked to add it to the running turn."""


class Queue(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The waiting prompts, the next one first."""

    prompts: list[QueuedPrompt]
    held: bool
    """True if no prompt of the queue is started."""
    held_reason: str | None = None


class QueueChange(Struct, frozen=True):
    """Hold the queue or resume it."""

    held: bool


class PromptChange(Struct, frozen=True, kw_only=True):
    """New content, a new position, or both."""

    content: Content | None = None
    prompt: Content | None = None
    """An alias of `content`."""
    position: Annotated[int, Meta(ge=0)] | None = None
    """A position past the end means the last position."""


class Removal(Struct, frozen=True):
    removed: bool


class PendingPrompt(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A running or waiting prompt."""

    prompt_id: PromptId
    text: str
    queued_at: int
    state: Literal["queued", "running"]
    originator_client_id: ClientId | None = None


class PendingPrompts(Struct, frozen=True, rename="camel"):
    pending_prompts: list[PendingPrompt]


# -- ours ----------------------------------------------------------------------------------------------------


async def show_queue(call: Call) -> Reply:
    state = (await call.daemon.node.peek(call.session_id)).state
    prompts: list[QueuedPrompt] = []
    if state.queue:
        # The view is read after the state, so it knows every prompt of that state.
        prompts = await call.daemon.node.look(
            call.session_id, lambda view: [_queued(view, each, place) for place, each in enumerate(state.queue)]
        )
    return Reply(Queue(prompts=prompts, held=state.held is not None, held_reason=state.held))


async def change_queue(call: Call) -> Reply:
    call.daemon.check_open()
    await call.submit(HoldQueue if call.body.held else ReleaseQueue)
    return await show_queue(call)


async def change_prompt(call: Call) -> Reply:
    body: PromptChange = call.body
    content = body.content if body.content is not None else body.prompt
    if content is None and body.position is None:
        raise BadRequest("nothing is to be changed; give `content`, `position` or both")
    node, prompt_id = call.daemon.node, _named(call)
    session = await node.peek(call.session_id)
    before = _waiting(session.state, prompt_id)
    changed = None if content is None else raw(content)
    await call.submit(UpdatePrompt, prompt_id=prompt_id, content=changed, position=body.position)
    place, turn = _waiting((await node.peek(call.session_id)).state, prompt_id) or before or (None, None)
    if turn is None:
        raise PromptNotFound("no prompt with this id waits in the session", prompt_id=prompt_id)
    return Reply(await node.look(call.session_id, lambda view: _queued(view, turn, place)))


async def remove_prompt(call: Call) -> Reply:
    await call.submit(RemovePrompt, prompt_id=_named(call))
    return Reply(Removal(removed=True))


def _named(call: Call) -> PromptId:
    return PromptId(call.request.path_params["prompt_id"])


def _waiting(state: SessionState, prompt_id: PromptId) -> tuple[int | None, Turn] | None:
    return next(((place, each) for place, each in enumerate(state.queue) if each.prompt_id == prompt_id), None)


def _queued(view: View, turn: Turn, place: int | None) -> QueuedPrompt:
    return QueuedPrompt(
        prompt_id=turn.prompt_id,
        content=Raw(b"[]") if turn.content is UNSET else turn.content,
        text=view.user_text(turn.prompt_id) or "",
        queued_at=queued_at(find_record(view, turn.prompt_id)) or 0,
        position=place,
        author=turn.author,
        originator_client_id=turn.client_id,
        steering=turn.steering,
    )


# -- as older clients know it --------------------------------------------------------------------------------


async def list_pending(call: Call) -> Reply:
    state = (await call.daemon.node.peek(call.session_id)).state
    running = [each for each in (state.turn, *state.joined) if each is not None and each.origin is Origin.CLIENT]
    waiting = (*state.offered, *state.queue)
    if not running and not waiting:
        return Reply(PendingPrompts([]))

    def shown(view: View) -> PendingPrompts:
        prompts = [_pending(view, each, "running") for each in running]
        return PendingPrompts(prompts + [_pending(view, each, "queued") for each in waiting])

    return Reply(await call.daemon.node.look(call.session_id, shown))


def _pending(view: View, turn: Turn, state: Literal["queued", "running"]) -> PendingPrompt:
    return PendingPrompt(
        prompt_id=turn.prompt_id,
        text=view.user_text(turn.prompt_id) or "",
        queued_at=queued_at(find_record(view, turn.prompt_id)) or 0,
        state=state,
        originator_client_id=turn.client_id,
    )


async def remove_pending(call: Call) -> Reply:
    try:
        await call.submit(RemovePrompt, prompt_id=_named(call))
    except (PromptNotFound, PromptNotQueued):
        return Reply(Removal(removed=False))
    return Reply(Removal(removed=True))


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET",
        path="/session/{session_id}/queue",
        act=show_queue,
        summary="The prompts that wait",
        role=Role.OBSERVER,
        gives=Queue,
        refuses=READS,
        tag="queue",
    ),
    Endpoint(
        method="PATCH",
        path="/session/{session_id}/queue",
        act=change_queue,
        summary="Hold the queue, or let it go on",
        role=Role.CONTROLLER,
        takes=QueueChange,
        gives=Queue,
        refuses=(*ACTS, ShuttingDown),
        tag="queue",
    ),
    Endpoint(
        method="PATCH",
        path="/session/{session_id}/queue/{prompt_id}",
        act=change_prompt,
        summary="Edit or move a prompt that waits",
        role=Role.CONTROLLER,
        takes=PromptChange,
        body=BodyKind.CONTENT,
        gives=QueuedPrompt,
        refuses=(*ACTS, BadRequest, ContentRefused, PromptNotFound, PromptNotQueued),
        tag="queue",
    ),
    Endpoint(
        method="DELETE",
        path="/session/{session_id}/queue/{prompt_id}",
        act=remove_prompt,
        summary="Take a prompt out of the queue; it ends as cancelled",
        role=Role.CONTROLLER,
        gives=Removal,
        refuses=(*ACTS, PromptNotFound, PromptNotQueued),
        tag="queue",
    ),
    Endpoint(
        method="GET",
        path="/session/{session_id}/pending-prompts",
        act=list_pending,
        summary="The prompts that run or wait",
        role=Role.OBSERVER,
        gives=PendingPrompts,
        refuses=READS,
        tag="queue",
    ),
    Endpoint(
        method="DELETE",
        path="/session/{session_id}/pending-prompts/{prompt_id}",
        act=remove_pending,
        summary="Take a prompt out of the queue, if it still waits",
        role=Role.CONTROLLER,
        gives=Removal,
        refuses=ACTS,
        tag="queue",
    ),
)
"""The routes of the queue."""
