"""The sessions that one client has open: opening, prompting and leaving them.

A session that another client has open is joined, one that only the store has is restored, and one that no client
has open any more is ended. Nothing here starts a turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import msgspec
from msgspec import Raw

from turnwire import new_ids
from turnwire.agent.connected_client import ConnectedClient
from turnwire.agent.definition import call
from turnwire.agent.live_session import LiveSession, LiveSessions
from turnwire.agent.session_client import SessionClient
from turnwire.agent.store import Kept
from turnwire.agent.turn_run import TurnRun
from turnwire.agent.turns import Turns
from turnwire.agent.v2_updates import Json
from turnwire.errors import AgentFailure, AppendConflict, SessionNotFound
from turnwire.ids import RequestId, SessionId
from turnwire.projections.translate.sessions import Opening, session_result, updates_after
from turnwire.session.content import check_content
from turnwire.session.json_members import as_object, members, read_entries, text_of
from turnwire.wire.jsonrpc import Request, invalid_params, raw


class Answered(NamedTuple):
    """The result of a request, and what is sent directly after it."""

    value: object
    then: Callable[[], None] = lambda: None


LEAVE_S = 5.0
"""Time for a session to end after its last client left, in addition to the time its turn may take to stop."""

logger = logging.getLogger(__name__)


class ClientSessions:
    """The open sessions of one client."""

    def __init__(self, client: ConnectedClient, live: LiveSessions) -> None:
        """`live`: those of the agent, which all of its clients share."""
        self.connected = client
        self.live = live
        self.definition = client.definition
        self._open: dict[str, SessionClient] = {}
        """Its place in each session that it has open, by the session's id."""

    # -- finding -------------------------------------------------------------------------------------------------

    def find(self, session_id: str) -> tuple[LiveSession, SessionClient]:
        """Return a session that this client has open. Raises `SessionNotFound`."""
        live, client = self.live.get(session_id), self._open.get(session_id)
        is_here = live is not None and live.is_opened and not live.is_ending
        if live is None or client is None or not is_here or client not in live.clients:
            raise SessionNotFound("there is no such session; open it first", session_id=session_id)
        return live, client

    def peek(self, session_id: object) -> LiveSession | None:
        """Return a session that this client has open, or None."""
        try:
            return self.find(session_id)[0] if isinstance(session_id, str) else None
        except SessionNotFound:
            return None

    def be_ready(self, session_id: str) -> None:
        """`session/ready`. About a session that is not open here it does nothing."""
        client = self._open.get(session_id)
        if client is not None:
            self.connected.says_ready = True
            client.be_ready("ready")

    # -- opening -------------------------------------------------------------------------------------------------

    async def open_new(self, asked: Opening, meta: Json, kept: Kept | None = None) -> Answered:
        """Open a new session, or one that starts with the history of `kept`."""
        named: str | None = await call(self.definition.hooks.named, asked, meta, kept)
        if named is not None and (named in self.live or await self.definition.store.load(named) is not None):
            raise _named_twice()
        record = Kept(
            id=named or new_ids.session_id(),
            cwd=asked.cwd,
            directories=asked.setup.additional_directories,
            updated_at=self.definition.timestamp(),
        )
        if kept is not None:
            own = {name: getattr(record, name) for name in ("id", "cwd", "directories", "updated_at", "revision")}
            record = msgspec.structs.replace(kept, **own)
        try:
            await self._keep(record)
        except AppendConflict:
            # Another client's session was stored since the check.
            raise _named_twice() from None
        live = self._bring(record)
        try:
            client = await self._attach(live, asked, meta)
        except BaseException:
            # The author rejected it, or the client cancelled the request: the session never existed.
            with anyio.CancelScope(shield=True):
                await self.definition.store.delete(record.id)
            raise
        return self._opened(live, client, SessionId(live.id))

    async def reopen(self, asked: Opening, meta: Json) -> Answered:
        """Open an existing session. Raises `SessionNotFound`."""
        assert asked.session_id is not None, "only a new session has no id yet"
        live = await self._found(asked.session_id, asked, meta)
        client = await self._attach(live, asked, meta)
        return self._opened(live, client, None)

    async def kept(self, session_id: str) -> Kept:
        """Return a session with its current history. Raises `SessionNotFound`."""
        live = self.live.get(session_id)
        if live is not None:
            record = msgspec.json.decode(msgspec.json.encode(live.record()), type=Kept)
            return msgspec.structs.replace(record, history=live.history.updates)
        found = await self.definition.store.load(session_id)
        if found is None:
            raise SessionNotFound("there is no such session; list the sessions", session_id=session_id)
        return found

    async def _found(self, session_id: str, asked: Opening, meta: Json) -> LiveSession:
        while True:
            live = self.live.get(session_id)
            if live is None:
                kept = await self._kept_or_missing(session_id, asked, meta)
                # Another client may have brought it back meanwhile.
                live = self.live.get(session_id) or self._bring(kept)
            if not live.is_ending:
                return live
            await live.ended.wait()

    async def _kept_or_missing(self, session_id: str, asked: Opening, meta: Json) -> Kept:
        try:
            return await self.kept(session_id)
        except SessionNotFound:
            found = await call(self.definition.hooks.missing, asked, meta)
            if not isinstance(found, Kept):
                raise
        await self._keep(found)
        return found

    async def _keep(self, record: Kept) -> None:
        await self.definition.store.save(record)
        if record.history:
            await self.definition.store.append(record.id, record.history)

    def _bring(self, kept: Kept) -> LiveSession:
        live = LiveSession(self.definition, kept, self.connected.profile)
        self.live[kept.id] = live
        live.turns = Turns(live)
        return live

    async def _attach(self, live: LiveSession, asked: Opening, meta: Json) -> SessionClient:
        session = live.session
        if not live.clients:
            session.client = self.connected.profile
        session.cwd, session.meta = Path(asked.cwd), meta
        session.directories = tuple(Path(each) for each in asked.setup.additional_directories)
        session.mcp_servers = [as_object(each) for each in read_entries(asked.setup.mcp_servers) or ()]
        before = self._open.pop(live.id, None)
        on_ready = partial(live.client_ready, self.connected)
        client = self._open[live.id] = SessionClient(self.connected, live.id, on_ready)
        if before is not None:
            # It opened the session again: its prompts are answered at the new client.
            live.turns.move(before, client)
            _detach(live, before)
        # From here on updates are held for this client, so that none is lost between the history and the present.
        history, state = live.history.replayed, raw(live.foreground_for(self.connected))
        live.clients.append(client)
        try:
            await call(self.definition.hooks.opened, session)
            if asked.session_id is not None:
                await self._catch_up(live, client, history if asked.replay else (), state)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._give_up(live, client)
            raise
        return client

    async def _catch_up(
        self, live: LiveSession, client: SessionClient, history: tuple[bytes, ...], state: Raw
    ) -> None:
        """Return the history and the current state."""
        frames = client.replayed(history)
        if live.title is not None:
            frames += client.replayed([bytes(raw({"sessionUpdate": "session_info_update", "title": live.title}))])
        for frame in (*frames, *client.snapshot(state)):
            client.outbox.put(frame)
            await client.outbox.room()

    def _opened(self, live: LiveSession, client: SessionClient, session_id: SessionId | None) -> Answered:
        """Return the answer that opens a session, and what follows it without a gap."""
        offers, profile = live.offers.as_opened(), self.connected.profile
        result = session_result(offers, 2, profile.version, session_id, boolean_options=profile.boolean_options)

        def follow() -> None:
            if not live.is_opened and session_id is None:
                live.keeping.only_looked_at()
            live.is_opened = True
            client.opened_with(offers)
            if live.offers.listed_commands():
                for update in updates_after(offers, 2, profile.version):
                    client.tell_plain(update)
            client.answered()
            if live.turns.has_prompts_of(client):
                client.be_ready("prompt")
            self.connected.tasks.start_soon(live.save)

        return Answered(result, follow)

    # -- leaving -------------------------------------------------------------------------------------------------

    async def _give_up(self, live: LiveSession, client: SessionClient) -> None:
        self._open.pop(live.id, None)
        if live.clients == [client]:
            await self.end(live)
        else:
            _detach(live, client)

    async def leave(self) -> None:
        """End the turns of a client that disconnected, and the sessions that no other client has open."""
        for session_id, client in tuple(self._open.items()):
            live = self.live.get(session_id)
            if live is None or client not in live.clients:
                continue
            live.turns.leave(client)
            if live.clients == [client]:
                await self.end(live)
                continue
            with anyio.move_on_after(self._patience):
                while live.turns.running is not None and live.turns.running.client is client:
                    await live.turns.stopped()
            _detach(live, client)
        self._open.clear()

    async def end(self, live: LiveSession) -> None:
        """Stop everything in a session, and close it for every client that has it."""
        if live.is_ending:
            await live.ended.wait()
            return
        live.is_ending = True
        try:
            live.turns.close()
            with anyio.move_on_after(self._patience):
                await live.turns.stopped()
            live.stop_background()
            with anyio.move_on_after(LEAVE_S):
                await call(self.definition.hooks.closed, live.session)
        except Exception:  # the author's own; the session ends all the same
            logger.exception("the function for closed sessions failed")
        finally:
            for client in tuple(live.clients):
                _detach(live, client)
            if live.is_opened:
                with anyio.CancelScope(shield=True):
                    await live.save()
            self.live.pop(live.id, None)
            live.ended.set()

    @property
    def _patience(self) -> float:
        return self.definition.options.max_cancel_s + LEAVE_S

    # -- prompts -------------------------------------------------------------------------------------------------

    def prompt(self, request: Request) -> None:
        """Submit a prompt. Raises the error that rejects it."""
        fields = members(request.params)
        session_id = text_of(fields, "sessionId")
        if session_id is None:
            raise invalid_params("`session/prompt` needs `sessionId`, a string")
        live, client = self.find(session_id)
        content = self.content(fields.get("prompt"))
        meta = as_object(fields["_meta"]) if "_meta" in fields else {}
        # A client that prompts can receive updates.
        client.be_ready("prompt")
        live.turns.submit(TurnRun(live, content, client, request.id, meta))

    def content(self, blocks: Raw | None) -> list[Json]:
        """The blocks of a prompt. Raises `RemoteProtocolError`, `ContentRefused`, which names the block."""
        if blocks is None:
            raise invalid_params("`prompt` is a list of content blocks")
        check_content(blocks, self.definition.options.block_types)
        return msgspec.json.decode(blocks, type=list[dict[str, Any]])

    def is_prompting(self, request_id: RequestId) -> bool:
        """Return whether a prompt with this id has no answer yet."""
        return any(
            live.turns.is_prompted_by(client, request_id)
            for session_id, client in self._open.items()
            if (live := self.live.get(session_id)) is not None
        )

    def cancel_prompt(self, request_id: RequestId) -> None:
        """`$/cancel_request` for a prompt, wherever it is."""
        for session_id, client in self._open.items():
            live = self.live.get(session_id)
            if live is not None:
                live.turns.cancel_request(client, request_id)


def _named_twice() -> AgentFailure:
    return AgentFailure(
        "the agent gave its new session the id of one that there is; delete that, or have the agent make new ids"
    )


def _detach(live: LiveSession, client: SessionClient) -> None:
    client.leave()
    if client in live.clients:
        live.clients.remove(client)
