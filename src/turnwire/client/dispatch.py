"""Handlers of one session, called in the order of its log, one after the other.

The dispatcher walks the session's events, calls the handlers of updates and permission requests, and notifies each
turn when it is passed and drained. Two update handlers of a session never run at the same time, no event is
dropped, and one handler's error does not reach another.

Theory of operation
-------------------
One task, the runner, reads pages of events and walks them. At each position it calls plain functions and awaits
coroutine functions. So the order of the log is the order of the calls, and the walk reaches a turn's end only after
every call before it has finished. That is all of "await means drained", except for one case.

A handler may await a turn of its own session. The turn's end follows the handler's event in the log, so the walk
must continue while the handler waits. The handler is then *released*: a new runner continues the walk from its
position, and the old one only finishes that call. The turn of the released call counts it as unfinished, so no
waiter of that turn returns too early. `client.progress` explains how handlers are prevented from waiting for each
other.

    D1  Update handlers of a session are called in log order, each after the one before it finished or was released.
    D2  A turn is passed after every call for an event before its end has finished or was released.
    D3  A turn is drained after every call for one of its own events has finished.
    D4  Each permission request has a task, begun in log order, and cancelled when the request is closed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from inspect import isawaitable
from itertools import count, islice, repeat
from typing import TypeAlias
from weakref import WeakSet

import anyio
from anyio.abc import TaskGroup

from turnwire.client.permission import REJECT, Answer, PermissionRequest
from turnwire.client.port import DaemonSession, EventPage
from turnwire.client.progress import Progress, Terminal, Turns, UnfinishedCall, handler_call
from turnwire.client.update import Update, UpdateOrigin
from turnwire.errors import LocalProtocolError, SessionClosed, TurnwireError
from turnwire.ids import PermissionId, PromptId
from turnwire.runtime.cancellation import is_cancelled
from turnwire.session import events as ev

OnUpdate: TypeAlias = Callable[[Update], Awaitable[object] | object]
OnPermission: TypeAlias = Callable[[PermissionRequest], Awaitable[Answer] | Answer]

logger = logging.getLogger(__name__)


class Listeners:
    """Handlers in the order of their registration. Those of `beyond` are called after these."""

    __slots__ = ("__weakref__", "_beyond", "_own_permissions", "_own_updates", "_within", "permissions", "updates")

    def __init__(self, beyond: Listeners | None = None) -> None:
        self._beyond = beyond
        self._within: WeakSet[Listeners] = WeakSet()
        if beyond is not None:
            beyond._within.add(self)
        self._own_updates: tuple[OnUpdate, ...] = ()
        self._own_permissions: tuple[OnPermission, ...] = ()
        # Tuples, so that a new handler does not disturb an iteration.
        self.updates: tuple[OnUpdate, ...] = ()
        self.permissions: tuple[OnPermission, ...] = ()
        self._gather()

    def add_update(self, function: OnUpdate) -> None:
        """Add a handler for every update from the next one on."""
        self._own_updates += (function,)
        self._gather()

    def add_permission(self, function: OnPermission) -> None:
        """Add a handler for permission requests from the next one on."""
        self._own_permissions += (function,)
        self._gather()

    def _gather(self) -> None:
        beyond = self._beyond
        self.updates = self._own_updates + (() if beyond is None else beyond.updates)
        self.permissions = self._own_permissions + (() if beyond is None else beyond.permissions)
        for each in self._within:
            each._gather()


class _Calls:
    """Remaining handler calls for consecutive updates of one turn in a page.

    The turn gets its updates together, whenever the walk stops: it is not read before.
    """

    __slots__ = ("_events", "functions", "passed", "progress", "update", "updates")

    def __init__(
        self,
        events: list[ev.SessionUpdated],
        updates: Iterator[Update],
        functions: Iterator[OnUpdate],
        progress: Progress | None,
        passed: int,
    ) -> None:
        self._events = events
        """Events that the turn has not received yet."""
        self.update = next(updates, None)
        """The update being dispatched; `None` after the last."""
        self.functions = functions
        """Functions that remain to be called for it."""
        self.updates = updates
        """The updates after it."""
        self.progress = progress
        """The turn; `None` if it is unknown or there is none."""
        self.passed = passed
        """The offset of the last event that the turn has received."""

    def stop(self, update: Update | None, functions: Iterator[OnUpdate]) -> int:
        """Stop the walk with these functions remaining for this update. Returns the offset there."""
        self.update, self.functions = update, functions
        count = len(self._events) if update is None else update.offset - self.passed
        heard, self._events = self._events[:count], self._events[count:]
        self.passed += count
        if self.progress is not None:
            self.progress.apply_updates(heard)
        return self.passed


class Dispatch:
    """The walk over one session's log."""

    def __init__(
        self, port: DaemonSession, tasks: TaskGroup, turns: Turns, listeners: Listeners, forget: Callable[[], int]
    ) -> None:
        self._port = port
        self._tasks = tasks
        self._turns = turns
        self._listeners = listeners
        self._forget = forget
        """Returns the offset up to which events are no longer needed."""
        self.origin = UpdateOrigin(port.session_id)
        self.offset = port.start
        """The offset that the walk has reached."""
        self.errors: Counter[str] = Counter()
        """Number of handler calls that raised, by the name of the exception."""
        self.failure: TurnwireError | None = None
        """Why the walk has ended."""
        self._pages = port.follow(port.start)
        self._events: list[ev.AnyEvent] = []
        """The page."""
        self._place = 0
        """Number of its events that are passed or in progress."""
        self._calls: _Calls | None = None
        """The calls in progress."""
        self._asking: dict[PermissionId, anyio.CancelScope] = {}
        self._is_started = False
        self.is_closed = False
        """True if the session is closed: no event follows."""

    def start(self) -> None:
        """Begin or continue: handlers that were added before the first wait get everything."""
        if not self._is_started and self.failure is None:
            self._is_started = True
            self._tasks.start_soon(self._run)

    def fail(self, error: TurnwireError) -> None:
        """End the walk: every turn whose end was not reached gets this error."""
        if self.failure is None:
            self.failure = error
            self._turns.fail(error)

    # -- the walk ------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Walk until the session ends or another runner takes over."""
        # A runner that takes over is started by the released handler, and a task inherits its starter's context.
        handler_call.set(None)
        try:
            while True:
                while (waiting := self._walk()) is not None:
                    if not await self._finish(waiting):
                        return
                if self.is_closed:
                    self._turns.close()
                    await self._pages.aclose()
                    return
                page = await anext(self._pages, None)
                if page is None:
                    self.fail(SessionClosed("the session is gone", session_id=self._port.session_id))
                    return
                await self._turn_page(page)
        except TurnwireError as error:
            self.fail(error)

    async def _turn_page(self, page: EventPage) -> None:
        # Released between two pages only, because the current page may hold these events.
        upto = self._forget()
        if upto:
            await self._port.forget(upto)
        self._events, self._place = page.events, 0
        self.offset = page.offset - len(page.events)

    def _walk(self) -> Awaitable[object] | None:
        """Continue to the next handler call that must be awaited; returns `None` at the end of the page."""
        events = self._events
        while True:
            waiting = None if self._calls is None else self._call(self._calls)
            if waiting is not None or self._place == len(events):
                return waiting
            event = events[self._place]
            # Nearly all events are updates, so these have a fast path.
            if type(event) is ev.SessionUpdated:
                self._calls = self._next_calls(event.prompt_id)
            else:
                self._place += 1
                self.offset += 1
                self._learn(event)

    def _next_calls(self, prompt_id: PromptId | None) -> _Calls:
        """Return the calls for the turn's next consecutive updates in the page."""
        run: list[ev.SessionUpdated] = []
        for event in islice(self._events, self._place, None):
            if type(event) is not ev.SessionUpdated or event.prompt_id != prompt_id:
                break
            run.append(event)
        self._place += len(run)
        functions, passed = self._listeners.updates, self.offset
        # Created lazily, and not at all without handlers.
        updates = map(Update, run, count(passed + 1), repeat(self.origin)) if functions else iter(())
        return _Calls(run, updates, iter(functions), self._turns.opened.get(prompt_id), passed)

    def _call(self, calls: _Calls) -> Awaitable[object] | None:
        """Call each function for each update in order, up to the first call that must be awaited."""
        update, functions, listeners = calls.update, calls.functions, self._listeners
        while update is not None:
            for function in functions:
                try:
                    outcome = function(update)
                except (Exception, anyio.get_cancelled_exc_class()) as error:  # noqa: BLE001 anything is theirs
                    self._note(_theirs(error), calls.progress)
                else:
                    if outcome is not None and isawaitable(outcome):
                        self.offset = calls.stop(update, functions)
                        return outcome
            update, functions = next(calls.updates, None), iter(listeners.updates)
        self.offset = calls.stop(None, functions)
        self._calls = None
        return None

    async def _finish(self, waiting: Awaitable[object]) -> bool:
        """Await one call to its end. Returns False if another runner took over meanwhile."""
        progress = None if self._calls is None else self._calls.progress
        call = UnfinishedCall(progress, self._go_on)
        token = handler_call.set(call)
        try:
            await waiting
        except (Exception, anyio.get_cancelled_exc_class()) as error:  # noqa: BLE001 anything is theirs
            self._note(_theirs(error), progress)
        finally:
            handler_call.reset(token)
            call.finish()
        return not call.is_released

    def _go_on(self) -> None:
        if self.failure is None:
            self._tasks.start_soon(self._run)

    def _note(self, error: Exception, progress: Progress | None) -> None:
        self.errors[type(error).__name__] += 1
        if progress is not None:
            progress.errors.append(error)
        extra = {"event": "handler_failed", "session": self._port.session_id}
        logger.error("a handler of the session raised; the others go on", exc_info=error, extra=extra)

    # -- facts ---------------------------------------------------------------------------------------------

    def _learn(self, event: ev.AnyEvent) -> None:
        match event:
            case ev.PermissionRequested():
                self._ask(event)
            case ev.PermissionResolved():
                scope = self._asking.pop(event.request_id, None)
                if scope is not None:
                    scope.cancel()
            case ev.AgentStarted():
                self._turns.started = event
                self.origin.protocol_version = event.protocol_version
            case ev.TurnEvent():
                self._learn_of_turn(event)
            case ev.SessionClosed():
                self.is_closed = True
            case _:
                pass

    def _learn_of_turn(self, event: ev.TurnEvent) -> None:
        turns = self._turns
        if isinstance(event, ev.PromptAccepted):
            turns.begin(event.prompt_id, event.prompt_request_id)
        elif isinstance(event, ev.TurnStarted):
            turns.begin(event.prompt_id)
        progress = turns.opened.get(event.prompt_id)
        if progress is None:
            return
        if isinstance(event, Terminal):
            turns.end(progress, event)
            return
        progress.apply(event)  # pyright: ignore[reportArgumentType] every turn event is one of `AnyEvent`

    # -- permission requests -------------------------------------------------------------------------------

    def _ask(self, event: ev.PermissionRequested) -> None:
        functions = self._listeners.permissions
        if not functions:
            if not self._port.has_other_clients:
                self._tasks.start_soon(self._refuse, self._request(event))
            return
        progress = self._turns.opened.get(event.prompt_id)
        call = UnfinishedCall(progress, _nothing)
        # It runs in parallel with the walk: its turn counts it as unfinished (D3), and no other runner has to take
        # over.
        call.release()
        scope = self._asking[event.request_id] = anyio.CancelScope()
        self._tasks.start_soon(self._answer, self._request(event), functions, call, scope)

    def _request(self, event: ev.PermissionRequested) -> PermissionRequest:
        progress = self._turns.opened.get(event.prompt_id)
        request = PermissionRequest(event, self._port.session_id)
        if progress is None or event.child is not None:
            return request
        known, terminals = progress.known_of(request.tool_call_id)
        return PermissionRequest(event, self._port.session_id, known, terminals)

    async def _refuse(self, request: PermissionRequest) -> None:
        """Reject a request that no handler can ever answer and log it, so that the turn does not wait forever."""
        logger.warning(
            "the agent asks for permission (%s) and nobody is there to answer; it is told no: add a function with"
            " on_permission",
            request.title or request.method,
            extra={"event": "permission_unanswered", "session": self._port.session_id},
        )
        try:
            reply = request.reply(REJECT)
            await self._port.answer(request.request_id, reply.answer, reply.option_id)
        except TurnwireError as error:
            self._note(error, self._turns.opened.get(request.prompt_id))

    async def _answer(
        self,
        request: PermissionRequest,
        functions: tuple[OnPermission, ...],
        call: UnfinishedCall,
        scope: anyio.CancelScope,
    ) -> None:
        progress = self._turns.opened.get(request.prompt_id)
        handler_call.set(call)
        try:
            answer: Answer = None
            with scope:
                # If the request was closed before this task began (D4), no handler is called: a plain function
                # could not be cancelled.
                if not scope.cancel_called:
                    answer = await _first_answer(request, functions)
            # A request that was closed in the meantime accepts no answer any more.
            if answer is not None and self._asking.pop(request.request_id, None) is not None:
                reply = request.reply(answer)
                await self._port.answer(request.request_id, reply.answer, reply.option_id)
        except (Exception, anyio.get_cancelled_exc_class()) as error:  # noqa: BLE001 anything is theirs
            self._note(_theirs(error), progress)
        finally:
            self._asking.pop(request.request_id, None)
            call.finish()


def _theirs(error: BaseException) -> Exception:
    """Return a handler's exception in reportable form. Raises a cancellation that is not the handler's own.

    The exception of a cancellation would end the whole client, and is no `Exception` that a program expects in a
    list.
    """
    if isinstance(error, Exception):
        return error
    if is_cancelled():
        raise error
    told = LocalProtocolError(
        "a handler raised the exception that cancels, and nobody had cancelled it; catch it where the handler "
        "waits for something that it has cancelled"
    )
    told.__cause__ = error
    return told


async def _first_answer(request: PermissionRequest, functions: tuple[OnPermission, ...]) -> Answer:
    """Call one handler after the other until one answers."""
    for function in functions:
        answer = function(request)
        if isawaitable(answer):
            answer = await answer
        if answer is not None:
            return answer
    return None


def _nothing() -> None:
    """Do nothing on release: a permission request does not block the walk."""
