"""The daemon behind REST and ACP: one node with its log, credentials, clients and meters.

`open_daemon` builds it from settings and shuts it down in order. This module does not depend on HTTP.
"""

from __future__ import annotations

import logging
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

from turnwire.clock import Clock, SystemClock
from turnwire.errors import ConfigError, ShuttingDown
from turnwire.hosting.agent_pool import AgentPolicy, HostedAgent, Sharing
from turnwire.hosting.held import Holders
from turnwire.hosting.permission_rules import Rules
from turnwire.hosting.services.roots import close_directory
from turnwire.hosting.source import AgentSource, ProcessSource
from turnwire.ids import AgentName, SessionId
from turnwire.limits import Limits
from turnwire.log import Durability, EventLog, MemoryEventLog, SqliteEventLog
from turnwire.log.address import NO_DRIVER, is_database
from turnwire.log.bell import NODES, Bell, NoBell, SharedLog
from turnwire.log.credentials import Credentials
from turnwire.log.file_lock import lock_file
from turnwire.log.owners import Owners, SoleOwner
from turnwire.runtime.draining import drain
from turnwire.runtime.members import Members
from turnwire.runtime.node import Node, open_node
from turnwire.runtime.session import Watch
from turnwire.server.access import token_file
from turnwire.server.access.login import Links, LinksInMemory, Login
from turnwire.server.access.middleware import Buckets, Failures, LogLimit, request_buckets
from turnwire.server.access.node_key import NodeKey
from turnwire.server.access.token_file import TokenFile
from turnwire.server.access.token_table import TableLinks, TokenTable
from turnwire.server.access.tokens import Tokens, TokenStore
from turnwire.server.bodies import Bodies
from turnwire.server.daemon.clients import Clients
from turnwire.server.daemon.deadlines import Deadlines
from turnwire.server.daemon.membership import identity_of, open_members
from turnwire.server.daemon.search import Search, open_search
from turnwire.server.daemon.session_list import SessionList
from turnwire.server.open_streams import OpenStreams
from turnwire.server.settings.agents import AgentEntry
from turnwire.server.settings.declared import Settings
from turnwire.server.telemetry.metrics import AgentLevel, Metrics, sample_loop_lag
from turnwire.server.telemetry.tracing import TurnTraces
from turnwire.server.webhooks import Webhooks, open_webhooks
from turnwire.session.events import AnyEvent, TurnFailed

logger = logging.getLogger(__name__)


