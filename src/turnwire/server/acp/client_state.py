"""One client of `/acp`: who it is, what was agreed with it, its sessions, its open requests, and its way out.

The methods of ACP act on this. Requests go both ways, and each way has its ids: those of the client's own requests,
which the log may answer long after they came (`SentPrompts`), and ours for what the client is asked
(`OutgoingRequests`). Answers are put where the client looks for them. Nothing here decides about a session.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Final, NamedTuple, TypeVar

import anyio
from anyio.abc import TaskGroup
from msgspec import Raw

from turnwire.core.child_names import session_of
from turnwire.core.correlation import ExactId, exact, same_id
from turnwire.core.encoder.encoder import Dialect
from turnwire.core.json_members import members, text_of
from turnwire.core.translate.handshake import ClientProfile
from turnwire.errors import ChildRestricted, Forbidden, SessionError, SessionNotFound, ShuttingDown, TurnwireError
from turnwire.ids import AgentName, PermissionId, PromptId, RequestId, SessionId
from turnwire.server.access.identity import Identity, Role, audit
from turnwire.server.acp.frame_queue import FrameQueue
from turnwire.server.acp.rpc import failure_of
from turnwire.server.acp.subscription import Gate, Start, Subscription, ToldOn
from turnwire.server.daemon import Daemon
from turnwire.server.daemon.creation import profile_of
from turnwire.wire.jsonrpc import Failure, Request, Result, encode
from turnwire.wire.methods import ELICITATION_CREATE

PATH: Final = "/acp"
"""Where clients come to."""
AGENT: Final = "agent"
AGENT_PATH: Final = PATH + "/{agent}"
"""Where those come to that want one agent, and can only give an address."""
ELICITATION_ID = "elicitationId"
"""What the agent calls an elicitation that its user answers on a page; the end of it is told by this name."""
REMEMBERED_PROMPTS = 1024
"""Answered prompts that a second reader may still come to; it is seldom more than one behind."""
REMEMBERED_REQUESTS = 256
"""Settled requests whose late answers are still known as such, and not as answers to nothing."""

Value = TypeVar("Value")

logger = logging.getLogger(__name__)


# -- a method that the client calls --------------------------------------------------------------------------


class Row(NamedTuple):
    """How a request is served. Each module of methods has a table of them at its end."""

    act: Callable[[ClientState, Request], Awaitable[Raw | None]]
    """Gives the result; none if the answer comes another way."""
    role: Role
    is_slow: bool = True
    """It waits for somebody, so it is done beside what comes after it."""
    on_session: bool = False
    """It is answered on the session's stream."""
    tells_who: bool = True
    """It may change something, so it is audited."""


class NotificationRow(NamedTuple):
    """How a notification is taken."""

    act: Callable[[ClientState, Raw], Awaitable[None]]
    role: Role


# -- what the client is asked --------------------------------------------------------------------------------


class RequestState(Enum):
    """What became of a request to the client."""

    OPEN = auto()
    ANSWERED = auto()
    """This client answered."""
    SETTLED = auto()
    """Somebody else answered, or it was taken back."""


@dataclass
class OutgoingRequest:
    """One request to the client."""

    id: int
    session_id: SessionId
    method: str
    permission_id: PermissionId | None = None
    """The permission request that it asks users; none for a request to the client itself."""
    state: RequestState = RequestState.OPEN
    at: int = 0
    """The log had the permission request at the latest with this event."""


@dataclass
class AwaitedRequest(OutgoingRequest):
    """A request to the client itself, that somebody here waits for."""

    done: anyio.Event = field(default_factory=anyio.Event)
    outcome: Result | Failure | None = None
    is_put: bool = False
    """It is on its way to the client."""


