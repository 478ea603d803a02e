"""Whether the daemon lives and takes work, and what it counts, for load balancers and supervisors.

`health` says that the process answers, with `deep` that its log does; `ready` says that new work is welcome. A log
that could not take a write is of no use until it takes one as large, and is tried at each question: where nobody
sends work to a daemon that is not ready, nothing else would find out. A node that is one of several is not ready
while it cannot show the others that it lives. Never says more than that to strangers.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import Literal

import anyio
from msgspec import Struct
from starlette.types import Send

from turnwire.errors import AppendConflict, LifeOver, LogUnavailable, SessionNotFound, TurnwireError
from turnwire.ids import SessionId
from turnwire.log.base import EventLog, Snapshot
from turnwire.log.meter import LogMeter, Trouble
from turnwire.server.access.identity import Role
from turnwire.server.daemon import Daemon
from turnwire.server.endpoint import Call, Endpoint, Reply
from turnwire.server.telemetry.metrics import CONTENT_TYPE

DEEP_S = 5.0
"""A log that takes longer is of no use to anybody who waits."""
PROBE = "probe"
"""The snapshot that is written to find out whether there is room again. Nobody reads it."""
LEAST_ROOM, MOST_ROOM = 64 * 1024, 1024 * 1024
"""Bytes of it. It is as large as what did not fit, for what is smaller might fit and the next event not; but a
stranger who asks shall not make the disk write for long."""


class HealthQuery(Struct, frozen=True):
    deep: bool = False
    """Ask the log too."""


class Health(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    status: Literal["ok", "degraded"]
    reason: str | None = None
    recovering: bool = False
    """Sessions that a crash left open still get their end; whoever asks for one of them waits for that."""
    append_ms: float | None = None
    """How long the log took to write; only told by a deep look at a log with sessions in it."""


class Readiness(Struct, frozen=True, kw_only=True, omit_defaults=True):
    status: Literal["ready", "stopping", "degraded"]
    reason: str | None = None
    recovering: bool = False
    """As in `health`: new work is welcome all the same."""


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
    """Why the log is of no use now, and whether it was written to. The write changes nothing."""
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
    """What the log suffers from after another try. Raises what the try met."""
    with suppress(SessionNotFound):  # it was deleted meanwhile: nothing was learnt
        await _take_room(log, trouble.size)
        meter.forget(trouble)
    return None if meter.trouble is None else meter.trouble.code


async def _take_room(log: EventLog, size: int) -> None:
    """Write so much, and give it back: what is kept in the end does not grow with the number of tries."""
    heads = await log.sessions(limit=1)
    if not heads:
        # A session without an event is shown to nobody.
        session_id = SessionId(f"{PROBE}-{secrets.token_hex(8)}")
        await log.create(session_id)
        await log.delete(session_id)
        return
    # Bytes that no disk makes smaller, and other ones each time: an unchanged page would not be written.
    room = secrets.token_bytes(min(max(size, LEAST_ROOM), MOST_ROOM))
    for body in (room, b""):
        await log.save_snapshot(heads[0].session_id, Snapshot(PROBE, 0, 1, body))


async def _write_nothing(daemon: Daemon) -> bool:
    if daemon.members is not None:
        # It writes with each beat, and how old the last one is was looked at. The first session may be another's.
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
