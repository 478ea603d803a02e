"""The plain client of a daemon: one call per route, and a `prompt` that returns the turn's result.

`prompt` returns when the turn has ended, even if connections fail meanwhile: it reads the event stream from the
position of the acceptance, reopens it as often as needed, and polls the turn's state if no stream gets through. It
calls no functions for updates: use `turnwire.connect` for those.

The daemon's answers are structs, camelCase on the wire and snake_case here. Unknown members are ignored, and
members that an older daemon does not send have a default.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from urllib.parse import urlencode

import msgspec
from msgspec import Struct, field

from turnwire.client.arguments import Content, to_raw, to_request_id
from turnwire.errors import DaemonUnreachable, RemoteProtocolError, TurnError, TurnwireError
from turnwire.hosting.backoff import Backoff
from turnwire.ids import ClientId, PromptId, RequestId, SessionId
from turnwire.limits import Limits

if TYPE_CHECKING:
    from turnwire.client.http import HttpAnswer
    from turnwire.client.stream import Frame
    from turnwire.clock import Clock


IDEMPOTENT: Final = "idempotency_key"
"""Feature of a daemon that treats a prompt with a known key as a repetition."""
NON_BLOCKING: Final = "non_blocking_prompt"
"""Feature of a daemon that answers a prompt at once."""
STREAM_FAILURES: Final = 3
"""Consecutive streams without data after which the turn's state is polled instead."""
_POLL_FIRST_S, _POLL_MOST_S = 0.25, 5.0
_PAGE: Final = 100
_ENDS: Final = frozenset({"turn_complete", "turn_error"})

_Shape = TypeVar("_Shape")

logger = logging.getLogger(__name__)


class Envelope(Struct, rename="camel"):
    """One event of a session, or one frame made for this stream only."""

    type: str
    data: dict[str, Any] = {}
    id: int | None = None
    """Its offset in the session's log; `None` for a frame made for this stream only."""
    v: int = 1
    prompt_id: PromptId | None = None
    late: bool = False
    author: str | None = None
    originator_client_id: ClientId | None = None
    meta: dict[str, Any] = field(name="_meta", default_factory=dict[str, Any])


class PromptResult(Struct, frozen=True, kw_only=True):
    """The end of a prompt's turn."""

    stop_reason: str
    prompt_id: PromptId | None = None
    """`None` from an old daemon, which assigns no prompt ids."""
    usage: dict[str, Any] | None = None
    ending: str | None = None
    """The fact that ended the turn, if the daemon reports it."""
    event_id: int | None = None
    """The event of its end in the log; `None` if the end was not read from the stream."""


class OpenedSession(Struct, rename="camel"):
    """A session that was created, loaded or resumed."""

    session_id: SessionId
    client_id: ClientId | None = None
    workspace_cwd: str | None = None
    attached: bool = False
    created_at: int | str | None = None
    has_active_prompt: bool = False
    last_event_id: int = 0
    event_epoch: str | None = None
    state: Any = None
    """Models, modes and config options, as the agent offers them."""
    compacted_replay: list[Envelope] = []
    live_journal: list[Envelope] = []
    prompt_terminals: list[dict[str, Any]] = []


class SessionStatus(Struct, rename="camel"):
    """The state of a session."""

    client_count: int = 0
    has_active_prompt: bool = False
    is_waiting_for_permission: bool = False
    pending_interactions: list[Any] = []
    has_turn_error: bool = False
    turn_error: Any = None
    created_at: int | str | None = None
    updated_at: int | str | None = None


class Failure(Struct, kw_only=True, rename="camel"):
    """The error of a failed turn."""

    code: str = "turn_error"
    message: str = "no reason was given"
    exit_code: int | None = None
    signal: str | None = None
    stderr_tail: str | None = None
    agent_error: Any = None
    """The error object of the agent."""


