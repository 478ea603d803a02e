"""Membership of a daemon in a cluster: listening, links to other nodes, and presence."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

import anyio
from starlette.types import ASGIApp

from turnwire.runtime.members import Members
from turnwire.runtime.remote_sessions import RemoteSessions
from turnwire.server.access.origins import cluster_address
from turnwire.server.cluster.entrance import Entrance
from turnwire.server.cluster.link import NodeLinks, open_links, word_bytes
from turnwire.server.cluster.presence import Presence
from turnwire.server.cluster.relay import Relayed
from turnwire.server.daemon import Daemon
from turnwire.server.listener import Tls, listen


@asynccontextmanager
async def joined(daemon: Daemon, routes: ASGIApp, tls: Tls | None) -> AsyncGenerator[None]:
    """Run the daemon as one of the nodes that share its log. Does nothing if the daemon has the log alone.

    `routes`: the application for requests of clients that other nodes relay. Raises `ConfigError`.
    """
    listening, key = daemon.settings.cluster_listen, daemon.node_key
    if daemon.members is None or listening is None or key is None:
        yield
        return
    host, port = cluster_address(listening)
    async with open_links(key, daemon.limits) as links, anyio.create_task_group() as tasks:
        presence = _join(daemon, daemon.members, links)
        ready, stop = anyio.Event(), anyio.Event()
        serve = partial(
            listen,
            Entrance(
                links,
                key,
                Relayed(routes, daemon.tokens, no_auth=daemon.settings.no_auth),
                daemon.clock,
                daemon.limits,
            ),
            host=host,
            port=port,
            tls=tls,
            ready=lambda _: ready.set(),
            stop=stop,
            limits=daemon.limits,
            socket_bytes=word_bytes(daemon.limits),
        )
        tasks.start_soon(serve)
        await ready.wait()
        tasks.start_soon(links.watch, daemon.clock)
        tasks.start_soon(presence.run)
        with daemon.lost.calling(links.end):
            yield
        tasks.cancel_scope.cancel()


def _join(daemon: Daemon, members: Members, links: NodeLinks) -> Presence:
    node, owners, clock = daemon.node, daemon.owners, daemon.clock
    links.lives = lambda: members.others
    links.living = owners.living
    links.serve(node, daemon.clients.hear_of, lambda: members.is_cut)
    members.asks = links.is_cut
    remote = RemoteSessions(owners.life, links, daemon.log, clock, daemon.limits)
    node.join(remote)
    daemon.metrics.forwards = remote.forwards
    return Presence(owners.life, daemon.clients, links, clock)
