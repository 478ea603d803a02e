"""Health, readiness and metrics of the daemon, for load balancers and supervisors.

`health` reports that the process answers, with `deep` that its log answers as well; `ready` reports that the daemon
accepts new work. A log that failed a write counts as failed until it accepts a write of the same size, and each
request tries one: otherwise a daemon that gets no work because it is not ready would never recover. A node of a
cluster is not ready while it cannot prove to the others that it is alive. Callers without a credential get no
further details.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import Literal

import anyio
from msgspec import Struct
from starlette.types import Send

from turnwire.errors import AppendConflict, LifeOver, LogCorrupt, LogUnavailable, SessionNotFound, TurnwireError
from turnwire.ids import SessionId
from turnwire.log.base import EventLog, Snapshot
from turnwire.server.access.tokens import Role
from turnwire.server.daemon import Daemon
from turnwire.server.endpoint import Call, Endpoint, Reply
from turnwire.server.telemetry.metrics import CONTENT_TYPE, LogMeter, Trouble

DEEP_S = 5.0
"""Timeout for the log; a slower log is useless to its callers."""
PROBE = "probe"
"""Prefix of the snapshot that is written to test for free space. It is never read."""
LEAST_ROOM, MOST_ROOM = 64 * 1024, 1024 * 1024
"""Bounds of its size in bytes. It is as large as the write that failed, because a smaller one might fit when the
next event does not. The upper bound limits the disk time that an anonymous caller can use.
"""


class HealthQuery(Struct, frozen=True):
    deep: bool = False
    """Check the log as well."""


class Health(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    status: Literal["ok", "degraded"]
    reason: str | None = None
    recovering: bool = False
    """Sessions that a crash left open and that still get their final event. A request for one waits for that."""
    append_ms: float | None = None
    """Milliseconds of a write to the log; only in a deep check of a log that has sessions."""


class Readiness(Struct, frozen=True, kw_only=True, omit_defaults=True):
    status: Literal["ready", "stopping", "degraded"]
    reason: str | None = None
    recovering: bool = False
    """As in `health`. The daemon accepts new work during recovery."""


async def health(call: Call) -> Reply:
    recovering = call.daemon.node.is_recovering
    if not call.query.deep:
        return Reply(Health(status="ok", recovering=recovering))
    began = call.daemon.clock.monotonic()
    reason, wrote = await _ask_log(call.daemon)
    if reason is not None:
        return Reply(Health(status="degraded", reason=reason), 503)
    took_ms = round((call.daemon.clock.monotonic() - began) * 1000, 3)
    return Reply(Health(status="ok", recovering=recovering, append_ms=took_ms if wrote else None))


async def ready(call: Call) -> Reply:
    if call.daemon.lost.is_set():
        return Reply(Readiness(status="stopping", reason=LifeOver.code), 503)
    if call.daemon.stopping.is_set() or call.daemon.drain_asked.is_set():
        return Reply(Readiness(status="stopping", reason="shutting_down"), 503)
    members = call.daemon.members
    if members is not None and members.missing_s > call.daemon.limits.log_retry_s:
        return Reply(Readiness(status="degraded", reason=LogUnavailable.code), 503)
    reason, _ = await _ask_log(call.daemon)
    if reason is not None:
        return Reply(Readiness(status="degraded", reason=reason), 503)
    return Reply(Readiness(status="ready", recovering=call.daemon.node.is_recovering))


async def _ask_log(daemon: Daemon) -> tuple[str | None, bool]:
    """Return why the log is unusable now, and whether it was written to. The write changes nothing."""
    if daemon.metrics.log.is_damaged:
        return LogCorrupt.code, False
    trouble = daemon.metrics.log.trouble
    with anyio.move_on_after(DEEP_S):
        try:
            if trouble is None:
                return None, await _write_nothing(daemon)
            return await _try_again(daemon.metrics.log, daemon.log, trouble), True
        except TurnwireError as error:
            return error.code, False
    return "log_too_slow" if trouble is None else trouble.code, False


async def _try_again(meter: LogMeter, log: EventLog, trouble: Trouble) -> str | None:
    """Retry the failed write and return the log's remaining failure. Raises the error of the retry."""
    with suppress(SessionNotFound):  # it was deleted meanwhile: nothing was learnt
        await _take_room(log, trouble.size)
        meter.forget(trouble)
    return None if meter.trouble is None else meter.trouble.code


async def _take_room(log: EventLog, size: int) -> None:
    """Write that many bytes and free them again, so that the log does not grow with the number of tries."""
    heads = await log.sessions(limit=1)
    if not heads:
        # A session without an event is not listed.
        session_id = SessionId(f"{PROBE}-{secrets.token_hex(8)}")
        await log.create(session_id)
        await log.delete(session_id)
        return
    # Random bytes do not compress, and they differ each time because an unchanged page would not be written.
    room = secrets.token_bytes(min(max(size, LEAST_ROOM), MOST_ROOM))
    for body in (room, b""):
        await log.save_snapshot(heads[0].session_id, Snapshot(PROBE, 0, 1, body))


async def _write_nothing(daemon: Daemon) -> bool:
    if daemon.members is not None:
        # The log is written with each heartbeat, and the age of the last one was checked above. The first session
        # may belong to another node.
        await daemon.log.sessions(limit=1)
        return False
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
)
"""The routes of the daemon itself."""
