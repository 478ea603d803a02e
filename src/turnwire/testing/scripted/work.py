"""Commands in action: one run of commands in one session, and the table of what each command does.

Takes commands one after the other; gives updates, requests to the client and, for a turn, how it is to end.
The functions that do the commands register themselves here from `speaking`, `asking`, `flow` and `breaking`.
Never ends a turn: that is `turns`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import anyio
import msgspec

from turnwire.ids import RequestId
from turnwire.testing.scripted.commands import Command
from turnwire.testing.scripted.host import Host, Unavailable
from turnwire.testing.scripted.peer import Peer, Refused
from turnwire.testing.scripted.session import Session
from turnwire.testing.scripted.shapes import Json, V1Shapes, V2Shapes, member
from turnwire.wire.jsonrpc import ErrorObject

C = TypeVar("C", bound=Command)


class ClientOffer:
    """What the client said it can do."""

    def __init__(self, capabilities: Json) -> None:
        self.reads_files = member(capabilities, "fs", "readTextFile") is True
        self.writes_files = member(capabilities, "fs", "writeTextFile") is True
        self.has_terminals = member(capabilities, "terminal") is True
        self.shows_forms = isinstance(member(capabilities, "elicitation", "form"), dict)
        self.wants_turn_complete = any(
            wish is True or isinstance(wish, dict)
            for wish in (
                member(capabilities, "_meta", "turnwire", "turnComplete"),
                member(capabilities, "session", "turnComplete"),
            )
        )


class Work:
    """One run of commands. A turn is foreground; what an agent says unasked is not."""

    def __init__(
        self,
        session: Session,
        peer: Peer,
        shapes: V1Shapes,
        host: Host,
        offer: ClientOffer,
        *,
        foreground: bool,
    ) -> None:
        self.session = session
        self.peer = peer
        self.shapes = shapes
        self.host = host
        self.offer = offer
        self.foreground = foreground
        self.request_id: RequestId | None = None
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()
        self.is_over = False
        """The commands are done; a cancel comes too late."""
        self.is_cancelled = False
        self.ignores_cancel = False
        self.stop_reason = "end_turn"
        self.error: ErrorObject | None = None
        self.answers = 1
        self.on_cancel: list[Command] = []
        self.after: list[Command] = []
        self.idle: list[Command] = []
        self._message_ids: dict[str, str] = {}

    async def do(self, commands: Sequence[Command]) -> None:
        """Do commands in order. What cannot be done here is said in a message."""
        for command in commands:
            try:
                await PERFORM[type(command)](self, command)
            except Unavailable as reason:
                await self.say(f"unavailable: {reason}")
            except Refused as refusal:
                await self.say(f"refused: {refusal}")

    async def update(self, update: Json | bytes, *, kept: bool = True) -> None:
        await self.session.update(update, solicited=self.foreground, kept=kept)

    async def say(self, text: str, kind: str = "agent_message") -> None:
        await self.update(self.shapes.chunk(kind, text, self.message_id(kind)))

    def message_id(self, kind: str) -> str:
        """One message of each kind per run of commands."""
        if kind not in self._message_ids:
            self._message_ids[kind] = self.session.new_id("message")
        return self._message_ids[kind]

    async def ask(self, method: str, params: Json) -> Any:
        """Ask the client; a v2 turn requires action until its user has answered. Raises `Refused`."""
        try:
            answer = await self.peer.request(method, params, lambda: self._show(method, "requires_action"))
        except Refused:
            await self._show(method, "running")
            raise
        await self._show(method, "running")
        return msgspec.json.decode(answer)

    async def _show(self, method: str, state: str) -> None:
        asks_user = method in ("session/request_permission", "elicitation/create")
        if asks_user and self.foreground and isinstance(self.shapes, V2Shapes):
            await self.update(self.shapes.state(state), kept=False)

    def cancel(self, *, force: bool = False) -> None:
        """Stop this work, unless it does not hear it."""
        if self.is_over or (self.ignores_cancel and not force):
            return
        self.is_cancelled = True
        self.scope.cancel()


PERFORM: dict[type[Command], Callable[[Work, Any], Awaitable[None]]] = {}
"""What does each command."""


def performs(
    command: type[C],
) -> Callable[[Callable[[Work, C], Awaitable[None]]], Callable[[Work, C], Awaitable[None]]]:
    """Register the function that does a command."""

    def register(function: Callable[[Work, C], Awaitable[None]]) -> Callable[[Work, C], Awaitable[None]]:
        PERFORM[command] = function
        return function

    return register