class OutgoingRequests:
    """Everything that one client was asked, under our ids. A permission request has one, whoever reads."""

    def __init__(self) -> None:
        self._count = 0
        self._asked: dict[RequestId, OutgoingRequest] = {}
        self._permissions: dict[PermissionId, OutgoingRequest] = {}
        self._elicited: dict[tuple[SessionId, str], None] = {}
        """Elicitations with a name of the agent's that the client was asked, newest last."""

    def ask(
        self,
        permission_id: PermissionId,
        session_id: SessionId,
        method: str,
        at: int,
        elicitation_id: str | None = None,
    ) -> int | None:
        """The id to ask users under; none if it is settled, and nobody should be asked.

        `at`: how far whoever asks has read the log.
        """
        known = self._permissions.get(permission_id)
        if known is None:
            if elicitation_id is not None:
                self._elicited[session_id, elicitation_id] = None
                if len(self._elicited) > REMEMBERED_REQUESTS:
                    del self._elicited[next(iter(self._elicited))]
            known = OutgoingRequest(self._next(), session_id, method, permission_id, at=at)
            self._permissions[permission_id] = known
            self._keep(known)
        return known.id if known.state is RequestState.OPEN else None

    def asked_as(self, permission_id: PermissionId) -> int | None:
        """The id under which the client was asked this, if it was."""
        known = self._permissions.get(permission_id)
        return None if known is None else known.id

    def unsettled(self, session_id: SessionId, upto: int) -> list[PermissionId]:
        """What the client was asked of a session's log up to this event, and was not told of as settled."""
        return [
            permission_id
            for permission_id, each in self._permissions.items()
            if each.session_id == session_id and each.state is RequestState.OPEN and each.at <= upto
        ]

    def has_elicited(self, session_id: SessionId, elicitation_id: str) -> bool:
        """Whether the client was asked this by the session's agent."""
        return (session_id, elicitation_id) in self._elicited

    def settle(self, permission_id: PermissionId) -> int | None:
        """It needs no answer any more; under which id the client must hear that, if it must.

        Each reader of the client asks this for itself, so a settled one is told to all of them.
        """
        known = self._permissions.get(permission_id)
        if known is None or known.state is RequestState.ANSWERED:
            return None
        known.state = RequestState.SETTLED
        return known.id

    def send(self, session_id: SessionId, method: str) -> AwaitedRequest:
        """A request for the client itself. Its `done` is set with the answer."""
        request = AwaitedRequest(self._next(), session_id, method)
        self._keep(request)
        return request

    def is_awaited(self, request: AwaitedRequest) -> bool:
        """Whether somebody still waits for this."""
        return request.id in self._asked

    def take_back(self, request: AwaitedRequest) -> None:
        """Nobody waits for this any more."""
        self._asked.pop(request.id, None)

    def answer(self, request_id: RequestId | None) -> OutgoingRequest | None:
        """What the client answers with this id; none if it is not open."""
        found = self._asked.get(request_id) if isinstance(request_id, int) else None
        if found is None or found.state is not RequestState.OPEN:
            return None
        found.state = RequestState.ANSWERED
        return found

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _keep(self, request: OutgoingRequest) -> None:
        self._asked[request.id] = request
        if len(self._asked) > REMEMBERED_REQUESTS:
            # An open one is never forgotten: its answer is waited for.
            settled = next((each for each in self._asked.values() if each.state is not RequestState.OPEN), None)
            if settled is not None:
                del self._asked[settled.id]
                if settled.permission_id is not None:
                    self._permissions.pop(settled.permission_id, None)


# -- what the client asked -----------------------------------------------------------------------------------


class SentPrompt(NamedTuple):
    """A prompt of the client, and the request that it came with. The id keeps its JSON type."""

    prompt_id: PromptId
    session_id: SessionId
    request_id: RequestId
    after: int = 0
    """Where the log stood before it was accepted."""


