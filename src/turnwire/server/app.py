"""The ASGI application: REST, ACP and the page behind the access middleware. Mount it, or serve it alone.

Settings can disable each of them, except the health routes. The caller that opened the daemon closes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starlette.routing import Route, Router, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from turnwire.errors import NotFound
from turnwire.server.access.middleware import AccessMiddleware, PublicRoute
from turnwire.server.access.origins import BrowserPolicy, Proxies
from turnwire.server.acp.http import StreamableHttp
from turnwire.server.acp.registry import AcpConnections
from turnwire.server.acp.websocket import Sockets
from turnwire.server.acp_paths import AGENT_PATH, PATH
from turnwire.server.daemon import Daemon
from turnwire.server.endpoint import Endpoint, PathEndpoints
from turnwire.server.refusals import refuse_entry
from turnwire.server.routes import page
from turnwire.server.routes.table import ENDPOINTS


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    await refuse_entry(scope, receive, send, NotFound("there is no such route; /openapi.json lists them all"))


class Routes(Router):
    """All routes of the daemon. Expects the caller's identity in the scope: see `create_app`."""

    def __init__(self, daemon: Daemon, endpoints: Sequence[Endpoint], sockets: Mapping[str, ASGIApp]) -> None:
        paths: dict[str, dict[str, Endpoint]] = {}
        for each in endpoints:
            paths.setdefault(each.path, {})[each.method] = each
        routes = [Route(path, PathEndpoints(daemon, methods)) for path, methods in paths.items()]
        upgrades = [WebSocketRoute(path, app) for path, app in sockets.items()]
        # A path with an additional slash is another path: a redirect would send a request to an unintended address.
        super().__init__([*routes, *upgrades], redirect_slashes=False, default=_not_found)
        self.public = [PublicRoute(each.method, each.path, each.logs_in) for each in endpoints if each.role is None]
        """Routes that need no credential."""


def create_routes(daemon: Daemon) -> Routes:
    """Build the routes that the daemon's settings enable, without the access middleware."""
    endpoints = [each for each in ENDPOINTS if daemon.settings.page or each not in page.ENDPOINTS]
    connections = AcpConnections(daemon)
    relay = None
    if daemon.node_key is not None:
        # Only a node of a cluster needs it, and it takes a tenth of a second to import.
        from turnwire.server.cluster.relay import Relay

        relay = Relay(daemon.owners, daemon.node_key, daemon.clock, daemon.limits, daemon.tasks)
        daemon.metrics.relays = relay.count
    endpoints += StreamableHttp(connections, relay).endpoints
    return Routes(daemon, endpoints, dict.fromkeys((PATH, AGENT_PATH), Sockets(daemon, connections, relay)))


def create_app(daemon: Daemon, routes: Routes | None = None) -> ASGIApp:
    """Put the daemon's routes behind the access middleware. Pass `routes` to share them with another listener."""
    settings = daemon.settings
    routes = routes or create_routes(daemon)
    return AccessMiddleware(
        routes,
        tokens=daemon.tokens,
        policy=BrowserPolicy.of(
            settings.host, hosts=settings.allow_host, origins=settings.allow_origin, no_auth=settings.no_auth
        ),
        proxies=Proxies.of(settings.trusted_proxy),
        public=routes.public,
        requests=daemon.requests,
        failures=daemon.failures,
        header_bytes=daemon.limits.header_bytes,
    )
