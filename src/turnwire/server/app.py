"""The ASGI application: REST, ACP and the page behind the access middleware. Mount it, or serve it alone.

Each of them can be off; what tells the daemon's health is always there. Whoever opened the daemon closes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from turnwire.errors import NotFound
from turnwire.server.access.middleware import AccessMiddleware, PublicRoute
from turnwire.server.access.origins import BrowserPolicy, Proxies
from turnwire.server.acp.client_state import AGENT_PATH, PATH
from turnwire.server.acp.http import StreamableHttp
from turnwire.server.acp.registry import AcpConnections
from turnwire.server.acp.websocket import Sockets
from turnwire.server.daemon import Daemon
from turnwire.server.endpoint import Endpoint, serve_path
from turnwire.server.paths import PathTable, own_path
from turnwire.server.refusals import refuse_entry
from turnwire.server.routes import page
from turnwire.server.routes.table import ALWAYS, ENDPOINTS


class Routes:
    """Every route, by its path. What is at none is refused. Who asks is known already: see `create_app`."""

    def __init__(self, daemon: Daemon, endpoints: Sequence[Endpoint], sockets: Mapping[str, ASGIApp]) -> None:
        self._daemon = daemon
        self._endpoints = PathTable[Mapping[str, Endpoint]]()
        self._sockets = PathTable[ASGIApp]()
        self.public = [PublicRoute(each.method, each.path, each.logs_in) for each in endpoints if each.role is None]
        """Those that need no credential."""
        self._others = Router()
        """A server that tells its applications when it starts and stops gets its answer."""
        paths: dict[str, dict[str, Endpoint]] = {}
        for each in endpoints:
            paths.setdefault(each.path, {})[each.method] = each
        for path, methods in paths.items():
            self._endpoints.add(path, methods)
        for path, app in sockets.items():
            self._sockets.add(path, app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            found = self._endpoints.find(own_path(scope))
            if found is not None:
                scope["path_params"] = found.params
                await serve_path(self._daemon, found.value, scope, receive, send)
                return
        elif scope["type"] == "websocket":
            socket = self._sockets.find(own_path(scope))
            if socket is not None:
                scope["path_params"] = socket.params
                await socket.value(scope, receive, send)
                return
        else:
            await self._others(scope, receive, send)
            return
        await refuse_entry(scope, receive, send, NotFound("there is no such route; /openapi.json lists them all"))


def create_routes(daemon: Daemon) -> Routes:
    """What the daemon serves, as its settings say, to who has been let in."""
    settings = daemon.settings
    endpoints = list(ENDPOINTS if settings.rest else ALWAYS)
    if not settings.page:
        endpoints = [each for each in endpoints if each not in page.ENDPOINTS]
    sockets: dict[str, ASGIApp] = {}
    if settings.acp:
        connections = AcpConnections(daemon)
        relay = None
        if not daemon.owners.is_sole:
            # One of several: what it needs for the others takes a tenth of a second to import.
            from turnwire.server.cluster.relay import Relay

            relay = Relay(daemon.owners, daemon.clock, daemon.limits, daemon.tasks)
            daemon.metrics.relays = relay.count
        endpoints += StreamableHttp(connections, relay).endpoints
        sockets = dict.fromkeys((PATH, AGENT_PATH), Sockets(daemon, connections, relay))
    return Routes(daemon, endpoints, sockets)


def create_app(daemon: Daemon, routes: Routes | None = None) -> ASGIApp:
    """The daemon's routes behind the access middleware; `routes` if others are served the same ones."""
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
