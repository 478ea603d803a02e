"""One session of a chat: it shows events, sends prompts and asks permission requests.

It follows the session's log, so prompts of other clients are shown as well, and a turn is over when the log reports
it. Prompts are sent in the order in which they were typed; while a turn runs they are queued at the daemon. Of an
older session only the last turns are shown. A `Place` is the host of sessions: a daemon, or an agent in this
process.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec import Struct

from turnwire import new_ids
from turnwire.cli.output import printable
from turnwire.cli.reach import Entered, Reach, WantedSession, enter, leave, list_sessions, open_agent, open_http
from turnwire.cli.screen import Screen
from turnwire.cli.turns import Explanation, Finding, Queue, findings
from turnwire.client.arguments import Content, to_raw
from turnwire.client.embedded import EmbeddedDaemon
from turnwire.client.http import Http, segment
from turnwire.client.permission import PermissionRequest, Reply
from turnwire.client.port import DaemonSession, NewPrompt
from turnwire.errors import BadRequest, PositionLost, PromptNotFound, TurnwireError
from turnwire.hosting.address import is_loopback
from turnwire.ids import PermissionId, PromptId, SessionId
from turnwire.projections.view import View
from turnwire.session import events as ev
from turnwire.session.events import PermissionRequested
from turnwire.session.inputs import WhenBusy
from turnwire.session.state import NO_SETUP
from turnwire.session.turn import TurnState

SHOWN_TURNS = 3
"""Past turns that are shown when a session is entered."""
FAREWELL_S = 2.0
"""Seconds that an exit waits for a pending cancel."""
CLOSED = "the session is closed; :new begins another, :sessions lists those there are"


class ChatTerminal(Protocol):
    """The interface of the chat's terminal for a session."""

    def note(self, words: str) -> None:
        """Print a message that is not the agent's."""
        ...

    def refresh(self) -> None:
        """Redraw the state line after a change."""
        ...

    def restore(self, text: str) -> None:
        """Restore a text that could not be sent to the input."""
        ...

    async def answer(self, permission: PermissionRequest) -> Reply | None:
        """Ask the request; `None` leaves it open."""
        ...


class Unsent(NamedTuple):
    """A prompt that is being sent to the daemon."""

    text: str
    content: Content
    key: str


class ChatSession:
    """A session in a chat."""

    def __init__(self, session: DaemonSession, screen: Screen, terminal: ChatTerminal, own: set[PromptId]) -> None:
        self.session = session
        self.view = View()
        self.capabilities = b"{}"
        """The capabilities that the agent reported."""
        self.is_read = anyio.Event()
        """Set when all events before the chat entered are read."""
        self.is_closed = False
        """True after the session was closed."""
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
        """Unanswered cancels."""
        self._no_cancels = anyio.Event()

    async def run(self) -> None:
        """Run until the session is closed or this is cancelled. Raises the error that ends the stream."""
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
            # Trimmed events are no reason to stop.
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
        """Ask permission requests, and stop asking once they are answered."""
        if isinstance(event, ev.PermissionRequested):
            self._begin_asking(event)
        elif isinstance(event, ev.PermissionResolved):
            scope = self._asked.pop(event.request_id, None)
            if scope is not None:
                scope.cancel()

    def ask_again(self) -> int:
        """Ask the open requests that are not being asked; return their number."""
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
            # Earlier text is printed above the question.
            self._screen.pause()
            reply = await self._terminal.answer(self._request(event))
            # The chat's own answer closes the request, and with it this scope.
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
        """Return the request with the known data of its tool call."""
        request = PermissionRequest(event, self.session.session_id)
        called = None if event.child is not None else request.tool_call_id
        known = None if called is None else self.view.transcript.tools.get(called)
        return PermissionRequest(event, self.session.session_id, known, self.view.terminals)

    # -- prompts -----------------------------------------------------------------------------------------------

    def prompt(self, text: str, content: Content) -> None:
        """Send the prompt after all earlier ones are sent."""
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
        """The running turn."""
        return self.view.active

    @property
    def is_cancelling(self) -> bool:
        return self._cancels > 0 or self.view.state == "cancelling"

    def waiting(self) -> list[PromptId]:
        """The prompts queued at the daemon."""
        turns = self.view.turns.values()
        return [each.prompt_id for each in turns if each.state is TurnState.QUEUED and each.queued_at is not None]

    def waiting_lines(self) -> Sequence[str]:
        """Return lines about prompts that have not started."""
        queued = [(self.view.user_text(each) or "", "waits") for each in self.waiting()]
        lines = [*queued, *((each.text, "is being sent") for each in self._unsent)]
        return [f"  {state}: {' '.join(printable(text).split())}" for text, state in lines]

    def cancel(self, tasks: TaskGroup) -> None:
        """Cancel the running turn, even if this session is left meanwhile: the caller's task group runs it."""
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
        """Wait a moment for pending cancels to arrive."""
        if self._cancels:
            with anyio.move_on_after(FAREWELL_S):
                await self._no_cancels.wait()


