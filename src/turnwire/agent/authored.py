"""What an agent is to all of its connections: its author's functions, its store, its settings, its live sessions.

Takes what the author gave; gives it to whoever serves a client. Never serves one itself.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from turnwire.agent.hooks import Hooks
from turnwire.agent.options import AgentOptions
from turnwire.agent.store import SessionStore
from turnwire.runtime.clock import Clock

if TYPE_CHECKING:
    from turnwire.agent.live import LiveSession


class Authored:
    """One agent."""

    def __init__(
        self,
        name: str,
        title: str | None,
        version: str,
        store: SessionStore,
        options: AgentOptions,
        clock: Clock,
    ) -> None:
        self.name = name
        self.title = title
        self.version = version
        self.store = store
        self.options = options
        self.clock = clock
        self.hooks = Hooks()
        self.live: dict[str, LiveSession] = {}
        """Sessions that at least one client has open, by their ids."""

    def timestamp(self) -> str:
        """Now, in ISO 8601 and UTC, always with the same number of digits."""
        return datetime.fromtimestamp(self.clock.now_ms() / 1000, UTC).isoformat(timespec="milliseconds")
