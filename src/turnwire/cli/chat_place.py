"""Where a chat's sessions live: at a daemon, or with an agent of our own in this process.

It opens sessions, lists them and the agents, and sets what the agent can be set to. What a place cannot do it
refuses in words.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
from msgspec import Raw, Struct

from turnwire.cli.explain import Explanation, Finding, findings
from turnwire.cli.opening import Entered, WantedSession, enter, leave, open_agent
from turnwire.cli.reach import Reach, list_sessions, open_http
from turnwire.cli.turns import Queue
from turnwire.client.embedded import EmbeddedDaemon
from turnwire.client.http import Http, segment
from turnwire.client.permission import PermissionRequest
from turnwire.client.port import DaemonSession
from turnwire.core.events import PermissionRequested
from turnwire.errors import BadRequest
from turnwire.ids import SessionId
from turnwire.link.address import is_loopback


class ListedSession(Struct, rename="camel"):
    """A session to choose."""

    session_id: SessionId
    cwd: str = ""
    title: str | None = None
    updated_at: str = ""
    agent: str = ""
    state: str = ""


class ListedAgent(Struct, rename="camel"):
    """An agent to choose."""

    name: str
    label: str = ""
    default: bool = False
    why: str | None = None
    """Why it is not available."""


class _Agents(Struct):
    agents: list[ListedAgent]


class Place(Protocol):
    """Where sessions live. Every call raises what it is refused with."""

    alone: bool
    """Nobody else can come into its sessions, and they end with us."""

    async def enter(self, wanted: WantedSession) -> DaemonSession: ...

    async def sessions(self) -> Sequence[ListedSession]:
        """The open ones, the newest first."""
        ...

    async def agents(self) -> Sequence[ListedAgent]: ...

    async def set(self, session_id: SessionId, what: str, value: str | bool) -> None:
        """Set the `mode`, the `model`, or an option by its id."""
        ...

    async def explain(self, session_id: SessionId, asked: Sequence[PermissionRequested]) -> Sequence[Finding]:
        """What keeps a session from going on."""
        ...

    def folder(self, cwd: str) -> Path | None:
        """A session's folder, if it is on this machine."""
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
        """We are in no session any more."""
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
    """Sessions of an agent that was started for us."""

    alone = True

    def __init__(self, daemon: EmbeddedDaemon) -> None:
        self._daemon = daemon

    async def enter(self, wanted: WantedSession) -> DaemonSession:
        if wanted.session is not None:
            return await self._daemon.find(SessionId(wanted.session))
        return await self._daemon.create(wanted.cwd, Raw(b"[]"))

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
    """Who is told of the way to a daemon or an agent."""

    lost: Callable[[], None]
    found: Callable[[], None]
    slow: Callable[[str], None]
    """An agent takes long to begin; why."""


@asynccontextmanager
async def open_place(where: Reach | tuple[str, ...], cwd: str, link: Link) -> AsyncGenerator[Place]:
    """The place. Raises what keeps us from it."""
    if isinstance(where, Reach):
        async with open_http(where, lost=link.lost, found=link.found) as http:
            await http.capabilities(patient=False)
            place = DaemonPlace(http, where.url, link.slow)
            try:
                yield place
            finally:
                await place.leave()
    else:
        async with open_agent(where, cwd, link.slow) as daemon:
            yield AgentPlace(daemon)
