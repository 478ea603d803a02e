"""The client of a case: sends the case's messages, answers the agent's requests, and performs the steps to
a turn.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import anyio

from turnwire_check.capability import READY, offers
from turnwire_check.case import SCENES, Carrier, NoAnswer, Scene, unscored
from turnwire_check.plain_text import quoted
from turnwire_check.pool import PooledTransport
from turnwire_check.raw_peer import AUTH_REQUIRED, HOLD, Answer, RawPeer, Request, gives, is_answer_to, text
from turnwire_check.shapes import is_text, values_of
from turnwire_check.tape import Frame, Tape, at, items
from turnwire_check.transport import Opener, Transport

LONGEST_LIST = 1000
"""Pages."""
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
"""A small image."""


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
    """Return an agent's error text for use at the end of our message, with advice if the directory is the cause."""
    told = quoted(at(answer.error, "message")) or quoted(at(answer.error, "data"))
    return f": it says {told!r}{OTHER_PLACE if is_about_place(answer) else ''}" if told else ""


OTHER_PLACE = "; give a directory that it takes: --cwd DIR"


def is_about_place(answer: Frame) -> bool:
    """Return True if an error is about the directory of a new session."""
    told = json.dumps(answer.error).lower()
    return answer.failed and ("cwd" in told or "director" in told)


class Turn(NamedTuple):
    """A completed turn."""

    request: Request
    answer: Frame
    frames: list[Frame]
    """The agent's frames between the two."""

    @property
    def updates(self) -> list[Frame]:
        return [each for each in self.frames if each.method == "session/update"]

    @property
    def words(self) -> str:
        """The text of the prompt."""
        return prompted(self.request)

    def text(self, kind: str = "agent_message_chunk") -> str:
        return said(self.frames, kind)


def prompted(request: Request) -> str:
    """The text of a prompt that was sent."""
    return "".join(at(each, "text") or "" for each in items(at(request.frame.params, "prompt")))


def is_told(words: str, history: str) -> bool:
    """Return True if a history contains a text. White space at its ends and between words may differ."""
    return " ".join(words.split()) in " ".join(history.split())


def said(frames: list[Frame], kind: str) -> str:
    """Return the concatenated text chunks of this kind."""
    pieces = [at(each.update, "content", "text") for each in frames if each.kind == kind]
    return "".join(each for each in pieces if isinstance(each, str))


