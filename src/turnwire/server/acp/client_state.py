"""State of one client of `/acp`: identity, negotiated profile, sessions, open requests and outgoing queue.

The methods of ACP act on this. Requests go both ways, and each way has its ids: those of the client's own requests,
which the log may answer long after they came (`SentPrompts`), and ours for requests to the client
(`OutgoingRequests`). Responses go to the stream where the client expects them. This module decides nothing about a
session.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import NamedTuple, TypeVar

import anyio
from anyio.abc import TaskGroup
from msgspec import Raw

from turnwire.errors import ChildRestricted, Forbidden, SessionError, SessionNotFound, ShuttingDown, TurnwireError
from turnwire.ids import AgentName, PermissionId, PromptId, RequestId, SessionId
from turnwire.projections.encoder.encoder import Dialect
from turnwire.projections.translate.handshake import ClientProfile
from turnwire.server.access.tokens import Identity, Role, audit
from turnwire.server.acp.rpc import failure_of
from turnwire.server.acp.subscription import FrameQueue, Gate, Start, Subscription, ToldOn
from turnwire.server.acp_paths import PATH
from turnwire.server.daemon import Daemon
from turnwire.server.daemon.creation import profile_of
from turnwire.session.child_names import session_of
from turnwire.session.correlation import ExactId, exact, same_id
from turnwire.session.json_members import members, text_of
from turnwire.wire.jsonrpc import Failure, Request, Result, encode
from turnwire.wire.methods import ELICITATION_CREATE

ELICITATION_ID = "elicitationId"
"""The agent's name for an elicitation that its user answers on a page; used to notify of its end."""
HELD_FRAMES = 1024
"""Maximum responses held for a client without a stream. A client that never reads is disconnected."""
REMEMBERED_PROMPTS = 1024
"""Answered prompts remembered for a second reader, which seldom lags by more than one."""
REMEMBERED_REQUESTS = 256
"""Settled requests remembered, so that their late responses are recognised as such."""

Value = TypeVar("Value")

logger = logging.getLogger(__name__)


# -- methods for clients -------------------------------------------------------------------------------------


class Row(NamedTuple):
    """The handling of a request. Each module of methods has a table of them at its end."""

    act: Callable[[ClientState, Request], Awaitable[Raw | None]]
    """Returns the result, or None if the response is sent another way."""
    role: Role
    is_slow: bool = True
    """True for a method that may wait for another party; it runs in parallel with the messages after it."""
    on_session: bool = False
    """True if the response goes to the session's stream."""
    tells_who: bool = True
    """True if the method may change something, and is therefore audited."""


class NotificationRow(NamedTuple):
    """The handling of a notification."""

    act: Callable[[ClientState, Raw], Awaitable[None]]
    role: Role


# -- requests to the client ----------------------------------------------------------------------------------


class RequestState(Enum):
    """The state of a request to the client."""

    OPEN = auto()
    ANSWERED = auto()
    """This client answered."""
    SETTLED = auto()
    """Another client answered, or the request was withdrawn."""


@dataclass
class OutgoingRequest:
    """A request to the client."""

    id: int
    session_id: SessionId
    method: str
    permission_id: PermissionId | None = None
    """The permission request that it puts to users; None for a request to the client itself."""
    state: RequestState = RequestState.OPEN
    at: int = 0
    """The log had the permission request at this offset or before."""


@dataclass
class AwaitedRequest(OutgoingRequest):
    """A request to the client itself whose response is awaited here."""

    done: anyio.Event = field(default_factory=anyio.Event)
    outcome: Result | Failure | None = None
    is_put: bool = False
    """True once the request is queued for the client."""


