"""The daemon: one node with its log, its credentials, its clients and its meters, as REST and ACP see it.

`open_daemon` makes it of settings and takes it down in good order. Nothing in here is about HTTP.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import anyio
from anyio.abc import TaskGroup

from turnwire.core.events import AnyEvent
from turnwire.errors import ConfigError, ShuttingDown
from turnwire.ids import AgentName, SessionId
from turnwire.limits import Limits
from turnwire.log import EventLog, MemoryEventLog, SqliteEventLog
from turnwire.log.address import NO_DRIVER, is_database
from turnwire.log.bell import NODES, Bell, NoBell, SharedLog
from turnwire.log.credentials import Credentials
from turnwire.log.owners import Owners, SoleOwner
from turnwire.log.sqlite_file import lock_file
from turnwire.log.sqlite_wal import Durability
from turnwire.runtime.agent_pool import AgentPolicy, HostedAgent, Sharing
from turnwire.runtime.clock import Clock, SystemClock
from turnwire.runtime.draining import drain
from turnwire.runtime.members import Members
from turnwire.runtime.node import Node, open_node
from turnwire.runtime.permission_rules import Rules
from turnwire.runtime.services.roots import close_directory
from turnwire.runtime.session import Watch
from turnwire.runtime.source import AgentSource
from turnwire.server.access import token_file
from turnwire.server.access.login import Links, LinksInMemory, Login
from turnwire.server.access.rates import Buckets, Failures, request_buckets
from turnwire.server.access.token_file import TokenFile
from turnwire.server.access.token_table import TableLinks, TokenTable
from turnwire.server.access.tokens import Tokens, TokenStore
from turnwire.server.bodies import Bodies
from turnwire.server.daemon.clients import Clients
from turnwire.server.daemon.deadlines import Deadlines
from turnwire.server.daemon.membership import identity_of, open_members
from turnwire.server.daemon.search import Search, open_search
from turnwire.server.daemon.session_list import SessionList
from turnwire.server.settings.agents import AgentEntry
from turnwire.server.settings.declared import Settings
from turnwire.server.telemetry.metrics import AgentLevel, Metrics
from turnwire.server.telemetry.pauses import watched_loop
from turnwire.server.telemetry.tracing import TurnTraces
from turnwire.server.webhooks import Webhooks, open_webhooks


class StopSignal:
    """The daemon stops. Said once, never taken back.

    It reaches tasks that wait and callbacks, so that a thousand streams need no task each to wait for it.
    """

    def __init__(self) -> None:
        self._said = anyio.Event()
        self._callbacks: set[Callable[[], None]] = set()

    def is_set(self) -> bool:
        return self._said.is_set()

    def set(self) -> None:
        """Say it."""
        if not self._said.is_set():
            self._said.set()
            for callback in list(self._callbacks):
                callback()

    async def wait(self) -> None:
        """Return once it is said."""
        await self._said.wait()

    @contextmanager
    def calling(self, callback: Callable[[], None]) -> Generator[None]:
        """Meanwhile `callback` is called when it is said; at once if it has been."""
        self.add(callback)
        try:
            yield
        finally:
            self.discard(callback)

    def add(self, callback: Callable[[], None]) -> None:
        """From now on `callback` is called when it is said; at once if it has been."""
        self._callbacks.add(callback)
        if self._said.is_set():
            callback()

    def discard(self, callback: Callable[[], None]) -> None:
        """Whoever wanted to hear it wants no more."""
        self._callbacks.discard(callback)


class News:
    """What one listener has not looked at."""

    def __init__(self) -> None:
        self._sessions: dict[SessionId, None] = {}
        self._has_missed = False
        self._more = anyio.Event()

    def add(self, session_id: SessionId) -> None:
        if session_id not in self._sessions:
            self._sessions[session_id] = None
            self._more.set()

    def miss(self) -> None:
        """What is new in sessions of other nodes may not have been heard of."""
        self._has_missed = True
        self._more.set()

    async def next(self) -> tuple[list[SessionId], bool]:
        """The sessions with something new, longest waiting first, and whether there may be others.

        Waits for either. Cancel-safe.
        """
        while not self._sessions and not self._has_missed:
            self._more = anyio.Event()
            await self._more.wait()
        sessions, has_missed = list(self._sessions), self._has_missed
        self._sessions, self._has_missed = {}, False
        return sessions, has_missed


class Activity:
    """Which sessions have new events, for streams that show many of them.

    It hears of every batch right after that was published, and of what other nodes ring. It holds an id per session
    and listener at most, no event, and waits for no listener.
    """

    def __init__(self) -> None:
        self._listeners: set[News] = set()

    def take(self, session_id: SessionId, events: Sequence[AnyEvent]) -> None:
        """A session has new events. A node's `watch`."""
        for each in self._listeners:
            each.add(session_id)

    def grown(self, heads: Mapping[SessionId, int]) -> None:
        """Other nodes have appended to these sessions. A `HeadListener` of the bell."""
        for each in self._listeners:
            for session_id in heads:
                each.add(session_id)

    def missed(self) -> None:
        """They may have, unheard."""
        for each in self._listeners:
            each.miss()

    @contextmanager
    def listening(self) -> Generator[News]:
        """Meanwhile every session with new events is told."""
        news = News()
        self._listeners.add(news)
        try:
            yield news
        finally:
            self._listeners.discard(news)


