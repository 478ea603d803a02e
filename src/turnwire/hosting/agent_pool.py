"""The agents that serve a node's sessions, by name. An agent is started on first use, shared or one per session,
and ended when idle.

A connection that the pool returns has completed its handshake. The same agent is never started twice at once, and
not at all while the breaker is open because it keeps dying. A broken connection is dropped, and the next session
that needs an agent gets a new one. Agents of different names share nothing but the limit on running processes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct, json

from turnwire.clock import Clock
from turnwire.errors import AgentLaunchFailed, AgentUnavailable, LimitExceeded, TurnwireError, UnknownAgent
from turnwire.hosting.agent_connection import AgentConnection
from turnwire.hosting.held import HeldProcess, Holders
from turnwire.hosting.process import Exit
from turnwire.hosting.source import AgentHandle, AgentSource, ProcessSource
from turnwire.ids import UNNAMED, AgentName, SessionId
from turnwire.limits import Limits
from turnwire.projections.dialect import NEWEST_VERSION, AgentProfile

logger = logging.getLogger(__name__)


DOUBLINGS = 32
"""Maximum number of doublings; from there on the wait is the longest one anyway."""


class Sharing(StrEnum):
    """The number of sessions that one agent process serves."""

    SHARED = "shared"
    """All sessions."""
    SESSION = "session"
    """One each: more memory, but one agent's crash affects one session."""


@dataclass(frozen=True, kw_only=True)
class AgentPolicy:
    """The operator's settings for an agent."""

    sharing: Sharing = Sharing.SHARED
    services: bool = True
    """True if the daemon itself serves files and terminals to agents whose clients do not."""
    newest_protocol: int = NEWEST_VERSION
    """The version of ACP that is requested from agents first."""
    confidential: bool = False
    """True if sessions have users who must not know of each other. Then no session receives the output of an agent
    that served several.
    """
    holds_after_restart: bool = False
    """True if prompts that are queued at a restart wait until a client releases the queue."""


@dataclass(frozen=True, kw_only=True)
class HostedAgent:
    """One of the agents that a node hosts."""

    name: AgentName = UNNAMED
    source: AgentSource
    policy: AgentPolicy = field(default_factory=AgentPolicy)
    label: str | None = None
    """The display name; by default the name."""
    icon: str | None = None
    """The location of its icon."""
    missing: str | None = None
    """The reason why it cannot be started at all, and the remedy; its source raises the same."""


class Availability(StrEnum):
    """The state of an agent."""

    NOT_STARTED = "not_started"
    """No session has needed it yet, or not for a while."""
    STARTING = "starting"
    RUNNING = "running"
    UNAVAILABLE = "unavailable"
    """It fails to start, and the next try is not due yet."""


class MissingSource:
    """The source of an unavailable agent. It raises the reason."""

    def __init__(self, why: str) -> None:
        self._why = why

    async def connect(self) -> AgentHandle:
        raise AgentLaunchFailed(self._why, definite=True)


class AgentPools:
    """The agents that a node hosts, by name. The first is the default one."""

    def __init__(self, hosted: Sequence[HostedAgent], tasks: TaskGroup, clock: Clock, limits: Limits) -> None:
        self._tasks = tasks
        self._clock = clock
        self._limits = limits
        self._default = hosted[0].name
        self._pools = {each.name: self._pool(each) for each in hosted}
        self._hosted = tuple(self._pools)

    def _pool(self, agent: HostedAgent) -> AgentPool:
        return AgentPool(agent, self._tasks, self._clock, self._limits, running=self._running)

    def _running(self) -> int:
        return sum(each.running for each in self._pools.values())

    def hosted(self) -> list[AgentPool]:
        """Return the agents that accept new sessions, the default one first."""
        return [self._pools[name] for name in self._hosted]

    def of(self, name: AgentName | None) -> AgentPool:
        """Return the agent of a session; `None` is the default one. An agent that is not hosted any more cannot
        start.
        """
        name = name or self._default
        if name not in self._pools:
            why = (
                f"the session's agent is {name!r}, and none of that name is hosted any more; give it its"
                f" [agents.{name}] back, or fork the session to another agent"
            )
            self._pools[name] = self._pool(HostedAgent(name=name, source=MissingSource(why), missing=why))
        return self._pools[name]

    def named(self, name: AgentName | None) -> AgentPool:
        """Return the requested agent; `default` is the default one. Raises `UnknownAgent`."""
        if name == UNNAMED:
            name = None
        if name is not None and name not in self._hosted:
            known = ", ".join(self._hosted)
            raise UnknownAgent(f"there is no agent of this name here; it hosts {known}", agents=known)
        return self.of(name)

    async def adopt(self, holders: Holders) -> list[tuple[AgentConnection, AgentPool]]:
        """Return connections to the agents that have outlived the previous process; end all others of them.

        Nothing is received from an agent before `serve`.
        """
        hidden = [value for each in self._pools.values() for value in each.secrets]
        adopted: list[tuple[AgentConnection, AgentPool]] = []
        for agent in await holders.find(self._limits, hidden):
            note = agent.held.notes.get(AGENT)
            found = None if note is None else _agent_note(note)
            pool = None if found is None else self._pools.get(found.name)
            connection = None if found is None or pool is None else pool.adopt(agent, found)
            if connection is None or pool is None:
                agent.kill()
                self._tasks.start_soon(agent.aclose)
            else:
                adopted.append((connection, pool))
        return adopted

    def leave(self) -> None:
        """Leave the agents that can outlive this process to the next one."""
        for each in self._pools.values():
            each.leave()

    async def recycle(self) -> None:
        """End agents that have not been used for a while and can restore their sessions.

        The choice is made at once, before any await: after one, the record of use may be outdated, and a turn that
        began meanwhile would end with its agent.
        """
        idle = [connection for each in self._pools.values() for connection in each.dismiss_idle()]
        async with anyio.create_task_group() as closing:
            for connection in idle:
                closing.start_soon(connection.aclose, RECYCLED)

    def kill(self) -> None:
        """End all agents now, permanently: no agent can be started any more."""
        for each in self._pools.values():
            each.kill()

    async def aclose(self) -> None:
        """End all agents gracefully. Their sessions are notified."""
        async with anyio.create_task_group() as closing:
            for each in self._pools.values():
                closing.start_soon(each.aclose)