class TurnStatus(Struct, rename="camel"):
    """The status of one turn."""

    state: str
    """`idle`, `queued`, `running`, `completed`, `cancelled`, `error`."""
    prompt_id: PromptId | None = None
    stop_reason: str | None = None
    prompt_text: str | None = None
    result_text: str | None = None
    usage: dict[str, Any] | None = None
    error: Failure | None = None
    queued_at: int | str | None = None
    started_at: int | str | None = None
    ended_at: int | str | None = None

    @property
    def is_over(self) -> bool:
        return self.state in ("completed", "cancelled", "error")


class _Accepted(Struct, rename="camel"):
    prompt_id: PromptId
    last_event_id: int
    event_epoch: str | None = None


class _Blocking(Struct, rename="camel"):
    """The answer of a daemon that holds the request until the turn ends."""

    stop_reason: str
    prompt_id: PromptId | None = None
    usage: dict[str, Any] | None = None


class _End(Failure, kw_only=True, rename="camel"):
    """The end of a turn, complete or failed."""

    prompt_id: PromptId
    stop_reason: str | None = None
    usage: dict[str, Any] | None = None
    ending: str | None = None


class _Ended(Struct):
    data: _End


class _TurnPage(Struct, rename="camel"):
    turns: list[TurnStatus]
    next_cursor: str | None = None


class _Head(Struct, rename="camel"):
    last_event_id: int
    event_epoch: str | None = None


