"""Traces: one from the caller over the turn to its tools, and into the agent."""

from __future__ import annotations

import sys
import timeit
from collections.abc import Mapping
from gzip import decompress as gunzip
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar

import msgspec
import pytest
from msgspec import Raw
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NoOpTracerProvider, StatusCode, format_span_id, format_trace_id
from tests.support.agents import HandSource
from tests.support.driving import World, content

from turnwire.errors import ConfigError, QueueFull
from turnwire.ids import PermissionId, PromptId, SessionId
from turnwire.limits import REMEMBERED_TOOLS
from turnwire.log import MemoryEventLog
from turnwire.runtime.node import open_node
from turnwire.server.telemetry.tracing import MOST_BEGUN, TurnTrace, TurnTraces, configure_tracing
from turnwire.session import events as ev
from turnwire.session.inputs import Prompt
from turnwire_testing import ManualClock
from turnwire_testing.scripted.agent import ScriptedSource

pytestmark = pytest.mark.anyio

S1 = SessionId("s1")
P1 = PromptId("p1")
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "vendor=1", "host": "localhost"}


class Kept:
    """A provider of the SDK, and the completed spans."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> ReadableSpan:
        [span] = [each for each in self.spans if each.name == name]
        return span


@pytest.fixture
def kept() -> Kept:
    return Kept()


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    return dict(span.attributes or {})


def meta_of(trace: TurnTrace) -> Raw:
    return Raw(msgspec.json.encode(trace.meta))


def accepted(trace: TurnTrace | None = None, meta: Raw | None = None) -> ev.PromptAccepted:
    given = meta if meta is not None else Raw(b"{}") if trace is None else meta_of(trace)
    return ev.PromptAccepted(at=1, prompt_id=P1, after_offset=0, meta=given)


def tool(tool_call_id: str, status: str | None, **fields: str) -> ev.SessionUpdated:
    kind = "tool_call" if fields else "tool_call_update"
    update = {"sessionUpdate": kind, "toolCallId": tool_call_id, "status": status, **fields}
    return ev.SessionUpdated(at=1, kind=kind, update=Raw(msgspec.json.encode(update)), prompt_id=P1)


def chunk(*, echo: bool = False) -> ev.SessionUpdated:
    return ev.SessionUpdated(at=1, kind="agent_message_chunk", update=Raw(b"{}"), prompt_id=P1, echo=echo)


STARTED = ev.TurnStarted(at=1, prompt_id=P1)
COMPLETED = ev.TurnCompleted(at=2, prompt_id=P1, stop_reason="end_turn", ending=ev.Ending.RESPONSE)
FAILED = ev.TurnFailed(at=2, prompt_id=P1, code="agent_exited", message="the agent is gone")


# -- whole ---------------------------------------------------------------------------------------------------


async def test_one_trace_leads_from_the_request_over_the_turn_to_the_tool(kept: Kept) -> None:
    traces, clock, log = TurnTraces(kept.provider), ManualClock(), MemoryEventLog()
    async with (
        ScriptedSource() as source,
        open_node(log, source, clock=clock, watch=traces.take) as node,
    ):
        world = World(node, log, source, clock)
        session_id = await world.create()
        trace = traces.begin(HEADERS)
        script = content("tool a read done\nsay 2 x")
        await node.submit(session_id, Prompt(at=1, prompt_id=P1, content=script, meta=meta_of(trace)))
        trace.accepted(session_id, P1)
        await world.end()
    turn, tool_span = kept.named("turnwire.turn"), kept.named("turnwire.tool")
    assert turn.context is not None
    assert turn.parent is not None
    assert tool_span.parent is not None
    assert format_trace_id(turn.context.trace_id) == TRACE
    assert format_span_id(turn.parent.span_id) == CALLER
    assert tool_span.parent == turn.context
    assert attributes(turn) == {
        "turnwire.session_id": "s1",
        "turnwire.prompt_id": "p1",
        "turnwire.stop_reason": "end_turn",
    }
    assert [each.name for each in turn.events] == ["turn_started", "first_update"]
    assert attributes(tool_span)["turnwire.tool_status"] == "completed"
    assert traces.open == 0


async def test_the_agent_gets_the_span_of_the_turn(kept: Kept) -> None:
    traces, clock, log, source = TurnTraces(kept.provider), ManualClock(), MemoryEventLog(), HandSource()
    async with open_node(log, source, clock=clock, watch=traces.take) as node:
        session_id = await node.create("/work")
        trace = traces.begin(HEADERS)
        await node.submit(session_id, Prompt(at=1, prompt_id=P1, content=content("hi"), meta=meta_of(trace)))
        agent = await source.agent()
        await agent.greet()
        request = await agent.answer("session/prompt", {"stopReason": "end_turn"})
    given = msgspec.json.decode(request.params)["_meta"]
    span_id = format_span_id(trace.span.get_span_context().span_id)
    assert given == {"traceparent": f"00-{TRACE}-{span_id}-01", "tracestate": "vendor=1"}
    assert span_id != CALLER


# -- without an SDK ------------------------------------------------------------------------------------------


def test_without_an_sdk_the_callers_trace_passes_as_it_came() -> None:
    traces = TurnTraces(NoOpTracerProvider())
    trace = traces.begin(HEADERS)
    assert trace.meta == {"traceparent": HEADERS["traceparent"], "tracestate": "vendor=1"}
    traces.take(S1, [accepted(trace), STARTED, chunk(), tool("t", "pending"), COMPLETED])
    trace.accepted(S1, P1)
    assert traces.open == 0


def test_without_an_sdk_and_without_a_caller_there_is_nothing_to_pass() -> None:
    assert TurnTraces(NoOpTracerProvider()).begin({}).meta == {}


def test_a_traceparent_that_is_none_is_not_passed(kept: Kept) -> None:
    wrong = {"traceparent": "00-xyz-01", "tracestate": "vendor=1"}
    assert TurnTraces(NoOpTracerProvider()).begin(wrong).meta == {}
    trace = TurnTraces(kept.provider).begin(wrong)
    assert list(trace.meta) == ["traceparent"]
    assert "xyz" not in trace.meta["traceparent"]


def test_a_trace_that_is_not_sampled_goes_on_unsampled_and_is_not_held() -> None:
    traces = TurnTraces(TracerProvider(sampler=ALWAYS_OFF))
    trace = traces.begin(HEADERS)
    assert trace.meta["traceparent"].startswith(f"00-{TRACE}-")
    assert trace.meta["traceparent"].endswith("-00")
    assert traces.open == 0


# -- the ways in ---------------------------------------------------------------------------------------------


def test_a_refused_prompt_ends_its_span_with_the_code(kept: Kept) -> None:
    traces = TurnTraces(kept.provider)
    traces.begin(HEADERS).refused(QueueFull("full"))
    span = kept.named("turnwire.turn")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "prompt_queue_full")
    assert traces.open == 0


def test_a_repeated_prompt_leaves_the_first_ones_span_alone(kept: Kept) -> None:
    traces = TurnTraces(kept.provider)
    first = traces.begin(HEADERS)
    traces.take(S1, [accepted(first), STARTED])
    first.accepted(S1, P1)
    traces.begin(HEADERS).accepted(S1, P1)
    [repeated] = kept.spans
    assert attributes(repeated)["turnwire.repeated"] is True
    assert traces.open == 1
    traces.take(S1, [COMPLETED])
    assert kept.spans[1].get_span_context() == first.span.get_span_context()


@pytest.mark.guarantee("G8")
def test_a_caller_that_went_away_after_acceptance_changes_nothing(kept: Kept) -> None:
    traces = TurnTraces(kept.provider)
    traces.take(S1, [accepted(traces.begin(HEADERS)), STARTED, COMPLETED])
    assert attributes(kept.named("turnwire.turn"))["turnwire.stop_reason"] == "end_turn"


def test_spans_of_prompts_that_never_came_are_bounded(kept: Kept) -> None:
    traces = TurnTraces(kept.provider)
    for _ in range(MOST_BEGUN + 10):
        traces.begin({})
    assert traces.open == MOST_BEGUN
    assert len(kept.spans) == 10


@pytest.mark.parametrize("meta", [b"{}", b"[]", b'{"traceparent":3}', b"1", b'{"traceparent":"00-a-b-01"}'])
def test_a_prompt_without_a_span_of_ours_is_left_alone(kept: Kept, meta: bytes) -> None:
    traces = TurnTraces(kept.provider)
    traces.begin(HEADERS)
    traces.take(S1, [accepted(meta=Raw(meta)), STARTED, chunk(), COMPLETED])
    assert traces.open == 1
    assert kept.spans == []


def test_a_turn_that_the_agent_began_has_a_trace_of_its_own(kept: Kept) -> None:
    traces = TurnTraces(kept.provider)
    traces.take(S1, [ev.TurnStarted(at=1, prompt_id=P1, origin=ev.Origin.AGENT), chunk(), COMPLETED])
    span = kept.named("turnwire.turn")
    assert span.parent is None
    assert attributes(span)["turnwire.prompt_id"] == "p1"


# -- what a turn tells ---------------------------------------------------------------------------------------


def test_a_failed_turn_is_an_error_with_its_code(kept: Kept) -> None:
    traces = TurnTraces(kept.provider)
    traces.take(S1, [accepted(traces.begin({})), STARTED, FAILED])
    span = kept.named("turnwire.turn")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "agent_exited")
    assert attributes(span)["error.type"] == "agent_exited"


def test_questions_cancels_and_the_first_update_are_told(kept: Kept) -> None:
    traces, question = TurnTraces(kept.provider), PermissionId("q1")
    asked = ev.PermissionRequested(
        at=1, request_id=question, agent_request_id=1, method="m", params=Raw(b'"secret"'), prompt_id=P1
    )
    answered = ev.PermissionResolved(
        at=1, request_id=question, end=ev.PermissionEnd.ANSWERED, answer=Raw(b'"secret"'), prompt_id=P1
    )
    cancel = ev.CancelAsked(at=1, prompt_id=P1, author="ann")
    first = [accepted(traces.begin({})), STARTED, chunk(echo=True), asked, answered]
    traces.take(S1, [*first, chunk(), chunk(), cancel, COMPLETED])
    span = kept.named("turnwire.turn")
    assert [each.name for each in span.events] == [
        "turn_started",
        "permission_request",
        "permission_resolved",
        "first_update",
        "prompt_cancelled",
    ]
    assert "secret" not in span.to_json()


def test_tool_calls_are_spans_below_the_turn(kept: Kept) -> None:
    traces = TurnTraces(kept.provider)
    updates = [
        tool("a", "pending", kind="read", title="secret"),
        tool("b", None, kind="execute"),
        tool("a", "in_progress"),
        tool("a", "completed"),
        tool("a", "completed"),
        tool("c", "failed", kind="edit"),
    ]
    traces.take(S1, [accepted(traces.begin({})), STARTED, *updates, COMPLETED])
    tools = [attributes(each) for each in kept.spans if each.name == "turnwire.tool"]
    told = [
        (each["turnwire.tool_call_id"], each["turnwire.tool_kind"], each["turnwire.tool_status"]) for each in tools
    ]
    assert told == [("a", "read", "completed"), ("c", "edit", "failed"), ("b", "execute", "open")]
    assert kept.spans[1].status.status_code is StatusCode.ERROR
    assert all("secret" not in each.to_json() for each in kept.spans)


def test_tool_calls_that_are_held_are_bounded(kept: Kept) -> None:
    traces = TurnTraces(kept.provider)
    traces.take(S1, [accepted(traces.begin({})), STARTED])
    traces.take(S1, [tool(f"done-{number}", "completed") for number in range(REMEMBERED_TOOLS * 2)])
    assert len(kept.spans) == REMEMBERED_TOOLS * 2
    traces.take(S1, [tool(f"open-{number}", "pending") for number in range(REMEMBERED_TOOLS * 2)])
    traces.take(S1, [COMPLETED])
    assert len(kept.spans) == REMEMBERED_TOOLS * 3 + 1


def test_an_update_that_cannot_be_read_is_no_tool(kept: Kept) -> None:
    traces = TurnTraces(kept.provider)
    broken = ev.SessionUpdated(at=1, kind="tool_call", update=Raw(b'{"toolCallId":7}'), prompt_id=P1)
    traces.take(S1, [accepted(traces.begin({})), STARTED, broken, COMPLETED])
    assert [each.name for each in kept.spans] == ["turnwire.turn"]


def test_updates_cost_next_to_nothing_without_an_sdk() -> None:
    traces, batch = TurnTraces(NoOpTracerProvider()), [chunk()] * 1000
    best_s = min(timeit.repeat(lambda: traces.take(S1, batch), number=1, repeat=20)) / len(batch)
    assert best_s < 2e-6


# -- exporting -----------------------------------------------------------------------------------------------


def test_without_an_endpoint_nothing_is_exported() -> None:
    assert configure_tracing({}) is None
    assert configure_tracing({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}) is None


class Collector(BaseHTTPRequestHandler):
    """Accepts exported spans."""

    received: ClassVar[list[tuple[str, bytes]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.received.append((self.path, gunzip(body) if self.headers["content-encoding"] == "gzip" else body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on stderr."""


def test_with_an_endpoint_spans_are_exported_under_our_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
            monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
            provider = configure_tracing()
            assert provider is not None
            traces = TurnTraces(provider)
            traces.take(S1, [accepted(traces.begin(HEADERS)), STARTED, COMPLETED])
            provider.shutdown()
        finally:
            server.shutdown()
            thread.join()
    [(path, body)] = Collector.received
    assert path == "/v1/traces"
    assert b"turnwire.turn" in body
    assert b"service.name" in body
    assert bytes.fromhex(TRACE) in body


def test_missing_packages_are_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"pip install turnwire\[otel\]"):
        configure_tracing({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"})
