"""A session as the author of an agent sees it.

Everything here returns at once and is told in order; nothing waits for the client.
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
from turnwire.core.translate.handshake import ClientProfile

if TYPE_CHECKING:
    from turnwire.agent.live_session import LiveSession
    from turnwire.agent.turn import Turn


class Session:
    """One conversation with a client."""

    def __init__(self, live: LiveSession, kept: Kept, client: ClientProfile) -> None:
        self._live = live
        self.id = kept.id
        self.cwd = Path(kept.cwd)
        """Where it works."""
        self.directories = tuple(Path(each) for each in kept.directories)
        """Where it may work, too."""
        self.client = client
        """What the client that opened it can take."""
        self.mcp_servers: list[Json] = []
        """In the form of v2, each with its `type`."""
        self.meta: Json = {}
        """`_meta` of the request that opened it."""
        self.state: dict[str, Any] = kept.state
        """The author's own memory of it: anything that JSON can hold. The store keeps it after every turn."""
        self.running: Turn | None = None
        """The turn that runs now."""

    def __repr__(self) -> str:
        return f"<Session {self.id}>"

    @property
    def title(self) -> str | None:
        """What people call it. Setting it tells the client."""
        return self._live.title

    @title.setter
    def title(self, title: str | None) -> None:
        self._live.rename(title)

    @property
    def commands(self) -> Sequence[Command]:
        """Slash commands beside those of `@agent.command`. Setting them tells the client."""
        return self._live.offers.commands

    @commands.setter
    def commands(self, commands: Sequence[Command]) -> None:
        self._live.offers.commands = tuple(commands)
        self._live.tell_commands()

    @property
    def modes(self) -> Sequence[Mode]:
        """Ways to work, of which the user chooses one; the first is the default. Setting them tells the client."""
        return self._live.offers.modes

    @modes.setter
    def modes(self, modes: Sequence[Mode]) -> None:
        self._live.offers.list_modes(modes)
        self._live.tell_options()

    @property
    def mode(self) -> str | None:
        """The id of the mode; None if there are none. Setting it tells the client. Raises `InvalidOption`."""
        return str(self._live.offers.value(MODE)) if self.modes else None

    @mode.setter
    def mode(self, mode: str) -> None:
        self.choose(MODE, mode)

    @property
    def options(self) -> Sequence[Option]:
        """What can be configured, each with its value. Setting them tells the client; choices are kept."""
        return self._live.offers.options

    @options.setter
    def options(self, options: Sequence[Option]) -> None:
        self._live.offers.list_options(options)
        self._live.tell_options()

    def option(self, option_id: str) -> str | bool:
        """The value of an option. Raises `InvalidOption`."""
        return self._live.offers.value(option_id)

    def choose(self, option_id: str, value: str | bool) -> None:
        """Set an option, and tell the client. Raises `InvalidOption`."""
        if self._live.offers.choose(option_id, value):
            self._live.tell_options()

    def notify(self, update: Json, version: int | None = None) -> Sent:
        """Tell any update, inside or outside a turn. `version`: in whose words it is; the client's by default."""
        sent = Sent(None)
        for each in self._live.canonical(update, version):
            sent = self._live.publish(each)
        return sent

    def background(self, function: Function, *args: Any) -> None:
        """Run something beside the turns. It ends with the session."""
        self._live.start(function, *args)

    async def save(self) -> None:
        """Have the store keep the state and the history as they are now, in the middle of a turn: a process that is
        killed then has lost nothing of them. Every turn ends with it anyway."""
        await self._live.save()

    @property
    def history(self) -> list[Json]:
        """What a client is told when it loads the session, in the words of v2."""
        return [msgspec.json.decode(each, type=dict[str, Any]) for each in self._live.history.replayed]
