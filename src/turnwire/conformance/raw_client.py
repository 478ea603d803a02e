"""The client of a case: sends what the case says, answers what the agent asks, and knows the steps to a turn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import anyio

from turnwire.conformance.capability import READY, offers
from turnwire.conformance.case import SCENES, Carrier, Scene, unscored
from turnwire.conformance.plain_text import quoted
from turnwire.conformance.raw_peer import AUTH_REQUIRED, HOLD, Answer, RawPeer, Request, gives, is_answer_to, text
from turnwire.conformance.shapes import is_text
from turnwire.conformance.tape import Frame, Tape, at, items
from turnwire.conformance.transport import Opener, Transport
from turnwire.errors import NotScored

LONGEST_LIST = 1000
"""Pages."""
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
"""A picture."""


def selects(*kinds: str) -> Answer:
    """Answer a permission request with the first option of these kinds, or else with `cancelled`."""

    def answer(asked: Frame) -> Any:
        offered = [each for each in items(at(asked.params, "options")) if at(each, "kind") in kinds]
        if not offered:
            return {"result": {"outcome": {"outcome": "cancelled"}}}
        return {"result": {"outcome": {"outcome": "selected", "optionId": at(offered[0], "optionId")}}}

    return answer


ALLOW = selects("allow_once", "allow_always")
REJECT = selects("reject_once", "reject_always")
DISMISS = gives(result={"outcome": {"outcome": "cancelled"}})


def refusal(answer: Frame) -> str:
    """What an agent says where it refuses, to stand behind our words; and what to do where it is the directory."""
    told = quoted(at(answer.error, "message")) or quoted(at(answer.error, "data"))
    return f": it says {told!r}{OTHER_PLACE if is_about_place(answer) else ''}" if told else ""


OTHER_PLACE = "; give a directory that it takes: --cwd DIR"


def is_about_place(answer: Frame) -> bool:
    """Whether a refusal speaks of the directory that a session was to work in."""
    told = json.dumps(answer.error).lower()
    return answer.failed and ("cwd" in told or "director" in told)


class Turn(NamedTuple):
    """A turn that has ended."""

    request: Request
    answer: Frame
    frames: list[Frame]
    """What the agent said between the two."""

    @property
    def updates(self) -> list[Frame]:
        return [each for each in self.frames if each.method == "session/update"]

    def text(self, kind: str = "agent_message_chunk") -> str:
        return said(self.frames, kind)


def said(frames: list[Frame], kind: str) -> str:
    """The pieces of text of this kind, put together."""
    pieces = [at(each.update, "content", "text") for each in frames if each.kind == kind]
    return "".join(each for each in pieces if isinstance(each, str))


@dataclass
class Subject:
    """What is known of the peer under judgement, and what was learned of it on the way."""

    name: str = ""
    """How it calls itself, with its version."""
    offers: Mapping[int, Any] = field(default_factory=dict[int, Any])
    """What it answered to `initialize`, by the version that it was asked for and spoke."""
    versions: Mapping[int, Any] = field(default_factory=dict[int, Any])
    """Which version it gave when it was asked for this one."""
    prompts: Mapping[Scene, str] = field(default_factory=dict[Scene, str])
    """The words that make it do what a scene needs."""
    carrier: Carrier = "stdio"
    folder: str = "/"
    """Where each case gets a directory of its own."""
    patience_s: float = 10.0
    """How long an answer may take."""
    silence_s: float = 0.25
    """How long nothing must come where a rule says that nothing comes."""
    last_words: str = ""
    """The end of its stderr, if it went away when it was asked who it is."""
    given_up: dict[str, str] = field(default_factory=dict[str, str])
    """What it did not do within its time once, and is not waited for again."""


class RawClient(RawPeer):
    """A client over one connection, for one case."""

    def __init__(
        self,
        transport: Transport,
        subject: Subject,
        version: int = 1,
        cwd: str = "/",
        connections: Connections | None = None,
    ) -> None:
        super().__init__(transport, subject.patience_s, subject.silence_s)
        self._connections = connections
        self.subject = subject
        self.version = version
        self.cwd = cwd
        """Where its sessions work."""
        self.offer: Any = None
        """What the agent said in `initialize`."""
        self.answers = {"session/request_permission": ALLOW}

    # -- other connections of the case ------------------------------------------------------------------

    async def beside(self) -> RawClient:
        """Another client of the same server, at the same time."""
        assert self._connections is not None
        return await self._connections.open()

    async def again(self) -> RawClient:
        """Leave, and come back on a new connection: with a server the next one, with a process the next process."""
        assert self._connections is not None
        await self._connections.leave()
        return await self._connections.open()

    async def leave(self) -> None:
        """End the connection that was opened last, which must be this one."""
        assert self._connections is not None
        await self._connections.leave()

    # -- the steps that most cases begin with. Where one does not work, the case is unjudged ------------

    async def step(self, request: Request, what: str) -> Frame:
        """The same for a step that many cases have: if it was waited for in vain once, it is not again."""
        known = f"v{self.version} {what}"
        if known in self.subject.given_up:
            unscored(self.subject.given_up[known])
        try:
            return await self.answer_to(request, what)
        except NotScored as reason:
            if not self.tape.ended:
                self.subject.given_up[known] = str(reason)
            raise

    async def initialize(self, capabilities: Mapping[str, Any] | None = None) -> Frame:
        answer = await self.step(await self.ask("initialize", hello(self.version, capabilities)), "initialize")
        if not answer.succeeded:
            unscored("`initialize` was answered with an error")
        if at(answer.result, "protocolVersion") != self.version:
            unscored(f"it does not speak version {self.version}")
        self.offer = answer.result
        return answer

    async def open(self, capabilities: Mapping[str, Any] | None = None) -> str:
        """Initialize and open a session; gives its id."""
        await self.initialize(capabilities)
        return await self.new_session()

    async def open_two(self) -> tuple[str, str]:
        first, second = await self.open(), await self.new_session()
        if first == second:
            unscored("two sessions have one id")
        return first, second

    async def open_proven(self) -> str:
        """A session, after a turn in another one has ended well."""
        await self.sound_turn(await self.open())
        return await self.new_session()

    async def new_session(self, *, ready: bool = True) -> str:
        """Open a session, and say that the client is ready for it where the agent waits for that."""
        answer = await self.step(await self.ask("session/new", self.place_of_work()), "session/new")
        if at(answer.error, "code") == AUTH_REQUIRED:
            unscored("it wants a login before it opens a session")
        session = at(answer.result, "sessionId")
        if session is None:
            unscored(f"`session/new` gave no session{refusal(answer)}")
        if ready:
            await self.be_ready(session)
        return session

    async def be_ready(self, session: str) -> None:
        """As the draft asks of clients, if the agent has it."""
        if offers(self.offer, READY):
            await self.notify("session/ready", {"sessionId": session})

    async def listed(self) -> list[Any]:
        """The ids of all sessions that it lists. Raises `NotScored` when there is no such list."""
        found: list[Any] = []
        cursor: dict[str, Any] = {}
        for _ in range(LONGEST_LIST):
            answer = await self.call("session/list", cursor)
            if answer.failed:
                unscored("`session/list` was answered with an error")
            found += [at(each, "sessionId") for each in items(at(answer.result, "sessions"))]
            cursor = {"cursor": at(answer.result, "nextCursor")}
            if cursor["cursor"] is None:
                return found
        unscored("the list of sessions does not end")

    def place_of_work(self) -> dict[str, Any]:
        return {"cwd": self.cwd, "mcpServers": []}

    def words(self, scene: Scene) -> str:
        words = self.subject.prompts.get(scene)
        if words is None:
            unscored(f"no prompt is known that makes it {SCENES[scene]}; give one: --provoke {scene}=TEXT")
        return words.replace("{n}", str(next(self._ids)))

    async def prompt(self, session: str, scene: Scene = "plain", *, id: Any = None) -> Request:
        return await self.ask("session/prompt", {"sessionId": session, "prompt": [text(self.words(scene))]}, id=id)

    async def turn(self, session: str, scene: Scene = "plain", *, id: Any = None) -> Turn:
        """Prompt and wait for the end. Raises `NotScored` when there is none."""
        return await self.end_of(await self.prompt(session, scene, id=id), scene)

    async def sound_turn(self, session: str) -> Turn:
        """A plain turn that ends well, to compare with. Raises `NotScored` when even that does not."""
        turn = await self.turn(session)
        if not turn.answer.succeeded:
            unscored("a plain prompt is answered with an error")
        if at(turn.answer.result, "stopReason") == "cancelled":
            unscored("a plain turn ends as cancelled")
        return turn

    async def end_of(self, request: Request, scene: Scene) -> Turn:
        answer = await self.step(request, f"session/prompt ({scene})")
        return Turn(request, answer, list(self.tape.heard(request.frame.number, answer.number)))

    async def running(self, session: str, *, id: Any = None) -> Request:
        """Begin a turn that goes on until it is cancelled, and wait until it has shown something."""
        request = await self.prompt(session, "wait", id=id)
        seen = await self.until(
            lambda frame: frame.session == session or is_answer_to(request.id)(frame), request.frame.number
        )
        if seen is None or seen.is_answer:
            unscored("the prompt that should keep it busy did not")
        return request

    async def cancel(self, session: str) -> Frame:
        return await self.notify("session/cancel", {"sessionId": session})

    async def clear(self) -> None:
        """Leave no work behind: cancel what was prompted, and close the sessions of this connection."""
        if self.offer is None or self.tape.ended:
            return
        ours = [each for each in self.tape.frames if each.is_ours and each.is_request]
        for session in {each.session for each in ours if each.method == "session/prompt" and is_text(each.session)}:
            await self.cancel(session)
        if not offers(self.offer, CLOSES[self.version]):
            return
        asked = {each.id for each in ours if each.method == "session/new" and isinstance(each.id, int | str)}
        for answer in [each for each in self.tape.heard() if each.is_answer and each.succeeded]:
            session = at(answer.result, "sessionId")
            if isinstance(answer.id, int | str) and answer.id in asked and is_text(session):
                request = await self.ask("session/close", {"sessionId": session})
                await self.until(is_answer_to(request.id), request.frame.number)

    async def asked(self, session: str) -> tuple[Request, Frame]:
        """Begin a turn in which the agent asks for permission, and do not answer it yet."""
        self.answers["session/request_permission"] = lambda frame: HOLD
        request = await self.prompt(session, "ask")
        found = await self.until(
            lambda frame: frame.method == "session/request_permission" or is_answer_to(request.id)(frame),
            request.frame.number,
        )
        if found is None or found.is_answer:
            unscored("it did not ask for permission")
        return request, found


def stderr_of(transport: Transport | None) -> str:
    """The end of what a process wrote to its stderr; empty where there is none."""
    return bytes(getattr(transport, "stderr_tail", b"")).decode(errors="replace")


STAYS = "leaving"
"""In what was given up: that it ends by itself."""


@runtime_checkable
class Leaving(Protocol):
    """A transport that can let its peer end by itself."""

    async def let_go(self, within_s: float) -> bool: ...


CLEARING_S = 2.0
"""For what a case leaves at a server."""
CLOSES = {1: "agentCapabilities.sessionCapabilities.close", 2: "capabilities.session"}
"""Who claims this has `session/close`."""


class Connections:
    """The connections of one case, each with its tape. The one that was opened last ends first."""

    def __init__(self, opener: Opener, subject: Subject, version: int, cwd: str) -> None:
        self._opener = opener
        self._subject = subject
        self._version = version
        self._cwd = cwd
        self._open: list[tuple[RawClient, AsyncExitStack]] = []
        self._newest: Transport | None = None
        self.tapes: list[Tape] = []

    async def open(self) -> RawClient:
        stack = AsyncExitStack()
        self._newest = await stack.enter_async_context(self._opener())
        client = RawClient(self._newest, self._subject, self._version, self._cwd, self)
        self._open.append((client, stack))
        self.tapes.append(self._newest.tape)
        return client

    async def leave(self) -> None:
        """What a peer keeps it may keep when it is left, so it gets the time of an answer for that."""
        client, stack = self._open.pop()
        transport = client.transport
        async with stack:
            if isinstance(transport, Leaving) and STAYS not in self._subject.given_up:
                left = await transport.let_go(self._subject.patience_s)
                if not left:
                    self._subject.given_up[STAYS] = "it does not end with its input"

    def stderr(self) -> str:
        """What the newest peer has said beside its messages."""
        return stderr_of(self._newest)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._open:
            client, stack = self._open.pop()
            # A process ends with its connection, and what it was doing with it. A server goes on.
            if kind is None and self._subject.carrier != "stdio":
                with anyio.move_on_after(CLEARING_S):
                    await client.clear()
            await stack.__aexit__(kind, error, trace)


def hello(version: int, capabilities: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The params of `initialize`."""
    name = {"name": "turnwire-check", "title": "turnwire check", "version": "1"}
    if version == 1:
        return {"protocolVersion": 1, "clientCapabilities": capabilities or {}, "clientInfo": name}
    return {"protocolVersion": version, "capabilities": capabilities or {}, "info": name}
