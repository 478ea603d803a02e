"""The turns of one session: one at a time, in the order of their prompts, each with exactly one end.

Takes prompts that were checked, cancels, and turns that the agent begins itself; runs the author's function for
each. Whatever that function does, the turn ends once: with its stop reason, with an error, or as cancelled. Never
starts a turn while another runs.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio

from turnwire.agent.course import Course
from turnwire.agent.hooks import call
from turnwire.agent.live import LiveSession
from turnwire.agent.refusals import FAILED, NOT_INSERTED, error_of, is_expected
from turnwire.agent.seat import Seat
from turnwire.agent.turn import Turn
from turnwire.agent.words import user_message
from turnwire.core.correlation import same_id
from turnwire.errors import QueueFull, SessionNotFound
from turnwire.ids import RequestId
from turnwire.runtime.cancellation import contained
from turnwire.wire.jsonrpc import raw

logger = logging.getLogger(__name__)


class Turns:
    """Of one session."""

    def __init__(self, live: LiveSession) -> None:
        self._live = live
        self._waiting: deque[Course] = deque()
        self._running: Course | None = None
        self._idle = anyio.Event()
        self._is_closed = False

    @property
    def running(self) -> Course | None:
        """The turn that runs and is not over."""
        return self._running

    # -- from clients --------------------------------------------------------------------------------------------

    def submit(self, course: Course) -> None:
        """Run a prompt, now or behind others. Raises `QueueFull`."""
        if self._running is None:
            self._begin(course)
            return
        most = self._live.authored.options.max_queued
        if len(self._waiting) >= most:
            raise QueueFull(f"{most} prompts wait already; wait for an end or cancel", waiting=most)
        self._waiting.append(course)

    def cancel(self) -> None:
        """Stop the turn that runs, and take back the prompts behind it."""
        for course in tuple(self._waiting):
            if course.seat is not None:
                self._take_back(course)
        if self._running is not None:
            self._running.cancel()

    def cancel_request(self, seat: Seat, request_id: RequestId) -> None:
        """Stop the one turn that this request prompted."""
        for course in self._prompts_of(seat):
            if course.request_id is None or not same_id(course.request_id, request_id):
                continue
            if course is not self._running:
                self._take_back(course, is_request=True)
            elif not (course.is_inserted and seat.client.profile.version == 2):
                # On v2 the request has its answer already, so there is nothing to cancel.
                course.cancel()

    def _prompts_of(self, seat: Seat) -> list[Course]:
        return [each for each in (*self._waiting, self._running) if each is not None and each.seat is seat]

    def has_prompts_of(self, seat: Seat) -> bool:
        """Whether this client waits for an end."""
        return bool(self._prompts_of(seat))

    def move(self, seat: Seat, to: Seat) -> None:
        """A client has another seat from here on."""
        for course in self._prompts_of(seat):
            course.seat = to

    def is_prompted_by(self, seat: Seat, request_id: RequestId) -> bool:
        """Whether this request of this client is a prompt that has no answer yet."""
        is_v2 = seat.client.profile.version == 2
        return any(
            same_id(each.request_id, request_id)
            for each in self._prompts_of(seat)
            if each.request_id is not None and not (is_v2 and each.is_inserted)
        )

    def leave(self, seat: Seat) -> None:
        """A client has left: nobody waits for its prompts."""
        for course in self._prompts_of(seat):
            if course is self._running:
                course.cancel()
            else:
                self._waiting.remove(course)

    def close(self) -> None:
        """The session ends: stop everything, and begin nothing any more."""
        self._is_closed = True
        self.cancel()
        while self._waiting:
            self._waiting.popleft().admitted.set()

    async def stopped(self) -> None:
        """Return once nothing runs. What runs was cancelled, so that is bounded."""
        while self._running is not None:
            await self._idle.wait()

    def _take_back(self, course: Course, *, is_request: bool = False) -> None:
        """A prompt that never entered the conversation: an error on v2; on v1 a turn that was cancelled at once."""
        self._waiting.remove(course)
        course.cancel()
        self._end_unheard(course, is_refused=is_request)

    def _end_unheard(self, course: Course, *, is_refused: bool = False) -> None:
        end, seat = course.end(None), course.seat
        assert seat is not None, "only prompts of clients wait for insertion"
        assert course.request_id is not None, "and these are requests"
        if is_refused or seat.client.profile.version == 2:
            seat.client.refuse(course.request_id, NOT_INSERTED)
        else:
            seat.end(end, own=True)

    # -- running -------------------------------------------------------------------------------------------------

    def _begin(self, course: Course) -> None:
        self._running = course
        self._idle = anyio.Event()
        if course.seat is None:
            course.admitted.set()
        else:
            course.seat.client.tasks.start_soon(self._run, course, course.seat)

    async def _run(self, course: Course, seat: Seat) -> None:
        done = anyio.Event()
        try:
            with course.stoppable():
                # Settings that came before the prompt are made before it runs.
                async with self._live.settling:
                    await self._live.claim()
            if course.is_cancelled:
                done.set()
                return
            self._insert(course)
            turn = Turn(course)
            self._live.session.running = turn
            function, args = self._chosen(course)
            seat.client.tasks.start_soon(self._work, course, partial(call, function, turn, *args), done)
            await self._done_or_given_up(course, done)
        except BaseException:
            # The connection ends: so does its turn, for everybody else who watches.
            course.cancel()
            raise
        finally:
            with anyio.CancelScope(shield=True):
                with anyio.move_on_after(self._live.authored.options.max_cancel_s):
                    await done.wait()
                await self._finish(course)

    def _insert(self, course: Course) -> None:
        """The prompt enters the conversation: message, answer, running, in this order."""
        assert course.seat is not None, "a client's prompt has a client"
        assert course.request_id is not None, "and a request"
        course.is_inserted = True
        self._live.publish(user_message(course.message_id, course.content), by=course.seat, must=True)
        course.seat.accepted(course.request_id, course.message_id)
        self._live.set_foreground("running")

    def _chosen(self, course: Course) -> tuple[Any, list[str]]:
        """The author's function for this prompt: that of its slash command, or the one for prompts."""
        hooks = self._live.authored.hooks
        first = course.content[0].get("text") if course.content else None
        if isinstance(first, str) and first.startswith("/"):
            # Any white space ends the name; in front of it there is no name.
            name, *rest = first[1:].split(None, 1) if first[1:2].strip() else [""]
            if name in hooks.commands:
                return hooks.commands[name][1], [" ".join(rest).strip()]
        return hooks.prompt, []

    async def _work(self, course: Course, work: Callable[[], Awaitable[Any]], done: anyio.Event) -> None:
        try:
            with contained(), course.stoppable():
                course.returned(await work())
        except Exception as error:  # noqa: BLE001  the author's own; it ends the turn, not the agent
            course.error = error
        finally:
            done.set()

    async def _done_or_given_up(self, course: Course, done: anyio.Event) -> None:
        """Wait for the author's function; once cancelled, not for ever."""
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(self._give_up, course, waiting.cancel_scope, done)
            await done.wait()
            waiting.cancel_scope.cancel()

    async def _give_up(self, course: Course, waiting: anyio.CancelScope, done: anyio.Event) -> None:
        await course.cancelled.wait()
        options = self._live.authored.options
        await self._live.authored.clock.sleep(options.max_cancel_s)
        logger.error("a cancelled turn did not stop within %s s; it ends without it", options.max_cancel_s)
        done.set()
        waiting.cancel()

    # -- ending --------------------------------------------------------------------------------------------------

    async def _finish(self, course: Course) -> None:
        course.close_calls()
        self._live.touch()
        # Kept first, told second: a client that heard of an end finds its turn in the history.
        await self._live.save()
        self._end(course)
        await self._live.save()

    def _end(self, course: Course) -> None:
        """The one end. Nothing here waits, so nothing comes between its parts."""
        # What was left to itself may have opened another call while the store was busy.
        course.close_calls()
        live, seat = self._live, course.seat
        if course.is_inserted or seat is None:
            end = course.end(self._error(course))
            live.history.keep(raw(end.as_kept()))
            live.foreground = end.as_idle()
            for each in live.seats:
                each.end(end, own=each is seat)
        else:
            self._end_unheard(course)
        live.session.running = None
        self._next()

    def _next(self) -> None:
        self._running = None
        self._idle.set()
        if self._waiting:
            self._begin(self._waiting.popleft())

    def _error(self, course: Course) -> Any:
        if course.is_cancelled:
            if course.error is not None:
                logger.info("a cancelled turn failed while it stopped", exc_info=course.error)
            return None
        if course.error is not None:
            if not is_expected(course.error):
                logger.error("a turn failed", exc_info=course.error)
            return error_of(course.error) if is_expected(course.error) else FAILED
        # Neither a reason nor an error: the author's function cancelled itself.
        return None if course.stop_reason is not None else FAILED

    # -- turns of the agent's own --------------------------------------------------------------------------------

    @asynccontextmanager
    async def own(self) -> AsyncGenerator[Turn]:
        """A turn that no prompt began. Waits for its turn like a prompt."""
        course = Course(self._live, [])
        if self._is_closed:
            raise _closed()
        if self._running is None:
            self._begin(course)
        else:
            self._waiting.append(course)
        try:
            await course.admitted.wait()
            if course is self._running:
                await self._live.claim()
        except BaseException:
            self._forget(course)
            raise
        if course is not self._running:
            raise _closed()
        turn = self._live.session.running = Turn(course)
        self._live.set_foreground("running")
        try:
            with course.stoppable():
                yield turn
                course.returned(None)
        except Exception as error:
            course.error = error
            raise
        except BaseException:
            course.cancel()
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await self._finish(course)

    def _forget(self, course: Course) -> None:
        if course in self._waiting:
            self._waiting.remove(course)
        elif self._running is course:
            self._next()


def _closed() -> SessionNotFound:
    return SessionNotFound("the session is closed; no turn can begin in it")
