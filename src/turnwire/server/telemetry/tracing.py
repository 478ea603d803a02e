"""Traces of turns with OpenTelemetry: one trace from the caller over the turn to its tools and into the agent.

The input is the headers of a request and, after each commit, events. The output is a span `turnwire.turn` per turn
and the `traceparent` that the agent gets with the prompt. It uses OpenTelemetry's API only: without a configured
SDK, no span is recorded and the caller's own `traceparent` is forwarded to the agent unchanged. Payloads are never
in a span.

Theory of operation
-------------------
The span begins before the prompt is submitted, because its id must be in the prompt's `_meta`. From there the log
joins the two: `prompt_accepted` carries that `_meta`, so the fold finds the span by its `traceparent` and does not
depend on the request's task, which may be gone by then.

    T1  A span that was begun is ended once: by the turn's end, by a rejection, by being a repeat of another prompt,
        or by being the oldest of more than `MOST_BEGUN`.
    T2  Only the spans of open turns and of prompts in submission are held.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec import Raw, Struct, UnsetType
from opentelemetry import trace
from opentelemetry.trace import Span, SpanContext, SpanKind, Status, StatusCode, Tracer, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from turnwire.errors import ConfigError, TurnwireError
from turnwire.ids import PromptId, SessionId
from turnwire.limits import REMEMBERED_TOOLS
from turnwire.session import events as ev
from turnwire.wire.schema.update import FINAL_TOOL_STATUS, TOOL_CALLS

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider as SdkTracerProvider

MOST_BEGUN = 4096
"""Maximum number of spans of prompts in submission. One stays only if its request was cancelled early."""
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

_PROPAGATOR = TraceContextTextMapPropagator()
_Key: TypeAlias = tuple[SessionId, PromptId]


class _Meta(Struct):
    traceparent: str | None = None


class _Tool(Struct, rename="camel"):
    tool_call_id: str
    kind: str | None = None
    status: str | None = None


class TurnTrace:
    """The trace of one prompt during submission. `meta` goes into the prompt's `_meta`."""

    def __init__(self, span: Span, meta: dict[str, str], begun: dict[str, Span]) -> None:
        self.span = span
        self.meta = meta
        self._begun = begun

    def accepted(self, session_id: SessionId, prompt_id: PromptId) -> None:
        """Record the id of the accepted prompt. From here on events drive the span."""
        if self._begun.pop(self.meta.get("traceparent", ""), None) is not None:
            # No event used the span: the same prompt was accepted before, with another trace.
            self.span.set_attributes(_named(session_id, prompt_id) | {"turnwire.repeated": True})
            self.span.end()

    def refused(self, error: TurnwireError) -> None:
        """End the span of a rejected prompt."""
        if self._begun.pop(self.meta.get("traceparent", ""), None) is not None:
            _fail(self.span, error.code)
            self.span.end()


class _Turn:
    """The span of an open turn and those of its open tool calls."""

    def __init__(self, span: Span) -> None:
        self.span = span
        self.is_silent = True
        self.tools: dict[str, Span | None] = {}
        """Spans by tool call id; `None` for an ended one, so that a later update makes no second span."""

    def has_room(self) -> bool:
        """Return whether another tool call can be held, after removing those that have ended."""
        if len(self.tools) >= REMEMBERED_TOOLS:
            self.tools = {name: span for name, span in self.tools.items() if span is not None}
        return len(self.tools) < REMEMBERED_TOOLS


