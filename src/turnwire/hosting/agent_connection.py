"""One connection to an agent: the handshake, and the routing of its frames to the sessions that share it.

Each session here is an `AttachedSession`, which receives its frames in the agent's order. Frames of a session whose
`session/new` is not answered yet are held until the answer. A child session that the agent announced is routed to
its parent. Updates are not interpreted here.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeAlias

import anyio
from msgspec import UNSET, Raw, UnsetType

from turnwire import __version__
from turnwire.errors import LimitExceeded, LinkBroken, LinkError, LocalProtocolError, RemoteProtocolError
from turnwire.hosting.agent_exit import in_words, one_line
from turnwire.hosting.last_frames import LastFrames
from turnwire.hosting.peer import KEPT_BYTES, UNKNOWN_METHOD, Answer, Peer
from turnwire.hosting.process import EXIT_DRAIN_S, Exit
from turnwire.hosting.source import AgentHandle
from turnwire.ids import AgentSessionId, RequestId, SessionId
from turnwire.limits import Limits
from turnwire.projections.dialect import (
    NEWEST_VERSION,
    PERMISSION_METHODS,
    UNKNOWN_MODE,
    AgentProfile,
    initialize_params,
    is_offered_permission_request,
    read_cancel_request,
    read_initialize,
    session_params,
)
from turnwire.projections.translate.handshake import is_terminal
from turnwire.session.correlation import ExactId, exact
from turnwire.wire.jsonrpc import (
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    ErrorObject,
    Failure,
    Notification,
    Request,
    Result,
    raw,
)
from turnwire.wire.methods import (
    AUTH_LOGIN,
    AUTHENTICATE,
    CANCEL_REQUEST,
    ELICITATION_COMPLETE,
    FS_READ_TEXT_FILE,
    FS_WRITE_TEXT_FILE,
    INITIALIZE,
    SESSION_READY,
    SESSION_UPDATE,
    is_foreign,
)
from turnwire.wire.peek import Pieces, UpdateParams, peek_session_id, peek_update_params

logger = logging.getLogger(__name__)

Opened: TypeAlias = Callable[[Result | Failure], AgentSessionId | None]
"""Handles the answer to a request that opens a session; returns the id under which it is open here, if it is."""


class AttachedSession(Protocol):
    """A session on a connection (`hosted_session.HostedSession`). Its methods are called in the agent's order.

    All methods except `room` return at once.
    """

    frames: LastFrames

    @property
    def session_id(self) -> SessionId: ...

    @property
    def agent_session_id(self) -> AgentSessionId | None: ...

    @property
    def children(self) -> frozenset[str]:
        """The agent's ids of its child sessions in the log, if the agent is to restore the session."""
        ...

    def on_registered(self) -> None: ...

    def on_update(self, update: Raw, child: str | None = None, extra: Raw | UnsetType = UNSET) -> str | None:
        """Handle an update; return the child session that it announces, if any."""
        ...

    def on_chunks(self, kind: str, updates: Sequence[Raw]) -> None: ...

    def on_permission_request(self, request: Request, child: str | None = None) -> None: ...

    def on_client_request(
        self,
        request: Request,
        answer: Callable[[Result | Failure], None],
        mark: Callable[[Callable[[int], None]], None] | None = None,
        refused: set[object] | None = None,
    ) -> bool:
        """Handle a request for a client. Return false if no client of the session serves it."""
        ...

    def on_cancel_request(self, request_id: RequestId) -> None: ...

    def on_gone(self, how: Exit | None, code: str) -> None: ...

    def owners(self, method: str) -> set[str | None]:
        """Return the owners of the session's clients that serve this method."""
        ...

    def mark(self, reached: Callable[[int], None]) -> None:
        """Call `reached` with the offset of the last event before this point, once it is published."""
        ...

    async def room(self) -> None:
        """Wait until the session has room for more inputs."""
        ...