class OutgoingRequests:
    """All requests to one client, under our ids. A permission request has one id for all readers."""

    def __init__(self) -> None:
        self._count = 0
        self._asked: dict[RequestId, OutgoingRequest] = {}
        self._permissions: dict[PermissionId, OutgoingRequest] = {}
        self._elicited: dict[tuple[SessionId, str], None] = {}
        """Elicitations sent to the client that have a name from the agent, newest last."""

    def ask(
        self,
        permission_id: PermissionId,
        session_id: SessionId,
        method: str,
        at: int,
        elicitation_id: str | None = None,
    ) -> int | None:
        """Return the id to send a permission request under; None if it is settled and must not be sent.

        `at`: the offset that the reader has reached in the log.
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
        """Return the id under which the client was sent this, if it was."""
        known = self._permissions.get(permission_id)
        return None if known is None else known.id

    def unsettled(self, session_id: SessionId, upto: int) -> list[PermissionId]:
        """Return the session's permission requests up to this event that are open at the client."""
        return [
            permission_id
            for permission_id, each in self._permissions.items()
            if each.session_id == session_id and each.state is RequestState.OPEN and each.at <= upto
        ]

    def has_elicited(self, session_id: SessionId, elicitation_id: str) -> bool:
        """Return whether the client was sent this elicitation of the session's agent."""
        return (session_id, elicitation_id) in self._elicited

    def settle(self, permission_id: PermissionId) -> int | None:
        """Mark the request as settled; return the id to withdraw it under, None if that is not needed.

        Each reader of the client calls this, so that every reader sends the withdrawal.
        """
        known = self._permissions.get(permission_id)
        if known is None or known.state is RequestState.ANSWERED:
            return None
        known.state = RequestState.SETTLED
        return known.id

    def send(self, session_id: SessionId, method: str) -> AwaitedRequest:
        """Register a request for the client itself. Its `done` is set with the response."""
        request = AwaitedRequest(self._next(), session_id, method)
        self._keep(request)
        return request

    def is_awaited(self, request: AwaitedRequest) -> bool:
        """Return whether the response is still awaited."""
        return request.id in self._asked

    def take_back(self, request: AwaitedRequest) -> None:
        """Forget the request; its response is no longer awaited."""
        self._asked.pop(request.id, None)

    def answer(self, request_id: RequestId | None) -> OutgoingRequest | None:
        """Mark the request with this id as answered and return it; None if it is not open."""
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
            # Open requests are never forgotten: their responses are awaited.
            settled = next((each for each in self._asked.values() if each.state is not RequestState.OPEN), None)
            if settled is not None:
                del self._asked[settled.id]
                if settled.permission_id is not None:
                    self._permissions.pop(settled.permission_id, None)


# -- prompts of the client -----------------------------------------------------------------------------------


class SentPrompt(NamedTuple):
    """A prompt of the client, and the request that contained it. The id retains its JSON type."""

    prompt_id: PromptId
    session_id: SessionId
    request_id: RequestId
    after: int = 0
    """The log's offset before the prompt was accepted."""


class SentPrompts:
    """One client's prompts, with the request that each prompt's end in the log answers.

    While the client is detached from a prompt's session it has no reader there, and a task follows the prompt to
    its end (`prompt_methods.answer_from_log`).
    """

    def __init__(self) -> None:
        self._open: dict[PromptId, SentPrompt] = {}
        self._answered: dict[PromptId, SentPrompt] = {}
        """Answered prompts, remembered for a while because each reader of the client is sent the response."""
        self._repeats: dict[SentPrompt, None] = {}
        """Requests that no reader answers: the log had their prompt before they came, or their client has left."""
        self._followed: dict[PromptId, None] = {}
        """Prompts of clients that have left: no reader answers them, even after the client is back."""

    def __contains__(self, prompt_id: object) -> bool:
        return prompt_id in self._open or prompt_id in self._answered or prompt_id in self._followed

    def add(self, sent: SentPrompt) -> None:
        """Add a prompt before it is in the log, so that every reader knows it."""
        self._open[sent.prompt_id] = sent

    def accepted(self, prompt_id: PromptId, after: int) -> None:
        """Record that the prompt is in the log, after this offset. A reader may already have answered it."""
        if (sent := self._open.get(prompt_id)) is not None:
            self._open[prompt_id] = sent._replace(after=after)

    def drop(self, prompt_id: PromptId) -> None:
        """Remove a prompt that was rejected."""
        self._open.pop(prompt_id, None)

    def repeat(self, sent: SentPrompt) -> None:
        """Add a request for a prompt that is already in the log; the task that answers it calls `repeated`."""
        self._repeats[sent] = None

    def repeated(self, sent: SentPrompt) -> None:
        """Record that such a request is answered."""
        self._repeats.pop(sent, None)

    def open_in(self, session_id: SessionId) -> list[SentPrompt]:
        """Return the prompts of this session that a reader is to answer."""
        return [each for each in self._open.values() if each.session_id == session_id]

    def follow(self, sent: SentPrompt) -> None:
        """Exclude a prompt from readers; the task that answers it calls `repeated`."""
        if self._open.pop(sent.prompt_id, None) is not None:
            _remember_newest(self._followed, sent.prompt_id, None)
            self._repeats[sent] = None

    def find(self, request_id: RequestId) -> SentPrompt | None:
        """Return the unanswered prompt with this request id."""
        sent = (*self._open.values(), *self._repeats)
        return next((each for each in sent if same_id(each.request_id, request_id)), None)

    def request_of(self, prompt_id: PromptId) -> RequestId | None:
        """Return the id of the client's unanswered request for this prompt, the first or a repeated one."""
        sent = (*self._open.values(), *self._repeats)
        return next((each.request_id for each in sent if each.prompt_id == prompt_id), None)

    def answer(self, prompt_id: PromptId) -> RequestId | None:
        """Mark the prompt as answered by the log; return its request id if the client sent it."""
        sent = self._open.pop(prompt_id, None)
        if sent is not None:
            _remember_newest(self._answered, prompt_id, sent)
        sent = self._answered.get(prompt_id)
        return None if sent is None else sent.request_id

    def is_open(self, prompt_id: PromptId) -> bool:
        """Return whether a reader is still to answer this prompt."""
        return prompt_id in self._open


