"""Handlers of one session, called in the order of its log, one after the other.

It walks the session's events, calls the functions that want updates and permission requests, and tells each turn
when it is passed and drained. Two update handlers of a session are never called at once, no event is dropped, and
one handler's error does not reach another.

Theory of operation
-------------------
One task, the runner, reads pages of events and walks them. A plain function is called where the walk stands; a
coroutine function is awaited there. So the order of the log is the order of the calls, and the walk comes to a
turn's end only after every call before it has finished. That is all of "await means drained", but for one case.

A handler may await a turn of its own session. The turn's end is behind the handler in the log, so the walk must
go on while the handler waits. It is then *released*: a new runner takes the walk over where it stands, and the
old one is left with that one call. The turn of the released call counts it as unfinished, so nobody who awaits
that turn is let go too early. How handlers are kept from waiting for each other is in `client.progress`.

    D1  Update handlers of a session are called in log order, each after the one before it finished or was released.
    D2  A turn is passed after every call for an event before its end has finished or was released.
    D3  A turn is drained after every call for one of its own events has finished.
    D4  A permission request is asked in a task of its own, begun in log order, and given up when it is closed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from inspect import isawaitable
from typing import NamedTuple, TypeAlias

import anyio
from anyio.abc import TaskGroup

from turnwire.client.permission import REJECT, Answer, PermissionRequest
from turnwire.client.port import DaemonSession, EventPage
from turnwire.client.progress import Progress, Terminal, Turns, UnfinishedCall, handler_call
from turnwire.client.update import Update, UpdateOrigin
from turnwire.core import events as ev
from turnwire.errors import LocalProtocolError, SessionClosed, TurnwireError
from turnwire.ids import PermissionId
from turnwire.runtime.cancellation import is_cancelled

OnUpdate: TypeAlias = Callable[[Update], Awaitable[object] | object]
OnPermission: TypeAlias = Callable[[PermissionRequest], Awaitable[Answer] | Answer]

logger = logging.getLogger(__name__)


class Listeners:
    """Functions that want to hear, in the order in which they came. Those of `beyond` come after our own."""

    __slots__ = ("_beyond", "own_permissions", "own_updates")

    def __init__(self, beyond: Listeners | None = None) -> None:
        self._beyond = beyond
        # Tuples, so that whoever walks one is not disturbed by a newcomer.
        self.own_updates: tuple[OnUpdate, ...] = ()
        self.own_permissions: tuple[OnPermission, ...] = ()

    @property
    def updates(self) -> tuple[OnUpdate, ...]:
        beyond = () if self._beyond is None else self._beyond.updates
        return self.own_updates + beyond if beyond else self.own_updates

    @property
    def permissions(self) -> tuple[OnPermission, ...]:
        return self.own_permissions if self._beyond is None else self.own_permissions + self._beyond.permissions


class _Calls(NamedTuple):
    """What is left to call for the update where the walk stands."""

    update: Update | None
    progress: Progress | None
    functions: Iterator[OnUpdate]


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
        """Gives the offset up to which nothing is needed any more."""
        self.origin = UpdateOrigin(port.session_id)
        self.offset = port.start
        """The event at which the walk stands."""
        self.errors: Counter[str] = Counter()
        """How many handler calls raised, by the name of the exception."""
        self.failure: TurnwireError | None = None
        """Why the walk is over."""
        self._pages = port.follow(port.start)
        self._events: Iterator[ev.AnyEvent] = iter(())
        self._interrupted = _Calls(None, None, iter(()))
        self._asking: dict[PermissionId, anyio.CancelScope] = {}
        self._is_started = False
        self.is_closed = False
        """The session is closed: nothing follows."""

    def start(self) -> None:
        """Begin, or go on: handlers that were added before the first wait hear everything."""
        if not self._is_started and self.failure is None:
            self._is_started = True
            self._tasks.start_soon(self._run)

    def fail(self, error: TurnwireError) -> None:
        """The walk is over, and every turn whose end was not reached hears why."""
        if self.failure is None:
            self.failure = error
            self._turns.fail(error)

    # -- the walk ------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Walk until the session is over or somebody else takes over."""
        # One that takes over is started out of the released handler, and a task inherits its starter's context.
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
        # Between two pages, because a page in hand may hold what is let go of.
        upto = self._forget()
        if upto:
            await self._port.forget(upto)
        self._events = iter(page.events)
        self.offset = page.offset - len(page.events)

    def _walk(self) -> Awaitable[object] | None:
        """Go on to the next handler call that waits; none at the end of the page."""
        waiting = self._call(*self._interrupted)
        if waiting is not None:
            return waiting
        listeners, opened, origin = self._listeners, self._turns.opened, self.origin
        for event in self._events:
            self.offset += 1
            # Nearly all events are updates, so these take the short way.
            if type(event) is not ev.SessionUpdated:
                self._learn(event)
                continue
            progress = opened.get(event.prompt_id)
            if progress is not None:
                progress.apply(event)
            functions = listeners.updates
            if functions:
                waiting = self._call(Update(event, self.offset, origin), progress, iter(functions))
                if waiting is not None:
                    return waiting
        return None

    def _call(
        self, update: Update | None, progress: Progress | None, functions: Iterator[OnUpdate]
    ) -> Awaitable[object] | None:
        """Call one function after the other, up to the first that waits; the rest is called when it is finished."""
        if update is not None:
            for function in functions:
                try:
                    outcome = function(update)
                except (Exception, anyio.get_cancelled_exc_class()) as error:  # noqa: BLE001 anything is theirs
                    self._note(_theirs(error), progress)
                else:
                    if outcome is not None and isawaitable(outcome):
                        self._interrupted = _Calls(update, progress, functions)
                        return outcome
        return None

    async def _finish(self, waiting: Awaitable[object]) -> bool:
        """See one call to its end. False if the walk was taken over meanwhile."""
        progress = self._interrupted.progress
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
        # It runs beside the walk: its turn counts it as unfinished (D3), and nobody has to take the walk over.
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
        """Nobody can ever answer: say no, and say so, instead of leaving the turn to wait for ever."""
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
                # Closed before this task began (D4), it must not be asked: a plain function has no wait to cancel.
                if not scope.cancel_called:
                    answer = await _first_answer(request, functions)
            # Closed while it was asked, it takes no answer any more.
            if answer is not None and self._asking.pop(request.request_id, None) is not None:
                reply = request.reply(answer)
                await self._port.answer(request.request_id, reply.answer, reply.option_id)
        except (Exception, anyio.get_cancelled_exc_class()) as error:  # noqa: BLE001 anything is theirs
            self._note(_theirs(error), progress)
        finally:
            self._asking.pop(request.request_id, None)
            call.finish()


def _theirs(error: BaseException) -> Exception:
    """What a handler raised, as it is told. Raises a cancel that is not the handler's own.

    The exception that cancels would end the whole client, and is no `Exception` that a program expects in a list.
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
    """Ask one after the other until somebody answers."""
    for function in functions:
        answer = function(request)
        if isawaitable(answer):
            answer = await answer
        if answer is not None:
            return answer
    return None


def _nothing() -> None:
    """A permission request does not hold the walk up, so nothing has to go on."""