class Listener(Protocol):
    """A client of a session, notified of agent messages other than updates. Its methods only enqueue and return.

    This is a protocol because clients belong to a higher layer, `server/acp`.
    """

    @property
    def client(self) -> object:
        """The client that listens: one client may listen to several sessions of the agent."""
        ...

    def heard(self, said: Notification, after: int) -> None:
        """Receive a custom notification about the session, positioned after the event `after`."""
        ...

    def behind(self, after: int, act: Callable[[], None]) -> None:
        """Call `act` once the client has received the session up to this event; at once if it does not receive it
        now.
        """
        ...

    def heard_by_all(self, said: Notification) -> None:
        """Receive a custom notification about no session. Each client receives it once."""
        ...

    def completed(self, said: Notification) -> None:
        """An elicitation is over. This client may or may not have received it in the session."""
        ...


SERVED_AT_ONCE = 256
"""Maximum number of file requests served at a time, and of all others. A waiting one costs some 17 KB."""
FILES_WAIT_S = 10.0
"""Longest wait of further file requests; the agent's pipe is held back meanwhile, and its end is not noticed."""
TOO_MANY = ErrorObject(INTERNAL_ERROR, "too many requests wait for an answer; send fewer at a time")
_FILES = frozenset({FS_READ_TEXT_FILE, FS_WRITE_TEXT_FILE})
"""Methods that end soon. Any other may last as long as a program or a user's answer, so the agent is not
held back.
"""

_PRINTED = frozenset({"not_json", "not_utf8"})
"""Reasons of breaches that mean a line is text and no message."""
INITIALIZED = "initialized"
"""The note with the agent's answer to `initialize`."""
SHARED = "shared"
"""The note that the agent has had several sessions."""
KEPT_LINES = 20
"""Maximum number of such lines reported as the reason of an agent's end."""
KEPT_STRAYS = 64
"""Maximum number of methods of stray frames that are counted separately; an agent may invent any number of them."""


