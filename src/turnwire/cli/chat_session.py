"""One session of a chat: what happens in it is shown, what is typed is sent, what the agent asks is asked.

It follows the session's log, so what other clients say is here as well, and a turn is over when the log says so.
Prompts are sent one after the other in the order in which they were typed; while a turn runs they wait at the
daemon, where everybody sees them. Of a session that has a past only the last turns are shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import aclosing
from typing import NamedTuple, Protocol

import anyio
from anyio.abc import TaskGroup

from turnwire.cli.output import printable
from turnwire.cli.screen import Screen
from turnwire.client.arguments import Content, to_raw
from turnwire.client.permission import PermissionRequest, Reply
from turnwire.client.port import DaemonSession, NewPrompt
from turnwire.core import events as ev
from turnwire.core.inputs import WhenBusy
from turnwire.core.turn import TurnState
from turnwire.core.view import View
from turnwire.errors import PositionLost, PromptNotFound, TurnwireError
from turnwire.ids import PermissionId, PromptId
from turnwire.runtime import new_ids

SHOWN_TURNS = 3
"""Turns of the past that are shown when a session is entered."""
FAREWELL_S = 2.0
"""How long leaving waits for a cancel that is on its way."""
CLOSED = "the session is closed; :new begins another, :sessions lists those there are"


class ChatTerminal(Protocol):
    """The terminal at which somebody chats, as a session there uses it."""

    def note(self, words: str) -> None:
        """Say something that is not the agent's."""
        ...

    def refresh(self) -> None:
        """Something that the state line shows is new."""
        ...

    def restore(self, text: str) -> None:
        """Give a text back that could not be sent."""
        ...

    async def answer(self, permission: PermissionRequest) -> Reply | None:
        """Ask it; none leaves the request open."""
        ...


class Unsent(NamedTuple):
    """A prompt on its way to the daemon."""

    text: str
    content: Content
    key: str


