"""This daemon as one of several nodes that share a log: who it is to them, and what becomes of it when it is lost.

A node that is lost acts no more: its agents end, its streams end, and nothing is told to the log. The process is of
no use then. Whoever runs it ends it, and a supervisor starts it again, as another life.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from turnwire.limits import Limits
from turnwire.link.process import renew_lease
from turnwire.log.owners import NodeIdentity, Owners
from turnwire.runtime.clock import Clock, boot_time
from turnwire.runtime.members import MemberPorts, Members
from turnwire.server.access.origins import cluster_url
from turnwire.server.settings.declared import Settings


def identity_of(settings: Settings, data: Path) -> NodeIdentity:
    """What this node says of itself. Raises `ConfigError`.

    Sessions of a daemon that has its database alone are of no place yet, unless it is told one: the node that comes
    to such a session first gives it its own. So a log that was used alone can be shared later.
    """
    name = settings.node or socket.gethostname()
    return NodeIdentity(
        name,
        settings.place or (name if settings.cluster_listen else ""),
        _url(settings),
        secrets.token_urlsafe(32) if settings.cluster_listen else "",
        _folder(data / "node"),
    )


def _url(settings: Settings) -> str:
    listening, has_tls = settings.cluster_listen, settings.tls_cert is not None
    return "" if listening is None else cluster_url(settings.cluster_url, listening, has_tls=has_tls)


def _folder(mark: Path) -> str:
    """A name of the data folder that no other one has. Whoever has its lock is the next life of who had it last."""
    if not mark.exists():
        mark.touch(mode=0o600)
        mark.write_text(secrets.token_hex(16))
    return mark.read_text().strip()


@asynccontextmanager
async def open_members(
    owners: Owners, clock: Clock, limits: Limits, *, lost: Callable[[str], None], drain: Callable[[], None]
) -> AsyncGenerator[Members | None]:
    """The beat of this life meanwhile; none if this node has its log alone.

    `lost`: it may not act any more, and why. `drain`: somebody has asked for its end.
    """
    if owners.is_sole:
        yield None
        return
    ports = MemberPorts(renewed=renew_lease, lost=lost, drain=drain)
    members = Members(owners, clock, limits, ports, boot_time)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(members.run)
        try:
            yield members
        finally:
            tasks.cancel_scope.cancel()
            renew_lease(None)
