"""One session of a scripted agent: its history, the commands that run in it, and its turns.

A session sends updates to the client in order, or holds the unsolicited ones until the client is ready. Its history
is replayed by `session/load`; floods are not part of it. `Work` is one run of commands. `Turns` brings each prompt
from its request to exactly one end: in v1 the response, in `v1plus` after `turn_complete` unless the client refused
that; in v2 an idle state, the response having come at insertion.

`Peer` is the client as the agent sees it. A request of the agent that is cancelled is withdrawn with
`$/cancel_request`, and a later answer to it is ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, TypeAlias

import anyio
import msgspec
from anyio import CancelScope
from anyio.lowlevel import checkpoint
from msgspec import UNSET, Raw

from turnwire.errors import ConfigError, LimitExceeded, LinkError
from turnwire.hosting.base import FrameLink
from turnwire.ids import RequestId
from turnwire.wire.jsonrpc import (
    INVALID_REQUEST,
    REQUEST_CANCELLED,
    ErrorObject,
    Failure,
    Frame,
    Notification,
    Request,
    Result,
    encode,
    raw,
)
from turnwire.wire.methods import CANCEL_REQUEST, ELICITATION_CREATE, SESSION_REQUEST_PERMISSION, VENDOR
from turnwire.wire.schema.update import update_head
from turnwire_testing.scripted.commands import Command, Reject, Say
from turnwire_testing.scripted.host import Host, Unavailable
from turnwire_testing.scripted.options import AgentOptions, Profile
from turnwire_testing.scripted.script import parse_prompt, parse_script
from turnwire_testing.scripted.shapes import CHOICES, Json, V1Shapes, V2Shapes, member

# -- the client of the session -------------------------------------------------------------------------------


class Refused(Exception):
    """A request that got or gets an error as its answer."""

    def __init__(self, code: int, message: str, data: Any = UNSET) -> None:
        super().__init__(f"{code} {message}")
        self.error = ErrorObject(code, message, data if data is UNSET else raw(data))


class _Pending:
    __slots__ = ("answer", "settled")

    def __init__(self) -> None:
        self.settled = anyio.Event()
        self.answer: Result | Failure | None = None


class Peer:
    """The client at the other end of a link."""

    def __init__(self, link: FrameLink) -> None:
        self.link = link
        self._next_id = 0
        self._pending: dict[RequestId, _Pending] = {}

    async def send_line(self, line: bytes) -> None:
        """Put bytes on the wire that may be no frame at all."""
        await self.link.send(line)

    async def notify(self, method: str, params: Any) -> None:
        await self._send(Notification(method, raw(params)))

    async def respond(self, request_id: RequestId, result: Any) -> None:
        await self._send(Result(request_id, raw(result)))

    async def refuse(self, request_id: RequestId | None, error: ErrorObject) -> None:
        await self._send(Failure(request_id, error))

    async def request(self, method: str, params: Any, once_sent: Callable[[], Awaitable[None]]) -> Raw:
        """Ask the client, call `once_sent`, wait for the answer. Raises `Refused` if that is an error."""
        request_id, pending = self._next_id, _Pending()
        self._next_id += 1
        self._pending[request_id] = pending
        try:
            await self._send(Request(request_id, method, raw(params)))
            await once_sent()
            await pending.settled.wait()
        except anyio.get_cancelled_exc_class():
            self._withdraw(request_id)
            raise
        finally:
            self._pending.pop(request_id, None)
        if isinstance(pending.answer, Result):
            return pending.answer.result
        assert pending.answer is not None, "an answer is stored before the request is settled"
        raise Refused(pending.answer.error.code, pending.answer.error.message)

    def settle(self, answer: Result | Failure) -> None:
        """Resolve the request of an answer; an answer without a pending request is ignored."""
        pending = None if answer.id is None else self._pending.get(answer.id)
        if pending is not None:
            pending.answer = answer
            pending.settled.set()

    def _withdraw(self, request_id: RequestId) -> None:
        # Withdrawing is optional: a client that accepts no frame or has disconnected must not delay the cancel.
        with suppress(LimitExceeded, LinkError):
            withdrawal = Notification(CANCEL_REQUEST, raw({"requestId": request_id}))
            self.link.send_nowait(encode(withdrawal))

    async def _send(self, frame: Frame) -> None:
        await self.link.send(encode(frame))


# -- the session ---------------------------------------------------------------------------------------------


HISTORY_UPDATES = 10_000
"""Number of updates in a session's history: more than any test writes by hand, and bounded."""


Action: TypeAlias = Callable[["Work", Any], Awaitable[None]]
"""Function that executes a command in a run of commands."""


class PromptRequest(msgspec.Struct, frozen=True):
    """A prompt of the client, and the request that its answer belongs to."""

    request: Request
    blocks: list[Any]


