"""The ASGI application: REST, ACP and the page behind the access middleware. Mount it, or serve it alone.

Each of them can be off; what tells the daemon's health is always there. Whoever opened the daemon closes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from turnwire.errors import NotFound
from turnwire.server.access.addresses import Proxies
from turnwire.server.access.middleware import AccessMiddleware, PublicRoute
from turnwire.server.access.origins import BrowserPolicy
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


class _Routes:
    """Every route, by its path. What is at none is refused."""

    def __init__(self, daemon: Daemon, endpoints: Iterable[Endpoint], sockets: Mapping[str, ASGIApp]) -> None:
        self._daemon = daemon
        self._endpoints = PathTable[Mapping[str, Endpoint]]()
        self._sockets = PathTable[ASGIApp]()
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


def create_app(daemon: Daemon) -> ASGIApp:
    """What the daemon serves, as its settings say."""
    settings = daemon.settings
    endpoints = list(ENDPOINTS if settings.rest else ALWAYS)
    if not settings.page:
        endpoints = [each for each in endpoints if each not in page.ENDPOINTS]
    sockets: dict[str, ASGIApp] = {}
    if settings.acp:
        connections = AcpConnections(daemon)
        endpoints += StreamableHttp(connections).endpoints
        sockets = dict.fromkeys((PATH, AGENT_PATH), Sockets(daemon, connections))
    return AccessMiddleware(
        _Routes(daemon, endpoints, sockets),
        tokens=daemon.tokens,
        policy=BrowserPolicy.of(
            settings.host, hosts=settings.allow_host, origins=settings.allow_origin, no_auth=settings.no_auth
        ),
        proxies=Proxies.of(settings.trusted_proxy),
        public=[PublicRoute(each.method, each.path, each.logs_in) for each in endpoints if each.role is None],
        requests=daemon.requests,
        failures=daemon.failures,
        header_bytes=daemon.limits.header_bytes,
    )
