"""One turn from start to end, as the runtime sees it.

Updates in its name are sent, and marked late after its end. It tracks its open tool calls and permission requests.
`turnwire.agent.turns` ends it; `turnwire.agent.turn` is the author's view of it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from enum import Enum
from itertools import count
from typing import Any, Final

import anyio
from msgspec import UNSET, UnsetType

from turnwire import new_ids
from turnwire.agent.connected_client import Sent
from turnwire.agent.live_session import LiveSession, OpenPermissionRequest
from turnwire.agent.session_client import SessionClient
from turnwire.agent.v2_updates import MESSAGE, THOUGHT, Json, call_ended, called, marked_late, shown
from turnwire.errors import AgentFailure, LocalProtocolError, NotOffered, RequestRefused
from turnwire.ids import PromptId, RequestId
from turnwire.projections.encoder import EndedTurn
from turnwire.session.json_members import as_object
from turnwire.wire.jsonrpc import METHOD_NOT_FOUND, ErrorObject, Failure, Result
from turnwire.wire.methods import ELICITATION_CREATE, SESSION_REQUEST_PERMISSION
from turnwire.wire.schema.common import STOP_REASONS
from turnwire.wire.schema.update import FINAL_TOOL_STATUS

_STOP_WORDS: Final = ", ".join(sorted(STOP_REASONS))
_SPEECH = frozenset({MESSAGE, THOUGHT})
_WAITED_FOR: Final = {SESSION_REQUEST_PERMISSION: "permission", ELICITATION_CREATE: "elicitation"}
"""Names of what users answer."""


class TurnStage(Enum):
    """Stages of a turn."""

    WAITING = "waiting"
    """Queued."""
    STARTING = "starting"
    """Dequeued. Earlier settings are applied, and the turn is announced in the store."""
    RUNNING = "running"
    """Its prompt is in the conversation, and the author's function works on it."""
    TAKEN_BACK = "taken_back"
    """Cancelled before its prompt was in the conversation."""
    STOPPING = "stopping"
    """Cancelled after that: its work is being stopped, and still ends it."""
    OVER = "over"


class TurnStep(Enum):
    """Events that move a turn to its next stage."""

    START = "start"
    BEGIN = "begin"
    CANCEL = "cancel"
    END = "end"


TABLE: Final[dict[tuple[TurnStage, TurnStep], TurnStage]] = {
    (TurnStage.WAITING, TurnStep.START): TurnStage.STARTING,
    (TurnStage.WAITING, TurnStep.CANCEL): TurnStage.TAKEN_BACK,
    (TurnStage.STARTING, TurnStep.BEGIN): TurnStage.RUNNING,
    (TurnStage.STARTING, TurnStep.CANCEL): TurnStage.TAKEN_BACK,
    (TurnStage.RUNNING, TurnStep.CANCEL): TurnStage.STOPPING,
    (TurnStage.RUNNING, TurnStep.END): TurnStage.OVER,
    # A turn that the agent started has no prompt to take back: its author is notified in the turn itself.
    (TurnStage.TAKEN_BACK, TurnStep.BEGIN): TurnStage.STOPPING,
    (TurnStage.TAKEN_BACK, TurnStep.CANCEL): TurnStage.TAKEN_BACK,
    (TurnStage.TAKEN_BACK, TurnStep.END): TurnStage.OVER,
    (TurnStage.STOPPING, TurnStep.CANCEL): TurnStage.STOPPING,
    (TurnStage.STOPPING, TurnStep.END): TurnStage.OVER,
    (TurnStage.OVER, TurnStep.CANCEL): TurnStage.OVER,
}
"""The next stage for each stage and step. Other pairs cannot happen: nothing starts twice or ends twice."""


