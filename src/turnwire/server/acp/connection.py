"""One ACP client on any transport, with turnwire as its agent.

Frames for the client come per session or in one order. Messages of one session are processed in the order in which
they came. A turn never ends because the client left.
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
from turnwire.errors import RemoteProtocolError, SessionError, TurnwireError
from turnwire.ids import AgentName, SessionId
from turnwire.log import Position
from turnwire.projections.encoder.encoder import Dialect
from turnwire.projections.translate.handshake import (
    ClientProfile,
    HostOffer,
    TurnCompletePolicy,
    gets_turn_complete,
    initialize_result,
    is_awaited,
    read_client,
    version_refusal,
)
from turnwire.server.access.tokens import Identity
from turnwire.server.acp import methods, prompt_methods
from turnwire.server.acp.client_state import ClientState, logger
from turnwire.server.acp.frame_writer import FramePage
from turnwire.server.acp.passthrough import Lending
from turnwire.server.acp.reader import Carrier, pages
from turnwire.server.acp.rpc import failure_of, refusal
from turnwire.server.acp.subscription import QueueReader, Subscription, ToldOn, Wake, Woken
from turnwire.server.daemon import Daemon
from turnwire.server.daemon.creation import profile_of
from turnwire.session.connection_stage import REFUSALS, Admission, Admittance, MessageKind, Step
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
"""The codec's reason for rejecting an empty batch."""
NO_BATCHES = "batches are not taken; send one message at a time"


# -- initialize ----------------------------------------------------------------------------------------------


class Agreed(NamedTuple):
    """The result of negotiating `initialize`, valid for the whole connection."""

    client: ClientProfile
    dialect: Dialect
    is_awaited: bool
    """True if frames wait until the client sends `session/ready`."""
    shows_offsets: bool
    result: Raw
    agent: str | None = None
    """The agent's name for itself."""


class _OurCapabilities(Struct, frozen=True, rename="camel"):
    event_ids: bool | dict[str, Raw] = False


class _Vendors(Struct, frozen=True):
    ours: _OurCapabilities = field(default=_OurCapabilities(), name=VENDOR)


class _Capabilities(Struct):
    meta: _Vendors = field(default=_Vendors(), name="_meta")


async def agree(daemon: Daemon, params: Raw, agent_name: AgentName | None) -> Agreed:
    """Negotiate with a client of that agent, or of the default one.

    Raises `RemoteProtocolError` for a client that supports none of our versions.
    """
    settings = daemon.settings
    client = read_client(params, newest=settings.protocol)
    dialect = Dialect(
        version=client.version,
        turn_complete=gets_turn_complete(TurnCompletePolicy(settings.turn_complete), client),
        lifecycle=client.lifecycle,
        boolean_options=client.boolean_options,
        children=client.knows_children,
        terminals=client.terminals,
    )
    waits = is_awaited(settings.ready_timeout, client)
    host = HostOffer(
        version=__version__,
        turn_complete=dialect.turn_complete,
        ready=waits,
        passed=frozenset({"additionalDirectories", "fork", "systemPrompt"}),
        lists=True,
    )
    profile = await profile_of(daemon, agent_name)
    result = initialize_result(profile, client, host)
    named = None if profile is None else profile.name
    return Agreed(client, dialect, waits, _wants_offsets(client.raw), result, named)


def _wants_offsets(capabilities: Raw) -> bool:
    """Return whether the client requested event offsets, to resume by them on transports without cursors."""
    try:
        return json.decode(capabilities, type=_Capabilities).meta.ours.event_ids is not False
    except DecodeError:
        return False


# -- the connection ------------------------------------------------------------------------------------------


