"""A relay between stdin and stdout and the `/acp` of a daemon, over a WebSocket that is reopened when it is lost.

`FolderDaemon` finds or starts the daemon of a data folder; `Connector` dials.

`Relay` decides which frames pass between a client and a daemon, and which must be repeated after their connection
was lost; it never sends and never waits. `RelayProcess` does both. Frames pass unchanged, with four exceptions: the
daemon is asked to number its events, and the numbers are removed again; a prompt gets an idempotency key; with a
configured session, `session/new` returns that session; and after a loss, requests of a new connection have the
relay's own ids. Input of the client waits in its pipe while there is no connection. A token is never printed.

Theory of operation
-------------------
If the connection is lost while a request is open, it is unknown if the request arrived. An idempotent request is
sent again; a prompt is idempotent by its key. For any other request the client gets an error that it is lost. The
daemon is found again in one of two forms.

    reattached  The daemon still has the connection, and sends nothing about its sessions before it gets their
                positions. Answers of the client are repeated, which is harmless. Each session resumes after the
                last received event, so lost events are sent again. Open requests of the daemon are repeated as
                well, under their ids: those that the client already has are not forwarded. Each open request of the
                client is sent again, or probed by another with the same id: the daemon rejects either while the
                first is open. One that opens a session is lost.
    restarted   The daemon has forgotten the connection. A new one is made, and its sessions resume after the last
                received event. Then idempotent requests are sent again. The daemon's open requests are withdrawn:
                it sends them again. No answer to an old one is forwarded, because the same number may be
                another request now.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, BinaryIO, Protocol
from urllib.parse import quote, urlsplit, urlunsplit

import anyio
import anyio.to_thread
import msgspec
from msgspec import Raw, json

from turnwire.cli.config import editor_settings, settings_from, settings_hash
from turnwire.cli.output import tell
from turnwire.cli.reach import Reach, find_daemon, meant_session
from turnwire.client.http import no_token
from turnwire.clock import Clock, SystemClock
from turnwire.errors import (
    AgentLaunchFailed,
    ConfigError,
    DaemonRefused,
    DaemonUnreachable,
    Forbidden,
    LimitExceeded,
    LinkBroken,
    LinkError,
    LogError,
    LogLocked,
    RemoteProtocolError,
    TurnwireError,
    Unauthenticated,
)
from turnwire.hosting.address import agent_headers, shown
from turnwire.hosting.backoff import Backoff
from turnwire.hosting.local_daemon import LocalDaemon, running
from turnwire.hosting.stdio import StdioLink, open_pipes
from turnwire.hosting.websocket import WebSocketLink, open_websocket
from turnwire.ids import RequestId
from turnwire.limits import Limits
from turnwire.server.acp.rpc import failure_of
from turnwire.server.settings.declared import Settings
from turnwire.server.telemetry.logs import configure_logging
from turnwire.session.child_names import session_of
from turnwire.session.correlation import ExactId, exact
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
    refusal_of,
)
from turnwire.wire.peek import peek_session_id

MAKES = frozenset({acp.SESSION_NEW, acp.SESSION_FORK})
"""Requests that create a session: at their answer no event of it has been received."""
OPENS = MAKES | {acp.SESSION_LOAD, acp.SESSION_RESUME, acp.SESSION_ATTACH}
LEAVES = frozenset({acp.SESSION_CLOSE, acp.SESSION_DETACH, acp.SESSION_DELETE})
AGAIN = frozenset(
    {
        *(acp.SESSION_PROMPT, acp.SESSION_LIST, *LEAVES),
        *(acp.SESSION_SET_MODE, acp.SESSION_SET_MODEL, acp.SESSION_SET_CONFIG_OPTION),
    }
)
"""Idempotent requests."""
STILL_OPEN = "request_open"
"""Error of the daemon for a request whose id belongs to an open one."""
POSITION_LOST = "position_lost"
"""Error of the daemon for a position that it cannot honour."""
KEPT_ANSWERS = 16
"""More than the number of requests that a client answers between a loss and its discovery."""
OWN = "turnwire-"
"""Prefix of the relay's own request ids."""
LOST = (
    "the way to the daemon was lost before the answer came; what was accepted goes on; load the session to see it"
)
REJECTION_S = 2.0
"""Time for the rejection of a prompt after the client ended its input."""
FIRST_S, MOST_S = 0.2, 10.0
"""Bounds of the waits between two tries."""
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Transient statuses of a daemon that starts or stops, or of a proxy in front of it."""
NOT_FOUND = 404

logger = logging.getLogger(__name__)


def relay_to_daemon(
    url: str, session_id: str | None, token_file: str | None, flags: dict[str, Any], *, agent: str | None = None
) -> None:
    """Relay frames until the client's input ends, to the daemon's default agent or to the named one.

    Raises `DaemonUnreachable`, `Unauthenticated`, `ConfigError`, `NotFound`.
    """
    # This process stores nothing, and no session works here.
    loaded = settings_from({**flags, "cwd": ("/",)}, ())
    settings = loaded.settings
    reach = find_daemon(url, token_file, flags.get("data"))
    if session_id is not None:
        session_id = meant_session(reach, session_id)
    secrets = [] if reach.token is None else [reach.token]
    configure_logging(settings.log_format, settings.log_level, secrets=secrets)
    anyio.run(partial(_run, reach, session_id, loaded.limits, agent), backend_options={"use_uvloop": True})


def relay_to_folder(flags: dict[str, Any], agent: Sequence[str]) -> None:
    """Relay frames until the client's input ends, to the daemon of the agent's data folder.

    Raises `DaemonUnreachable`, `ConfigError`, `LogError`.
    """
    loaded = editor_settings(flags, agent)
    settings = loaded.settings
    configure_logging(settings.log_format, settings.log_level, secrets=[])
    named: tuple[str, ...] = flags.get("agents") or ()
    way = FolderDaemon(settings, loaded.limits, has_agent=bool(agent or named))
    anyio.run(partial(_carry, way, Relay(), loaded.limits), backend_options={"use_uvloop": True})


async def _run(reach: Reach, session_id: str | None, limits: Limits, agent: str | None) -> None:
    way = Connector(socket_url(reach.url, agent), reach.token, limits)
    await _carry(way, Relay(session_id), limits)


async def _carry(way: Way, relay: Relay, limits: Limits) -> None:
    near = open_pipes(limits)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_end_on_signal, near)
            try:
                await RelayProcess(way, relay, near, limits).run()
            except TurnwireError as error:
                await _refuse(near, error, limits)
                raise
            tasks.cancel_scope.cancel()
    finally:
        await near.aclose()


async def _end_on_signal(near: StdioLink) -> None:
    """Treat the first signal like the end of the editor's input; the second one ends the process."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            near.end_input()
            async for _ in signals:
                os._exit(128 + number)


