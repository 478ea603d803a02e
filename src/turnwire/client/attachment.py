"""A client's attachment to one session: what its turns, its loops and its handlers share.

Prompts are submitted in the order in which they came. Old events that nobody can ask for any more are let go of.
When the attachment ends, everybody who waits for something here hears why. Nothing waits by time, nothing polls.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from weakref import WeakSet

import anyio
from anyio.abc import TaskGroup

from turnwire.client.dispatch import Dispatch, Listeners
from turnwire.client.port import Accepted, DaemonSession, EventPage, NewPrompt
from turnwire.client.progress import (
    Progress,
    Terminal,
    TurnResult,
    Turns,
    Wakeup,
    find_request,
    is_written_alike,
    progress_from_view,
    release_current_call,
    result_of,
)
from turnwire.errors import PositionLost, SessionClosed, TurnwireError
from turnwire.ids import RequestId
from turnwire.limits import Limits

logger = logging.getLogger(__name__)


class Acceptance:
    """Whether a prompt was accepted: unknown at first, then settled once."""

    def __init__(self, request_id: RequestId | None = None) -> None:
        self.request_id = request_id
        """The caller's name for it."""
        self._settled = anyio.Event()
        self._refusal: Exception | None = None
        self.accepted: Accepted | None = None
        self.progress: Progress | None = None
        """Kept from the moment it is known: made again, it would not know the turn's handler calls."""

    def give(self, accepted: Accepted, progress: Progress | None) -> None:
        self.accepted, self.progress = accepted, progress
        self._settled.set()

    def refuse(self, error: Exception) -> None:
        self._refusal = error
        self._settled.set()

    async def wait(self) -> Accepted:
        """Raises the refusal."""
        await self._settled.wait()
        if self.accepted is None:
            assert self._refusal is not None, "settled means accepted or refused"
            raise self._refusal
        return self.accepted


