"""A server that speaks ACP over Streamable HTTP, in memory and without time, and mutants that break a rule each.

A mutant departs from `RawHttpServer` in one method.
"""
# It takes JSON of which nothing is known, as a program without any library does.
# pyright: basic

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from check_peers.raw_server import Body
from turnwire_check.http_exchange import HttpBody, HttpCall, HttpPeer, Opener


class Connection:
    def __init__(self, id: str) -> None:
        self.id = id
        self.streams: dict[str, Body] = {}
        self.waiting: dict[str, bytes] = {}
        """Messages for a stream that is not open yet."""
        self.running: tuple[str, Any] | None = None


class RawHttpServer:
    """The server. Each case gets a new one."""

    def __init__(self) -> None:
        self.connections: dict[str, Connection] = {}
        self.sessions: list[str] = []
        self.count = 0

    async def open(self, call: HttpCall, within_s: float) -> HttpBody | None:
        if call.method == "POST":
            return self.post(call)
        if call.method == "DELETE":
            return self.delete(call)
        return self.get(call)

    def number(self) -> str:
        self.count += 1
        return f"c{self.count}"

    # -- POST -----------------------------------------------------------------------------------------------

    def post(self, call: HttpCall) -> Body | None:
        if not self.is_json(call.headers.get("Content-Type", "")):
            return Body(415, {})
        try:
            message = json.loads(call.body or b"")
        except ValueError:
            return self.no_json()
        if isinstance(message, list):
            return self.batch()
        if message["method"] == "initialize":
            return self.initialize(message)
        connection = self.found(call)
        if isinstance(connection, Body):
            return connection
        return self.take(connection, message)

    def is_json(self, media: str) -> bool:
        return media.partition(";")[0].strip().lower() == "application/json"

    def no_json(self) -> Body:
        return Body(400, {})

    def batch(self) -> Body:
        return Body(501, {})

    def initialize(self, message: Any) -> Body:
        connection = Connection(self.number())
        self.connections[connection.id] = connection
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": {"protocolVersion": 1}}
        return Body(200, self.head_of(connection), json.dumps(answer).encode())

    def head_of(self, connection: Connection) -> dict[str, str]:
        return {"content-type": "application/json", "acp-connection-id": connection.id}

    def found(self, call: HttpCall) -> Connection | Body:
        named = call.headers.get("Acp-Connection-Id")
        if named is None:
            return self.unnamed(call.method)
        return self.connections.get(named) or self.unknown(call.method)

    def unnamed(self, method: str) -> Body:
        return Body(400, {})

    def unknown(self, method: str) -> Body:
        return Body(404, {})

    def take(self, connection: Connection, message: Any) -> Body | None:
        match message["method"]:
            case "session/new":
                self.sessions.append(f"s{len(self.sessions)}")
                self.say(connection, self.place_of_new(), answer(message["id"], {"sessionId": self.sessions[-1]}))
            case "session/prompt":
                return self.prompt(connection, message)
            case "session/cancel":
                if connection.running is not None:
                    self.say(connection, connection.running[0], answer(connection.running[1], {}))
                return self.noticed()
        return self.accepted()

    def prompt(self, connection: Connection, message: Any) -> Body | None:
        session = message["params"]["sessionId"]
        self.say(connection, session, {"jsonrpc": "2.0", "method": "session/update", "params": {}})
        if message["params"]["prompt"][0]["text"] == "wait":
            connection.running = (session, message["id"])
            return self.accepted_running()
        self.say(connection, session, answer(message["id"], {"stopReason": "end_turn"}))
        return self.accepted()

    def accepted(self) -> Body:
        return Body(202, {})

    def accepted_running(self) -> Body | None:
        return self.accepted()

    def noticed(self) -> Body:
        return Body(202, {})

    # -- streams --------------------------------------------------------------------------------------------

    def place_of_new(self) -> str:
        return ""

    def say(self, connection: Connection, place: str, message: Any) -> None:
        frame = b"data: " + self.written(message) + b"\n\n"
        if place in connection.streams:
            connection.streams[place].received += frame
        else:
            self.keep(connection, place, frame)

    def keep(self, connection: Connection, place: str, frame: bytes) -> None:
        connection.waiting[place] = connection.waiting.get(place, b"") + frame

    def written(self, message: Any) -> bytes:
        return json.dumps(message).encode()

    def get(self, call: HttpCall) -> Body | None:
        connection = self.found(call)
        if isinstance(connection, Body):
            return connection
        if "text/event-stream" not in call.headers.get("Accept", ""):
            return self.not_accepted()
        place = call.headers.get("Acp-Session-Id", "")
        if place and place not in self.sessions:
            return self.no_session()
        stream = Body(200, self.head_of_stream(), connection.waiting.pop(place, b""), server=self)
        connection.streams[place] = stream
        return self.opened(stream)

    def head_of_stream(self) -> dict[str, str]:
        return {"content-type": "text/event-stream"}

    def opened(self, stream: Body) -> Body | None:
        return stream

    def not_accepted(self) -> Body:
        return Body(406, {})

    def no_session(self) -> Body:
        return Body(404, {})

    def left(self, stream: Body) -> None:
        pass

    def idle(self, stream: Body) -> None:
        pass

    # -- DELETE ---------------------------------------------------------------------------------------------

    def delete(self, call: HttpCall) -> Body:
        connection = self.found(call)
        if isinstance(connection, Body):
            return connection
        self.forget(connection)
        self.end_streams(connection)
        return self.deleted()

    def forget(self, connection: Connection) -> None:
        del self.connections[connection.id]

    def end_streams(self, connection: Connection) -> None:
        for each in connection.streams.values():
            each.end()

    def deleted(self) -> Body:
        return Body(202, {})