async def _refuse(near: StdioLink, error: TurnwireError, limits: Limits) -> None:
    """Answer the client's first request with the error: editors show that rather than stderr."""
    with suppress(LinkError), anyio.move_on_after(limits.opening_s):
        while True:
            for frame in await near.receive():
                message = _read(frame)
                if isinstance(message, Request):
                    await near.send(failure_of(message.id, error))
                    await near.flush()
                    return


LOG_FILE = "daemon.log"
"""Name of the stderr file of a daemon that was started here, in its data folder."""
LOG_BYTES = 1024 * 1024
"""A longer log file is truncated at the next start."""


class FolderDaemon:
    """The daemon of a data folder, found or started as often as necessary. Implements `Way`.

    Two editors that start at the same moment both start one; the lock of the folder lets one of them run.
    """

    def __init__(self, settings: Settings, limits: Limits, *, has_agent: bool) -> None:
        """`has_agent`: the command line names an agent, so a daemon with other agents is not accepted."""
        self._settings = settings
        self._limits = limits
        self._has_agent = has_agent
        self._data = None if settings.data is None else settings.data.absolute()
        self._hash = settings_hash(settings)
        self._clock = SystemClock()
        self._started: LocalDaemon | None = None
        """The newest daemon that was started here: the only way to one whose log is in memory."""
        self._is_waiting = False

    async def open(self, within_s: float, connection_id: str | None = None) -> tuple[WebSocketLink, bool]:
        """Return a link, and whether the daemon still has that connection.

        Raises:
            DaemonUnreachable: It does not accept a connection in time.
            LogLocked: The folder is used with another agent, or by a process that does not end in time.
            ConfigError, LogError: A daemon cannot be started.
        """
        limits = self._limits
        stop_s = limits.drain_s + limits.stop_eof_s + limits.stop_term_s + limits.stop_kill_s
        last = self._clock.monotonic() + max(within_s, stop_s)
        while True:
            daemon = await self._find() or await self._start(last)
            if daemon is not None:
                try:
                    return await Connector(socket_url(daemon.url), daemon.key(), limits).open(0, connection_id)
                except DaemonUnreachable:
                    # It is ending.
                    if self._clock.monotonic() >= last:
                        raise
            await self._clock.sleep(limits.log_retry_s)

    async def _find(self) -> LocalDaemon | None:
        """Return the daemon that uses the folder. Raises `LogLocked` if it has other agents."""
        if self._data is None:
            return self._started if self._started is not None and _is_running(self._started.pid) else None
        found = next((each for each in running(os.environ) if each.data == str(self._data)), None)
        if found is None or found.editors == self._hash or (found.editors is None and not self._has_agent):
            return found
        raise LogLocked(
            f"{self._data} is used by a daemon at {found.url} with another agent or other settings; give this one a"
            f" folder with --data DIR, or use that daemon with `turnwire stdio --daemon {found.url}`"
        )

    async def _start(self, last: float) -> LocalDaemon | None:
        """Start a daemon; returns `None` if another process still has the folder, but not after `last`."""
        with self._open_log() as log:
            # A new session, because a signal for the editor's process group must not reach a daemon that others
            # use.
            process = await anyio.to_thread.run_sync(
                lambda: subprocess.Popen(
                    serve_command(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                )
            )
            begins = log.seek(0, os.SEEK_END)
            assert process.stdout is not None
            with process.stdout as output:
                line = await anyio.to_thread.run_sync(output.readline, abandon_on_cancel=True)
            if line:
                announced = json.decode(line, type=_Announced)
                data = None if self._data is None else str(self._data)
                self._started = LocalDaemon(announced.url, announced.pid, data, announced.token, editors=self._hash)
                return self._started
            status = await anyio.to_thread.run_sync(process.wait)
            log.seek(begins)
            why = log.read().decode(errors="replace")
        if status == LogLocked.exit_status and self._clock.monotonic() < last:
            if not self._is_waiting:
                self._is_waiting = True
                tell(f"another process uses {self._data}; waiting for it to end")
            return None
        words = why.rpartition("turnwire: ")[2].strip() or f"the daemon did not start (exit code {status})"
        kinds = (ConfigError, LogLocked, LogError)
        raise next((each for each in kinds if each.exit_status == status), TurnwireError)(words)

    def _open_log(self) -> BinaryIO:
        """Open the file for the daemon's stderr. It cannot be this process's: editors wait for its end."""
        if self._data is None:
            return tempfile.TemporaryFile()
        try:
            self._data.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = self._data / LOG_FILE
            is_long = file.exists() and file.stat().st_size > LOG_BYTES
            return open(file, "w+b" if is_long else "a+b", opener=_private)
        except OSError:
            # The daemon itself reports an unusable folder.
            return tempfile.TemporaryFile()


class _Announced(msgspec.Struct):
    url: str
    pid: int
    token: str | None = None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def serve_command() -> list[str]:
    """Return the `serve` command with this process's arguments."""
    words = sys.orig_argv
    at = words.index("stdio")
    return [sys.executable, *words[1:at], "serve", "--for-editors", "--json", *words[at + 1 :]]


def _is_running(pid: int) -> bool:
    # A daemon that has ended is a zombie of this process until it is waited for.
    with suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    return False


def socket_url(url: str, agent: str | None = None) -> str:
    """Return the address of a daemon's WebSocket, for its default agent or for the named one.

    Raises:
        ConfigError: The address is invalid.
    """
    parts = urlsplit(url)
    scheme = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}.get(parts.scheme)
    if scheme is None or not parts.hostname or parts.query:
        raise ConfigError("a daemon's address is like http://127.0.0.1:4170; give --daemon such a one")
    path = parts.path.rstrip("/")
    if path.rpartition("/")[0].endswith("/acp"):
        # It already is the address of one agent.
        return urlunsplit((scheme, parts.netloc, path, "", ""))
    path = path if path.endswith("/acp") else f"{path}/acp"
    return urlunsplit((scheme, parts.netloc, path if agent is None else f"{path}/{quote(agent, safe='')}", "", ""))


