"""One connection to an agent: the handshake, and which frame belongs to which session.

Each session that lives here has an `AgentInbound`, which hears its frames in the order the agent wrote them.
Updates of a session whose `session/new` is not answered yet are held and follow its answer. A child session that
the agent has announced is heard with the session whose child it is. No update is interpreted here.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeAlias

import anyio
from msgspec import Raw

from turnwire import __version__
from turnwire.core.correlation import ExactId, exact
from turnwire.core.dialect import (
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
from turnwire.core.translate.handshake import is_terminal
from turnwire.errors import LimitExceeded, LinkBroken, LinkError, LocalProtocolError, RemoteProtocolError
from turnwire.ids import AgentSessionId, RequestId, SessionId
from turnwire.limits import Limits
from turnwire.link.peer import KEPT_BYTES, UNKNOWN_METHOD, Answer, Peer
from turnwire.link.process import Exit
from turnwire.runtime.agent_exit import in_words, one_line
from turnwire.runtime.agent_inbound import AgentInbound
from turnwire.runtime.source import AgentHandle
from turnwire.wire.jsonrpc import METHOD_NOT_FOUND, ErrorObject, Failure, Notification, Request, Result, raw
from turnwire.wire.methods import (
    AUTH_LOGIN,
    AUTHENTICATE,
    CANCEL_REQUEST,
    ELICITATION_COMPLETE,
    INITIALIZE,
    SESSION_READY,
    SESSION_UPDATE,
    is_foreign,
)
from turnwire.wire.peek import Pieces, UpdateParams, peek_session_id, peek_update_params

logger = logging.getLogger(__name__)

Opened: TypeAlias = Callable[[Result | Failure], AgentSessionId | None]
"""Hears the answer to a request that opens a session; says under which id the session lives here, if it does."""


class Listener(Protocol):
    """A client of a session, which hears what its agent says beside updates. Hands over and returns.

    A protocol, because clients are of a layer above: `server/acp` has them.
    """

    @property
    def client(self) -> object:
        """Who listens: one client may listen for several sessions of the agent."""
        ...

    def heard(self, said: Notification, after: int) -> None:
        """About the session, by a method of the agent's own, behind the event `after`."""
        ...

    def behind(self, after: int, act: Callable[[], None]) -> None:
        """Call `act` once the client was told the session up to this event; at once if it is not told it now."""
        ...

    def heard_by_all(self, said: Notification) -> None:
        """About no session, by a method of the agent's own. Told to each client once."""
        ...

    def completed(self, said: Notification) -> None:
        """An elicitation is over, which this client may have been asked in the session or not."""
        ...


