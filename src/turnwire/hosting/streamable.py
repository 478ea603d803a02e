"""Frames over Streamable HTTP: each outgoing frame is a POST, the peer's frames come on event streams.

There is one event stream for the connection and one for each session that lives on it. Their frames are merged into
one sequence, in the order of arrival. These rules make that safe:

S1  One POST at a time, in order: the next is sent when the agent has accepted the last.
S2  No frame about a session is sent before the session's stream is open, so no answer can be missed. The stream of
    a new session is opened by the answer that names it, that of an old one before it is loaded.
S3  The answer to `session/load` comes on another stream than the history. If it names the last event of
    the history, as turnwire's own does, it is held until that event has arrived; else until the session's stream
    has been quiet for `replay_quiet_s`.
S4  A stream that is cut resumes after its last numbered event; before the first one it is opened again, if the
    agent numbers its events and owes no answer there. Otherwise the cut ends the link, because the loss is unknown.
    So does a rejection that concerns the connection, and a frame without an answer that was not accepted. A request
    that was not accepted fails alone.

Cookies belong to the HTTP client, so its owner decides their lifetime.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import anyio
import httpx
import msgspec
from anyio.abc import TaskGroup

from turnwire.errors import RemoteProtocolError
from turnwire.hosting.acp_http import GONE, AcpHttp, AcpStream, Standing, is_header
from turnwire.hosting.address import shown
from turnwire.hosting.backoff import Sleep
from turnwire.hosting.network import NetworkLink
from turnwire.hosting.websocket import refused
from turnwire.ids import RequestId
from turnwire.limits import Limits
from turnwire.projections.dialect import read_cancel_request
from turnwire.session.correlation import ExactId, exact
from turnwire.wire.jsonrpc import (
    INTERNAL_ERROR,
    Batch,
    ErrorObject,
    Failure,
    Frame,
    Notification,
    Request,
    Result,
    decode,
    encode,
    raw,
)
from turnwire.wire.methods import (
    CANCEL_REQUEST,
    INITIALIZE,
    SESSION_CLOSE,
    SESSION_DELETE,
    SESSION_FORK,
    SESSION_LOAD,
    SESSION_NEW,
    SESSION_RESUME,
    STATE_RESYNC_REQUIRED,
    VENDOR,
)
from turnwire.wire.peek import peek_session_id, read_update_line

REPLAY_MOST_S: Final = 30.0
"""Maximum wait for a quiet stream: a session that is being used is loaded after this time."""


_NAMES_A_SESSION: Final = frozenset({SESSION_NEW, SESSION_FORK})
_BRINGS_BACK: Final = frozenset({SESSION_LOAD, SESSION_RESUME})
_ENDS_A_SESSION: Final = frozenset({SESSION_CLOSE, SESSION_DELETE})


class _Version(msgspec.Struct, rename="camel"):
    protocol_version: int | None = None


class _Ours(msgspec.Struct, rename="camel"):
    last_event_id: int | None = None


class _Vendors(msgspec.Struct):
    ours: _Ours | None = msgspec.field(default=None, name=VENDOR)


class _Opened(msgspec.Struct):
    meta: _Vendors | None = msgspec.field(default=None, name="_meta")


class StreamableLink(NetworkLink):
    """Frames to an agent behind Streamable HTTP. The first frame sent must be `initialize`."""

    def __init__(
        self, url: str, client: httpx.AsyncClient, limits: Limits | None = None, sleep: Sleep = anyio.sleep
    ) -> None:
        limits = limits or Limits()
        super().__init__(limits)
        self._http = AcpHttp(url, client, limits.frame_bytes)
        self._sleep = sleep
        self._tasks: TaskGroup = anyio.create_task_group()
        self._streams: dict[str | None, AcpStream] = {}
        """Streams by session; that of the connection under `None`."""
        self._open: dict[ExactId, tuple[Request, str | None]] = {}
        """Our unanswered requests, with their sessions."""
        self._asked: dict[ExactId, str] = {}
        """The sessions of the agent's unanswered requests."""

    async def _carry(self) -> None:
        async with self._tasks:
            while (frame := await self._outbound.next()) is not None:
                await self._send_one(frame)
                self._outbound.carried()
            self._tasks.cancel_scope.cancel()

    async def _part(self) -> None:
        if self._http.connection_id is not None:
            try:
                await self._http.delete()
            except httpx.HTTPError:
                return

    # -- to the agent --------------------------------------------------------------------------------------

    async def _send_one(self, frame: bytes) -> None:
        message = _read(frame)
        try:
            if self._http.connection_id is None:
                await self._initialize(frame, message)
            elif await self._is_heard(message, session_id := self._session_of(message)):
                await self._post(frame, message, session_id)
        except (httpx.HTTPError, httpx.StreamError) as error:
            self._lose(f"no agent answers at {shown(self._http.url)} ({type(error).__name__})")

    async def _initialize(self, frame: bytes, message: Frame | None) -> None:
        if not isinstance(message, Request) or message.method != INITIALIZE:
            self._lose("a frame was sent before `initialize`")
            return
        answer = await self._http.post(frame, None, self._limits.initialize_s)
        body = _read(answer.body)
        if answer.status == 200 and isinstance(body, Result) and answer.connection_id is not None:
            self._http.connection_id = answer.connection_id
            self._http.version = _version(body)
            await self._stream(None).settled.wait()
            self._inbound.put(answer.body)
        elif isinstance(body, Failure):
            # Rejected by a protocol message; the next try is a new connection.
            self._inbound.put(answer.body)
        else:
            self._lose(_not_ours(self._http.url, answer.status))

    async def _post(self, frame: bytes, message: Frame | None, session_id: str | None) -> None:
        answer = await self._http.post(frame, session_id)
        if answer.is_accepted:
            return
        if isinstance(message, Request) and answer.status not in GONE:
            self._fail(message.id, answer.status)
        else:
            self._lose(f"the agent at {shown(self._http.url)} refused a frame with HTTP {answer.status}")

    def _session_of(self, message: Frame | None) -> str | None:
        """Return the session of an outgoing frame, and record the data needed to match its answer."""
        if isinstance(message, Result | Failure):
            return None if message.id is None else self._asked.pop(exact(message.id), None)
        if message is None:
            return None
        if message.method == CANCEL_REQUEST:
            cancelled = read_cancel_request(message.params)
            return None if cancelled is None else self._open.get(exact(cancelled), (None, None))[1]
        session_id = peek_session_id(message.params)
        session_id = session_id if session_id is not None and is_header(session_id) else None
        if isinstance(message, Request):
            self._open[exact(message.id)] = (message, session_id)
        return session_id

    async def _is_heard(self, message: Frame | None, session_id: str | None) -> bool:
        """Wait for the session's stream. Return false if the agent rejects the stream; the frame is then rejected
        as well.
        """
        stream = self._stream(session_id)
        await stream.settled.wait()
        if stream.standing is not Standing.REFUSED:
            # An absent stream appears with the load, or the agent uses the connection's stream for it.
            return True
        if isinstance(message, Request):
            self._fail(message.id, 409)
        return False

    def _fail(self, request_id: RequestId, status: int) -> None:
        """Answer our request on behalf of the agent."""
        if self._open.pop(exact(request_id), None) is not None:
            error = ErrorObject(
                INTERNAL_ERROR, f"the agent's server refused the request (HTTP {status})", raw({"status": status})
            )
            self._inbound.put(encode(Failure(request_id, error)))

    # -- from the agent ------------------------------------------------------------------------------------

    def _stream(self, session_id: str | None) -> AcpStream:
        """Return the stream of a scope; open it again if it was not available."""
        stream = self._streams.get(session_id)
        if stream is None or stream.standing not in (Standing.OPENING, Standing.OPEN):
            stream = AcpStream(session_id, self._http, self._limits, self._arrived, self._is_expecting, self._sleep)
            self._streams[session_id] = stream
            self._tasks.start_soon(self._follow, stream)
        return stream

    async def _follow(self, stream: AcpStream) -> None:
        await stream.run()
        session_id = stream.session_id
        if self._streams.get(session_id) is not stream:
            # Its session was closed meanwhile.
            return
        if stream.standing is Standing.REFUSED and session_id is not None:
            for request, about in list(self._open.values()):
                if about == session_id:
                    self._fail(request.id, 409)
        elif session_id is None or (stream.standing is Standing.LOST and not self._is_ending(session_id)):
            self._lose("an event stream of the agent was cut, and what it would have brought is lost")

    def _is_expecting(self, stream: AcpStream) -> bool:
        """Return true if an answer may come on this stream, or if the agent drops undelivered messages."""
        if not any(each.is_numbered for each in self._streams.values()):
            return True
        return any(
            about == stream.session_id or (stream.session_id is None and request.method in _BRINGS_BACK)
            for request, about in self._open.values()
        )

    def _is_ending(self, session_id: str) -> bool:
        return any(
            about == session_id and request.method in _ENDS_A_SESSION for request, about in self._open.values()
        )

    async def _arrived(self, stream: AcpStream, frame: bytes) -> None:
        if read_update_line(frame) is None:
            message = _read(frame)
            if isinstance(message, Request):
                session_id = peek_session_id(message.params) or stream.session_id
                if session_id is not None and is_header(session_id):
                    self._asked[exact(message.id)] = session_id
            elif isinstance(message, Notification) and message.method == STATE_RESYNC_REQUIRED:
                self._lose("the agent no longer has what comes after the last numbered event")
            elif isinstance(message, Result | Failure) and message.id is not None:
                history = self._answered(message, stream)
                if history is not None:
                    self._tasks.start_soon(self._hold, frame, history, _last_event(message))
                    return
        self._inbound.put(frame)
        await self._inbound.room()

    def _answered(self, message: Result | Failure, came_on: AcpStream) -> AcpStream | None:
        """Record the answer to our request; return the stream that it must not overtake, if any."""
        asked = None if message.id is None else self._open.pop(exact(message.id), None)
        if asked is None or isinstance(message, Failure):
            return None
        request, about = asked
        if request.method in _NAMES_A_SESSION:
            named = peek_session_id(message.result)
            if named is not None and is_header(named):
                self._stream(named)
        elif about is not None and request.method in _BRINGS_BACK:
            history = self._stream(about)
            has_history = request.method == SESSION_LOAD or _last_event(message) is not None
            if has_history and came_on is not history and history.standing is Standing.OPEN:
                return history
        elif about is not None and request.method in _ENDS_A_SESSION and about in self._streams:
            self._streams.pop(about).end()
        return None

    async def _hold(self, answer: bytes, history: AcpStream, last: int | None) -> None:
        if last is None:
            await history.quiet(self._limits.replay_quiet_s, REPLAY_MOST_S)
        else:
            await history.reached(last, REPLAY_MOST_S)
        self._inbound.put(answer)


def _not_ours(url: str, status: int) -> str:
    """Return the reason why an answer to `initialize` opened no connection."""
    if status >= HTTPStatus.BAD_REQUEST:
        return str(refused(url, status))
    return f"{shown(url)} answered `initialize` with HTTP {status} and no ACP connection; check the URL"


def _read(frame: bytes) -> Frame | None:
    try:
        message = decode(frame)
    except RemoteProtocolError:
        return None
    return None if isinstance(message, Batch) else message


def _last_event(answer: Result | Failure) -> int | None:
    """Return the last event of the history before the answer to a load, if the agent names it."""
    try:
        opened = msgspec.json.decode(answer.result, type=_Opened) if isinstance(answer, Result) else _Opened()
    except msgspec.DecodeError:
        return None
    ours = None if opened.meta is None else opened.meta.ours
    return None if ours is None else ours.last_event_id


def _version(answer: Result) -> int | None:
    try:
        return msgspec.json.decode(answer.result, type=_Version).protocol_version
    except msgspec.DecodeError:
        return None
