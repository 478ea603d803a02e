"""Who is asking, as the credential says: a name, a role, and perhaps one session only; and the record of it.

Routes check an identity before they act, and the log calls it the author. It never comes from a body or a query:
the access middleware sets it from the credential alone. A request or a message that may change something is
recorded with it (`audit`), without a body, a query or a secret: the route is told by its template, and the
credential by its id.
"""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import NamedTuple

from turnwire.ids import SessionId

logger = logging.getLogger("turnwire.audit")

READING = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""
NAME_LENGTH = 64
"""Of a method that a record tells: a client may send any name."""
IDENTITY = "turnwire.identity"
"""Where the access middleware leaves the caller's identity in the ASGI scope."""


class Role(StrEnum):
    """What a credential may do. Each may do all that those before it may."""

    OBSERVER = "observer"
    """Reads."""
    CONTROLLER = "controller"
    """Prompts, answers, cancels, settles, changes the queue and the agent's settings."""
    OWNER = "owner"
    """Makes and revokes credentials; the token of the first start."""

    def covers(self, needed: Role) -> bool:
        """Whether this role may do what `needed` may."""
        return _RANK[self] >= _RANK[needed]


_RANK = {Role.OBSERVER: 0, Role.CONTROLLER: 1, Role.OWNER: 2}


class Identity(NamedTuple):
    """The holder of a credential."""

    name: str
    """The author of what it does, as the log tells it."""
    role: Role
    session_id: SessionId | None = None
    """The one session it may touch; none means all."""
    token_id: str | None = None
    """Which token it came from; none when the daemon runs without credentials."""

    def may_touch(self, session_id: SessionId) -> bool:
        return self.session_id is None or self.session_id == session_id


ANYBODY = Identity("anybody", Role.OWNER)
"""Who everybody is when the daemon runs without credentials."""
PARENT = Identity("stdio", Role.OWNER)
"""The program that started turnwire as its agent, on standard streams. It has the rights of the same user."""


def audit(
    identity: Identity,
    method: str,
    path: str,
    status: int,
    address: str | None,
    session_id: SessionId | None = None,
) -> None:
    """Record one request. `path` is the route's template, such as `/session/{session_id}/prompt`.

    A message of ACP has its own method, such as `session/prompt`, and the status that its answer would have here.
    """
    if method in READING or identity == PARENT:
        # A record tells users apart. The parent is the only one, and shows its user what we write to stderr.
        return
    method = method[:NAME_LENGTH]
    logger.info(
        "%s %s %d",
        method,
        path,
        status,
        extra={
            "event": "audit",
            "who": identity.name,
            "role": identity.role.value,
            "token_id": identity.token_id,
            "method": method,
            "route": path,
            "session_id": session_id,
            "status": status,
            "address": address,
        },
    )