AGENT = "agent"
"""The note with the place of an agent in its pool."""


class _AgentNote(Struct, frozen=True):
    name: AgentName
    session: SessionId
    """The session that it serves; empty for all."""
    program: str


_agent_note = json.Decoder(_AgentNote).decode

_ALL = SessionId("")
RECYCLED = "agent_recycled"
_OVER = "this node was cut off and starts no agent any more; ask again, another one answers"


class _Place:
    """The slot for the agent of one session, or of all."""

    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.connection: AgentConnection | None = None
        self.is_starting = False
        self.starting: AgentConnection | None = None
        """The connection whose handshake is in progress."""
        self.ended: Exit | None = None
        """The exit of the newest agent that ended before its handshake."""
        self.last_words: str | None = None
        """The last output of the newest agent that completed its handshake; `was_shared` if it served several
        sessions.
        """
        self.was_shared = False
        self.started_at = 0.0
        self.used_at = 0.0


class AgentPool:
    """The running processes of one agent."""

    def __init__(
        self,
        agent: HostedAgent,
        tasks: TaskGroup,
        clock: Clock,
        limits: Limits,
        *,
        running: Callable[[], int] | None = None,
    ) -> None:
        """`running`: returns the number of running processes of all agents."""
        self.agent = agent
        self.profile: AgentProfile | None = None
        """The profile that the newest agent reported; `None` before the first."""
        self._source = agent.source
        self._tasks = tasks
        self._clock = clock
        self._limits = limits
        self._policy = agent.policy
        self._all_running = running or (lambda: self.running)
        self._places: dict[SessionId, _Place] = {}
        self._breaker = Breaker(clock, limits)
        self._keeps_idle = False
        self.replays_late = False
        """True once the agent was seen to replay a history after it had answered that the session is open."""
        self._is_over = False
        """True if no agent may be started any more."""

    async def connection(self, session_id: SessionId) -> AgentConnection:
        """Return the connection that a session uses now; start the agent if needed.

        Raises:
            AgentUnavailable: it keeps failing, and the next try is not due yet.
            AgentLaunchFailed, LinkError, RemoteProtocolError: this try failed.
            LimitExceeded: too many agents run.
        """
        place = self._places.setdefault(self._key(session_id), _Place())
        async with place.lock:
            if place.connection is not None and not place.connection.is_alive:
                self._bury(place, place.connection)
            if place.connection is None:
                place.connection = await self._start(place)
            # Idle time begins when the agent is ready, however long its start lasted.
            place.used_at = self._clock.monotonic()
            return place.connection

    @property
    def secrets(self) -> Sequence[bytes]:
        """Values of its agent's environment that must not appear in the agent's output."""
        return self._source.secrets if isinstance(self._source, ProcessSource) else ()

    def adopt(self, agent: HeldProcess, note: _AgentNote) -> AgentConnection | None:
        """Return the connection to an agent that has outlived the previous process; `None` if it was not ready."""
        agent.program = note.program
        connection = self._connection_to(agent)
        place = self._places.setdefault(note.session, _Place())
        if place.connection is not None or not connection.continue_handshake():
            return None
        self.profile = connection.profile
        place.connection = connection
        place.started_at = place.used_at = self._clock.monotonic()
        return connection

    def serve(self, connection: AgentConnection) -> None:
        """Receive from an adopted agent from now on."""
        place = next(each for each in self._places.values() if each.connection is connection)
        self._tasks.start_soon(self._serve, place, connection)

    def leave(self) -> None:
        """Leave the agents that can outlive this process to the next one."""
        for place in self._places.values():
            if place.connection is not None and place.connection.leave():
                place.connection = None

    def _connection_to(self, agent: AgentHandle) -> AgentConnection:
        return AgentConnection(
            agent,
            self._limits,
            services=self._policy.services,
            newest=self._policy.newest_protocol,
            confidential=self._policy.confidential,
        )

    def _key(self, session_id: SessionId) -> SessionId:
        return session_id if self._policy.sharing is Sharing.SESSION else _ALL

    def used(self, session_id: SessionId) -> None:
        """Record that a session works with its agent, which is not idle then."""
        place = self._places.get(self._key(session_id))
        if place is not None:
            place.used_at = self._clock.monotonic()

    def keep_idle(self) -> None:
        """Stop ending idle agents that have sessions: one failed to restore a session although it offers that."""
        self._keeps_idle = True

    def last_exit(self, session_id: SessionId) -> Exit | None:
        """Return the exit of the session's newest agent, if it ended before its handshake."""
        place = self._places.get(self._key(session_id))
        return None if place is None else place.ended

    def last_words(self, session_id: SessionId, *, for_owner: bool) -> str | None:
        """Return the output of the session's last ended agent; `None` if the caller may not read it."""
        place = self._places.get(self._key(session_id))
        return None if place is None or (place.was_shared and not for_owner) else place.last_words

    def release(self, session_id: SessionId) -> None:
        """The session is over. End its agent if that serves no other session."""
        if self._policy.sharing is Sharing.SESSION and (place := self._places.pop(session_id, None)) is not None:
            self._tasks.start_soon(self._close, place)

    async def _close(self, place: _Place) -> None:
        async with place.lock:
            if place.connection is not None:
                await place.connection.aclose()

    async def _start(self, place: _Place) -> AgentConnection:
        if self._is_over:
            raise AgentUnavailable(_OVER)
        self._breaker.check()
        self._check_room()
        place.is_starting = True
        # The exit of another process is not the exit of this one.
        place.ended = None
        try:
            connection = self._connection_to(await self._connect())
            place.started_at = self._clock.monotonic()
            place.starting = connection
            self._tasks.start_soon(self._serve, place, connection)
            await self._shake_hands(connection, place)
            if connection.journal is not None:
                session_id = next(each for each, one in self._places.items() if one is place)
                note = _AgentNote(self.name, session_id, connection.agent.program)
                connection.journal.note(AGENT, json.encode(note))
            self.profile = connection.profile
        except TurnwireError as error:
            definite = isinstance(error, AgentLaunchFailed) and error.definite
            if self._breaker.failed(str(error), definite=definite):
                extra = {"event": "agent_not_started", "agent": self.name, "code": error.code}
                logger.error("no agent could be started: %s", error, extra=extra)
            raise
        finally:
            place.is_starting = False
            place.starting = None
        return connection

    async def _connect(self) -> AgentHandle:
        agent = await self._source.connect()
        if self._is_over:
            agent.kill()
            self._tasks.start_soon(agent.aclose)
            raise AgentUnavailable(_OVER)
        return agent

    @property
    def name(self) -> AgentName:
        return self.agent.name

    @property
    def recorded_name(self) -> AgentName | None:
        """The name in a session's log. `None` means the default agent, even if that changes later."""
        return None if self.name == UNNAMED else self.name

    @property
    def running(self) -> int:
        """The number of processes that run or are starting."""
        return sum(1 for each in self._places.values() if each.is_starting or each.connection is not None)

    @property
    def availability(self) -> Availability:
        """The agent's current state."""
        if self.why_not is not None:
            return Availability.UNAVAILABLE
        if any(each.connection is not None for each in self._places.values()):
            return Availability.RUNNING
        return Availability.STARTING if self.running else Availability.NOT_STARTED

    @property
    def why_not(self) -> str | None:
        """The reason why it is not available."""
        return self.agent.missing or self._breaker.refusal

    @property
    def slow_start(self) -> str | None:
        """A description of the wait for an agent that has been starting for a while; otherwise `None`."""
        return next((words for each in self._places.values() if (words := self._waits(each)) is not None), None)

    def _check_room(self) -> None:
        if self._all_running() >= self._limits.agent_processes:
            raise LimitExceeded("too many agents run; close a session or raise the limit", limit="agent_processes")

    async def _shake_hands(self, connection: AgentConnection, place: _Place) -> None:
        silence = anyio.CancelScope()
        self._tasks.start_soon(self._tell_silence, place, silence)
        try:
            await connection.handshake()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await connection.aclose()
            place.ended = connection.ended
            raise
        finally:
            silence.cancel()

    async def _tell_silence(self, place: _Place, silence: anyio.CancelScope) -> None:
        with silence:
            await self._clock.sleep(self._limits.initialize_silent_s)
            # A sleep may end slightly too early, so the elapsed time is not checked again.
            if place.starting is not None:
                words = place.starting.waits(self._since_s(place))
                logger.warning("%s", words, extra={"event": "agent_silent", "agent": self.name})

    def _waits(self, place: _Place) -> str | None:
        if place.starting is None or self._since_s(place) < self._limits.initialize_silent_s:
            return None
        return place.starting.waits(self._since_s(place))

    def _since_s(self, place: _Place) -> float:
        return self._clock.monotonic() - place.started_at

    def waits_for(self, session_id: SessionId) -> str | None:
        """Return the same for the session's agent."""
        place = self._places.get(self._key(session_id))
        return None if place is None else self._waits(place)

    async def _serve(self, place: _Place, connection: AgentConnection) -> None:
        try:
            await connection.run()
        finally:
            ended = connection.ended
            place.last_words = None if ended is None else ended.stderr_tail or None
            place.was_shared = connection.is_shared
            # Its sessions have been notified, so one of them may have requested the next connection already.
            if place.connection is connection:
                self._bury(place, connection)

    def _bury(self, place: _Place, connection: AgentConnection) -> None:
        """Record the end of an agent that has served, once, before the next is started."""
        place.connection = None
        if connection.is_dismissed or self._clock.monotonic() - place.started_at >= self._limits.agent_young_s:
            self._breaker.succeeded()
        else:
            self._breaker.failed("the agent dies soon after it is started")

    def dismiss_idle(self) -> list[AgentConnection]:
        """Retire idle connections whose agents can restore their sessions; return them for closing."""
        now = self._clock.monotonic()
        dismissed: list[AgentConnection] = []
        for place in self._places.values():
            connection = place.connection
            if connection is None or connection.profile is None or now - place.used_at < self._limits.agent_idle_s:
                continue
            comes_back = (connection.profile.load or connection.profile.resume) and not self._keeps_idle
            if not connection.is_busy and (comes_back or not connection.sessions):
                # Before it is closed, so that a prompt that arrives meanwhile gets a new one.
                connection.dismiss(RECYCLED)
                dismissed.append(connection)
        return dismissed

    def kill(self) -> None:
        """Kill every process with its tree, and disconnect from remote agents. No agent can be started any more."""
        self._is_over = True
        for place in self._places.values():
            for connection in (place.connection, place.starting):
                if connection is not None and not connection.end_now(kill=True):
                    self._tasks.start_soon(connection.aclose)

    async def aclose(self) -> None:
        """End all agents gracefully. Their sessions are notified."""
        async with anyio.create_task_group() as closing:
            for place in self._places.values():
                if place.connection is not None:
                    closing.start_soon(place.connection.aclose)


