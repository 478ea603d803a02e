"""The meters: turns, readers, the log and requests in a scrape."""

from __future__ import annotations

import re
import timeit
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from msgspec import Raw
from prometheus_client.parser import text_string_to_metric_families
from tests.support.driving import World

from turnwire.errors import AppendConflict, LogError, LogFull
from turnwire.ids import AgentSessionId, PermissionId, PromptId, SessionId
from turnwire.log import EventLog, MemoryEventLog
from turnwire.runtime.node import open_node
from turnwire.server.telemetry.metrics import CONTENT_TYPE, HELP, Distribution, Metrics, Trouble, TurnMeter
from turnwire.session import events as ev
from turnwire_testing import ManualClock
from turnwire_testing.contracts.event_log import CHECKS, Check
from turnwire_testing.faults import Fail, FaultyLog
from turnwire_testing.scripted.agent import ScriptedSource

pytestmark = pytest.mark.anyio

S1, S2 = SessionId("s1"), SessionId("s2")


def samples(metrics: Metrics) -> dict[str, float]:
    """Return a scrape, parsed like Prometheus does: `name{label="value"}` to its value."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for name, labels, value, *_ in family.samples:
            inside = ",".join(f"{each}={labels[each]}" for each in sorted(labels))
            found[f"{name}{{{inside}}}" if inside else name] = value
    return found


def accepted(at: int, prompt_id: str = "p1") -> ev.PromptAccepted:
    return ev.PromptAccepted(at=at, prompt_id=PromptId(prompt_id), after_offset=0)


def started(at: int, prompt_id: str = "p1", origin: ev.Origin = ev.Origin.CLIENT) -> ev.TurnStarted:
    return ev.TurnStarted(at=at, prompt_id=PromptId(prompt_id), origin=origin)


def update(at: int, prompt_id: str | None = "p1", *, echo: bool = False) -> ev.SessionUpdated:
    named = None if prompt_id is None else PromptId(prompt_id)
    return ev.SessionUpdated(at=at, kind="agent_message_chunk", update=Raw(b"{}"), prompt_id=named, echo=echo)


def completed(at: int, prompt_id: str = "p1", stop_reason: str = "end_turn") -> ev.TurnCompleted:
    return ev.TurnCompleted(
        at=at, prompt_id=PromptId(prompt_id), stop_reason=stop_reason, ending=ev.Ending.RESPONSE
    )


def failed(at: int, prompt_id: str = "p1", code: str = "agent_exited") -> ev.TurnFailed:
    return ev.TurnFailed(at=at, prompt_id=PromptId(prompt_id), code=code, message="m")


def requested(at: int, request_id: str = "q1") -> ev.PermissionRequested:
    return ev.PermissionRequested(
        at=at, request_id=PermissionId(request_id), agent_request_id=1, method="m", params=Raw(b"{}")
    )


def resolved(at: int, request_id: str = "q1") -> ev.PermissionResolved:
    return ev.PermissionResolved(
        at=at, request_id=PermissionId(request_id), end=ev.PermissionEnd.ANSWERED, answer=Raw(b"{}")
    )


def metered(*batches: Sequence[ev.AnyEvent]) -> Metrics:
    metrics = Metrics(ManualClock())
    for batch in batches:
        metrics.take(S1, batch)
    return metrics


# -- the fold ------------------------------------------------------------------------------------------------


def test_a_turn_is_timed_from_acceptance_to_its_end() -> None:
    metrics = metered(
        [accepted(1000)],
        [started(3000), update(3250), update(9000), requested(10_000)],
        [resolved(14_000), completed(20_000)],
    )
    found = samples(metrics)
    assert found["turnwire_turns_total{outcome=end_turn}"] == 1
    assert found["turnwire_queue_wait_seconds_sum"] == 2
    assert found["turnwire_first_update_seconds_sum"] == 0.25
    assert found["turnwire_permission_wait_seconds_sum"] == 4
    assert found["turnwire_turn_seconds_sum"] == 17
    assert found["turnwire_turn_seconds_count"] == 1
    assert metrics.turns.open == 0


def test_the_first_update_is_the_turns_own_and_no_echo() -> None:
    metrics = metered(
        [accepted(0), started(0), update(100, None), update(200, echo=True), update(300), update(400)]
    )
    assert samples(metrics)["turnwire_first_update_seconds_sum"] == 0.3
    assert samples(metrics)["turnwire_first_update_seconds_count"] == 1


def test_a_prompt_that_never_started_has_an_outcome_and_no_duration() -> None:
    metrics = metered([accepted(0), completed(10, stop_reason="cancelled")])
    found = samples(metrics)
    assert found["turnwire_turns_total{outcome=cancelled}"] == 1
    assert found["turnwire_turn_seconds_count"] == 0
    assert metrics.turns.open == 0


def test_a_joined_prompt_waits_until_it_joins_and_leaves_the_running_turn_alone() -> None:
    joined = ev.PromptInjected(at=5000, prompt_id=PromptId("p2"), into=PromptId("p1"))
    metrics = metered(
        [accepted(0), started(0), accepted(2000, "p2"), joined, completed(6000, "p2"), completed(7000)]
    )
    found = samples(metrics)
    assert found["turnwire_queue_wait_seconds_sum"] == 3
    assert found["turnwire_turn_seconds_sum"] == 7
    assert found["turnwire_turns_total{outcome=end_turn}"] == 2
    assert metrics.turns.open == 0


def test_what_began_before_this_process_is_counted_and_not_timed() -> None:
    metrics = metered([resolved(1), failed(1, code="daemon_restarted"), started(2, "p2"), completed(1002, "p2")])
    found = samples(metrics)
    assert found["turnwire_turns_total{outcome=daemon_restarted}"] == 1
    assert found["turnwire_queue_wait_seconds_count"] == 0
    assert found["turnwire_permission_wait_seconds_count"] == 0
    assert found["turnwire_turn_seconds_sum"] == 1


def test_turns_of_two_sessions_with_one_id_are_two() -> None:
    metrics = Metrics(ManualClock())
    metrics.take(S1, [started(0, "agent-1", ev.Origin.AGENT)])
    metrics.take(S2, [started(5000, "agent-1", ev.Origin.AGENT)])
    metrics.take(S1, [completed(10_000, "agent-1")])
    metrics.take(S2, [completed(6000, "agent-1")])
    assert samples(metrics)["turnwire_turn_seconds_sum"] == 11


def test_a_clock_that_was_set_back_makes_no_negative_time() -> None:
    assert samples(metered([accepted(5000), started(1000), completed(500)]))["turnwire_turn_seconds_sum"] == 0


def test_labels_that_agents_make_up_are_bounded() -> None:
    metrics = Metrics(ManualClock())
    for number in range(100):
        metrics.take(S1, [completed(0, stop_reason=f"mood-{number}"), failed(0, code=f"code-{number}")])
        metrics.take(S1, [ev.AgentExited(at=0, reason=f"reason-{number}")])
        metrics.request(f"M{number}", None, 404)
    found = samples(metrics)
    assert found["turnwire_turns_total{outcome=other_stop_reason}"] == 100
    assert found["turnwire_turns_total{outcome=other_error}"] == 100
    assert found["turnwire_agent_exits_total{reason=other}"] == 100
    assert found["turnwire_http_requests_total{method=other,route=other,status=404}"] == 100


def test_agents_are_counted_by_how_a_session_came_to_them_and_lost_them() -> None:
    def opened(how: str) -> ev.AgentStarted:
        return ev.AgentStarted(
            at=0,
            agent_session_id=AgentSessionId("a"),
            protocol_version=1,
            turn_end=ev.TurnEnd.RESPONSE,
            how=how,
        )

    found = samples(
        metered([opened("new"), opened("load"), ev.AgentExited(at=0, reason="agent_exited"), opened("load")])
    )
    assert found["turnwire_agent_opened_total{how=new}"] == 1
    assert found["turnwire_agent_opened_total{how=load}"] == 2
    assert found["turnwire_agent_exits_total{reason=agent_exited}"] == 1


def test_every_type_of_event_is_counted_from_the_start() -> None:
    found = samples(metered([update(1), update(2)]))
    assert found["turnwire_events_total{type=session_update}"] == 2
    assert found["turnwire_events_total{type=turn_error}"] == 0


def test_nothing_is_held_of_turns_that_ended() -> None:
    meter = TurnMeter()
    for number in range(1000):
        name = f"p{number}"
        meter.take(
            S1, [accepted(0, name), started(0, name), requested(0, name), resolved(1, name), completed(2, name)]
        )
    assert meter.open == 0


def test_an_update_costs_next_to_nothing() -> None:
    meter = TurnMeter()
    meter.take(S1, [accepted(0), started(0)])
    batch = [update(1)] * 1000
    # The best of several, so that a busy machine does not count; the bound is far above the actual time.
    best_s = min(timeit.repeat(lambda: meter.take(S1, batch), number=1, repeat=20)) / len(batch)
    assert best_s < 2e-6


def test_a_distribution_counts_a_value_up_to_its_bound() -> None:
    values = Distribution((0.1, 1))
    for value in (0.05, 0.1, 0.5, 7):
        values.observe(value)
    assert values.buckets() == [("0.1", 2), ("1", 3), ("+Inf", 4)]
    assert values.total == pytest.approx(7.65)


# -- readers, requests, the log ------------------------------------------------------------------------------


def test_requests_are_counted_by_method_route_and_status() -> None:
    metrics = metered()
    metrics.request("POST", "/session/{session_id}/prompt", 202)
    metrics.request("POST", "/session/{session_id}/prompt", 202)
    found = samples(metrics)
    assert found["turnwire_http_requests_total{method=POST,route=/session/{session_id}/prompt,status=202}"] == 2


def test_subscribers_are_counted_while_they_are_open() -> None:
    metrics = metered()
    with metrics.subscriber(S1), metrics.subscriber(None):
        assert samples(metrics)["turnwire_subscribers"] == 2
    metrics.subscriber_stalled()
    found = samples(metrics)
    assert (found["turnwire_subscribers"], found["turnwire_subscribers_stalled_total"]) == (0, 1)


def test_what_goes_to_other_nodes_is_counted() -> None:
    metrics = metered()
    metrics.forwards, metrics.relays = {"answered": 3, "lost": 1}, {"socket": 2}
    found = samples(metrics)
    assert found["turnwire_forwards_total{result=answered}"] == 3
    assert found["turnwire_forwards_total{result=lost}"] == 1
    assert found["turnwire_relays_total{kind=socket}"] == 2


def test_two_daemons_in_one_process_count_apart() -> None:
    one, other = metered([update(1)]), metered()
    assert samples(one)["turnwire_events_total{type=session_update}"] == 1
    assert samples(other)["turnwire_events_total{type=session_update}"] == 0


def test_a_scrape_has_every_metric_with_its_help_and_nothing_else_of_ours() -> None:
    lines = metered().render().decode().splitlines()
    told = {line.split()[2]: line.split(maxsplit=3)[3] for line in lines if line.startswith("# HELP turnwire_")}
    assert told == dict(HELP)
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines)
    assert CONTENT_TYPE.startswith("text/plain; version=0.0.4")


async def test_appends_are_timed_also_those_that_fail() -> None:
    clock = ManualClock()
    metrics = Metrics(clock)

    class Slow(MemoryEventLog):
        async def append(
            self, session_id: SessionId, bodies: Sequence[bytes], *, expected: int, unsettled: bool, durable: bool
        ) -> int:
            clock.advance(0.002)
            return await super().append(session_id, bodies, expected=expected, unsettled=unsettled, durable=durable)

    log = metrics.timed(Slow())
    await log.create(S1)
    await log.append(S1, [b"1"], expected=0, unsettled=False, durable=False)
    with pytest.raises(AppendConflict):
        await log.append(S1, [b"1"], expected=0, unsettled=False, durable=False)
    found = samples(metrics)
    assert found["turnwire_log_append_seconds_count"] == 2
    assert found["turnwire_log_append_seconds_bucket{le=0.001}"] == 0
    assert found["turnwire_log_append_seconds_bucket{le=0.0025}"] == 2


async def test_what_the_log_could_not_take_is_known_until_something_as_large_is_taken() -> None:
    metrics = metered()
    full = [Fail(call="append", at=each, error=LogFull("the disk is full")) for each in (2, 5)]
    log = metrics.timed(FaultyLog(MemoryEventLog(), full))
    timed = metrics.log

    async def append(*bodies: bytes, expected: int = 1) -> Trouble | None:
        with suppress(LogError):
            await log.append(S1, bodies, expected=expected, unsettled=False, durable=False)
        return timed.trouble

    await log.create(S1)
    assert await append(b"1", expected=0) is None
    full_once = await append(b"12", b"345")
    assert full_once is not None
    assert full_once == Trouble("log_full", 5)
    assert await append() is full_once  # needs no room
    assert await append(b"12345", expected=0) is full_once  # refused for another reason
    full_again = await append(b"1")
    assert full_again == full_once
    timed.forget(full_once)
    assert timed.trouble is full_again
    await log.create(S2)
    assert await append(b"1234") is full_again
    assert await append(b"12345", expected=2) is None


async def test_a_session_that_the_log_could_not_begin_is_known_until_one_is_begun() -> None:
    metrics = metered()
    log = metrics.timed(FaultyLog(MemoryEventLog(), [Fail(call="create", at=1, error=LogFull("the disk is full"))]))
    with pytest.raises(LogFull):
        await log.create(S1)
    assert metrics.log.trouble == Trouble("log_full", 0)
    await log.create(S1)
    assert metrics.log.trouble is None


@pytest.mark.parametrize("check", CHECKS, ids=str)
async def test_a_timed_log_keeps_the_contract(check: Check) -> None:
    @asynccontextmanager
    async def open_log() -> AsyncGenerator[EventLog]:
        log = metered().timed(MemoryEventLog())
        yield log
        await log.aclose()

    await check(open_log)


async def test_a_running_node_is_seen_in_a_scrape() -> None:
    clock, log = ManualClock(), MemoryEventLog()
    metrics = Metrics(clock)
    async with (
        ScriptedSource() as source,
        open_node(metrics.timed(log), source, clock=clock, watch=metrics.take) as node,
    ):
        world = World(node, log, source, clock)
        session_id = await world.create()
        session = await node.session(session_id)
        metrics.sessions = lambda: [session]
        await world.prompt("gate g", "p1")
        await world.prompt("say 3 x", "p2")
        with metrics.subscriber(session_id) as near, metrics.subscriber(session_id) as far:
            near.offset = session.head - 1
            far.offset = 1
            found = samples(metrics)
            assert found["turnwire_subscriber_lag_events_max"] == session.head - 1
            assert found["turnwire_subscriber_lag_events"] == session.head
        assert (found["turnwire_sessions_loaded"], found["turnwire_prompts_queued"]) == (1, 1)
        source.gates.open("g")
        await world.end("p2")
        found = samples(metrics)
        assert found["turnwire_turns_total{outcome=end_turn}"] == 2
        assert found["turnwire_prompts_queued"] == 0
        assert found["turnwire_log_append_seconds_count"] > 0
        stored = sum(value for name, value in found.items() if name.startswith("turnwire_events_total"))
        assert stored == session.head
        assert metrics.turns.open == 0


def test_every_metric_on_the_operations_page_exists() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "operations.md").read_text(encoding="utf-8")
    named = re.findall(r"`(turnwire_\w+)`", page)
    assert named
    assert [each for each in named if each not in HELP] == []