class AgentConnection:
    """An agent at the other end of a link, and the sessions it serves."""

    def __init__(
        self,
        agent: AgentHandle,
        limits: Limits,
        *,
        services: bool = False,
        confidential: bool = False,
        newest: int = NEWEST_VERSION,
    ) -> None:
        """`newest`: the version of ACP that is requested from the agent first."""
        self.agent = agent
        self.limits = limits
        self._services = services
        self._confidential = confidential
        self._newest = newest
        self._told_of: set[SessionId] = set()
        """All sessions that the agent has received, including those that have left."""
        self._sessions: dict[str, AttachedSession] = {}
        self._children: dict[str, AttachedSession] = {}
        """Child sessions that were announced here, each with its parent."""
        self._asked: dict[ExactId, AttachedSession] = {}
        """Unanswered requests of the agent, each with the session it concerns."""
        self._files: set[ExactId] = set()
        self._others: set[ExactId] = set()
        """Requests that clients or the daemon serve now, by kind."""
        self._waiting_files: deque[Request] = deque()
        self._files_started = anyio.Event()
        """Set when no file request waits."""
        self._touched: dict[int, AttachedSession] = {}
        """Sessions that received frames of the current batch."""
        self._opening: dict[AttachedSession, AgentSessionId | None] = {}
        """Sessions that are being opened, with the id under which they are routed meanwhile, if any."""
        self._held: list[tuple[str, Request | UpdateParams]] = []
        """Frames of sessions that may be about to exist, in their order."""
        self.listeners: dict[AgentSessionId, list[Listener]] = {}
        """The clients of each session."""
        self.journal = agent.journal
        """The notes for the next process, if the agent outlives this one."""
        self.peer = Peer(agent.link, self._incoming, self._settled, self._updated, self.journal)
        self._was_shared = self.journal is not None and SHARED in self.journal.notes
        self._unrecorded: dict[AttachedSession, int] = {}
        """Sessions with frames that are not dealt with, each with the newest frame that is."""
        self.profile: AgentProfile | None = None
        self._handshake = anyio.CancelScope()
        self._is_echo = False
        """True if the agent sends back its input."""
        self.is_alive = True
        self.is_dismissed = False
        """True if we ended it; false if it ended by itself."""
        self._is_left = False
        self._why_gone = "agent_exited"
        self.strays: Counter[str] = Counter()
        """Number of frames that belong to no session, by method."""

    @property
    def sessions(self) -> int:
        """The number of sessions on this connection."""
        return len(self._sessions)

    @property
    def is_shared(self) -> bool:
        """True if the agent's output may be about more than one session."""
        return self._was_shared or len(self._told_of) > 1

    @property
    def is_busy(self) -> bool:
        """True if the agent owes an answer, or waits for one."""
        return bool(self.peer.open_requests or self._asked)

    async def run(self) -> None:
        """Serve until the agent is gone; then notify every session of how it ended."""
        try:
            await self.peer.run()
        except LimitExceeded:
            # The agent sends requests without reading the answers: communication is impossible.
            self._why_gone = "agent_unresponsive"
        finally:
            self.is_alive = False
            await self._report_end()

    async def _report_end(self) -> None:
        if not self._is_left:
            with anyio.CancelScope(shield=True):
                how = await self._exit()
                self._tell_gone(how, self._why_gone)
                await self.agent.aclose()

    def _tell_gone(self, how: Exit | None, code: str) -> None:
        everybody = dict.fromkeys([*self._sessions.values(), *self._opening])
        for table in (self._sessions, self._opening, self._children, self._asked, self._waiting_files):
            table.clear()
        if how is not None and how.stderr_tail and self._confidential and self.is_shared:
            # Its users need not know of each other. The operator of the daemon can read the output here, and in
            # `explain`.
            extra = {"event": "agent_last_words", "pid": self.agent.pid, "stderr": how.stderr_tail}
            logger.warning("an agent of several sessions ended; its last words are for none of them", extra=extra)
            how = replace(how, stderr_tail="")
        for each in everybody:
            each.on_gone(how, code)

    async def _exit(self) -> Exit | None:
        """Return how the agent ended. An agent that only closed its output has not ended and is not waited for."""
        if not self.agent.pid:
            return None
        with anyio.move_on_after(EXIT_DRAIN_S):
            await self.agent.exited()
        return self.ended

    @property
    def ended(self) -> Exit | None:
        """How the agent ended, with its last output; `None` if it runs or its end is unknown.

        Some programs print the reason of their end to standard output: an unknown option or command, for example.
        If the agent printed nothing to standard error, the lines that were no messages are its last output.
        """
        how = self.agent.exit
        if how is None or how.stderr_tail.strip():
            return how
        return replace(how, stderr_tail="".join(f"{each}\n" for each in self._text()[-KEPT_LINES:]))

    def _text(self) -> list[str]:
        """Return the lines of its output that are text and no messages, the newest last."""
        printed = [each for each in self.peer.last_breaches if each.reason in _PRINTED]
        words = [self.agent.blotted(each.head, is_cut=len(each.head) >= KEPT_BYTES) for each in printed]
        return [each.decode(errors="replace") for each in words]

    async def handshake(self) -> AgentProfile:
        """Send `initialize` with the newest version and, if that is rejected, with the older ones.

        Raises `RemoteProtocolError` if the agent rejects all or is too slow, `LinkBroken` if it ends.
        """
        try:
            profile = await self._initialize()
            if not self.is_alive:
                raise LinkBroken("the agent went away right after its handshake")
            return profile
        except LinkBroken as broken:
            # The exit of a process is more informative than the end of its pipe.
            why = in_words(await self._exit()) if self.agent.pid else str(broken)
            raise LinkBroken(why or "the agent closed its output and answered nothing; is it ACP?") from None

    async def _initialize(self) -> AgentProfile:
        refusal: Failure | None = None
        with anyio.move_on_after(self.limits.initialize_s) as self._handshake:
            for protocol in range(self._newest, 0, -1):
                params = initialize_params(__version__, protocol=protocol, services=self._services)
                answer = await self.peer.call(INITIALIZE, params)
                if isinstance(answer, Result):
                    self.profile = read_initialize(answer.result)
                    if self.journal is not None:
                        self.journal.note(INITIALIZED, bytes(answer.result))
                    return self.profile
                refusal = answer
        if refusal is None:
            raise RemoteProtocolError(self._why_unanswered())
        said = one_line(refusal.error.message)
        raise RemoteProtocolError(f"the agent refused to initialize: {said}", jsonrpc=refusal.error.code)

    @property
    def _who(self) -> str:
        return f"the agent {self.agent.program!r}" if self.agent.program else "the agent"

    def _why_unanswered(self) -> str:
        if self._is_echo:
            return (
                f"{self._who} does not speak ACP: it sends back what it is sent; give the command of an ACP agent"
            )
        if text := self._first_text():
            return (
                f"{self._who} does not speak ACP: it printed {text!r} and answered nothing; give the"
                " command of an ACP agent, and the flag that it needs for ACP, if it has one"
            )
        return f"{self._who} did not answer `initialize` in time; is it an ACP agent?{self._last_line()}"

    def waits(self, since_s: float) -> str:
        """Return a description of the wait for an agent that was started `since_s` seconds ago."""
        return (
            f"{self._who} was started {since_s:.0f} s ago and has not answered `initialize`; it has"
            f" {self.limits.initialize_s:g} s (limit initialize_s){self._last_line()}"
        )

    def _first_text(self) -> str:
        return one_line(next((each for each in self._text() if each.strip()), ""))

    def _last_line(self) -> str:
        if text := self._first_text():
            return f"; it printed {text!r}, which is no ACP"
        said = one_line(self.agent.printed.strip().rpartition("\n")[2])
        return f"; its stderr says: {said}" if said else ""

    def _judge(self) -> None:
        """Before its first answer, shorten the deadline of an agent that prints text which is not ACP."""
        if not self._handshake.cancel_called and not self.peer.breaches.keys().isdisjoint(_PRINTED):
            last = anyio.current_time() + self.limits.initialize_text_s
            self._handshake.deadline = min(self._handshake.deadline, last)

    async def authenticate(self, method_id: str) -> None:
        """Send `authenticate`, or `auth/login` on v2.

        Raises `LocalProtocolError` for a login that no agent can be asked for, `RemoteProtocolError` if the agent
        rejects it.
        """
        assert self.profile is not None, "authentication follows the handshake"
        if is_terminal(self.profile.auth_methods, method_id):
            raise LocalProtocolError("this login is a program of the agent; run it in a terminal, then try again")
        method = AUTH_LOGIN if self.profile.version == NEWEST_VERSION else AUTHENTICATE
        answer = await self.peer.call(method, raw({"methodId": method_id}))
        if isinstance(answer, Failure):
            raise RemoteProtocolError("the agent refused the authentication", jsonrpc=answer.error.code)

    # -- continuing the connection of an earlier process -----------------------------------------------------

    def continue_handshake(self) -> bool:
        """Continue after the handshake of an earlier process. Return false if it had not completed it."""
        assert self.journal is not None, "a connection without notes cannot be continued"
        initialized = self.journal.notes.get(INITIALIZED)
        if initialized is None:
            return False
        self.profile = read_initialize(Raw(initialized))
        return True

    def continue_session(
        self, session: AttachedSession, agent_session_id: AgentSessionId, open_requests: Mapping[RequestId, Answer]
    ) -> None:
        """Route frames to a session that is open at the agent, and answers to its requests."""
        self._told_of.add(session.session_id)
        self._sessions[agent_session_id] = session
        self._know_children(session, session.children)
        for request_id, answer in open_requests.items():
            self.peer.reopen(request_id, answer)

    def put(self, session: AttachedSession, recorded: int) -> None:
        """An input from the current frame was enqueued; the session has dealt with the frames up to `recorded`."""
        self._unrecorded.setdefault(session, recorded)

    def recorded(self, session: AttachedSession, frame: int, *, is_all: bool) -> None:
        """A session has dealt with the frames up to this one; `is_all`: these are all that it got."""
        if is_all:
            self._unrecorded.pop(session, None)
        else:
            self._unrecorded[session] = frame
        self._acknowledge()

    def _acknowledge(self) -> None:
        self.peer.acknowledge(min((self.peer.delivered, *self._unrecorded.values())))

    def open_session(
        self,
        session: AttachedSession,
        method: str,
        params: Raw,
        opened: Opened,
        known_as: AgentSessionId | None,
    ) -> None:
        """Send `session/new`, `load` or `resume`. The answer is handled before any frame that follows it.

        A session whose id is known is routed from the request on, so that it receives the frames before the answer;
        no other session may have that id here. If the agent ends without an answer, the session is notified.
        """

        def answered(frame: Result | Failure | None) -> None:
            if frame is None:
                # `_tell_gone` follows.
                return
            if session in self._opening:
                del self._opening[session]
                if known_as is not None:
                    del self._sessions[known_as]
                agent_session_id = opened(frame)
                if agent_session_id is not None:
                    self._register(agent_session_id, session)
            if not self._opening and self._held:
                self.strays["held"] += len(self._held)
                self._held = []

        self._told_of.add(session.session_id)
        if self.journal is not None and self.is_shared:
            self.journal.note(SHARED, b"1")
        self.ask(session, method, params, answered)
        # Not before: `ask` raises if the agent cannot be reached.
        self._opening[session] = known_as
        if known_as is not None:
            assert not self.has(known_as), "the caller checked that the id is free"
            self._sessions[known_as] = session
            self._know_children(session, session.children)

    def _register(self, agent_session_id: AgentSessionId, session: AttachedSession) -> None:
        self._sessions[agent_session_id] = session
        self._know_children(session, session.children)
        held, self._held = self._held, []
        for session_id, frame in held:
            # Looked up one by one: a held frame may announce a child session, whose frames are held after it.
            if self._find(session_id)[0] is not session:
                self._held.append((session_id, frame))
            elif isinstance(frame, Request):
                self._ask_users(session, frame, self._find(session_id)[1])
            else:
                self._update(frame)
        self._touch(session)
        if self.profile is not None and self.profile.ready:
            # Only now: the session is known here, so nothing the agent sends after it can be dropped.
            self.notify(session, SESSION_READY, session_params(agent_session_id))
        session.on_registered()

    # -- sending about a session; raises `LinkError`, `LimitExceeded` --------------------------------------

    def ask(self, session: AttachedSession, method: str, params: Raw, answer: Answer) -> RequestId:
        """Send a request; `answer` receives the outcome in order with the incoming frames."""

        def answered(frame: Result | Failure | None) -> None:
            if frame is not None:
                session.frames.heard(frame, method=method)
            answer(frame)

        request_id = self.peer.ask(method, params, answered)
        session.frames.told(Request(request_id, method, params))
        return request_id

    async def call(self, session: AttachedSession, method: str, params: Raw) -> Result | Failure:
        """Send a request and wait for its answer."""
        session.frames.told(Notification(method, params))
        answer = await self.peer.call(method, params)
        session.frames.heard(answer, method=method)
        return answer

    def notify(self, session: AttachedSession, method: str, params: Raw) -> None:
        """Send a notification."""
        self.peer.notify(method, params)
        session.frames.told(Notification(method, params))

    def has(self, agent_session_id: AgentSessionId) -> bool:
        """Return whether a session here has this id. An agent that counts from the start assigns ids twice."""
        return agent_session_id in self._sessions

    def forget(self, session: AttachedSession, agent_session_id: AgentSessionId | None) -> None:
        """Route no more frames to this session. Another one with the same id is unaffected."""
        self._unrecorded.pop(session, None)
        for each in (agent_session_id, self._opening.pop(session, None)):
            if each is not None and self._sessions.get(each) is session:
                del self._sessions[each]
        self._children = {name: each for name, each in self._children.items() if each is not session}
        self._asked = {request_id: each for request_id, each in self._asked.items() if each is not session}

    def _know_children(self, session: AttachedSession, children: Iterable[str]) -> None:
        """Record child sessions. A child stays with its first parent: an agent cannot move it to another
        session.
        """
        for each in children:
            self._children.setdefault(each, session)

    def _find(self, session_id: str) -> tuple[AttachedSession | None, str | None]:
        """Return the session that receives frames for this id, and the id if it is that session's child."""
        session = self._sessions.get(session_id)
        if session is not None:
            return session, None
        session = self._children.get(session_id)
        return session, None if session is None else session_id

    def end_now(self, *, kill: bool) -> bool:
        """Signal the agent's process. Return false if it has none: then only `aclose` ends it."""
        self.is_dismissed = True
        if kill:
            # The agent will not survive this, so this connection must not be used for new sessions.
            self.is_alive = False
            self.agent.kill()
        else:
            self.agent.terminate()
        return bool(self.agent.pid)

    def leave(self) -> bool:
        """Stop serving and let the agent continue for the next process. Return false if it cannot."""
        if self.journal is None or self.profile is None:
            return False
        self._is_left = True
        self.journal.leave()
        return True

    def dismiss(self, why: str) -> None:
        """Retire the connection before closing it: it gets no new session, and its sessions are notified now."""
        self.is_alive = False
        self.is_dismissed = True
        self._tell_gone(None, why)

    async def aclose(self, why: str = "agent_exited") -> None:
        """End the agent gracefully. This connection gets no new session from now on."""
        self.is_alive = False
        self.is_dismissed = True
        self._why_gone = why
        await self.agent.aclose()

    # -- incoming ------------------------------------------------------------------------------------------

    def _incoming(self, frame: Request | Notification) -> None:
        if isinstance(frame, Request) and frame.method == INITIALIZE and self.profile is None:
            # Agents never send this request: it is our own, echoed.
            self._is_echo = True
            self._handshake.cancel()
        elif isinstance(frame, Request):
            self._request(frame)
        elif frame.method == SESSION_UPDATE:
            self._update_the_long_way(frame)
        elif frame.method == CANCEL_REQUEST:
            self._cancel_request(frame)
        elif not self._is_heard(frame):
            name = frame.method[:KEPT_STRAYS]
            self.strays[name if name in self.strays or len(self.strays) < KEPT_STRAYS else "other"] += 1

    def _is_heard(self, frame: Notification) -> bool:
        """Notify the clients concerned. Return false if there are none."""
        named = peek_session_id(frame.params)
        everybody = [(session_id, each) for session_id, some in self.listeners.items() for each in some]
        if frame.method == ELICITATION_COMPLETE:
            # The notification names no session. Only the client that received the elicitation knows it.
            for session_id, each in everybody:
                self._tell_behind(session_id, each, partial(each.completed, frame))
            return bool(everybody)
        if not is_foreign(frame.method):
            return False
        if named is None:
            # A client receives it after all earlier agent messages in any session of the client.
            sessions = Counter(id(each.client) for _, each in everybody)
            told = {id(each.client): partial(each.heard_by_all, frame) for _, each in everybody}
            tell = {client: _after(count, told[client]) for client, count in sessions.items()}
            for session_id, each in everybody:
                self._tell_behind(session_id, each, tell[id(each.client)])
            return bool(everybody)
        session, child = self._find(named)
        if session is not None and child is not None:
            named = session.agent_session_id or named
        listeners = self.listeners.get(AgentSessionId(named), [])
        for each in listeners:
            self._place(named, partial(each.heard, frame))
        return bool(listeners)

    def _tell_behind(self, session_id: str, listener: Listener, tell: Callable[[], None]) -> None:
        self._place(session_id, lambda after: listener.behind(after, tell))

    def _place(self, session_id: str, reached: Callable[[int], None]) -> None:
        session = self._sessions.get(session_id)
        if session is None:
            reached(0)
        else:
            session.mark(reached)
            self._touch(session)

    def _update_the_long_way(self, frame: Notification) -> None:
        """Handle an update that the peer's fast path did not accept: it is very long, or malformed."""
        try:
            params = peek_update_params(frame.params)
        except RemoteProtocolError:
            self.strays[SESSION_UPDATE] += 1
            return
        self._update(params)

    def _updated(self, said: UpdateParams | Pieces) -> None:
        if isinstance(said, UpdateParams):
            self._update(said)
            return
        session = self._sessions.get(said.session_id)
        if session is not None:
            self._touch(session)
            session.on_chunks(said.kind, said.updates)
            return
        # They belong to a child, or to a session that may be about to exist.
        for each in said.updates:
            self._update(UpdateParams(said.session_id, each))

    def _update(self, params: UpdateParams) -> None:
        session, child = self._sessions.get(params.session_id), None
        if session is None:
            session, child = self._find(params.session_id)
        if session is None:
            self._hold(params.session_id, params)
            return
        self._touch(session)
        announced = session.on_update(params.update, child, params.beside)
        if announced is not None:
            self._know_children(session, (announced,))

    def _request(self, frame: Request) -> None:
        session_id = peek_session_id(frame.params) or ""
        session, child = self._find(session_id)
        if not is_offered_permission_request(frame):
            self._refuse(session, frame, UNKNOWN_MODE)
        elif session is not None and frame.method in PERMISSION_METHODS:
            self._ask_users(session, frame, child)
        elif frame.method not in PERMISSION_METHODS:
            self._ask_client(frame)
        elif not self._hold(session_id, frame):
            self.peer.refuse(frame.id)

    def _refuse(self, session: AttachedSession | None, frame: Request, error: ErrorObject = UNKNOWN_METHOD) -> None:
        self.peer.refuse(frame.id, error)
        if session is not None:
            session.frames.told(Failure(frame.id, error))

    # -- requests for a client ----------------------------------------------------------------------------------

    def _ask_client(self, frame: Request) -> None:
        if frame.method in _FILES:
            if self._waiting_files or len(self._files) >= SERVED_AT_ONCE:
                self._waiting_files.append(frame)
                return
        elif len(self._others) >= SERVED_AT_ONCE:
            self._refuse(None, frame, TOO_MANY)
            return
        self._serve(frame)

    def _serve(self, frame: Request) -> None:
        session_id = peek_session_id(frame.params)
        session = self._find(session_id or "")[0]
        asked = self._asked_of_all(frame) if not session_id else [] if session is None else [session]
        if not self._ask_next(asked, frame, set()):
            self._refuse(session, frame)

    def _start_waiting_files(self) -> None:
        while self._waiting_files and len(self._files) < SERVED_AT_ONCE:
            # An agent that cannot be answered is about to be reported by `run`.
            with suppress(LinkError, LimitExceeded):
                self._serve(self._waiting_files.popleft())
        if not self._waiting_files:
            self._files_started.set()

    async def _file_room(self) -> None:
        """Hold the agent back while file requests wait. Reject those that wait too long."""
        self._files_started = anyio.Event()
        with anyio.move_on_after(FILES_WAIT_S):
            await self._files_started.wait()
        while self._waiting_files:
            self._refuse(None, self._waiting_files.popleft(), TOO_MANY)

    def _asked_of_all(self, frame: Request) -> list[AttachedSession]:
        """Return the sessions whose clients may answer a request that names no session.

        Such a request concerns the agent as a whole, and no user may answer it for others: the clients must all
        have the same owner.
        """
        if not is_foreign(frame.method):
            return []
        asked = [each for each in self._sessions.values() if each.owners(frame.method)]
        owners = {owner for each in asked for owner in each.owners(frame.method)}
        return asked if len(owners) == 1 and None not in owners else []

    def _ask_next(self, asked: Sequence[AttachedSession], frame: Request, refused: set[object]) -> bool:
        """Ask the clients of the first of these sessions that has any. Return false if none of them has."""
        for number, session in enumerate(asked, 1):
            answered = partial(self._client_answered, session, asked[number:], frame, refused)
            place = None if peek_session_id(frame.params) else partial(self._place_behind_all, session)
            serving = self._files if frame.method in _FILES else self._others
            # Before the call, which may be answered at once.
            serving.add(exact(frame.id))
            if session.on_client_request(frame, answered, place, refused):
                self._asked[exact(frame.id)] = session
                self._touch(session)
                return True
            serving.discard(exact(frame.id))
        return False

    def _client_answered(
        self,
        session: AttachedSession,
        others: Sequence[AttachedSession],
        frame: Request,
        refused: set[object],
        outcome: Result | Failure,
    ) -> None:
        self._asked.pop(exact(frame.id), None)
        (self._files if frame.method in _FILES else self._others).discard(exact(frame.id))
        try:
            self._answer_client(session, others, frame, refused, outcome)
        finally:
            self._start_waiting_files()

    def _answer_client(
        self,
        session: AttachedSession,
        others: Sequence[AttachedSession],
        frame: Request,
        refused: set[object],
        outcome: Result | Failure,
    ) -> None:
        if not self.peer.has_asked(frame.id):
            return
        is_unknown = isinstance(outcome, Failure) and outcome.error.code == METHOD_NOT_FOUND
        if is_unknown and self._ask_next(others, frame, refused):
            return
        with suppress(LinkError, LimitExceeded):
            if isinstance(outcome, Result):
                self.peer.answer(frame.id, outcome.result)
            else:
                self.peer.refuse(frame.id, outcome.error)
            session.frames.told(outcome, method=frame.method)

    def _place_behind_all(self, session: AttachedSession, reached: Callable[[int], None]) -> None:
        """Call `reached` with the offset in this session, once all earlier agent messages in all sessions are
        published.
        """
        everybody = [*self._sessions.values()]
        places: dict[AttachedSession, int] = {}

        def placed(each: AttachedSession, after: int) -> None:
            places[each] = after
            if len(places) == len(everybody):
                reached(places[session])

        for each in everybody:
            each.mark(partial(placed, each))
            self._touch(each)

    def _ask_users(self, session: AttachedSession, frame: Request, child: str | None) -> None:
        self._asked[exact(frame.id)] = session
        session.on_permission_request(frame, child)
        self._touch(session)

    def answer(self, request_id: RequestId, answer: Raw | ErrorObject) -> None:
        """Answer a permission request, unless the agent has stopped waiting for it."""
        session = self._asked.pop(exact(request_id), None)
        if self.peer.has_asked(request_id):
            if isinstance(answer, ErrorObject):
                self.peer.refuse(request_id, answer)
                frame = Failure(request_id, answer)
            else:
                self.peer.answer(request_id, answer)
                frame = Result(request_id, answer)
            if session is not None:
                session.frames.told(frame)

    def _cancel_request(self, frame: Notification) -> None:
        request_id = read_cancel_request(frame.params)
        if request_id is None:
            return
        session = self._asked.get(exact(request_id))
        if session is not None:
            session.on_cancel_request(request_id)

    def _hold(self, session_id: str, frame: Request | UpdateParams) -> bool:
        """Hold a frame of a session that may be about to exist. If that is impossible, count the frame and return
        false.
        """
        if not self._opening or len(self._held) >= self.limits.agent_inputs:
            self.strays["unknown_session"] += 1
            return False
        self._held.append((session_id, frame))
        return True

    def _touch(self, session: AttachedSession) -> None:
        self._touched[id(session)] = session

    async def _settled(self) -> None:
        """After each batch, wait for room in the sessions it went to, so that a full inbox holds the agent back."""
        if self.profile is None:
            self._judge()
        touched, self._touched = self._touched, {}
        for session in touched.values():
            session.frames.cut()
            await session.room()
        if self._waiting_files:
            await self._file_room()
        if self.journal is not None:
            self._acknowledge()


def _after(count: int, act: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls `act` on its `count`-th call."""
    left = count

    def once() -> None:
        nonlocal left
        left -= 1
        if not left:
            act()

    return once