@dataclass
class Subject:
    """The known facts about the checked peer, including those learned during the run."""

    name: str = ""
    """The peer's reported name and version."""
    offers: Mapping[int, Any] = field(default_factory=dict[int, Any])
    """Its answers to `initialize`, by the version that was requested and spoken."""
    versions: Mapping[int, Any] = field(default_factory=dict[int, Any])
    """The version it answered for each requested version."""
    prompts: Mapping[Scene, str] = field(default_factory=dict[Scene, str])
    """The prompts that make it perform each scene."""
    carrier: Carrier = "stdio"
    folder: str = "/"
    """Parent folder of each case's directory."""
    patience_s: float = 10.0
    """Timeout of an answer."""
    silence_s: float = 0.1
    """Duration without any frame that proves a rule about silence."""
    last_words: str = ""
    """The end of its stderr, if it exited when it was asked to initialize."""
    asking_mode: str = ""
    """The mode in which the agent asks for permission, if it starts in another one."""
    given_up: dict[str, str] = field(default_factory=dict[str, str])
    """Steps that timed out once. They are not waited for again."""
    recorded: list[tuple[int, Tape]] = field(default_factory=list[tuple[int, Tape]])
    """Every connection of the run, with its version."""
    toured: set[int] = field(default_factory=set[int])
    """The versions whose tour is recorded: see `watch`."""
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    """The ids of requests, unique in the run because a process may serve several cases."""
    touring: anyio.Lock = field(default_factory=anyio.Lock)


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
        self._ids = subject.ids
        self._connections = connections
        self.subject = subject
        self.version = version
        self.cwd = cwd
        """Working directory of its sessions."""
        self.offer: Any = None
        """The agent's answer to `initialize`."""
        self.answers = {"session/request_permission": ALLOW}

    # -- other connections of the case ------------------------------------------------------------------

    async def beside(self) -> RawClient:
        """Another client of the same server, at the same time."""
        assert self._connections is not None
        return await self._connections.open()

    async def again(self) -> RawClient:
        """Disconnect, and reconnect on a new connection: for a process this starts a new process."""
        assert self._connections is not None
        await self._connections.leave()
        return await self._connections.open()

    async def leave(self) -> None:
        """End the connection that was opened last, which must be this one."""
        assert self._connections is not None
        await self._connections.leave()

    # -- the steps that most cases begin with. Where one does not work, the case is unjudged ------------

    async def step(self, request: Request, what: str) -> Frame:
        """Like `answer_to`, for a step that many cases share: after one timeout it is not waited for again."""
        known = f"v{self.version} {what}"
        if known in self.subject.given_up:
            raise NoAnswer(self.subject.given_up[known])
        try:
            return await self.answer_to(request, what)
        except NoAnswer as reason:
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
        """Initialize and open a session; return its id."""
        await self.initialize(capabilities)
        return await self.new_session()

    async def open_two(self) -> tuple[str, str]:
        first, second = await self.open(), await self.new_session()
        if first == second:
            unscored("two sessions have one id")
        return first, second

    async def open_proven(self) -> str:
        """Return a session, after a turn in another one has succeeded."""
        await self.sound_turn(await self.open())
        return await self.new_session()

    async def new_session(self, *, ready: bool = True) -> str:
        """Open a session, and send that the client is ready for it if the agent waits for that."""
        answer = await self.step(await self.ask("session/new", self.place_of_work()), "session/new")
        if at(answer.error, "code") == AUTH_REQUIRED:
            unscored("it wants a login before it opens a session")
        session = at(answer.result, "sessionId")
        if session is None:
            unscored(f"`session/new` gave no session{refusal(answer)}")
        if ready:
            await self.be_ready(session)
        await self._choose_asking_mode(session, answer)
        return session

    async def _choose_asking_mode(self, session: str, opened: Frame) -> None:
        """Put a session into the mode in which the agent asks for permission, as a mode or as an option."""
        mode = self.subject.asking_mode
        if not mode:
            return
        if mode in [at(each, "id") for each in items(at(opened.result, "modes", "availableModes"))]:
            await self.call("session/set_mode", {"sessionId": session, "modeId": mode})
            return
        for option in items(at(opened.result, "configOptions")):
            if mode in values_of(option):
                named = {"configId": at(option, "id") or at(option, "configId"), "value": mode}
                await self.call("session/set_config_option", {"sessionId": session, **named})
                return

    async def be_ready(self, session: str) -> None:
        """Send the draft's ready notification, if the agent supports it."""
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
        """Send a prompt and wait for the end. Raises `NotScored` if there is none."""
        return await self.end_of(await self.prompt(session, scene, id=id), scene)

    async def sound_turn(self, session: str) -> Turn:
        """Run a plain turn that succeeds, as a comparison. Raises `NotScored` if even that fails."""
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
        """Start a turn that runs until it is cancelled, and wait for its first update."""
        request = await self.prompt(session, "wait", id=id)
        seen = await self.until(
            lambda frame: frame.session == session or is_answer_to(request.id)(frame), request.frame.number
        )
        if seen is None:
            self.no_answer("session/prompt (wait)")
        if seen.is_answer:
            unscored("the prompt that should keep it busy did not")
        return request

    async def cancel(self, session: str) -> Frame:
        return await self.notify("session/cancel", {"sessionId": session})

    async def clear(self) -> None:
        """Stop all work: cancel the prompts, and close the sessions of this connection."""
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
        if found is None:
            self.no_answer("session/prompt (ask)")
        if found.is_answer:
            unscored("it did not ask for permission")
        return request, found


def stderr_of(transport: Transport | None) -> str:
    """Return the end of a process's stderr; empty if there is none."""
    return bytes(getattr(transport, "stderr_tail", b"")).decode(errors="replace")


STAYS = "leaving"
"""Key in `given_up`: the peer does not exit by itself."""


@runtime_checkable
class Leaving(Protocol):
    """A transport that can let its peer exit by itself."""

    async def let_go(self, within_s: float) -> bool: ...


CLEARING_S = 2.0
"""Time limit for clearing a case's work at a server."""
CLOSES = {1: "agentCapabilities.sessionCapabilities.close", 2: "capabilities.session"}
"""Peers with this capability have `session/close`."""


class Connections:
    """The connections of one case, each with its tape. The one that was opened last ends first."""

    def __init__(
        self, opener: Opener, subject: Subject, version: int, cwd: str, *, needs_new: bool = False
    ) -> None:
        self._opener = opener
        self._needs_new = needs_new
        self.pooled: list[PooledTransport] = []
        self._subject = subject
        self._version = version
        self._cwd = cwd
        self._open: list[tuple[RawClient, AsyncExitStack]] = []
        self._newest: Transport | None = None
        self.tapes: list[Tape] = []

    async def open(self) -> RawClient:
        stack = AsyncExitStack()
        self._newest = await stack.enter_async_context(self._opener())
        if isinstance(self._newest, PooledTransport):
            # A client that comes back must meet a process that was started after the first one exited.
            self._newest.needs_new = self._needs_new or bool(self.tapes)
            self.pooled.append(self._newest)
        client = RawClient(self._newest, self._subject, self._version, self._cwd, self)
        self._open.append((client, stack))
        self.tapes.append(self._newest.tape)
        return client

    async def leave(self) -> None:
        """Close the newest connection. The peer gets the time of an answer to save its data."""
        client, stack = self._open.pop()
        transport = client.transport
        async with stack:
            if isinstance(transport, Leaving) and STAYS not in self._subject.given_up:
                left = await transport.let_go(self._subject.patience_s)
                if not left:
                    self._subject.given_up[STAYS] = "it does not end with its input"

    def stderr(self) -> str:
        """Return the newest peer's output other than messages."""
        return stderr_of(self._newest)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._open:
            client, stack = self._open.pop()
            # A process ends with its connection and its work. A server continues.
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