def _remember_newest(known: dict[PromptId, Value], prompt_id: PromptId, value: Value) -> None:
    known[prompt_id] = value
    if len(known) > REMEMBERED_PROMPTS:
        del known[next(iter(known))]


# -- the client ----------------------------------------------------------------------------------------------


class ClientState:
    """The state of one client, for the methods that it calls."""

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
        """The agent of the address that the client connected to; None for the address of all agents."""
        self.address: str | None = None
        """The source address of the client's last message."""
        self.profile = ClientProfile(version=1)
        self.dialect = Dialect(version=1)
        self.is_awaited = False
        """True if unsolicited frames wait until the client is ready for a session."""
        self._says_ready = False
        self.shows_offsets = False
        """True if the client requested the offsets of events in `_meta`."""
        self.queue = FrameQueue(HELD_FRAMES)
        """Frames that belong to no session, and those of sessions without their own stream."""
        self.is_merged = False
        """True if one stream carries everything, including every session."""
        self.subscriptions: dict[SessionId, Subscription] = {}
        self.subscription_changed = subscription_changed
        """Called when a subscription is opened or closed, and when readers come or go."""
        self.prompts = SentPrompts()
        self.incoming: dict[ExactId, anyio.CancelScope] = {}
        """Open requests of the client that can be cancelled."""
        self.outgoing = OutgoingRequests()
        self._lanes: dict[SessionId, anyio.Lock] = {}
        self._tasks = tasks
        self._scopes: dict[anyio.CancelScope, None] = {}

    # -- tasks ---------------------------------------------------------------------------------------------

    def start(self, do: Callable[..., Awaitable[None]], *args: object) -> anyio.CancelScope:
        """Run a task in parallel. It ends with the connection, or when its scope is cancelled."""
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
        """Log errors of work done for the client, so that they end nothing else."""
        try:
            yield
        except TurnwireError as error:
            logger.info("a client's task ended early", extra={"event": "acp_task_ended", "code": error.code})
        except Exception:  # no error may end the client's other tasks
            logger.exception("a client's task failed", extra={"event": "acp_task_failed"})

    def stop(self) -> None:
        """Cancel all work done for the client."""
        for scope in list(self._scopes):
            scope.cancel()
        for subscription in self.subscriptions.values():
            subscription.stop()

    @asynccontextmanager
    async def lane(self, session_id: SessionId) -> AsyncGenerator[None]:
        """Serialize the messages of one session in the order in which they arrived."""
        lock = self._lanes.setdefault(session_id, anyio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                self._lanes.pop(session_id, None)

    # -- sessions ------------------------------------------------------------------------------------------

    def check(self, session_id: SessionId) -> None:
        """Raise `SessionNotFound` if the client may not access the session, whether it exists or not.

        Raises `ChildRestricted` for a child of a session that the client is attached to.
        """
        self._check_child(session_id)
        if not self.who.may_touch(session_id):
            raise _unknown(session_id)

    def subscription(self, session_id: SessionId) -> Subscription:
        """Return the client's subscription, attached or not. Raises `SessionNotFound` without access."""
        self.check(session_id)
        subscription = self.subscriptions.get(session_id)
        if subscription is None:
            most, changed = HELD_FRAMES, self.subscription_changed
            subscription = self.subscriptions[session_id] = Subscription(session_id, most, changed)
        return subscription

    def attached(self, session_id: SessionId) -> Subscription:
        """Return the subscription if the client is attached to the session. Raises `SessionNotFound` otherwise."""
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
        """Return the subscription to the parent of this child; None without an attached parent."""
        session_id = session_of(name)
        subscription = None if session_id is None else self.subscriptions.get(session_id)
        return subscription if subscription is not None and subscription.is_attached else None

    def open(self, subscription: Subscription, start: Start) -> None:
        """Attach the client to the session and start its readers."""
        # A client that names its last event knows the session already.
        is_held = self.is_awaited and not start.resumes
        subscription.open(start, self._expect_ready if is_held else None)

    def be_ready(self, subscription: Subscription) -> None:
        """Record that the client is ready for the session."""
        self._says_ready = True
        subscription.open_gate()

    def _expect_ready(self, subscription: Subscription) -> None:
        if self.daemon.settings.ready_timeout < math.inf:
            self.start(self._give_up_ready, subscription, subscription.gate)

    async def _give_up_ready(self, subscription: Subscription, gate: Gate) -> None:
        """Open the gate after the timeout. A client that never reports ready is waited for only once."""
        await self.daemon.clock.sleep(self.daemon.settings.ready_timeout)
        if not subscription.is_attached or subscription.gate is not gate or gate.is_open:
            return
        if self.is_awaited:
            extra = {"event": "ready_missing", "session": subscription.session_id}
            logger.info("a client did not send session/ready in time; it is told everything now", extra=extra)
        self.is_awaited = self._says_ready
        subscription.open_gate()

    async def leave(self, subscription: Subscription) -> None:
        """Detach the client from the session."""
        client_id = subscription.client_id
        subscription.close()
        if client_id is not None:
            # A session of another node is not notified when this node stops: registrations that are not renewed
            # expire there.
            with suppress(SessionError, ShuttingDown):
                await self.daemon.clients.detach(subscription.session_id, client_id)

    def told_on(self, subscription: Subscription) -> ToldOn:
        """Return the client's streams that carry the session."""
        return subscription.told_on(is_merged=self.is_merged, is_connection_read=self.queue.has_readers)

    async def agent_version(self, session_id: SessionId) -> int:
        """Return the ACP version of the view's values: the agent's, or the client's if there was no agent."""
        state = (await self.daemon.node.peek(session_id)).state
        if state.agent is not None:
            return state.agent.protocol_version
        known = await profile_of(self.daemon, state.agent_name)
        return self.profile.version if known is None else known.version

    # -- rights --------------------------------------------------------------------------------------------

    def audit(self, method: str, session_id: SessionId | None, status: int = 200) -> None:
        """Record a request of the client, or its rejection."""
        audit(self.who, method, PATH, status, self.address, session_id)

    def need(self, role: Role) -> None:
        """Raise `Forbidden` if the client's role does not cover this one."""
        if not self.who.role.covers(role):
            raise Forbidden(f"this needs the role {role.value!r}; the token has {self.who.role.value!r}")

    def can_answer(self, method: str, params: Raw) -> bool:
        """Return whether the client can show this request to its user."""
        if method != ELICITATION_CREATE:
            return True
        is_url = text_of(members(params), "mode") == "url"
        return self.profile.elicitation_url if is_url else self.profile.elicitation_form

    def has_open(self, request_id: RequestId) -> bool:
        """Return whether a request of the client with this id is open already."""
        return exact(request_id) in self.incoming or self.prompts.find(request_id) is not None

    # -- responses -----------------------------------------------------------------------------------------

    def answer(self, request_id: RequestId, result: Raw, subscription: Subscription | None = None) -> None:
        """Send the result of a request, on the session's stream or on the connection's."""
        self.put(encode(Result(request_id, result)), subscription)

    def fail(self, request_id: RequestId, error: TurnwireError, subscription: Subscription | None = None) -> None:
        """Send an error response to a request."""
        self.put(failure_of(request_id, error), subscription)

    def put(self, frame: bytes, subscription: Subscription | None, after: int | None = None) -> None:
        """Queue a frame that is not in the log, on the connection's stream or the session's.

        If `after` is None, the frame follows the events that the session's log has now.
        """
        if subscription is None or not subscription.is_attached:
            self.queue.put(frame)
            return
        if after is None:
            known = self.daemon.node.known(subscription.session_id)
            after = 0 if known is None else known.head
        subscription.put(frame, after)

    def behind_all(self, act: Callable[[], None]) -> None:
        """Call `act` once the client was sent all events that its sessions' logs have now."""
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
    """Return the error for a session that does not exist, is not the client's, or is not attached."""
    return SessionNotFound(
        "there is no such session on this connection; load, resume or attach it first", session_id=session_id
    )