# -- where sessions are -------------------------------------------------------------------------------------------


class ListedSession(Struct, rename="camel"):
    """A session in a menu."""

    session_id: SessionId
    cwd: str = ""
    title: str | None = None
    updated_at: str = ""
    agent: str = ""
    state: str = ""


class ListedAgent(Struct, rename="camel"):
    """An agent in a menu."""

    name: str
    label: str = ""
    default: bool = False
    why: str | None = None
    """Why it is not available."""


class _Agents(Struct):
    agents: list[ListedAgent]


class Place(Protocol):
    """A host of sessions. Every call raises the error that rejects it."""

    alone: bool
    """True if no other client can enter its sessions, and they end with this process."""

    async def enter(self, wanted: WantedSession) -> DaemonSession: ...

    async def sessions(self) -> Sequence[ListedSession]:
        """Return the open sessions, the newest first."""
        ...

    async def agents(self) -> Sequence[ListedAgent]: ...

    async def set(self, session_id: SessionId, what: str, value: str | bool) -> None:
        """Set the `mode`, the `model`, or an option by its id."""
        ...

    async def explain(self, session_id: SessionId, asked: Sequence[PermissionRequested]) -> Sequence[Finding]:
        """Return why a session is stuck."""
        ...

    def folder(self, cwd: str) -> Path | None:
        """Return a session's folder, if it is on this machine."""
        ...


class DaemonPlace:
    """Sessions of a daemon."""

    alone = False

    def __init__(self, http: Http, url: str, say: Callable[[str], None]) -> None:
        self._http = http
        self._url = url
        self._say = say
        self._entered: list[Entered] = []

    async def enter(self, wanted: WantedSession) -> DaemonSession:
        entered = await enter(self._http, wanted, self._say)
        self._entered.append(entered)
        return entered.session

    async def leave(self) -> None:
        """Detach from the current session."""
        for each in self._entered:
            await leave(self._http, each)

    async def sessions(self) -> Sequence[ListedSession]:
        return msgspec.convert(await list_sessions(self._http, {"state": "open"}), list[ListedSession])

    async def agents(self) -> Sequence[ListedAgent]:
        return (await self._http.ask("GET", "/agents", repeatable=True)).read(_Agents).agents

    async def set(self, session_id: SessionId, what: str, value: str | bool) -> None:
        path = f"/session/{segment(session_id)}"
        if what in ("mode", "model"):
            await self._http.ask("POST", f"{path}/{what}", {f"{what}Id": value})
        else:
            await self._http.ask("POST", f"{path}/config", {"configId": what, "value": value})

    async def explain(self, session_id: SessionId, asked: Sequence[PermissionRequested]) -> Sequence[Finding]:
        path = f"/session/{segment(session_id)}"
        known = (await self._http.ask("GET", f"{path}/explain")).read(Explanation)
        queue = (await self._http.ask("GET", f"{path}/queue")).read(Queue)
        return findings(session_id, known, [PermissionRequest(each, session_id) for each in asked], queue)

    def folder(self, cwd: str) -> Path | None:
        return Path(cwd) if is_loopback(self._url) else None


class AgentPlace:
    """Sessions of an agent that was started for this chat."""

    alone = True

    def __init__(self, daemon: EmbeddedDaemon) -> None:
        self._daemon = daemon

    async def enter(self, wanted: WantedSession) -> DaemonSession:
        if wanted.session is not None:
            return await self._daemon.find(SessionId(wanted.session))
        return await self._daemon.create(wanted.cwd, NO_SETUP)

    async def sessions(self) -> Sequence[ListedSession]:
        return [ListedSession(each) for each in reversed(await self._daemon.sessions())]

    async def agents(self) -> Sequence[ListedAgent]:
        return []

    async def set(self, session_id: SessionId, what: str, value: str | bool) -> None:
        raise BadRequest("without a daemon an agent stays as it is; start `turnwire serve` to choose")

    async def explain(self, session_id: SessionId, asked: Sequence[PermissionRequested]) -> Sequence[Finding]:
        raise BadRequest("there is no daemon that could tell; what the agent says is all that is known")

    def folder(self, cwd: str) -> Path | None:
        return Path(cwd)


class Link(NamedTuple):
    """Callbacks about the connection to a daemon or an agent."""

    lost: Callable[[], None]
    found: Callable[[], None]
    say: Callable[[str], None]
    """Called with a message for the user, such as the reason when an agent is slow to start."""


@asynccontextmanager
async def open_place(where: Reach | tuple[str, ...], cwd: str, link: Link) -> AsyncGenerator[Place]:
    """Open the host of sessions. Raises the error that prevents it."""
    if isinstance(where, Reach):
        async with open_http(where, lost=link.lost, found=link.found) as http:
            await http.capabilities(patient=False)
            place = DaemonPlace(http, where.url, link.say)
            try:
                yield place
            finally:
                await place.leave()
    else:
        async with open_agent(where, cwd, link.say, on_stderr=lambda line: link.say(f"stderr: {line}")) as daemon:
            yield AgentPlace(daemon)
