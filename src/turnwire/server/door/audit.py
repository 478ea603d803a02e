"""Who changed what: one log record per request that may change something.

Takes the caller, the route and the outcome; gives a record of logger `turnwire.audit`. Never holds a body, a query
or a secret: the route is told by its template, and the credential by its id.
"""

from __future__ import annotations

import logging

from turnwire.ids import SessionId
from turnwire.server.door.identity import Identity

logger = logging.getLogger("turnwire.audit")

READING = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""


def audit(
    identity: Identity,
    method: str,
    path: str,
    status: int,
    address: str | None,
    session_id: SessionId | None = None,
) -> None:
    """Record one request. `path` is the route's template, such as `/session/{session_id}/prompt`."""
    if method in READING:
        return
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
