"""A client's attachment to one session: the state that its turns, loops and handlers share.

Prompts are submitted in the order of their calls. Old events that can no longer be requested are released. When the
attachment ends, every waiter gets the reason as an exception. Nothing here uses timeouts or polls.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from itertools import count, islice
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
    progress_from_view,
    release_current_call,
    result_of,
)
from turnwire.errors import PositionLost, SessionClosed, TurnwireError
from turnwire.ids import RequestId
from turnwire.limits import Limits
from turnwire.session.correlation import ExactId, exact

logger = logging.getLogger(__name__)

_numbers = count()


class Acceptance:
    """The acceptance of a prompt: unknown at first, then settled once."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        """Order of submission over all sessions of the program."""
        self._settled = anyio.Event()
        self._refusal: Exception | None = None
        self.accepted: Accepted | None = None
        self.progress: Progress | None = None
        """Held from the moment it is known: a recreated one would not know the turn's handler calls."""

    @property
    def is_over(self) -> bool:
        """Return whether the prompt was rejected, or its turn has ended and its handler calls have finished."""
        return self._refusal is not None or (self.progress is not None and self.progress.is_drained)

    def give(self, accepted: Accepted, progress: Progress | None) -> None:
        self.accepted, self.progress = accepted, progress
        self._settled.set()

    def refuse(self, error: Exception) -> None:
        self._refusal = error
        self._settled.set()

    async def wait(self) -> Accepted:
        """Wait until the prompt is accepted. Raises the rejection."""
        await self._settled.wait()
        if self.accepted is None:
            assert self._refusal is not None, "settled means accepted or refused"
            raise self._refusal
        return self.accepted


class Attachment:
    """One attached session."""

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
        self._remembered = limits.remembered_turns
        self._order = anyio.Lock()
        self._submitting: set[Acceptance] = set()
        self._named: dict[ExactId, Acceptance] = {}
        """The newest prompt submitted here under each request id, oldest first; used by `completed`."""
        self._held: WeakSet[Acceptance] = WeakSet()
        """Turns that the program still holds, so that it can loop over them again."""
        self._forgotten = port.start
        self._reading: set[anyio.CancelScope] = set()

    @property
    def failure(self) -> TurnwireError | None:
        """Return why no more events of the session will arrive."""
        return self.dispatch.failure

    @property
    def over(self) -> TurnwireError | None:
        """Return why no further turn can start here. The ends of turns of a closed session can still be read."""
        if self.failure is None and self.dispatch.is_closed:
            return SessionClosed("the session was closed", session_id=self.port.session_id)
        return self.failure

    def submit(self, new_prompt: NewPrompt) -> Acceptance:
        """Submit a prompt after all that were submitted before."""
        acceptance = Acceptance()
        if self.failure is not None:
            acceptance.refuse(self.failure)
            return acceptance
        self._held.add(acceptance)
        if new_prompt.request_id is not None:
            self._name(new_prompt.request_id, acceptance)
        self._submitting.add(acceptance)
        self._tasks.start_soon(self._submit, new_prompt, acceptance)
        self.dispatch.start()
        return acceptance

    def _name(self, request_id: RequestId, acceptance: Acceptance) -> None:
        """Register a prompt under its request id before it is sent, in place of an older one."""
        self._named.pop(exact(request_id), None)
        self._named[exact(request_id)] = acceptance
        for old in list(islice(self._named, max(0, len(self._named) - self._remembered))):
            if self._named[old].is_over:
                del self._named[old]
        self._wakeup.wake()

    async def _submit(self, new_prompt: NewPrompt, acceptance: Acceptance) -> None:
        try:
            # The lock is fair, so prompts arrive in the order of their calls. The walk may pass the end of a turn
            # before its acceptance is known here, so no turn is released meanwhile.
            async with self._order:
                with self.turns.expecting():
                    accepted = await self.port.prompt(new_prompt)
                    acceptance.give(accepted, self._begun(accepted))
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
        """Return the progress of a turn once accepted, from the log if the walk has already passed it."""
        accepted = await acceptance.wait()
        if acceptance.progress is None:
            found = self._begun(accepted)
            if found is None and self.failure is not None:
                raise self.failure
            acceptance.progress = found or await self._adopt(accepted)
        return acceptance.progress

    def named(self, request_id: RequestId) -> Acceptance | None:
        """Return the newest prompt submitted here with exactly this id and JSON type."""
        return self._named.get(exact(request_id))

    def _begun(self, accepted: Accepted) -> Progress | None:
        """Return the turn if it is known here, or `None` if the walk has already passed it or has ended."""
        known = self.turns.get(accepted.prompt_id)
        # The walk has not reached its events yet, so none was missed.
        if known is None and self.failure is None and accepted.after_offset >= self.dispatch.offset:
            return self.turns.begin(accepted.prompt_id)
        return known

    async def _adopt(self, accepted: Accepted) -> Progress:
        """Read the turn from the log up to the walk's position; from there the walk continues it."""
        try:
            progress = await self._fold(accepted)
        except PositionLost:
            # Its events are released. If it has ended, the view still has the result.
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
        """Return a reader's next page. Raises `ClientClosed` or `SessionClosed` if there will be none."""
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
        """End the attachment: every waiter gets this error."""
        self.dispatch.fail(error)
        for acceptance in self._submitting:
            acceptance.refuse(error)
        for scope in self._reading:
            scope.cancel()

    def _forgettable(self) -> int:
        """Return the offset up to which events are not needed; 0 if too few to be worth a release."""
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
    """Return the end of the newest turn prompted with exactly this request id, waiting for it if necessary.

    This program's own prompts come first, including one that is still being submitted: request ids are local to a
    client, so another client's prompt with the same id is used only if there is no own one. Raises the rejection of
    the prompt, and the result of `over` once no such turn can start any more.
    """
    while True:
        known = sessions()
        own = [(found.number, found, each) for each in known if (found := each.named(request_id)) is not None]
        if own:
            _, acceptance, attachment = max(own, key=lambda each: each[0])
            return await result_of(await attachment.progress(acceptance))
        others = find_request(request_id, [each for attachment in known for each in attachment.turns])
        if others is not None:
            return await result_of(others)
        failure = over()
        if failure is not None:
            raise failure
        release_current_call()
        await wakeup.wait()
