"""The client: an agent or a daemon, and the sessions on it.

Use it in `async with`: its tasks live inside. The exit stops a private agent; a daemon and its turns continue.
Turns that are still awaited then raise `ClientClosed`. An exception that the program raises inside leaves the block
unchanged, not wrapped in a group.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast
from weakref import WeakValueDictionary

import anyio
from anyio.abc import TaskGroup
from msgspec import UNSET

from turnwire.client.arguments import to_json, to_list, to_request_id, to_text
from turnwire.client.attachment import Attachment, completed
from turnwire.client.dispatch import Listeners
from turnwire.client.permission import Answer, PermissionRequest
from turnwire.client.port import Daemon, DaemonSession
from turnwire.client.progress import TurnResult, Wakeup
from turnwire.client.session import Session
from turnwire.client.update import Update
from turnwire.clock import Clock
from turnwire.errors import ClientClosed, ConfigError, SessionClosed, TurnwireError
from turnwire.hosting.address import is_agent_url
from turnwire.hosting.local_daemon import URL_VARIABLE, at_url, only_one, running
from turnwire.ids import RequestId, SessionId
from turnwire.limits import Limits
from turnwire.session.state import SYSTEM_PROMPT, Setup
from turnwire.wire.jsonrpc import raw

if TYPE_CHECKING:
    from turnwire.hosting.source import AgentSource
    from turnwire.log import EventLog

_Any = TypeVar("_Any")
_Answer = TypeVar("_Answer", bound=Answer | Awaitable[Answer])


class _Running:
    """The state of an open client."""

    def __init__(self, daemon: Daemon, tasks: TaskGroup) -> None:
        self.daemon = daemon
        self.tasks = tasks
        self.wakeup = Wakeup()
        self.attachments: WeakValueDictionary[SessionId, Attachment] = WeakValueDictionary()
        """An attachment exists as long as its walk over the log, or until the program drops its objects."""
        self.failure: TurnwireError | None = None
        """Why the client has ended."""

    def attached(self, session_id: SessionId) -> Attachment | None:
        """Return the attachment of a session. A failed one is replaced, because its daemon may be back."""
        known = self.attachments.get(session_id)
        return None if known is None or known.failure is not None else known

    def over(self) -> TurnwireError | None:
        """Return why no further turn can start in any session. Closed sessions do not count."""
        failures = [each.failure for each in self.attachments.values() if each.over is not None]
        lasting = [each for each in failures if each is not None and not isinstance(each, SessionClosed)]
        if self.failure is None and lasting and len(failures) == len(self.attachments):
            return lasting[0]
        return self.failure


class Client:
    """Sessions on one daemon. Create one with `connect`."""

    def __init__(self, opening: AbstractAsyncContextManager[Daemon], limits: Limits) -> None:
        self._opening = opening
        self._limits = limits
        self._listeners = Listeners()
        self._stack = AsyncExitStack()
        self._running: _Running | None = None
        self._is_entered = False

    # -- sessions ------------------------------------------------------------------------------------------

    async def new_session(
        self,
        cwd: str | os.PathLike[str] = ".",
        *,
        mcp_servers: Sequence[Mapping[str, Any]] = (),
        agent: str | None = None,
        system_prompt: str | None = None,
    ) -> Session:
        """Create a session that works in this directory, opened by its agent, and attach to it.

        `agent` is the name of one of the daemon's agents; the default one if absent. It is notified that
        this client is ready, and its updates from now on are stored for handlers. `system_prompt` is added to the
        instructions of an agent that offers that.

        Raises:
            BadRequest: the daemon's agent offers no system prompt.
            UnknownAgent: the daemon has no agent with that name.
            AuthRequired: the agent requires a login first; see `authenticate`.
            AgentLaunchFailed, AgentUnavailable: the agent cannot be started.
        """
        running = self._open()
        servers = to_json(to_list(mcp_servers, "`mcp_servers` is a list of dicts"), "`mcp_servers`")
        added = {"mode": "append", "content": [{"type": "text", "text": system_prompt}]}
        setup = Setup(servers, extra=UNSET if system_prompt is None else raw({SYSTEM_PROMPT: added}))
        return self._attach(running, await running.daemon.create(_absolute(cwd), setup, agent))

    async def authenticate(self, method_id: str) -> None:
        """Log in to the agent by one of the methods that `AuthRequired` names; then try again."""
        await self._open().daemon.authenticate(method_id)

    async def attach(self, session_id: str) -> Session:
        """Attach to an existing session. Handlers get updates from now on. Raises `SessionNotFound`.

        Attach again after the session's daemon was away for too long; then the handlers of the session must be
        added again.
        """
        running, wanted = self._open(), SessionId(to_text(session_id, "a session id"))
        known = running.attached(wanted)
        if known is not None:
            return Session(known, running.wakeup)
        return self._attach(running, await running.daemon.find(wanted))

    async def sessions(self) -> list[SessionId]:
        """Return every session of the daemon."""
        return await self._open().daemon.sessions()

    def _attach(self, running: _Running, port: DaemonSession) -> Session:
        known = running.attached(port.session_id)
        if known is None:
            known = Attachment(port, running.tasks, running.wakeup, self._listeners, self._limits)
            running.attachments[port.session_id] = known
            if self._listeners.updates or self._listeners.permissions:
                known.dispatch.start()
        return Session(known, running.wakeup)

    # -- all sessions at once ------------------------------------------------------------------------------

    def on_update(self, function: Callable[[Update], _Any]) -> Callable[[Update], _Any]:
        """Call `function(update)` for every update of every session, after the session's own functions."""
        self._listeners.add_update(function)
        self._start_all()
        return function

    def on_permission(
        self, function: Callable[[PermissionRequest], _Answer]
    ) -> Callable[[PermissionRequest], _Answer]:
        """Call `function(request)` if no function of the session itself has answered."""
        self._listeners.add_permission(function)
        self._start_all()
        return function

    async def completed(self, request_id: RequestId) -> TurnResult:
        """Wait like `Session.completed` for a turn of any session with this request id."""
        running, wanted = self._open(), to_request_id(request_id)
        self._start_all()
        return await completed(wanted, lambda: list(running.attachments.values()), running.over, running.wakeup)

    def _start_all(self) -> None:
        for each in list(self._running.attachments.values()) if self._running is not None else ():
            each.dispatch.start()

    # -- opening and closing -------------------------------------------------------------------------------

    def _open(self) -> _Running:
        if self._running is None:
            raise ClientClosed("the client is not open; use it inside `async with`")
        return self._running

    async def __aenter__(self) -> Self:
        if self._is_entered:
            raise ConfigError("a client is entered once; make another with `connect`")
        self._is_entered = True
        try:
            daemon = await self._stack.enter_async_context(self._opening)
            tasks = await self._stack.enter_async_context(anyio.create_task_group())
        except BaseException:
            await self._stack.aclose()
            raise
        self._running = _Running(daemon, tasks)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        running, self._running = self._open(), None
        running.failure = ClientClosed("the client was closed before this came to its end")
        for attachment in list(running.attachments.values()):
            attachment.fail(running.failure)
        running.wakeup.wake()
        running.tasks.cancel_scope.cancel()
        if isinstance(error, anyio.get_cancelled_exc_class()):
            return await self._stack.__aexit__(kind, error, trace)
        # The program's own error bypasses the task groups, which would wrap it.
        await self._stack.aclose()
        return None


