"""The agents of a node for clients and operators.

`NodeAgents` works wherever the session is. `LocalAgents` has the same operations for the sessions of this node: it
loads the session if needed. Turns are not changed here: those go through the session's inbox.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol, TypeVar

import anyio
from msgspec import Raw

from turnwire.clock import Clock
from turnwire.errors import LocalProtocolError, RemoteProtocolError, SessionClosed
from turnwire.hosting.agent_connection import Listener
from turnwire.hosting.agent_pool import AgentPool, AgentPools, Sharing
from turnwire.hosting.client_requests import Provider
from turnwire.hosting.hosted_session import HostedSession
from turnwire.ids import AgentName, AgentSessionId, ClientId, SessionId
from turnwire.limits import Limits
from turnwire.projections.dialect import NEWEST_VERSION, AgentProfile
from turnwire.runtime.evidence import Explanation, Seen, explain
from turnwire.runtime.session import Session
from turnwire.runtime.session_owner import End, SessionOwner
from turnwire.session.background import still_running
from turnwire.session.state import Phase
from turnwire.wire.jsonrpc import Failure, Result, raw
from turnwire.wire.methods import AUTH_LOGOUT, LOGOUT

T = TypeVar("T")

NO_SESSION = SessionId("")
"""The key of a process that serves no session."""


class AtOwner(Protocol):
    """Runs operations at the owner of a session (`Node`)."""

    async def at_owner(
        self, session_id: SessionId, operation: Callable[[SessionOwner], Awaitable[T]], *, repeatable: bool
    ) -> T: ...

    async def lasting(
        self, session_id: SessionId, operation: Callable[[SessionOwner], Awaitable[End | None]]
    ) -> End | None: ...


class NodeAgents:
    """The agents of a node. The operations of `SessionOwner` are documented there."""

    def __init__(self, sessions: AtOwner, pools: AgentPools) -> None:
        self._sessions = sessions
        self._pools = pools

    def hosted(self) -> list[AgentPool]:
        """Return the agents that sessions can be created for, the default one first."""
        return self._pools.hosted()

    @property
    def has_shared(self) -> bool:
        """True if a process of any agent may serve several sessions, whose users need not know of each other."""
        return any(each.agent.policy.sharing is Sharing.SHARED for each in self._pools.hosted())

    def named(self, name: AgentName | None) -> AgentPool:
        """Return the agent of that name; `None` is the default one. Raises `UnknownAgent`."""
        return self._pools.named(name)

    def name_of(self, recorded: AgentName | None) -> AgentName:
        """Return the name of a session's agent."""
        return self._pools.of(recorded).name

    async def profile(self, name: AgentName | None = None) -> AgentProfile:
        """Return an agent's own description; it is started if it has not run yet. `None` names the default one.

        Raises `AgentError`, `LinkError`, `RemoteProtocolError`, `LimitExceeded` if no agent is available.
        """
        pool = self._pools.of(name)
        if pool.profile is None:
            await pool.connection(NO_SESSION)
            # The profile is cached. Otherwise an agent that serves only one session would run on without one.
            pool.release(NO_SESSION)
        assert pool.profile is not None, "a connection has shaken hands"
        return pool.profile

    async def logout(self, name: AgentName | None = None) -> None:
        """Log out at an agent. Raises as `authenticate` does."""
        method = AUTH_LOGOUT if (await self.profile(name)).version == NEWEST_VERSION else LOGOUT
        answer = await self.call(None, method, {}, name=name)
        if isinstance(answer, Failure):
            raise RemoteProtocolError("the agent refused to log out", jsonrpc=answer.error.code)

    # -- operations on a session's agent, at its owner; or on an agent without a session -------------------------

    async def explain(self, session_id: SessionId, *, for_owner: bool = True) -> Explanation:
        return await self._sessions.at_owner(
            session_id, lambda owner: owner.explain(session_id, for_owner=for_owner), repeatable=True
        )

    async def authenticate(
        self, method_id: str, *, name: AgentName | None = None, session_id: SessionId | None = None
    ) -> None:
        if session_id is not None:
            named = session_id
            await self._sessions.at_owner(
                named, lambda owner: owner.authenticate(named, method_id), repeatable=False
            )
            return
        pool = self._pools.of(name)
        connection = await pool.connection(NO_SESSION)
        try:
            await connection.authenticate(method_id)
        finally:
            # The agent stores its login where its later processes find it, or not at all.
            pool.release(NO_SESSION)

    async def configure(self, session_id: SessionId, method: str, params: dict[str, object]) -> Raw:
        return await self._sessions.at_owner(
            session_id, lambda owner: owner.configure(session_id, method, params), repeatable=True
        )

    async def wake(self, session_id: SessionId) -> None:
        await self._sessions.at_owner(session_id, lambda owner: owner.wake(session_id), repeatable=True)

    async def call(
        self,
        session_id: SessionId | None,
        method: str,
        params: dict[str, Raw],
        *,
        name: AgentName | None = None,
    ) -> Result | Failure:
        if session_id is None:
            return await (await self._pools.of(name).connection(NO_SESSION)).peer.call(method, raw(params))
        named = session_id
        return await self._sessions.at_owner(
            named, lambda owner: owner.call(named, method, params), repeatable=False
        )

    async def notify(
        self,
        session_id: SessionId | None,
        method: str,
        params: dict[str, Raw],
        *,
        name: AgentName | None = None,
    ) -> None:
        if session_id is None:
            (await self._pools.of(name).connection(NO_SESSION)).peer.notify(method, raw(params))
            return
        named = session_id
        await self._sessions.at_owner(named, lambda owner: owner.notify(named, method, params), repeatable=False)

    async def offer(
        self,
        session_id: SessionId,
        client_id: ClientId,
        provider: Provider,
        *,
        client: object = None,
        owner: str | None = None,
    ) -> End:
        end = await self._sessions.lasting(
            session_id, lambda at: at.offer(session_id, client_id, provider, client=client, owner=owner)
        )
        assert end is not None, "an offer can be retracted"
        return end

    @asynccontextmanager
    async def offering(
        self, session_id: SessionId, client_id: ClientId, provider: Provider
    ) -> AsyncGenerator[None]:
        """Let an attached client serve requests of the session's agent while the context is open."""
        retract = await self.offer(session_id, client_id, provider)
        try:
            yield
        finally:
            retract()

    async def listen(self, session_id: SessionId, listener: Listener) -> End | None:
        return await self._sessions.lasting(session_id, lambda owner: owner.listen(session_id, listener))


