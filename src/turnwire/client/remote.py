"""A daemon reached over HTTP, as the port of `client.port`.

Its sessions behave like those of a node in this process. A prompt always has an idempotency key, so a prompt whose
answer was lost is sent again and still is one prompt. This module stores no events and makes no decisions: an error
of the daemon is raised as the same error.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from urllib.parse import urlencode

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from turnwire import new_ids
from turnwire.client.arguments import to_key
from turnwire.client.http import Http, HttpAnswer, segment
from turnwire.client.port import Accepted, EventPage, NewPrompt
from turnwire.client.stream import AS_SAID, EventStream, Frame
from turnwire.clock import Clock
from turnwire.errors import (
    DaemonUnreachable,
    LimitExceeded,
    LocalProtocolError,
    RemoteProtocolError,
    SessionExists,
    UnknownClient,
)
from turnwire.ids import ClientId, Epoch, PermissionId, PromptId, SessionId
from turnwire.limits import Limits
from turnwire.projections.envelope import read_envelope
from turnwire.projections.view import View
from turnwire.session.events import AnyEvent
from turnwire.session.json_members import members
from turnwire.session.state import Setup
from turnwire.wire.ndjson import LineReader, Oversized

_PAGE = 100
_EXPORTS = 3
"""Number of times that a view is read again from the start after a lost connection."""


class _Opened(Struct, rename="camel"):
    session_id: SessionId
    event_epoch: Epoch
    last_event_id: int
    client_id: ClientId | None = None


class _Recorded(Struct, rename="camel"):
    prompt_id: PromptId
    last_event_id: int
    repeated: bool = False


class _Listed(Struct, rename="camel"):
    session_id: SessionId


class _Page(Struct, rename="camel"):
    sessions: list[_Listed]
    next_cursor: str | None = None


class _Won(Struct):
    won: bool = True


class _Outcome(Struct):
    outcome: Raw | UnsetType = UNSET


class RemoteSession:
    """A session of a daemon. See `turnwire.client.port.DaemonSession`."""

    has_other_clients = True

    def __init__(self, http: Http, opened: _Opened, start: int) -> None:
        self.session_id: SessionId = opened.session_id
        self.epoch: Epoch = opened.event_epoch
        self.start = start
        self._http = http
        self._client_id = opened.client_id
        self._path = f"/session/{segment(opened.session_id)}"

    async def prompt(self, new_prompt: NewPrompt) -> Accepted:
        body: dict[str, object] = {"prompt": new_prompt.content}
        if new_prompt.when_busy is not None:
            body["whenBusy"] = new_prompt.when_busy.value
        if new_prompt.request_id is not None:
            body["promptRequestId"] = new_prompt.request_id
        answer = await self._post("/prompt", body, headers=key_header(new_prompt.key), repeatable=True)
        recorded = answer.read(_Recorded)
        return Accepted(recorded.prompt_id, recorded.last_event_id, recorded.repeated)

    async def cancel(self, prompt_id: PromptId | None) -> None:
        # A repeated cancel of the running turn may hit another turn.
        body = {} if prompt_id is None else {"promptId": prompt_id}
        await self._post("/cancel", body, repeatable=prompt_id is not None)

    async def edit(self, prompt_id: PromptId, content: Raw | None, place: int | None) -> None:
        body: dict[str, object] = {}
        if content is not None:
            body["content"] = content
        if place is not None:
            body["position"] = place
        await self._ask("PATCH", f"/queue/{segment(prompt_id)}", body, repeatable=True)

    async def remove(self, prompt_id: PromptId) -> None:
        await self._ask("DELETE", f"/queue/{segment(prompt_id)}")

    async def settle(self, prompt_id: PromptId) -> None:
        await self._post("/settle", {"promptId": prompt_id}, repeatable=True)

    async def answer(self, request_id: PermissionId, answer: Raw, option_id: str | None) -> bool:
        selects = _outcome_of(answer) is not UNSET
        body: object = answer if selects else {"answer": answer}
        said = await self._post(f"/permissions/{segment(request_id)}", body, repeatable=True)
        return said.read(_Won).won

    async def close(self) -> None:
        await self._ask("DELETE", "")

    async def view(self) -> View:
        """Return the view, folded here from the whole log, so it equals the daemon's."""
        for left in range(_EXPORTS - 1, -1, -1):
            try:
                return await self._folded()
            except DaemonUnreachable:
                if not left:
                    raise
        raise AssertionError("the last try gives a view or raises")

    async def _folded(self) -> View:
        view, lines = View(), LineReader(self._http.limits.frame_bytes)
        async with aclosing(self._http.stream(f"{self._path}/export?acp={AS_SAID}")) as pieces:
            async for piece in pieces:
                for line in lines.feed(piece):
                    if isinstance(line, Oversized):
                        raise LimitExceeded("an event of the session is too large for this client", value=line.size)
                    number, event = read_envelope(line)
                    if event is not None and number is not None:
                        view.offset = number - 1  # the log may be trimmed, and an event of a kind that is new here
                        view.apply(event)
        return view

    async def follow(self, after: int) -> AsyncGenerator[EventPage]:
        stream = EventStream(self._http, self.session_id, self.epoch, after)
        async with aclosing(stream.frames()) as batches:
            async for batch in batches:
                for page in _pages(after, batch):
                    yield page
                    after = page.offset

    async def forget(self, upto: int) -> None:
        """Do nothing: the daemon decides about its log, and no event is held here."""

    # -- requests ----------------------------------------------------------------------------------------------

    async def _post(
        self, path: str, body: object, *, headers: dict[str, str] | None = None, repeatable: bool = False
    ) -> HttpAnswer:
        return await self._ask("POST", path, body, headers=headers, repeatable=repeatable)

    async def _ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: dict[str, str] | None = None,
        repeatable: bool = False,
    ) -> HttpAnswer:
        named = dict(headers or {})
        try:
            if self._client_id is not None:
                named["Turnwire-Client-Id"] = self._client_id
            return await self._http.ask(method, self._path + path, body, headers=named, repeatable=repeatable)
        except UnknownClient:
            # The session remembers a bounded number of clients. Without a client id the same actions are allowed.
            self._client_id = None
            return await self._http.ask(method, self._path + path, body, headers=headers, repeatable=repeatable)


