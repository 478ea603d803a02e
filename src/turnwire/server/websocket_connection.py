"""One WebSocket, on the sans-I/O protocol of websockets: handshake, messages for an ASGI app, close.

The handshake is answered when the application accepts. From then on each message is one ASGI event, and reading
pauses until the application has received it. In addition to ASGI the scope's extensions have `ABORT` and `SEND_ALL`
(`server.endpoint`), because a write for each message costs five times as much as one for many.

Bounds that protect the daemon from its clients:

- A message has a size; an observer's is `OBSERVER_BYTES`, because it sends no prompts. Unfinished messages count
  for their credential (`Connections.messages`), and must be complete within `MESSAGE_S`.
- Control frames and tiny fragments have a rate (`FRAMES_PER_S`): each costs the loop as much as a message.
- A client that answers none of `MISSED_PINGS` pings is considered gone.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, cast

from starlette.types import Message
from websockets.datastructures import Headers
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import Protocol, Side, State
from websockets.server import ServerProtocol

from turnwire.errors import TooManyRequests
from turnwire.limits import KiB
from turnwire.server.access.tokens import IDENTITY, Identity, Role
from turnwire.server.bodies import BODY_S
from turnwire.server.connections import Connections
from turnwire.server.endpoint import ABORT, SEND_ALL

MISSED_PINGS = 2
"""Unanswered pings after which a client is considered gone. One may be lost while its machine sleeps."""
MESSAGE_S = BODY_S
"""Time for a message in fragments, checked with each ping."""
OBSERVER_BYTES = 64 * KiB
"""Longest message of an observer: the names and numbers of a request."""
FRAMES_PER_S = 50.0
"""Control frames and tiny fragments per second of one socket, on average."""
FRAMES_AT_ONCE = 500.0
"""Control frames and tiny fragments in one burst. Clients send a ping every few seconds."""
TINY_BYTES = KiB
"""Fragments below this size are counted with control frames. Clients fragment at 4 KiB or more."""
LINGER_S = 2.0
"""Time for the client to answer the close frame."""

_SLICE = 4096
"""Bytes parsed between checks of the frame rate: at most some 700 frames, which take two milliseconds."""
_TEXT, _SIZE_IN_2, _SIZE_IN_8, _MOST_IN_2 = 0x81, 126, 127, 65_536
"""WebSocket frame header constants (RFC 6455 §5.2)."""

# The library logs protocol errors of peers, which strangers can cause at any rate.
_silent = logging.getLogger("turnwire.websockets")
_silent.setLevel(logging.CRITICAL)

logger = logging.getLogger(__name__)


class WebSocketConnection(asyncio.Protocol):
    """One WebSocket. There are thousands of these, and nearly all of them are idle."""

    __slots__ = (
        "_close",
        "_credential",
        "_fed",
        "_fragments",
        "_frames",
        "_frames_at",
        "_held",
        "_is_lost",
        "_is_text",
        "_messages",
        "_protocol",
        "_reply",
        "_room",
        "_scope",
        "_shared",
        "_since",
        "_timer",
        "_transport",
        "_unanswered",
        "_unfinished",
        "_unread",
        "_waiter",
    )

    def __init__(self, shared: Connections, transport: asyncio.Transport, scope: dict[str, Any]) -> None:
        """`scope` is that of the upgrade request."""
        self._shared = shared
        self._transport = transport
        self._scope: dict[str, Any] | None = scope
        self._unread = b""
        """Received and not parsed: the application has not accepted, or not received the message before it."""
        self._protocol: Protocol | None = None
        """None until the application has accepted."""
        self._reply: list[bytes] | None = None
        """The answer of an application that does not accept, until it is complete."""
        self._credential = ""
        self._messages: list[Message] = [{"type": "websocket.connect"}]
        """Events that the application has not received."""
        self._waiter: asyncio.Future[None] | None = None
        self._room: asyncio.Event | None = None
        """Set when the client reads again; None while it reads."""
        self._fragments: bytearray | None = None
        """Data of the unfinished message."""
        self._is_text = True
        self._fed = 0
        """Bytes of the unfinished message and frame, as received."""
        self._unfinished = 0
        """Bytes of its complete fragments."""
        self._held = 0
        """The value of `_fed` that was last counted for the credential."""
        self._since = 0.0
        """The time when the unfinished message began."""
        self._frames, self._frames_at = FRAMES_AT_ONCE, 0.0
        """Control frames and tiny fragments still allowed, and the time of that count."""
        self._unanswered = 0
        """Pings since the client answered one."""
        self._timer: asyncio.TimerHandle | None = None
        """The next ping, or the end of the closing handshake."""
        self._close: tuple[int, str] | None = None
        """Code and reason of the close, once closed."""
        self._is_lost = False

    # -- the handshake ---------------------------------------------------------------------------------------

    def begin(self, rest: bytes) -> None:
        """Take over the transport and start the application. `rest` is the data after the head of the request."""
        shared, scope = self._shared, self._scope
        assert scope is not None, "it begins once"
        self._transport.set_protocol(self)
        shared.open.add(self)
        self._unread = rest
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        offered = [value.decode("latin-1") for name, value in headers if name == b"sec-websocket-protocol"]
        pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
        handshake = ServerProtocol(logger=_silent)
        version = f"HTTP/{scope['http_version']}"
        response = handshake.accept(Request("", Headers(pairs), method=scope.pop("method"), protocol=version))
        if response.status_code != 101:
            handshake.send_response(response)
            self._end_with(b"".join(handshake.data_to_send()))
            return
        scope |= {
            "type": "websocket",
            "scheme": "wss" if scope["scheme"] == "https" else "ws",
            "subprotocols": [each.strip() for each in ",".join(offered).split(",") if each.strip()],
            "extensions": {
                "websocket.http.response": {},
                ABORT: {"call": self.abort},
                SEND_ALL: {"call": self._send_all, "at_once": self._send_at_once},
            },
        }
        self._transport.pause_reading()
        shared.start(self._run(scope, (handshake, response)))

    async def _run(self, scope: dict[str, Any], handshake: tuple[ServerProtocol, Any]) -> None:
        accepting: list[Any] = list(handshake)

        async def send(message: Message) -> None:
            if self._protocol is not None:
                await self._send(message)
            elif message["type"] == "websocket.accept":
                self._accept(message, *accepting)
                accepting.clear()
            else:
                self._refuse(message)

        del handshake
        is_failed = False
        try:
            await self._shared.app(scope, self._receive, send)
        except ConnectionAbortedError:
            pass  # the application sent to a closed socket; ASGI requires an `OSError` then
        except Exception:
            logger.exception("a WebSocket failed", extra={"event": "socket_failed"})
            is_failed = True
        if self._is_lost or self._close is not None:
            return
        if self._protocol is not None:
            self._end(CloseCode.INTERNAL_ERROR if is_failed else CloseCode.NORMAL_CLOSURE, "")
        elif not is_failed:
            logger.error("a WebSocket was neither accepted nor refused; it is told 500")
        if self._protocol is None:
            self._end_with(b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")

    def _accept(self, message: Message, handshake: ServerProtocol, response: Any) -> None:
        if self._is_lost or self._close is not None:
            raise ConnectionAbortedError("the client has disconnected")
        scope, self._scope = self._scope, None
        assert scope is not None, "it is accepted once"
        for name, value in message.get("headers", ()):
            response.headers[name.decode("latin-1")] = value.decode("latin-1")
        if (chosen := message.get("subprotocol")) is not None:
            response.headers["Sec-WebSocket-Protocol"] = chosen
        handshake.send_response(response)
        self._transport.write(b"".join(handshake.data_to_send()))
        who: Identity | None = scope.get(IDENTITY)
        most = self._shared.socket_bytes
        if who is not None:
            self._credential = who.token_id or ""
            most = min(most, OBSERVER_BYTES) if who.role is Role.OBSERVER else most
        # The protocol of the handshake would hold the request for as long as the socket is open.
        self._protocol = Protocol(Side.SERVER, max_size=most, logger=_silent)
        self._timer = self._shared.loop.call_later(self._shared.limits.heartbeat_s, self._ping)
        self._transport.resume_reading()
        self._read()

    def _refuse(self, message: Message) -> None:
        """Write a part of an HTTP response that rejects the upgrade."""
        if self._is_lost or self._close is not None:
            return
        match message["type"]:
            case "websocket.http.response.start":
                status = message["status"]
                lines = [b"%b: %b\r\n" % each for each in message.get("headers", ())]
                self._reply = [b"HTTP/1.1 %d \r\n" % status, *lines, b"connection: close\r\n\r\n"]
            case "websocket.http.response.body" if self._reply is not None:
                self._reply.append(message.get("body", b""))
                if not message.get("more_body", False):
                    self._end_with(b"".join(self._reply))
            case "websocket.close":
                self._end_with(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            case unexpected:
                raise RuntimeError(f"{unexpected} is not an answer to an upgrade")

    def _end_with(self, answer: bytes) -> None:
        """Answer the request for the upgrade and close."""
        self._over(CloseCode.ABNORMAL_CLOSURE, "")
        self._transport.write(answer)
        self._transport.close()

    # -- the transport ---------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._unread += data
        self._read()

    def _read(self) -> None:
        """Parse received data up to the next message: an undelivered message blocks the rest."""
        while self._unread and self._protocol is not None and (not self._messages or self._close is not None):
            data, self._unread = self._unread[:_SLICE], self._unread[_SLICE:]
            self._feed(self._protocol, data)
        if self._messages and self._close is None:
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._over(CloseCode.ABNORMAL_CLOSURE, "")
        self._hold(0)
        self.resume_writing()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._shared.closed(self)

    def pause_writing(self) -> None:
        self._room = asyncio.Event()

    def resume_writing(self) -> None:
        if self._room is not None:
            self._room.set()
            self._room = None

    def abort(self) -> None:
        self._transport.abort()

    def shut_down(self) -> None:
        if self._protocol is not None:
            self._end(CloseCode.SERVICE_RESTART, "")

    # -- frames ----------------------------------------------------------------------------------------------

    def _feed(self, protocol: Protocol, data: bytes) -> None:
        is_open = protocol.state is State.OPEN
        protocol.receive_data(data)
        self._fed += len(data)
        for event in protocol.events_received():
            frame = cast("Frame", event)
            if self._close is None:
                self._handle(frame, _wire_size(len(frame.data)))
        if is_open and protocol.state is not State.OPEN and protocol.close_sent is not None:
            # The client has closed, or has sent data that is not a frame.
            self._over(protocol.close_sent.code, protocol.close_sent.reason)
        if self._close is None and self._fed != self._held:
            self._hold(self._fed)
        self._flush(protocol)

    def _handle(self, frame: Frame, wire_size: int) -> None:
        opcode, data = frame.opcode, frame.data
        if opcode in (Opcode.PING, Opcode.PONG, Opcode.CLOSE):
            self._fed -= wire_size
            self._unanswered = 0
            self._slow_down()
            return
        if opcode is not Opcode.CONT:
            self._is_text = opcode is Opcode.TEXT
        self._unfinished += wire_size
        if not frame.fin:
            self._fragments = self._fragments or bytearray()
            self._fragments += data
            if len(data) < TINY_BYTES:
                self._slow_down()
            return
        if self._fragments is not None:
            self._fragments += data
            data, self._fragments = self._fragments, None
        self._fed, self._unfinished = self._fed - self._unfinished, 0
        self._since = self._shared.loop.time()
        self._deliver(bytes(data))

    def _deliver(self, data: bytes) -> None:
        if not self._is_text:
            self._put({"type": "websocket.receive", "bytes": data})
            return
        try:
            self._put({"type": "websocket.receive", "text": data.decode()})
        except UnicodeDecodeError:
            self._end(CloseCode.INVALID_DATA, "the text is not UTF-8")

    def _slow_down(self) -> None:
        """Count a frame that is not a message. A client that sends too many of them is disconnected."""
        now = self._shared.loop.time()
        gained = (now - self._frames_at) * FRAMES_PER_S
        self._frames, self._frames_at = min(FRAMES_AT_ONCE, self._frames + gained) - 1, now
        if self._frames < 0:
            self._end(CloseCode.POLICY_VIOLATION, "too many frames that are no messages")

    def _hold(self, size: int) -> None:
        """Count bytes of an unfinished message for the credential."""
        if not self._held:
            self._since = self._shared.loop.time()
        by, self._held = size - self._held, size
        try:
            self._shared.messages.add(self._credential, by, size)
        except TooManyRequests as error:
            self._end(CloseCode.TRY_AGAIN_LATER, str(error))

    def _flush(self, protocol: Protocol) -> None:
        """Write the protocol's output, and close once there is no more."""
        written = protocol.data_to_send()
        if not written or self._is_lost:
            return
        if any(written):
            self._transport.write(b"".join(written))
        if b"" in written:
            if self._transport.can_write_eof() and protocol.close_rcvd is None:
                # A client that continues to send would lose the close frame if we stopped reading.
                self._transport.write_eof()
                self._transport.resume_reading()
                self._abort_later()
            else:
                self._transport.close()

    # -- the end ---------------------------------------------------------------------------------------------

    def _end(self, code: int, reason: str) -> None:
        """Close the socket: send a close frame and wait for the client's. Drops a client that reads nothing."""
        protocol = self._protocol
        if protocol is None or self._close is not None or self._is_lost:
            return
        if self._room is not None:
            self._over(code, reason)
            self.abort()
            return
        if protocol.state is State.OPEN:
            protocol.send_close(code, reason)
        self._over(code, reason)
        self._flush(protocol)
        self._transport.resume_reading()
        self._abort_later()
        self._read()

    def _over(self, code: int, reason: str) -> None:
        """Report the close to the application."""
        if self._close is None:
            self._close = code, reason
            self._fragments, self._fed = None, 0
            self._hold(0)
            self._put({"type": "websocket.disconnect", "code": code, "reason": reason})

    def _abort_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._shared.loop.call_later(LINGER_S, self.abort)

    def _ping(self) -> None:
        loop, protocol = self._shared.loop, self._protocol
        assert protocol is not None, "it was accepted"
        if self._close is not None:
            return
        if self._unanswered >= MISSED_PINGS:
            self.abort()
        elif self._held and loop.time() >= self._since + MESSAGE_S:
            self._end(CloseCode.POLICY_VIOLATION, "the message took too long")
        else:
            self._unanswered += 1
            protocol.send_ping(b"")
            self._flush(protocol)
            self._timer = loop.call_later(self._shared.limits.heartbeat_s, self._ping)

    # -- the application -------------------------------------------------------------------------------------

    def _put(self, message: Message) -> None:
        self._messages.append(message)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _receive(self) -> Message:
        while not self._messages:
            self._read()
            if self._messages:
                break
            if self._protocol is not None:
                self._transport.resume_reading()
            self._waiter = self._shared.loop.create_future()
            await self._waiter
        self._waiter = None
        return self._messages.pop(0)

    async def _send(self, message: Message) -> None:
        while self._room is not None:
            await self._room.wait()
        protocol = self._writable()
        if message["type"] == "websocket.close":
            self._end(message.get("code", 1000), message.get("reason") or "")
        elif message.get("bytes") is not None:
            protocol.send_binary(message["bytes"])
            self._flush(protocol)
        else:
            protocol.send_text(message["text"].encode())
            self._flush(protocol)

    def _writable(self) -> Protocol:
        """Return the protocol. Raises `ConnectionAbortedError`."""
        if self._protocol is None or self._is_lost or self._close is not None:
            raise ConnectionAbortedError("the WebSocket is closed")
        return self._protocol

    async def _send_all(self, texts: Sequence[bytes]) -> None:
        """Send text messages in one write. Waits while the client reads too slowly."""
        while self._room is not None:
            await self._room.wait()
        self._write_all(texts)

    def _send_at_once(self, texts: Sequence[bytes]) -> bool:
        """Send text messages without waiting. Return False, and write nothing, if the buffer is full."""
        if self._room is not None:
            return False
        self._write_all(texts)
        return True

    def _write_all(self, texts: Sequence[bytes]) -> None:
        self._writable()
        heads = map(_text_head, map(len, texts))
        self._transport.write(b"".join(chain.from_iterable(zip(heads, texts, strict=True))))


def _wire_size(size: int) -> int:
    """Return the bytes of a masked frame with a payload of this size."""
    return size + (6 if size < _SIZE_IN_2 else 8 if size < _MOST_IN_2 else 14)


@lru_cache(2048)
def _text_head(size: int) -> bytes:
    """Return the frame header of a complete text message, neither masked nor compressed."""
    if size < _SIZE_IN_2:
        return bytes((_TEXT, size))
    if size < _MOST_IN_2:
        return struct.pack("!BBH", _TEXT, _SIZE_IN_2, size)
    return struct.pack("!BBQ", _TEXT, _SIZE_IN_8, size)
