"""A pair with everything around it: clients, the frames of its agent, and REST in addition.

A pair and the programs become clients in the pair's dialect over its transport. Sessions are never shared.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import anyio
import httpx
from tests.fan.clients import Client
from tests.fan.http_clients import http_client
from tests.fan.matrix import Pair
from tests.fan.programs import Host, Program, Programs, Way
from tests.fan.transports import over_http, over_pipes, over_socket
from tests.interop.schema_check import SCHEMAS, SchemaCheck
from tests.support.heard import WAIT_S, Json

from turnwire.client import Session
from turnwire.projections.view.transcript import ToolCall


def _hold_against_schema(client: Client) -> None:
    """Every frame that the client was sent is one of ACP, or of a draft."""
    if not SCHEMAS.exists():
        return
    check = SchemaCheck(2 if client.pair.dialect == "v2" else 1)
    for each in client.asked:
        check.sent(each)
    for each in client.frames:
        check.received(each)
    assert not check.problems, "\n".join(check.problems[:5])


class Recorded(NamedTuple):
    """One frame between us and the agent."""

    sender: str
    frame: Json

    @property
    def method(self) -> str | None:
        return self.frame.get("method") if self.sender == "client" else None


class Harness:
    """One pair."""

    def __init__(self, pair: Pair, programs: Programs, folder: Path, *, is_odd: bool = False) -> None:
        self.pair = pair
        self.programs = programs
        self.word = uuid4().hex
        """A word that no other test uses."""
        self._folder = folder
        self._is_odd = is_odd
        """True if its agent sends frames that no schema has."""
        self._begun: int | None = None
        """Length of the record when our first client connected."""

    def client(self, way: Way = "usual", *, knocks: bool = False) -> AbstractAsyncContextManager[Client]:
        """Connect an initialized client; one that knocks has requested a session before. All of it is bounded in
        time.
        """
        return self._bounded(way, knocks=knocks)

    @asynccontextmanager
    async def _bounded(self, way: Way, *, knocks: bool) -> AsyncGenerator[Client]:
        with anyio.fail_after(2 * WAIT_S):
            pair, programs = self.pair, self.programs
            if self._begun is None:
                record = self.program(way).record
                self._begun = record.stat().st_size if record.exists() else 0
            if pair.transport == "stdio":
                opening = over_pipes(pair, programs, programs.stdio(pair.dialect, pair.agent, way))
            elif pair.transport == "websocket":
                opening = over_socket(pair, programs, self.host(way), knocks=knocks)
            else:
                opening = over_http(pair, programs, self.host(way), knocks=knocks)
            async with opening as client:
                yield client
                if not self._is_odd:
                    _hold_against_schema(client)

    @asynccontextmanager
    async def another(self, first: Client) -> AsyncGenerator[Client]:
        """Connect another client to a session of the first one; pipes have only one client, which
        reconnects there.
        """
        if self.pair.transport == "stdio":
            yield first
        else:
            async with self.client() as client:
                yield client

    def host(self, way: Way = "usual") -> Host:
        """The daemon that serves the pair's transport."""
        return self.programs.daemon(self.pair.agent, way)

    def program(self, way: Way = "usual") -> Program:
        """The program that the client talks to."""
        pair = self.pair
        if pair.transport == "stdio":
            return self.programs.stdio(pair.dialect, pair.agent, way).program
        return self.host(way).program

    def rest(self) -> httpx.AsyncClient:
        """Return a REST client of the same daemon."""
        return http_client(self.host().url)

    def gate(self) -> Path:
        """Return a gate of the agent that no other test uses; `touch` it to open it."""
        return self._folder / uuid4().hex

    # -- what the agent heard and said ---------------------------------------------------------------------

    def recorded(self) -> list[Recorded]:
        """All frames between us and the agent since our first client came."""
        lines = self.program().record.read_bytes()[self._begun :].splitlines()
        return [Recorded(each["from"], each["frame"]) for each in map(json.loads, lines)]

    def heard(self) -> list[Recorded]:
        """Return the frames of the session in which this harness's word was sent, and the answers there."""
        told = self.recorded()
        prompts = [each for each in told if each.method == "session/prompt" and self.word in json.dumps(each.frame)]
        session_id = prompts[0].frame["params"]["sessionId"]
        asked = {
            each.frame["id"]
            for each in told
            if each.sender == "agent" and "method" in each.frame and _is_of(each, session_id) and "id" in each.frame
        }
        return [
            each
            for each in told
            if _is_of(each, session_id)
            or (each.sender == "client" and "method" not in each.frame and each.frame["id"] in asked)
        ]


async def tool_calls(session: Session) -> dict[str, tuple[str, bool]]:
    """The tool calls of a session as the SDK shows them: their status, and whether a cancel has marked them."""
    items = (await session.view()).items
    return {
        each.tool_call_id: (each.status, each.cancelled_locally) for each in items if isinstance(each, ToolCall)
    }


def _is_of(each: Recorded, session_id: str) -> bool:
    return each.frame.get("params", {}).get("sessionId") == session_id