class Breaker:
    """A circuit breaker: it rejects starting an agent that keeps dying. It never waits.

    The wait doubles with every failure in a row and ends with the first success. A command that cannot be started
    at all is remembered with its reason, so that it is reported once and not retried for every prompt.
    """

    def __init__(self, clock: Clock, limits: Limits) -> None:
        self._clock = clock
        self._limits = limits
        self._failures = 0
        self._closed_until = 0.0
        self._reason = ""

    @property
    def _left_s(self) -> float:
        return self._closed_until - self._clock.monotonic()

    @property
    def refusal(self) -> str | None:
        """The reason and duration for which the agent may not be started; `None` if it may."""
        left = self._left_s
        return f"{self._reason}; it is not started again for {math.ceil(left)} s" if left > 0 else None

    def check(self) -> None:
        """Raise `AgentUnavailable` while the agent may not be started."""
        if (refusal := self.refusal) is not None:
            raise AgentUnavailable(refusal, retry_after_s=round(self._left_s, 1))

    def failed(self, reason: str, *, definite: bool = False) -> bool:
        """Record a failed start, or an agent's early death. Return true for the first failure of its kind
        in a row.
        """
        is_news = not self._failures or reason != self._reason
        self._failures += 1
        self._reason = reason
        tolerated = 0 if definite else self._limits.breaker_failures
        if self._failures > tolerated:
            wait = self._limits.breaker_first_s * 2 ** min(self._failures - tolerated - 1, DOUBLINGS)
            self._closed_until = self._clock.monotonic() + min(wait, self._limits.breaker_most_s)
        return is_news

    def succeeded(self) -> None:
        """Record that the agent works."""
        self._failures = 0
        self._closed_until = 0.0
