"""The daemon's metrics for Prometheus.

Every label has a bounded set of values: none is a session, prompt or address. Counts are plain numbers until a
scrape, so counting costs next to nothing. Each `Metrics` has a separate registry and shares nothing with others in
the process.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, Final, NamedTuple, Protocol, cast, get_args

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from turnwire.clock import Clock, SystemClock
from turnwire.errors import LogCorrupt, LogUnavailable, NotOwner
from turnwire.ids import PermissionId, PromptId, SessionId
from turnwire.log.base import EventLog, Position, SessionHead, Stored
from turnwire.log.owners import Claim, Owners
from turnwire.runtime.members import Members
from turnwire.runtime.session import Session
from turnwire.session import events as ev
from turnwire.wire.schema.common import STOP_REASONS

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
APPEND_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER = "other"
"""Label for names that an agent or a client defines: the set of labels has to be bounded."""

HELP: Mapping[str, str] = {
    "turnwire_turns_total": "Turns that ended, by stop reason or error code.",
    "turnwire_turn_seconds": "From the start of a turn to its end.",
    "turnwire_queue_wait_seconds": "From the acceptance of a prompt to its start, or to its joining a turn.",
    "turnwire_permission_wait_seconds": "From a permission request to its resolution.",
    "turnwire_first_update_seconds": "From the start of a turn to its first update.",
    "turnwire_events_total": "Events stored, by type.",
    "turnwire_agent_opened_total": "Sessions opened at an agent, by how; all but new and fork follow a restart.",
    "turnwire_agent_exits_total": "Sessions that lost their agent, by reason.",
    "turnwire_agent_processes": "Processes of each agent that run, or are about to.",
    "turnwire_agent_sessions": "Sessions in memory, by their agent.",
    "turnwire_agent_available": "Whether an agent can be started or runs: 1, or 0 while it is not tried again.",
    "turnwire_subscribers": "Open event streams.",
    "turnwire_subscriber_lag_events": "Events that open streams have not been given yet, all together.",
    "turnwire_subscriber_lag_events_max": "Events that the slowest open stream has not been given yet.",
    "turnwire_subscribers_stalled_total": "Readers that took nothing for too long and were let go.",
    "turnwire_log_append_seconds": "From handing events to the log to its acknowledgement.",
    "turnwire_bell_lag_seconds": "From an append to its notice for other nodes, as this node hears it itself.",
    "turnwire_loop_lag_seconds": "How late the event loop ran a timer, sampled four times a second.",
    "turnwire_http_requests_total": "Requests, by method, route and status.",
    "turnwire_sessions_loaded": "Sessions in memory.",
    "turnwire_prompts_queued": "Accepted prompts that have not started.",
    "turnwire_node_beats_total": "Beats of this node that the shared log took.",
    "turnwire_node_beat_age_seconds": "How long ago the last beat was that the shared log took.",
    "turnwire_nodes_gone_total": "Other nodes that this one has declared gone.",
    "turnwire_sessions_taken_over_total": "Unsettled sessions that this node took over from others.",
    "turnwire_fence_refusals_total": "Appends that were refused because another node owns the session.",
    "turnwire_forwards_total": "Inputs that were handed to the node that has their session, by how that ended.",
    "turnwire_relays_total": "Requests and sockets of ACP that were handed on to the node of their connection.",
    "turnwire_webhook_delivered_total": "Events that a webhook took.",
    "turnwire_webhook_failed_total": "Attempts that a webhook did not answer with success.",
    "turnwire_webhook_retried_total": "Attempts that were not the first for their event.",
    "turnwire_webhook_sessions_behind": "Sessions of which a webhook may not have been told everything.",
    "turnwire_webhook_lag_seconds": "How long the session that waits longest for a webhook has been waiting.",
}
"""Every turnwire metric by name."""
AGENT_LOSSES = frozenset(
    {
        *("agent_exited", "agent_launch_failed", "agent_recycled", "agent_unavailable", "agent_unresponsive"),
        *("auth_required", "daemon_restarted", "daemon_stopped", "node_lost"),
    }
)
"""Reasons why an agent is gone and turns fail with it."""
ERRORS = AGENT_LOSSES | {"agent_error"}
WAYS_TO_OPEN = frozenset({"new", "load", "resume", "fork", "lost"})

SHORT_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
LONG_S = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


class OpenStream(Protocol):
    """One open stream and its position."""

    @property
    def session_id(self) -> SessionId | None: ...

    @property
    def offset(self) -> int | None:
        """The offset up to which everything was written."""
        ...


class Subscriber:
    """An open stream that a task writes."""

    def __init__(self, session_id: SessionId | None) -> None:
        self.session_id = session_id
        self.offset: int | None = None


class _Levels(NamedTuple):
    sessions: int
    queued: int
    lags: list[int]


class AgentLevel(NamedTuple):
    """The state of one agent."""

    name: str
    processes: int
    sessions: int
    is_available: bool


class WebhookLevel(NamedTuple):
    """The state of one webhook."""

    name: str
    delivered: int
    failed: int
    retried: int
    behind: int
    lag_s: float


class Metrics:
    """All meters of one daemon."""

    def __init__(self, clock: Clock) -> None:
        self.turns = TurnMeter()
        self.sessions: Callable[[], Collection[Session]] = tuple
        """Returns the sessions in memory; called at each scrape. The daemon sets it once it has a node."""
        self.agents: Callable[[], Collection[AgentLevel]] = tuple
        """Returns the state of each agent; set by the daemon."""
        self.webhooks: Callable[[], Collection[WebhookLevel]] = tuple
        """Returns the state of each webhook; set by the daemon."""
        self.members: Members | None = None
        """The heartbeat of this node, if it is one of several."""
        self.forwards: Mapping[str, int] = {}
        """Requests forwarded to other nodes, by result. The daemon sets it when it joins them."""
        self.relays: Mapping[str, int] = {}
        """Messages relayed to connections of other nodes, by kind. The daemon sets it when it joins them."""
        self.append_s = Distribution(APPEND_S)
        """Includes failed appends: their callers waited as well."""
        self.log = LogMeter(clock.monotonic, self.append_s.observe)
        self.bell_lag_s = Distribution(APPEND_S)
        self.loop_lag_s = Distribution(LAG_S)
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._stalled = 0
        self.subscribers: set[OpenStream] = set()
        """The open streams."""
        self._registry = CollectorRegistry()
        self._registry.register(_Scrape(self._collect))
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def take(self, session_id: SessionId, events: Sequence[ev.AnyEvent]) -> None:
        """Count a batch of events after its commit."""
        self.turns.take(session_id, events)

    def timed(self, log: EventLog) -> EventLog:
        """Return the log, with its writes reported to `self.log`."""
        return self.log.hooked(log)

    def counted(self, owners: Owners) -> Owners:
        """Return the owners, with takeovers reported to `self.log`."""
        return owners if owners.is_sole else self.log.counted(owners)

    def request(self, method: str, route: str | None, status: int) -> None:
        """Count a request. `route` is the template, or `None` if there is no such route."""
        self._requests[method if method in METHODS else OTHER, route or OTHER, str(status)] += 1

    @contextmanager
    def subscriber(self, session_id: SessionId | None) -> Generator[Subscriber]:
        """Count an open stream inside the block. A stream of several sessions names no session and has no lag."""
        subscriber = Subscriber(session_id)
        self.subscribers.add(subscriber)
        try:
            yield subscriber
        finally:
            self.subscribers.remove(subscriber)

    def subscriber_stalled(self) -> None:
        """Count a reader that was disconnected because it read nothing for too long."""
        self._stalled += 1

    def render(self) -> bytes:
        """Return one scrape, of the type `CONTENT_TYPE`."""
        return generate_latest(self._registry)

    def _collect(self) -> Iterable[Metric]:
        turns, levels = self.turns, self._levels()
        events = {str(kind.__struct_config__.tag): count for kind, count in turns.events.items()}
        requests = {labels: float(count) for labels, count in self._requests.items()}
        return [
            _counter("turnwire_turns_total", ("outcome",), _by_one(turns.outcomes)),
            _histogram("turnwire_turn_seconds", turns.turn_s),
            _histogram("turnwire_queue_wait_seconds", turns.queue_wait_s),
            _histogram("turnwire_permission_wait_seconds", turns.permission_wait_s),
            _histogram("turnwire_first_update_seconds", turns.first_update_s),
            _counter("turnwire_events_total", ("type",), _by_one(events)),
            _counter("turnwire_agent_opened_total", ("how",), _by_one(turns.agent_opened)),
            _counter("turnwire_agent_exits_total", ("reason",), _by_one(turns.agent_exits)),
            *self._agent_levels(),
            _gauge("turnwire_subscribers", len(self.subscribers)),
            _gauge("turnwire_subscriber_lag_events", sum(levels.lags)),
            _gauge("turnwire_subscriber_lag_events_max", max(levels.lags, default=0)),
            _counter("turnwire_subscribers_stalled_total", (), {(): self._stalled}),
            _histogram("turnwire_log_append_seconds", self.append_s),
            _histogram("turnwire_bell_lag_seconds", self.bell_lag_s),
            _histogram("turnwire_loop_lag_seconds", self.loop_lag_s),
            _counter("turnwire_http_requests_total", ("method", "route", "status"), requests),
            _gauge("turnwire_sessions_loaded", levels.sessions),
            _gauge("turnwire_prompts_queued", levels.queued),
            *self._webhook_levels(),
            *self._node_levels(),
        ]

    def _node_levels(self) -> list[Metric]:
        members = self.members
        return [
            _counter("turnwire_node_beats_total", (), {(): members.beats if members else 0}),
            _gauge("turnwire_node_beat_age_seconds", members.beat_age_s if members else 0.0),
            _counter("turnwire_nodes_gone_total", (), {(): members.buried if members else 0}),
            _counter("turnwire_sessions_taken_over_total", (), {(): self.log.taken_over}),
            _counter("turnwire_fence_refusals_total", (), {(): self.log.fence_refusals}),
            _counter("turnwire_forwards_total", ("result",), _by_one(self.forwards)),
            _counter("turnwire_relays_total", ("kind",), _by_one(self.relays)),
        ]

    def _webhook_levels(self) -> list[Metric]:
        levels, label = self.webhooks(), ("webhook",)
        return [
            _counter("turnwire_webhook_delivered_total", label, {(each.name,): each.delivered for each in levels}),
            _counter("turnwire_webhook_failed_total", label, {(each.name,): each.failed for each in levels}),
            _counter("turnwire_webhook_retried_total", label, {(each.name,): each.retried for each in levels}),
            _gauges("turnwire_webhook_sessions_behind", "webhook", {each.name: each.behind for each in levels}),
            _gauges("turnwire_webhook_lag_seconds", "webhook", {each.name: each.lag_s for each in levels}),
        ]

    def _agent_levels(self) -> list[Metric]:
        levels = self.agents()
        return [
            _gauges("turnwire_agent_processes", "agent", {each.name: each.processes for each in levels}),
            _gauges("turnwire_agent_sessions", "agent", {each.name: each.sessions for each in levels}),
            _gauges("turnwire_agent_available", "agent", {each.name: int(each.is_available) for each in levels}),
        ]

    def _levels(self) -> _Levels:
        sessions = self.sessions()
        heads = {each.session_id: each.head for each in sessions}
        # A session that is not in memory gets no events, so its streams have no lag.
        lags = [
            max(heads[each.session_id] - each.offset, 0)
            for each in self.subscribers
            if each.offset is not None and each.session_id is not None and each.session_id in heads
        ]
        return _Levels(len(sessions), sum(len(each.state.queue) for each in sessions), lags)


class _Scrape(Collector):
    """Collects the metrics when the registry is scraped, not when the collector is registered."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        return self._collect()


