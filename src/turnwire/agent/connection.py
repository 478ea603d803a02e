"""One client connection of an agent: reads messages and dispatches them to the methods.

Prompts, cancels and `session/ready` are handled in order; every other request runs in its own task, so that none
delays the client's next message. A notification is never answered, and a request exactly once.
"""

from __future__ import annotations

import logging
from typing import Any

import anyio
from anyio.abc import TaskGroup

from turnwire.agent.client_sessions import Answered, ClientSessions
from turnwire.agent.connected_client import ConnectedClient
from turnwire.agent.definition import AgentDefinition, initialize_result
from turnwire.agent.failures import CANCELLED, error_of
from turnwire.agent.live_session import LiveSessions
from turnwire.agent.methods import LOGIN, NOTIFICATIONS, REQUESTS, extension
from turnwire.errors import LinkError, RemoteProtocolError, TurnwireError
from turnwire.hosting.base import FrameLink
from turnwire.ids import RequestId
from turnwire.projections.dialect import read_cancel_request
from turnwire.projections.translate.handshake import read_client, version_refusal
from turnwire.runtime.cancellation import contained
from turnwire.session.connection_stage import REFUSALS, Admittance, MessageKind, Step
from turnwire.session.correlation import ExactId, exact
from turnwire.wire.jsonrpc import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Batch,
    ErrorObject,
    Notification,
    Request,
    decode,
    refusal_of,
)
from turnwire.wire.methods import CANCEL_REQUEST, INITIALIZE, SESSION_PROMPT, find_method

logger = logging.getLogger(__name__)


class Connection:
    """One client connection."""

    def __init__(self, definition: AgentDefinition, live: LiveSessions, link: FrameLink, tasks: TaskGroup) -> None:
        self._client = ConnectedClient(definition, link, tasks)
        self._sessions = ClientSessions(self._client, live)
        self._open: dict[ExactId, anyio.CancelScope] = {}
        """Running requests of the client, with their cancel scopes."""

    async def serve(self) -> None:
        """Handle the client's messages until its link ends; then end the sessions that only it had open."""
        client = self._client
        client.tasks.start_soon(client.outbox.run)
        try:
            while True:
                for line in await client.link.receive():
                    self._take(line)
                await client.outbox.bearable()
        except LinkError:
            pass
        finally:
            client.calls.end()
            with anyio.CancelScope(shield=True):
                await self._sessions.leave()

    async def drained(self) -> None:
        """Wait until the client has accepted all frames."""
        await self._client.outbox.room()

    # -- one message ---------------------------------------------------------------------------------------------

    def _take(self, line: bytes) -> None:
        try:
            frame = decode(line)
        except RemoteProtocolError as error:
            if (refusal := refusal_of(error)) is not None:
                self._client.refuse(refusal.id, refusal.error)
            return
        if isinstance(frame, Request):
            self._request(frame)
        elif isinstance(frame, Notification):
            self._notification(frame)
        elif isinstance(frame, Batch):
            self._refuse(None, INVALID_REQUEST, "ACP has no batches; send one message at a time")
        else:
            self._client.calls.settle(frame)

    def _refuse(self, request_id: RequestId | None, code: int, message: str) -> None:
        self._client.refuse(request_id, ErrorObject(code, message))

    def _notification(self, frame: Notification) -> None:
        if self._client.admission.judge(MessageKind.UNANSWERED) is not Admittance.TAKEN:
            return
        if frame.method == CANCEL_REQUEST:
            self._cancel_request(frame)
            return
        action = NOTIFICATIONS.get(frame.method)
        try:
            if action is not None:
                action(self._sessions, frame.params)
            elif frame.method in self._client.definition.hooks.extensions:
                self._client.tasks.start_soon(self._extension, frame)
        except TurnwireError as error:
            # A notification has no answer, so the error is only logged.
            logger.info("a notification was not taken: %s", error)

    async def _extension(self, frame: Notification) -> None:
        try:
            await extension(self._sessions, frame.method, frame.params)
        except Exception:  # the author's own; nobody waits for an answer
            logger.exception("the function for `%s` failed", frame.method)

    def _cancel_request(self, frame: Notification) -> None:
        request_id = read_cancel_request(frame.params)
        if request_id is None:
            return
        scope = self._open.get(exact(request_id))
        if scope is not None:
            scope.cancel()
        else:
            self._sessions.cancel_prompt(request_id)

    # -- requests ------------------------------------------------------------------------------------------------

    def _request(self, request: Request) -> None:
        verdict = self._client.admission.judge(self._call(request.method))
        if verdict is Admittance.NO_METHOD:
            self._refuse(
                request.id, METHOD_NOT_FOUND, f"this agent does not know the method in ACP v{self._version}"
            )
        elif verdict is not Admittance.TAKEN:
            self._client.refuse(request.id, REFUSALS[verdict])
        elif request.method == INITIALIZE:
            self._initialize(request)
        elif exact(request.id) in self._open or self._sessions.is_prompting(request.id):
            # An answer would be mistaken for that of the first request.
            logger.warning("a client used the id of an open request again; the second one is ignored")
        else:
            self._client.admission.step(Step.BEGIN)
            self._perform(request)

    def _call(self, method: str) -> MessageKind:
        if method == INITIALIZE:
            return MessageKind.INITIALIZE
        if not self._is_known(method):
            return MessageKind.UNKNOWN
        return MessageKind.LOGIN if method in LOGIN else MessageKind.REQUEST

    @property
    def _version(self) -> int:
        return self._client.profile.version

    def _is_known(self, method: str) -> bool:
        row = REQUESTS.get(method)
        if row is not None:
            return find_method(method, self._version) is not None and row.is_there(self._sessions)
        return method == SESSION_PROMPT or method in self._client.definition.hooks.extensions

    def _initialize(self, request: Request) -> None:
        client = self._client
        try:
            client.profile = read_client(request.params)
        except RemoteProtocolError as error:
            unsupported = version_refusal(error)
            if unsupported is not None:
                client.fail(request.id, unsupported)
            else:
                client.refuse(request.id, error_of(error))
            return
        is_locked = client.definition.options.auth_required
        client.admission.step(Step.AGREE_LOCKED if is_locked else Step.AGREE)
        client.respond(request.id, initialize_result(client.definition, client.profile))

    def _perform(self, request: Request) -> None:
        if request.method == SESSION_PROMPT:
            try:
                self._sessions.prompt(request)
            except TurnwireError as error:
                self._client.refuse(request.id, error_of(error))
            return
        scope = anyio.CancelScope()
        self._open[exact(request.id)] = scope
        self._client.tasks.start_soon(self._answer, request, scope)

    async def _answer(self, request: Request, scope: anyio.CancelScope) -> None:
        client = self._client
        try:
            with contained(), scope:
                result = await self._result(request)
                client.respond(request.id, result.value)
                result.then()
                return
            client.refuse(request.id, CANCELLED)
        except Exception as error:  # whatever it is, its client must hear of it
            if not isinstance(error, TurnwireError):
                logger.exception("`%s` failed", request.method)
            client.refuse(request.id, error_of(error))
        finally:
            self._open.pop(exact(request.id), None)

    async def _result(self, request: Request) -> Answered:
        row = REQUESTS.get(request.method)
        if row is None:
            answer: Any = await extension(self._sessions, request.method, request.params)
            return Answered({} if answer is None else answer)
        return await row.act(self._sessions, request.params)
