"""The second listener: where other nodes come in, with the secret of this life, and nobody else.

A node opens its link here (`/node`). It also hands on requests of its clients that belong to a connection of this
node (`turnwire.server.cluster.relay`). Whoever has no secret, a wrong one, or one of a life that is over, is told
nothing, and neither is a life that is gone, or one that does not say which it is.
"""

from __future__ import annotations

import hmac
import logging

from starlette.types import ASGIApp, Receive, Scope, Send

from turnwire.errors import BadRequest, LogError, LogUnavailable, NotFound, Unauthenticated
from turnwire.limits import Limits
from turnwire.server.access.identity import IDENTITY
from turnwire.server.cluster.link import PATH, AcceptedLink, NodeLinks
from turnwire.server.cluster.relay import CALLER, DIALLER, SECRET, read_caller
from turnwire.server.paths import own_path
from turnwire.server.refusals import refuse_entry

logger = logging.getLogger(__name__)

_SECRET, _DIALLER, _CALLER = (name.lower().encode() for name in (SECRET, DIALLER, CALLER))
_DIGITS = 18
"""Of the number of a life: what the database counts with has no more."""


class Entrance:
    """The ASGI application of the second listener."""

    def __init__(self, links: NodeLinks, secret: str, relayed: ASGIApp, limits: Limits) -> None:
        """`relayed` serves what other nodes hand on."""
        self._links = links
        self._secret = secret.encode()
        self._relayed = relayed
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        dialler = headers.get(_DIALLER, b"")
        life = int(dialler) if dialler.isdigit() and len(dialler) <= _DIGITS else None
        try:
            is_known = life is not None and await self._is_known(headers.get(_SECRET, b""), life)
        except LogError:
            # Whom this node has seen it knows without the log, so this one is new. It comes again.
            refusal = LogUnavailable("whether that life is over cannot be looked up; try again")
            await refuse_entry(scope, receive, send, refusal)
            return
        if life is None or not is_known:
            extra = {"event": "node_refused", "address": (scope.get("client") or ("",))[0]}
            logger.warning("somebody who is no node of this cluster was refused at its listener", extra=extra)
            refusal = Unauthenticated(
                "this needs the secret of this node, and the number of a life that is not over"
            )
            await refuse_entry(scope, receive, send, refusal)
        elif (told := headers.get(_CALLER)) is not None:
            caller = read_caller(told)
            if caller is None:
                await refuse_entry(scope, receive, send, BadRequest("the caller's identity cannot be read"))
                return
            own = (_SECRET, _DIALLER, _CALLER)
            scope["headers"] = [each for each in scope["headers"] if each[0] not in own]
            scope[IDENTITY], scope["client"] = caller[0], (caller[1], 0)
            await self._relayed(scope, receive, send)
        elif scope["type"] == "websocket" and own_path(scope) == PATH:
            await receive()
            await send({"type": "websocket.accept"})
            await self._links.accept(life, AcceptedLink(receive, send, self._limits))
        else:
            await refuse_entry(scope, receive, send, NotFound("other nodes open a link here, and nothing else"))

    async def _is_known(self, secret: bytes, life: int) -> bool:
        is_ours = bool(self._secret) and hmac.compare_digest(secret, self._secret)
        return is_ours and await self._links.lets_in(life)
