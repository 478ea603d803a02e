"""An agent, as its author writes it: one object with a function for prompts.

Takes functions by decorators; serves any number of clients, in ACP v1 and v2. `turnwire.agent` gives the names
that an author needs.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias, TypeVar

from turnwire.agent import serving
from turnwire.agent.authored import Authored
from turnwire.agent.options import AgentOptions, Command
from turnwire.agent.session import Session
from turnwire.agent.store import MemoryStore, SessionStore
from turnwire.agent.turn import Turn
from turnwire.errors import ConfigError, SessionNotFound
from turnwire.link.base import FrameLink
from turnwire.runtime.clock import Clock, SystemClock
from turnwire.runtime.source import AgentSource

Json: TypeAlias = dict[str, Any]
OnTurn = TypeVar("OnTurn", bound=Callable[[Turn], Any])
OnSession = TypeVar("OnSession", bound=Callable[[Session], Any])
OnCommand = TypeVar("OnCommand", bound=Callable[[Turn, str], Any])
OnLogin = TypeVar("OnLogin", bound=Callable[[str], Any])
OnChange = TypeVar("OnChange", bound=Callable[[Session, str, Any], Any])
OnSteer = TypeVar("OnSteer", bound=Callable[[Turn, list[Json]], Any])
OnExtension = TypeVar("OnExtension", bound=Callable[[Json, Session | None], Any])


class Agent:
    """One agent. Its decorators give their function back."""

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
        self._authored = Authored(
            name, title, version, store or MemoryStore(), options or AgentOptions(), clock or SystemClock()
        )

    # -- what it does --------------------------------------------------------------------------------------------

    def prompt(self, function: OnTurn) -> OnTurn:
        """`(turn)`: answers a prompt. Gives None for `end_turn`, or another stop reason."""
        self._authored.hooks.prompt = function
        return function

    def opened(self, function: OnSession) -> OnSession:
        """`(session)`: called before the answer to new, load, resume and fork."""
        self._authored.hooks.opened = function
        return function

    def closed(self, function: OnSession) -> OnSession:
        """`(session)`: called when nobody has the session open any more."""
        self._authored.hooks.closed = function
        return function

    def command(self, name: str, description: str, hint: str | None = None) -> Callable[[OnCommand], OnCommand]:
        """`(turn, arguments)`: a slash command, which runs instead of the function for prompts."""
        command = Command(name, description, hint)

        def decorate(function: OnCommand) -> OnCommand:
            self._authored.hooks.commands[name] = (command, function)
            return function

        return decorate

    def authenticate(self, function: OnLogin) -> OnLogin:
        """`(method_id)`: logs the user in, or raises `AgentFailure`."""
        self._authored.hooks.authenticate = function
        return function

    def changed(self, function: OnChange) -> OnChange:
        """`(session, option_id, value)`: the client set a mode or an option. `AgentFailure` takes it back."""
        self._authored.hooks.changed = function
        return function

    def steer(self, function: OnSteer) -> OnSteer:
        """`(turn, blocks)`: takes a prompt into the running turn; whether it did."""
        self._authored.hooks.steer = function
        return function

    def extension(self, method: str) -> Callable[[OnExtension], OnExtension]:
        """`(params, session)`: a method of your own, such as `_example/name`, as request or notification."""
        if not method.startswith("_"):
            raise ConfigError("the name of a method of your own begins with `_`", method=method)

        def decorate(function: OnExtension) -> OnExtension:
            self._authored.hooks.extensions[method] = function
            return function

        return decorate

    # -- its own turns -------------------------------------------------------------------------------------------

    def turn(self, session: Session) -> AbstractAsyncContextManager[Turn]:
        """A turn that the agent begins itself, for `async with`. Waits for the one that runs."""
        return self._own_turn(session)

    @asynccontextmanager
    async def _own_turn(self, session: Session) -> AsyncGenerator[Turn]:
        live = self._authored.live.get(session.id)
        if live is None or live.is_ending:
            raise SessionNotFound("the session is closed; no turn can begin in it", session_id=session.id)
        async with live.turns.own() as turn:
            yield turn

    # -- serving -------------------------------------------------------------------------------------------------

    async def serve(self, link: FrameLink) -> None:
        """Serve one client until its link ends. Raises `ConfigError` if there is no function for prompts."""
        self._check()
        await serving.serve(self._authored, link)

    def run(self) -> None:
        """Serve the client that started this process, over standard input and output, until it leaves.

        What is printed meanwhile goes to stderr. Raises `ConfigError` if there is no function for prompts.
        """
        self._check()
        serving.run(self.serve)

    def source(self) -> AgentSource:
        """For `turnwire.connect(agent.source())`, and a daemon in this process. Raises `ConfigError`, as `run`."""
        self._check()
        return serving.AgentInProcess(self.serve, self._authored.options.max_cancel_s)

    def _check(self) -> None:
        if self._authored.hooks.prompt is None:
            raise ConfigError("the agent has no function for prompts; give it one with `@agent.prompt`")
