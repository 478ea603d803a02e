"""The clients of a session: heartbeats, detaching, and client methods that the agent calls.

A client's methods are available to the agent as long as the client's stream is open. The agent's calls arrive on
that stream, and the client answers each with a request. When a client detaches, its open calls go to another
client.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import anyio
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from starlette.types import Send

from turnwire import new_ids
from turnwire.errors import BadRequest, NotFound, RequestRefused, SessionClosed, UnknownClient
from turnwire.ids import ClientId, SessionId
from turnwire.projections.dialect import PERMISSION_METHODS
from turnwire.server.access.tokens import Role
from turnwire.server.bodies import BodyKind
from turnwire.server.daemon.clients import Offer
from turnwire.server.endpoint import Call, Endpoint, Reply
from turnwire.server.readers.event_stream import RETRY, PumpedStream, run_stream
from turnwire.session.state import Phase


class Heartbeat(Struct, frozen=True):
    """Heartbeat. No member is required."""


class HeartbeatSeen(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    session_id: SessionId
    client_id: ClientId | None = None
    last_seen_at: int


class OfferQuery(Struct, frozen=True, rename="camel"):
    methods: Annotated[str, Meta(min_length=1)]
    """The methods that this client offers the agent, separated by commas: `fs/read_text_file,terminal/create`."""
    client_id: str | None = None
    """Client id, for pages, which cannot send headers with a stream."""


class OfferError(Struct, frozen=True):
    """JSON-RPC error that explains why the client cannot run the method."""

    code: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
    message: str


class OfferAnswer(Struct, frozen=True):
    """A `result` or an `error`."""

    result: Raw | UnsetType = UNSET
    error: OfferError | None = None


async def heartbeat(call: Call) -> Reply:
    clients = call.daemon.clients
    client_id = await clients.known(call.session_id, call.client_id, call.who)
    now = call.daemon.clock.now_ms()
    if client_id is not None and call.who.role is not Role.OBSERVER:
        # Only clients that can answer permission requests count as present.
        now = clients.beat(call.session_id, client_id)
    return Reply(HeartbeatSeen(session_id=call.session_id, client_id=client_id, last_seen_at=now))


async def detach(call: Call) -> Reply:
    clients = call.daemon.clients
    # A client that has already detached has nothing to do.
    with suppress(UnknownClient):
        client_id = await clients.known(call.session_id, call.client_id, call.who)
        if client_id is not None:
            await clients.detach(call.session_id, client_id)
    return Reply()


async def serve_agent(call: Call, send: Send) -> None:
    daemon, session_id = call.daemon, call.session_id
    query: OfferQuery = call.query
    named = call.client_id or (None if query.client_id is None else ClientId(query.client_id))
    if await daemon.clients.known(session_id, named, call.who) is None:
        raise UnknownClient("only an attached client can do this; resume the session to get a client id")
    session = await daemon.node.peek(session_id)
    if session.state.phase is Phase.CLOSED:
        raise SessionClosed("the session is closed; its agent asks for nothing any more", session_id=session_id)
    methods = frozenset(each.strip() for each in query.methods.split(",") if each.strip())
    if not methods or methods & PERMISSION_METHODS:
        raise BadRequest(
            "name what the client does for the agent; permission requests to users are answered elsewhere"
        )
    offer = daemon.clients.offers.offer(session_id, methods, daemon.limits.client_inputs)

    async def pump(stream: PumpedStream) -> None:
        # The name identifies this stream only: the end of a client's old stream must not end the offer of its next
        # one.
        own = new_ids.client_id()
        with daemon.clients.streaming(session_id, call.who, named):
            async with daemon.node.agents.offering(session_id, own, offer), anyio.create_task_group() as tasks:
                await stream.send(RETRY)
                tasks.start_soon(_write_all, offer, stream)
                while await session.tail.wait(session.tail.head):
                    pass  # the session goes on
                tasks.cancel_scope.cancel()

    await run_stream(call, send, {}, pump)


async def _write_all(offer: Offer, stream: PumpedStream) -> None:
    while True:
        await stream.send(await offer.frames())


async def answer_agent(call: Call) -> Reply:
    told: OfferAnswer = call.body
    if told.error is not None and told.result is UNSET:
        answer = RequestRefused(told.error.message, jsonrpc=told.error.code, reason="client")
    elif told.error is None and told.result is not UNSET:
        answer = told.result
    else:
        raise BadRequest("give either a `result` or an `error`")
    call.daemon.clients.offers.answer(call.session_id, call.request.path_params["request_id"], answer)
    return Reply()


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="POST",
        path="/session/{session_id}/heartbeat",
        act=heartbeat,
        summary="A sign of life of a client",
        role=Role.OBSERVER,
        takes=Heartbeat,
        gives=HeartbeatSeen,
        refuses=(UnknownClient,),
        tag="clients",
    ),
    Endpoint(
        method="POST",
        path="/session/{session_id}/detach",
        act=detach,
        summary="A client leaves; what it began goes on",
        role=Role.OBSERVER,
        status=204,
        tag="clients",
    ),
    Endpoint(
        method="GET",
        path="/session/{session_id}/services",
        stream=serve_agent,
        summary="Do what the agent asks of its client, while this stream is open",
        role=Role.CONTROLLER,
        query=OfferQuery,
        media_type="text/event-stream",
        refuses=(BadRequest, SessionClosed, UnknownClient),
        tag="clients",
    ),
    Endpoint(
        method="POST",
        path="/session/{session_id}/services/{request_id}",
        act=answer_agent,
        summary="Answer what the agent asked",
        role=Role.CONTROLLER,
        takes=OfferAnswer,
        body=BodyKind.CONTENT,
        status=204,
        refuses=(BadRequest, NotFound),
        tag="clients",
    ),
)
"""The routes of clients."""
