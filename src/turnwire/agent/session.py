"""A session as the author of an agent sees it.

Every call returns at once, and updates are sent in order; nothing waits for the client.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from turnwire.agent.connected_client import Sent
from turnwire.agent.definition import Function
from turnwire.agent.options import MODE, Command, Mode, Option
from turnwire.agent.store import Kept
from turnwire.agent.v2_updates import Json
from turnwire.projections.translate.handshake import ClientProfile

if TYPE_CHECKING:
    from turnwire.agent.live_session import LiveSession
    from turnwire.agent.turn import Turn


class Session:
    """A conversation with a client."""

    def __init__(self, live: LiveSession, kept: Kept, client: ClientProfile) -> None:
        self._live = live
        self.id = kept.id
        self.cwd = Path(kept.cwd)
        """The working directory."""
        self.directories = tuple(Path(each) for each in kept.directories)
        """Additional directories."""
        self.client = client
        """Capabilities of the client that opened the session."""
        self.mcp_servers: list[Json] = []
        """In the form of v2, each with its `type`."""
        self.meta: Json = {}
        """`_meta` of the request that opened it."""
        self.state: dict[str, Any] = kept.state
        """The author's own data: anything that JSON can hold. The store saves it after every turn."""
        self.running: Turn | None = None
        """The turn that runs now."""

    def __repr__(self) -> str:
        return f"<Session {self.id}>"

    @property
    def title(self) -> str | None:
        """The session's title. Setting it notifies the client."""
        return self._live.title

    @title.setter
    def title(self, title: str | None) -> None:
        self._live.rename(title)

    @property
    def commands(self) -> Sequence[Command]:
        """Slash commands in addition to those of `@agent.command`. Setting them notifies the client."""
        return self._live.offers.commands

    @commands.setter
    def commands(self, commands: Sequence[Command]) -> None:
        self._live.offers.commands = tuple(commands)
        self._live.tell_commands()

    @property
    def modes(self) -> Sequence[Mode]:
        """Modes that the user can choose; the first is the default. Setting them notifies the client."""
        return self._live.offers.modes

    @modes.setter
    def modes(self, modes: Sequence[Mode]) -> None:
        self._live.offers.list_modes(modes)
        self._live.tell_options()

    @property
    def mode(self) -> str | None:
        """The id of the mode; None if there are none. Setting it notifies the client. Raises `InvalidOption`."""
        return str(self._live.offers.value(MODE)) if self.modes else None

    @mode.setter
    def mode(self, mode: str) -> None:
        self.choose(MODE, mode)

    @property
    def options(self) -> Sequence[Option]:
        """Configuration options with their values. Setting them notifies the client; choices are preserved."""
        return self._live.offers.options

    @options.setter
    def options(self, options: Sequence[Option]) -> None:
        self._live.offers.list_options(options)
        self._live.tell_options()

    def option(self, option_id: str) -> str | bool:
        """The value of an option. Raises `InvalidOption`."""
        return self._live.offers.value(option_id)

    def choose(self, option_id: str, value: str | bool) -> None:
        """Set an option and notify the client. Raises `InvalidOption`."""
        if self._live.offers.choose(option_id, value):
            self._live.tell_options()

    def notify(self, update: Json, version: int | None = None) -> Sent:
        """Send any update, inside or outside a turn. `version` is the ACP version it is written in, by default the
        client's.
        """
        sent = Sent(None)
        for each in self._live.canonical(update, version):
            sent = self._live.publish(each)
        return sent

    def background(self, function: Function, *args: Any) -> None:
        """Run a function in parallel with the turns. It ends with the session."""
        self._live.start(function, *args)

    async def save(self) -> None:
        """Save state and history now, in the middle of a turn, so that a killed process loses nothing of them.
        Every turn ends with a save anyway.
        """
        await self._live.save()

    @property
    def history(self) -> list[Json]:
        """The updates that a client gets when it loads the session, in v2."""
        return [msgspec.json.decode(each, type=dict[str, Any]) for each in self._live.history.replayed]
