"""The client-side progress of each turn of a session, and its waiters.

The dispatcher passes the events of turns in log order. A turn is *passed* when the dispatcher has reached its end,
and *drained* when in addition every handler call for its updates has finished. `Turns` holds a bounded number of
drained turns, and each that is still referenced; it finds a turn by the id of its prompt or of its request. The log
itself is not read here.

A handler call may itself wait for a turn: turns and unfinished calls form a graph. A wait that would close a cycle
in it waits for the end of the turn only, not for the handlers of that turn. So no two handlers ever wait for each
other, and every other `await turn` means drained, including inside a handler.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from itertools import chain, groupby, islice
from operator import attrgetter
from typing import Any, Final
from weakref import WeakValueDictionary

import anyio
import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from turnwire.errors import TurnError, TurnwireError
from turnwire.ids import PromptId, RequestId
from turnwire.projections.view import Terminal as TerminalView
from turnwire.projections.view import ToolCall, View
from turnwire.projections.view.transcript import NESTS, PlainText
from turnwire.session import events as ev
from turnwire.session.correlation import same_id
from turnwire.wire.jsonrpc import UNREADABLE, raw

Terminal = ev.TurnCompleted | ev.TurnFailed


class TurnResult(Struct, frozen=True, kw_only=True):
    """The end of a turn."""

    prompt_id: PromptId
    stop_reason: str
    """`end_turn`, `max_tokens`, `max_turn_requests`, `refusal`, `cancelled`, or a reason that the agent defines."""
    text: str = ""
    """The agent's last message in the turn."""
    usage: dict[str, Any] | None = None
    """The usage that the agent reported, if any."""
    ending: ev.Ending
    """The fact that ended the turn."""
    request_id: RequestId | None = None
    cancelled_by: str | None = None
    agent_stop_reason: str | None = None
    """The stop reason that the agent reported for a cancelled turn, if it differs."""
    handler_errors: tuple[Exception, ...] = ()
    """Exceptions of update and permission handlers of this turn, in order."""


FOLDED_AT_ONCE = 256
"""Enough chunks to make the cost of each small, few enough to hold little memory."""


class _Chunk(Struct, frozen=True, rename="camel", gc=False):
    """A chunk of a message that contains only text."""

    content: PlainText
    message_id: str | None = None


_read_chunks = msgspec.json.Decoder(list[_Chunk]).decode
_PIECE: Final = "agent_message_chunk"
_KIND: Final = attrgetter("kind")
_MESSAGE_ID: Final = attrgetter("message_id")
_CHILD: Final = attrgetter("child")