@dataclass(kw_only=True)
class Daemon:
    """Everything that an interface may act on."""

    node: Node
    """Runs the sessions. What is to happen to one is handed to it as an input."""
    log: EventLog
    owners: Owners
    """Whose the sessions of the log are, and which nodes share it."""
    members: Members | None
    """The beat of this node, if it is one of several."""
    clock: Clock
    limits: Limits
    settings: Settings

    tokens: Tokens
    login: Login
    requests: Buckets
    """How many more each caller may send: requests, and messages that come on one."""
    failures: Failures
    bodies: Bodies
    """What is on its way in."""
    first_token: str | None = None
    """The owner's token, on the first start only."""

    clients: Clients
    sessions: SessionList
    search: Search
    activity: Activity
    webhooks: Webhooks

    metrics: Metrics
    traces: TurnTraces
    deadlines: Deadlines
    """When something is due at each of the open streams."""

    stopping: StopSignal
    """Given when the daemon begins to stop: streams end, and nothing new is taken."""
    drain_asked: StopSignal
    """Given when somebody asks at another node that this one stops in good order."""
    lost: StopSignal
    """Given when this node may not act any more, because others may act for its sessions: the process must end."""
    tasks: TaskGroup
    """For what outlives a request. Ends before the node does."""

    @property
    def roots(self) -> Sequence[Path]:
        """Directories in which sessions may work."""
        return self.settings.cwd or (Path.cwd(),)

    def check_open(self) -> None:
        """Raises `ShuttingDown` once the daemon is about to stop."""
        if self.stopping.is_set():
            raise ShuttingDown("the daemon is about to stop; try again in a moment")

    async def delete(self, session_id: SessionId) -> None:
        """Remove a session with all that is kept of it: its log, the links to it, its words.

        Raises `SessionNotFound`, `CredentialsNotStored`.
        """
        await self.login.end_shares(session_id)
        await self.node.delete(session_id)
        await self.search.forget(session_id)

    async def drain(self, seconds: float | None = None) -> None:
        """Take nothing new, tell streams to come back, let turns end; at the deadline end them."""
        self.stopping.set()
        await drain(self.node, self.clock, self.limits.drain_s if seconds is None else seconds)


@asynccontextmanager
async def open_daemon(
    settings: Settings,
    limits: Limits,
    agents: AgentSource | Sequence[HostedAgent],
    *,
    clock: Clock | None = None,
) -> AsyncGenerator[Daemon]:
    """A running daemon without a listener. Raises `ConfigError`, `LogError` before anything has started.

    `agents`: those it hosts, the default one first; or where the only one comes from.
    """
    clock = clock or SystemClock()
    async with AsyncExitStack() as stack:
        log, owners, bell, data, credentials = await _open_log(stack, settings, limits)
        store, links = await _open_credentials(credentials, data, clock)
        tokens, first_token = await Tokens.open(store, clock, settings.token)
        shared = log if isinstance(log, SharedLog) and not bell.is_alone else None
        metrics, traces, activity = Metrics(clock), TurnTraces(), Activity()
        bell.set_meter(metrics.bell_lag_s.observe)
        bell.add_listener(activity)
        stack.enter_context(watched_loop(metrics.loop_stall_s.observe))
        log, owners = metrics.timed(log), metrics.counted(owners)
        stopping, drain_asked, lost = StopSignal(), StopSignal(), StopSignal()
        lost.add(stopping.set)
        # It beats until the node has ended.
        metrics.members = members = await stack.enter_async_context(
            open_members(owners, clock, limits, lost=lambda _: lost.set(), drain=drain_asked.set)
        )
        if members is not None:
            members.gone = lambda _: bell.ring(NODES)
        rules = Rules(settings.permission)
        webhooks = await stack.enter_async_context(
            open_webhooks(settings.webhooks, log, clock, limits, data / "webhooks.json" if data else None, shared)
        )
        metrics.webhooks = webhooks.levels
        bell.add_listener(webhooks)
        search = await stack.enter_async_context(
            open_search(data / "search.db" if data else None, log, clock, limits)
        )
        bell.add_listener(search)

        watching: list[Watch] = [activity.take, metrics.take, traces.take, search.take]
        if webhooks.hooks:
            watching.append(webhooks.take)

        def watch(session_id: SessionId, events: Sequence[AnyEvent]) -> None:
            for take in watching:
                take(session_id, events)

        policy = agent_policy(settings, settings.hosted()[0])
        node = await stack.enter_async_context(
            open_node(
                log,
                agents,
                owners=owners,
                clock=clock,
                limits=limits,
                policy=policy,
                rules=rules,
                watch=watch,
                bell=bell,
            )
        )
        lost.add(node.lose)
        metrics.sessions = node.loaded.values
        metrics.agents = partial(_agent_levels, node)
        clients = Clients(node, clock)
        rules.attended = clients.attended
        rules.can_be_asked = clients.can_be_asked
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        tasks.start_soon(tokens.run)
        tasks.start_soon(webhooks.run)
        tasks.start_soon(_index, search, node)
        yield Daemon(
            node=node,
            log=log,
            owners=owners,
            members=members,
            clock=clock,
            limits=limits,
            settings=settings,
            tokens=tokens,
            login=Login(tokens, clock, links),
            requests=request_buckets(clock, limits.request_rate),
            failures=Failures(clock, limits.failed_logins),
            bodies=Bodies(limits),
            clients=clients,
            metrics=metrics,
            traces=traces,
            deadlines=Deadlines(min(limits.heartbeat_s, limits.write_timeout_s)),
            activity=activity,
            webhooks=webhooks,
            search=search,
            sessions=SessionList(log, node, limits, clients.listed, search, shared),
            stopping=stopping,
            drain_asked=drain_asked,
            lost=lost,
            tasks=tasks,
            first_token=first_token,
        )


