"""The content of `import turnwire`: `connect`, the call that most programs begin with.

The client is imported when it is called, so that `import turnwire` costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnwire.client.client import Client
    from turnwire.hosting.source import AgentSource
    from turnwire.limits import Limits
    from turnwire.log.base import EventLog


def connect(
    agent: str | Sequence[str] | AgentSource | None = None,
    *,
    token: str | None = None,
    env: dict[str, str] | None = None,
    log: EventLog | None = None,
    limits: Limits | None = None,
) -> Client:
    """Return a client of a daemon, or of a private agent, for `async with`. See `turnwire.client.connect`."""
    from turnwire.client import client

    return client.connect(agent, token=token, env=env, log=log, limits=limits)