class Progress:
    """One turn."""

    def __init__(self, prompt_id: PromptId, request_id: RequestId | None, started: ev.AgentStarted | None) -> None:
        self.prompt_id = prompt_id
        self.request_id = request_id
        self.errors: list[Exception] = []
        """Exceptions of handlers."""
        self._view = View()
        if started is not None:
            self._view.apply(started)
        self._pieces: list[ev.SessionUpdated] = []
        """Chunks of the agent's message that are not in the view yet."""
        self.calls: set[UnfinishedCall] = set()
        """Handler calls for this turn that the dispatcher did not wait for."""
        self._terminal: Terminal | None = None
        self._text = ""
        self._failure: TurnwireError | None = None
        self._passed = anyio.Event()
        self._drained = anyio.Event()

    @property
    def is_drained(self) -> bool:
        return self._drained.is_set()

    def apply(self, event: ev.AnyEvent) -> None:
        """Fold an event of the turn."""
        if type(event) is ev.SessionUpdated and event.kind == _PIECE:
            self._pieces.append(event)
            if len(self._pieces) >= FOLDED_AT_ONCE:
                self._fold_pieces()
        else:
            self._fold_pieces()
            self._view.apply(event)

    def apply_updates(self, events: list[ev.SessionUpdated]) -> None:
        """Fold consecutive updates of the turn."""
        for kind, alike in groupby(events, _KIND):
            if kind == _PIECE:
                self._pieces.extend(alike)
            else:
                self._fold_pieces()
                for each in alike:
                    self._view.apply(each)
        if len(self._pieces) >= FOLDED_AT_ONCE:
            self._fold_pieces()

    def _fold_pieces(self) -> None:
        """Fold adjacent chunks of a message as one: the same text for a third of the work."""
        pieces, self._pieces = self._pieces, []
        joined = b",".join([each.update for each in pieces])
        # Text of a child session or inside a tool call is no chunk of the agent's message.
        is_inner = NESTS in joined or any(map(_CHILD, pieces))
        try:
            chunks = None if is_inner else _read_chunks(b"[%b]" % joined)
        except UNREADABLE:
            chunks = None
        if chunks is None:
            for each in pieces:
                self._view.apply(each)
            return
        for message_id, said in groupby(chunks, _MESSAGE_ID):
            text = PlainText("text", "".join([each.content.text for each in said]))
            self._view.apply(replace(pieces[0], update=raw(_Chunk(text, message_id))))

    def known_of(self, tool_call_id: str | None) -> tuple[ToolCall | None, dict[str, TerminalView]]:
        """Return a tool call and its terminals as the agent has described them in this turn."""
        known = None if tool_call_id is None else self._view.transcript.tools.get(tool_call_id)
        # A copy, because the view changes while a handler reads it.
        return copy(known), {name: copy(each) for name, each in self._view.terminals.items()}

    def begin_call(self, call: UnfinishedCall) -> None:
        """Register a call that runs in parallel with the dispatcher; the turn is drained after it."""
        self.calls.add(call)

    def finish_call(self, call: UnfinishedCall) -> None:
        self.calls.discard(call)
        self._settle()

    def end(self, terminal: Terminal) -> None:
        """Record that the dispatcher has reached the turn's end."""
        self.apply(terminal)
        self.end_with(terminal, self._view.result_text(self.prompt_id))

    def end_with(self, terminal: Terminal, text: str | None) -> None:
        """Record the end and the agent's last message."""
        self._text = text or ""
        self._terminal = terminal
        # The folded events are no longer needed.
        self._view = View()
        self.apply = self._view.apply
        self._settle()

    def fail(self, error: TurnwireError) -> None:
        """Fail the turn: its end, or the end of a handler call, will not arrive here."""
        if not self.is_drained:
            self._failure = error
            self.calls.clear()
            self._settle()

    def _settle(self) -> None:
        if self._terminal is None and self._failure is None:
            return
        self._passed.set()
        if not self.calls:
            self._drained.set()

    async def passed(self) -> TurnResult:
        """Wait for the dispatched end; return the result. Raises `TurnError`, or the error of the walk."""
        await self._passed.wait()
        return self._result()

    async def drained(self) -> TurnResult:
        """Wait until every handler call of the turn has finished as well, and return the result."""
        await self._drained.wait()
        return self._result()

    def _result(self) -> TurnResult:
        if self._failure is not None:
            raise self._failure
        match self._terminal:
            case ev.TurnCompleted() as end:
                usage: object = None if end.usage is UNSET else msgspec.json.decode(end.usage)
                return TurnResult(
                    prompt_id=self.prompt_id,
                    stop_reason=end.stop_reason,
                    text=self._text,
                    usage=usage if isinstance(usage, dict) else None,  # pyright: ignore[reportUnknownArgumentType]
                    ending=end.ending,
                    request_id=end.prompt_request_id,
                    cancelled_by=end.cancelled_by,
                    agent_stop_reason=end.agent_stop_reason,
                    handler_errors=tuple(self.errors),
                )
            case ev.TurnFailed() as end:
                raise TurnError(
                    f"the turn failed ({end.code}): {end.message}",
                    reason=end.code,
                    prompt_id=self.prompt_id,
                    exit_code=end.exit_code,
                    signal=end.signal,
                    stderr_tail=end.stderr_tail,
                    agent_error=None if end.agent_error is UNSET else bytes(end.agent_error),
                )
            case None:
                raise AssertionError("who waits is woken by an end or by a failure")


def progress_from_view(view: View, prompt_id: PromptId) -> Progress:
    """Return a turn whose events are released, from the session's view."""
    record, progress = view.turns[prompt_id], Progress(prompt_id, None, None)
    progress.request_id = record.prompt_request_id
    outcome, at = record.outcome, record.ended_at or 0
    if outcome is not None and outcome.error is not None:
        error = outcome.error
        terminal: Terminal = ev.TurnFailed(
            at=at,
            prompt_id=prompt_id,
            code=error.code,
            message=error.message,
            prompt_request_id=record.prompt_request_id,
            exit_code=error.exit_code,
            signal=error.signal,
            stderr_tail=error.stderr_tail,
            agent_error=error.agent_error,
        )
        progress.end_with(terminal, None)
    elif outcome is not None and outcome.ending is not None:
        terminal = ev.TurnCompleted(
            at=at,
            prompt_id=prompt_id,
            stop_reason=outcome.stop_reason or "",
            ending=outcome.ending,
            prompt_request_id=record.prompt_request_id,
            usage=outcome.usage,
            cancelled_by=record.cancelled_by,
            agent_stop_reason=outcome.agent_stop_reason,
        )
        progress.end_with(terminal, view.result_text(prompt_id))
    return progress


class UnfinishedCall:
    """One unfinished handler call."""

    __slots__ = ("_go_on", "_progress", "awaits", "is_over", "is_released")

    def __init__(self, progress: Progress | None, go_on: Callable[[], None]) -> None:
        self._progress = progress
        self._go_on = go_on
        self.awaits: list[Progress] = []
        """Turns that it waits for to be drained."""
        self.is_over = False
        self.is_released = False

    def release(self) -> None:
        """Let the walk over the log continue without this call, which is about to wait for a turn."""
        if not self.is_released and not self.is_over:
            self.is_released = True
            if self._progress is not None:
                self._progress.begin_call(self)
            self._go_on()

    def finish(self) -> None:
        self.is_over = True
        if self.is_released and self._progress is not None:
            self._progress.finish_call(self)

    async def result_of(self, progress: Progress) -> TurnResult:
        """Await a turn inside this call and return its result."""
        if progress.is_drained:
            return await progress.drained()
        self.release()
        if _leads_to(progress, self):
            return await progress.passed()
        self.awaits.append(progress)
        try:
            return await progress.drained()
        finally:
            self.awaits.remove(progress)


