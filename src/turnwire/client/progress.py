"""How far each turn of a session has come on the client's side, and who waits for it.

Takes the events of turns in log order; gives results, and finds a turn by the id of its prompt or of its request.
A turn is *passed* when the dispatcher has come to its end, and *drained* when besides that no handler call for
one of its updates is unfinished. Keeps a bounded number of drained turns, and each that somebody else keeps. Never
reads the log itself.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, groupby, islice
from operator import attrgetter
from typing import Any, Protocol
from weakref import WeakValueDictionary

import anyio
import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from turnwire.core import events as ev
from turnwire.core.correlation import same_id
from turnwire.core.view import View
from turnwire.core.view.transcript import PlainText
from turnwire.errors import TurnError, TurnwireError
from turnwire.ids import PromptId, RequestId
from turnwire.wire.jsonrpc import UNREADABLE, raw

Terminal = ev.TurnCompleted | ev.TurnFailed


class TurnResult(Struct, frozen=True, kw_only=True):
    """How a turn ended."""

    prompt_id: PromptId
    stop_reason: str
    """`end_turn`, `max_tokens`, `max_turn_requests`, `refusal`, `cancelled`, or a word of the agent's own."""
    text: str = ""
    """The agent's last message in the turn."""
    usage: dict[str, Any] | None = None
    """What the agent reported as used, if it did."""
    ending: ev.Ending
    """Which fact ended it."""
    request_id: RequestId | None = None
    cancelled_by: str | None = None
    handler_errors: tuple[Exception, ...] = ()
    """What update and permission handlers of this turn raised, in order."""


FOLDED_AT_ONCE = 256
"""Enough to make the cost per piece small, too few to hold on to much."""


class _Chunk(Struct, frozen=True, rename="camel", gc=False):
    """A piece of a message that is nothing but text."""

    content: PlainText
    message_id: str | None = None


_read_chunks = msgspec.json.Decoder(list[_Chunk]).decode


class Unfinished(Protocol):
    """A handler call that goes on beside the dispatcher."""

    awaits: list[Progress]


class Progress:
    """One turn."""

    def __init__(self, prompt_id: PromptId, request_id: RequestId | None, started: ev.AgentStarted | None) -> None:
        self.prompt_id = prompt_id
        self.request_id = request_id
        self.agent_request_id: RequestId | None = None
        self.errors: list[Exception] = []
        """What handlers raised."""
        self._view = View()
        if started is not None:
            self._view.apply(started)
        self._pieces: list[ev.SessionUpdated] = []
        """Of the agent's message, not in the view yet."""
        self.calls: set[Unfinished] = set()
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
        if type(event) is ev.SessionUpdated and event.kind == "agent_message_chunk":
            self._pieces.append(event)
            if len(self._pieces) >= FOLDED_AT_ONCE:
                self._fold_pieces()
        else:
            self._fold_pieces()
            self._view.apply(event)

    def _fold_pieces(self) -> None:
        """Fold neighbouring pieces of a message as one: the same text for a third of the work."""
        pieces, self._pieces = self._pieces, []
        try:
            chunks = _read_chunks(b"[%b]" % b",".join(each.update for each in pieces))
        except UNREADABLE:
            for each in pieces:
                self._view.apply(each)
            return
        for message_id, said in groupby(chunks, attrgetter("message_id")):
            joined = _Chunk(PlainText("text", "".join([each.content.text for each in said])), message_id)
            self._view.apply(replace(pieces[0], update=raw(joined)))

    def begin_call(self, call: Unfinished) -> None:
        """A handler call goes on beside the dispatcher; the turn is not drained before it is finished."""
        self.calls.add(call)

    def finish_call(self, call: Unfinished) -> None:
        self.calls.discard(call)
        self._settle()

    def end(self, terminal: Terminal) -> None:
        """The dispatcher has come to the turn's end."""
        self.apply(terminal)
        self.end_with(terminal, self._view.result_text(self.prompt_id))

    def end_with(self, terminal: Terminal, text: str | None) -> None:
        """It has ended, and this was the agent's last message."""
        self._text = text or ""
        self._terminal = terminal
        # What was folded is not needed any more.
        self._view = View()
        self.apply = self._view.apply
        self._settle()

    def fail(self, error: TurnwireError) -> None:
        """The end, or the end of a handler call, will not be heard here."""
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
        """The result once the end has been dispatched. Raises `TurnError` and why the end was not heard."""
        await self._passed.wait()
        return self._result()

    async def drained(self) -> TurnResult:
        """The result once every handler call of the turn has finished, too."""
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


