"""Messages between a client and the session's agent other than prompts and updates, in both directions.

Client to agent: logging in and out, cancelling one tool call or terminal, and extension methods (`_…`), which are
passed on unchanged in both directions. Agent to client: requests for its files and terminals, for as long as the
client has a reader, and notifications. None of them is in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from anyio import CancelScope
from msgspec import UNSET, Raw, Struct

from turnwire.errors import Forbidden, RemoteProtocolError, RequestRefused
from turnwire.hosting.client_requests import ServedMethods
from turnwire.ids import SessionId
from turnwire.projections.encoder.children import knows_children
from turnwire.projections.translate.handshake import (
    can_log_out,
    has_auth_status,
    has_login,
    has_providers,
    is_terminal,
)
from turnwire.projections.translate.views import can_cancel
from turnwire.server.access.tokens import Role
from turnwire.server.acp.client_state import ELICITATION_ID, AwaitedRequest, ClientState, Row
from turnwire.server.acp.rpc import EMPTY, read_params
from turnwire.server.acp.subscription import Subscription, SubscriptionState
from turnwire.session.json_members import members, named
from turnwire.wire import methods as acp
from turnwire.wire.jsonrpc import METHOD_NOT_FOUND, Failure, Notification, Request, encode, invalid_params, raw
from turnwire.wire.peek import peek_session_id

_PROMPTING = frozenset({"_session/inject", "_session/prompt"})
"""Extension requests by which released agents accept words for the conversation, besides steering."""
_TERMINAL = (
    acp.TERMINAL_CREATE,
    acp.TERMINAL_OUTPUT,
    acp.TERMINAL_WAIT_FOR_EXIT,
    acp.TERMINAL_KILL,
    acp.TERMINAL_RELEASE,
)


# -- client to agent: logging in -----------------------------------------------------------------------------


class _Login(Struct, rename="camel"):
    method_id: str


async def login(client: ClientState, request: Request) -> Raw:
    """`authenticate`, or `auth/login`."""
    wanted = read_params(request.params, _Login)
    _check_alone(client)
    agents = client.daemon.node.agents
    agent = await agents.profile(client.agent_name)
    if not has_login(agent):
        raise _not_offered("this agent has no way to log in")
    if is_terminal(agent.auth_methods, wanted.method_id):
        raise invalid_params(
            "this way to log in is a program that the client runs itself; run it, then connect anew"
        )
    await agents.authenticate(wanted.method_id, name=client.agent_name, session_id=client.who.session_id)
    return EMPTY


async def logout(client: ClientState, request: Request) -> Raw:
    """`logout`, or `auth/logout`."""
    agents = client.daemon.node.agents
    if not can_log_out(await agents.profile(client.agent_name)):
        raise _not_offered("this agent has no way to log out")
    await agents.logout(client.agent_name)
    return EMPTY


async def ask_agent(client: ClientState, request: Request) -> Raw | None:
    """`auth/status` and `providers/…`, which are about the agent and no session; passed on if it offers them."""
    _check_alone(client)
    agents = client.daemon.node.agents
    agent = await agents.profile(client.agent_name)
    is_offered = has_auth_status(agent) if request.method == acp.AUTH_STATUS else has_providers(agent)
    if not is_offered:
        raise _not_offered(f"this agent does not offer {request.method}")
    return await _ask_agent(client, request, None, members(request.params))


def _check_alone(client: ClientState) -> None:
    """Raise `Forbidden` if the client is limited to one session and its agent is shared with others.

    Such a client may use only the session's own methods: a login counts for the whole agent, and the effect of an
    extension method is unknown here.
    """
    if not _is_alone(client):
        raise Forbidden(
            "your token is for one session, and other sessions share its agent; ask the owner to do this"
        )


def _is_alone(client: ClientState) -> bool:
    return client.who.session_id is None or not client.daemon.node.agents.has_shared


def _not_offered(message: str) -> RemoteProtocolError:
    return RemoteProtocolError(message, jsonrpc=METHOD_NOT_FOUND, reason="not_offered")


# -- client to agent: one tool call, one terminal ------------------------------------------------------------


class _Item(Struct, rename="camel"):
    session_id: SessionId
    tool_call_id: str | None = None
    terminal_id: str | None = None


async def cancel_item(client: ClientState, request: Request) -> Raw | None:
    """`tool_call/cancel` and `terminal/cancel` of v2, if the agent offers it for this item now.

    The agent's next update of the item reports the outcome. The turn continues.
    """
    wanted = read_params(request.params, _Item)
    client.attached(wanted.session_id)
    is_tool = request.method == acp.TOOL_CALL_CANCEL
    item_id = wanted.tool_call_id if is_tool else wanted.terminal_id
    node = client.daemon.node
    agent = (await node.peek(wanted.session_id)).state.agent
    is_v2 = agent is not None and agent.protocol_version == 2
    if (
        item_id is None
        or not is_v2
        or not await node.look(wanted.session_id, lambda view: can_cancel(view, item_id, is_tool=is_tool))
    ):
        raise invalid_params("the agent does not offer to cancel this now; `session/cancel` ends the whole turn")
    params = {("toolCallId" if is_tool else "terminalId"): raw(item_id)}
    return await _ask_agent(client, request, wanted.session_id, params)


# -- client to agent: extension methods ----------------------------------------------------------------------


async def request_extension(client: ClientState, request: Request) -> Raw | None:
    """Pass an extension request to the agent unchanged, and its response back.

    Its words would be in no log, so a request that prompts the agent is refused.
    """
    if request.method in _PROMPTING:
        raise _not_offered("send `session/prompt` or `_session/steering` instead, which every client can see")
    session_id, params = _for_agent(client, request.params)
    return await _ask_agent(client, request, session_id, params)


async def notify_extension(client: ClientState, said: Notification) -> None:
    """Pass an extension notification to the agent."""
    session_id, params = _for_agent(client, said.params)
    await client.daemon.node.agents.notify(session_id, said.method, params, name=client.agent_name)


async def _ask_agent(
    client: ClientState, request: Request, session_id: SessionId | None, params: dict[str, Raw]
) -> Raw | None:
    """Return the agent's result; None if the agent refused, in which case the client is sent the agent's error."""
    answer = await client.daemon.node.agents.call(session_id, request.method, params, name=client.agent_name)
    if not isinstance(answer, Failure):
        return answer.result
    subscription = None if session_id is None else client.subscriptions.get(session_id)
    client.put(encode(Failure(request.id, answer.error)), subscription)
    return None


def _for_agent(client: ClientState, params: Raw) -> tuple[SessionId | None, dict[str, Raw]]:
    """Return the session that the params name, and the other params."""
    _check_alone(client)
    rest = read_params(params, dict[str, Raw])
    session_id = peek_session_id(params)
    if session_id is None:
        if client.who.session_id is not None:
            raise Forbidden("your token is for one session; name it in `sessionId`")
        return None, rest
    del rest["sessionId"]
    return client.attached(SessionId(session_id)).session_id, rest


# -- agent to client -----------------------------------------------------------------------------------------


class Lending:
    """A client's offer to its session's agent: to receive its other notifications and serve its requests.

    Follows each agent that starts to serve the session. There is a task only while the agent is looked up.
    Implements `Lent`.
    """

    __slots__ = (
        "_client",
        "_is_anew",
        "_is_over",
        "_listener",
        "_retract",
        "_start",
        "_subscription",
        "_task",
        "_unlisten",
    )

    def __init__(self, client: ClientState, subscription: Subscription) -> None:
        self._client = client
        self._subscription = subscription
        self._start = subscription.start
        self._listener = _AgentListener(client, subscription)
        self._retract: Callable[[], None] | None = None
        self._unlisten: Callable[[], None] | None = None
        self._is_over = False
        self._is_anew = True
        """True if the session may have another agent than the one that is listened to."""
        self._task: CancelScope | None = client.start(self._run)

    def set(self) -> None:
        self._is_anew = True
        if self._task is None and not self._is_over:
            self._task = self._client.start(self._run)

    def cancel(self) -> None:
        """Withdraw the offer; the client is gone."""
        self._is_over = True
        if self._task is not None:
            self._task.cancel()
        self._undo()

    async def _run(self) -> None:
        try:
            if self._retract is None and self._client.who.role is not Role.OBSERVER:
                await self._offer()
            while self._is_anew and not self._is_over:
                self._is_anew = False
                self._end_listening()
                agents = self._client.daemon.node.agents
                self._unlisten = await agents.listen(self._subscription.session_id, self._listener)
        finally:
            self._task = None
            # Undo here too, because the task may have run to its end without a point of cancellation.
            if self._is_over:
                self._undo()

    async def _offer(self) -> None:
        client, subscription, start = self._client, self._subscription, self._start
        if start is None:
            return
        # A client limited to one session must not serve others that share the agent.
        owner = client.who.name if _is_alone(client) else None
        provider = ClientProvider(client, subscription)
        self._retract = await client.daemon.node.agents.offer(
            subscription.session_id, start.client_id, provider, client=client, owner=owner
        )

    def _undo(self) -> None:
        self._end_listening()
        if self._retract is not None:
            self._retract()
            self._retract = None

    def _end_listening(self) -> None:
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None


class ClientProvider:
    """A client that serves its files and terminals. Implements `runtime.client_requests.Provider`."""

    def __init__(self, client: ClientState, subscription: Subscription) -> None:
        self._client = client
        self._subscription = subscription
        profile = client.profile
        offered = {
            acp.FS_READ_TEXT_FILE: profile.fs_read,
            acp.FS_WRITE_TEXT_FILE: profile.fs_write,
            **dict.fromkeys(_TERMINAL, profile.terminal),
        }
        self._methods = ServedMethods(name for name, is_offered in offered.items() if is_offered)

    @property
    def methods(self) -> frozenset[str]:
        return self._methods

    def serve(self, method: str, params: Raw, after: int) -> Coroutine[Any, Any, Raw]:
        """Send the request to the client, after this event, and wait for the response. Raises `RequestRefused`."""
        client, subscription = self._client, self._subscription
        request = client.outgoing.send(subscription.session_id, method)
        if peek_session_id(params) is None:
            # The request names no session, so it goes to the connection's stream, after all earlier events of every
            # session.
            client.behind_all(partial(self._put, request, params))
            return self._answer(request, None)
        frame = encode(Request(request.id, method, _with_our_id(client, subscription.session_id, params)))
        client.put(frame, subscription, after)
        request.is_put = True
        return self._answer(request, subscription)

    def _put(self, request: AwaitedRequest, params: Raw) -> None:
        if self._client.outgoing.is_awaited(request):
            self._client.put(encode(Request(request.id, request.method, params)), None)
            request.is_put = True

    async def _answer(self, request: AwaitedRequest, told_on: Subscription | None) -> Raw:
        client = self._client
        try:
            await request.done.wait()
        finally:
            client.outgoing.take_back(request)
            is_here = self._subscription.state is not SubscriptionState.OVER
            if request.outcome is None and request.is_put and is_here:
                client.put(encode(Notification(acp.CANCEL_REQUEST, raw({"requestId": request.id}))), told_on)
        assert request.outcome is not None, "whoever answers leaves an answer"
        if isinstance(request.outcome, Failure):
            error = request.outcome.error
            data = None if error.data is UNSET else error.data
            raise RequestRefused(error.message, jsonrpc=error.code, reason="client", data=data)
        return request.outcome.result


class _AgentListener:
    """One client's listener for an agent's other messages. Implements `agent_connection.Listener`."""

    def __init__(self, client: ClientState, subscription: Subscription) -> None:
        self._client = client
        self._subscription = subscription

    @property
    def client(self) -> object:
        return self._client

    def heard(self, said: Notification, after: int) -> None:
        session_id = self._subscription.session_id
        frame = encode(Notification(said.method, _with_our_id(self._client, session_id, said.params)))
        self._client.put(frame, self._subscription, after)

    def behind(self, after: int, act: Callable[[], None]) -> None:
        self._subscription.behind(after, act)

    def heard_by_all(self, said: Notification) -> None:
        if _is_alone(self._client):
            self._client.put(encode(said), None)

    def completed(self, said: Notification) -> None:
        elicitation_id = named(said.params, ELICITATION_ID)
        session_id = self._subscription.session_id
        if elicitation_id is not None and self._client.outgoing.has_elicited(session_id, elicitation_id):
            self._client.put(encode(said), None)


def _with_our_id(client: ClientState, session_id: SessionId, params: Raw) -> Raw:
    """Return the params with our id of the session, or of the named child if the client knows children."""
    session = client.daemon.node.known(session_id)
    child = None if session is None else session.state.children.get(peek_session_id(params) or "")
    ours = session_id if child is None or not knows_children(client.dialect) else child.child_id
    return raw({**members(params), "sessionId": ours})


# -- the table -----------------------------------------------------------------------------------------------

ROWS: dict[str, Row] = {
    acp.AUTHENTICATE: Row(login, Role.CONTROLLER),
    acp.AUTH_LOGIN: Row(login, Role.CONTROLLER),
    acp.AUTH_STATUS: Row(ask_agent, Role.CONTROLLER, tells_who=False),
    **dict.fromkeys((acp.PROVIDERS_LIST, acp.PROVIDERS_SET, acp.PROVIDERS_DISABLE), Row(ask_agent, Role.OWNER)),
    acp.LOGOUT: Row(logout, Role.OWNER),
    acp.AUTH_LOGOUT: Row(logout, Role.OWNER),
    acp.TOOL_CALL_CANCEL: Row(cancel_item, Role.CONTROLLER, on_session=True),
    acp.TERMINAL_CANCEL: Row(cancel_item, Role.CONTROLLER, on_session=True),
}
