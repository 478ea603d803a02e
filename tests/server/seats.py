"""A session at a running daemon, driven over HTTP: short functions for clients' requests and for reading the log.

Every wait is bounded.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import anyio
import httpx
from tests.server.reading import WAIT_S, open_session
from tests.support.daemons import Running, running_daemon
from tests.support.driving import Terminal, events_of

from turnwire.ids import ClientId, SessionId
from turnwire.log.base import Position
from turnwire.server.access.tokens import Identity, Role
from turnwire.session import events as ev
from turnwire.session.codec import decode

Kind = TypeVar("Kind", bound=ev.Event)


def blocks(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


class Seat(NamedTuple):
    """One client at one session."""

    running: Running
    client: httpx.AsyncClient
    session_id: SessionId

    def path(self, rest: str) -> str:
        return f"/session/{self.session_id}/{rest}"

    async def get(self, rest: str, status: int = 200) -> Any:
        return answer(await self.client.get(self.path(rest)), status)

    async def post(self, rest: str, body: object = None, status: int = 200, **headers: str) -> Any:
        return answer(await self.client.post(self.path(rest), json=body or {}, headers=headers), status)

    async def patch(self, rest: str, body: object, status: int = 200) -> Any:
        return answer(await self.client.patch(self.path(rest), json=body), status)

    async def delete(self, rest: str, status: int = 200) -> Any:
        return answer(await self.client.delete(self.path(rest)), status)

    async def prompt(self, text: str, status: int = 202, /, **members: Any) -> Any:
        return await self.post("prompt", {"prompt": blocks(text), **members}, status)

    async def run(self, text: str, **members: Any) -> Terminal:
        """Prompt, and wait for the end."""
        return await self.end((await self.prompt(text, **members))["promptId"])

    async def until(self, kind: type[Kind], prompt_id: str | None = None, text: str = "") -> Kind:
        """The first such event of the session, waited for."""
        node = self.running.daemon.node
        head = await node.head(self.session_id)
        with anyio.fail_after(WAIT_S):
            async with aclosing(node.follow(self.session_id, Position(head.epoch, head.first - 1))) as pages:
                async for page in pages:
                    for body in page.frames:
                        event = decode(body)
                        if not isinstance(event, kind) or text.encode() not in body:
                            continue
                        if prompt_id is None or getattr(event, "prompt_id", None) == prompt_id:
                            return event
        raise AssertionError("the session ended first")

    async def end(self, prompt_id: str) -> Terminal:
        completed_or_failed: type[Any] = Terminal  # pyright: ignore[reportAssignmentType]
        return await self.until(completed_or_failed, prompt_id)

    async def events(self) -> list[ev.AnyEvent]:
        return await events_of(self.running.daemon.log, self.session_id)

    async def attach(self, name: str = "ann", role: Role = Role.CONTROLLER) -> ClientId:
        """Return a client id that the session knows."""
        return await self.running.daemon.clients.attach(self.session_id, Identity(name, role))


def answer(response: httpx.Response, status: int) -> Any:
    """The body of an answer, which has this status."""
    assert response.status_code == status, response.text
    return response.json() if response.content else None


@asynccontextmanager
async def seated(data: Path, session_id: str | None = None, **options: Any) -> AsyncGenerator[Seat]:
    """Open a client at a session: a new one, or the one with that id if the daemon has it."""
    async with running_daemon(data, **options) as running, running.client() as client:
        known = {each.session_id for each in await running.daemon.log.sessions()}
        if session_id is None or session_id not in known:
            yield Seat(running, client, await open_session(running, session_id))
        else:
            yield Seat(running, client, SessionId(session_id))