class DaemonClient:
    """A daemon at a URL. Use it in `async with`, or close it. Safe for concurrent calls."""

    def __init__(
        self, url: str, token: str | None = None, *, limits: Limits | None = None, clock: Clock | None = None
    ) -> None:
        """The token defaults to `TURNWIRE_TOKEN` of the environment. Raises `ConfigError`."""
        # Imported here: a program that imports turnwire but uses no daemon loads no HTTP client.
        from turnwire.client.http import Http, segment
        from turnwire.client.stream import EventStream

        self._http = Http(url, token, limits=limits, clock=clock)
        self._segment = segment
        self._stream = EventStream

    # -- sessions ------------------------------------------------------------------------------------------

    async def create_session(self, cwd: str | None = None, **more: Any) -> OpenedSession:
        """Create a session. `more` has further members for the route, such as `session_id` or `mcp_servers`."""
        body = {_camel(name): value for name, value in more.items()} | ({} if cwd is None else {"cwd": cwd})
        return (await self._http.ask("POST", "/session", body)).read(OpenedSession)

    async def load(self, session_id: str, cwd: str | None = None) -> OpenedSession:
        """Load a session at its agent and return it with its history."""
        return await self._restore(session_id, "load", cwd)

    async def resume(self, session_id: str, cwd: str | None = None) -> OpenedSession:
        """Resume a session at its agent, without its history."""
        return await self._restore(session_id, "resume", cwd)

    async def _restore(self, session_id: str, how: str, cwd: str | None) -> OpenedSession:
        body = {} if cwd is None else {"cwd": cwd}
        answer = await self._http.ask("POST", f"{self._path(session_id)}/{how}", body, repeatable=True)
        return answer.read(OpenedSession)

    async def status(self, session_id: str) -> SessionStatus:
        return await self._get(f"{self._path(session_id)}/status", SessionStatus)

    # -- turns ---------------------------------------------------------------------------------------------

    async def prompt(
        self,
        session_id: str,
        content: Content,
        *,
        when_busy: str | None = None,
        key: str | None = None,
        request_id: RequestId | None = None,
        client_id: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> PromptResult:
        """Prompt and wait for the end of the turn.

        Raises:
            TurnError: the turn ended with an error.
            SessionError, RequestError: the prompt was rejected; no turn was begun.
            DaemonUnreachable: no daemon answered for too long. A turn that was begun continues.
        """
        members: dict[str, object | None] = {
            "prompt": to_raw(content),
            "whenBusy": when_busy,
            "promptRequestId": None if request_id is None else to_request_id(request_id),
            "_meta": meta,
        }
        body = {name: value for name, value in members.items() if value is not None}
        answer = await self._submit(session_id, body, key, client_id)
        if answer.status != 202:
            # An old daemon has waited for the end itself.
            old = answer.read(_Blocking)
            return PromptResult(stop_reason=old.stop_reason, prompt_id=old.prompt_id, usage=old.usage)
        return await self._end_of(session_id, answer.read(_Accepted))

    async def turns(self, session_id: str) -> list[TurnStatus]:
        """Return every turn of the session, oldest first."""
        found: list[TurnStatus] = []
        after: str | None = None
        while True:
            query = {"limit": str(_PAGE)} | ({} if after is None else {"after": after})
            page = await self._get(f"{self._path(session_id)}/turns?{urlencode(query)}", _TurnPage)
            found.extend(page.turns)
            after = page.next_cursor
            if after is None:
                return found

    async def turn(self, session_id: str, prompt_id: str) -> TurnStatus:
        """Return one turn. Raises `PromptNotFound`."""
        return await self._get(f"{self._path(session_id)}/turns/{self._segment(prompt_id)}", TurnStatus)

    async def cancel(self, session_id: str, prompt_id: str | None = None) -> None:
        """Request the cancellation of a turn, by default the running one. The turn's end confirms it."""
        body = {} if prompt_id is None else {"promptId": prompt_id}
        path = f"{self._path(session_id)}/cancel"
        # Without an id a second try could cancel the turn after the intended one.
        await self._http.ask("POST", path, body, repeatable=prompt_id is not None)

    async def answer_permission(
        self, session_id: str, request_id: str, option_id: str | None, *, client_id: str | None = None
    ) -> bool:
        """Select an option, or answer `cancelled` without one. Returns False if it was answered before."""
        outcome = {"outcome": "cancelled"} if option_id is None else {"outcome": "selected", "optionId": option_id}
        path = f"{self._path(session_id)}/permissions/{self._segment(request_id)}"
        answer = await self._http.ask(
            "POST", path, {"outcome": outcome}, headers=_named(client_id), repeatable=True
        )
        return bool(answer.read(dict[str, Any]).get("won", True))

    # -- events --------------------------------------------------------------------------------------------

    async def events(
        self, session_id: str, after: int | None = None, *, acp: str = "1"
    ) -> AsyncGenerator[Envelope]:
        """Yield the session's events after an id: 0 for all, `None` for new ones only; then yield them as they
        arrive.

        `acp` is the ACP version of the updates, `"1"` or `"2"`, whichever the agent speaks; with `"agent"` they are
        as the agent sent them. If one event becomes several envelopes, the last one has its id.

        Ends when the session is closed. Close it when done (`contextlib.aclosing`). Raises `PositionLost` if the
        daemon no longer has that position.
        """
        epoch: str | None = None
        if after is None:
            head = await self._get(self._path(session_id), _Head)
            after, epoch = head.last_event_id, head.event_epoch
        async with aclosing(self._stream(self._http, session_id, epoch, after, acp=acp).frames()) as batches:
            async for batch in batches:
                for frame in batch:
                    yield _envelope(frame)

    # -- opening and closing -------------------------------------------------------------------------------

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # -- how a turn's end is heard -------------------------------------------------------------------------

    async def _submit(
        self, session_id: str, body: Mapping[str, object], key: str | None, client_id: str | None
    ) -> HttpAnswer:
        """Submit the prompt. An old daemon holds the request for the turn; for it a retry is another prompt."""
        from turnwire.client.http import ANSWER_S
        from turnwire.client.remote import key_header

        features = (await self._http.capabilities()).features
        headers = _named(client_id) | key_header(key)
        return await self._http.ask(
            "POST",
            f"{self._path(session_id)}/prompt",
            body,
            headers=headers,
            repeatable=IDEMPOTENT in features,
            answer_s=ANSWER_S if NON_BLOCKING in features else None,
        )

    async def _end_of(self, session_id: str, accepted: _Accepted) -> PromptResult:
        try:
            frame = await self._streamed(session_id, accepted)
        except TurnwireError as error:
            # If the cause is more than a failing stream, the next request reports it.
            extra = {"event": "stream_given_up", "session": session_id, "code": error.code}
            logger.info("no event stream comes through; the turn's state is asked for instead", extra=extra)
            frame = None
        if frame is None:
            return await self._polled(session_id, accepted.prompt_id)
        return _result(_end(frame), frame.type, frame.id)

    async def _streamed(self, session_id: str, accepted: _Accepted) -> Frame | None:
        """Return the end of the turn from the event stream, or `None` if the session was closed without it."""
        stream = self._stream(
            self._http, session_id, accepted.event_epoch, accepted.last_event_id, failures=STREAM_FAILURES
        )
        async with aclosing(stream.frames()) as batches:
            async for batch in batches:
                for frame in batch:
                    if frame.type in _ENDS and _end(frame).prompt_id == accepted.prompt_id:
                        return frame
        return None

    async def _polled(self, session_id: str, prompt_id: PromptId) -> PromptResult:
        """Poll the state of the turn, because no stream gets through."""
        http = self._http
        pause = Backoff(_POLL_FIRST_S, _POLL_MOST_S, http.chance)
        heard_at = http.clock.monotonic()
        while True:
            try:
                turn = await self.turn(session_id, prompt_id)
            except DaemonUnreachable:
                # The daemon may be restarting, and the turn is in its log.
                if http.clock.monotonic() - heard_at > http.limits.reconnect_s:
                    raise
            else:
                if turn.is_over:
                    return _polled_result(turn, prompt_id)
                heard_at = http.clock.monotonic()
            await http.clock.sleep(pause.next_s())

    def _path(self, session_id: str) -> str:
        return f"/session/{self._segment(session_id)}"

    async def _get(self, path: str, shape: type[_Shape]) -> _Shape:
        return (await self._http.ask("GET", path, repeatable=True)).read(shape)


def _result(end: _End, kind: str, event_id: int | None) -> PromptResult:
    if kind == "turn_complete":
        return PromptResult(
            stop_reason=end.stop_reason or "",
            prompt_id=end.prompt_id,
            usage=end.usage,
            ending=end.ending,
            event_id=event_id,
        )
    raise _turn_error(end, end.prompt_id)


def _polled_result(turn: TurnStatus, prompt_id: PromptId) -> PromptResult:
    if turn.state != "error":
        return PromptResult(stop_reason=turn.stop_reason or turn.state, prompt_id=prompt_id, usage=turn.usage)
    raise _turn_error(turn.error or Failure(), prompt_id)


def _turn_error(failure: Failure, prompt_id: PromptId) -> TurnError:
    return TurnError(
        f"the turn failed ({failure.code}): {failure.message}",
        reason=failure.code,
        prompt_id=prompt_id,
        exit_code=failure.exit_code,
        signal=failure.signal,
        stderr_tail=failure.stderr_tail,
        agent_error=None if failure.agent_error is None else msgspec.json.encode(failure.agent_error),
    )


def _end(frame: Frame) -> _End:
    try:
        return msgspec.json.decode(frame.envelope, type=_Ended).data
    except msgspec.DecodeError:
        raise RemoteProtocolError("the end of a turn is not as the daemon's contract promises") from None


def _envelope(frame: Frame) -> Envelope:
    try:
        return msgspec.json.decode(frame.envelope, type=Envelope)
    except msgspec.DecodeError:
        raise RemoteProtocolError("an event of the stream is no envelope; is it a turnwire daemon?") from None


def _named(client_id: str | None) -> dict[str, str]:
    return {} if client_id is None else {"Turnwire-Client-Id": client_id}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(each.capitalize() for each in rest)