Find = Callable[[SessionId], Awaitable[tuple[Session, HostedSession]]]


# -- the agents of this node's sessions ----------------------------------------------------------------------


class LocalAgents:
    """The agent half of `SessionOwner`, for the sessions of this node."""

    def __init__(self, find: Find, clock: Clock, limits: Limits) -> None:
        self._find = find
        self._clock = clock
        self._limits = limits

    async def explain(self, session_id: SessionId, *, for_owner: bool) -> Explanation:
        session, hosted = await self._find(session_id)
        quiet_s = self._clock.monotonic() - session.busy_at
        connection, turn = hosted.connection, session.state.turn
        answered = turn is not None and hosted.has_answered(turn.prompt_id)
        seen = Seen(
            answered,
            hosted.requests.open,
            hosted.frames,
            hosted.pool.last_words(session_id, for_owner=for_owner),
            still_running(session.state.work, self._clock.now_ms()),
            waits_for=hosted.pool.waits_for(session_id),
            reads_lines=for_owner or (connection is not None and not connection.is_shared),
        )
        return explain(session.state, connection, seen, quiet_s, self._limits.suspect_after_s)

    async def authenticate(self, session_id: SessionId, method_id: str) -> None:
        connection = await (await self._find(session_id))[1].pool.connection(session_id)
        await connection.authenticate(method_id)

    async def configure(self, session_id: SessionId, method: str, params: dict[str, object]) -> Raw:
        session, hosted = await self._find(session_id)
        if session.state.agent is None or hosted.agent_session_id is None:
            raise LocalProtocolError("no agent serves this session now; prompt it first", session_id=session_id)
        answer = await hosted.call(method, params)
        if isinstance(answer, Failure):
            raise RemoteProtocolError("the agent refused the setting", jsonrpc=answer.error.code)
        return answer.result

    async def offer(
        self, session_id: SessionId, client_id: ClientId, provider: Provider, *, client: object, owner: str | None
    ) -> End:
        _, hosted = await self._find(session_id)
        hosted.requests.offer(client_id, provider, client=client, owner=owner)
        return partial(hosted.requests.retract, client_id)

    async def listen(self, session_id: SessionId, listener: Listener) -> End | None:
        session, hosted = await self._find(session_id)
        connection, agent = hosted.connection, session.state.agent
        # A session that is still being opened is not in the log and has no id that a message could name.
        if connection is None or agent is None:
            return None
        listeners = connection.listeners
        listeners.setdefault(agent.agent_session_id, []).append(listener)
        return partial(_listen_no_more, listeners, agent.agent_session_id, listener)

    async def wake(self, session_id: SessionId) -> None:
        session, hosted = await self._find(session_id)
        if session.state.phase is Phase.CLOSED:
            raise SessionClosed("the session is closed", session_id=session_id)
        if not hosted.has_agent:
            hosted.open()
        with anyio.move_on_after(self._limits.opening_s):
            # There is no await between reading the state and reading the head to wait for, so no event is missed.
            while hosted.has_agent and hosted.agent_session_id is None:
                await session.tail.wait(session.tail.head)
        if hosted.agent_session_id is None:
            raise LocalProtocolError("no agent takes this session now; try again", session_id=session_id)

    async def call(self, session_id: SessionId, method: str, params: dict[str, Raw]) -> Result | Failure:
        return await (await self._opened(session_id)).call(method, params)

    async def notify(self, session_id: SessionId, method: str, params: dict[str, Raw]) -> None:
        (await self._opened(session_id)).notify(method, params)

    async def _opened(self, session_id: SessionId) -> HostedSession:
        await self.wake(session_id)
        return (await self._find(session_id))[1]


def _listen_no_more(
    listeners: dict[AgentSessionId, list[Listener]], named: AgentSessionId, listener: Listener
) -> None:
    listeners[named].remove(listener)
    if not listeners[named]:
        del listeners[named]
