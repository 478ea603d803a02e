"""Membership of this daemon in a group of nodes that share a log: its identity, and the loss of its membership.

A lost node stops acting: its agents end, its streams end, and it writes nothing to the log. Its process must end; a
supervisor starts it again as a new incarnation.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from turnwire.clock import Clock, boot_time
from turnwire.hosting.process import renew_lease
from turnwire.limits import Limits
from turnwire.log.owners import NodeIdentity, Owners
from turnwire.runtime.members import MemberPorts, Members
from turnwire.server.access.node_key import row_digest
from turnwire.server.access.origins import cluster_url
from turnwire.server.settings.declared import Settings


def identity_of(settings: Settings, data: Path) -> NodeIdentity:
    """Return the identity of this node. Raises `ConfigError`.

    Without a configured place, sessions of a daemon that does not share its database belong to no place yet: the
    first node that gets such a session assigns its own place. So a log that was used by one daemon can be shared
    later.
    """
    name, url = settings.node or socket.gethostname(), _url(settings)
    return NodeIdentity(
        name,
        settings.place or (name if settings.cluster_listen else ""),
        url,
        "" if settings.cluster_key is None else row_digest(settings.cluster_key, name, url),
        _folder(data / "node"),
    )


def _url(settings: Settings) -> str:
    listening, has_tls = settings.cluster_listen, settings.tls_cert is not None
    return "" if listening is None else cluster_url(settings.cluster_url, listening, has_tls=has_tls)


def _folder(mark: Path) -> str:
    """Return the data folder's unique id. The process with its lock is the last holder's next incarnation."""
    if not mark.exists():
        mark.touch(mode=0o600)
        mark.write_text(secrets.token_hex(16))
    return mark.read_text().strip()


@asynccontextmanager
async def open_members(
    owners: Owners, clock: Clock, limits: Limits, *, lost: Callable[[str], None], drain: Callable[[], None]
) -> AsyncGenerator[Members | None]:
    """Run the heartbeat of this incarnation inside the block; yields `None` if this node does not share its log.

    `lost` is called with the reason when the node may not act any more, `drain` when another node requests its
    stop.
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