class Connector:
    """The connection to the daemon, opened as often as necessary."""

    def __init__(self, url: str, token: str | None, limits: Limits, clock: Clock | None = None) -> None:
        self._url = url
        self._had_token = token is not None
        self._headers = agent_headers(token, None)
        self._limits = limits
        self._clock = clock or SystemClock()

    async def open(self, within_s: float, connection_id: str | None = None) -> tuple[WebSocketLink, bool]:
        """Return a link, and whether the daemon continues with that connection.

        Raises:
            DaemonUnreachable: No daemon answered in time.
            Unauthenticated, Forbidden: The daemon does not accept the token.
            DaemonRefused: The server there does not offer ACP to this client.
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
                # Without a status it may be a daemon, or a proxy in front of it, that was cut during its answer.
                if isinstance(status, int) and status not in PASSING:
                    raise self._refused(status) from None
                if self._clock.monotonic() >= last:
                    words = f"no daemon answers at {shown(self._url)}; start it (turnwire serve), or check --daemon"
                    raise DaemonUnreachable(words) from None
            await self._clock.sleep(pause.next_s())

    async def _dial(self, connection_id: str | None) -> WebSocketLink:
        # Frames in flight were lost with the last link, so the relay names the position at which each session
        # continues.
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
    """A frame link to and from the daemon. Raises `LinkBroken` once it is lost."""

    async def run(self) -> None:
        """Run as long as the link is open."""
        ...

    async def send(self, frame: bytes) -> None: ...

    async def receive(self) -> list[bytes]: ...

    async def aclose(self) -> None: ...


class Way(Protocol):
    """A method of finding the daemon, repeatedly."""

    async def open(self, within_s: float, connection_id: str | None = None) -> tuple[FarLink, bool]:
        """Return a link, and whether the daemon continues with that connection."""
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
        self._refused = 0
        """Number of client messages that were rejected as too long."""

    async def run(self) -> None:
        """Relay frames until the client's input ends or it stops reading. Raises the errors of `Connector.open`."""
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
        """Relay over this link, `frames` first, until it is lost."""
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
                    # Answered here: a client may end its input before the daemon is there.
                    malformed = _rejection(frame)
                    if malformed is None:
                        await self._send(frame)
                    else:
                        await self._tell(malformed)
                await self._refuse_oversized()
        except LinkError:
            await self._refuse_oversized()
            # A client that only ended its input still reads: it gets the pending answers.
            with anyio.move_on_after(self._limits.opening_s):
                await self._answered(lambda: self._relay.is_waiting)
            # A prompt's answer may take hours, but a rejection comes at once.
            with anyio.move_on_after(REJECTION_S):
                await self._answered(lambda: self._relay.is_open)
            self._over.cancel()

    async def _answered(self, is_open: Callable[[], bool]) -> None:
        while is_open():
            self._told = anyio.Event()
            await self._told.wait()

    async def _refuse_oversized(self) -> None:
        """Report messages that were dropped because of their length. Their ids were dropped with them."""
        dropped = self._near.breaches.total() - self._refused
        self._refused += dropped
        words = f"a message is longer than {self._limits.frame_bytes} bytes; send less"
        for _ in range(dropped):
            await self._tell([failure_of(None, LimitExceeded(words, limit="frame_bytes"))])

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
    """Return the session whose stream has this message: a child session's are in its parent's stream."""
    named = peek_session_id(params)
    return None if named is None else session_of(named) or named


