"""The agents that serve a node's sessions, by name: started when first needed, shared or one per session, let go
when idle.

A connection that is given has shaken hands. The same agent is never started twice at once, and not at all while
the breaker says that it only dies. A connection that broke is forgotten, and the next session that needs an agent
gets a new one. Agents of different names share nothing but the limit on how many run.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import anyio
from anyio.abc import TaskGroup

from turnwire.core.dialect import NEWEST_VERSION, AgentProfile
from turnwire.errors import AgentLaunchFailed, AgentUnavailable, LimitExceeded, TurnwireError, UnknownAgent
from turnwire.ids import UNNAMED, AgentName, SessionId
from turnwire.limits import Limits
from turnwire.link.process import Exit
from turnwire.runtime.agent_connection import AgentConnection
from turnwire.runtime.clock import Clock
from turnwire.runtime.source import AgentHandle, AgentSource

logger = logging.getLogger(__name__)


DOUBLINGS = 32
"""Beyond this the wait is the longest one anyway."""


class Sharing(StrEnum):
    """How many sessions one agent process serves."""

    SHARED = "shared"
    """All of them."""
    SESSION = "session"
    """One each: more memory, but one agent's crash is one session's."""


@dataclass(frozen=True, kw_only=True)
class AgentPolicy:
    """What an operator decides about agents."""

    sharing: Sharing = Sharing.SHARED
    services: bool = True
    """Whether the daemon itself serves files and terminals to agents whose clients do not."""
    newest_protocol: int = NEWEST_VERSION
    """The version of ACP that agents are asked for first."""
    confidential: bool = False
    """Whether sessions have users who must not know of each other: then what an agent of several sessions printed
    is told to none of them."""
    holds_after_restart: bool = False
    """Whether prompts that a restart finds in a queue wait until somebody releases it."""


@dataclass(frozen=True, kw_only=True)
class HostedAgent:
    """One of the agents that a node hosts."""

    name: AgentName = UNNAMED
    source: AgentSource
    policy: AgentPolicy = field(default_factory=AgentPolicy)
    label: str | None = None
    """What people read; the name if there is none."""
    icon: str | None = None
    """Where its picture is."""
    missing: str | None = None
    """Why it cannot be started at all, and what to do; its source says the same."""


class Availability(StrEnum):
    """Where an agent stands."""

    NOT_STARTED = "not_started"
    """Nobody has needed it yet, or not for a while."""
    STARTING = "starting"
    RUNNING = "running"
    UNAVAILABLE = "unavailable"
    """It does not come up, and is not tried again yet."""


class MissingSource:
    """The source of an agent that cannot be had, and says why."""

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
        """Those that sessions can be made for, the default one first."""
        return [self._pools[name] for name in self._hosted]

    def of(self, name: AgentName | None) -> AgentPool:
        """The agent of a session; none is the default one. One that is not hosted any more cannot be started."""
        name = name or self._default
        if name not in self._pools:
            why = (
                f"the session's agent is {name!r}, and none of that name is hosted any more; give it its"
                f" [agents.{name}] back, or fork the session to another agent"
            )
            self._pools[name] = self._pool(HostedAgent(name=name, source=MissingSource(why), missing=why))
        return self._pools[name]

    def named(self, name: AgentName | None) -> AgentPool:
        """The agent that somebody asks for, `default` being the default one. Raises `UnknownAgent`."""
        if name == UNNAMED:
            name = None
        if name is not None and name not in self._hosted:
            known = ", ".join(self._hosted)
            raise UnknownAgent(f"there is no agent of this name here; it hosts {known}", agents=known)
        return self.of(name)

    async def recycle(self) -> None:
        """Let agents go that nobody has used for a while, if they can bring their sessions back.

        Which these are is decided at once, before anything is waited for: what says that an agent is used is not
        true any more after a wait, and a turn that had begun meanwhile would end with its agent.
        """
        idle = [connection for each in self._pools.values() for connection in each.dismiss_idle()]
        async with anyio.create_task_group() as closing:
            for connection in idle:
                closing.start_soon(connection.aclose, RECYCLED)

    def kill(self) -> None:
        """End all agents now, for good: none is started any more."""
        for each in self._pools.values():
            each.kill()

    async def aclose(self) -> None:
        """Let all agents go. Their sessions hear that they are gone."""
        async with anyio.create_task_group() as closing:
            for each in self._pools.values():
                closing.start_soon(each.aclose)


_ALL = SessionId("")
RECYCLED = "agent_recycled"
_OVER = "this node was cut off and starts no agent any more; ask again, another one answers"


class _Place:
    """Where the agent of one session, or of all, is."""

    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.connection: AgentConnection | None = None
        self.is_starting = False
        self.starting: AgentConnection | None = None
        """The one that is to shake hands."""
        self.ended: Exit | None = None
        """How the newest agent ended that never came to serve."""
        self.last_words: str | None = None
        """What the newest agent printed last that did serve, and whether it was for one session alone."""
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
        """`running`: how many run in all, also of other agents."""
        self.agent = agent
        self.profile: AgentProfile | None = None
        """What the newest that was there said of itself; none before the first."""
        self._source = agent.source
        self._tasks = tasks
        self._clock = clock
        self._limits = limits
        self._policy = agent.policy
        self._all_running = running or (lambda: self.running)
        self._places: dict[SessionId, _Place] = {}
        self._breaker = Breaker(clock, limits)
        self._keeps_idle = False
        self._is_over = False
        """No agent may be started any more."""

    async def connection(self, session_id: SessionId) -> AgentConnection:
        """The connection that a session uses now.

        Raises:
            AgentUnavailable: it keeps failing, and is not tried again yet.
            AgentLaunchFailed, LinkError, RemoteProtocolError: this try failed.
            LimitExceeded: too many agents run.
        """
        place = self._places.setdefault(self._key(session_id), _Place())
        async with place.lock:
            if place.connection is not None and not place.connection.is_alive:
                self._bury(place, place.connection)
            if place.connection is None:
                place.connection = await self._start(place)
            # Idle time begins when it is there, however long its start took.
            place.used_at = self._clock.monotonic()
            return place.connection

    def _key(self, session_id: SessionId) -> SessionId:
        return session_id if self._policy.sharing is Sharing.SESSION else _ALL

    def used(self, session_id: SessionId) -> None:
        """A session works with its agent: it is not idle."""
        place = self._places.get(self._key(session_id))
        if place is not None:
            place.used_at = self._clock.monotonic()

    def keep_idle(self) -> None:
        """An agent did not bring a session back although it offers that: none is let go any more that has one."""
        self._keeps_idle = True

    def last_exit(self, session_id: SessionId) -> Exit | None:
        """How the newest agent for the session ended, if it never came to serve."""
        place = self._places.get(self._key(session_id))
        return None if place is None else place.ended

    def last_words(self, session_id: SessionId, *, for_owner: bool) -> str | None:
        """What the last agent of the session that ended had printed; none if it is not for who asks."""
        place = self._places.get(self._key(session_id))
        return None if place is None or (place.was_shared and not for_owner) else place.last_words

    def release(self, session_id: SessionId) -> None:
        """The session is over. An agent of its own goes with it."""
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
        # How another one ended says nothing of this one.
        place.ended = None
        try:
            connection = AgentConnection(
                await self._connect(),
                self._limits,
                services=self._policy.services,
                newest=self._policy.newest_protocol,
                confidential=self._policy.confidential,
            )
            place.started_at = self._clock.monotonic()
            place.starting = connection
            self._tasks.start_soon(self._serve, place, connection)
            await self._shake_hands(connection, place)
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
        """The name in a session's log. One without a name is the default one, whichever that is later."""
        return None if self.name == UNNAMED else self.name

    @property
    def running(self) -> int:
        """How many run, or are about to."""
        return sum(1 for each in self._places.values() if each.is_starting or each.connection is not None)

    @property
    def availability(self) -> Availability:
        """Where the agent stands now."""
        if self.why_not is not None:
            return Availability.UNAVAILABLE
        if any(each.connection is not None for each in self._places.values()):
            return Availability.RUNNING
        return Availability.STARTING if self.running else Availability.NOT_STARTED

    @property
    def why_not(self) -> str | None:
        """Why it is not available."""
        return self.agent.missing or self._breaker.refusal

    @property
    def slow_start(self) -> str | None:
        """What is waited for, if it has been started for a while and is not there yet."""
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
            # A sleep may end a hair too early, so that it was long enough is not asked again.
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
        """What the session's agent is waited for, if it has been for a while and the agent is not there yet."""
        place = self._places.get(self._key(session_id))
        return None if place is None else self._waits(place)

    async def _serve(self, place: _Place, connection: AgentConnection) -> None:
        try:
            await connection.run()
        finally:
            ended = connection.ended
            place.last_words = None if ended is None else ended.stderr_tail or None
            place.was_shared = connection.is_shared
            # Its sessions have heard of it, so somebody may have come for the next one already.
            if place.connection is connection:
                self._bury(place, connection)

    def _bury(self, place: _Place, connection: AgentConnection) -> None:
        """An agent that has served is gone: count it, once, before the next is started."""
        place.connection = None
        if connection.is_dismissed or self._clock.monotonic() - place.started_at >= self._limits.agent_young_s:
            self._breaker.succeeded()
        else:
            self._breaker.failed("the agent dies soon after it is started")

    def dismiss_idle(self) -> list[AgentConnection]:
        """Use no more what nobody has used for a while, if it can bring its sessions back; it is to be closed."""
        now = self._clock.monotonic()
        dismissed: list[AgentConnection] = []
        for place in self._places.values():
            connection = place.connection
            if connection is None or connection.profile is None or now - place.used_at < self._limits.agent_idle_s:
                continue
            comes_back = (connection.profile.load or connection.profile.resume) and not self._keeps_idle
            if not connection.is_busy and (comes_back or not connection.sessions):
                # Before it is closed, so that a prompt that comes while it ends finds a new one.
                connection.dismiss(RECYCLED)
                dismissed.append(connection)
        return dismissed

    def kill(self) -> None:
        """End every process with its tree, and hang up on agents that run elsewhere. None is started any more."""
        self._is_over = True
        for place in self._places.values():
            for connection in (place.connection, place.starting):
                if connection is not None and not connection.end_now(kill=True):
                    self._tasks.start_soon(connection.aclose)

    async def aclose(self) -> None:
        """Let all agents go. Their sessions hear that they are gone."""
        async with anyio.create_task_group() as closing:
            for place in self._places.values():
                if place.connection is not None:
                    closing.start_soon(place.connection.aclose)