def answer(id: Any, result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "result": result}


def server_opener(server: type[RawHttpServer]) -> Opener:
    @asynccontextmanager
    async def opened() -> AsyncGenerator[HttpPeer]:
        yield server()

    return opened


# -- mutants ----------------------------------------------------------------------------------------------------

MUTANTS_HTTP: dict[str, type[RawHttpServer]] = {}
"""The server that breaks the rule of a case, by the id of the case."""


def breaks(case: str, method: str, instead: Callable[..., Any]) -> None:
    """A mutant that differs by one method. `instead` gets the server, the method that was, and its arguments."""
    was = getattr(RawHttpServer, method)

    def changed(self: RawHttpServer, *args: Any) -> Any:
        return instead(self, lambda *given: was(self, *given), *args)

    assert case not in MUTANTS_HTTP, case
    MUTANTS_HTTP[case] = type(f"Mutant_{case}", (RawHttpServer,), {method: changed})


def gives(status: int, body: bytes = b"") -> Callable[..., Body]:
    return lambda *args: Body(status, {}, body)


def for_method(method: str, status: int) -> Callable[..., Body]:
    return lambda self, was, asked: Body(status, {}) if asked == method else was(asked)


def _twice(self: Any, was: Any, connection: Connection, place: str, message: Any) -> None:
    was(connection, place, message)
    if place and "method" in message:
        was(connection, "", message)


def _elsewhere(self: Any, was: Any, connection: Connection, place: str, message: Any) -> None:
    was(connection, "nowhere" if message.get("method") == "session/update" else place, message)


breaks("http.open.answered", "head_of", lambda self, was, one: {**was(one), "content-type": "text/plain"})
breaks("http.open.named", "head_of", lambda self, was, connection: {"content-type": "application/json"})
breaks("http.open.unique", "number", lambda self, was: "c")
breaks("http.post.accepted", "accepted", gives(200))
breaks("http.post.empty", "accepted", gives(202, b"{}"))
breaks("http.post.notification", "noticed", gives(204))
breaks("http.post.at-once", "accepted_running", lambda self, was: None)
breaks("http.post.media-type", "is_json", lambda self, was, media: True)
breaks("http.post.parameters", "is_json", lambda self, was, media: media == "application/json")
breaks("http.post.batch", "batch", gives(400))
breaks("http.post.no-connection", "unnamed", for_method("POST", 404))
breaks("http.post.unknown", "unknown", for_method("POST", 400))
breaks("http.post.no-json", "no_json", gives(500))
breaks("http.get.stream", "head_of_stream", lambda self, was: {"content-type": "text/plain"})
breaks("http.get.at-once", "opened", lambda self, was, stream: stream if stream.received else None)
breaks("http.get.no-connection", "unnamed", for_method("GET", 404))
breaks("http.get.unknown", "unknown", for_method("GET", 400))
breaks("http.get.unknown-session", "no_session", gives(409))
breaks("http.get.accept", "not_accepted", gives(400))
breaks("http.route.new", "place_of_new", lambda self, was: "nowhere")
breaks("http.route.kept", "keep", lambda self, was, connection, place, frame: None)
breaks("http.route.session", "say", _elsewhere)
breaks("http.route.apart", "say", _twice)
breaks("http.route.one-message", "written", lambda self, was, message: was({**message, "jsonrpc": "1.0"}))
breaks("http.delete.answered", "deleted", gives(204))
breaks("http.delete.gone", "forget", lambda self, was, connection: None)
breaks("http.delete.ends", "end_streams", lambda self, was, connection: None)
breaks("http.delete.no-connection", "unnamed", for_method("DELETE", 202))
