"""What turns cost in time and how they end, counted as they happen: a fold over events, for the metrics.

Takes every batch of events after its commit; gives counts and distributions. Durations are differences of the
events' own times, so what was measured can be found in the log. Holds open turns and open questions only. Never
raises, and is cheap: an update costs one count and one look-up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, get_args

from turnwire.core.events import (
    AgentExited,
    AgentStarted,
    AnyEvent,
    Event,
    PermissionRequested,
    PermissionResolved,
    PromptAccepted,
    PromptInjected,
    SessionUpdated,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
)
from turnwire.ids import PermissionId, PromptId, SessionId

STOP_REASONS = frozenset({"end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"})
AGENT_LOSSES = frozenset(
    {
        *("agent_exited", "agent_launch_failed", "agent_recycled", "agent_unavailable", "agent_unresponsive"),
        *("auth_required", "daemon_restarted", "daemon_stopped"),
    }
)
"""Why an agent is gone, and why turns fail with it."""
ERRORS = AGENT_LOSSES | {"agent_error"}
WAYS_TO_OPEN = frozenset({"new", "load", "resume", "fork", "lost"})
OTHER = "other"
"""The label of what an agent made up: the set of labels has to be bounded."""

SHORT_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
LONG_S = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


class Distribution:
    """How often a value was at most each bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Each bound with the number of values up to it, as Prometheus counts them."""
        names = [*(f"{each:g}" for each in self._bounds), "+Inf"]
        return list(zip(names, accumulate(self._counts), strict=True))


class TurnMeter:
    """The counts. Readers take them as they are."""

    def __init__(self) -> None:
        self.events: dict[type[Event], int] = dict.fromkeys(get_args(AnyEvent), 0)
        self.outcomes: Counter[str] = Counter()
        self.agent_opened: Counter[str] = Counter()
        self.agent_exits: Counter[str] = Counter()
        self.turn_s = Distribution(LONG_S)
        self.queue_wait_s = Distribution(LONG_S)
        self.permission_wait_s = Distribution(LONG_S)
        self.first_update_s = Distribution(SHORT_S)
        self._accepted: dict[tuple[SessionId, PromptId], int] = {}
        """When prompts that have not started were accepted."""
        self._running: dict[SessionId, tuple[PromptId, int]] = {}
        """The active turn of each session, and when it started."""
        self._silent: dict[SessionId, int] = {}
        """When turns started that have not said anything."""
        self._asked: dict[tuple[SessionId, PermissionId], int] = {}
        self._folds: dict[type[Event], Callable[[SessionId, Any], None]] = {
            PromptAccepted: self._prompt_accepted,
            PromptInjected: self._prompt_injected,
            TurnStarted: self._turn_started,
            PermissionRequested: self._permission_requested,
            PermissionResolved: self._permission_resolved,
            TurnCompleted: self._turn_completed,
            TurnFailed: self._turn_failed,
            AgentStarted: self._agent_started,
            AgentExited: self._agent_exited,
        }

    @property
    def open(self) -> int:
        """How much is held: turns and questions without an end."""
        return len(self._accepted) + len(self._running) + len(self._silent) + len(self._asked)

    def take(self, session_id: SessionId, events: Sequence[AnyEvent]) -> None:
        """Count a batch of one session."""
        counts, folds, silent = self.events, self._folds, self._silent
        for event in events:
            kind = type(event)
            counts[kind] += 1
            if isinstance(event, SessionUpdated):
                # Nearly every event is one of these, so nothing else is asked of it.
                if session_id in silent and event.prompt_id is not None and not event.echo:
                    self.first_update_s.observe(_seconds(silent.pop(session_id), event.at))
            elif kind in folds:
                folds[kind](session_id, event)

    def _prompt_accepted(self, session_id: SessionId, event: PromptAccepted) -> None:
        self._accepted[session_id, event.prompt_id] = event.at

    def _prompt_injected(self, session_id: SessionId, event: PromptInjected) -> None:
        self._end_wait(session_id, event.prompt_id, event.at)

    def _turn_started(self, session_id: SessionId, event: TurnStarted) -> None:
        self._end_wait(session_id, event.prompt_id, event.at)
        self._running[session_id] = (event.prompt_id, event.at)
        self._silent[session_id] = event.at

    def _permission_requested(self, session_id: SessionId, event: PermissionRequested) -> None:
        self._asked[session_id, event.request_id] = event.at

    def _permission_resolved(self, session_id: SessionId, event: PermissionResolved) -> None:
        asked_at = self._asked.pop((session_id, event.request_id), None)
        if asked_at is not None:
            self.permission_wait_s.observe(_seconds(asked_at, event.at))

    def _turn_completed(self, session_id: SessionId, event: TurnCompleted) -> None:
        self.outcomes[_bounded(event.stop_reason, STOP_REASONS, "other_stop_reason")] += 1
        self._end_turn(session_id, event)

    def _turn_failed(self, session_id: SessionId, event: TurnFailed) -> None:
        self.outcomes[_bounded(event.code, ERRORS, "other_error")] += 1
        self._end_turn(session_id, event)

    def _agent_started(self, session_id: SessionId, event: AgentStarted) -> None:
        self.agent_opened[_bounded(event.how, WAYS_TO_OPEN, OTHER)] += 1

    def _agent_exited(self, session_id: SessionId, event: AgentExited) -> None:
        self.agent_exits[_bounded(event.reason, AGENT_LOSSES, OTHER)] += 1

    def _end_wait(self, session_id: SessionId, prompt_id: PromptId, at: int) -> None:
        accepted_at = self._accepted.pop((session_id, prompt_id), None)
        # One that was accepted before this process began is not known here.
        if accepted_at is not None:
            self.queue_wait_s.observe(_seconds(accepted_at, at))

    def _end_turn(self, session_id: SessionId, event: TurnCompleted | TurnFailed) -> None:
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