def _by_one(counts: Mapping[str, int]) -> dict[tuple[str, ...], float]:
    return {(label,): float(count) for label, count in counts.items()}


def _counter(name: str, labels: tuple[str, ...], counts: Mapping[tuple[str, ...], float]) -> Metric:
    family = CounterMetricFamily(name, HELP[name], labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family


def _gauge(name: str, value: float) -> Metric:
    return GaugeMetricFamily(name, HELP[name], value=value)


def _gauges(name: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, HELP[name], labels=(label,))
    for each, value in values.items():
        family.add_metric((each,), value)
    return family


def _histogram(name: str, values: Distribution) -> Metric:
    return HistogramMetricFamily(name, HELP[name], buckets=values.buckets(), sum_value=values.total)


class Distribution:
    """Counts of values by upper bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return each bound with the cumulative count, as Prometheus counts them."""
        names = [*(f"{each:g}" for each in self._bounds), "+Inf"]
        return list(zip(names, accumulate(self._counts), strict=True))


# -- turns ---------------------------------------------------------------------------------------------------


class TurnMeter:
    """Durations and outcomes of turns: a fold over events. Readers use the counts directly.

    Durations are differences of the events' own times, so a measurement can be verified in the log. It holds open
    turns and open permission requests only. It never raises, and is cheap: an update costs one count and one
    lookup.
    """

    def __init__(self) -> None:
        self.events: dict[type[ev.Event], int] = dict.fromkeys(get_args(ev.AnyEvent), 0)
        self.outcomes: Counter[str] = Counter()
        self.agent_opened: Counter[str] = Counter()
        self.agent_exits: Counter[str] = Counter()
        self.turn_s = Distribution(LONG_S)
        self.queue_wait_s = Distribution(LONG_S)
        self.permission_wait_s = Distribution(LONG_S)
        self.first_update_s = Distribution(SHORT_S)
        self._accepted: dict[tuple[SessionId, PromptId], int] = {}
        """Acceptance times of prompts that have not started."""
        self._running: dict[SessionId, tuple[PromptId, int]] = {}
        """The active turn of each session, and its start time."""
        self._silent: dict[SessionId, int] = {}
        """Start times of turns without output so far."""
        self._asked: dict[tuple[SessionId, PermissionId], int] = {}
        self._folds: dict[type[ev.Event], Callable[[SessionId, Any], None]] = {
            ev.PromptAccepted: self._prompt_accepted,
            ev.PromptInjected: self._prompt_injected,
            ev.TurnStarted: self._turn_started,
            ev.PermissionRequested: self._permission_requested,
            ev.PermissionResolved: self._permission_resolved,
            ev.TurnCompleted: self._turn_completed,
            ev.TurnFailed: self._turn_failed,
            ev.AgentStarted: self._agent_started,
            ev.AgentExited: self._agent_exited,
        }

    @property
    def open(self) -> int:
        """Number of entries: turns and permission requests without an end."""
        return len(self._accepted) + len(self._running) + len(self._silent) + len(self._asked)

    def take(self, session_id: SessionId, events: Sequence[ev.AnyEvent]) -> None:
        """Count a batch of one session."""
        counts, folds, silent = self.events, self._folds, self._silent
        for event in events:
            kind = type(event)
            counts[kind] += 1
            if isinstance(event, ev.SessionUpdated):
                # Nearly every event is one of these, so they skip all other checks.
                if session_id in silent and event.prompt_id is not None and not event.echo:
                    self.first_update_s.observe(_seconds(silent.pop(session_id), event.at))
            elif kind in folds:
                folds[kind](session_id, event)

    def _prompt_accepted(self, session_id: SessionId, event: ev.PromptAccepted) -> None:
        self._accepted[session_id, event.prompt_id] = event.at

    def _prompt_injected(self, session_id: SessionId, event: ev.PromptInjected) -> None:
        self._end_wait(session_id, event.prompt_id, event.at)

    def _turn_started(self, session_id: SessionId, event: ev.TurnStarted) -> None:
        self._end_wait(session_id, event.prompt_id, event.at)
        self._running[session_id] = (event.prompt_id, event.at)
        self._silent[session_id] = event.at

    def _permission_requested(self, session_id: SessionId, event: ev.PermissionRequested) -> None:
        self._asked[session_id, event.request_id] = event.at

    def _permission_resolved(self, session_id: SessionId, event: ev.PermissionResolved) -> None:
        asked_at = self._asked.pop((session_id, event.request_id), None)
        if asked_at is not None:
            self.permission_wait_s.observe(_seconds(asked_at, event.at))

    def _turn_completed(self, session_id: SessionId, event: ev.TurnCompleted) -> None:
        self.outcomes[_bounded(event.stop_reason, STOP_REASONS, "other_stop_reason")] += 1
        self._end_turn(session_id, event)

    def _turn_failed(self, session_id: SessionId, event: ev.TurnFailed) -> None:
        self.outcomes[_bounded(event.code, ERRORS, "other_error")] += 1
        self._end_turn(session_id, event)

    def _agent_started(self, session_id: SessionId, event: ev.AgentStarted) -> None:
        self.agent_opened[_bounded(event.how, WAYS_TO_OPEN, OTHER)] += 1

    def _agent_exited(self, session_id: SessionId, event: ev.AgentExited) -> None:
        self.agent_exits[_bounded(event.reason, AGENT_LOSSES, OTHER)] += 1

    def _end_wait(self, session_id: SessionId, prompt_id: PromptId, at: int) -> None:
        accepted_at = self._accepted.pop((session_id, prompt_id), None)
        # A prompt that was accepted before this process began is not known here.
        if accepted_at is not None:
            self.queue_wait_s.observe(_seconds(accepted_at, at))

    def _end_turn(self, session_id: SessionId, event: ev.TurnCompleted | ev.TurnFailed) -> None:
        self._accepted.pop((session_id, event.prompt_id), None)
        prompt_id, started_at = self._running.get(session_id, (None, 0))
        if prompt_id == event.prompt_id:
            del self._running[session_id]
            self._silent.pop(session_id, None)
            self.turn_s.observe(_seconds(started_at, event.at))


def _seconds(since_ms: int, at_ms: int) -> float:
    # The wall clock may have been set back in between.
    return max(at_ms - since_ms, 0) / 1000


def _bounded(word: str, known: frozenset[str], other: str) -> str:
    return word if word in known else other


# -- the log -------------------------------------------------------------------------------------------------

SICK = (LogUnavailable, LogCorrupt)
"""Errors of the log itself. Other errors concern one append and do not predict the next."""


class Trouble(NamedTuple):
    """A failed write."""

    code: str
    size: int
    """Bytes of the largest write that failed."""


class _HookedLog:
    """A log with some calls replaced."""

    def __init__(self, log: EventLog | Owners, **calls: Callable[..., Any]) -> None:
        self._log = log
        self.__dict__ |= calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class LogMeter:
    """The duration of a log's appends, and the log's health."""

    def __init__(self, timer: Callable[[], float], took: Callable[[float], None]) -> None:
        """`took` receives the duration of each append in seconds of `timer`, including failed ones."""
        self.trouble: Trouble | None = None
        """The current trouble; `None` once a write at least as large has succeeded."""
        self.is_damaged = False
        """True if a read found damage. Only a restart with a restored log resets it."""
        self.taken_over = self.fence_refusals = 0
        self._timer = timer
        self._append_took = took

    def counted(self, owners: Owners) -> Owners:
        """Return the same owners, with takeovers counted here."""

        async def steal(life: int, limit: int) -> list[Claim]:
            return self._took(await owners.steal(life, limit))

        async def adopt(limit: int) -> list[Claim]:
            return self._took(await owners.adopt(limit))

        return cast("Owners", _HookedLog(owners, steal=steal, adopt=adopt))

    def _took(self, claims: list[Claim]) -> list[Claim]:
        self.taken_over += len(claims)
        return claims

    def hooked(self, log: EventLog) -> EventLog:
        """Return the same log, with writes observed here."""

        async def append(
            session_id: SessionId, bodies: Sequence[bytes], *, expected: int, unsettled: bool, durable: bool
        ) -> int:
            began = self._timer()
            try:
                head = await log.append(session_id, bodies, expected=expected, unsettled=unsettled, durable=durable)
            except SICK as error:
                self._failed(error.code, sum(map(len, bodies)))
                raise
            except NotOwner:
                self.fence_refusals += 1
                raise
            finally:
                self._append_took(self._timer() - began)
            if bodies and self.trouble is not None:
                # An append without bodies needs no space, so its success proves nothing.
                self._stored(sum(map(len, bodies)))
            return head

        async def create(session_id: SessionId) -> SessionHead:
            try:
                created = await log.create(session_id)
            except SICK as error:
                self._failed(error.code, 0)
                raise
            self._stored(0)
            return created

        async def read(session_id: SessionId, after: Position, *, max_events: int, max_bytes: int) -> list[Stored]:
            try:
                return await log.read(session_id, after, max_events=max_events, max_bytes=max_bytes)
            except LogCorrupt:
                self.is_damaged = True
                raise

        return cast("EventLog", _HookedLog(log, append=append, create=create, read=read))

    def forget(self, trouble: Trouble) -> None:
        """Reset the trouble: a write at least as large has succeeded since. A newer trouble stays."""
        if self.trouble is trouble:
            self.trouble = None

    def _failed(self, code: str, size: int) -> None:
        self.trouble = Trouble(code, size if self.trouble is None else max(size, self.trouble.size))

    def _stored(self, size: int) -> None:
        # On a nearly full disk small writes still succeed, while the next prompt fails.
        if self.trouble is not None and size >= self.trouble.size:
            self.trouble = None


# -- the event loop ------------------------------------------------------------------------------------------

EVERY_S: Final = 0.25
"""Seconds between two samples. Waking an idle daemon four times a second costs next to nothing."""
LAG_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
"""Bucket bounds. Timers of an idle loop are up to a millisecond late."""


async def sample_loop_lag(observe: Callable[[float], None]) -> None:
    """Report the lag of the running loop in seconds, until cancelled.

    It uses no clock port: a lag is real time, even if a test stops the daemon's clock.
    """
    clock = SystemClock()
    while True:
        due = clock.monotonic() + EVERY_S
        await clock.sleep(EVERY_S)
        observe(max(clock.monotonic() - due, 0.0))