def _absolute(path: str | os.PathLike[str]) -> str:
    plain: object = path.__fspath__() if isinstance(path, os.PathLike) else path
    return os.path.abspath(to_text(plain, "`cwd`"))


def _command(agent: str | Sequence[str]) -> Sequence[str]:
    """Return a command as a list of words. Raises `ConfigError`."""
    try:
        command = shlex.split(agent) if isinstance(agent, str) else agent
    except ValueError:
        raise ConfigError("the agent's command has an open quote; close it, or give a list of words") from None
    if not command:
        raise ConfigError("the agent's command is empty; give a program and its arguments")
    for word in cast("Sequence[object]", command):
        if not isinstance(word, str | os.PathLike):
            raise ConfigError(f"the agent's command is a list of texts; {type(word).__name__} is none")
    return command


def _open_behind_url(
    url: str, token: str | None, log: EventLog | None, limits: Limits, clock: Clock | None
) -> AbstractAsyncContextManager[Daemon]:
    # Imported here: a program with a private agent needs no HTTP, and one with a daemon no node.
    from turnwire.client.embedded import open_embedded
    from turnwire.hosting.remote_agent import RemoteSource

    source = RemoteSource(url, token=token, limits=limits)

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Daemon]:
        async with source, open_embedded(source, log, limits, clock) as daemon:
            yield daemon

    return opened()


