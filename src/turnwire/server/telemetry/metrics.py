"""What the daemon does, in numbers for Prometheus.

Takes events, requests and readers as they come; gives the text of one scrape. Every label has a bounded set of
values: no session, prompt or address is one. Counts are plain numbers until somebody asks, so counting costs next
to nothing, and each `Metrics` is its own registry: nothing is shared with others in the process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from turnwire.core.events import AnyEvent
from turnwire.ids import SessionId
from turnwire.log.base import EventLog
from turnwire.runtime.clock import Clock
from turnwire.runtime.session import Session
from turnwire.server.telemetry.timed_log import TimedLog
from turnwire.server.telemetry.turn_meter import Distribution, TurnMeter

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
APPEND_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER = "other"

HELP: Mapping[str, str] = {
    "turnwire_turns_total": "Turns that ended, by stop reason or error code.",
    "turnwire_turn_seconds": "From the start of a turn to its end.",
    "turnwire_queue_wait_seconds": "From the acceptance of a prompt to its start, or to its joining a turn.",
    "turnwire_permission_wait_seconds": "From a permission request to its resolution.",
    "turnwire_first_update_seconds": "From the start of a turn to its first update.",
    "turnwire_events_total": "Events stored, by type.",
    "turnwire_agent_opened_total": "Sessions opened at an agent, by how; all but new and fork follow a restart.",
    "turnwire_agent_exits_total": "Sessions that lost their agent, by reason.",
    "turnwire_subscribers": "Open event streams.",
    "turnwire_subscriber_lag_events": "Events that open streams have not been given yet, all together.",
    "turnwire_subscriber_lag_events_max": "Events that the slowest open stream has not been given yet.",
    "turnwire_subscribers_stalled_total": "Readers that took nothing for too long and were let go.",
    "turnwire_log_append_seconds": "From handing events to the log to its acknowledgement.",
    "turnwire_http_requests_total": "Requests, by method, route and status.",
    "turnwire_sessions_loaded": "Sessions in memory.",
    "turnwire_prompts_queued": "Accepted prompts that have not started.",
}
"""Every metric of ours, by name."""


class Subscriber:
    """One open stream: how far its reader has been given events."""

    def __init__(self, session_id: SessionId | None) -> None:
        self.session_id = session_id
        self.offset: int | None = None

    def at(self, offset: int) -> None:
        """Everything up to this offset was written."""
        self.offset = offset


class _Levels(NamedTuple):
    sessions: int
    queued: int
    lags: list[int]


class Metrics:
    """All meters of one daemon."""

    def __init__(self, clock: Clock) -> None:
        self.turns = TurnMeter()
        self.sessions: Callable[[], Collection[Session]] = tuple
        """Gives the sessions in memory; asked at each scrape. The daemon sets it once it has a node."""
        self.log: TimedLog | None = None
        """The log that is timed, which knows whether it takes anything."""
        self._clock = clock
        self._append_s = Distribution(APPEND_S)
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._stalled = 0
        self._subscribers: set[Subscriber] = set()
        self._registry = CollectorRegistry()
        self._registry.register(_Scrape(self._collect))
        ProcessCollector(registry=self._registry)

    def take(self, session_id: SessionId, events: Sequence[AnyEvent]) -> None:
        """Count a batch of events after its commit."""
        self.turns.take(session_id, events)

    def timed(self, log: EventLog) -> EventLog:
        """The same log, with its appends timed."""
        self.log = TimedLog(log, self._clock, self._append_s.observe)
        return self.log

    def request(self, method: str, route: str | None, status: int) -> None:
        """Count a request. `route` is the template, none if there is no such route."""
        self._requests[method if method in METHODS else OTHER, route or OTHER, str(status)] += 1

    @contextmanager
    def subscriber(self, session_id: SessionId | None) -> Generator[Subscriber]:
        """Count an open stream meanwhile. One of several sessions names none, and has no lag."""
        subscriber = Subscriber(session_id)
        self._subscribers.add(subscriber)
        try:
            yield subscriber
        finally:
            self._subscribers.remove(subscriber)

    def subscriber_stalled(self) -> None:
        """A reader took nothing for too long and was let go."""
        self._stalled += 1

    def render(self) -> bytes:
        """One scrape, of the type `CONTENT_TYPE`."""
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
            _gauge("turnwire_subscribers", len(self._subscribers)),
            _gauge("turnwire_subscriber_lag_events", sum(levels.lags)),
            _gauge("turnwire_subscriber_lag_events_max", max(levels.lags, default=0)),
            _counter("turnwire_subscribers_stalled_total", (), {(): self._stalled}),
            _histogram("turnwire_log_append_seconds", self._append_s),
            _counter("turnwire_http_requests_total", ("method", "route", "status"), requests),
            _gauge("turnwire_sessions_loaded", levels.sessions),
            _gauge("turnwire_prompts_queued", levels.queued),
        ]

    def _levels(self) -> _Levels:
        sessions = self.sessions()
        heads = {each.session_id: each.head for each in sessions}
        # A session that is not in memory gets no events, so nobody falls behind there.
        lags = [
            max(heads[each.session_id] - each.offset, 0)
            for each in self._subscribers
            if each.offset is not None and each.session_id is not None and each.session_id in heads
        ]
        return _Levels(len(sessions), sum(len(each.state.queue) for each in sessions), lags)


class _Scrape(Collector):
    """Makes the metrics when a registry asks, and not when it is registered."""

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


def _histogram(name: str, values: Distribution) -> Metric:
    return HistogramMetricFamily(name, HELP[name], buckets=values.buckets(), sum_value=values.total)
