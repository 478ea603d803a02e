"""The client: an agent or a daemon, and the sessions on it.

`async with` it: its tasks live inside. Leaving stops an agent of its own; a daemon and its turns go on. Turns
that are still awaited then raise `ClientClosed`. What the program itself raises inside comes out as it is, not
wrapped in a group.
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

from turnwire.client.arguments import to_json, to_list, to_request_id, to_text
from turnwire.client.attachment import Attachment, completed
from turnwire.client.dispatch import Listeners
from turnwire.client.permission import Answer, PermissionRequest
from turnwire.client.port import Daemon, DaemonSession
from turnwire.client.progress import TurnResult, Wakeup
from turnwire.client.session import Session
from turnwire.client.update import Update
from turnwire.errors import ClientClosed, ConfigError, SessionClosed, TurnwireError
from turnwire.ids import RequestId, SessionId
from turnwire.limits import Limits
from turnwire.link.address import is_agent_url
from turnwire.link.local_daemon import URL_VARIABLE, at_url, only_one, running
from turnwire.runtime.clock import Clock

if TYPE_CHECKING:
    from turnwire.log import EventLog
    from turnwire.runtime.source import AgentSource

_Any = TypeVar("_Any")
_Answer = TypeVar("_Answer", bound=Answer | Awaitable[Answer])


class _Running:
    """What exists while the client is open."""

    def __init__(self, daemon: Daemon, tasks: TaskGroup) -> None:
        self.daemon = daemon
        self.tasks = tasks
        self.wakeup = Wakeup()
        self.attachments: WeakValueDictionary[SessionId, Attachment] = WeakValueDictionary()
        """An attachment lives as long as its walk over the log, or as the program holds something of it."""
        self.failure: TurnwireError | None = None
        """Why the client is over."""

    def attached(self, session_id: SessionId) -> Attachment | None:
        """The attachment of a session. One that failed is none: it is made anew, as its daemon may be back."""
        known = self.attachments.get(session_id)
        return None if known is None or known.failure is not None else known

    def over(self) -> TurnwireError | None:
        """Why no turn is yet to come in any session. Closed sessions are no reason: there may be others."""
        failures = [each.failure for each in self.attachments.values() if each.over is not None]
        lasting = [each for each in failures if each is not None and not isinstance(each, SessionClosed)]
        if self.failure is None and lasting and len(failures) == len(self.attachments):
            return lasting[0]
        return self.failure


class Client:
    """Sessions on one daemon. Make one with `connect`."""

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
    ) -> Session:
        """A new session that works in this directory, opened by its agent and told that we are ready.

        `agent` is the name of one of the daemon's; without it, the default one. What the agent says from now on is
        kept for handlers.

        Raises:
            UnknownAgent: the daemon hosts none of that name.
            AuthRequired: the agent wants a login first; see `authenticate`.
            AgentLaunchFailed, AgentUnavailable: no agent can be had.
        """
        running = self._open()
        servers = to_json(to_list(mcp_servers, "`mcp_servers` is a list of dicts"), "`mcp_servers`")
        return self._attach(running, await running.daemon.create(_absolute(cwd), servers, agent))

    async def authenticate(self, method_id: str) -> None:
        """Log in at the agent by one of the methods that `AuthRequired` names; then try again."""
        await self._open().daemon.authenticate(method_id)

    async def attach(self, session_id: str) -> Session:
        """A session that exists already. Handlers hear what comes from now on. Raises `SessionNotFound`.

        Attach again to a session whose daemon was away for too long; handlers of the session are to be added again.
        """
        running, wanted = self._open(), SessionId(to_text(session_id, "a session id"))
        known = running.attached(wanted)
        if known is not None:
            return Session(known, running.wakeup)
        return self._attach(running, await running.daemon.find(wanted))

    async def sessions(self) -> list[SessionId]:
        """Every session of the daemon."""
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
        """Ask `function(request)` when no function of the session itself has answered."""
        self._listeners.add_permission(function)
        self._start_all()
        return function

    async def completed(self, request_id: RequestId) -> TurnResult:
        """As `Session.completed`, for whichever session has a turn with this request id."""
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
        # The program's own error goes past the task groups, which would wrap it.
        await self._stack.aclose()
        return None


def _absolute(path: str | os.PathLike[str]) -> str:
    plain: object = path.__fspath__() if isinstance(path, os.PathLike) else path
    return os.path.abspath(to_text(plain, "`cwd`"))


def _command(agent: str | Sequence[str]) -> Sequence[str]:
    """The words of a command. Raises `ConfigError`."""
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
    # Imported here: a program with a command of its own needs no HTTP, and one with a daemon no node.
    from turnwire.client.embedded import open_embedded
    from turnwire.runtime.remote_agent import RemoteSource

    source = RemoteSource(url, token=token, limits=limits)

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Daemon]:
        async with source, open_embedded(source, log, limits, clock) as daemon:
            yield daemon

    return opened()


def _local_daemon() -> str:
    """The daemon that `TURNWIRE_URL` names, or the one of this user that runs here. Raises `ConfigError`."""
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
    """A client of the daemon at a URL (`http://`, `https://`), or one with an agent of its own.

    Without `agent` it is the daemon that `TURNWIRE_URL` names, or the one of this user that runs on this machine.
    A daemon wants a `token`, by default `TURNWIRE_TOKEN` of the environment, or what it gives programs on its own
    machine. An agent of its own is a command to start, a source of agents, or an ACP server: `ws://`, `wss://`, or
    a web address that ends in `/acp`. That one may want a `token` too, and gets none that was not given here. The
    command is started when the first session needs it; `env`, if given, is its whole environment. Sessions are kept
    in memory unless a `log` is given. Raises `ConfigError` for what is no command, URL or source, and for what
    belongs to the other kind.
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
    from turnwire.runtime.source import ProcessSource

    if isinstance(agent, str | Sequence):
        source: AgentSource = ProcessSource(_command(agent), env=env, limits=limits)
    elif callable(getattr(agent, "connect", None)):
        source = agent
    else:
        raise ConfigError(f"{type(agent).__name__} is no agent; give a command, a URL, or a source of agents")
    return Client(open_embedded(source, log, limits, clock), limits)