def _local_daemon() -> str:
    """Return the address from `TURNWIRE_URL`, or of this user's local daemon. Raises `ConfigError`."""
    url = os.environ.get(URL_VARIABLE)
    if url:
        return url
    daemon = only_one(running(os.environ))
    if daemon is None:
        raise ConfigError(
            "no daemon of yours runs on this machine; start one with `turnwire serve`, or give its URL or the"
            " command of an agent"
        )
    return daemon.url


def connect(
    agent: str | Sequence[str] | AgentSource | None = None,
    *,
    token: str | None = None,
    env: dict[str, str] | None = None,
    log: EventLog | None = None,
    limits: Limits | None = None,
    clock: Clock | None = None,
) -> Client:
    """Return a client of the daemon at a URL (`http://`, `https://`), or one with a private agent.

    Without `agent` it uses the daemon at `TURNWIRE_URL`, or this user's daemon on this machine. A daemon requires
    a `token`: by default `TURNWIRE_TOKEN` of the environment, or the one that a local daemon provides to programs
    of its user.

    A private `agent` is a command to start, a source of agents, or the address of an ACP server: `ws://`, `wss://`,
    or a web address that ends in `/acp`. An ACP server gets only a `token` that is passed here. A command is
    started when the first session needs it; `env`, if present, is its whole environment. Sessions are stored in
    memory unless a `log` is passed.

    Raises `ConfigError` for an invalid command, URL or source, and for an argument that belongs to the other kind.
    """
    limits = limits or Limits()
    if agent is None:
        agent = _local_daemon()
    if isinstance(agent, str) and is_agent_url(agent):
        if env is not None:
            raise ConfigError("`env` is for a command; an agent behind a URL has its own environment")
        return Client(_open_behind_url(agent, token, log, limits, clock), limits)
    if isinstance(agent, str) and agent.lower().startswith(("http://", "https://")):
        if env is not None or log is not None:
            raise ConfigError("`env` and `log` are for an agent of your own; a daemon has its own")
        from turnwire.client.http import TOKEN_VARIABLE, checked_url
        from turnwire.client.remote import open_remote

        if token is None and TOKEN_VARIABLE not in os.environ:
            here = at_url(agent, running(os.environ))
            token = None if here is None else here.key()
        return Client(open_remote(checked_url(agent), token, limits, clock), limits)
    if token is not None:
        raise ConfigError("`token` is for what is behind a URL; give the URL instead of a command")
    from turnwire.client.embedded import open_embedded
    from turnwire.hosting.source import ProcessSource

    if isinstance(agent, str | Sequence):
        source: AgentSource = ProcessSource(_command(agent), env=env, limits=limits)
    elif callable(getattr(agent, "connect", None)):
        source = agent
    else:
        raise ConfigError(f"{type(agent).__name__} is no agent; give a command, a URL, or a source of agents")
    return Client(open_embedded(source, log, limits, clock), limits)