class AcpConnection:
    """One ACP client."""

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
        """An unguessable id, which is not a credential."""
        self.who = who
        self.is_closed = False
        self._client = ClientState(daemon, who, tasks, self._tend, agent_name)
        self._admission = Admission()

    @property
    def is_initialized(self) -> bool:
        """True once `initialize` has succeeded."""
        return self._admission.is_initialized

    def can_answer(self, method: str, params: Raw) -> bool:
        """Return whether the client can show this request of an agent to its user."""
        return self._client.can_answer(method, params)

    # -- from the client -----------------------------------------------------------------------------------

    def comes_from(self, address: str | None) -> None:
        """Set the source address of the messages that are received next, for the audit."""
        self._client.address = address

    async def receive(self, frame: bytes) -> None:
        """Process one message. Returns once it is accepted; its response is sent with the frames. Raises nothing.

        A message is ignored if the client's credential has just ended.
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
        """Process the client's `initialize` and return the response, which is then not among the frames."""
        message = self._decode(frame)
        if isinstance(message, bytes):
            return message
        if isinstance(message, Request) and message.method == INITIALIZE:
            return await self._initialize(message)
        named = message.id if isinstance(message, Request) else None
        return refusal(named, INVALID_REQUEST, "a connection begins with `initialize`")

    def _decode(self, frame: bytes) -> Frame | bytes | None:
        """Return the message, an error frame for a malformed one, or None if the sender expects no error."""
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
        # A web page cannot read the headers of an upgrade response, so the result repeats the id.
        members = json.decode(agreed.result, type=dict[str, Raw])
        meta = json.decode(members.get("_meta", b"{}"), type=dict[str, Raw])
        ours = {"connectionId": self.connection_id} | ({} if agreed.agent is None else {"agentName": agreed.agent})
        named = {"_meta": meta | {VENDOR: ours}}
        return encode(Result(request.id, raw(members | named)))

    def _is_in_order(self, message: Frame) -> bool:
        """Return whether a message other than `initialize` is allowed at this stage.

        Unknown methods and missing logins are left to the methods: the daemon's clients log in at its agent.
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
        # Messages of one session wait for each other, but not for those of other sessions.
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
        """Add a reader of the connection's own frames, in order, until it parts. Any number of readers may join.

        The reader also receives a loaded session that has no stream of its own yet.
        """
        reader = self._client.queue.open(wake)
        self._client.queue.enter(reader)
        self._tend_all()
        return reader

    def take(self, reader: QueueReader) -> list[bytes] | None:
        """Return all frames available for the reader, possibly none; None if no more will follow."""
        if reader.is_late:
            return None
        frames = reader.rest()
        # Frames queued before the end are still sent.
        return None if self.is_closed and not frames else frames

    def part(self, reader: QueueReader) -> None:
        """Remove the reader."""
        self._client.queue.leave(reader)
        self._tend_all()

    def join_all(self, wake: Woken) -> QueueReader:
        """Add a reader for a transport with one stream, which carries everything in one order."""
        self._client.is_merged = True
        return self.join(wake)

    async def connection_frames(self) -> AsyncGenerator[list[bytes]]:
        """Yield batches of frames that belong to no session, until the connection ends."""
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
        """Yield one reader's stream of one session, from a cursor or from the position of the client's last reader.

        Yields batches, which count as delivered when the next one is requested. Waits for the session if the client
        has not entered it yet. Raises `PositionLost`, and `SessionNotFound` if the client may not read it.
        """
        async with aclosing(pages(self._client, self._client.subscription(session_id), after)) as told:
            async for each in told:
                yield each

    def take_up(self, *, attaches: bool) -> None:
        """Resume the connection on a new socket: each session where it stopped, or where the client will say.

        `attaches`: the client will open each session again after its last event, and receives no events before
        that.
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
        """Update all sessions without their own streams, since a reader of the connection came or went."""
        for subscription in list(self._client.subscriptions.values()):
            subscription.wake()
            self._tend(subscription)

    def _tend(self, subscription: Subscription) -> None:
        """Start or stop the subscription's reader on the connection's own stream, and its lending."""
        client = self._client
        if subscription.carrier is None and client.told_on(subscription) is ToldOn.CONNECTION:
            subscription.carrier = Carrier(client, subscription, self._tend)
        # The agent can send requests and notifications to the client while the client has a reader. A reader for
        # the connection's stream may be waiting for room that no reader of the connection frees any more.
        is_read = subscription.streams > 0 or (subscription.readers > 0 and client.queue.has_readers)
        is_lent = subscription.is_attached and is_read
        if is_lent and subscription.lending is None:
            subscription.lending = Lending(client, subscription)
        elif subscription.lending is not None and not is_lent:
            subscription.lending.cancel()
            subscription.lending = None

    # -- the end -------------------------------------------------------------------------------------------

    def sessions(self) -> Collection[SessionId]:
        """Return the sessions that the client is attached to."""
        return [each.session_id for each in self._client.subscriptions.values() if each.is_attached]

    def may_read(self, session_id: SessionId) -> bool:
        """Return whether the client may open a stream of the session, which need not exist."""
        return self.who.may_touch(session_id)

    async def aclose(self, *, ends_work: bool = False) -> None:
        """Close the connection: detach the client from its sessions and end its frames. Prompts continue.

        `ends_work`: the client closed the connection itself, so its prompts that have not started are withdrawn.
        """
        if self.is_closed:
            return
        self.is_closed = True
        client = self._client
        # Shielded, because a client that stayed attached after a cancelled close would count as present.
        with anyio.CancelScope(shield=True):
            for subscription in list(client.subscriptions.values()):
                if ends_work and subscription.is_attached:
                    # A session that was deleted meanwhile has no prompts to withdraw and must not block the others.
                    with suppress(SessionError):
                        await prompt_methods.drop_waiting(client, subscription)
                await client.leave(subscription)
                subscription.end()
        client.stop()
        client.queue.wake()
