"""The ASGI application: REST, ACP and the page behind the access middleware. Mount it, or serve it alone.

Each of them can be off; what tells the daemon's health is always there. Whoever opened the daemon closes it.
"""

from __future__ import annotations

from starlette.routing import BaseRoute, Route, Router, WebSocketRoute
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
from turnwire.server.endpoint import Endpoint, PathOfEndpoints
from turnwire.server.refusals import refuse_entry
from turnwire.server.routes import page
from turnwire.server.routes.table import ALWAYS, ENDPOINTS


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    await refuse_entry(scope, receive, send, NotFound("there is no such route; /openapi.json lists them all"))


def create_app(daemon: Daemon) -> ASGIApp:
    """What the daemon serves, as its settings say."""
    settings = daemon.settings
    endpoints = list(ENDPOINTS if settings.rest else ALWAYS)
    if not settings.page:
        endpoints = [each for each in endpoints if each not in page.ENDPOINTS]
    routes: list[BaseRoute] = []
    if settings.acp:
        connections = AcpConnections(daemon)
        endpoints += StreamableHttp(connections).endpoints
        routes += [WebSocketRoute(path, Sockets(daemon, connections)) for path in (PATH, AGENT_PATH)]
    paths: dict[str, dict[str, Endpoint]] = {}
    for each in endpoints:
        paths.setdefault(each.path, {})[each.method] = each
    routes += [Route(path, PathOfEndpoints(daemon, methods)) for path, methods in paths.items()]
    router = Router(routes, default=_nowhere, redirect_slashes=False)
    return AccessMiddleware(
        router,
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