class StopSignal:
    """A one-shot signal that the daemon stops. It is never reset.

    It notifies waiting tasks and callbacks, so that a thousand streams do not need a task each to wait for it.
    """

    def __init__(self) -> None:
        self._said = anyio.Event()
        self._callbacks: set[Callable[[], None]] = set()

    def is_set(self) -> bool:
        return self._said.is_set()

    def set(self) -> None:
        """Set the signal and call the callbacks."""
        if not self._said.is_set():
            self._said.set()
            for callback in list(self._callbacks):
                callback()

    async def wait(self) -> None:
        """Wait until the signal is set."""
        await self._said.wait()

    @contextmanager
    def calling(self, callback: Callable[[], None]) -> Generator[None]:
        """Call `callback` when the signal is set inside the block; at once if it is set already."""
        self.add(callback)
        try:
            yield
        finally:
            self.discard(callback)

    def add(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the signal is set; at once if it is set already."""
        self._callbacks.add(callback)
        if self._said.is_set():
            callback()

    def discard(self, callback: Callable[[], None]) -> None:
        """Remove a callback."""
        self._callbacks.discard(callback)


class News:
    """Sessions with new events that one listener has not read yet."""

    def __init__(self) -> None:
        self._sessions: dict[SessionId, None] = {}
        self._has_missed = False
        self._more = anyio.Event()

    def add(self, session_id: SessionId) -> None:
        if session_id not in self._sessions:
            self._sessions[session_id] = None
            self._more.set()

    def miss(self) -> None:
        """Record that notifications about sessions of other nodes may have been lost."""
        self._has_missed = True
        self._more.set()

    async def next(self) -> tuple[list[SessionId], bool]:
        """Wait for and return the sessions with new events, longest waiting first, and whether others may have been
        missed.

        Cancel-safe.
        """
        while not self._sessions and not self._has_missed:
            self._more = anyio.Event()
            await self._more.wait()
        sessions, has_missed = list(self._sessions), self._has_missed
        self._sessions, self._has_missed = {}, False
        return sessions, has_missed


class Activity:
    """Notifications about sessions with new events, for streams that show many sessions.

    It is notified of every batch right after the batch was published, and of other nodes' appends. It stores at
    most one id per session and listener, no event, and waits for no listener.
    """

    def __init__(self) -> None:
        self._listeners: set[News] = set()

    def take(self, session_id: SessionId, events: Sequence[AnyEvent]) -> None:
        """Notify listeners that a session has new events. Used as a node's `watch`."""
        for each in self._listeners:
            each.add(session_id)

    def grown(self, heads: Mapping[SessionId, int]) -> None:
        """Notify listeners that other nodes have appended to these sessions. Part of `HeadListener`."""
        for each in self._listeners:
            for session_id in heads:
                each.add(session_id)

    def missed(self) -> None:
        """Notify listeners that notifications of other nodes may have been lost. Part of `HeadListener`."""
        for each in self._listeners:
            each.miss()

    @contextmanager
    def listening(self) -> Generator[News]:
        """Return a listener that is notified of every session with new events inside the block."""
        news = News()
        self._listeners.add(news)
        try:
            yield news
        finally:
            self._listeners.discard(news)


@dataclass(kw_only=True)
class Daemon:
    """All parts of the daemon that an interface may use."""

    node: Node
    """Runs the sessions. Every change to a session is submitted to it as an input."""
    log: EventLog
    owners: Owners
    """The owners of the log's sessions, and the nodes that share the log."""
    members: Members | None
    """The heartbeat of this node, if it is one of several."""
    node_key: NodeKey | None
    """Authenticates this node to the others; `None` for a node that does not share its log."""
    clock: Clock
    limits: Limits
    settings: Settings

    tokens: Tokens
    login: Login
    requests: Buckets
    """Rate limit of each caller: requests, and messages of a connection."""
    failures: Failures
    login_log: LogLimit
    """Rate limit of audit log entries for logins of anonymous callers; a share link opens any number of times."""
    failed_login_log: LogLimit
    bodies: Bodies
    """Incomplete request bodies."""
    open_streams: OpenStreams
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
    """Timer of the open streams' deadlines."""

    stopping: StopSignal
    """Set when the daemon begins to stop: streams end, and new work is rejected."""
    hands_over: bool = False
    """True once the daemon is to be started again, and its agents are left to the next program."""
    drain_asked: StopSignal
    """Set when a request at another node asks this one to drain and stop."""
    lost: StopSignal
    """Set when this node may not act any more, because others may act for its sessions: the process must end."""
    tasks: TaskGroup
    """Task group for tasks that outlive a request. It ends before the node does."""

    @property
    def roots(self) -> Sequence[Path]:
        """Return the directories in which sessions may work."""
        return self.settings.cwd or (Path.cwd(),)

    def check_open(self) -> None:
        """Raise `ShuttingDown` once the daemon is about to stop."""
        if self.stopping.is_set():
            raise ShuttingDown("the daemon is about to stop; try again in a moment")

    async def delete(self, session_id: SessionId) -> None:
        """Delete a session with all its data: its log, the links to it, its indexed text.

        Raises `SessionNotFound`, `CredentialsNotStored`.
        """
        await self.login.end_shares(session_id)
        await self.node.delete(session_id)
        await self.search.forget(session_id)

    async def drain(self, seconds: float | None = None) -> None:
        """Reject new work, ask streams to reconnect, and wait for turns; end the rest at the deadline."""
        self.stopping.set()
        await drain(self.node, self.clock, self.limits.drain_s if seconds is None else seconds)


HELD = "held"
"""Folder of the agents that outlive a daemon, below its data folder."""


@asynccontextmanager
async def open_daemon(
    settings: Settings,
    limits: Limits,
    agents: AgentSource | Sequence[HostedAgent],
    *,
    clock: Clock | None = None,
) -> AsyncGenerator[Daemon]:
    """Run a daemon without a listener. Raises `ConfigError`, `LogError` before anything has started.

    `agents`: the hosted agents, the default one first; or the source of the only one.
    """
    clock = clock or SystemClock()
    async with AsyncExitStack() as stack:
        log, owners, bell, data, credentials = await _open_log(stack, settings, limits, clock)
        store, links = await _open_credentials(credentials, data, clock)
        tokens, first_token = await Tokens.open(store, clock, settings.token)
        shared = log if isinstance(log, SharedLog) and not bell.is_alone else None
        metrics, traces, activity = Metrics(clock), TurnTraces(), Activity()
        bell.set_meter(metrics.bell_lag_s.observe)
        bell.add_listener(activity)
        log, owners = metrics.timed(log), metrics.counted(owners)
        stopping, drain_asked, lost = StopSignal(), StopSignal(), StopSignal()
        lost.add(stopping.set)
        # Its heartbeat continues until the node has ended.
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

        watching: list[Watch] = [activity.take, metrics.take, traces.take, search.take, log_failed_turns]
        if webhooks.hooks:
            watching.append(webhooks.take)

        def watch(session_id: SessionId, events: Sequence[AnyEvent]) -> None:
            for take in watching:
                take(session_id, events)

        # In a database, another node may own the sessions of a dead one at once.
        is_held = data is not None and not is_database(settings.log) and limits.hold_s > 0
        holders = Holders(data / HELD, limits.hold_s) if data is not None and is_held else None
        for each in agents if isinstance(agents, Sequence) else ():
            if isinstance(each.source, ProcessSource):
                each.source.holders = holders
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
                holders=holders,
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
        tasks.start_soon(sample_loop_lag, metrics.loop_lag_s.observe)
        tasks.start_soon(tokens.run)
        tasks.start_soon(webhooks.run)
        tasks.start_soon(_index, search, node)
        yield Daemon(
            node=node,
            log=log,
            owners=owners,
            members=members,
            node_key=None if settings.cluster_key is None else NodeKey(settings.cluster_key, owners.life),
            clock=clock,
            limits=limits,
            settings=settings,
            tokens=tokens,
            login=Login(tokens, links),
            requests=request_buckets(clock, limits.request_rate),
            failures=Failures(clock, limits.failed_logins),
            login_log=LogLimit(clock),
            failed_login_log=LogLimit(clock),
            bodies=Bodies(limits),
            open_streams=OpenStreams(),
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


def log_failed_turns(session_id: SessionId, events: Sequence[AnyEvent]) -> None:
    """Log each turn that ended with an error."""
    for each in events:
        if isinstance(each, TurnFailed):
            extra = {
                "event": "turn_failed",
                "session_id": session_id,
                "prompt_id": each.prompt_id,
                "code": each.code,
            }
            logger.warning("a turn failed: %s", each.message, extra=extra)


async def _index(search: Search, node: Node) -> None:
    """End the turns that a crash left open, then index messages for the search."""
    await node.recovered()
    await search.run(node.views)


def agent_policy(settings: Settings, entry: AgentEntry) -> AgentPolicy:
    """Return the operator's policy for one agent."""
    return AgentPolicy(
        sharing=Sharing(entry.process),
        services=settings.services,
        newest_protocol=entry.protocol,
        confidential=True,
        holds_after_restart=settings.after_restart == "hold",
    )


def sessions_by_agent(node: Node) -> Counter[AgentName]:
    """Return the number of sessions in memory by agent."""
    return Counter(node.agents.name_of(each.state.agent_name) for each in node.loaded.values())


def _agent_levels(node: Node) -> list[AgentLevel]:
    sessions = sessions_by_agent(node)
    return [
        AgentLevel(each.name, each.running, sessions[each.name], each.why_not is None)
        for each in node.agents.hosted()
    ]


class _Kept(NamedTuple):
    """The storage of a daemon."""

    log: EventLog
    owners: Owners
    bell: Bell
    data: Path | None
    """The folder for data outside the log."""
    credentials: Credentials | None = None
    """The credentials of all nodes, if they are stored with the log."""


async def _open_log(stack: AsyncExitStack, settings: Settings, limits: Limits, clock: Clock) -> _Kept:
    """Open the log and its companions; the stack closes them. Raises `ConfigError`, `LogError`."""
    if settings.log == "memory":
        log = MemoryEventLog()
        return _Kept(log, SoleOwner(log), NoBell(), None)
    data = settings.data
    if data is None:
        raise ConfigError("no data folder is given; set one, or keep the log in memory")
    close_directory(data)
    if is_database(settings.log):
        # The text index and the cursors of webhooks are in the folder, whose lock is the one of its log.
        stack.callback(os.close, lock_file(data / "turnwire.db"))
        return await _open_database(stack, settings, limits, clock, data)
    durability = Durability(settings.durability)
    log = await SqliteEventLog.open(data / "turnwire.db", limits=limits, durability=durability)
    stack.push_async_callback(log.aclose)
    return _Kept(log, SoleOwner(log), NoBell(), data)


async def _open_database(
    stack: AsyncExitStack, settings: Settings, limits: Limits, clock: Clock, data: Path
) -> _Kept:
    try:
        from turnwire.log.postgres import open_postgres_log
    except ImportError:
        raise ConfigError(NO_DRIVER) from None
    log = await stack.enter_async_context(
        open_postgres_log(
            settings.log,
            limits=limits,
            node=identity_of(settings, data),
            alone=settings.cluster_listen is None,
            clock=clock,
        )
    )
    return _Kept(log, log.owners, log.bell, data, log.credentials)


async def _open_credentials(kept: Credentials | None, data: Path | None, clock: Clock) -> tuple[TokenStore, Links]:
    """Open the store of credentials and login links. Raises `ConfigError`, `LogError`."""
    path = None if data is None else data / token_file.NAME
    if kept is None:
        return TokenFile(path, clock), LinksInMemory(clock)
    table = TokenTable(kept, clock)
    if path is not None:
        await table.take_file(path)
    return table, TableLinks(kept)
