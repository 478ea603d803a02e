"""An open session: its clients, its history, and how its store is kept up to date.

Updates from its turns and its author are sent to every client that has the session open, and stored. A session that
was only read is not written. Changes that another process saved are adopted, except where this process changed the
same part; if both changed the state, the stored one wins. Nothing here changes the state of a running turn,
restores a deleted session, or decides about a turn: `turnwire.agent.turns` does. `turnwire.agent.session` is the
author's view of it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import anyio
import msgspec
from msgspec import Raw

from turnwire import new_ids
from turnwire.agent.connected_client import ConnectedClient, Sent
from turnwire.agent.definition import AgentDefinition, Function, call
from turnwire.agent.history import History
from turnwire.agent.options import MODE, SessionOffers
from turnwire.agent.own_workplace import OwnWorkplace
from turnwire.agent.session import Session
from turnwire.agent.session_client import Readiness, SessionClient
from turnwire.agent.store import FIRST, Kept, OptionValue, encoded, unknown_session
from turnwire.agent.v2_updates import Json, called, from_v1
from turnwire.errors import AppendConflict, ConfigError, LimitExceeded, LocalProtocolError, SessionNotFound
from turnwire.ids import PromptId, RequestId
from turnwire.projections.encoder.encoder import EndedTurn, idle_update, state_update
from turnwire.projections.translate.handshake import ClientProfile
from turnwire.projections.translate.messages import CHUNKS, WHOLE
from turnwire.projections.translate.updates import UpdatesV1ToV2
from turnwire.runtime.cancellation import contained
from turnwire.wire.jsonrpc import raw
from turnwire.wire.methods import VENDOR

if TYPE_CHECKING:
    from turnwire.agent.turns import Turns


logger = logging.getLogger(__name__)
SAVE_AT = 256
"""Updates that may wait for the store while a turn runs: a crash in a long turn costs no more than these."""
SAVE_S = 10.0
"""Time that the start or end of a turn waits for the store before it continues without it."""
TRIES = 3
"""Attempts of one save when other processes save at the same time. The next save continues from there."""


class OpenPermissionRequest(NamedTuple):
    """Something that the user of one client is asked."""

    client: ConnectedClient
    request_id: RequestId
    kind: str
    """permission or elicitation."""

    def described_to(self, client: ConnectedClient) -> Json:
        # Request ids are local to a connection: for another client the same number is a different request.
        told = {"requestId": self.request_id} if client is self.client else {}
        return {**told, "kind": self.kind}


class LiveSession:
    """An open session."""

    def __init__(self, definition: AgentDefinition, kept: Kept, client: ClientProfile) -> None:
        self.definition = definition
        self.id = kept.id
        self.session = Session(self, kept, client)
        """The author's view."""
        self.title = kept.title
        self.offers = SessionOffers(
            {**kept.options, **({} if kept.mode is None else {MODE: kept.mode})},
            [command for command, _ in definition.hooks.commands.values()],
        )
        self.history = History(kept.history)
        self.calls: set[str] = set()
        """Tool calls reported since the session was opened."""
        self.clients: list[SessionClient] = []
        self.settling = anyio.Lock()
        """Held while a client's setting is applied, so that a later prompt runs with it."""
        self.foreground: Json = state_update("idle")
        """The foreground state, as in v2."""
        self._permission_requests: Sequence[OpenPermissionRequest] = ()
        self.stretch = _between()
        """The id of the running turn, or of the time between two turns. No message continues beyond it."""
        self.turns: Turns
        """Set by the opener of the session: turns know their session, not the reverse."""
        # Two facts and no stage: one that its author refuses, or another client deletes, while it is being opened
        # ends without ever having been open, and is not saved.
        self.is_ending = False
        self.ended = anyio.Event()
        self.is_opened = False
        """The opening answer has reported the options; changes are sent from here on."""
        self.is_kept = True
        """The store is to have it. Not any more once it was deleted."""
        self._updated_at = kept.updated_at
        self._background: set[anyio.CancelScope] = set()
        self._readying = anyio.Lock()
        self.keeping = SessionSaver(self, kept)
        self._is_save_due = False
        self._from_v1 = UpdatesV1ToV2()
        self._whole = count(1)

    @cached_property
    def own_workplace(self) -> OwnWorkplace:
        """Files and commands of this machine. It fixes the session's directories when they are first used.

        Raises `RequestRefused` if one is not an absolute path.
        """
        return OwnWorkplace(str(self.session.cwd), [str(each) for each in self.session.directories])

    # -- telling -------------------------------------------------------------------------------------------------

    def publish(
        self, update: Json, *, by: SessionClient | None = None, is_late: bool = False, must: bool = False
    ) -> Sent:
        """Send an update to every client. `by` is the client that prompted it. Raises `LimitExceeded` before
        anything is sent.

        `must`: a turn cannot continue or end without the update, so no limit applies.
        """
        kind: str = update["sessionUpdate"]
        if not must:
            self._check_room(kind, by)
        told = raw(update)
        self.history.add(update, told)
        call_id = called(update)
        if call_id is not None:
            self.calls.add(call_id)
        for client in self.clients:
            client.tell(told, kind, own=client is by, is_late=is_late)
        self._save_later()
        waited = by if by is not None else next(iter(self.clients), None)
        return Sent(None if waited is None else waited.outbox)

    def _check_room(self, kind: str, by: SessionClient | None) -> None:
        for client in tuple(self.clients):
            try:
                client.check_room(kind)
            except LimitExceeded:
                if client is by or len(self.clients) == 1:
                    raise
                # A client that does not read must not hold up the others.
                self.clients.remove(client)
                client.leave()
                client.connected.tasks.start_soon(client.connected.drop)

    def canonical(self, update: Json, version: int | None, speaker: PromptId | None = None) -> list[Json]:
        """Return an update of the author in v2. `version` is the version it is written in; `speaker` the turn.

        A message or chunk without an id gets one: v1 needs none, and an author need not know the readers.
        """
        kind = update.get("sessionUpdate")
        if not isinstance(kind, str):
            raise LocalProtocolError("an update names its kind in `sessionUpdate`")
        # Updates that a turn sends after its end do not belong to the running turn.
        turn = self.stretch if speaker in {None, self.stretch} else PromptId(f"{speaker}.{self.stretch}")
        is_named = update.get("messageId") is not None
        if kind in WHOLE and not is_named:
            update = {**update, "messageId": f"{turn}.whole{next(self._whole)}"}
        if (is_named or kind not in CHUNKS) and (version or self.session.client.version) == 2:
            return [update]
        return [_decoded(each) for each in self._from_v1.take(raw(from_v1(update)), turn=turn)]

    def begin_turn(self, prompt_id: PromptId) -> None:
        """Report that a turn is in the conversation and runs."""
        self.stretch = prompt_id
        self.set_foreground("running")

    def set_foreground(self, state: str, requests: Sequence[OpenPermissionRequest] = ()) -> None:
        """Running, or waiting for the user to answer these permission requests."""
        self.foreground, self._permission_requests = state_update(state), requests
        for client in self.clients:
            client.tell(raw(self.foreground_for(client.connected)), "state_update", own=False)

    def foreground_for(self, client: ConnectedClient) -> Json:
        """Return the foreground state for a client, with what it waits for."""
        if not self._permission_requests:
            return self.foreground
        waits = [each.described_to(client) for each in self._permission_requests]
        return {**self.foreground, "_meta": {VENDOR: {"waitsFor": waits}}}

    def end_turn(self, ended: EndedTurn, by: SessionClient | None) -> None:
        """Report the end of a turn. Nothing here waits, so nothing comes between the parts of the end."""
        self.history.keep_end(ended)
        self.stretch = _between()
        self.foreground, self._permission_requests = idle_update(ended), ()
        for client in self.clients:
            client.end(ended, own=client is by)

    # -- what it offers ------------------------------------------------------------------------------------------

    def tell_commands(self) -> None:
        if self.is_opened:
            self.publish(
                {
                    "sessionUpdate": "available_commands_update",
                    "availableCommands": self.offers.listed_commands(),
                }
            )

    def tell_options(self) -> None:
        if self.is_opened:
            self.publish({"sessionUpdate": "config_option_update", "configOptions": self.offers.listed_options()})

    def rename(self, title: str | None) -> None:
        self.title = title
        self._updated_at = self.definition.timestamp()
        self.publish({"sessionUpdate": "session_info_update", "title": title, "updatedAt": self._updated_at})

    # -- beside its turns ----------------------------------------------------------------------------------------

    def start(self, function: Function, *args: Any) -> None:
        """Run something until it is done or the session ends."""
        if not self.clients:
            raise LocalProtocolError("the session is closed; nothing can be started in it")
        self._start(self.clients[0].connected, function, *args)

    def client_ready(self, client: ConnectedClient, how: Readiness) -> None:
        """Call the author's function for a client that is ready, without waiting for it."""
        if self.definition.hooks.ready is not None:
            self._start(client, self._tell_ready, how)

    async def _tell_ready(self, how: Readiness) -> None:
        # One after the other, in the order in which the clients were ready.
        async with self._readying:
            await call(self.definition.hooks.ready, self.session, how)

    def _start(self, client: ConnectedClient, function: Function, *args: Any) -> None:
        scope = anyio.CancelScope()
        self._background.add(scope)
        client.tasks.start_soon(self._run, scope, function, args)

    async def _run(self, scope: anyio.CancelScope, function: Function, args: tuple[Any, ...]) -> None:
        try:
            with contained(), scope:
                await call(function, *args)
        except Exception:  # the author's own; it must not end the session
            logger.exception("something beside the turns of session %s failed", self.id)
        finally:
            self._background.discard(scope)

    def stop_background(self) -> None:
        for scope in tuple(self._background):
            scope.cancel()

    # -- keeping -------------------------------------------------------------------------------------------------

    def record(self) -> Kept:
        """Return the record that a store holds, without the history."""
        options = self.offers.chosen
        mode = options.pop(MODE, None)
        return Kept(
            id=self.id,
            cwd=str(self.session.cwd),
            directories=tuple(str(each) for each in self.session.directories),
            title=self.title,
            updated_at=self._updated_at,
            mode=mode if isinstance(mode, str) else None,
            options=options,
            state=self.session.state,
        )

    def touch(self) -> None:
        """It has changed."""
        self._updated_at = self.definition.timestamp()

    async def save(self) -> None:
        """Save all changes to the store."""
        await self.keeping.save()

    async def claim(self) -> None:
        """Announce a starting turn in the store, and adopt what another process saved there."""
        self.touch()
        await self.save()

    def _save_later(self) -> None:
        if self._is_save_due or not self.clients or not self.is_opened:
            return
        is_idle = self.foreground["state"] == "idle"
        if is_idle or self.history.waiting >= SAVE_AT:
            self._is_save_due = True
            self.clients[0].connected.tasks.start_soon(self._save_now)

    async def _save_now(self) -> None:
        self._is_save_due = False
        await self.save()


