"""Stdin and stdout carried to the `/acp` of a daemon, over a WebSocket that is opened again when it is lost.

`Relay` decides what passes between a client and a daemon, and what must be said again when the connection between
them was lost; it never sends and never waits. `RelayProcess` does both. Frames pass as they are, but for four
things: the daemon is asked to number its events, and the numbers are taken out again; a prompt gets an
idempotency key; with a session given, `session/new` is that session; and after a loss, requests of a new
connection have ids of their own. What the client sends while there is no connection waits in its pipe. A token is
never printed.

Theory of operation
-------------------
Of a request that is open when the connection is lost, nobody knows whether it arrived. One that does the same
when it is done twice is asked again; a prompt is such a one by its key. Of any other the client is told that it
is lost. The daemon is found again in one of two forms.

    reattached  The daemon still has the connection, and says nothing of its sessions before it is told from where.
                Answers of the client are said again, which is harmless. Each session goes on behind the last event
                that came, so what was swallowed on its way comes again. Open requests of the daemon come again,
                too, under their ids: those that the client has been asked are not passed on. Each open request is
                asked again, or probed by another with the same id: the daemon refuses either while the first is
                open. One that opens a session is lost.
    restarted   The daemon has forgotten the connection. A new one is made, and its sessions go on behind the last
                event that came. Then what may be is asked again. Its open requests are withdrawn: they are asked
                anew. No answer to an old one is passed on, because the same number may be another request now.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import Any, Protocol
from urllib.parse import quote, urlsplit, urlunsplit

import anyio
import msgspec
from msgspec import Raw, json

from turnwire.cli.config import settings_from
from turnwire.cli.reach import Reach, find_daemon, meant_session
from turnwire.client.http import no_token
from turnwire.core.child_names import session_of
from turnwire.core.correlation import ExactId, exact
from turnwire.errors import (
    AgentLaunchFailed,
    ConfigError,
    DaemonRefused,
    DaemonUnreachable,
    Forbidden,
    LinkBroken,
    LinkError,
    RemoteProtocolError,
    Unauthenticated,
)
from turnwire.ids import RequestId
from turnwire.limits import Limits
from turnwire.link.address import agent_headers, shown
from turnwire.link.backoff import Backoff
from turnwire.link.stdio import StdioLink, open_pipes
from turnwire.link.websocket import WebSocketLink, open_websocket
from turnwire.runtime.clock import Clock, SystemClock
from turnwire.server.telemetry.logs import configure_logging
from turnwire.wire import methods as acp
from turnwire.wire.jsonrpc import (
    INTERNAL_ERROR,
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
from turnwire.wire.peek import peek_session_id

MAKES = frozenset({acp.SESSION_NEW, acp.SESSION_FORK})
"""Of a session that is new, nothing has come yet when its answer comes."""
OPENS = MAKES | {acp.SESSION_LOAD, acp.SESSION_RESUME, acp.SESSION_ATTACH}
LEAVES = frozenset({acp.SESSION_CLOSE, acp.SESSION_DETACH, acp.SESSION_DELETE})
AGAIN = frozenset(
    {
        *(acp.SESSION_PROMPT, acp.SESSION_LIST, *LEAVES),
        *(acp.SESSION_SET_MODE, acp.SESSION_SET_MODEL, acp.SESSION_SET_CONFIG_OPTION),
    }
)
"""Requests that may be asked twice, and do the same as once."""
STILL_OPEN = "request_open"
"""How a daemon refuses a request whose id belongs to one that it works on."""
POSITION_LOST = "position_lost"
"""How a daemon refuses to go on behind an event that it cannot honour."""
KEPT_ANSWERS = 16
"""More requests than a client answers between a loss and its discovery."""
OWN = "turnwire-"
"""What ids of our own requests begin with."""
LOST = (
    "the way to the daemon was lost before the answer came; what was accepted goes on; load the session to see it"
)
FIRST_S, MOST_S = 0.2, 10.0
"""The waits between two tries."""
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""What a daemon that starts or stops, or a proxy in front of it, says of a moment that passes."""
NOT_FOUND = 404

logger = logging.getLogger(__name__)


