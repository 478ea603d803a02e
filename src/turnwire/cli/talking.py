"""One prompt on the command line: sent, shown, asked about, and waited for.

Takes a session of a daemon or of an agent of our own; gives the turn's end. The first Ctrl-C cancels the turn, and
the second leaves it to itself: leaving is no cancel. Never answers a question that it cannot ask.
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
from turnwire.errors import TurnError
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

    async def run(self, asking: Asking) -> End:
        """Send the prompt and stay to its end. Raises `TurnError`, and what refuses the prompt."""
        accepted = await self._session.prompt(asking)
        terminal: ev.TurnCompleted | ev.TurnFailed | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._hear_ctrl_c, accepted.prompt_id, tasks.cancel_scope)
            async with aclosing(self._session.follow(accepted.after_offset)) as pages:
                terminal = await self._until_end(pages, accepted, tasks)
            tasks.cancel_scope.cancel()
        self._screen.pause()
        if isinstance(terminal, ev.TurnFailed):
            raise _failure(terminal)
        return End(accepted.prompt_id, terminal, self._view.result_text(accepted.prompt_id) or "")

    async def _until_end(
        self, pages: AsyncGenerator[EventPage], accepted: Accepted, tasks: TaskGroup
    ) -> ev.TurnCompleted | ev.TurnFailed | None:
        async for page in pages:
            for offset, event in enumerate(page.events, page.offset - len(page.events) + 1):
                if getattr(event, "prompt_id", accepted.prompt_id) != accepted.prompt_id:
                    continue
                self._view.apply(event)
                self._screen.show(offset, event)
                self._mind(event, tasks)
                if isinstance(event, ev.TurnCompleted | ev.TurnFailed):
                    return event
        return None

    def _mind(self, event: ev.AnyEvent, tasks: TaskGroup) -> None:
        """Ask what is asked, and stop asking once it is answered."""
        if isinstance(event, ev.PermissionRequested):
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

    async def _hear_ctrl_c(self, prompt_id: PromptId, scope: anyio.CancelScope) -> None:
        is_first = True
        with anyio.open_signal_receiver(signal.SIGINT) as signals:
            async for _ in signals:
                self._screen.pause()
                if not is_first:
                    tell(f"left; the turn {prompt_id} of session {self._session.session_id} goes on without us")
                    tell_next(f"turnwire attach {self._session.session_id}")
                    scope.cancel()
                    return
                is_first = False
                tell("cancelling; Ctrl-C again leaves the turn to itself")
                await self._session.cancel(prompt_id)


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
