"""The transports of a raw ACP client: pipes, a WebSocket, and Streamable HTTP.

Written from the transport proposal. Each link sends and receives frames; the client interprets them.
"""

from __future__ import annotations

import http.client
import json
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from threading import Lock, Thread
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from tests.literal.heard import Frame, Heard, about
from tests.patience import SOON_S
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

EVENT_STREAM = {"Accept": "text/event-stream"}


class Link(Protocol):
    """Frames to and from turnwire."""

    heard: Heard

    def send(self, frame: Frame) -> None: ...

    def follow(self, session_id: str) -> None:
        """Read the messages about a session, where that has a separate stream."""
        ...

    def cut(self) -> None:
        """Lose the connection without a word."""
        ...

    def close(self) -> None: ...


class StdioLink:
    """The pipes of a child process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.heard = Heard()
        self.process = process
        self._writing = Lock()
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with suppress(ValueError), self.process.stdout as lines:
            for line in lines:
                self.heard.add(json.loads(line))
        self.heard.over()

    def send(self, frame: Frame) -> None:
        self.send_line(json.dumps(frame))

    def send_line(self, line: str) -> None:
        assert self.process.stdin is not None
        with self._writing:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()

    def follow(self, session_id: str) -> None:
        pass

    def cut(self) -> None:
        self.process.kill()

    def close(self) -> None:
        """Close the input, without waiting for unfinished turns."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        self.process.kill()
        self.process.wait(SOON_S)
        self._reader.join(SOON_S)


class SocketLink:
    """One WebSocket: text frames both ways."""

    def __init__(self, url: str, token: str) -> None:
        self.heard = Heard()
        address = "ws" + url.removeprefix("http") + "/acp"
        self._open = ExitStack()
        opening = connect(address, additional_headers={"Authorization": f"Bearer {token}"})
        self._socket = self._open.enter_context(opening)
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with suppress(ConnectionClosed, OSError):
            for message in self._socket:
                self.heard.add(json.loads(message))
        self.heard.over()

    def send(self, frame: Frame) -> None:
        self._socket.send(json.dumps(frame))

    def follow(self, session_id: str) -> None:
        pass

    def cut(self) -> None:
        self._socket.close_socket()

    def close(self) -> None:
        with suppress(OSError):
            self._open.close()


class Reply(NamedTuple):
    """One HTTP response with its whole body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class EventStream:
    """A response that does not end."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self._connection = connection
        self._response = response
        # The response lets go of it, but only this ends a read that another thread is in.
        self._socket = connection.sock
        self.status = response.status
        self.headers = lowered(response.getheaders())

    def lines(self) -> Iterable[bytes]:
        with suppress(OSError, http.client.HTTPException, ValueError, AttributeError):
            while line := self._response.readline():
                yield line
        self._response.close()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(2)
        self._connection.close()


class HttpOrigin:
    """HTTP/1.1 as the standard library has it, a connection for each request."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url).netloc

    def request(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None) -> Reply:
        connection = http.client.HTTPConnection(self._address, timeout=SOON_S)
        try:
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            return Reply(response.status, lowered(response.getheaders()), response.read())
        finally:
            connection.close()

    def stream(self, path: str, headers: Mapping[str, str]) -> EventStream:
        connection = http.client.HTTPConnection(self._address, timeout=SOON_S)
        connection.request("GET", path, None, {**headers, **EVENT_STREAM})
        socket = connection.sock
        response = connection.getresponse()
        connection.sock = socket
        socket.settimeout(None)
        return EventStream(connection, response)


def lowered(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers}


def sse(lines: Iterable[bytes]) -> Iterable[Frame]:
    """Return the events of a stream: `id`, `event` and `data` unchanged."""
    event: Frame = {}
    for line in lines:
        text = line.decode().rstrip("\r\n")
        if text.startswith(":"):
            continue
        if not text:
            if "data" in event:
                yield event
            event = {}
            continue
        name, _, value = text.partition(":")
        value = value.removeprefix(" ")
        event[name] = f"{event['data']}\n{value}" if name == "data" and "data" in event else value


class HttpLink:
    """Streamable HTTP: POST for the client's messages, a stream for the connection and for each session."""

    def __init__(self, origin: HttpOrigin, token: str) -> None:
        self.heard = Heard()
        self.posted: list[Reply] = []
        self._origin = origin
        self._headers = {"Authorization": f"Bearer {token}"}
        self._streams: list[EventStream] = []
        self._followed: set[str] = set()

    def send(self, frame: Frame) -> None:
        headers = {**self._headers, "Content-Type": "application/json"}
        if session_id := self._session_of(frame):
            headers["Acp-Session-Id"] = session_id
        reply = self._origin.request("POST", "/acp", headers, json.dumps(frame).encode())
        self.posted.append(reply)
        if frame.get("method") == "initialize":
            assert reply.status == 200, reply
            self._headers["Acp-Connection-Id"] = reply.headers["acp-connection-id"]
            self.heard.add(reply.json())
            self._open({})
        else:
            assert (reply.status, reply.body) == (202, b""), (frame, reply)

    def _session_of(self, frame: Frame) -> str | None:
        """Return the session of the message; for an answer, that of its request."""
        if "method" in frame:
            return about(frame)
        request = self.heard.find(lambda each: _is_request(each, frame["id"]))
        return about(request or {})

    def follow(self, session_id: str) -> None:
        if session_id not in self._followed:
            self._followed.add(session_id)
            self._open({"Acp-Session-Id": session_id})

    def _open(self, scope: Mapping[str, str]) -> None:
        stream = self._origin.stream("/acp", {**self._headers, **scope})
        assert stream.status == 200, stream.status
        self._streams.append(stream)
        Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream: EventStream) -> None:
        for event in sse(stream.lines()):
            if event["data"]:
                self.heard.add(json.loads(event["data"]))

    def cut(self) -> None:
        for stream in self._streams:
            stream.close()
        self.heard.over()

    def close(self) -> None:
        with suppress(OSError, http.client.HTTPException):
            self._origin.request("DELETE", "/acp", self._headers, None)
        self.cut()


def _is_request(frame: Frame, request_id: object) -> bool:
    return "method" in frame and "id" in frame and frame["id"] == request_id