class Attachment:
    """One session, attached."""

    def __init__(
        self, port: DaemonSession, tasks: TaskGroup, wakeup: Wakeup, listeners: Listeners, limits: Limits
    ) -> None:
        self.port = port
        self.listeners = Listeners(listeners)
        self.turns = Turns(wakeup, limits.remembered_turns)
        self.dispatch = Dispatch(port, tasks, self.turns, self.listeners, self._forgettable)
        self._tasks = tasks
        self._wakeup = wakeup
        self._kept_events = limits.kept_events
        self._order = anyio.Lock()
        self._submitting: set[Acceptance] = set()
        self._held: WeakSet[Acceptance] = WeakSet()
        """Of turns that the program still holds, so that it can loop over them again."""
        self._forgotten = port.start
        self._reading: set[anyio.CancelScope] = set()

    @property
    def failure(self) -> TurnwireError | None:
        """Why nothing more is heard of the session."""
        return self.dispatch.failure

    @property
    def over(self) -> TurnwireError | None:
        """Why no turn is yet to come here. The ends of a session that was closed can still be read."""
        if self.failure is None and self.dispatch.is_closed:
            return SessionClosed("the session was closed", session_id=self.port.session_id)
        return self.failure

    def submit(self, new_prompt: NewPrompt) -> Acceptance:
        """Hand a prompt over, behind all that were handed over before."""
        acceptance = Acceptance(new_prompt.request_id)
        if self.failure is not None:
            acceptance.refuse(self.failure)
            return acceptance
        self._held.add(acceptance)
        self._submitting.add(acceptance)
        self._tasks.start_soon(self._submit, new_prompt, acceptance)
        self.dispatch.start()
        return acceptance

    async def _submit(self, new_prompt: NewPrompt, acceptance: Acceptance) -> None:
        try:
            # The lock is fair, so prompts arrive in the order of their calls. A turn may end, and be walked past,
            # before we hear that it was accepted: meanwhile none is let go of.
            async with self._order:
                with self.turns.expecting():
                    accepted = await self.port.prompt(new_prompt)
                    progress = self._begun(accepted)
                    if progress is not None:
                        progress.is_own = True
                    acceptance.give(accepted, progress)
        except TurnwireError as error:
            extra = {"event": "prompt_refused", "session": self.port.session_id, "code": error.code}
            logger.info("a prompt was refused", extra=extra)
            acceptance.refuse(error)
        except Exception as error:  # a fault of ours is told to who prompted; other sessions go on
            extra = {"event": "prompt_failed", "session": self.port.session_id}
            logger.exception("a prompt could not be submitted", extra=extra)
            acceptance.refuse(error)
        self._submitting.discard(acceptance)
        self._wakeup.wake()

    # -- how far a turn has come ---------------------------------------------------------------------------

    async def progress(self, acceptance: Acceptance) -> Progress:
        """The progress of a turn once it is accepted, read from the log if the walk had left it behind."""
        accepted = await acceptance.wait()
        if acceptance.progress is None:
            found = self._begun(accepted)
            if found is None and self.failure is not None:
                raise self.failure
            acceptance.progress = found or await self._adopt(accepted)
        return acceptance.progress

    def is_submitting(self, request_id: RequestId) -> bool:
        """Whether a prompt with this id is on its way to be accepted."""
        return any(is_written_alike(each.request_id, request_id) for each in self._submitting)

    def _begun(self, accepted: Accepted) -> Progress | None:
        """The turn as far as it is known here. None if the walk had left it behind, or is over."""
        known = self.turns.get(accepted.prompt_id)
        # Its events are still before the walk, so nothing of it has been missed.
        if known is None and self.failure is None and accepted.after_offset >= self.dispatch.offset:
            return self.turns.begin(accepted.prompt_id)
        return known

    async def _adopt(self, accepted: Accepted) -> Progress:
        """The turn as the log has it up to where the walk stands; from there on the walk takes it further."""
        try:
            progress = await self._fold(accepted)
        except PositionLost:
            # Its events are forgotten. If it has ended, the view still knows how.
            progress = progress_from_view(await self.port.view(), accepted.prompt_id)
        return self.turns.adopt(progress)

    async def _fold(self, accepted: Accepted) -> Progress:
        progress = Progress(accepted.prompt_id, None, self.turns.started)
        offset = accepted.after_offset
        async with aclosing(self.port.follow(offset)) as pages:
            while offset < self.dispatch.offset and not progress.is_drained:
                page = await self.next_page(pages)
                for event in page.events[: self.dispatch.offset - offset]:
                    if getattr(event, "prompt_id", None) != accepted.prompt_id:
                        continue
                    if isinstance(event, Terminal):
                        progress.end(event)
                    else:
                        progress.apply(event)
                offset = page.offset
        return progress

    # -- reading -------------------------------------------------------------------------------------------

    async def next_page(self, pages: AsyncGenerator[EventPage]) -> EventPage:
        """The next page of a reader. Raises why there will be none: `ClientClosed`, `SessionClosed`."""
        page: EventPage | None = None
        with anyio.CancelScope() as scope:
            self._reading.add(scope)
            if self.failure is not None:
                scope.cancel()
            try:
                page = await anext(pages, None)
            finally:
                self._reading.discard(scope)
        if page is None:
            raise self.failure or SessionClosed("the session is gone", session_id=self.port.session_id)
        return page

    def fail(self, error: TurnwireError) -> None:
        """It is over: everybody who waits for something here hears so."""
        self.dispatch.fail(error)
        for acceptance in self._submitting:
            acceptance.refuse(error)
        for scope in self._reading:
            scope.cancel()

    def _forgettable(self) -> int:
        """The offset up to which nothing is needed; 0 while there is not enough to be worth it."""
        # A program that holds a turn may loop over it again from its start.
        needed = [each.accepted.after_offset for each in self._held if each.accepted is not None]
        upto = min([self.dispatch.offset - self._kept_events, *needed])
        if upto - self._forgotten < self._kept_events:
            return 0
        self._forgotten = upto
        return upto


async def completed(
    request_id: RequestId,
    sessions: Callable[[], list[Attachment]],
    over: Callable[[], TurnwireError | None],
    wakeup: Wakeup,
) -> TurnResult:
    """The end of the turn of one of the sessions that a request id names, waiting for one that is yet to come.

    Raises what `over` gives: why there will be none.
    """
    while True:
        known = sessions()
        found = find_request(request_id, [each for attachment in known for each in attachment.turns])
        # While one of our own is on its way, another client's with the same id is not the one that is meant.
        is_ours = found is not None and (found.is_own or not any(each.is_submitting(request_id) for each in known))
        if found is not None and is_ours:
            return await result_of(found)
        failure = over()
        if failure is not None:
            raise failure
        release_current_call()
        await wakeup.wait()