_PRINTED = frozenset({"not_json", "not_utf8"})
"""Why a line is no message but text."""
KEPT_LINES = 20
"""Lines of such text that tell why an agent ended."""
KEPT_STRAYS = 64
"""Kinds of frames for nobody that are counted apart; an agent makes up as many as it likes."""


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
        """`newest`: the version of ACP that the agent is asked for first."""
        self.agent = agent
        self.limits = limits
        self._services = services
        self._confidential = confidential
        self._newest = newest
        self._told_of: set[SessionId] = set()
        """Every session that the agent has heard of, also those that have left."""
        self._sessions: dict[str, AgentInbound] = {}
        self._children: dict[str, AgentInbound] = {}
        """Child sessions that were announced here, with whose they are."""
        self._asked: dict[ExactId, AgentInbound] = {}
        """Requests of the agent that are not answered, with whom they concern."""
        self._touched: dict[int, AgentInbound] = {}
        """Sessions that the current burst went to."""
        self._openings = 0
        """Requests on their way that may make a session known here."""
        self._orphans: list[AgentInbound] = []
        """Sessions that were being opened when the agent went."""
        self._held: list[tuple[str, Request | UpdateParams]] = []
        """Frames of sessions that may be about to exist, in their order."""
        self.listeners: dict[AgentSessionId, list[Listener]] = {}
        """The clients of each session."""
        self.peer = Peer(agent.link, self._incoming, self._settled, self._updated)
        self.profile: AgentProfile | None = None
        self._handshake = anyio.CancelScope()
        self._is_echo = False
        """It sends back what it is sent."""
        self.is_alive = True
        self.is_dismissed = False
        """We let it go; it did not go by itself."""
        self._why_gone = "agent_exited"
        self.strays: Counter[str] = Counter()
        """Frames that belong to no session, by method."""

    @property
    def sessions(self) -> int:
        """How many sessions live here."""
        return len(self._sessions)

    @property
    def is_shared(self) -> bool:
        """What the agent prints may be about more than one session."""
        return len(self._told_of) > 1

    @property
    def is_busy(self) -> bool:
        """Whether the agent owes an answer, or waits for one."""
        return bool(self.peer.open_requests or self._asked)

    async def run(self) -> None:
        """Serve until the agent is gone; then every session hears how it went."""
        try:
            await self.peer.run()
        except LimitExceeded:
            # It asks and does not read the answers: nobody can talk to it any more.
            self._why_gone = "agent_unresponsive"
        finally:
            self.is_alive = False
            with anyio.CancelScope(shield=True):
                how = await self._exit()
                self._tell_gone(how, self._why_gone)
                await self.agent.aclose()

    def _tell_gone(self, how: Exit | None, code: str) -> None:
        everybody, self._sessions, self._orphans = [*self._sessions.values(), *self._orphans], {}, []
        if how is not None and how.stderr_tail and self._confidential and self.is_shared:
            # Its users need not know of each other; whoever runs the daemon reads it here, and in `explain`.
            extra = {"event": "agent_last_words", "pid": self.agent.pid, "stderr": how.stderr_tail}
            logger.warning("an agent of several sessions ended; its last words are for none of them", extra=extra)
            how = replace(how, stderr_tail="")
        for each in everybody:
            each.gone(how, code)

    async def _exit(self) -> Exit | None:
        """How the agent ended. One that only closed its output has not ended, and is not waited for."""
        if not self.agent.pid:
            return None
        with anyio.move_on_after(self.limits.exit_drain_s):
            await self.agent.exited()
        return self.ended

    @property
    def ended(self) -> Exit | None:
        """How the agent ended, once it has and if that can be known, with its last words.

        Some programs say on their output why they end: that they have no such option, or that there is no command
        of that name. If it printed nothing to standard error, the lines that were no messages are its last words.
        """
        how = self.agent.exit
        if how is None or how.stderr_tail.strip():
            return how
        return replace(how, stderr_tail="".join(f"{each}\n" for each in self._text()[-KEPT_LINES:]))

    def _text(self) -> list[str]:
        """What it wrote to its output that is no message but text, the newest last."""
        printed = [each for each in self.peer.last_breaches if each.reason in _PRINTED]
        words = [self.agent.blotted(each.head, is_cut=len(each.head) >= KEPT_BYTES) for each in printed]
        return [each.decode(errors="replace") for each in words]

    async def handshake(self) -> AgentProfile:
        """`initialize`, asking for the newest version and, if that is refused, for the oldest.

        Raises `RemoteProtocolError` if the agent refuses both or is too slow, `LinkBroken` if it goes.
        """
        try:
            profile = await self._initialize()
            if not self.is_alive:
                raise LinkBroken("the agent went away right after its handshake")
            return profile
        except LinkBroken as broken:
            # The end of a process says more than the end of its pipe.
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
        """What is waited for, in words, by whoever started it so long ago."""
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
        """Before its first answer: one that prints text has less time to speak ACP."""
        if not self._handshake.cancel_called and not self.peer.breaches.keys().isdisjoint(_PRINTED):
            last = anyio.current_time() + self.limits.initialize_text_s
            self._handshake.deadline = min(self._handshake.deadline, last)

    async def authenticate(self, method_id: str) -> None:
        """`authenticate`, or `auth/login` on v2.

        Raises `LocalProtocolError` if no agent is asked for this, `RemoteProtocolError` if the agent refuses.
        """
        assert self.profile is not None, "authentication follows the handshake"
        if is_terminal(self.profile.auth_methods, method_id):
            raise LocalProtocolError("this login is a program of the agent; run it in a terminal, then try again")
        method = AUTH_LOGIN if self.profile.version == NEWEST_VERSION else AUTHENTICATE
        answer = await self.peer.call(method, raw({"methodId": method_id}))
        if isinstance(answer, Failure):
            raise RemoteProtocolError("the agent refused the authentication", jsonrpc=answer.error.code)

    def open_session(
        self, inbound: AgentInbound, method: str, params: Raw, opened: Opened, known_as: AgentSessionId | None
    ) -> None:
        """`session/new`, `load` or `resume`. The answer is heard before any frame that the agent wrote after it.

        A session whose id is known lives here from the asking on, so that it hears what comes before the answer.
        Nobody else may have that id here.
        If the agent goes instead of answering, the session hears how it went.
        """
        if known_as is not None:
            assert not self.has(known_as), "the caller looked whether the id is free"
            self._sessions[known_as] = inbound
            self._know_children(inbound, inbound.children)

        def answered(frame: Result | Failure | None) -> None:
            self._openings -= 1
            if known_as is not None:
                self.forget(known_as, inbound)
            if frame is None:
                self._orphans.append(inbound)
                return
            agent_session_id = opened(frame)
            if agent_session_id is not None:
                self._register(agent_session_id, inbound)
            if not self._openings and self._held:
                self.strays["held"] += len(self._held)
                self._held = []

        self._told_of.add(inbound.session_id)
        self.ask(inbound, method, params, answered)
        # Not before: `ask` raises if the agent cannot be reached, and then nothing is held for this one.
        self._openings += 1

    def _register(self, agent_session_id: AgentSessionId, inbound: AgentInbound) -> None:
        self._sessions[agent_session_id] = inbound
        self._know_children(inbound, inbound.children)
        held, self._held = self._held, []
        for session_id, frame in held:
            # Looked up one by one: what is held may announce a child, whose frames are held behind it.
            if self._find(session_id)[0] is not inbound:
                self._held.append((session_id, frame))
            elif isinstance(frame, Request):
                self._ask_users(inbound, frame, self._find(session_id)[1])
            else:
                self._update(frame)
        self._touch(inbound)
        if self.profile is not None and self.profile.ready:
            # Only now: the session is known here, so nothing the agent sends after it can be dropped.
            self.notify(inbound, SESSION_READY, session_params(agent_session_id))
        inbound.registered()

    # -- about a session; raises `LinkError`, `LimitExceeded` ----------------------------------------------

    def ask(self, inbound: AgentInbound, method: str, params: Raw, answer: Answer) -> RequestId:
        """Send a request; `answer` hears the outcome in its place among the incoming frames."""

        def answered(frame: Result | Failure | None) -> None:
            if frame is not None:
                inbound.frames.heard(frame, method=method)
            answer(frame)

        request_id = self.peer.ask(method, params, answered)
        inbound.frames.told(Request(request_id, method, params))
        return request_id

    async def call(self, inbound: AgentInbound, method: str, params: Raw) -> Result | Failure:
        """Send a request and wait for its answer."""
        inbound.frames.told(Notification(method, params))
        answer = await self.peer.call(method, params)
        inbound.frames.heard(answer, method=method)
        return answer

    def notify(self, inbound: AgentInbound, method: str, params: Raw) -> None:
        """Send a notification."""
        self.peer.notify(method, params)
        inbound.frames.told(Notification(method, params))

    def has(self, agent_session_id: AgentSessionId) -> bool:
        """Whether a session lives here under this id. Agents that count anew in each life give ids twice."""
        return agent_session_id in self._sessions

    def forget(self, agent_session_id: AgentSessionId, inbound: AgentInbound) -> None:
        """The session does not live here any more; another that has the same id stays."""
        if self._sessions.get(agent_session_id) is inbound:
            del self._sessions[agent_session_id]
            self._children = {name: each for name, each in self._children.items() if each is not inbound}

    def _know_children(self, inbound: AgentInbound, children: Iterable[str]) -> None:
        """These are the session's. A child stays whose it was first: an agent cannot give it to another session."""
        for each in children:
            self._children.setdefault(each, inbound)

    def _find(self, session_id: str) -> tuple[AgentInbound | None, str | None]:
        """Who hears of a session, and which child of its it is."""
        inbound = self._sessions.get(session_id)
        if inbound is not None:
            return inbound, None
        inbound = self._children.get(session_id)
        return inbound, None if inbound is None else session_id

    def end_now(self, *, kill: bool) -> bool:
        """Signal the agent's process. False if it has none: then only `aclose` ends it."""
        self.is_dismissed = True
        if kill:
            # It will not come back from this, so nobody is given this connection from now on.
            self.is_alive = False
            self.agent.kill()
        else:
            self.agent.terminate()
        return bool(self.agent.pid)

    def dismiss(self, why: str) -> None:
        """The agent is about to be let go: nobody is given this connection, and its sessions hear it now."""
        self.is_alive = False
        self.is_dismissed = True
        self._tell_gone(None, why)

    async def aclose(self, why: str = "agent_exited") -> None:
        """Let the agent go, in good order. Nobody is given this connection from now on."""
        self.is_alive = False
        self.is_dismissed = True
        self._why_gone = why
        await self.agent.aclose()

    # -- incoming ------------------------------------------------------------------------------------------

    def _incoming(self, frame: Request | Notification) -> None:
        if isinstance(frame, Request) and frame.method == INITIALIZE and self.profile is None:
            # No agent asks this: it is our own request.
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
        """Tell the clients whom it concerns; False if there are none."""
        named = peek_session_id(frame.params)
        everybody = [(session_id, each) for session_id, some in self.listeners.items() for each in some]
        if frame.method == ELICITATION_COMPLETE:
            # It names no session: only who was asked knows the elicitation.
            for session_id, each in everybody:
                self._tell_behind(session_id, each, partial(each.completed, frame))
            return bool(everybody)
        if not is_foreign(frame.method):
            return False
        if named is None:
            # A client hears it behind all that the agent said in any session of the client.
            sessions = Counter(id(each.client) for _, each in everybody)
            told = {id(each.client): partial(each.heard_by_all, frame) for _, each in everybody}
            tell = {client: _after(count, told[client]) for client, count in sessions.items()}
            for session_id, each in everybody:
                self._tell_behind(session_id, each, tell[id(each.client)])
            return bool(everybody)
        inbound, child = self._find(named)
        if inbound is not None and child is not None:
            named = inbound.agent_session_id or named
        listeners = self.listeners.get(AgentSessionId(named), [])
        for each in listeners:
            self._place(named, partial(each.heard, frame))
        return bool(listeners)

    def _tell_behind(self, session_id: str, listener: Listener, tell: Callable[[], None]) -> None:
        self._place(session_id, lambda after: listener.behind(after, tell))

    def _place(self, session_id: str, reached: Callable[[int], None]) -> None:
        inbound = self._sessions.get(session_id)
        if inbound is None:
            reached(0)
        else:
            inbound.place(reached)
            self._touch(inbound)

    def _update_the_long_way(self, frame: Notification) -> None:
        """One that the peer's short cut did not take: it is very long, or malformed."""
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
        inbound = self._sessions.get(said.session_id)
        if inbound is not None:
            self._touch(inbound)
            inbound.said(said.kind, said.updates, said.lines)
            return
        # Of a child, or of a session that may be about to exist.
        for each in said.updates:
            self._update(UpdateParams(said.session_id, each))

    def _update(self, params: UpdateParams) -> None:
        inbound, child = self._sessions.get(params.session_id), None
        if inbound is None:
            inbound, child = self._find(params.session_id)
        if inbound is None:
            self._hold(params.session_id, params)
            return
        self._touch(inbound)
        announced = inbound.updated(params.update, child, params.beside)
        if announced is not None:
            self._know_children(inbound, (announced,))

    def _request(self, frame: Request) -> None:
        session_id = peek_session_id(frame.params) or ""
        inbound, child = self._find(session_id)
        if not is_offered_permission_request(frame):
            self._refuse(inbound, frame, UNKNOWN_MODE)
        elif inbound is not None and frame.method in PERMISSION_METHODS:
            self._ask_users(inbound, frame, child)
        elif frame.method not in PERMISSION_METHODS:
            self._ask_client(session_id, frame)
        elif not self._hold(session_id, frame):
            self.peer.refuse(frame.id)

    def _refuse(self, inbound: AgentInbound | None, frame: Request, error: ErrorObject = UNKNOWN_METHOD) -> None:
        self.peer.refuse(frame.id, error)
        if inbound is not None:
            inbound.frames.told(Failure(frame.id, error))

    # -- requests for a client ----------------------------------------------------------------------------------

    def _ask_client(self, session_id: str, frame: Request) -> None:
        inbound = self._find(session_id)[0]
        asked = self._asked_of_all(frame) if not session_id else [] if inbound is None else [inbound]
        if not self._ask_next(asked, frame, set()):
            self._refuse(inbound, frame)

    def _asked_of_all(self, frame: Request) -> list[AgentInbound]:
        """The sessions whose clients may be asked what is about no session.

        That is for the agent as a whole, so nobody answers it for others: the clients must all be of one owner.
        """
        if not is_foreign(frame.method):
            return []
        asked = [each for each in self._sessions.values() if each.owners(frame.method)]
        owners = {owner for each in asked for owner in each.owners(frame.method)}
        return asked if len(owners) == 1 and None not in owners else []

    def _ask_next(self, asked: Sequence[AgentInbound], frame: Request, refused: set[object]) -> bool:
        """Ask the clients of the first of these sessions that has any. False if none has."""
        for number, inbound in enumerate(asked, 1):
            answered = partial(self._client_answered, inbound, asked[number:], frame, refused)
            place = None if peek_session_id(frame.params) else partial(self._place_behind_all, inbound)
            if inbound.asked_client(frame, answered, place, refused):
                self._asked[exact(frame.id)] = inbound
                self._touch(inbound)
                return True
        return False

    def _client_answered(
        self,
        inbound: AgentInbound,
        others: Sequence[AgentInbound],
        frame: Request,
        refused: set[object],
        outcome: Result | Failure,
    ) -> None:
        self._asked.pop(exact(frame.id), None)
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
            inbound.frames.told(outcome, method=frame.method)

    def _place_behind_all(self, inbound: AgentInbound, reached: Callable[[int], None]) -> None:
        """`reached` hears the place in this session, once all that the agent said in any of them can be seen."""
        everybody = [*self._sessions.values()]
        places: dict[AgentInbound, int] = {}

        def placed(each: AgentInbound, after: int) -> None:
            places[each] = after
            if len(places) == len(everybody):
                reached(places[inbound])

        for each in everybody:
            each.place(partial(placed, each))
            self._touch(each)

    def _ask_users(self, inbound: AgentInbound, frame: Request, child: str | None) -> None:
        self._asked[exact(frame.id)] = inbound
        inbound.asked_users(frame, child)
        self._touch(inbound)

    def answer(self, request_id: RequestId, answer: Raw) -> None:
        """Answer a permission request, unless the agent has stopped waiting for it."""
        inbound = self._asked.pop(exact(request_id), None)
        if self.peer.has_asked(request_id):
            self.peer.answer(request_id, answer)
            if inbound is not None:
                inbound.frames.told(Result(request_id, answer))

    def _cancel_request(self, frame: Notification) -> None:
        request_id = read_cancel_request(frame.params)
        if request_id is None:
            return
        inbound = self._asked.get(exact(request_id))
        if inbound is not None:
            inbound.withdrew(request_id)

    def _hold(self, session_id: str, frame: Request | UpdateParams) -> bool:
        """Keep a frame of a session that may be about to exist. False, and counted, if it cannot be one."""
        if not self._openings or len(self._held) >= self.limits.agent_inputs:
            self.strays["unknown_session"] += 1
            return False
        self._held.append((session_id, frame))
        return True

    def _touch(self, inbound: AgentInbound) -> None:
        self._touched[id(inbound)] = inbound

    async def _settled(self) -> None:
        """Between bursts: wait for room where this one went, so that a full inbox holds the agent back."""
        if self.profile is None:
            self._judge()
        touched, self._touched = self._touched, {}
        for inbound in touched.values():
            inbound.frames.cut()
            await inbound.room()


def _after(count: int, act: Callable[[], None]) -> Callable[[], None]:
    """What to call so many times for one call of `act`."""
    left = count

    def once() -> None:
        nonlocal left
        left -= 1
        if not left:
            act()

    return once