class SentPrompts:
    """One client's prompts: which request the end of each of them in the log answers.

    While the client is not at a prompt's session it has no reader there, and somebody else follows the prompt to
    its end (`prompt_methods.answer_from_log`).
    """

    def __init__(self) -> None:
        self._open: dict[PromptId, SentPrompt] = {}
        self._answered: dict[PromptId, SentPrompt] = {}
        """Remembered for a while, because each reader of the client is sent the answer."""
        self._repeats: dict[SentPrompt, None] = {}
        """Requests that no reader answers: the log had their prompt before they came, or their client has left."""
        self._followed: dict[PromptId, None] = {}
        """Prompts of clients that have left: no reader answers them, also when the client is back."""

    def __contains__(self, prompt_id: object) -> bool:
        return prompt_id in self._open or prompt_id in self._answered or prompt_id in self._followed

    def add(self, sent: SentPrompt) -> None:
        """The client sent this one. Before it is in the log, so that no reader meets it unknown."""
        self._open[sent.prompt_id] = sent

    def accepted(self, prompt_id: PromptId, after: int) -> None:
        """It is in the log, behind this place. A reader may have answered it before this is known."""
        if (sent := self._open.get(prompt_id)) is not None:
            self._open[prompt_id] = sent._replace(after=after)

    def drop(self, prompt_id: PromptId) -> None:
        """It was refused: there is no such prompt."""
        self._open.pop(prompt_id, None)

    def repeat(self, sent: SentPrompt) -> None:
        """The client asks for a prompt that the log has already: whoever answers that says so with `repeated`."""
        self._repeats[sent] = None

    def repeated(self, sent: SentPrompt) -> None:
        """Such a request is answered."""
        self._repeats.pop(sent, None)

    def open_in(self, session_id: SessionId) -> list[SentPrompt]:
        """The prompts of this session that wait for an answer of its readers."""
        return [each for each in self._open.values() if each.session_id == session_id]

    def follow(self, sent: SentPrompt) -> None:
        """No reader answers this one any more: whoever does says so with `repeated`."""
        if self._open.pop(sent.prompt_id, None) is not None:
            _remember_newest(self._followed, sent.prompt_id, None)
            self._repeats[sent] = None

    def find(self, request_id: RequestId) -> SentPrompt | None:
        """The unanswered prompt with this request id."""
        sent = (*self._open.values(), *self._repeats)
        return next((each for each in sent if same_id(each.request_id, request_id)), None)

    def request_of(self, prompt_id: PromptId) -> RequestId | None:
        """By which unanswered request the client asks for this prompt: the first one, or one that came again."""
        sent = (*self._open.values(), *self._repeats)
        return next((each.request_id for each in sent if each.prompt_id == prompt_id), None)

    def answer(self, prompt_id: PromptId) -> RequestId | None:
        """The log answers this prompt: by which request id, if the client sent it."""
        sent = self._open.pop(prompt_id, None)
        if sent is not None:
            _remember_newest(self._answered, prompt_id, sent)
        sent = self._answered.get(prompt_id)
        return None if sent is None else sent.request_id

    def is_open(self, prompt_id: PromptId) -> bool:
        """Whether a reader is still to answer this one."""
        return prompt_id in self._open


def _remember_newest(known: dict[PromptId, Value], prompt_id: PromptId, value: Value) -> None:
    known[prompt_id] = value
    if len(known) > REMEMBERED_PROMPTS:
        del known[next(iter(known))]


# -- the client ----------------------------------------------------------------------------------------------


