"""Traces of a daemon, if the environment asks for them.

Takes the usual `OTEL_*` variables; sends what is left when the daemon ends. Without them it costs nothing.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager

from opentelemetry import trace

from turnwire.server.telemetry.tracing import configure_tracing


@contextmanager
def traced() -> Generator[None]:
    """Meanwhile traces are made."""
    provider = configure_tracing(os.environ)
    if provider is None:
        yield
        return
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()