class ChatSession:
    """A session while somebody chats in it."""

    def __init__(self, session: DaemonSession, screen: Screen, terminal: ChatTerminal, own: set[PromptId]) -> None:
        self.session = session
        self.view = View()
        self.capabilities = b"{}"
        """What the agent said that it can do."""
        self.is_read = anyio.Event()
        """All that had happened before we came is known."""
        self.is_closed = False
        """Nothing happens in it any more."""
        self._screen = screen
        self._terminal = terminal
        self._own = own
        """The prompts that were sent from here."""
        self._unsent: list[Unsent] = []
        self._outbox, self._letters = anyio.create_memory_object_stream[Unsent](math.inf)
        self._past: list[tuple[int, ev.AnyEvent]] = []
        self._asked: dict[PermissionId, anyio.CancelScope] = {}
        self._tasks: TaskGroup | None = None
        self._cancels = 0
        """Cancels that are not answered."""
        self._no_cancels = anyio.Event()

    async def run(self) -> None:
        """Until the session is closed, or this is cancelled. Raises what keeps us from following it."""
        async with anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self._send)
            await self._follow()
            self._tasks.cancel_scope.cancel()
        self.is_closed = True
        self._terminal.note(CLOSED)

    # -- following ---------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        if self.session.start == 0:
            self.is_read.set()
        try:
            await self._follow_from(0)
        except PositionLost:
            if self.is_read.is_set():
                raise
            # What it forgot is no reason not to go on.
            self._terminal.note("the oldest part of this session is not kept any more")
            self._past.clear()
            self.is_read.set()
            await self._follow_from(self.session.start)

    async def _follow_from(self, after: int) -> None:
        async with aclosing(self.session.follow(after)) as pages:
            async for page in pages:
                for offset, event in enumerate(page.events, page.offset - len(page.events) + 1):
                    self._take(offset, event)
                if not self.is_read.is_set() and page.offset >= self.session.start:
                    self._show_past()
                self._terminal.refresh()

    def _take(self, offset: int, event: ev.AnyEvent) -> None:
        self.view.apply(event)
        if isinstance(event, ev.AgentStarted):
            self.capabilities = bytes(event.capabilities)
        if not self.is_read.is_set():
            self._past.append((offset, event))
            return
        self._screen.show(offset, event)
        self._mind(event)

    def _show_past(self) -> None:
        self.is_read.set()
        past, self._past = self._past, []
        begins = [at for at, (_, event) in enumerate(past) if isinstance(event, ev.UserMessage)]
        if len(begins) > SHOWN_TURNS:
            older, session_id = len(begins) - SHOWN_TURNS, self.session.session_id
            self._terminal.note(f"{older} earlier prompts are not shown; all of it: turnwire attach {session_id}")
        for offset, event in past[begins[-SHOWN_TURNS:][0] if begins else len(past) :]:
            self._screen.show(offset, event)
        self.ask_again()

    # -- permission requests -----------------------------------------------------------------------------------

    def _mind(self, event: ev.AnyEvent) -> None:
        """Ask what is asked, and stop asking once it is answered."""
        if isinstance(event, ev.PermissionRequested):
            self._begin_asking(event)
        elif isinstance(event, ev.PermissionResolved):
            scope = self._asked.pop(event.request_id, None)
            if scope is not None:
                scope.cancel()

    def ask_again(self) -> int:
        """Ask what is open and not being asked; gives how many there are."""
        waiting = [each for name, each in self.view.permissions.items() if name not in self._asked]
        for each in waiting:
            self._begin_asking(each)
        return len(waiting)

    def _begin_asking(self, event: ev.PermissionRequested) -> None:
        assert self._tasks is not None, "events come only while it runs"
        scope = self._asked[event.request_id] = anyio.CancelScope()
        self._tasks.start_soon(self._ask, event, scope)

    async def _ask(self, event: ev.PermissionRequested, scope: anyio.CancelScope) -> None:
        with scope:
            # What was said before stands above what is asked.
            self._screen.pause()
            reply = await self._terminal.answer(self._request(event))
            # Our own answer closes the request, and with it this scope.
            self._asked.pop(event.request_id, None)
            if reply is None:
                self._terminal.note("the permission request is open; :answer asks it again")
                return
            try:
                if not await self.session.answer(event.request_id, reply.answer, reply.option_id):
                    self._terminal.note("somebody else had answered before")
            except TurnwireError as error:
                self._terminal.note(f"the answer did not get through: {error}")
            return
        if scope.cancelled_caught:
            self._terminal.note("the permission request is closed: answered elsewhere, or its turn is over")

    def _request(self, event: ev.PermissionRequested) -> PermissionRequest:
        """With what is known of its tool call."""
        request = PermissionRequest(event, self.session.session_id)
        called = None if event.child is not None else request.tool_call_id
        known = None if called is None else self.view.transcript.tools.get(called)
        return PermissionRequest(event, self.session.session_id, known, self.view.terminals)

    # -- prompts -----------------------------------------------------------------------------------------------

    def prompt(self, text: str, content: Content) -> None:
        """Send it as soon as those before it are sent."""
        if self.is_closed:
            self._terminal.note(CLOSED)
            self._terminal.restore(text)
            return
        # One key for all tries: a prompt whose answer is lost is still one prompt.
        unsent = Unsent(text, content, f"chat-{new_ids.prompt_id()}")
        self._unsent.append(unsent)
        self._outbox.send_nowait(unsent)

    async def _send(self) -> None:
        with self._letters:
            async for each in self._letters:
                try:
                    accepted = await self.session.prompt(NewPrompt(to_raw(each.content), WhenBusy.QUEUE, each.key))
                    self._own.add(accepted.prompt_id)
                except TurnwireError as error:
                    self._terminal.note(f"the prompt was not taken: {error}")
                    self._terminal.restore(each.text)
                finally:
                    self._unsent.remove(each)
                    self._terminal.refresh()

    @property
    def active(self) -> PromptId | None:
        """The turn that runs."""
        return self.view.active

    @property
    def is_cancelling(self) -> bool:
        return self._cancels > 0 or self.view.state == "cancelling"

    def waiting(self) -> list[PromptId]:
        """The prompts that wait at the daemon."""
        turns = self.view.turns.values()
        return [each.prompt_id for each in turns if each.state is TurnState.QUEUED and each.queued_at is not None]

    def waiting_lines(self) -> Sequence[str]:
        """What is not at work yet, in lines."""
        queued = [(self.view.user_text(each) or "", "waits") for each in self.waiting()]
        lines = [*queued, *((each.text, "is being sent") for each in self._unsent)]
        return [f"  {state}: {' '.join(printable(text).split())}" for text, state in lines]

    def cancel(self, tasks: TaskGroup) -> None:
        """Cancel the turn that runs, also if this session is left meanwhile: the tasks are those of who leaves."""
        if self.active is not None:
            if not self._cancels:
                self._no_cancels = anyio.Event()
            self._cancels += 1
            tasks.start_soon(self._cancel, self.active)

    async def _cancel(self, prompt_id: PromptId) -> None:
        try:
            await self.session.cancel(prompt_id)
        except PromptNotFound:
            pass
        except TurnwireError as error:
            self._terminal.note(f"the turn could not be cancelled: {error}")
        finally:
            self._cancels -= 1
            if not self._cancels:
                self._no_cancels.set()

    async def settle_cancels(self) -> None:
        """Let a cancel that is on its way get through, for a moment."""
        if self._cancels:
            with anyio.move_on_after(FAREWELL_S):
                await self._no_cancels.wait()
