"""A turn for the program that prompted it.

`await turn` returns when the turn has ended and every handler call for it has finished. A loop over a turn is an
independent cursor over the log: it may begin late, run twice, or run in parallel with others, and sees every update
of the turn each time. Updates are not buffered, and this object never ends a turn by itself.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Generator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from turnwire.client.arguments import Content, to_place, to_raw
from turnwire.client.attachment import Acceptance, Attachment
from turnwire.client.port import Accepted, EventPage
from turnwire.client.progress import Terminal, TurnResult, release_current_call, result_of
from turnwire.client.update import Update
from turnwire.ids import PromptId
from turnwire.session.events import (
    AnyEvent,
    PromptInjected,
    SessionUpdated,
    SteerDeclined,
    SteerRefusal,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
)


class Steered(NamedTuple):
    """Outcome of a prompt that was to be added to the running turn."""

    outcome: Literal["injected", "queued", "started"]
    """Added to the running turn (`injected`), waiting as the next one (`queued`), or begun alone (`started`)."""
    reason: SteerRefusal | None = None
    """Why it was not added."""


def _became(events: Sequence[AnyEvent], prompt_id: PromptId) -> Steered | None:
    """Return the outcome that these events report, or `None` if it is still open."""
    refusal: SteerRefusal | None = None
    for event in events:
        if getattr(event, "prompt_id", None) != prompt_id:
            continue
        match event:
            case PromptInjected():
                return Steered("injected")
            case SteerDeclined(reason=refusal):
                pass  # it may have started with the same commit
            case TurnStarted():
                return Steered("started", refusal or SteerRefusal.NO_TURN)
            case TurnCompleted() | TurnFailed():
                return Steered("queued", refusal or SteerRefusal.DECLINED)
            case _:
                pass
    return None if refusal is None else Steered("queued", refusal)


class Turn:
    """One prompt and its results. `await` it, loop over it, or both, in any number of tasks."""

    def __init__(self, attachment: Attachment, acceptance: Acceptance) -> None:
        self._attachment = attachment
        self._acceptance = acceptance

    # -- its result ----------------------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, None, TurnResult]:
        return self.result().__await__()

    async def result(self) -> TurnResult:
        """Wait for the end of the turn and of every handler call for it.

        Raises `TurnError` if the turn ended with an error, the error that rejected the prompt, and `ClientClosed`.
        """
        return await result_of(await self._attachment.progress(self._acceptance))

    @property
    def accepted(self) -> Awaitable[Accepted]:
        """Wait until the prompt is recorded. Raises the error that rejected it."""
        return self._acceptance.wait()

    @property
    def prompt_id(self) -> PromptId | None:
        """Its id; `None` until the prompt is accepted."""
        accepted = self._acceptance.accepted
        return None if accepted is None else accepted.prompt_id

    async def steered(self) -> Steered:
        """Wait for the outcome of a prompt with `when_busy="steer"`. Raises the error that rejected it."""
        accepted = await self._acceptance.wait()
        # A handler that waits here needs events that are dispatched only after its release.
        release_current_call()
        async with aclosing(self._attachment.port.follow(accepted.after_offset)) as pages:
            while True:
                became = _became((await self._attachment.next_page(pages)).events, accepted.prompt_id)
                if became is not None:
                    return became

    # -- its updates ---------------------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncGenerator[Update]:
        """Yield the turn's updates in order, to its end. A failed turn ends the loop; `await` it for the error."""
        async with aclosing(self.pages()) as pages:
            async for page in pages:
                for update in page:
                    yield update

    async def pages(self) -> AsyncGenerator[list[Update]]:
        """Yield the same updates in lists of those that are available."""
        accepted = await self._acceptance.wait()
        release_current_call()
        async with aclosing(self._attachment.port.follow(accepted.after_offset)) as pages:
            is_over = False
            while not is_over:
                updates, is_over = self._pick(await self._attachment.next_page(pages), accepted.prompt_id)
                if updates:
                    yield updates

    def _pick(self, page: EventPage, prompt_id: PromptId) -> tuple[list[Update], bool]:
        """Return the updates of this turn in a page, and whether the turn ends there."""
        origin = self._attachment.dispatch.origin
        updates: list[Update] = []
        for offset, event in enumerate(page.events, page.offset - len(page.events) + 1):
            if isinstance(event, SessionUpdated):
                if event.prompt_id == prompt_id:
                    updates.append(Update(event, offset, origin))
            elif isinstance(event, Terminal) and event.prompt_id == prompt_id:
                return updates, True
        return updates, False

    # -- what can be done about it -------------------------------------------------------------------------

    async def cancel(self) -> None:
        """Request the cancellation of the turn. It then ends as `cancelled`; a turn that has ended is unchanged."""
        await self._attachment.port.cancel((await self._acceptance.wait()).prompt_id)

    async def settle(self) -> None:
        """End the turn although its agent never reported an end."""
        await self._attachment.port.settle((await self._acceptance.wait()).prompt_id)

    async def edit(self, content: Content | None = None, *, place: int | None = None) -> None:
        """Change or move the prompt while it waits in the queue. Raises `PromptNotQueued` after that.

        Raises `LocalProtocolError` for invalid content, and for a position that is not an integer.
        """
        changed = None if content is None else to_raw(content)
        moved = None if place is None else to_place(place)
        accepted = await self._acceptance.wait()
        await self._attachment.port.edit(accepted.prompt_id, changed, moved)

    async def remove(self) -> None:
        """Remove the prompt from the queue. Raises `PromptNotQueued` once it has started."""
        await self._attachment.port.remove((await self._acceptance.wait()).prompt_id)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise `AttributeError`, with a hint for the most common mistake, a missing `await`."""
            if name in TurnResult.__struct_fields__:
                raise AttributeError(
                    f"{name!r} is of the turn's result; write `result = await turn`, then `result.{name}`"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"<Turn {self.prompt_id or 'not accepted yet'}>"
