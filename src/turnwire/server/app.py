"""The ASGI application: REST and ACP behind the guard. Mount it in any ASGI app, or serve it alone.

Takes a running `Daemon`; gives one ASGI callable. Each of the two can be off; what tells the daemon's health is
always there. Never owns the daemon: whoever opened it closes it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.routing import BaseRoute, Route, Router, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from turnwire.errors import MethodNotAllowed, NotFound
from turnwire.server.access.guard import Guard, refuse_entry
from turnwire.server.access.origins import Policy
from turnwire.server.acp.http import PATH, StreamableHttp
from turnwire.server.acp.registry import AcpConnections
from turnwire.server.acp.websocket import Sockets
from turnwire.server.daemon import Daemon
from turnwire.server.endpoint import DAEMON, Endpoint, refuse, serve_endpoint
from turnwire.server.routes.table import ALWAYS, ENDPOINTS


class _Path:
    """The endpoints of one path as ASGI, in a class because Starlette takes a function for something of its own."""

    def __init__(self) -> None:
        self.endpoints: dict[str, Endpoint] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self.endpoints.get("GET" if scope["method"] == "HEAD" else scope["method"])
        if endpoint is not None:
            await serve_endpoint(endpoint, scope, receive, send)
        else:
            allowed = ", ".join(sorted(self.endpoints))
            await refuse(send, MethodNotAllowed(f"this path takes {allowed}"), {"Allow": allowed})


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    await refuse_entry(scope, receive, send, NotFound("there is no such route; /openapi.json lists them all"))


def create_app(daemon: Daemon) -> ASGIApp:
    """What the daemon serves, as its settings say."""
    settings = daemon.settings
    endpoints = list(ENDPOINTS if settings.rest else ALWAYS)
    routes: list[BaseRoute] = []
    if settings.acp:
        connections = AcpConnections(daemon)
        endpoints += StreamableHttp(connections).endpoints
        routes.append(WebSocketRoute(PATH, Sockets(connections)))
    paths: dict[str, _Path] = {}
    for each in endpoints:
        paths.setdefault(each.path, _Path()).endpoints[each.method] = each
    routes += [Route(path, call) for path, call in paths.items()]
    router = Router(routes, default=_nowhere, redirect_slashes=False)
    return Guard(
        partial(_with_daemon, daemon, router),
        tokens=daemon.tokens,
        policy=Policy.of(
            settings.host, hosts=settings.allow_host, origins=settings.allow_origin, no_auth=settings.no_auth
        ),
        public=[(each.method, each.path) for each in endpoints if each.role is None],
        limits=daemon.limits,
        clock=daemon.clock,
    )


async def _with_daemon(daemon: Daemon, router: Any, scope: Scope, receive: Receive, send: Send) -> None:
    scope[DAEMON] = daemon
    await router(scope, receive, send)
