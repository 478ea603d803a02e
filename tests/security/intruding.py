"""Actions of an intruder and of an honest browser against a daemon: whole route tables, raw requests, logins."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import anyio
import httpx
from tests.patience import LONG_S
from tests.support.daemons import Running, running_daemon

from turnwire.limits import Limits
from turnwire.server.access.tokens import Role
from turnwire.server.endpoint import Endpoint
from turnwire.server.routes.table import ENDPOINTS

PATIENT = Limits(failed_logins=100_000, request_rate=100_000)
"""Whole tables of wrong credentials are not slowed down."""
EVIL = "https://evil.example"


@asynccontextmanager
async def attacked(tmp_path: Path, **options: Any) -> AsyncGenerator[Running]:
    """Run a daemon whose only root is `tmp_path/work`'s parent, with limits that let a table through."""
    (tmp_path / "work").mkdir(exist_ok=True)
    options.setdefault("limits", PATIENT)
    options.setdefault("server_limits", options["limits"])
    with anyio.fail_after(LONG_S):
        async with running_daemon(tmp_path / "data", **options) as daemon:
            yield daemon


async def open_session(client: httpx.AsyncClient, tmp_path: Path) -> str:
    """Return a new session's id."""
    answer = await client.post("/session", json={"cwd": str(tmp_path / "work")})
    assert answer.status_code == 200, answer.text
    return answer.json()["sessionId"]


async def issue(daemon: Running, role: Role, **options: Any) -> tuple[str, str]:
    """The id and the secret of a new token."""
    record, secret = await daemon.daemon.tokens.issue("intruder", role, **options)
    return record.id, secret


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def table(session_id: str = "s_none") -> Iterator[tuple[Endpoint, str]]:
    """Every route with a path that leads to it."""
    for endpoint in ENDPOINTS:
        path = endpoint.path.replace("{session_id}", session_id)
        yield endpoint, re.sub(r"\{[^}]*\}", "x", path)


async def statuses(
    client: httpx.AsyncClient, routes: Iterator[tuple[Endpoint, str]], **options: Any
) -> dict[str, int]:
    """Return each route's status for the same kind of request."""
    found: dict[str, int] = {}
    for endpoint, path in routes:
        async with client.stream(endpoint.method, path, **options) as answer:
            found[f"{endpoint.method} {endpoint.path}"] = answer.status_code
    return found


async def raw(daemon: Running, target: str, headers: dict[str, str], method: str = "GET", body: bytes = b"") -> int:
    """Return the status of a request whose path is sent unmodified."""
    parts = urlsplit(daemon.url)
    lines = {"Host": parts.netloc, "Connection": "close", "Content-Length": str(len(body))} | headers
    head = f"{method} {target} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    received = b""
    async with await anyio.connect_tcp(parts.hostname or "", parts.port or 80) as stream:
        await stream.send(head.encode() + b"\r\n" + body)
        while b"\r\n" not in received:
            received += await stream.receive()
    return int(received.split(b" ", 2)[1])


async def events_of(lines: AsyncIterator[str]) -> AsyncGenerator[str]:
    """The `data:` lines of a stream."""
    async for line in lines:
        if line.startswith("data:"):
            yield line


def link_of(answer: httpx.Response) -> SplitResult:
    """The login link in an answer."""
    url: str = answer.json()["url"]
    return urlsplit(url)


async def log_in(client: httpx.AsyncClient, owner: str) -> httpx.Response:
    """Log in with a new link, as a person and a browser do. `client` stores the cookie."""
    made = await client.post("/login-link", headers=bearer(owner))
    assert made.status_code == 200, made.text
    return await client.post(
        "/login", json={"code": link_of(made).fragment}, headers={"Origin": str(client.base_url).rstrip("/")}
    )