class RemoteDaemon:
    """A daemon. See `turnwire.client.port.Daemon`."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def create(self, cwd: str, setup: Setup, agent: str | None = None) -> RemoteSession:
        # The client chooses the id, so a retry after a lost answer cannot create two sessions.
        session_id = new_ids.session_id()
        body: dict[str, object] = {"cwd": cwd, "mcpServers": setup.mcp_servers, "sessionId": session_id}
        body |= members(None if setup.extra is UNSET else setup.extra)
        if agent is not None:
            body["agent"] = agent
        try:
            answer = await self._http.ask("POST", "/session", body, repeatable=True)
        except SessionExists:
            return RemoteSession(self._http, await self._look(session_id), 0)
        return RemoteSession(self._http, answer.read(_Opened), 0)

    async def authenticate(self, method_id: str) -> None:
        await self._http.ask("POST", "/agents/default/auth", {"methodId": method_id})

    async def find(self, session_id: SessionId) -> RemoteSession:
        opened = await self._look(session_id)
        return RemoteSession(self._http, opened, opened.last_event_id)

    async def sessions(self) -> list[SessionId]:
        found: list[SessionId] = []
        cursor: str | None = None
        while True:
            query = {"size": str(_PAGE)} | ({} if cursor is None else {"cursor": cursor})
            answer = await self._http.ask("GET", f"/session?{urlencode(query)}", repeatable=True)
            page = answer.read(_Page)
            found.extend(each.session_id for each in page.sessions)
            cursor = page.next_cursor
            if cursor is None:
                return found

    async def _look(self, session_id: SessionId) -> _Opened:
        return (await self._http.ask("GET", f"/session/{segment(session_id)}", repeatable=True)).read(_Opened)


def key_header(key: str | None) -> dict[str, str]:
    """Return the idempotency key of a prompt; a unique one if the caller has none."""
    key = to_key(key)
    if key is not None and not (key.isascii() and key.isprintable() and key):
        raise LocalProtocolError("an idempotency key is text of ASCII characters in one line; give such a one")
    return {"Idempotency-Key": key or f"sdk-{new_ids.prompt_id()}"}


def _pages(after: int, batch: list[Frame]) -> list[EventPage]:
    """Return a batch's events in pages without gaps. An event of unknown kind becomes an empty page."""
    pages: list[EventPage] = []
    events: list[AnyEvent] = []
    for frame in batch:
        number, event = read_envelope(frame.envelope)
        if number is None:
            continue
        if number != after + 1:
            raise RemoteProtocolError(
                "the daemon left out events of the session; its log or something on the way is broken",
                expected=after + 1,
                got=number,
            )
        after = number
        if event is not None:
            events.append(event)
            continue
        pages += [EventPage(number - 1, events), EventPage(number, [])] if events else [EventPage(number, [])]
        events = []
    if events:
        pages.append(EventPage(after, events))
    return pages


def _outcome_of(answer: Raw) -> Raw | UnsetType:
    try:
        return msgspec.json.decode(answer, type=_Outcome).outcome
    except msgspec.DecodeError:
        return UNSET


@asynccontextmanager
async def open_remote(
    url: str, token: str | None, limits: Limits, clock: Clock | None
) -> AsyncGenerator[RemoteDaemon]:
    """Connect to a daemon. Raises `ConfigError`, `DaemonUnreachable`, `Unauthenticated`."""
    http = Http(url, token, limits=limits, clock=clock)
    try:
        await http.capabilities(patient=False)
        yield RemoteDaemon(http)
    finally:
        await http.aclose()
