"""The agent object: its author registers functions on it and serves it.

It serves any number of clients in ACP v1 and v2: over any link, over standard input and output, or inside this
process. It never ends the process by itself. `turnwire.agent` exports the names that an author needs.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import shlex
import shutil
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias, TypeVar

import anyio

from turnwire.agent.connection import Connection
from turnwire.agent.definition import AgentDefinition
from turnwire.agent.live_session import LiveSessions
from turnwire.agent.options import AgentOptions, Command
from turnwire.agent.session import Session
from turnwire.agent.session_client import Readiness
from turnwire.agent.store import MemoryStore, SessionStore
from turnwire.agent.turn import Turn
from turnwire.clock import Clock, SystemClock
from turnwire.errors import ConfigError, SessionNotFound
from turnwire.hosting.base import FrameLink
from turnwire.hosting.memory import memory_pair
from turnwire.hosting.source import AgentSource, LinkedAgent
from turnwire.hosting.stdio import STDIN, StdioLink, open_pipes
from turnwire.limits import Limits

logger = logging.getLogger(__name__)
Json: TypeAlias = dict[str, Any]
Serve: TypeAlias = Callable[[FrameLink], Awaitable[None]]
OnTurn = TypeVar("OnTurn", bound=Callable[[Turn], Any])
OnSession = TypeVar("OnSession", bound=Callable[[Session], Any])
OnReady = TypeVar("OnReady", bound=Callable[[Session, Readiness], Any])
OnCommand = TypeVar("OnCommand", bound=Callable[[Turn, str], Any])
OnLogin = TypeVar("OnLogin", bound=Callable[[str], Any])
OnChange = TypeVar("OnChange", bound=Callable[[Session, str, Any], Any])
OnSteer = TypeVar("OnSteer", bound=Callable[[Turn, list[Json]], Any])
OnExtension = TypeVar("OnExtension", bound=Callable[[Json, Session | None], Any])


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", repr(function))


def _check_takes_turn(function: Callable[..., Any]) -> None:
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        name = _name(function)
        raise TypeError(
            f"{name} is called with the turn and nothing else; write `async def {name}(turn: Turn) -> None:`"
        ) from None
    except ValueError:
        return  # one that does not say what it takes


class Agent:
    """An agent. Its decorators return the function unchanged."""

    def __init__(
        self,
        name: str,
        *,
        title: str | None = None,
        version: str = "0",
        store: SessionStore | None = None,
        options: AgentOptions | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._live: LiveSessions = {}
        self._definition = AgentDefinition(
            name, title, version, store or MemoryStore(), options or AgentOptions(), clock or SystemClock()
        )

    # -- what it does --------------------------------------------------------------------------------------------

    def prompt(self, function: OnTurn) -> OnTurn:
        """Register `(turn)`, which answers a prompt and returns None for `end_turn`, or another stop reason.

        Raises `ValueError` for a second function, `TypeError` for one that does not accept a turn.
        """
        _check_takes_turn(function)
        first = self._definition.hooks.prompt
        if first is not None:
            raise ValueError(
                f"{_name(first)} answers prompts already, so {_name(function)} cannot; decide inside one function,"
                " or use `@agent.command` for slash commands"
            )
        self._definition.hooks.prompt = function
        return function

    def opened(self, function: OnSession) -> OnSession:
        """`(session)`: called before the answer to new, load, resume and fork."""
        self._definition.hooks.opened = function
        return function

    def ready(self, function: OnReady) -> OnReady:
        """Register `(session, how)`, called when a client can receive unsolicited updates; everything sent from
        here on reaches it.

        `how` is the reason: the client sent `session/ready` (`ready`), sent a prompt (`prompt`), did not send it in
        time (`timeout`), or does not support it and was sent the answer that opened the session (`answer`). Called
        once each time a client opens a session, one call after the other. No one waits for it; an exception is
        logged.
        """
        self._definition.hooks.ready = function
        return function

    def closed(self, function: OnSession) -> OnSession:
        """Register `(session)`, called when no client has the session open any more."""
        self._definition.hooks.closed = function
        return function

    def command(self, name: str, description: str, hint: str | None = None) -> Callable[[OnCommand], OnCommand]:
        """`(turn, arguments)`: a slash command, which runs instead of the function for prompts."""
        command = Command(name, description, hint)

        def decorate(function: OnCommand) -> OnCommand:
            self._definition.hooks.commands[name] = (command, function)
            return function

        return decorate

    def authenticate(self, function: OnLogin) -> OnLogin:
        """`(method_id)`: logs the user in, or raises `AgentFailure`."""
        self._definition.hooks.authenticate = function
        return function

    def changed(self, function: OnChange) -> OnChange:
        """Register `(session, option_id, value)`, called when the client set a mode or an option. `AgentFailure`
        reverts it.
        """
        self._definition.hooks.changed = function
        return function

    def steer(self, function: OnSteer) -> OnSteer:
        """Register `(turn, blocks)`, which adds a prompt to the running turn and returns whether it did."""
        self._definition.hooks.steer = function
        return function

    def extension(self, method: str) -> Callable[[OnExtension], OnExtension]:
        """`(params, session)`: a method of your own, such as `_example/name`, as request or notification."""
        if not method.startswith("_"):
            raise ConfigError("the name of a method of your own begins with `_`", method=method)

        def decorate(function: OnExtension) -> OnExtension:
            self._definition.hooks.extensions[method] = function
            return function

        return decorate

    # -- its own turns -------------------------------------------------------------------------------------------

    def turn(self, session: Session) -> AbstractAsyncContextManager[Turn]:
        """Open a turn that the agent starts itself, for `async with`. Waits until the running turn has ended."""
        return self._own_turn(session)

    @asynccontextmanager
    async def _own_turn(self, session: Session) -> AsyncGenerator[Turn]:
        live = self._live.get(session.id)
        if live is None or live.is_ending:
            raise SessionNotFound("the session is closed; no turn can begin in it", session_id=session.id)
        async with live.turns.own() as turn:
            yield turn

    # -- serving -------------------------------------------------------------------------------------------------

    async def serve(self, link: FrameLink) -> None:
        """Serve one client until its link ends. Raises `ConfigError` if there is no function for prompts."""
        self._check()
        await serve_client(self._definition, self._live, link)

    def run(self) -> None:
        """Serve the client that started this process over standard input and output until it disconnects.

        Printed text goes to stderr meanwhile. Ctrl-C ends the running turns and then the process, with exit code
        130. Raises `ConfigError` without a function for prompts.
        """
        self._check()
        serve_stdio(self.serve)

    def source(self) -> AgentSource:
        """For `turnwire.connect(agent.source())`, and a daemon in this process. Raises `ConfigError`, as `run`."""
        self._check()
        return AgentInProcess(self.serve, self._definition.options.max_cancel_s)

    def _check(self) -> None:
        if self._definition.hooks.prompt is None:
            raise ConfigError("the agent has no function for prompts; give it one with `@agent.prompt`")


# -- ways to serve: one client over its link, whoever started this process, this process itself ----------------


BY_SIGNAL = 128
"""Added to the number of a signal, as a shell does."""
DRAIN_S = 2.0
"""Timeout for writing the last frames to a client that has closed its side."""


async def serve_client(definition: AgentDefinition, live: LiveSessions, link: FrameLink) -> None:
    """Serve one client until its link ends. The link stays open."""
    async with anyio.create_task_group() as tasks:
        connection = Connection(definition, live, link, tasks)
        await connection.serve()
        with anyio.move_on_after(DRAIN_S):
            await connection.drained()
        tasks.cancel_scope.cancel()


def serve_stdio(serve_link: Serve) -> None:
    """Serve the client that started this process until it disconnects. Raises `SystemExit` after Ctrl-C."""
    if os.isatty(STDIN):
        words = f"this is an agent, which speaks ACP on stdin; to try it: turnwire prompt hi -- {_own_command()}"
        sys.stderr.write(f"{words}  (Ctrl-C ends it)\n")
    if not logging.getLogger().handlers:
        logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        is_interrupted = anyio.run(_serve_stdio, serve_link)
    except KeyboardInterrupt:
        # Before it served.
        is_interrupted = True
    if is_interrupted:
        sys.exit(BY_SIGNAL + signal.SIGINT)


def _own_command() -> str:
    """Return the command that started this process, as a user would write it."""
    program = os.path.basename(sys.argv[0])
    found = shutil.which(program)
    is_program = found is not None and os.path.realpath(found) == os.path.realpath(sys.argv[0])
    return shlex.join([program, *sys.argv[1:]] if is_program else sys.orig_argv)


async def _serve_stdio(serve_link: Serve) -> bool:
    """Serve until the client disconnects. Return whether Ctrl-C ended it."""
    link = open_pipes(Limits())
    heard: list[int] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_on_signal, link, heard)
        try:
            await serve_link(link)
        finally:
            await link.aclose()
        tasks.cancel_scope.cancel()
    return signal.SIGINT in heard


async def _stop_on_signal(link: StdioLink, heard: list[int]) -> None:
    """Treat a signal like a client that disconnects: turns end, and their last updates are sent.

    A second signal ends the process at once.
    """
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            if heard:
                os._exit(BY_SIGNAL + number)
            heard.append(number)
            link.end_input()


class _Served(LinkedAgent):
    """An agent in this process, served while its link is open."""

    def __init__(self, link: FrameLink, theirs: FrameLink, serve_link: Serve, patience: float) -> None:
        super().__init__(link)
        self._patience = patience
        # This handle owns the task and is closed by whoever connected; no task group surrounds both.
        self._task = asyncio.get_running_loop().create_task(self._serve(serve_link, theirs))

    async def _serve(self, serve_link: Serve, theirs: FrameLink) -> None:
        try:
            await serve_link(theirs)
        except Exception:  # nobody awaits this task but `aclose`, which has nothing to do about it
            logger.exception("an agent in this process failed")
        finally:
            await theirs.aclose()

    async def aclose(self) -> None:
        await super().aclose()
        with anyio.move_on_after(self._patience):
            await asyncio.wait([self._task])
        self._task.cancel()


class AgentInProcess:
    """An `AgentSource` that serves the same agent on a new link for each connection."""

    def __init__(self, serve_link: Serve, max_cancel_s: float) -> None:
        self._serve = serve_link
        self._patience = max_cancel_s + DRAIN_S

    async def connect(self) -> LinkedAgent:
        """Open a new connection to the agent."""
        ours, theirs = memory_pair()
        return _Served(ours, theirs, self._serve, self._patience)
