"""One client as its sessions see it: where to put frames, where to run tasks, what it can take.

Takes frames and requests for the client; never reads from it. `turnwire.agent.connection` does that.
"""

from __future__ import annotations

from anyio.abc import TaskGroup
from msgspec import Raw

from turnwire.agent.authored import Authored
from turnwire.agent.calls import Calls
from turnwire.agent.outbox import Outbox
from turnwire.core.translate.handshake import ClientProfile
from turnwire.ids import RequestId
from turnwire.link.base import FrameLink
from turnwire.wire.jsonrpc import ErrorObject, Failure, Frame, Result, encode, raw


class ClientSide:
    """One connected client."""

    def __init__(self, authored: Authored, link: FrameLink, tasks: TaskGroup) -> None:
        self.authored = authored
        self.link = link
        self.tasks = tasks
        self.outbox = Outbox(link, authored.options.max_unsent)
        self.calls = Calls()
        self.profile = ClientProfile(version=1)
        """What it said in `initialize`."""

    def put(self, frame: Frame) -> None:
        self.outbox.put(encode(frame))

    def respond(self, request_id: RequestId, result: object) -> None:
        self.put(Result(request_id, raw(result)))

    def refuse(self, request_id: RequestId | None, error: ErrorObject) -> None:
        self.put(Failure(request_id, error))

    def fail(self, request_id: RequestId, error: Raw) -> None:
        """Refuse with an error object as it is."""
        self.outbox.put(b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (bytes(raw(request_id)), bytes(error)))

    async def drop(self) -> None:
        """It does not read: end its connection, so that it cannot hold up others."""
        await self.link.aclose()