def relay_to_daemon(
    url: str, session_id: str | None, token_file: str | None, flags: dict[str, Any], *, agent: str | None = None
) -> None:
    """Carry frames until the client's input ends, to the daemon's default agent or to the one that is named.

    Raises `DaemonUnreachable`, `Unauthenticated`, `ConfigError`, `NotFound`.
    """
    # Nothing is kept here, and no session works here.
    loaded = settings_from({**flags, "cwd": ("/",)}, ())
    settings = loaded.settings
    reach = find_daemon(url, token_file, flags.get("data"))
    if session_id is not None:
        session_id = meant_session(reach, session_id)
    secrets = [] if reach.token is None else [reach.token]
    configure_logging(settings.log_format, settings.log_level, secrets=secrets)
    anyio.run(partial(_run, reach, session_id, loaded.limits, agent), backend_options={"use_uvloop": True})


async def _run(reach: Reach, session_id: str | None, limits: Limits, agent: str | None) -> None:
    connector = Connector(socket_url(reach.url, agent), reach.token, limits)
    near = open_pipes(limits)
    try:
        await RelayProcess(connector, Relay(session_id), near, limits).run()
    finally:
        await near.aclose()


def socket_url(url: str, agent: str | None = None) -> str:
    """Where a daemon's WebSocket is: the one for its default agent, or the one for that agent.

    Raises:
        ConfigError: The address is none.
    """
    parts = urlsplit(url)
    scheme = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}.get(parts.scheme)
    if scheme is None or not parts.hostname or parts.query:
        raise ConfigError("a daemon's address is like http://127.0.0.1:4170; give --daemon such a one")
    path = parts.path.rstrip("/")
    if path.rpartition("/")[0].endswith("/acp"):
        # It is the address of one agent already.
        return urlunsplit((scheme, parts.netloc, path, "", ""))
    path = path if path.endswith("/acp") else f"{path}/acp"
    return urlunsplit((scheme, parts.netloc, path if agent is None else f"{path}/{quote(agent, safe='')}", "", ""))


class Connector:
    """The connection to the daemon, opened as often as it takes."""

    def __init__(self, url: str, token: str | None, limits: Limits, clock: Clock | None = None) -> None:
        self._url = url
        self._had_token = token is not None
        self._headers = agent_headers(token, None)
        self._limits = limits
        self._clock = clock or SystemClock()

    async def open(self, within_s: float, connection_id: str | None = None) -> tuple[WebSocketLink, bool]:
        """A link, and whether the daemon goes on with that connection.

        Raises:
            DaemonUnreachable: Nobody answered in time.
            Unauthenticated, Forbidden: The daemon does not take the token.
            DaemonRefused: Something answers there that has no ACP for us.
        """
        pause, last = Backoff(FIRST_S, MOST_S), self._clock.monotonic() + within_s
        while True:
            try:
                return await self._dial(connection_id), connection_id is not None
            except AgentLaunchFailed as error:
                status = error.context.get("status")
                if status == NOT_FOUND and connection_id is not None:
                    connection_id = None
                    continue
                # Without a status it may be a daemon, or a proxy before it, that was cut while it answered.
                if isinstance(status, int) and status not in PASSING:
                    raise self._refused(status) from None
                if self._clock.monotonic() >= last:
                    words = f"no daemon answers at {shown(self._url)}; start it (turnwire serve), or check --daemon"
                    raise DaemonUnreachable(words) from None
            await self._clock.sleep(pause.next_s())

    async def _dial(self, connection_id: str | None) -> WebSocketLink:
        # What was on its way when the last link broke is lost, so we say from where each session goes on.
        asked = "" if connection_id is None else f"?connection={quote(connection_id)}&attaches=true"
        return await open_websocket(self._url + asked, self._headers, self._limits)

    def _refused(self, status: int) -> Unauthenticated | Forbidden | DaemonRefused:
        if status == Forbidden.http_status:
            words = "is not for that token, or does not know itself by that host name"
            return Forbidden(f"what is at {shown(self._url)} {words}; check both")
        if status == Unauthenticated.http_status:
            return no_token(shown(self._url), had_one=self._had_token)
        words = f"no ACP is served at {shown(self._url)}; check --daemon, and that the daemon serves ACP"
        return DaemonRefused(words, status=status)


class FarLink(Protocol):
    """Frames to the daemon and from it. Raises `LinkBroken` once it is lost."""

    async def run(self) -> None:
        """Works for as long as the link is open."""
        ...

    async def send(self, frame: bytes) -> None: ...

    async def receive(self) -> list[bytes]: ...

    async def aclose(self) -> None: ...