class TurnTraces:
    """Spans of turns, from events. The default provider is the process's, if any."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer: Tracer = (provider or trace.get_tracer_provider()).get_tracer("turnwire")
        self._begun: dict[str, Span] = {}
        """Spans by the `traceparent` that their prompt carries."""
        self._open: dict[_Key, _Turn] = {}

    @property
    def open(self) -> int:
        """Number of spans held."""
        return len(self._begun) + len(self._open)

    def begin(self, headers: Mapping[str, str]) -> TurnTrace:
        """Begin a prompt's span, below the caller's if it sent a `traceparent`. Names are in lower case."""
        context = _PROPAGATOR.extract(headers)
        caller = trace.get_current_span(context).get_span_context()
        span = self._tracer.start_span("turnwire.turn", context, SpanKind.SERVER)
        if span.get_span_context().span_id == caller.span_id:
            return TurnTrace(span, _as_it_came(headers, caller), self._begun)
        meta: dict[str, str] = {}
        _PROPAGATOR.inject(meta, trace.set_span_in_context(span))
        if span.is_recording():
            if len(self._begun) >= MOST_BEGUN:
                self._begun.pop(next(iter(self._begun))).end()
            self._begun[meta["traceparent"]] = span
        return TurnTrace(span, meta, self._begun)

    def take(self, session_id: SessionId, events: Sequence[ev.AnyEvent]) -> None:
        """Update the spans from a batch of events."""
        for event in events:
            if isinstance(event, ev.SessionUpdated):
                if self._open and event.prompt_id is not None:
                    self._updated(self._open.get((session_id, event.prompt_id)), event)
            elif isinstance(event, ev.PromptAccepted):
                self._accepted(session_id, event)
            elif isinstance(event, ev.TurnStarted):
                self._started(session_id, event)
            elif self._open:
                self._told(session_id, event)

    def _accepted(self, session_id: SessionId, event: ev.PromptAccepted) -> None:
        span = self._begun.pop(_traceparent(event.meta), None) if self._begun else None
        if span is not None:
            span.set_attributes(_named(session_id, event.prompt_id))
            self._open[session_id, event.prompt_id] = _Turn(span)

    def _started(self, session_id: SessionId, event: ev.TurnStarted) -> None:
        if event.origin is ev.Origin.AGENT:
            span = self._tracer.start_span("turnwire.turn", attributes=_named(session_id, event.prompt_id))
            if span.is_recording():
                self._open[session_id, event.prompt_id] = _Turn(span)
            return
        turn = self._open.get((session_id, event.prompt_id))
        if turn is not None:
            turn.span.add_event("turn_started")

    def _updated(self, turn: _Turn | None, event: ev.SessionUpdated) -> None:
        if turn is None or event.echo:
            return
        if turn.is_silent:
            turn.is_silent = False
            turn.span.add_event("first_update", {"turnwire.update": event.kind})
        if event.kind in TOOL_CALLS:
            self._tool(turn, event.update)

    def _tool(self, turn: _Turn, update: Raw) -> None:
        try:
            tool = msgspec.json.decode(update, type=_Tool)
        except msgspec.DecodeError:
            return
        if tool.tool_call_id in turn.tools:
            span = turn.tools[tool.tool_call_id]
        elif turn.has_room():
            context = trace.set_span_in_context(turn.span)
            attributes = {"turnwire.tool_call_id": tool.tool_call_id}
            span = self._tracer.start_span("turnwire.tool", context, attributes=attributes)
        else:
            return
        if span is None:
            return
        if tool.kind is not None:
            span.set_attribute("turnwire.tool_kind", tool.kind)
        is_final = tool.status in FINAL_TOOL_STATUS
        turn.tools[tool.tool_call_id] = None if is_final else span
        if is_final:
            _end_tool(span, tool.status)

    def _told(self, session_id: SessionId, event: ev.AnyEvent) -> None:
        if isinstance(event, ev.PermissionRequested | ev.PermissionResolved | ev.CancelAsked):
            turn = self._open.get((session_id, event.prompt_id)) if event.prompt_id is not None else None
            if turn is not None:
                turn.span.add_event(str(event.__struct_config__.tag), _about(event))
        elif isinstance(event, ev.TurnCompleted | ev.TurnFailed):
            turn = self._open.pop((session_id, event.prompt_id), None)
            if turn is not None:
                _end(turn, event)


def configure_tracing(environ: Mapping[str, str] = os.environ) -> SdkTracerProvider | None:
    """Return a provider that exports over OTLP/HTTP, if the environment names an endpoint; the caller shuts it
    down.

    The address, headers and interval are OpenTelemetry's own configuration, from the process's environment.

    Raises:
        ConfigError: An endpoint is named and the optional packages are not installed.
    """
    if not any(environ.get(name) for name in ENDPOINTS):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider as SdkTracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigError(
            "traces are to be exported, and the packages for it are missing; run `pip install turnwire[otel]`,"
            f" or unset {ENDPOINTS[0]}"
        ) from None
    named = {} if environ.get("OTEL_SERVICE_NAME") else {"service.name": "turnwire"}
    provider = SdkTracerProvider(resource=Resource.create(named))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def _as_it_came(headers: Mapping[str, str], caller: SpanContext) -> dict[str, str]:
    if not caller.is_valid:
        return {}
    return {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}


def _traceparent(meta: Raw | UnsetType) -> str:
    try:
        return "" if isinstance(meta, UnsetType) else msgspec.json.decode(meta, type=_Meta).traceparent or ""
    except msgspec.DecodeError:
        return ""


def _named(session_id: SessionId, prompt_id: PromptId) -> dict[str, str | bool]:
    return {"turnwire.session_id": session_id, "turnwire.prompt_id": prompt_id}


def _about(event: ev.PermissionRequested | ev.PermissionResolved | ev.CancelAsked) -> dict[str, str]:
    if isinstance(event, ev.CancelAsked):
        return {}
    about = {"turnwire.request_id": str(event.request_id)}
    if isinstance(event, ev.PermissionResolved):
        about["turnwire.permission_end"] = event.end.value
    return about


def _end(turn: _Turn, event: ev.TurnCompleted | ev.TurnFailed) -> None:
    for span in turn.tools.values():
        if span is not None:
            _end_tool(span, None)
    if isinstance(event, ev.TurnCompleted):
        turn.span.set_attribute("turnwire.stop_reason", event.stop_reason)
    else:
        _fail(turn.span, event.code)
    turn.span.end()


def _end_tool(span: Span, status: str | None) -> None:
    if status == "failed":
        _fail(span, "tool_failed")
    # A tool call without an end ended with its turn and is marked as open.
    span.set_attribute("turnwire.tool_status", status or "open")
    span.end()


def _fail(span: Span, code: str) -> None:
    span.set_attribute("error.type", code)
    span.set_status(Status(StatusCode.ERROR, code))