class Session:
    """A conversation with one client."""

    def __init__(self, session_id: str, cwd: str, peer: Peer) -> None:
        self.id = session_id
        self.cwd = cwd
        self.title: str | None = None
        self.config = {option: values[0] for option, values in CHOICES.items()}
        self.tool_calls: set[str] = set()
        self.children: dict[str, Work] = {}
        """Child sessions by name, with the work in each."""
        self.is_open = True
        self.is_ready = True
        self.work: Work | None = None
        """The turn that runs, if any."""
        self.waiting: deque[PromptRequest] = deque()
        self.last_stop: str | None = None
        self.background: set[anyio.CancelScope] = set()
        """Work that runs while the session is idle; ends when the session is closed."""
        self._peer = peer
        self._history: deque[bytes] = deque(maxlen=HISTORY_UPDATES)
        self._held: deque[bytes] = deque()
        self._ids = count(1)
        self._prefix = update_head(session_id)

    def new_id(self, kind: str) -> str:
        """Return an id that is unique in this session."""
        return f"{kind}-{next(self._ids)}"

    def line(self, update: bytes) -> bytes:
        """Return an encoded update as a frame of this session."""
        return b"%b%b}}" % (self._prefix, update)

    async def update(self, update: Json | bytes, *, solicited: bool, kept: bool = True) -> None:
        """Send an update to the client; unsolicited updates wait until it is ready."""
        encoded = update if isinstance(update, bytes) else msgspec.json.encode(update)
        if kept:
            self._history.append(encoded)
        if not solicited and (not self.is_ready or self._held):
            self._held.append(encoded)
            return
        await self._peer.send_line(self.line(encoded))

    def remember(self, updates: Sequence[Json]) -> None:
        """Store updates for a later replay without sending them."""
        self._history.extend(msgspec.json.encode(update) for update in updates)

    async def replay(self) -> None:
        """Send the whole history again."""
        for update in tuple(self._history):
            await self._peer.send_line(self.line(update))

    async def become_ready(self) -> None:
        """Mark the client as ready, and send it the held updates in order."""
        self.is_ready = True
        while self._held:
            await self._peer.send_line(self.line(self._held.popleft()))

    def copy_to(self, other: Session) -> None:
        """Copy this session's history to another session."""
        other._history.extend(self._history)
        other.config = dict(self.config)
        other.title = self.title
        other.tool_calls = set(self.tool_calls)


class ClientOffer:
    """The capabilities the client offered."""

    def __init__(self, capabilities: Json) -> None:
        self.reads_files = member(capabilities, "fs", "readTextFile") is True
        self.writes_files = member(capabilities, "fs", "writeTextFile") is True
        self.has_terminals = member(capabilities, "terminal") is True
        self.shows_forms = isinstance(member(capabilities, "elicitation", "form"), dict)
        self.takes_turn_complete = not any(
            said is False
            for said in (
                member(capabilities, "_meta", VENDOR, "turnComplete"),
                member(capabilities, "session", "turnComplete"),
            )
        )
        """The draft has no client capability for it: a client that does not refuse it gets the offered
        extension.
        """


class Work:
    """One run of commands. A turn is foreground work; unsolicited output is not."""

    def __init__(
        self,
        session: Session,
        peer: Peer,
        shapes: V1Shapes,
        host: Host,
        offer: ClientOffer,
        actions: Mapping[type[Command], Action],
        *,
        foreground: bool,
    ) -> None:
        self.session = session
        self.peer = peer
        self.shapes = shapes
        self.host = host
        self.offer = offer
        self._actions = actions
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
        """Execute commands in order. A command that is not possible here is reported in a message."""
        for command in commands:
            try:
                await self._actions[type(command)](self, command)
            except Unavailable as reason:
                await self.say(f"unavailable: {reason}")
            except Refused as refusal:
                await self.say(f"refused: {refusal}")

    async def update(self, update: Json | bytes, *, kept: bool = True) -> None:
        await self.session.update(update, solicited=self.foreground, kept=kept)

    async def say(self, text: str, kind: str = "agent_message") -> None:
        await self.update(self.shapes.chunk(kind, text, self.message_id(kind)))

    async def child(self, name: str) -> Work:
        """The work in a child session, which is announced and running."""
        known = self.session.children.get(name)
        if known is None:
            session = Session(f"{self.session.id}/{name}", self.session.cwd, self.peer)
            known = self.session.children[name] = Work(
                session, self.peer, self.shapes, self.host, self.offer, self._actions, foreground=self.foreground
            )
            await self.update({"sessionUpdate": "subagent_update", "sessionId": session.id, "title": name})
            await known.update({"sessionUpdate": "state_update", "state": "running"}, kept=False)
        return known

    def message_id(self, kind: str) -> str:
        """Return the message id: one message of each kind per run of commands."""
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
        asks_user = method in (SESSION_REQUEST_PERMISSION, ELICITATION_CREATE)
        if asks_user and self.foreground and isinstance(self.shapes, V2Shapes):
            await self.update(self.shapes.state(state), kept=False)

    def cancel(self, *, force: bool = False) -> None:
        """Stop this work, unless it ignores cancels."""
        if self.is_over or (self.ignores_cancel and not force):
            return
        self.is_cancelled = True
        self.scope.cancel()


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

    def accept(self, session: Session, prompt: PromptRequest) -> None:
        """Start a prompt, or queue it after the running one. Raises `Refused` where v1 is busy."""
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

    async def _run(self, session: Session, prompt: PromptRequest, work: Work) -> None:
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

    async def _run_turn(
        self, session: Session, prompt: PromptRequest, work: Work, commands: Sequence[Command]
    ) -> None:
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
        self, session: Session, prompt: PromptRequest, work: Work, shapes: V2Shapes, message_id: str
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

    async def _end_v1(self, prompt: PromptRequest, work: Work, shapes: V1Shapes) -> None:
        if self._profile == "v1plus" and work.offer.takes_turn_complete:
            # A turn that failed has no stop reason.
            reason = None if work.error is not None else work.stop_reason
            await work.update(shapes.turn_complete(prompt.request.id, reason), kept=False)
        for _ in range(work.answers):
            if work.error is not None:
                await self._peer.refuse(prompt.request.id, work.error)
            else:
                await self._peer.respond(prompt.request.id, {"stopReason": work.stop_reason})

    async def _end_v2(self, prompt: PromptRequest, work: Work, shapes: V2Shapes, message_id: str) -> None:
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
