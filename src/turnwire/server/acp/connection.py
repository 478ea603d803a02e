"""One ACP client, whatever carries its frames: turnwire as its agent.

What it is sent comes per session or in one order. Messages of one session are taken in the order in which they
came. Never ends a turn because the client left.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing, suppress
from typing import NamedTuple

import anyio
from anyio.abc import TaskGroup
from msgspec import DecodeError, Raw, Struct, field, json

from turnwire import __version__
from turnwire.core.connection_stage import REFUSALS, Admission, Admittance, MessageKind, Step
from turnwire.core.encoder.encoder import Dialect
from turnwire.core.translate.handshake import (
    ClientProfile,
    HostOffer,
    TurnCompletePolicy,
    gets_turn_complete,
    initialize_result,
    is_awaited,
    read_client,
    version_refusal,
)
from turnwire.errors import RemoteProtocolError, SessionError, TurnwireError
from turnwire.ids import AgentName, SessionId
from turnwire.log import Position
from turnwire.server.access.identity import Identity
from turnwire.server.acp import methods, prompt_methods
from turnwire.server.acp.client_state import ClientState, logger
from turnwire.server.acp.frame_queue import QueueReader, Wake, Woken
from turnwire.server.acp.frame_writer import FramePage
from turnwire.server.acp.passthrough import Lending
from turnwire.server.acp.reader import Carrier, pages
from turnwire.server.acp.rpc import failure_of, refusal
from turnwire.server.acp.subscription import Subscription, ToldOn
from turnwire.server.daemon import Daemon
from turnwire.server.daemon.creation import profile_of
from turnwire.wire.jsonrpc import (
    INVALID_REQUEST,
    Batch,
    Failure,
    Frame,
    Notification,
    Request,
    Result,
    decode,
    encode,
    encode_failure,
    raw,
    refusal_of,
)
from turnwire.wire.methods import INITIALIZE, VENDOR
from turnwire.wire.peek import peek_session_id

__all__ = ["AcpConnection", "FramePage"]

EMPTY_BATCH = "empty_batch"
"""Why the codec refuses a batch with nothing in it."""
NO_BATCHES = "batches are not taken; send one message at a time"


# -- initialize ----------------------------------------------------------------------------------------------


class Agreed(NamedTuple):
    """What holds for a connection from its `initialize` on."""

    client: ClientProfile
    dialect: Dialect
    is_awaited: bool
    """It is waited for until it sends `session/ready`."""
    shows_offsets: bool
    result: Raw
    agent: str | None = None
    """How the agent calls itself."""


class _OurCapabilities(Struct, frozen=True, rename="camel"):
    event_ids: bool | dict[str, Raw] = False


class _Vendors(Struct, frozen=True):
    ours: _OurCapabilities = field(default=_OurCapabilities(), name=VENDOR)


class _Capabilities(Struct):
    meta: _Vendors = field(default=_Vendors(), name="_meta")


async def agree(daemon: Daemon, params: Raw, agent_name: AgentName | None) -> Agreed:
    """The agreement with a client of that agent, or of the default one.

    Raises `RemoteProtocolError` for a client that speaks no version of ours.
    """
    settings = daemon.settings
    client = read_client(params, newest=settings.protocol)
    dialect = Dialect(
        version=client.version,
        turn_complete=gets_turn_complete(TurnCompletePolicy(settings.turn_complete), client),
        lifecycle=client.lifecycle,
        boolean_options=client.boolean_options,
        children=client.knows_children,
    )
    waits = is_awaited(settings.ready_timeout, client)
    host = HostOffer(
        version=__version__,
        turn_complete=dialect.turn_complete,
        ready=waits,
        passed=frozenset({"additionalDirectories", "fork"}),
    )
    profile = await profile_of(daemon, agent_name)
    result = initialize_result(profile, client, host)
    named = None if profile is None else profile.name
    return Agreed(client, dialect, waits, _wants_offsets(client.raw), result, named)


def _wants_offsets(capabilities: Raw) -> bool:
    """Whether the client asked to see the offsets of events, to resume by them where no transport has them."""
    try:
        return json.decode(capabilities, type=_Capabilities).meta.ours.event_ids is not False
    except DecodeError:
        return False


# -- the connection ------------------------------------------------------------------------------------------


class AcpConnection:
    """One client."""

    def __init__(
        self,
        daemon: Daemon,
        who: Identity,
        tasks: TaskGroup,
        *,
        agent_name: AgentName | None = None,
        connection_id: str | None = None,
    ) -> None:
        self.connection_id = connection_id or secrets.token_urlsafe(24)
        """Unguessable, and no credential."""
        self.who = who
        self.is_closed = False
        self._client = ClientState(daemon, who, tasks, self._tend, agent_name)
        self._admission = Admission()

    @property
    def is_initialized(self) -> bool:
        """The client and we have agreed on how to speak."""
        return self._admission.is_initialized

    def can_answer(self, method: str, params: Raw) -> bool:
        """Whether the client can put this request of an agent to its user."""
        return self._client.can_answer(method, params)

    # -- from the client -----------------------------------------------------------------------------------

    def comes_from(self, address: str | None) -> None:
        """From where the messages come that are received next, for the audit."""
        self._client.address = address

    async def receive(self, frame: bytes) -> None:
        """Take one message. Returns once it is taken; its answer goes out with the frames. Raises nothing.

        What comes in the moment in which the client's credential ends is not taken.
        """
        if not self._client.daemon.tokens.is_valid(self.who):
            return
        message = self._decode(frame)
        if isinstance(message, bytes):
            self._client.put(message, None)
        elif isinstance(message, Request) and message.method == INITIALIZE:
            self._client.put(await self._initialize(message), None)
        elif message is not None and self._is_in_order(message):
            await self._take(message)
        if self._client.queue.is_lost and not self.is_closed:
            logger.warning("a client reads nothing; its connection ends", extra={"event": "acp_not_read"})
            await self.aclose()

    async def initialize(self, frame: bytes) -> bytes:
        """Take the client's `initialize` and give its answer, which is not among the frames then."""
        message = self._decode(frame)
        if isinstance(message, bytes):
            return message
        if isinstance(message, Request) and message.method == INITIALIZE:
            return await self._initialize(message)
        named = message.id if isinstance(message, Request) else None
        return refusal(named, INVALID_REQUEST, "a connection begins with `initialize`")

    def _decode(self, frame: bytes) -> Frame | bytes | None:
        """The message; a refusal if it is none; none if nobody waits for a refusal."""
        try:
            message = decode(frame)
        except RemoteProtocolError as error:
            if error.context.get("reason") == EMPTY_BATCH:
                return refusal(None, INVALID_REQUEST, NO_BATCHES)
            answer = refusal_of(error)
            return None if answer is None else encode(answer)
        if isinstance(message, Batch):
            return refusal(None, INVALID_REQUEST, NO_BATCHES)
        return message

    async def _initialize(self, request: Request) -> bytes:
        verdict = self._admission.judge(MessageKind.INITIALIZE)
        if verdict is not Admittance.TAKEN:
            return encode(Failure(request.id, REFUSALS[verdict]))
        try:
            agreed = await agree(self._client.daemon, request.params, self._client.agent_name)
        except TurnwireError as error:
            unsupported = version_refusal(error, newest=self._client.daemon.settings.protocol)
            return failure_of(request.id, error) if unsupported is None else encode_failure(request.id, unsupported)
        client = self._client
        client.profile, client.dialect = agreed.client, agreed.dialect
        client.is_awaited, client.shows_offsets = agreed.is_awaited, agreed.shows_offsets
        self._admission.step(Step.AGREE)
        # A page cannot read the header of an upgrade, so the answer says it too.
        members = json.decode(agreed.result, type=dict[str, Raw])
        meta = json.decode(members.get("_meta", b"{}"), type=dict[str, Raw])
        ours = {"connectionId": self.connection_id} | ({} if agreed.agent is None else {"agentName": agreed.agent})
        named = {"_meta": meta | {VENDOR: ours}}
        return encode(Result(request.id, raw(members | named)))

    def _is_in_order(self, message: Frame) -> bool:
        """Whether a message other than `initialize` comes in a stage that has a place for it.

        What is unknown, and who has to log in, the methods say: the daemon's clients log in at its agent.
        """
        if self.is_closed:
            return False
        verdict = self._admission.judge(
            MessageKind.REQUEST if isinstance(message, Request) else MessageKind.UNANSWERED
        )
        if verdict is Admittance.TAKEN:
            self._admission.step(Step.BEGIN)
        elif isinstance(message, Request):
            self._client.put(encode(Failure(message.id, REFUSALS[verdict])), None)
        return verdict is Admittance.TAKEN

    async def _take(self, message: Frame) -> None:
        client = self._client
        if isinstance(message, Result | Failure):
            await self._answer(message)
            return
        named = peek_session_id(message.params)
        if named is None:
            await self._act(message)
            return
        # One session's messages wait for each other, and for those of no other session.
        async with client.lane(SessionId(named)):
            await self._act(message)

    async def _act(self, message: Request | Notification) -> None:
        if isinstance(message, Request):
            await methods.call(self._client, message)
        else:
            await methods.hear(self._client, message)

    async def _answer(self, message: Result | Failure) -> None:
        try:
            await prompt_methods.answer(self._client, message)
        except TurnwireError as error:
            extra = {"event": "acp_answer_refused", "code": error.code}
            logger.info("an answer of a client was not taken", extra=extra)

    # -- to the client -------------------------------------------------------------------------------------

    def join(self, wake: Woken) -> QueueReader:
        """One more takes what is tied to no session, in order, until it parts. Any number of readers.

        A session that was loaded and has no stream of its own yet is told here as well.
        """
        reader = self._client.queue.open(wake)
        self._client.queue.enter(reader)
        self._tend_all()
        return reader

    def take(self, reader: QueueReader) -> list[bytes] | None:
        """All frames that there are for it now, which may be none; None if there will be no more."""
        if reader.is_late:
            return None
        frames = reader.rest()
        # What was put before the end is told.
        return None if self.is_closed and not frames else frames

    def part(self, reader: QueueReader) -> None:
        """It reads no more."""
        self._client.queue.leave(reader)
        self._tend_all()

    def join_all(self, wake: Woken) -> QueueReader:
        """The same for a transport with one stream: everything is told there, in one order."""
        self._client.is_merged = True
        return self.join(wake)

    async def connection_frames(self) -> AsyncGenerator[list[bytes]]:
        """What is tied to no session, some at a time, until the connection ends."""
        wake = Wake()
        reader = self.join(wake)
        try:
            while (frames := self.take(reader)) is not None:
                if frames:
                    yield frames
                else:
                    await wake.wait()
        finally:
            self.part(reader)

    async def session_frames(self, session_id: SessionId, after: Position | None) -> AsyncGenerator[FramePage]:
        """One reader's stream of one session, from a cursor or from where the client's last reader stood.

        Gives some frames at a time, which count as given when the next are asked for. Waits for the session if the
        client has not entered it yet. Raises `PositionLost`, and `SessionNotFound` if the client may not read it.
        """
        async with aclosing(pages(self._client, self._client.subscription(session_id), after)) as told:
            async for each in told:
                yield each

    async def all_frames(self) -> AsyncGenerator[list[bytes]]:
        """Everything in one order, some at a time: for transports with one stream."""
        self._client.is_merged = True
        async with aclosing(self.connection_frames()) as frames:
            async for each in frames:
                yield each

    def take_up(self, *, attaches: bool) -> None:
        """A new socket goes on with the connection: each session where it stood, or as the client is to say.

        `attaches`: it will open each session anew behind the last event that it has, and hears none before.
        """
        if attaches:
            self._client.queue.forget_logged()
        for subscription in self._client.subscriptions.values():
            if attaches:
                subscription.pause()
            else:
                subscription.resume()

    # -- sessions on the connection's own stream -----------------------------------------------------------

    def _tend_all(self) -> None:
        """A reader of the connection came or went: sessions without streams of their own follow it."""
        for subscription in list(self._client.subscriptions.values()):
            subscription.wake()
            self._tend(subscription)

    def _tend(self, subscription: Subscription) -> None:
        """Start or stop what the subscription asks for: a reader on the connection's own stream, and lending."""
        client = self._client
        if subscription.carrier is None and client.told_on(subscription) is ToldOn.CONNECTION:
            subscription.carrier = Carrier(client, subscription, self._tend)
        # The agent can ask of the client, and be heard by it, while somebody reads for the client. A reader for the
        # connection's stream may wait for room in it that nobody makes any more.
        is_read = subscription.streams > 0 or (subscription.readers > 0 and client.queue.has_readers)
        is_lent = subscription.is_attached and is_read
        if is_lent and subscription.lending is None:
            subscription.lending = Lending(client, subscription)
        elif subscription.lending is not None and not is_lent:
            subscription.lending.cancel()
            subscription.lending = None

    # -- the end -------------------------------------------------------------------------------------------

    def sessions(self) -> Collection[SessionId]:
        """The sessions that the client has entered here."""
        return [each.session_id for each in self._client.subscriptions.values() if each.is_attached]

    def may_read(self, session_id: SessionId) -> bool:
        """Whether the client may open a stream of the session. Says nothing of whether there is one."""
        return self.who.may_touch(session_id)

    async def aclose(self, *, ends_work: bool = False) -> None:
        """The client is gone: it leaves its sessions, and its frames end. Prompts go on.

        `ends_work`: it said so itself, so what it alone waits for is taken back: its prompts that have not started.
        """
        if self.is_closed:
            return
        self.is_closed = True
        client = self._client
        # Also if whoever closes it is cancelled: a client that stayed in its sessions would count as there.
        with anyio.CancelScope(shield=True):
            for subscription in list(client.subscriptions.values()):
                if ends_work and subscription.is_attached:
                    # One that was deleted meanwhile has nothing to take back, and must not keep the others.
                    with suppress(SessionError):
                        await prompt_methods.drop_waiting(client, subscription)
                await client.leave(subscription)
                subscription.end()
        client.stop()
        client.queue.wake()
