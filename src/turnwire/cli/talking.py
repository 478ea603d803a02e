"""One prompt on the command line: sent, shown, asked about, and waited for.

Takes a session of a daemon or of an agent of our own; gives the turn's end. A prompt that the agent takes into the
turn that runs is followed there, to that turn's end. The first Ctrl-C cancels the turn, and the second leaves it to
itself: leaving is no cancel. Never answers a question that it cannot ask.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec import UNSET, Raw, Struct

from turnwire.cli.asking import Asker
from turnwire.cli.failing import tell, tell_next
from turnwire.cli.screen import Screen
from turnwire.client.port import Accepted, Asking, DaemonSession, EventPage
from turnwire.core import events as ev
from turnwire.core.view import View
from turnwire.errors import DaemonUnreachable, TurnError, TurnwireError
from turnwire.ids import PermissionId, PromptId


class End(NamedTuple):
    """How a turn ended, as far as we stayed to see it."""

    prompt_id: PromptId
    terminal: ev.TurnCompleted | None
    """None if we left before."""
    text: str = ""
    """The agent's last message."""


class Talk:
    """One turn and whoever sits at the terminal."""

    def __init__(self, session: DaemonSession, screen: Screen, asker: Asker) -> None:
        self._session = session
        self._screen = screen
        self._asker = asker
        self._view = View()
        self._questions: dict[PermissionId, anyio.CancelScope] = {}
        self._asked: set[PermissionId] = set()
        self._host: PromptId | None = None
        """The turn that the agent took our prompt into."""

    async def run(self, asking: Asking) -> End:
        """Send the prompt and stay to its end. Raises `TurnError`, and what refuses the prompt."""
        accepted = await self._session.prompt(asking)
        terminal: ev.TurnCompleted | ev.TurnFailed | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._hear_ctrl_c, accepted.prompt_id, tasks)
            async with aclosing(self._session.follow(accepted.after_offset)) as pages:
                terminal = await self._until_end(pages, accepted, tasks)
            tasks.cancel_scope.cancel()
        self._screen.pause()
        if isinstance(terminal, ev.TurnFailed):
            raise _failure(terminal)
        return End(accepted.prompt_id, terminal, await self._text(accepted.prompt_id, terminal))

    async def _until_end(
        self, pages: AsyncGenerator[EventPage], accepted: Accepted, tasks: TaskGroup
    ) -> ev.TurnCompleted | ev.TurnFailed | None:
        async for page in pages:
            for offset, event in enumerate(page.events, page.offset - len(page.events) + 1):
                of = getattr(event, "prompt_id", accepted.prompt_id)
                if of is None or of not in (accepted.prompt_id, self._host):
                    continue
                if of == accepted.prompt_id:
                    self._view.apply(event)
                self._screen.show(offset, event)
                self._mind(event, tasks)
                if isinstance(event, ev.PromptInjected):
                    await self._join(event.into, tasks)
                # The end of the turn that it went into is followed by its own, which says the same.
                if isinstance(event, ev.TurnCompleted | ev.TurnFailed) and of == accepted.prompt_id:
                    return event
        return None

    async def _join(self, host: PromptId, tasks: TaskGroup) -> None:
        """Follow the turn that the prompt went into; what it asked before we came is asked here, too."""
        self._host = host
        self._screen.pause()
        tell(f"the agent took it into the turn that runs, {host}; following that")
        for each in (await self._whole()).permissions.values():
            if each.prompt_id == host:
                self._mind(each, tasks)

    async def _whole(self) -> View:
        """The session from its start; empty if it cannot be had, which is no reason to leave the turn."""
        try:
            return await self._session.view()
        except DaemonUnreachable:
            return View()

    async def _text(self, prompt_id: PromptId, terminal: ev.TurnCompleted | None) -> str:
        if self._host is None or terminal is None:
            return self._view.result_text(prompt_id) or ""
        # That turn began before we listened, so what we heard of it is not all of it.
        return (await self._whole()).result_text(self._host) or ""

    def _mind(self, event: ev.AnyEvent, tasks: TaskGroup) -> None:
        """Ask what is asked, and stop asking once it is answered."""
        if isinstance(event, ev.PermissionRequested) and event.request_id not in self._asked:
            self._asked.add(event.request_id)
            scope = self._questions[event.request_id] = anyio.CancelScope()
            tasks.start_soon(self._ask, event, scope)
        elif isinstance(event, ev.PermissionResolved):
            scope = self._questions.pop(event.request_id, None)
            if scope is not None:
                scope.cancel()

    async def _ask(self, event: ev.PermissionRequested, scope: anyio.CancelScope) -> None:
        with scope:
            self._screen.pause()
            reply = await self._asker.ask(event, self._session.session_id)
            if reply is None:
                return
            # Our own answer closes the question, and with it this scope.
            self._questions.pop(event.request_id, None)
            if not await self._session.answer(event.request_id, reply.answer, reply.option_id):
                tell("somebody else had answered before")
            return
        if scope.cancelled_caught:
            tell("the question is closed: answered elsewhere, or its turn is over")

    async def _hear_ctrl_c(self, prompt_id: PromptId, tasks: TaskGroup) -> None:
        is_first = True
        with anyio.open_signal_receiver(signal.SIGINT) as signals:
            async for _ in signals:
                self._screen.pause()
                if not is_first:
                    tell(f"left; the turn {prompt_id} of session {self._session.session_id} goes on without us")
                    tell_next(f"turnwire attach {self._session.session_id}")
                    tasks.cancel_scope.cancel()
                    return
                is_first = False
                tell("cancelling; Ctrl-C again leaves the turn to itself")
                # A daemon that does not answer must not keep us from hearing the second one.
                tasks.start_soon(self._cancel, prompt_id)

    async def _cancel(self, prompt_id: PromptId) -> None:
        try:
            await self._session.cancel(prompt_id)
        except TurnwireError as error:
            self._screen.pause()
            tell(f"the turn could not be cancelled: {error}")
            tell_next(f"turnwire cancel {self._session.session_id} {prompt_id}; Ctrl-C leaves the turn to itself")


class _Error(Struct):
    message: str = ""


def _said(agent_error: Raw) -> str:
    try:
        return msgspec.json.decode(agent_error, type=_Error).message
    except msgspec.DecodeError:
        return "nothing that can be read"


def _failure(event: ev.TurnFailed) -> TurnError:
    said = f"\n  it said: {_said(event.agent_error)}" if event.agent_error is not UNSET else ""
    tail = f"\n  its last lines:\n{event.stderr_tail.rstrip()}" if event.stderr_tail else ""
    return TurnError(
        f"the turn failed ({event.code}): {event.message}{said}{tail}",
        reason=event.code,
        prompt_id=event.prompt_id,
        exit_code=event.exit_code,
        signal=event.signal,
        stderr_tail=event.stderr_tail,
    )