def _leads_to(progress: Progress, call: UnfinishedCall) -> bool:
    """Return whether a turn can be drained only after this call has finished."""
    seen: set[int] = set()
    waiting = [progress]
    while waiting:
        turn = waiting.pop()
        if id(turn) in seen:
            continue
        seen.add(id(turn))
        if call in turn.calls:
            return True
        waiting.extend(each for unfinished in turn.calls for each in unfinished.awaits)
    return False


handler_call: ContextVar[UnfinishedCall | None] = ContextVar("turnwire_handler_call", default=None)
"""The handler call that the running code belongs to. Tasks that a handler starts inherit it."""


def current_call() -> UnfinishedCall | None:
    """Return the unfinished handler call in which the caller runs, if any."""
    call = handler_call.get()
    return None if call is None or call.is_over else call


def release_current_call() -> None:
    """Release the current handler call, because the caller is about to wait for a later event of the log."""
    call = current_call()
    if call is not None:
        call.release()


async def result_of(progress: Progress) -> TurnResult:
    """Wait until a turn is drained and return its result; see the module docstring for calls inside a handler."""
    call = current_call()
    return await (progress.drained() if call is None else call.result_of(progress))


class Wakeup:
    """A condition that wakes all its waiters."""

    def __init__(self) -> None:
        self._changed = anyio.Event()

    def wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def wait(self) -> None:
        await self._changed.wait()


class Turns:
    """The turns of a session that are open, not drained or still referenced, and the newest ended ones."""

    def __init__(self, wakeup: Wakeup, remembered: int) -> None:
        self._wakeup = wakeup
        self._remembered = remembered
        self.opened: dict[PromptId | None, Progress] = {}
        """Turns that have not ended. Background updates name no turn, so the lookup fails for them."""
        self._ended: dict[PromptId, Progress] = {}
        self._known: WeakValueDictionary[PromptId, Progress] = WeakValueDictionary()
        """All turns. A turn recreated from the log would not know its handler calls and their exceptions."""
        self._expected = 0
        self.started: ev.AgentStarted | None = None
        """The agent that speaks now."""

    def get(self, prompt_id: PromptId) -> Progress | None:
        """Return a turn that is open, still remembered, or still referenced."""
        return self._known.get(prompt_id)

    def begin(self, prompt_id: PromptId, request_id: RequestId | None = None) -> Progress:
        """Add a turn that was accepted or begun by the agent; a known turn is ignored."""
        progress = self.opened.get(prompt_id)
        if progress is None:
            progress = Progress(prompt_id, request_id, self.started)
            self.opened[prompt_id] = self._known[prompt_id] = progress
        if request_id is not None:
            progress.request_id = request_id
            self._wakeup.wake()
        return progress

    def adopt(self, progress: Progress) -> Progress:
        """Add a turn that was read from the log, unless it has become known meanwhile."""
        known = self.get(progress.prompt_id)
        if known is not None:
            return known
        (self._ended if progress.is_drained else self.opened)[progress.prompt_id] = progress
        self._known[progress.prompt_id] = progress
        return progress

    @contextmanager
    def expecting(self) -> Generator[None]:
        """Release no turn inside the block: one of them is about to be claimed, and it is not known yet which."""
        self._expected += 1
        try:
            yield
        finally:
            self._expected -= 1
            self._let_go()

    def end(self, progress: Progress, terminal: Terminal) -> None:
        progress.end(terminal)
        self.opened.pop(progress.prompt_id, None)
        self._ended[progress.prompt_id] = progress
        self._let_go()

    def _let_go(self) -> None:
        """Release all but the newest turns; turns that wait for a handler call stay."""
        if self._expected:
            return
        for old in list(islice(self._ended, max(0, len(self._ended) - self._remembered))):
            if self._ended[old].is_drained:
                del self._ended[old]

    def fail(self, error: TurnwireError) -> None:
        """Fail all turns: no more ends will arrive."""
        for progress in self:
            progress.fail(error)
        self.opened.clear()
        self._wakeup.wake()

    def close(self) -> None:
        """Record that no further turn can start, and wake the waiters."""
        self._wakeup.wake()

    def __iter__(self) -> Iterator[Progress]:
        """Iterate newest first: a reused id means the newer turn."""
        return chain(reversed(self.opened.values()), reversed(self._ended.values()))


def find_request(request_id: RequestId, turns: Iterable[Progress]) -> Progress | None:
    """Return the first of these turns that was prompted with exactly this id and JSON type."""
    named = ((each, each.request_id) for each in turns if each.request_id is not None)
    return next((each for each, name in named if same_id(name, request_id)), None)