class Breaker:
    """Keeps an agent that only dies from being started again at once. It waits for nobody: it only says no.

    The wait doubles with every failure in a row and ends with the first success. A command that cannot be started
    at all is remembered with its reason, so that it is reported once and not tried for every prompt.
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
        """Why the agent is not to be started now, and for how long; none if it is."""
        left = self._left_s
        return f"{self._reason}; it is not started again for {math.ceil(left)} s" if left > 0 else None

    def check(self) -> None:
        """Raises `AgentUnavailable` while the agent is not to be started."""
        if (refusal := self.refusal) is not None:
            raise AgentUnavailable(refusal, retry_after_s=round(self._left_s, 1))

    def failed(self, reason: str, *, definite: bool = False) -> bool:
        """A start failed, or the agent died young. True if it is news: the first of its kind in a row."""
        is_news = not self._failures or reason != self._reason
        self._failures += 1
        self._reason = reason
        tolerated = 0 if definite else self._limits.breaker_failures
        if self._failures > tolerated:
            wait = self._limits.breaker_first_s * 2 ** min(self._failures - tolerated - 1, DOUBLINGS)
            self._closed_until = self._clock.monotonic() + min(wait, self._limits.breaker_most_s)
        return is_news

    def succeeded(self) -> None:
        """The agent works."""
        self._failures = 0
        self._closed_until = 0.0