class Way(Protocol):
    """How the daemon is found, and found again."""

    async def open(self, within_s: float, connection_id: str | None = None) -> tuple[FarLink, bool]:
        """A link, and whether the daemon goes on with that connection."""
        ...


class RelayProcess:
    """One client and its daemon."""

    def __init__(self, connector: Way, relay: Relay, near: StdioLink, limits: Limits) -> None:
        self._connector = connector
        self._relay = relay
        self._near = near
        self._limits = limits
        self._far: FarLink | None = None
        self._found, self._lost = anyio.Event(), anyio.Event()
        self._told = anyio.Event()
        """Set with each frame for the client."""
        self._over = anyio.CancelScope()

    async def run(self) -> None:
        """Carry frames until the client's input ends, or it reads no more. Raises what `Connector.open` raises."""
        far, _ = await self._connector.open(self._limits.request_retry_s)
        with self._over:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._carry_up)
                frames: list[bytes] = []
                while True:
                    await self._use(far, frames)
                    logger.info("the way to the daemon is lost; looking for it", extra={"event": "way_lost"})
                    far, is_same = await self._connector.open(self._limits.reconnect_s, self._relay.connection_id)
                    logger.info("the daemon is there again", extra={"event": "way_found", "is_same": is_same})
                    frames, told = self._relay.reattached() if is_same else self._relay.restarted()
                    await self._tell(told)

    async def _use(self, far: FarLink, frames: list[bytes]) -> None:
        """Carry over this link, `frames` first, until it is lost."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(far.run)
            try:
                for frame in frames:
                    await far.send(frame)
                self._far = far
                self._found.set()
                while True:
                    for frame in await far.receive():
                        await self._tell(self._relay.down(frame))
            except LinkBroken:
                self._far, self._found = None, anyio.Event()
                self._lost.set()
                self._lost = anyio.Event()
            finally:
                await far.aclose()

    async def _tell(self, frames: list[bytes]) -> None:
        try:
            for frame in frames:
                await self._near.send(frame)
        except LinkError:
            logger.info("the client reads no more", extra={"event": "stdio_not_read"})
            self._over.cancel()
        self._told.set()

    async def _carry_up(self) -> None:
        try:
            while True:
                for frame in await self._near.receive():
                    await self._send(frame)
        except LinkError:
            # One that only ended its input still reads: it gets the answers that it asked for.
            with anyio.move_on_after(self._limits.opening_s):
                while self._relay.is_waiting:
                    self._told = anyio.Event()
                    await self._told.wait()
            self._over.cancel()

    async def _send(self, frame: bytes) -> None:
        """Send a frame of the client, over the next link if this one is lost."""
        while True:
            await self._found.wait()
            far, lost = self._far, self._lost
            if far is None:
                continue
            passed = self._relay.up(frame)
            if passed is None:
                return
            try:
                await far.send(passed)
            except LinkBroken:
                self._relay.unsent(frame)
                await lost.wait()
            else:
                return


def _told_with(params: Raw) -> str | None:
    """The session with which something is told: a child session is told with the one whose child it is."""
    named = peek_session_id(params)
    return None if named is None else session_of(named) or named


class Relay:
    """One client, on one connection after the other."""

    def __init__(self, session_id: str | None = None) -> None:
        self._session_id = session_id
        self._hello: Request | None = None
        self._shows_offsets = False
        """The client wants the numbers for itself."""
        self._open: dict[ExactId, Request] = {}
        self._keys: dict[ExactId, str] = {}
        """The idempotency keys of prompts that are open, or could not be sent."""
        self._key = secrets.token_hex(8)
        self._probes: set[ExactId] = set()
        """Requests that were asked again or looked for, and whose standing the daemon has not said."""
        self._held: dict[ExactId, list[bytes]] = {}
        """Frames of a session whose id the client does not know yet, by the request that will tell it."""
        self._sessions: dict[str, int | None] = {}
        """Sessions of the client, and the last event that came of each."""
        self._attaching: dict[str, str] = {}
        """The session that each attach of ours is about, by the id of the request."""
        self._answers: dict[ExactId, bytes] = {}
        """What the client answered last, by the ids that the daemon knows."""
        self._asked: dict[ExactId, RequestId] = {}
        """Requests of the daemon that the client has not answered, by the ids that the client knows."""
        self.connection_id: str | None = None
        """What the daemon calls the connection; none before it said so."""
        self._connections = 0
        self._own_ids = 0

    @property
    def is_waiting(self) -> bool:
        """Whether the client waits for an answer that does not take a whole turn."""
        return any(each.method != acp.SESSION_PROMPT for each in self._open.values())

    # -- from the client -----------------------------------------------------------------------------------

    def up(self, frame: bytes) -> bytes | None:
        """What the daemon is sent for a frame of the client; none if nothing is."""
        message = _read(frame)
        if isinstance(message, Request):
            return self._request(message, frame)
        if isinstance(message, Result | Failure):
            return self._answer(message, frame)
        return frame

    def unsent(self, frame: bytes) -> None:
        """The frame did not get away, and will be given again. Answers are said again after a loss as it is."""
        message = _read(frame)
        if isinstance(message, Request):
            self._open.pop(exact(message.id), None)
            self._held.pop(exact(message.id), None)

    def _request(self, request: Request, frame: bytes) -> bytes:
        key, sent = exact(request.id), request
        if request.method == acp.INITIALIZE:
            self._hello = sent = self._numbered(request)
        elif request.method == acp.SESSION_NEW and self._session_id is not None:
            wanted = raw({"sessionId": self._session_id, "historyPolicy": "full"})
            sent = Request(request.id, acp.SESSION_ATTACH, wanted)
            self._held[key] = []
        elif request.method == acp.SESSION_PROMPT:
            sent = self._keyed(request)
        self._open[key] = sent
        return frame if sent is request else encode(sent)

    def _keyed(self, prompt: Request) -> Request:
        """The prompt with a key of its own, unless its client gave it one."""
        params = _members(prompt.params)
        meta = _members(params.get("_meta", Raw(b"{}")))
        ours = _members(meta.get(acp.VENDOR, Raw(b"{}")))
        if "idempotencyKey" in ours:
            return prompt
        key = self._keys.setdefault(exact(prompt.id), f"{self._key}-{self._own_number()}")
        meta[acp.VENDOR] = raw({**ours, "idempotencyKey": key})
        return Request(prompt.id, prompt.method, raw({**params, "_meta": meta}))

    def _numbered(self, hello: Request) -> Request:
        """`initialize` that also asks for the numbers of events."""
        params = _members(hello.params)
        name = "capabilities" if "info" in params else "clientCapabilities"
        capabilities = _members(params.get(name, Raw(b"{}")))
        meta = _members(capabilities.get("_meta", Raw(b"{}")))
        ours = _members(meta.get(acp.VENDOR, Raw(b"{}")))
        self._shows_offsets = "eventIds" in ours
        ours = {**ours, "eventIds": Raw(b"true")}
        wanted = {**capabilities, "_meta": {**meta, acp.VENDOR: ours}}
        return Request(hello.id, hello.method, raw({**params, name: wanted}))

    def _answer(self, answer: Result | Failure, frame: bytes) -> bytes | None:
        if answer.id is None:
            return frame
        theirs = self._asked.pop(exact(answer.id), None)
        if theirs is None:
            return None
        if exact(theirs) != exact(answer.id):
            frame = encode(msgspec.structs.replace(answer, id=theirs))
        self._answers[exact(theirs)] = frame
        if len(self._answers) > KEPT_ANSWERS:
            del self._answers[next(iter(self._answers))]
        return frame

    # -- from the daemon -----------------------------------------------------------------------------------

    def down(self, frame: bytes) -> list[bytes]:
        """What the client is sent for a frame of the daemon."""
        message = _read(frame)
        if message is None:
            return [frame]
        if isinstance(message, Result | Failure):
            return [frame] if message.id is None else self._answered(message, message.id, frame)
        told = self._told(message, frame)
        if told is None:
            return []
        held = next(iter(self._held.values()), None)
        if held is not None and _told_with(message.params) == self._session_id:
            held.append(told)
            return []
        return [told]

    def _answered(self, answer: Result | Failure, request_id: RequestId, frame: bytes) -> list[bytes]:
        if isinstance(request_id, str) and request_id.startswith(OWN):
            return self._taken_up(answer, self._attaching.pop(request_id, None))
        key = exact(request_id)
        request = self._open.get(key)
        if key in self._probes and _is_of_probe(answer, request):
            self._probes.discard(key)
            return [] if isinstance(answer, Failure) or request is None else self._lose(key)
        self._probes.discard(key)
        self._keys.pop(key, None)
        self._open.pop(key, None)
        held = self._held.pop(key, [])
        if request is None:
            # It failed before, when the connection was lost.
            return []
        self._note_session(request, answer)
        return [frame, *held]

    def _taken_up(self, answer: Result | Failure, session_id: str | None) -> list[bytes]:
        """A request of our own is answered: what the client hears of it."""
        self._note_connection(answer)
        if isinstance(answer, Result):
            self._note_last(session_id, answer)
            return []
        extra = {"event": "not_resumed", "code": answer.error.code}
        logger.warning("the daemon did not take up again where it was; open the session anew", extra=extra)
        why = _members(answer.error.data or Raw(b"{}"))
        if session_id is None or _text(why, "code") != POSITION_LOST:
            return []
        # Else the client would take for the rest what is not; so it loads the session anew.
        last, self._sessions[session_id] = self._sessions.get(session_id), None
        told = {"sessionId": session_id, "reason": _text(why, "why"), "lastDeliveredId": last}
        return [
            encode(Notification(acp.STATE_RESYNC_REQUIRED, raw({**told, "earliestAvailableId": why.get("first")})))
        ]

    def _note_last(self, session_id: str | None, answer: Result) -> None:
        """Everything up to the event that the answer names has come before it."""
        named = _of_daemon(answer).get("lastEventId", Raw(b"null"))
        with suppress(msgspec.DecodeError):
            last = json.decode(named, type=int)
            if session_id is not None:
                self._sessions[session_id] = max(last, self._sessions.get(session_id) or 0)

    def _note_connection(self, answer: Result | Failure) -> None:
        if isinstance(answer, Result):
            named = _of_daemon(answer).get("connectionId")
            with suppress(msgspec.DecodeError):
                self.connection_id = self.connection_id if named is None else json.decode(named, type=str)

    def _note_session(self, request: Request, answer: Result | Failure) -> None:
        if request.method == acp.INITIALIZE:
            self._note_connection(answer)
        if isinstance(answer, Failure):
            return
        named = peek_session_id(answer.result) or peek_session_id(request.params)
        if named is None:
            return
        if request.method in OPENS:
            self._sessions.setdefault(named, 0 if request.method in MAKES else None)
            self._note_last(named, answer)
        elif request.method in LEAVES:
            self._sessions.pop(named, None)

    def _told(self, message: Request | Notification, frame: bytes) -> bytes | None:
        """A request or a notification as the client reads it; none if it has it."""
        shown = self._without_number(message)
        if isinstance(shown, Request):
            named = shown.id if not self._connections else f"{self._connections}/{shown.id}"
            if exact(named) in self._asked or exact(shown.id) in self._answers:
                return None
            self._asked[exact(named)] = shown.id
            shown = msgspec.structs.replace(shown, id=named)
        elif shown.method == acp.CANCEL_REQUEST:
            shown = self._withdrawn(shown)
        return frame if shown == message else encode(shown)

    def _withdrawn(self, taken_back: Notification) -> Notification:
        params = _members(taken_back.params)
        for key, theirs in self._asked.items():
            if bytes(params.get("requestId", b"")) == json.encode(theirs):
                return Notification(taken_back.method, raw({**params, "requestId": key[1]}))
        return taken_back

    def _without_number(self, message: Request | Notification) -> Request | Notification:
        if b'"eventId"' not in bytes(message.params):
            return message
        params = _members(message.params)
        meta = _members(params.get("_meta", Raw(b"{}")))
        ours = _members(meta.pop(acp.VENDOR, Raw(b"{}")))
        session_id = _told_with(message.params)
        with suppress(msgspec.DecodeError):
            offset = json.decode(ours.pop("eventId", Raw(b"null")), type=int)
            if session_id is not None:
                self._sessions[session_id] = offset
            if not self._shows_offsets:
                kept = {**meta, **({acp.VENDOR: ours} if ours else {})}
                params = {**params, "_meta": raw(kept)} if kept else _without(params, "_meta")
                return msgspec.structs.replace(message, params=raw(params))
        return message

    # -- after a loss --------------------------------------------------------------------------------------

    def reattached(self) -> tuple[list[bytes], list[bytes]]:
        """The daemon has the connection still: what it is sent first, and what the client is told."""
        # An answer that is still on its way to such a one would come without what it was to stand behind.
        failed = self._lose_all(OPENS)
        self._attaching.clear()
        frames = [*self._answers.values(), *(self._attach(*each) for each in self._sessions.items())]
        for key, request in self._open.items():
            if request.method == acp.INITIALIZE:
                frames.append(encode(request))
                continue
            self._probes.add(key)
            is_safe = request.method in AGAIN
            frames.append(encode(request if is_safe else Request(request.id, acp.SESSION_LIST, Raw(b"{}"))))
        return frames, failed

    def restarted(self) -> tuple[list[bytes], list[bytes]]:
        """The daemon knows nothing of us: what it is sent first, and what the client is told."""
        self._connections += 1
        self.connection_id = None
        self._answers.clear()
        self._attaching.clear()
        self._probes.clear()
        withdrawn = [encode(Notification(acp.CANCEL_REQUEST, raw({"requestId": key[1]}))) for key in self._asked]
        self._asked.clear()
        self._held.clear()
        failed = self._lose_all({each.method for each in self._open.values()} - AGAIN - {acp.INITIALIZE})
        if self._hello is None:
            return [], [*withdrawn, *failed]
        hello = self._hello
        if exact(hello.id) not in self._open:
            hello = Request(self._own_id(), hello.method, hello.params)
        frames = [encode(hello), *(self._attach(*each) for each in self._sessions.items())]
        frames += [encode(each) for each in self._open.values() if each.method in AGAIN]
        return frames, [*withdrawn, *failed]

    def _attach(self, session_id: str, after: int | None) -> bytes:
        """Come back to a session, behind the last event that came. Its setup stays as it is."""
        params: dict[str, Any] = {"sessionId": session_id, "historyPolicy": "pending_only"}
        if after is not None:
            params["_meta"] = {acp.VENDOR: {"after": after}}
        own_id = self._own_id()
        self._attaching[own_id] = session_id
        return encode(Request(own_id, acp.SESSION_ATTACH, raw(params)))

    def _lose_all(self, methods: Collection[str]) -> list[bytes]:
        lost = [key for key, each in self._open.items() if each.method in methods]
        return [frame for key in lost for frame in self._lose(key)]

    def _lose(self, key: ExactId) -> list[bytes]:
        self._held.pop(key, None)
        request = self._open.pop(key)
        return [encode(Failure(request.id, ErrorObject(INTERNAL_ERROR, LOST, raw({"code": "answer_lost"}))))]

    def _own_id(self) -> str:
        return f"{OWN}{self._own_number()}"

    def _own_number(self) -> int:
        self._own_ids += 1
        return self._own_ids


def _is_of_probe(answer: Result | Failure, request: Request | None) -> bool:
    if isinstance(answer, Failure):
        return _text(_members(answer.error.data or Raw(b"{}")), "code") == STILL_OPEN
    return (request is None or request.method not in AGAIN) and "sessions" in _members(answer.result)


def _read(frame: bytes) -> Frame | None:
    """The message; none if it is none: whose it is will say what is wrong with it."""
    try:
        message = decode(frame)
    except RemoteProtocolError:
        return None
    return message if isinstance(message, Frame) else None


def _members(value: Raw) -> dict[str, Raw]:
    try:
        return json.decode(value or b"{}", type=dict[str, Raw])
    except msgspec.DecodeError:
        return {}


def _of_daemon(answer: Result) -> dict[str, Raw]:
    """What the daemon says of itself in an answer, beside what ACP has members for."""
    meta = _members(_members(answer.result).get("_meta", Raw(b"{}")))
    return _members(meta.get(acp.VENDOR, Raw(b"{}")))


def _text(members: dict[str, Raw], name: str) -> str | None:
    try:
        return json.decode(members.get(name, Raw(b"null")), type=str | None)
    except msgspec.DecodeError:
        return None


def _without(members: dict[str, Raw], name: str) -> dict[str, Raw]:
    return {each: value for each, value in members.items() if each != name}
