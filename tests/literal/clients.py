"""Raw clients, one for each published text: an ACP client over any link, and a client of the daemon's REST routes.

They know the texts and nothing of turnwire: no capability is named that its text does not have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any

from tests.literal.heard import START_S, Frame, Heard, about, answers
from tests.literal.links import EventStream, HttpOrigin, Link, Reply, sse

NAMELESS: Frame = {"protocolVersion": 1, "clientCapabilities": {}}
"""000, 001 and 004: neither text has a client capability, and a name is not required."""
UNKNOWN: Frame = NAMELESS | {"clientInfo": {"name": "never-heard-of", "version": "1"}}
EDITOR: Frame = {
    "protocolVersion": 1,
    "clientCapabilities": {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True},
}
"""004: a client that has files and terminals."""
KNOWN: Frame = NAMELESS | {"clientInfo": {"name": "zed", "version": "0.220.0"}}
"""A current released client, which has neither `turn_complete` nor `session/ready`."""
FLAGGED: Frame = {"protocolVersion": 1, "clientCapabilities": {"session": {"lifecycle": {}}}}
"""003 as an experiment on version 1."""
V2: Frame = {"protocolVersion": 2, "info": {"name": "raw", "version": "1"}, "capabilities": {}}
"""The successor of 003: published v2."""


class RawClient:
    """An ACP client: its requests, its answers, its received frames."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.initialized: Frame = {}
        self._ids = count(1)

    @property
    def heard(self) -> Heard:
        return self.link.heard

    def initialize(self, params: Frame) -> Frame:
        self.initialized = self.call("initialize", params)
        return self.initialized

    def request(self, method: str, params: Frame, request_id: int | str | None = None) -> int | str:
        """Send a request without waiting; return the id."""
        chosen = next(self._ids) if request_id is None else request_id
        self.link.send({"jsonrpc": "2.0", "id": chosen, "method": method, "params": params})
        return chosen

    def notify(self, method: str, params: Frame) -> None:
        self.link.send({"jsonrpc": "2.0", "method": method, "params": params})

    def answer(self, request: Frame, result: Frame) -> None:
        self.link.send({"jsonrpc": "2.0", "id": request["id"], "result": result})

    def response(self, request_id: int | str) -> Frame:
        return self.heard.until(answers(request_id), what=f"answer to {request_id!r}")

    def call(self, method: str, params: Frame) -> Frame:
        """Send a request, and return the result."""
        asked = self.request(method, params)
        response = self.heard.until(answers(asked), what=f"answer to {method}", within=START_S)
        assert "result" in response, response
        result: Frame = response["result"]
        return result

    def asked(self, method: str, session_id: str, number: int = 0) -> Frame:
        """The agent's `number`th request with this method about a session, from 0."""
        found = self.heard.several(
            lambda frame: frame.get("method") == method and about(frame) == session_id,
            number + 1,
            what=f"{method} at the client",
        )
        return found[number]

    def new_session(self, cwd: Path) -> str:
        result = self.call("session/new", {"cwd": str(cwd), "mcpServers": []})
        session_id: str = result["sessionId"]
        self.link.follow(session_id)
        return session_id

    def frames(self, session_id: str) -> list[Frame]:
        """Everything about a session, answers to its prompts not included."""
        return [frame for frame in self.heard.all() if about(frame) == session_id]

    def updates(self, session_id: str) -> list[Frame]:
        return [frame["params"]["update"] for frame in self.frames(session_id) if is_update(frame)]

    def update(self, session_id: str, kind: str, **members: Any) -> Frame:
        """The first update of this kind with these members."""

        def fits(frame: Frame) -> bool:
            if not is_update(frame) or about(frame) != session_id:
                return False
            update: Frame = frame["params"]["update"]
            return update["sessionUpdate"] == kind and members.items() <= update.items()

        found: Frame = self.heard.until(fits, what=f"{kind} {members or ''}")["params"]["update"]
        return found


def is_update(frame: Frame) -> bool:
    return frame.get("method") == "session/update"


def said(updates: list[Frame], kind: str = "agent_message_chunk") -> str:
    """Return the text of all chunks of this kind."""
    return "".join(each["content"]["text"] for each in updates if each["sessionUpdate"] == kind)


def kinds(updates: list[Frame]) -> list[str]:
    return [each["sessionUpdate"] for each in updates]


class EventReader:
    """One event stream of the daemon: its envelopes as they come."""

    def __init__(self, stream: EventStream) -> None:
        self.status = stream.status
        self.headers = stream.headers
        self.heard = Heard()
        self._stream = stream
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for event in sse(self._stream.lines()):
            self.heard.add(json.loads(event["data"]) | {"sse": event})
        self.heard.over()

    def until(self, kind: str, **data: Any) -> Frame:
        """The first event of this type with these members of `data`."""
        return self.heard.until(
            lambda event: event["type"] == kind and data.items() <= event["data"].items(), what=f"{kind} {data}"
        )

    def terminal(self, prompt_id: str) -> Frame:
        """The end of this prompt."""
        return self.heard.until(lambda event: prompt_id in ends([event]), what=f"end of {prompt_id}")

    def updates(self) -> list[Frame]:
        return [each["data"]["update"] for each in self.heard.all() if each["type"] == "session_update"]

    def close(self) -> None:
        self._stream.close()


TERMINALS = ("turn_complete", "turn_error")


def ends(events: list[Frame]) -> list[str]:
    """The prompts that ended, in order."""
    return [event["data"]["promptId"] for event in events if event["type"] in TERMINALS]


class RestClient:
    """002: a client of the daemon's routes."""

    def __init__(self, url: str, token: str) -> None:
        self._origin = HttpOrigin(url)
        self._headers = {"Authorization": f"Bearer {token}"}
        self._readers: list[EventReader] = []

    def ask(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Reply:
        sent = {**self._headers, **(headers or {})}
        if body is None:
            return self._origin.request(method, path, sent)
        return self._origin.request(
            method, path, {"Content-Type": "application/json", **sent}, json.dumps(body).encode()
        )

    def get(self, path: str) -> Frame:
        reply = self.ask("GET", path)
        assert reply.status == 200, reply
        found: Frame = reply.json()
        return found

    def new_session(self, cwd: Path) -> Frame:
        reply = self.ask("POST", "/session", {"cwd": str(cwd)})
        assert reply.status == 200, reply
        created: Frame = reply.json()
        return created

    def post_prompt(
        self, session_id: str, text: str, headers: Mapping[str, str] | None = None, **more: Any
    ) -> Reply:
        body = {"prompt": [{"type": "text", "text": text}], **more}
        return self.ask("POST", f"/session/{session_id}/prompt", body, headers)

    def prompt(self, session_id: str, text: str, **more: Any) -> str:
        """Send a prompt, and return the `promptId` of the 202."""
        reply = self.post_prompt(session_id, text, **more)
        assert reply.status == 202, reply
        prompt_id: str = reply.json()["promptId"]
        return prompt_id

    def events(
        self, session_id: str, after: int | None = 0, query: str = "", headers: Mapping[str, str] | None = None
    ) -> EventReader:
        """Open the events of a session, by default from the first one."""
        cursor = {} if after is None else {"Last-Event-ID": str(after)}
        return self.follow(f"/session/{session_id}/events{query}", {**cursor, **(headers or {})})

    def follow(self, path: str, headers: Mapping[str, str] | None = None) -> EventReader:
        reader = EventReader(self._origin.stream(path, {**self._headers, **(headers or {})}))
        self._readers.append(reader)
        assert reader.status == 200, reader.status
        return reader

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
