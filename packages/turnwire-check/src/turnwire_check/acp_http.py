"""Streamable HTTP for cases: connections, POSTs and streams by their statuses and headers; and the checker.

The ACP messages inside are checked by the cases of ACP, which are the same for every transport.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import anyio

from turnwire_check.capability import offers
from turnwire_check.case import Case, Scene, unscored
from turnwire_check.http_client import Answer, Event, HttpClient, HttpSubject, Stream
from turnwire_check.http_exchange import HttpPeer, Opener, http_opener
from turnwire_check.raw_client import CLEARING_S, CLOSES, Subject, hello, refusal
from turnwire_check.remote import CONNECTION, SESSION
from turnwire_check.run import Outcome, outcome_of, unknown_scene
from turnwire_check.tape import at


@dataclass(frozen=True)
class AcpSubject(HttpSubject):
    """The known facts about the server."""

    path: str = "/acp"
    folder: str = "/"
    """Parent folder of the directories of a case's sessions."""
    prompts: Mapping[Scene, str] = field(default_factory=dict[Scene, str])
    closes: bool = False
    """It claims `session/close`."""


def acp_subject(url: str, headers: Mapping[str, str], subject: Subject) -> tuple[Opener, AcpSubject]:
    """Return the same server as a subject of cases about HTTP."""
    parts = urlsplit(url)
    opener = http_opener(f"{parts.scheme}://{parts.netloc}")
    known = AcpSubject(
        headers=headers,
        patience_s=subject.patience_s,
        silence_s=subject.silence_s,
        path=parts.path or "/",
        folder=subject.folder,
        prompts=subject.prompts,
        closes=offers(subject.offers.get(1), CLOSES[1]),
    )
    return opener, known


def message(method: str, params: Any, id: int | None = None) -> dict[str, Any]:
    told = {"jsonrpc": "2.0", "method": method, "params": params}
    return told if id is None else {**told, "id": id}


class AcpHttpClient(HttpClient):
    """The connections of one case."""

    def __init__(self, peer: HttpPeer, subject: AcpSubject) -> None:
        super().__init__(peer, subject)
        self.subject = subject
        self._ids = itertools.count(1)
        self._connections: list[str] = []
        self._sessions: list[Mapping[str, str]] = []

    async def post(self, body: Any = None, headers: Mapping[str, str] | None = None, **more: Any) -> Answer:
        return await self.call("POST", self.subject.path, body, headers=headers, **more)

    async def initialize(self) -> Answer:
        answer = await self.post(message("initialize", hello(1), next(self._ids)))
        found = answer.headers.get(CONNECTION.lower())
        if found:
            self._connections.append(found)
        return answer

    async def connection(self) -> dict[str, str]:
        """Open a connection and return the header that names it. Raises `NotScored`."""
        answer = await self.initialize()
        found = answer.headers.get(CONNECTION.lower())
        if answer.status != 200 or not found:
            unscored(f"no connection was opened, and the answer is {answer.status}")
        return {CONNECTION: found}

    async def stream(self, headers: Mapping[str, str]) -> Stream[Event]:
        """Open a stream. Raises `NotScored` if that fails."""
        known = "a stream is not opened"
        self.not_in_vain(known)
        found = await self.open("GET", self.subject.path, headers={"Accept": "text/event-stream", **headers})
        if found is None:
            self.give_up(known)
        if found.status != 200:
            unscored(f"a stream is answered with {found.status}")
        return Stream(found, self.tape, f"stream {next(self._numbers)}", self.subject, Event)

    async def request(self, headers: Mapping[str, str], method: str, params: Any) -> tuple[int, Answer]:
        """Post a request; return its id and the response to the POST."""
        number = next(self._ids)
        return number, await self.post(message(method, params, number), headers)

    async def new_session(self, headers: Mapping[str, str]) -> tuple[int, Answer]:
        return await self.request(headers, "session/new", {"cwd": self.subject.folder, "mcpServers": []})

    async def session(self) -> tuple[dict[str, str], Stream[Event]]:
        """Open a connection with a session: return the headers that name both, and the stream of the connection."""
        headers = await self.connection()
        stream = await self.stream(headers)
        number, _ = await self.new_session(headers)
        answer = await stream.until(lambda event: answers(event, number))
        found = None if answer is None else at(answer.value, "result", "sessionId")
        if not isinstance(found, str):
            unscored(f"no session was opened{'' if answer is None else refusal(answer.frame)}")
        self._sessions.append({**headers, SESSION: found})
        return {**headers, SESSION: found}, stream

    async def prompt(self, headers: Mapping[str, str], scene: Scene = "plain") -> tuple[int, Answer]:
        words = self.subject.prompts.get(scene, "")
        block = {"type": "text", "text": words}
        return await self.request(headers, "session/prompt", {"sessionId": headers[SESSION], "prompt": [block]})

    async def leave(self) -> None:
        """Stop all work that the case started."""
        with anyio.move_on_after(CLEARING_S):
            for each in self._sessions:
                named = {"sessionId": each[SESSION]}
                await self.ask("POST", self.subject.path, message("session/cancel", named), headers=each)
                if self.subject.closes:
                    closing = message("session/close", named, next(self._ids))
                    await self.ask("POST", self.subject.path, closing, headers=each)
        for each in self._connections:
            await self.ask("DELETE", self.subject.path, headers={CONNECTION: each})


def answers(event: Event, number: int) -> bool:
    return at(event.value, "id") == number and at(event.value, "method") is None


def http_obstacle(case: Case, subject: AcpSubject) -> str:
    """Why a case cannot be judged at this server, as far as that is known before; empty if it can."""
    return unknown_scene(case, subject.prompts)


async def judge_http(case: Case, opener: Opener, subject: AcpSubject) -> Outcome:
    """Check one case on separate connections."""
    if reason := http_obstacle(case, subject):
        return Outcome(case, "not_scored", reason)
    os.makedirs(subject.folder, exist_ok=True)
    async with opener() as peer:
        client = AcpHttpClient(peer, subject)
        try:
            return await outcome_of(case, case.judge(client), [client.tape])
        finally:
            await client.leave()