class Relay:
    """The state of one client across consecutive connections."""

    def __init__(self, session_id: str | None = None) -> None:
        self._session_id = session_id
        self._hello: Request | None = None
        self._shows_offsets = False
        """True if the client itself requested event numbers."""
        self._open: dict[ExactId, Request] = {}
        self._keys: dict[ExactId, str] = {}
        """The idempotency keys of prompts that are open, or could not be sent."""
        self._key = secrets.token_hex(8)
        self._probes: set[ExactId] = set()
        """Requests that were repeated or probed, and whose state the daemon has not reported yet."""
        self._held: dict[ExactId, list[bytes]] = {}
        """Frames of a session whose id the client does not know yet, by the request whose answer has the id."""
        self._sessions: dict[str, int | None] = {}
        """Sessions of the client, and the last received event of each."""
        self._attaching: dict[str, str] = {}
        """The session of each attach request of the relay, by the id of the request."""
        self._answers: dict[ExactId, bytes] = {}
        """The client's last answers, by the ids that the daemon knows."""
        self._asked: dict[ExactId, RequestId] = {}
        """Requests of the daemon that the client has not answered, by the ids that the client knows."""
        self.connection_id: str | None = None
        """The daemon's id of the connection; `None` before it is known."""
        self._connections = 0
        self._own_ids = 0

    @property
    def is_open(self) -> bool:
        """Return whether the client waits for any answer."""
        return bool(self._open)

    @property
    def is_waiting(self) -> bool:
        """Return whether the client waits for an answer other than the end of a turn."""
        return any(each.method != acp.SESSION_PROMPT for each in self._open.values())

    # -- from the client -----------------------------------------------------------------------------------

    def up(self, frame: bytes) -> bytes | None:
        """Return the frame for the daemon for a frame of the client, or `None`."""
        message = _read(frame)
        if isinstance(message, Request):
            return self._request(message, frame)
        if isinstance(message, Result | Failure):
            return self._answer(message, frame)
        return frame

    def unsent(self, frame: bytes) -> None:
        """Forget a frame that was not sent and will be passed again. Answers are repeated anyway."""
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
        """Return the prompt with an idempotency key, unless its client set one."""
        params = _members(prompt.params)
        meta = _members(params.get("_meta", Raw(b"{}")))
        ours = _members(meta.get(acp.VENDOR, Raw(b"{}")))
        if "idempotencyKey" in ours:
            return prompt
        key = self._keys.setdefault(exact(prompt.id), f"{self._key}-{self._own_number()}")
        meta[acp.VENDOR] = raw({**ours, "idempotencyKey": key})
        return Request(prompt.id, prompt.method, raw({**params, "_meta": meta}))

    def _numbered(self, hello: Request) -> Request:
        """Return an `initialize` that also requests event numbers."""
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
        """Return the frames for the client for a frame of the daemon."""
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
            # The client already got an error for it when the connection was lost.
            return []
        self._note_session(request, answer)
        return [frame, *held]

    def _taken_up(self, answer: Result | Failure, session_id: str | None) -> list[bytes]:
        """Handle the answer to a request of the relay; return the frames for the client."""
        self._note_connection(answer)
        if isinstance(answer, Result):
            self._note_last(session_id, answer)
            return []
        extra = {"event": "not_resumed", "code": answer.error.code}
        logger.warning("the daemon did not take up again where it was; open the session anew", extra=extra)
        why = _members(answer.error.data or Raw(b"{}"))
        if session_id is None or _text(why, "code") != POSITION_LOST:
            return []
        # Otherwise the client would mistake later events for the missing ones; so it loads the session again.
        last, self._sessions[session_id] = self._sessions.get(session_id), None
        told = {"sessionId": session_id, "reason": _text(why, "why"), "lastDeliveredId": last}
        return [
            encode(Notification(acp.STATE_RESYNC_REQUIRED, raw({**told, "earliestAvailableId": why.get("first")})))
        ]

    def _note_last(self, session_id: str | None, answer: Result) -> None:
        """Record that everything up to the event named in the answer was received."""
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
        """Return a request or a notification in the client's form, or `None` if the client already has it."""
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
        """Continue a connection that the daemon still has; return the first frames for daemon and client."""
        # A pending answer to such a request would arrive without the events that must precede it.
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
        """Start with a daemon that has no state; return the first frames for daemon and client."""
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
        """Attach to a session again, after the last received event. Its setup stays unchanged."""
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


def _rejection(frame: bytes) -> list[bytes] | None:
    """Return the answers to a malformed message; `None` if the message is well-formed."""
    try:
        decode(frame)
    except RemoteProtocolError as error:
        refusal = refusal_of(error)
        return [] if refusal is None else [encode(refusal)]
    return None


def _read(frame: bytes) -> Frame | None:
    """Decode a message; returns `None` if it is malformed: the daemon reports the error."""
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
    """Return the daemon's own members of an answer, in addition to those of ACP."""
    meta = _members(_members(answer.result).get("_meta", Raw(b"{}")))
    return _members(meta.get(acp.VENDOR, Raw(b"{}")))


def _text(members: dict[str, Raw], name: str) -> str | None:
    try:
        return json.decode(members.get(name, Raw(b"null")), type=str | None)
    except msgspec.DecodeError:
        return None


def _without(members: dict[str, Raw], name: str) -> dict[str, Raw]:
    return {each: value for each, value in members.items() if each != name}
