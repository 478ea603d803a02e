"""Whether the daemon lives and takes work, what it counts, and what its routes are.

Takes nothing; gives small answers that load balancers, supervisors and tools read. `health` says that the process
answers, with `deep` that its log does; `ready` says that new work is welcome. Never says more than that to
strangers.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import anyio
from msgspec import Struct
from starlette.types import Send

from turnwire.errors import AppendConflict, SessionNotFound, TurnwireError
from turnwire.server.daemon import Daemon
from turnwire.server.document import openapi
from turnwire.server.door.identity import Role
from turnwire.server.endpoint import Call, Endpoint, Reply
from turnwire.server.telemetry.metrics import CONTENT_TYPE

DEEP_S = 5.0
"""A log that takes longer is of no use to anybody who waits."""


class HealthQuery(Struct, frozen=True):
    deep: bool = False
    """Ask the log too."""


class Health(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    status: Literal["ok", "degraded"]
    reason: str | None = None
    append_ms: float | None = None
    """How long the log took to write; only told by a deep look at a log with sessions in it."""


class Readiness(Struct, frozen=True, kw_only=True, omit_defaults=True):
    status: Literal["ready", "stopping", "degraded"]
    reason: str | None = None


async def health(call: Call) -> Reply:
    if not call.query.deep:
        return Reply(Health(status="ok"))
    began = call.daemon.clock.monotonic()
    reason, wrote = await _ask_log(call.daemon)
    if reason is not None:
        return Reply(Health(status="degraded", reason=reason), 503)
    took_ms = round((call.daemon.clock.monotonic() - began) * 1000, 3)
    return Reply(Health(status="ok", append_ms=took_ms if wrote else None))


async def ready(call: Call) -> Reply:
    if call.daemon.stopping.is_set():
        return Reply(Readiness(status="stopping", reason="shutting_down"), 503)
    reason, _ = await _ask_log(call.daemon)
    if reason is not None:
        return Reply(Readiness(status="degraded", reason=reason), 503)
    return Reply(Readiness(status="ready"))


async def _ask_log(daemon: Daemon) -> tuple[str | None, bool]:
    """Why the log is of no use now, and whether it was written to. The write changes nothing."""
    with anyio.move_on_after(DEEP_S):
        try:
            return None, await _write_nothing(daemon)
        except TurnwireError as error:
            return error.code, False
    return "log_too_slow", False


async def _write_nothing(daemon: Daemon) -> bool:
    heads = await daemon.log.sessions(limit=1)
    for session_id, _, _, head, unsettled in heads:
        try:
            await daemon.log.append(session_id, (), expected=head, unsettled=unsettled, durable=False)
        except (AppendConflict, SessionNotFound):
            continue  # its owner was faster, so the log writes
    return bool(heads)


async def metrics(call: Call, send: Send) -> None:
    body = call.daemon.metrics.render()
    headers = [
        (b"content-type", CONTENT_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def document(call: Call) -> Reply:
    return Reply(_document())


@cache
def _document() -> dict[str, Any]:
    # The table has this route in it, so it cannot be imported before this module is there.
    from turnwire.server.routes.table import ENDPOINTS as EVERY

    return openapi(EVERY)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET",
        path="/health",
        act=health,
        summary="Whether the daemon lives; with `deep` whether its log does",
        role=None,
        query=HealthQuery,
        gives=Health,
        also={503: Health},
        tag="daemon",
    ),
    Endpoint(
        method="GET",
        path="/ready",
        act=ready,
        summary="Whether the daemon takes new work",
        role=None,
        gives=Readiness,
        also={503: Readiness},
        tag="daemon",
    ),
    Endpoint(
        method="GET",
        path="/metrics",
        stream=metrics,
        summary="Numbers for Prometheus",
        role=Role.OBSERVER,
        media_type="text/plain",
        tag="daemon",
    ),
    Endpoint(
        method="GET",
        path="/openapi.json",
        act=document,
        summary="This document",
        role=None,
        gives=dict,
        tag="daemon",
    ),
)
"""The routes of the daemon itself."""
