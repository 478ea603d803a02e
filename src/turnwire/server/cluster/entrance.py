"""The second listener, to which only other nodes of the cluster connect.

A node opens its link here (`/node`). It also relays requests of its clients for connections of this node
(`turnwire.server.cluster.relay`). A request without a proof of the cluster's key, with a used one, or from an
incarnation that is over gets 401 without a reason.
"""

from __future__ import annotations

import logging

from starlette.types import ASGIApp, Receive, Scope, Send

from turnwire.clock import Clock
from turnwire.errors import BadRequest, LogError, LogUnavailable, NotFound, Unauthenticated
from turnwire.limits import Limits
from turnwire.server.access.middleware import LogLimit
from turnwire.server.access.node_key import CALLER, PROOF, NodeKey
from turnwire.server.access.tokens import IDENTITY
from turnwire.server.cluster.link import PATH, AcceptedLink, NodeLinks
from turnwire.server.cluster.relay import read_caller
from turnwire.server.refusals import refuse_entry

logger = logging.getLogger(__name__)


class Entrance:
    """The ASGI application of the second listener."""

    def __init__(self, links: NodeLinks, key: NodeKey, relayed: ASGIApp, clock: Clock, limits: Limits) -> None:
        """`relayed` serves the requests that other nodes relay."""
        self._links = links
        self._key = key
        self._relayed = relayed
        self._refusals = LogLimit(clock)
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        life = self._key.dialler(scope)
        try:
            is_known = life is not None and await self._links.lets_in(life)
        except LogError:
            # Known incarnations are checked without the log, so this one is new. It will retry.
            refusal = LogUnavailable("the log is away, so new nodes cannot be checked; try again")
            await refuse_entry(scope, receive, send, refusal)
            return
        if life is None or not is_known:
            self._log_refusal(scope)
            refusal = Unauthenticated("this needs a proof of the cluster's key, by a node that is not over")
            await refuse_entry(scope, receive, send, refusal)
        elif (sent := dict(scope["headers"]).get(CALLER)) is not None:
            caller = read_caller(sent)
            if caller is None:
                await refuse_entry(scope, receive, send, BadRequest("the caller's identity cannot be read"))
                return
            scope["headers"] = [each for each in scope["headers"] if each[0] not in (PROOF, CALLER)]
            scope[IDENTITY], scope["client"] = caller[0], (caller[1], 0)
            await self._relayed(scope, receive, send)
        elif scope["type"] == "websocket" and scope["path"] == PATH:
            await receive()
            await send({"type": "websocket.accept"})
            await self._links.accept(life, AcceptedLink(receive, send, self._limits))
        else:
            await refuse_entry(scope, receive, send, NotFound("other nodes open a link here, and nothing else"))

    def _log_refusal(self, scope: Scope) -> None:
        address = (scope.get("client") or ("",))[0]
        if (skipped := self._refusals.admit()) is not None:
            extra = {"event": "node_refused", "address": address, "skipped": skipped}
            logger.warning("a caller that is no node of this cluster was refused", extra=extra)
