"""What an agent is given with a session besides its directory: MCP servers, further directories, `_meta`.

Takes what clients said when they opened the session; gives it as one value, which is kept with the session and told
to every agent that has to open it. Never judges it: whoever takes it from a client does.
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET, Raw, Struct, UnsetType


class Setup(Struct, frozen=True):
    """What goes with `session/new`, `load`, `resume` and `fork`."""

    mcp_servers: Raw = Raw(b"[]")
    additional_directories: tuple[str, ...] = ()
    """Absolute; with `cwd`, the roots of the session."""
    meta: Raw | UnsetType = UNSET
    """For the agent, as it is."""


NO_SETUP: Final = Setup()
