"""Prompts: from the request to the end of the turn, in v1 and in v2, and what comes after it.

Takes a prompt that was checked; gives the turn's updates and exactly one end: in v1 the response, after
`turn_complete` if the client asked for that; in v2 an idle state, the response having come at insertion.
Never answers for another session. The agent starts one task per prompt here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from anyio import CancelScope
from anyio.lowlevel import checkpoint

from turnwire.errors import ConfigError
from turnwire.testing.script import parse_prompt, parse_script
from turnwire.testing.scripted.commands import Command, Reject, Say
from turnwire.testing.scripted.options import AgentOptions, Profile
from turnwire.testing.scripted.peer import Peer, Refused
from turnwire.testing.scripted.session import Session, Waiting
from turnwire.testing.scripted.shapes import Json, V1Shapes, V2Shapes
from turnwire.testing.scripted.work import Work
from turnwire.wire.jsonrpc import INVALID_REQUEST, REQUEST_CANCELLED, ErrorObject


class Turns:
    """Runs the prompts of all sessions of one agent."""

    def __init__(
        self,
        peer: Peer,
        profile: Profile,
        options: AgentOptions,
        begin: Callable[[Session, bool], Work],
        start: Callable[..., None],
    ) -> None:
        self._peer = peer
        self._profile = profile
        self._options = options
        self._begin = begin
        self._start = start

    def accept(self, session: Session, prompt: Waiting) -> None:
        """Start a prompt, or hold it behind the one that runs. Raises `Refused` where v1 is busy."""
        work = self._begin(session, True)
        if session.work is None:
            session.work = work
            work.request_id = prompt.request.id
            self._start(self._run, session, prompt, work)
        elif isinstance(work.shapes, V2Shapes):
            session.waiting.append(prompt)
        else:
            raise Refused(INVALID_REQUEST, "a prompt is running in this session; wait for its end or cancel it")

    async def cancel(self, session: Session, *, force: bool = False) -> None:
        """Stop the turn that runs, and drop prompts that were not inserted."""
        while session.waiting:
            held = session.waiting.popleft()
            await self._peer.refuse(held.request.id, ErrorObject(REQUEST_CANCELLED, "cancelled before insertion"))
        if session.work is not None:
            session.work.cancel(force=force)

    async def cancel_request(self, sessions: Iterable[Session], request_id: object) -> None:
        """Stop the one prompt that this request sent, wherever it is."""
        for session in sessions:
            for held in tuple(session.waiting):
                if _same_id(held.request.id, request_id):
                    session.waiting.remove(held)
                    error = ErrorObject(REQUEST_CANCELLED, "cancelled before insertion")
                    await self._peer.refuse(held.request.id, error)
            work = session.work
            # In v2 the request of a running prompt has its answer already, so there is nothing to cancel.
            if work is not None and not isinstance(work.shapes, V2Shapes) and _same_id(work.request_id, request_id):
                work.cancel()

    async def do_idle(self, session: Session, commands: Sequence[Command]) -> None:
        """Do commands outside any turn, until the session is closed."""
        with CancelScope() as scope:
            session.background.add(scope)
            await checkpoint()
            await self._begin(session, False).do(commands)
        session.background.discard(scope)

    async def stop(self, session: Session) -> None:
        """End everything in a session, and return when it has ended."""
        await self.cancel(session, force=True)
        if session.work is not None:
            await session.work.ended.wait()
        for scope in tuple(session.background):
            scope.cancel()

    async def _run(self, session: Session, prompt: Waiting, work: Work) -> None:
        commands = self._commands(prompt.blocks)
        if commands and isinstance(commands[0], Reject):
            await self._peer.refuse(prompt.request.id, ErrorObject(commands[0].code, commands[0].message))
        else:
            await session.become_ready()
            await self._run_turn(session, prompt, work, commands)
        session.work = None
        work.ended.set()
        if session.waiting:
            self.accept(session, session.waiting.popleft())
        await self._begin(session, False).do(work.after)
        if work.idle:
            self._start(self.do_idle, session, work.idle)

    async def _run_turn(self, session: Session, prompt: Waiting, work: Work, commands: Sequence[Command]) -> None:
        message_id = session.new_id("message")
        shapes = work.shapes
        if isinstance(shapes, V2Shapes):
            await self._insert(session, prompt, work, shapes, message_id)
        else:
            session.remember(shapes.user_message(prompt.blocks, message_id))
        with work.scope:
            await work.do(commands)
        work.is_over = True
        if work.is_cancelled:
            work.stop_reason, work.error = "cancelled", None
            await work.do(work.on_cancel)
        if isinstance(shapes, V2Shapes):
            await self._end_v2(prompt, work, shapes, message_id)
        else:
            await self._end_v1(prompt, work, shapes)

    async def _insert(
        self, session: Session, prompt: Waiting, work: Work, shapes: V2Shapes, message_id: str
    ) -> None:
        for step in self._options.order:
            match step:
                case "user_message":
                    for update in shapes.user_message(prompt.blocks, message_id):
                        await session.update(update, solicited=True)
                case "response":
                    await self._peer.respond(prompt.request.id, {"messageId": message_id})
                case "running":
                    await work.update(shapes.state("running"), kept=False)

    async def _end_v1(self, prompt: Waiting, work: Work, shapes: V1Shapes) -> None:
        if self._profile == "v1plus" and work.offer.wants_turn_complete:
            # A turn that failed has no stop reason.
            reason = None if work.error is not None else work.stop_reason
            await work.update(shapes.turn_complete(prompt.request.id, reason), kept=False)
        for _ in range(work.answers):
            if work.error is not None:
                await self._peer.refuse(prompt.request.id, work.error)
            else:
                await self._peer.respond(prompt.request.id, {"stopReason": work.stop_reason})

    async def _end_v2(self, prompt: Waiting, work: Work, shapes: V2Shapes, message_id: str) -> None:
        error: Json | None = None
        if work.error is not None:
            work.stop_reason = "error"
            error = {"code": work.error.code, "message": work.error.message}
        work.session.last_stop = work.stop_reason
        for _ in range(work.answers - 1):
            await self._peer.respond(prompt.request.id, {"messageId": message_id})
        for _ in range(1 + self._options.repeat_idle):
            await work.update(shapes.state("idle", work.stop_reason, error), kept=False)

    def _commands(self, blocks: Sequence[Any]) -> tuple[Command, ...]:
        if self._options.script is not None:
            return parse_script(self._options.script)
        try:
            return parse_prompt(prompt_text(blocks))
        except ConfigError as error:
            return (Say(1, str(error)),)


def _same_id(one: object, other: object) -> bool:
    """`2` and `"2"` are different ids."""
    return type(one) is type(other) and one == other


def prompt_text(blocks: Sequence[Any]) -> str:
    """The text blocks of a prompt, one under the other."""
    return "\n".join(block["text"] for block in blocks if block.get("type") == "text")