def restored(view: View, prompt_id: PromptId) -> Progress:
    """A turn whose events are forgotten, as far as the session's view knows it."""
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
        )
        progress.end_with(terminal, view.result_text(prompt_id))
    return progress


class Bell:
    """Wakes everybody who waits for something to have changed."""

    def __init__(self) -> None:
        self._rung = anyio.Event()

    def ring(self) -> None:
        self._rung.set()
        self._rung = anyio.Event()

    async def wait(self) -> None:
        await self._rung.wait()


class Turns:
    """The turns of a session that are open or not drained, the newest ended ones, and those that somebody holds."""

    def __init__(self, bell: Bell, remembered: int) -> None:
        self._bell = bell
        self._remembered = remembered
        self.opened: dict[PromptId | None, Progress] = {}
        """Turns that have not ended. Background updates name none and so find none."""
        self._ended: dict[PromptId, Progress] = {}
        self._known: WeakValueDictionary[PromptId, Progress] = WeakValueDictionary()
        """All of them. Made again from the log, a turn would not know its handler calls and what they raised."""
        self._expected = 0
        self.started: ev.AgentStarted | None = None
        """The agent that speaks now."""

    def get(self, prompt_id: PromptId) -> Progress | None:
        """A turn that is open, still remembered, or held by somebody."""
        return self._known.get(prompt_id)

    def begin(self, prompt_id: PromptId, request_id: RequestId | None = None) -> Progress:
        """A turn is accepted, or was begun by the agent; the same one again is known already."""
        progress = self.opened.get(prompt_id)
        if progress is None:
            progress = Progress(prompt_id, request_id, self.started)
            self.opened[prompt_id] = self._known[prompt_id] = progress
        if request_id is not None:
            progress.request_id = request_id
            self._bell.ring()
        return progress

    def adopt(self, progress: Progress) -> Progress:
        """Take in a turn that was read from the log, unless it has become known meanwhile."""
        known = self.get(progress.prompt_id)
        if known is not None:
            return known
        (self._ended if progress.is_drained else self.opened)[progress.prompt_id] = progress
        self._known[progress.prompt_id] = progress
        return progress

    @contextmanager
    def expecting(self) -> Generator[None]:
        """Let go of no turn meanwhile: one of them is about to be claimed, and which is not known yet."""
        self._expected += 1
        try:
            yield
        finally:
            self._expected -= 1
            self._let_go()

    def name(self, progress: Progress, agent_request_id: RequestId) -> None:
        """The agent was asked under this id."""
        progress.agent_request_id = agent_request_id
        self._bell.ring()

    def end(self, progress: Progress, terminal: Terminal) -> None:
        progress.end(terminal)
        self.opened.pop(progress.prompt_id, None)
        self._ended[progress.prompt_id] = progress
        self._let_go()

    def _let_go(self) -> None:
        """Let go of what is not among the newest; not of a turn that still waits for a handler call."""
        if self._expected:
            return
        for old in list(islice(self._ended, max(0, len(self._ended) - self._remembered))):
            if self._ended[old].is_drained:
                del self._ended[old]

    def fail(self, error: TurnwireError) -> None:
        """No more ends will be heard."""
        for progress in self:
            progress.fail(error)
        self.opened.clear()
        self._bell.ring()

    def close(self) -> None:
        """No turn is yet to come: whoever waits for one looks again."""
        self._bell.ring()

    def __iter__(self) -> Iterator[Progress]:
        """Newest first: an id that is used again means the newer turn."""
        return chain(reversed(self.opened.values()), reversed(self._ended.values()))


def find_request(request_id: RequestId, turns: Iterable[Progress]) -> Progress | None:
    """The turn that a request id names: the caller's own first, then the one the agent was asked under.

    Each is compared with its JSON type first, then as a decimal string, because `2` is often written `"2"`.
    """
    known = list(turns)
    own = [(each, each.request_id) for each in known]
    agents = [(each, each.agent_request_id) for each in known]
    for named in (own, agents):
        found = [(each, name) for each, name in named if name is not None]
        for each, name in found:
            if same_id(name, request_id):
                return each
        for each, name in found:
            if str(name) == str(request_id):
                return each
    return None