LiveSessions: TypeAlias = dict[str, LiveSession]
"""The sessions of one agent that at least one of its clients has open, by their ids."""


def _between() -> PromptId:
    return PromptId(f"between-{new_ids.prompt_id()}")


def _decoded(update: Raw) -> Json:
    return msgspec.json.decode(update, type=dict[str, Any])


# -- its record in the store -----------------------------------------------------------------------------------


class SessionSaver:
    """Saves one open session."""

    def __init__(self, live: LiveSession, kept: Kept) -> None:
        self._live = live
        self._revision = kept.revision
        self._stored = _plain(kept)
        """The record as the store has it, as far as is known here."""
        self._opened: bytes | None = None
        """The record as it was after opening. Changes made by opening are repeated next time, so they need no save.
        """
        self._unsure: bytes | None = None
        """The last save that the store did not acknowledge."""
        self._turn = anyio.Lock()

    def only_looked_at(self) -> None:
        """It was brought back, and nothing has happened in it yet."""
        try:
            self._opened = encoded(self._live.record())
        except ConfigError:
            logger.exception("session %s cannot be kept", self._live.id)

    async def save(self) -> None:
        """Save everything within a time limit. A failing store is logged: turns continue."""
        live = self._live
        with anyio.move_on_after(SAVE_S) as bound:
            async with self._turn:
                if not live.is_kept:
                    return
                try:
                    await self._save_record()
                    await self._save_history()
                except SessionNotFound:
                    live.is_kept = False
                    logger.warning("session %s was deleted meanwhile; nothing of it is kept any more", live.id)
                except Exception:  # a store may raise anything; the session is still good
                    logger.exception("the store did not keep session %s", live.id)
        if bound.cancelled_caught:
            logger.error("the store took longer than %s s for session %s", SAVE_S, live.id)

    async def _save_history(self) -> None:
        unsaved = self._live.history.unsaved
        if unsaved:
            await self._live.definition.store.append(self._live.id, unsaved)
            self._live.history.saved(len(unsaved))

    async def _save_record(self) -> None:
        for _ in range(TRIES):
            mine = encoded(self._live.record())
            if mine in (self._stored, self._opened):
                return
            before, self._unsure = self._unsure, mine
            record = msgspec.json.decode(mine, type=Kept)
            try:
                await self._live.definition.store.save(msgspec.structs.replace(record, revision=self._revision + 1))
            except AppendConflict:
                if not await self._take_up(before):
                    return
            else:
                self._know(mine, self._revision + 1)
                return
        logger.error("others save session %s all the time; it is tried again with the next change", self._live.id)

    def _know(self, stored: bytes, revision: int) -> None:
        self._stored, self._revision = stored, revision
        self._opened = self._unsure = None

    # -- what changed elsewhere ----------------------------------------------------------------------------------

    async def _take_up(self, unsure: bytes | None) -> bool:
        """Adopt a save of another process. Return whether a save on top of it can be tried now."""
        theirs = await self._live.definition.store.load(self._live.id)
        if theirs is None:
            raise unknown_session()
        stored = _plain(theirs)
        if stored == unsure:
            # It was this very session: its store was only too slow, or failed after it had written.
            self._know(stored, theirs.revision)
            return True
        known = [msgspec.json.decode(each, type=Kept) for each in (self._stored, self._opened) if each is not None]
        if self._live.session.running is not None and theirs.state != known[0].state:
            # A turn works with the state that it has. It is looked at again after the turn.
            self._unsure = None
            return False
        self._know(stored, theirs.revision)
        self._merge(theirs, known)
        return True

    def _merge(self, theirs: Kept, known: list[Kept]) -> None:
        """`known`: how it was here before anything changed."""
        live, mine = self._live, msgspec.json.decode(encoded(self._live.record()), type=Kept)
        live.history.take_up(theirs.history)
        if theirs.state != known[0].state:
            if all(mine.state != each.state for each in known):
                logger.error(
                    "two processes changed the state of session %s at the same time; the change of this one came"
                    " second and is not kept. The history has both; prompt it in one process only",
                    live.id,
                )
            # In place: an author may hold on to it.
            live.session.state.clear()
            live.session.state.update(theirs.state)
        ours, before = _choices(mine), [_choices(each) for each in known]
        taken = {
            name: value
            for name, value in _choices(theirs).items()
            if any(ours.get(name) == each.get(name) for each in before)
        }
        if live.offers.take_up(taken):
            live.tell_options()
        if mine.title == known[0].title and theirs.title != mine.title:
            live.rename(theirs.title)


def _plain(kept: Kept) -> bytes:
    """Return the content of a record: without history and revision."""
    return encoded(msgspec.structs.replace(kept, history=(), revision=FIRST))


def _choices(kept: Kept) -> dict[str, OptionValue]:
    return kept.options if kept.mode is None else {**kept.options, MODE: kept.mode}