class ClientState:
    """One client, as the methods that it calls see it."""

    def __init__(
        self,
        daemon: Daemon,
        who: Identity,
        tasks: TaskGroup,
        subscription_changed: Callable[[Subscription], None] | None = None,
        agent_name: AgentName | None = None,
    ) -> None:
        self.daemon = daemon
        self.who = who
        self.agent_name = agent_name
        """The agent whose address it came to; none came to that of all."""
        self.address: str | None = None
        """Where its last message came from."""
        self.profile = ClientProfile(version=1)
        self.dialect = Dialect(version=1)
        self.is_awaited = False
        """Whether what nobody asked for waits until the client is ready for a session."""
        self._says_ready = False
        self.shows_offsets = False
        """Whether the client asked to see the offsets of events in `_meta`."""
        self.queue = FrameQueue(daemon.limits.held_frames)
        """What is tied to no session, and what sessions without a stream of their own are told on."""
        self.is_merged = False
        """One stream carries everything, so every session is told on it."""
        self.subscriptions: dict[SessionId, Subscription] = {}
        self.subscription_changed = subscription_changed
        """Hears of a subscription that was opened or closed, and of readers that came or went."""
        self.prompts = SentPrompts()
        self.incoming: dict[ExactId, anyio.CancelScope] = {}
        """Open requests of the client that can be taken back."""
        self.outgoing = OutgoingRequests()
        self._lanes: dict[SessionId, anyio.Lock] = {}
        self._tasks = tasks
        self._scopes: dict[anyio.CancelScope, None] = {}

    # -- tasks ---------------------------------------------------------------------------------------------

    def start(self, do: Callable[..., Awaitable[None]], *args: object) -> anyio.CancelScope:
        """Run something beside everything else. It ends with the connection, or when its scope is cancelled."""
        scope = anyio.CancelScope()
        self._scopes[scope] = None
        self._tasks.start_soon(self._run, scope, do, args)
        return scope

    async def _run(
        self, scope: anyio.CancelScope, do: Callable[..., Awaitable[None]], args: tuple[object, ...]
    ) -> None:
        try:
            with self.guarded(), scope:
                await do(*args)
        finally:
            self._scopes.pop(scope, None)

    @contextmanager
    def guarded(self) -> Generator[None]:
        """What is done for the client meanwhile may fail: that ends nothing else."""
        try:
            yield
        except TurnwireError as error:
            logger.info("a client's task ended early", extra={"event": "acp_task_ended", "code": error.code})
        except Exception:  # whatever it is, it must not end the other tasks of the client
            logger.exception("a client's task failed", extra={"event": "acp_task_failed"})

    def stop(self) -> None:
        """End all that is done for the client."""
        for scope in list(self._scopes):
            scope.cancel()
        for subscription in self.subscriptions.values():
            subscription.stop()

    @asynccontextmanager
    async def lane(self, session_id: SessionId) -> AsyncGenerator[None]:
        """Messages of one session are taken one after the other, in the order in which they came."""
        lock = self._lanes.setdefault(session_id, anyio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                self._lanes.pop(session_id, None)

    # -- sessions ------------------------------------------------------------------------------------------

    def check(self, session_id: SessionId) -> None:
        """Raises `SessionNotFound` if the client may not touch the session, whether there is one or not.

        Raises `ChildRestricted` for a child of a session that the client is at.
        """
        self._check_child(session_id)
        if not self.who.may_touch(session_id):
            raise _unknown(session_id)

    def subscription(self, session_id: SessionId) -> Subscription:
        """The client's own, attached or not. Raises `SessionNotFound` if the client may not touch the session."""
        self.check(session_id)
        subscription = self.subscriptions.get(session_id)
        if subscription is None:
            most, changed = self.daemon.limits.held_frames, self.subscription_changed
            subscription = self.subscriptions[session_id] = Subscription(session_id, most, changed)
        return subscription

    def attached(self, session_id: SessionId) -> Subscription:
        """The same if the client is attached to the session. Raises `SessionNotFound` otherwise."""
        self._check_child(session_id)
        subscription = self.subscriptions.get(session_id)
        if subscription is None or not subscription.is_attached:
            raise _unknown(session_id)
        return subscription

    def _check_child(self, session_id: SessionId) -> None:
        if session_of(session_id) in self.subscriptions:
            raise ChildRestricted(
                "this is a child session: it is heard with its parent, and takes nothing but `session/cancel`"
            )

    def parent(self, name: str) -> Subscription | None:
        """The session that the client is attached to and whose child has this id; none if it is no child's."""
        session_id = session_of(name)
        subscription = None if session_id is None else self.subscriptions.get(session_id)
        return subscription if subscription is not None and subscription.is_attached else None

    def open(self, subscription: Subscription, start: Start) -> None:
        """The client is attached to the session, and its readers begin."""
        # Who names the last event that it has knows the session already.
        is_held = self.is_awaited and not start.resumes
        subscription.open(start, self._expect_ready if is_held else None)

    def be_ready(self, subscription: Subscription) -> None:
        """The client has said that it is ready for the session."""
        self._says_ready = True
        subscription.open_gate()

    def _expect_ready(self, subscription: Subscription) -> None:
        if self.daemon.settings.ready_timeout < math.inf:
            self.start(self._give_up_ready, subscription, subscription.gate)

    async def _give_up_ready(self, subscription: Subscription, gate: Gate) -> None:
        """A client that never says that it is ready is waited for once."""
        await self.daemon.clock.sleep(self.daemon.settings.ready_timeout)
        if not subscription.is_attached or subscription.gate is not gate or gate.is_open:
            return
        if self.is_awaited:
            extra = {"event": "ready_missing", "session": subscription.session_id}
            logger.info("a client did not send session/ready in time; it is told everything now", extra=extra)
        self.is_awaited = self._says_ready
        subscription.open_gate()

    async def leave(self, subscription: Subscription) -> None:
        """The client is not attached to the session any more."""
        client_id = subscription.client_id
        subscription.close()
        if client_id is not None:
            # A session of another node is not told when this one stops: what is not renewed is forgotten there.
            with suppress(SessionError, ShuttingDown):
                await self.daemon.clients.detach(subscription.session_id, client_id)

    def told_on(self, subscription: Subscription) -> ToldOn:
        """Which of the client's streams tell the session."""
        return subscription.told_on(is_merged=self.is_merged, is_connection_read=self.queue.has_readers)

    async def agent_version(self, session_id: SessionId) -> int:
        """The version that the values in the view are in: the agent's, or the client's if there never was one."""
        state = (await self.daemon.node.peek(session_id)).state
        if state.agent is not None:
            return state.agent.protocol_version
        known = await profile_of(self.daemon, state.agent_name)
        return self.profile.version if known is None else known.version

    # -- rights --------------------------------------------------------------------------------------------

    def audit(self, method: str, session_id: SessionId | None, status: int = 200) -> None:
        """Record what the client did, or was refused."""
        audit(self.who, method, PATH, status, self.address, session_id)

    def need(self, role: Role) -> None:
        """Raises `Forbidden` if the client may not do what needs this role."""
        if not self.who.role.covers(role):
            raise Forbidden(f"this needs the role {role.value!r}; the token has {self.who.role.value!r}")

    def can_answer(self, method: str, params: Raw) -> bool:
        """Whether the client can put this request to its user."""
        if method != ELICITATION_CREATE:
            return True
        is_url = text_of(members(params), "mode") == "url"
        return self.profile.elicitation_url if is_url else self.profile.elicitation_form

    def has_open(self, request_id: RequestId) -> bool:
        """Whether a request of the client with this id is open already."""
        return exact(request_id) in self.incoming or self.prompts.find(request_id) is not None

    # -- answers -------------------------------------------------------------------------------------------

    def answer(self, request_id: RequestId, result: Raw, subscription: Subscription | None = None) -> None:
        """The result of a request: on the session's stream, or on the connection's."""
        self.put(encode(Result(request_id, result)), subscription)

    def fail(self, request_id: RequestId, error: TurnwireError, subscription: Subscription | None = None) -> None:
        """The refusal of a request."""
        self.put(failure_of(request_id, error), subscription)

    def put(self, frame: bytes, subscription: Subscription | None, after: int | None = None) -> None:
        """Any frame that is in no log: on the connection's stream, or on the session's, behind the event `after`.

        If that is none, behind what the session's log has now.
        """
        if subscription is None or not subscription.is_attached:
            self.queue.put(frame)
            return
        if after is None:
            known = self.daemon.node.known(subscription.session_id)
            after = 0 if known is None else known.head
        subscription.put(frame, after)

    def behind_all(self, act: Callable[[], None]) -> None:
        """Call `act` once the client was told all of its sessions, as far as their logs go now."""
        sessions = [each for each in self.subscriptions.values() if each.is_attached]
        left = {each.session_id for each in sessions}

        def told(session_id: SessionId) -> None:
            left.discard(session_id)
            if not left:
                act()

        for each in sessions:
            known = self.daemon.node.known(each.session_id)
            each.behind(0 if known is None else known.head, partial(told, each.session_id))


def _unknown(session_id: SessionId) -> SessionNotFound:
    """What a client hears of a session that is not there, not its own, or not attached."""
    return SessionNotFound(
        "there is no such session on this connection; load, resume or attach it first", session_id=session_id
    )