class TurnRun:
    """A turn."""

    def __init__(
        self,
        live: LiveSession,
        content: list[Json],
        client: SessionClient | None = None,
        request_id: RequestId | None = None,
        meta: Json | None = None,
    ) -> None:
        self.live = live
        self.content = content
        self.client = client
        """The client that prompted it; None if the agent started it."""
        self.request_id = request_id
        self.meta = meta or {}
        self.prompt_id = new_ids.prompt_id()
        self.message_id = f"{self.prompt_id}.u"
        self.stage = TurnStage.WAITING
        self.cancelled = anyio.Event()
        self.admitted = anyio.Event()
        """Wakes the opener of an agent's own turn when it starts or is dropped."""
        self.stop_reason: str | None = None
        self.error: BaseException | None = None
        self.open_calls: dict[str, Callable[[str], object]] = {}
        """Tool calls without a final status, each with the function that gives it one."""
        self.unused_calls: dict[str, str] = {}
        """Titles of tool calls that were created and not announced."""
        self._told_open: dict[str, None] = {}
        """Other calls without a final status, which their author reports by updates, as an adapted agent does."""
        self.usage: dict[str, int] = {}
        self._scopes: set[anyio.CancelScope] = set()
        self._permission_requests: list[OpenPermissionRequest] = []
        self._numbers = count(1)
        self._message: tuple[str, PromptId, str] | None = None
        """The message being continued: kind, stretch in which it began, id."""

    def step(self, step: TurnStep) -> None:
        """Move on."""
        after = TABLE.get((self.stage, step))
        assert after is not None, f"a turn that is {self.stage.value} cannot {step.value}"
        self.stage = after

    @property
    def is_begun(self) -> bool:
        """True while its prompt, if any, is in the conversation and the turn is not over."""
        return self.stage in {TurnStage.RUNNING, TurnStage.STOPPING}

    @property
    def is_over(self) -> bool:
        return self.stage is TurnStage.OVER

    # -- saying --------------------------------------------------------------------------------------------------

    def publish(self, update: Json, *, must: bool = False) -> Sent:
        """Send an update in this turn's name; after its end without a turn and marked late.

        Raises `LimitExceeded` if the client does not read, unless it `must` be sent.
        """
        if update["sessionUpdate"] not in _SPEECH:
            # Another update ends the message.
            self._message = None
        told = marked_late(update) if self.is_over else update
        call_id = None if self.is_over else called(update)
        is_new = call_id not in self.live.calls
        sent = self.live.publish(told, by=self.client, is_late=self.is_over, must=must)
        if call_id is not None:
            self._follow(call_id, update.get("status"), is_new=is_new)
        return sent

    def _follow(self, call_id: str, status: Any, *, is_new: bool) -> None:
        """Track a tool call that an update reports. A new call without a status is pending."""
        if status in FINAL_TOOL_STATUS:
            self._told_open.pop(call_id, None)
        elif call_id not in self.open_calls and (is_new or status is not None):
            self._told_open[call_id] = None

    def speak(self, kind: str, block: Json) -> Sent:
        """Send a chunk of a message. Consecutive chunks of one kind are one message, within one stretch."""
        if self._message is None or self._message[:2] != (kind, self.live.stretch):
            self._message = (kind, self.live.stretch, self.new_id("m"))
        return self.publish({"sessionUpdate": kind, "messageId": self._message[2], "content": block})

    def new_id(self, letter: str) -> str:
        """Return an id that is unique in the session."""
        return f"{self.prompt_id}.{letter}{next(self._numbers)}"

    # -- being stopped -------------------------------------------------------------------------------------------

    @property
    def is_cancelled(self) -> bool:
        return self.cancelled.is_set()

    def cancel(self) -> None:
        """Stop its work. It still ends, with `cancelled`."""
        self.step(TurnStep.CANCEL)
        self.cancelled.set()
        for scope in tuple(self._scopes):
            scope.cancel()

    @contextmanager
    def stoppable(self) -> Generator[None]:
        """Work that `cancel` stops."""
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                if self.is_cancelled:
                    scope.cancel()
                yield
            finally:
                self._scopes.discard(scope)

    # -- asking --------------------------------------------------------------------------------------------------

    @property
    def asked_client(self) -> SessionClient | None:
        """The client that is asked: the one that prompted, else the first one there is."""
        return self.client if self.client is not None else next(iter(self.live.clients), None)

    def client_to_ask(self) -> SessionClient:
        """Return the client to ask. Raises `NotOffered` if none is connected."""
        client = self.asked_client
        if client is None:
            raise NotOffered("no client has this session open, so there is nobody to ask", what="client")
        return client

    async def request(self, method: str, params: Json | None = None) -> Json:
        """Ask the client anything. `sessionId` is added. Raises `NotOffered` and `RequestRefused`."""
        client = self.client_to_ask()
        answer = await client.request(method, {"sessionId": client.session_id, **(params or {})})
        return read_result(answer, method)

    async def ask(self, client: SessionClient, method: str, params: Json) -> Result | Failure:
        """Ask the user: the turn waits, and reports what it waits for.

        Raises `LocalProtocolError` if the turn is over, `LinkBroken`.
        """
        if self.is_over:
            raise LocalProtocolError("this turn is over; start one with `agent.turn(session)` to ask")
        begun = client.connected.calls.begin()
        request = OpenPermissionRequest(client.connected, begun.id, _WAITED_FOR[method])
        self._wait_for([*self._permission_requests, request])
        try:
            return await client.request(method, params, begun)
        finally:
            left = [each for each in self._permission_requests if each is not request]
            if self.is_over or self.is_cancelled:
                self._permission_requests = left
            else:
                self._wait_for(left)

    def _wait_for(self, requests: list[OpenPermissionRequest]) -> None:
        self._permission_requests = requests
        self.live.set_foreground("requires_action" if requests else "running", requests)

    # -- its end -------------------------------------------------------------------------------------------------

    def returned(self, reason: Any) -> None:
        """The author's function is done."""
        if reason is None or (isinstance(reason, str) and reason in STOP_REASONS):
            self.stop_reason = reason or "end_turn"
        else:
            # Authors used to other SDKs return the answer text.
            advice = "; text is told with `turn.say`" if isinstance(reason, str) else ""
            self.error = AgentFailure(
                f"the agent's function returned {shown(reason)}; it may return None or one of {_STOP_WORDS}{advice}"
            )

    def close_calls(self) -> None:
        """Close open tool calls: no turn ends with one open.

        Calls that the author reports by updates may continue after the turn, unless it was cancelled or failed.
        """
        status = "cancelled" if self.is_cancelled else "failed"
        for close in tuple(self.open_calls.values()):
            close(status)
        if self.is_cancelled or self.stop_reason is None:
            for call_id in tuple(self._told_open):
                self.publish(call_ended(call_id, status), must=True)

    def end(self, error: ErrorObject | None) -> EndedTurn:
        """Return the end of the turn. `error` is what the client sees of a failure."""
        self.step(TurnStep.END)
        self._message = None
        if self.is_cancelled:
            reason, error = "cancelled", None
        else:
            reason = None if error is not None else self.stop_reason
        return EndedTurn(
            prompt_id=self.prompt_id,
            request_id=self.request_id,
            by_agent=self.request_id is None,
            stop_reason=reason,
            error=error,
            usage=self._usage(),
        )

    def _usage(self) -> Json | UnsetType:
        if not self.usage:
            return UNSET
        total = self.usage.get("inputTokens", 0) + self.usage.get("outputTokens", 0)
        return {"totalTokens": total, "inputTokens": 0, "outputTokens": 0, **self.usage}


def read_result(answer: Result | Failure, method: str) -> Json:
    """Read a client's answer. Raises `NotOffered` and `RequestRefused`."""
    if isinstance(answer, Result):
        return as_object(answer.result)
    if answer.error.code == METHOD_NOT_FOUND:
        raise NotOffered(f"the client does not know `{method}`", what=method)
    raise RequestRefused(f"the client refused `{method}`", jsonrpc=answer.error.code, reason="client_refused")
