"""The agents of a node as clients and operators use them: why one is quiet, logging in, files for it, its settings.

The session is opened if need be. Turns are not touched here: those go through the session's inbox.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import anyio
from msgspec import Raw

from turnwire.core.background import still_running
from turnwire.core.dialect import NEWEST_VERSION, AgentProfile
from turnwire.core.state import Phase
from turnwire.errors import LocalProtocolError, RemoteProtocolError, SessionClosed
from turnwire.ids import AgentName, AgentSessionId, ClientId, SessionId
from turnwire.limits import Limits
from turnwire.runtime.agent_connection import Listener
from turnwire.runtime.agent_driver import AgentDriver
from turnwire.runtime.agent_pool import AgentPool, AgentPools, Sharing
from turnwire.runtime.agent_session import AgentSession
from turnwire.runtime.client_requests import Provider
from turnwire.runtime.clock import Clock
from turnwire.runtime.evidence import Explanation, Seen, explain
from turnwire.runtime.last_frames import LastFrames
from turnwire.runtime.session import Session
from turnwire.wire.jsonrpc import Failure, Result, raw
from turnwire.wire.methods import AUTH_LOGOUT, LOGOUT

Find = Callable[[SessionId], Awaitable[tuple[Session, AgentDriver]]]

NO_SESSION = SessionId("")
"""For what concerns the agent and no session of it."""


class NodeAgents:
    """The agents of a node's sessions, as clients and operators need them."""

    def __init__(self, find: Find, pools: AgentPools, clock: Clock, limits: Limits) -> None:
        self._find = find
        self._pools = pools
        self._clock = clock
        self._limits = limits

    def hosted(self) -> list[AgentPool]:
        """The agents that sessions can be made for, the default one first."""
        return self._pools.hosted()

    @property
    def has_shared(self) -> bool:
        """Whether a process of any of them may serve several sessions, whose users need not know of each other."""
        return any(each.agent.policy.sharing is Sharing.SHARED for each in self._pools.hosted())

    def named(self, name: AgentName | None) -> AgentPool:
        """The agent of that name; none is the default one. Raises `UnknownAgent`."""
        return self._pools.named(name)

    def name_of(self, recorded: AgentName | None) -> AgentName:
        """What the agent of a session is called."""
        return self._pools.of(recorded).name

    async def profile(self, name: AgentName | None = None) -> AgentProfile:
        """What an agent says of itself; none names the default one. One is started if none has been there yet.

        Raises `AgentError`, `LinkError`, `RemoteProtocolError`, `LimitExceeded` if none can be had.
        """
        pool = self._pools.of(name)
        if pool.profile is None:
            await pool.connection(NO_SESSION)
            # What it said stays. An agent that serves one session would otherwise run on for none.
            pool.release(NO_SESSION)
        assert pool.profile is not None, "a connection has shaken hands"
        return pool.profile

    async def explain(self, session_id: SessionId, *, for_owner: bool = True) -> Explanation:
        """Why the session stands where it stands, with the evidence. Raises `SessionNotFound`.

        Who does not own the node is not told what an agent printed that serves others too.
        """
        session, driver = await self._find(session_id)
        quiet_s = self._clock.monotonic() - session.busy_at
        agent_session, turn = driver.agent_session, session.state.turn
        answered = agent_session is not None and turn is not None and agent_session.has_answered(turn.prompt_id)
        connection = agent_session.connection if agent_session is not None else None
        seen = Seen(
            answered,
            driver.requests.open,
            agent_session.frames if agent_session is not None else LastFrames(),
            driver.pool.last_words(session_id, for_owner=for_owner),
            still_running(session.state.work, self._clock.now_ms(), self._limits.unlisted_work_s),
            waits_for=driver.pool.waits_for(session_id),
            reads_lines=for_owner or (connection is not None and not connection.is_shared),
        )
        return explain(session.state, connection, seen, quiet_s, self._limits.suspect_after_s)

    async def authenticate(
        self, method_id: str, *, name: AgentName | None = None, session_id: SessionId | None = None
    ) -> None:
        """Log in at an agent, or at that of a session, by one of its methods. Then what failed can be tried again.

        Raises `RemoteProtocolError` if the agent refuses, `AgentError`, `LinkError` if there is none.
        """
        pool = self._pools.of(name) if session_id is None else (await self._find(session_id))[1].pool
        connection = await pool.connection(session_id or NO_SESSION)
        try:
            await connection.authenticate(method_id)
        finally:
            if session_id is None:
                # What it learned by the login it keeps where its next processes find it, or not at all.
                pool.release(NO_SESSION)

    async def logout(self, name: AgentName | None = None) -> None:
        """Log out at an agent. Raises as `authenticate` does."""
        method = AUTH_LOGOUT if (await self.profile(name)).version == NEWEST_VERSION else LOGOUT
        answer = await self.call(None, method, {}, name=name)
        if isinstance(answer, Failure):
            raise RemoteProtocolError("the agent refused to log out", jsonrpc=answer.error.code)

    async def configure(self, session_id: SessionId, method: str, params: dict[str, object]) -> Raw:
        """A request about the session's settings, such as `session/set_mode`; gives the agent's result.

        Raises `LocalProtocolError` if no agent has the session now, `RemoteProtocolError` if the agent refuses,
        `LinkError` if it goes.
        """
        session, driver = await self._find(session_id)
        agent_session = driver.agent_session
        if session.state.agent is None or agent_session is None or not agent_session.is_open:
            raise LocalProtocolError("no agent serves this session now; prompt it first", session_id=session_id)
        answer = await agent_session.call(method, params)
        if isinstance(answer, Failure):
            raise RemoteProtocolError("the agent refused the setting", jsonrpc=answer.error.code)
        return answer.result

    @asynccontextmanager
    async def offering(
        self, session_id: SessionId, client_id: ClientId, provider: Provider
    ) -> AsyncGenerator[None]:
        """Meanwhile an attached client does what the session's agent asks of clients."""
        retract = await self.offer(session_id, client_id, provider)
        try:
            yield
        finally:
            retract()

    async def offer(
        self,
        session_id: SessionId,
        client_id: ClientId,
        provider: Provider,
        *,
        client: object = None,
        owner: str | None = None,
    ) -> Callable[[], None]:
        """From now on an attached client does what the session's agent asks of clients; gives what ends that.

        `client` and `owner` as in `ClientRequests.offer`. What is left goes on.
        """
        _, driver = await self._find(session_id)
        driver.requests.offer(client_id, provider, client=client, owner=owner)
        return partial(driver.requests.retract, client_id)

    async def listen(self, session_id: SessionId, listener: Listener) -> Callable[[], None] | None:
        """From now on a client hears what the session's agent says beside updates; gives what ends that.

        None if there is no agent now. A new agent is another.
        """
        session, driver = await self._find(session_id)
        agent_session, agent = driver.agent_session, session.state.agent
        # One that is still being opened is not in the log, and has no name under which it could be heard.
        if agent_session is None or agent is None:
            return None
        listeners = agent_session.connection.listeners
        listeners.setdefault(agent.agent_session_id, []).append(listener)
        return partial(_listen_no_more, listeners, agent.agent_session_id, listener)

    async def wake(self, session_id: SessionId) -> None:
        """See to it that an agent has the session now, as a prompt would.

        Raises `SessionClosed`, and `LocalProtocolError` if no agent takes it.
        """
        session, driver = await self._find(session_id)
        if session.state.phase is Phase.CLOSED:
            raise SessionClosed("the session is closed", session_id=session_id)
        if not driver.has_agent:
            driver.open()
        with anyio.move_on_after(self._limits.opening_s):
            # Nothing waits between the look and the head behind which is waited, so that no event falls between.
            while driver.has_agent and not _is_open(driver.agent_session):
                await session.tail.wait(session.tail.head)
        if not _is_open(driver.agent_session):
            raise LocalProtocolError("no agent takes this session now; try again", session_id=session_id)

    async def call(
        self,
        session_id: SessionId | None,
        method: str,
        params: dict[str, Raw],
        *,
        name: AgentName | None = None,
    ) -> Result | Failure:
        """A request beside ACP, as it is but for the name of the session; gives the agent's answer.

        One about no session goes to the agent of that name.

        Raises `LocalProtocolError` if no agent takes the session, `AgentError`, `LinkError` if there is none.
        """
        if session_id is None:
            return await (await self._pools.of(name).connection(NO_SESSION)).peer.call(method, raw(params))
        return await (await self._opened(session_id)).call(method, dict(params))

    async def notify(
        self,
        session_id: SessionId | None,
        method: str,
        params: dict[str, Raw],
        *,
        name: AgentName | None = None,
    ) -> None:
        """A notification beside ACP. Raises as `call` does."""
        if session_id is None:
            (await self._pools.of(name).connection(NO_SESSION)).peer.notify(method, raw(params))
            return
        (await self._opened(session_id)).notify(method, params)

    async def _opened(self, session_id: SessionId) -> AgentSession:
        await self.wake(session_id)
        agent_session = (await self._find(session_id))[1].agent_session
        assert agent_session is not None, "an agent has the session"
        return agent_session


def _is_open(agent_session: AgentSession | None) -> bool:
    return agent_session is not None and agent_session.is_open


def _listen_no_more(
    listeners: dict[AgentSessionId, list[Listener]], named: AgentSessionId, listener: Listener
) -> None:
    listeners[named].remove(listener)
    if not listeners[named]:
        del listeners[named]
