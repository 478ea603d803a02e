"""Operations on the agents of this node's own sessions: evidence, settings, logins, services of clients.

The session is loaded if needed. Turns are not changed here: those go through the session's inbox.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import anyio
from msgspec import Raw

from turnwire.clock import Clock
from turnwire.errors import LocalProtocolError, RemoteProtocolError, SessionClosed
from turnwire.hosting.agent_connection import Listener
from turnwire.hosting.client_requests import Provider
from turnwire.hosting.hosted_session import HostedSession
from turnwire.ids import AgentSessionId, ClientId, SessionId
from turnwire.limits import Limits
from turnwire.runtime.evidence import Explanation, Seen, explain
from turnwire.runtime.session import Session
from turnwire.runtime.session_owner import End
from turnwire.session.background import still_running
from turnwire.session.state import Phase
from turnwire.wire.jsonrpc import Failure, Result

Find = Callable[[SessionId], Awaitable[tuple[Session, HostedSession]]]


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
