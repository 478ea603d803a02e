"""`adapt`: an agent that was written for the official Python SDK, on this runtime, as it is.

Takes an object with the methods of `acp.Agent`; gives an `Agent`. The object speaks v1 as it always did; a client
may speak v1 or v2, and gets `turn_complete`, `session/ready` and exactly one end of each turn. Its `initialize` is
called for each client, before that client is answered. Never imports the official SDK before `adapt` is called.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from turnwire.agent.adapt_peer import OfficialPeer, official
from turnwire.agent.adapt_sessions import AdaptedSessions
from turnwire.agent.adapt_store import AdaptedStore
from turnwire.agent.adapt_watch import Ahead, AnyExtension, Watched
from turnwire.agent.adapt_words import abilities, agent_options, initialize_params
from turnwire.agent.agent import Agent
from turnwire.agent.methods import NOTIFICATIONS
from turnwire.agent.options import AgentOptions
from turnwire.agent.store import SessionStore
from turnwire.agent.words import Json
from turnwire.core.translate.handshake import read_client
from turnwire.core.translate.members import as_object, child
from turnwire.errors import AgentFailure, ConfigError, LinkError, RemoteProtocolError
from turnwire.link.base import FrameLink
from turnwire.wire.jsonrpc import Notification, Request, decode, raw

logger = logging.getLogger(__name__)

CLOSE_S = 5.0
"""How long the object's tasks may take to stop when its last client has left."""


def adapt(to_agent: Any, *, store: SessionStore | None = None, options: AgentOptions | None = None) -> Agent:
    """An agent of the official SDK as an `Agent`.

    Args:
        to_agent: An object with the methods of `acp.Agent`, or what makes one from its connection.
        store: Where histories are kept that the object does not keep itself.
        options: How it serves. What the object offers in `initialize` counts before it.

    Raises:
        ConfigError: The official SDK is not installed, or this is no agent of it.
    """
    official()
    if not callable(to_agent) and not callable(getattr(to_agent, "prompt", None)):
        raise ConfigError("this is no agent of the official SDK: it has no method `prompt`; give an `acp.Agent`")
    return _AdaptedAgent(to_agent, store, options or AgentOptions())


class _AdaptedAgent(Agent):
    """An agent whose author's functions are those of the object."""

    def __init__(self, to_agent: Any, store: SessionStore | None, options: AgentOptions) -> None:
        super().__init__("adapted", store=store, options=options)
        self._to_agent = to_agent
        self._given = options
        self._sessions = sessions = AdaptedSessions(self._authored)
        self._watched = Watched(sessions.turns)
        sessions.stop_with(self._watched.stop)
        self._serving = 0
        self._authored.store = AdaptedStore(self._authored.store, sessions)
        hooks = self._authored.hooks
        hooks.opened, hooks.closed, hooks.changed = sessions.opened, sessions.closed, sessions.changed
        hooks.prompt, hooks.authenticate = sessions.prompt, self._authenticate
        hooks.named, hooks.missing = sessions.named, sessions.missing
        hooks.extensions = AnyExtension(sessions.ask)

    async def serve(self, link: FrameLink) -> None:
        """Serve one client until its link ends. The object is connected while there is one."""
        async with self._connected():
            await super().serve(Ahead(link, self._look))

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[None]:
        sessions = self._sessions
        self._serving += 1
        peer = sessions.peer
        try:
            if peer is None:
                peer = sessions.peer = OfficialPeer(sessions)
                peer.open(self._watched.around(self._to_agent))
            yield
        finally:
            self._serving -= 1
            if not self._serving and peer is not None:
                sessions.peer = None
                with anyio.move_on_after(CLOSE_S, shield=True):
                    await peer.aclose()

    async def _look(self, line: bytes) -> bool:
        """Look at a message of the client before the runtime takes it; whether the runtime is to have it."""
        try:
            frame = decode(line)
        except RemoteProtocolError:
            return True
        if isinstance(frame, Request) and frame.method == "initialize":
            await self._initialize(as_object(frame.params))
        elif isinstance(frame, Notification) and frame.method.startswith("_") and frame.method not in NOTIFICATIONS:
            if self._sessions.peer is not None:
                self._sessions.peer.notify(frame.method, as_object(frame.params))
            return False
        return True

    async def _initialize(self, params: Json) -> None:
        try:
            client = read_client(raw(params))
            answer = await self._sessions.ask("initialize", initialize_params(params, client))
        except RemoteProtocolError:
            # The runtime says what is wrong with it.
            return
        except (AgentFailure, LinkError) as error:
            logger.error("the adapted agent failed in `initialize`, so nothing of its own is offered: %s", error)
            return
        self._sessions.abilities = abilities(answer)
        authored, named = self._authored, child(answer, "agentInfo")
        authored.options = agent_options(answer, self._given)
        authored.name = named.get("name") or authored.name
        authored.title = named.get("title")
        authored.version = named.get("version") or authored.version

    async def _authenticate(self, method_id: str) -> None:
        await self._sessions.ask("authenticate", {"methodId": method_id})
