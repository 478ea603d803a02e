"""A guard in front of an application that reports the authenticated caller, and raw requests for it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from turnwire.limits import Limits
from turnwire.server.access.middleware import AccessMiddleware, Failures, PublicRoute, request_buckets
from turnwire.server.access.origins import BrowserPolicy, Proxies
from turnwire.server.access.token_file import TokenFile
from turnwire.server.access.tokens import ANYBODY, IDENTITY, Identity, Tokens
from turnwire.server.settings.declared import Settings
from turnwire_testing import ManualClock

GIVEN = "an-operators-own-token"
HERE = "http://127.0.0.1:4170"
PAGE = "https://page.example"


PUBLIC = [
    PublicRoute("GET", "/health"),
    PublicRoute("GET", "/page/{name}"),
    PublicRoute("POST", "/login", logs_in=True),
]


@dataclass
class GuardedApp:
    """A guard in front of an application that reports the authenticated caller."""

    settings: Settings = field(default_factory=lambda: Settings(allow_origin=(PAGE,), allow_host=("tw.example",)))
    limits: Limits = field(default_factory=Limits)
    clock: ManualClock = field(default_factory=ManualClock)
    tokens: Tokens = field(init=False)
    seen: list[Identity] = field(default_factory=list[Identity])
    sends: list[Send] = field(default_factory=list[Send])

    def __post_init__(self) -> None:
        self.tokens = Tokens(TokenFile(None, self.clock), self.clock, GIVEN)
        settings = self.settings
        self.guard = AccessMiddleware(
            self.app,
            tokens=self.tokens,
            policy=BrowserPolicy.of(
                settings.host, hosts=settings.allow_host, origins=settings.allow_origin, no_auth=settings.no_auth
            ),
            proxies=Proxies.of(settings.trusted_proxy),
            public=PUBLIC,
            requests=request_buckets(self.clock, self.limits.request_rate),
            failures=Failures(self.clock, self.limits.failed_logins),
            header_bytes=self.limits.header_bytes,
        )

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            self.seen.append(ANYBODY)
            return
        self.seen.append(scope[IDENTITY])
        self.sends.append(send)
        kind = "http.response" if scope["type"] == "http" else "websocket"
        if kind == "websocket":
            await send({"type": "websocket.accept"})
            return
        await send({"type": f"{kind}.start", "status": 200, "headers": [(b"x-app", b"yes")]})
        await send({"type": f"{kind}.body", "body": b"{}"})

    async def ask(self, *args: Any, **options: Any) -> Answer:
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "websocket.connect"}

        async def send(message: Message) -> None:
            sent.append(message)

        await self.guard(scope_of(*args, **options), receive, send)
        return Answer(sent)


class Answer:
    """The sent response."""

    def __init__(self, sent: list[Message]) -> None:
        self.sent = sent
        self.status: int = sent[0].get("status", 0)
        self.headers = {name.decode(): value.decode() for name, value in sent[0].get("headers", ())}

    @property
    def problem(self) -> dict[str, Any]:
        return json.loads(self.sent[1]["body"])


Headers = list[tuple[str, str]]


def scope_of(
    method: str = "GET",
    path: str = "/session",
    headers: Headers | None = None,
    *,
    host: str | None = "127.0.0.1:4170",
    token: str | None = GIVEN,
    query: str = "",
    kind: str = "http",
    scheme: str = "http",
    address: str = "192.0.2.7",
    extensions: dict[str, Any] | None = None,
) -> Scope:
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers or []]
    if host is not None:
        raw.append((b"host", host.encode("latin-1")))
    if token is not None:
        raw.append((b"authorization", f"Bearer {token}".encode()))
    scope: dict[str, Any] = {
        "type": kind,
        "path": path,
        "query_string": query.encode(),
        "scheme": scheme,
        "headers": raw,
        "client": (address, 50_000),
        "extensions": extensions,
    }
    return scope if kind == "websocket" else scope | {"method": method}