async def _index(search: Search, node: Node) -> None:
    """First turns that were left open get their end, then what was said is made searchable."""
    await node.recovered()
    await search.run(node.views)


def agent_policy(settings: Settings, entry: AgentEntry) -> AgentPolicy:
    """What an operator decided about one agent."""
    return AgentPolicy(
        sharing=Sharing(entry.process),
        services=settings.services,
        newest_protocol=entry.protocol,
        confidential=True,
        holds_after_restart=settings.after_restart == "hold",
    )


def sessions_by_agent(node: Node) -> Counter[AgentName]:
    """How many sessions in memory each agent has."""
    return Counter(node.agents.name_of(each.state.agent_name) for each in node.loaded.values())


def _agent_levels(node: Node) -> list[AgentLevel]:
    sessions = sessions_by_agent(node)
    return [
        AgentLevel(each.name, each.running, sessions[each.name], each.why_not is None)
        for each in node.agents.hosted()
    ]


class _Kept(NamedTuple):
    """Where a daemon keeps things."""

    log: EventLog
    owners: Owners
    bell: Bell
    data: Path | None
    """The folder of what is not in the log."""
    credentials: Credentials | None = None
    """Those of all nodes, if they are with the log."""


async def _open_log(stack: AsyncExitStack, settings: Settings, limits: Limits) -> _Kept:
    """The log, closed with the stack, and what comes with it. Raises `ConfigError`, `LogError`."""
    if settings.log == "memory":
        log = MemoryEventLog()
        return _Kept(log, SoleOwner(log), NoBell(), None)
    data = settings.data
    if data is None:
        raise ConfigError("no data folder is given; set one, or keep the log in memory")
    close_directory(data)
    if is_database(settings.log):
        # The index of words and the places of webhooks are in the folder, whose lock is the one of its log.
        stack.callback(os.close, lock_file(data / "turnwire.db"))
        return await _open_database(stack, settings, limits, data)
    durability = Durability(settings.durability)
    log = await SqliteEventLog.open(data / "turnwire.db", limits=limits, durability=durability)
    stack.push_async_callback(log.aclose)
    return _Kept(log, SoleOwner(log), NoBell(), data)


async def _open_database(stack: AsyncExitStack, settings: Settings, limits: Limits, data: Path) -> _Kept:
    try:
        from turnwire.log.postgres import open_postgres_log
    except ImportError:
        raise ConfigError(NO_DRIVER) from None
    log = await stack.enter_async_context(
        open_postgres_log(
            settings.log,
            limits=limits,
            durability=Durability(settings.durability),
            node=identity_of(settings, data),
            alone=settings.cluster_listen is None,
        )
    )
    return _Kept(log, log.owners, log.bell, data, log.credentials)


async def _open_credentials(kept: Credentials | None, data: Path | None, clock: Clock) -> tuple[TokenStore, Links]:
    """Where credentials and login links are. Raises `ConfigError`, `LogError`."""
    path = None if data is None else data / token_file.NAME
    if kept is None:
        return TokenFile(path, clock), LinksInMemory(clock)
    table = TokenTable(kept, clock)
    if path is not None:
        await table.take_file(path)
    return table, TableLinks(kept)
