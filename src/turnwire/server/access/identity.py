"""The identity of a caller, as its credential states it, and the audit record.

An identity is a name, a role, and possibly one session. Routes check it before they act, and the log records it as
the author. It never comes from a body or a query: the access middleware sets it from the credential alone. A
request or a message that may change something is recorded with it (`audit`), without a body, a query or a secret:
the record has the route's template and the credential's id.
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
"""Maximum length of a method in a record, since a client may send any name."""
IDENTITY = "turnwire.identity"
"""The key in the ASGI scope where the access middleware stores the caller's identity."""


class Role(StrEnum):
    """The permissions of a credential. Each role includes those before it."""

    OBSERVER = "observer"
    """May read."""
    CONTROLLER = "controller"
    """May prompt, answer, cancel, settle, and change the queue and the agent's settings."""
    OWNER = "owner"
    """May create and revoke credentials; the role of the token of the first start."""

    def covers(self, needed: Role) -> bool:
        """Return whether this role includes the permissions of `needed`."""
        return _RANK[self] >= _RANK[needed]


_RANK = {Role.OBSERVER: 0, Role.CONTROLLER: 1, Role.OWNER: 2}


class Identity(NamedTuple):
    """The holder of a credential."""

    name: str
    """The author of the holder's actions, as recorded in the log."""
    role: Role
    session_id: SessionId | None = None
    """The only session that the holder may access; None for all."""
    token_id: str | None = None
    """The credential's id; None when the daemon runs without credentials."""

    def may_touch(self, session_id: SessionId) -> bool:
        return self.session_id is None or self.session_id == session_id


ANYBODY = Identity("anybody", Role.OWNER)
"""The identity of every caller when the daemon runs without credentials."""


def audit(
    identity: Identity,
    method: str,
    path: str,
    status: int,
    address: str | None,
    session_id: SessionId | None = None,
    skipped: int = 0,
) -> None:
    """Record one request, and the number of similar requests that were `skipped` before.

    `path` is the route's template, such as `/session/{session_id}/prompt`. A message of ACP is recorded with its
    own method, such as `session/prompt`, and the status that its response would have over HTTP.
    """
    if method in READING:
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
            **({"skipped": skipped} if skipped else {}),
        },
    )
