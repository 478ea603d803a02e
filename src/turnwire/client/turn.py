"""A turn as the program that prompted it holds it.

`await turn` returns when the turn has ended and every handler call for it has finished. A loop over a turn is a
cursor of its own over the log: it may begin late, run twice, or run beside others, and sees every update of the
turn each time. Updates are not buffered, and no turn is ended by itself.
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
from turnwire.core.events import (
    AnyEvent,
    PromptInjected,
    SessionUpdated,
    SteerDeclined,
    SteerRefusal,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
)
from turnwire.ids import PromptId


class Steered(NamedTuple):
    """What became of a prompt that was to go into the running turn."""

    outcome: Literal["injected", "queued", "started"]
    """Taken in; waiting for a turn of its own, as the next one; begun as a turn of its own."""
    reason: SteerRefusal | None = None
    """Why it was not taken in."""


def _became(events: Sequence[AnyEvent], prompt_id: PromptId) -> Steered | None:
    """What these events say of it; none if nothing yet."""
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
    """One prompt and what comes of it. `await` it, loop over it, or both, in any number of tasks."""

    def __init__(self, attachment: Attachment, acceptance: Acceptance) -> None:
        self._attachment = attachment
        self._acceptance = acceptance

    # -- its result ----------------------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, None, TurnResult]:
        return self.result().__await__()

    async def result(self) -> TurnResult:
        """The end of the turn, once every handler call for it has finished.

        Raises `TurnError` if the turn ended with an error, what refused the prompt, and `ClientClosed`.
        """
        return await result_of(await self._attachment.progress(self._acceptance))

    @property
    def accepted(self) -> Awaitable[Accepted]:
        """Wait until the prompt is recorded. Raises what refused it."""
        return self._acceptance.wait()

    @property
    def prompt_id(self) -> PromptId | None:
        """Its id; none until it is accepted."""
        accepted = self._acceptance.accepted
        return None if accepted is None else accepted.prompt_id

    async def steered(self) -> Steered:
        """What became of a prompt with `when_busy="steer"`, once the agent has said. Raises what refused it."""
        accepted = await self._acceptance.wait()
        # A handler that waits here waits for events that come only once it is no longer waited for.
        release_current_call()
        async with aclosing(self._attachment.port.follow(accepted.after_offset)) as pages:
            while True:
                became = _became((await self._attachment.next_page(pages)).events, accepted.prompt_id)
                if became is not None:
                    return became

    # -- its updates ---------------------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncGenerator[Update]:
        """The turn's updates in order, to its end. A turn that fails ends the loop; `await` it to hear why."""
        async with aclosing(self.pages()) as pages:
            async for page in pages:
                for update in page:
                    yield update

    async def pages(self) -> AsyncGenerator[list[Update]]:
        """The same updates, as many at a time as are there."""
        accepted = await self._acceptance.wait()
        release_current_call()
        async with aclosing(self._attachment.port.follow(accepted.after_offset)) as pages:
            is_over = False
            while not is_over:
                updates, is_over = self._pick(await self._attachment.next_page(pages), accepted.prompt_id)
                if updates:
                    yield updates

    def _pick(self, page: EventPage, prompt_id: PromptId) -> tuple[list[Update], bool]:
        """The updates of this turn in a page, and whether it ends there."""
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
        """Ask for the turn to be stopped. Its end then says `cancelled`; one that has ended is left alone."""
        await self._attachment.port.cancel((await self._acceptance.wait()).prompt_id)

    async def settle(self) -> None:
        """Say that the turn is over although its agent never said so."""
        await self._attachment.port.settle((await self._acceptance.wait()).prompt_id)

    async def edit(self, content: Content | None = None, *, place: int | None = None) -> None:
        """Change or move the prompt while it waits in the queue. Raises `PromptNotQueued` after that.

        Raises `LocalProtocolError` for content that is none, and for a place that is no whole number.
        """
        changed = None if content is None else to_raw(content)
        moved = None if place is None else to_place(place)
        accepted = await self._acceptance.wait()
        await self._attachment.port.edit(accepted.prompt_id, changed, moved)

    async def remove(self) -> None:
        """Take the prompt out of the queue. Raises `PromptNotQueued` once it has started."""
        await self._attachment.port.remove((await self._acceptance.wait()).prompt_id)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """The commonest slip is to forget the `await`; it is told apart from a name that nothing has."""
            if name in TurnResult.__struct_fields__:
                raise AttributeError(
                    f"{name!r} is of the turn's result; write `result = await turn`, then `result.{name}`"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"<Turn {self.prompt_id or 'not accepted yet'}>"
