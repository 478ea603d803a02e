"""A session that is open: what it is, who is told of it, what it remembers.

Takes what its turns and its author say; tells every client that has the session, and keeps it. Never decides
about a turn: `turnwire.agent.turns` does. `turnwire.agent.session` is what the author sees of it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
from msgspec import Raw

from turnwire.agent.authored import Authored
from turnwire.agent.history import History
from turnwire.agent.hooks import Function, call
from turnwire.agent.keeping import Keeping
from turnwire.agent.offers import MODE, Offers
from turnwire.agent.outbox import Sent
from turnwire.agent.seat import Seat
from turnwire.agent.session import Session
from turnwire.agent.store import Kept
from turnwire.agent.words import Json, from_v1
from turnwire.core.translate.handshake import ClientProfile
from turnwire.core.translate.updates import UpdatesV1ToV2
from turnwire.errors import LimitExceeded, LocalProtocolError
from turnwire.runtime.containing import contained
from turnwire.wire.jsonrpc import raw

if TYPE_CHECKING:
    from turnwire.agent.turns import Turns

SAVE_AT = 256
"""Updates that may wait for the store while a turn runs: a crash in a long turn costs no more than these."""

logger = logging.getLogger(__name__)


class LiveSession:
    """One open session."""

    def __init__(self, authored: Authored, kept: Kept, client: ClientProfile) -> None:
        self.authored = authored
        self.id = kept.id
        self.session = Session(self, kept, client)
        """What the author sees."""
        self.title = kept.title
        self.offers = Offers(
            {**kept.options, **({} if kept.mode is None else {MODE: kept.mode})},
            [command for command, _ in authored.hooks.commands.values()],
        )
        self.history = History(kept.history)
        self.seats: list[Seat] = []
        self.settling = anyio.Lock()
        """Held while a client's setting is made, so that a prompt behind it runs with it."""
        self.foreground: Json = {"sessionUpdate": "state_update", "state": "idle"}
        """What it does now, in the words of v2."""
        self.turns: Turns
        """Set by who brings the session up: turns know their session, not the other way round."""
        self.is_ending = False
        self.ended = anyio.Event()
        self.is_opened = False
        """An answer has told what it offers; changes are told from here on."""
        self.is_kept = True
        """The store is to have it. Not any more once it was deleted."""
        self._updated_at = kept.updated_at
        self._background: set[anyio.CancelScope] = set()
        self.keeping = Keeping(self, kept)
        self._is_save_due = False
        self._from_v1: UpdatesV1ToV2 | None = None

    # -- telling -------------------------------------------------------------------------------------------------

    def publish(self, update: Json, *, by: Seat | None = None, is_late: bool = False, must: bool = False) -> Sent:
        """Tell every client. `by`: the one that prompted it. Raises `LimitExceeded`, having told nobody.

        `must`: a turn cannot go on or end without it, so it is told whatever waits already.
        """
        kind: str = update["sessionUpdate"]
        if not must:
            self._check_room(kind, by)
        told = raw(update)
        self.history.add(update, told)
        for seat in self.seats:
            seat.tell(told, kind, own=seat is by, is_late=is_late)
        self._save_later()
        waited = by if by is not None else next(iter(self.seats), None)
        return Sent(None if waited is None else waited.outbox)

    def _check_room(self, kind: str, by: Seat | None) -> None:
        for seat in tuple(self.seats):
            try:
                seat.check_room(kind)
            except LimitExceeded:
                if seat is by or len(self.seats) == 1:
                    raise
                # A client that does not read must not hold up the others.
                self.seats.remove(seat)
                seat.leave()
                seat.client.tasks.start_soon(seat.client.drop)

    def canonical(self, update: Json, version: int | None) -> list[Json]:
        """An update of the author in the words of v2. `version`: in whose words it is."""
        if not isinstance(update.get("sessionUpdate"), str):
            raise LocalProtocolError("an update names its kind in `sessionUpdate`")
        if (version or self.session.client.version) == 2:
            return [update]
        if self._from_v1 is None:
            self._from_v1 = UpdatesV1ToV2()
        return [_decoded(each) for each in self._from_v1.take(raw(from_v1(update)), turn=None)]

    def set_foreground(self, state: str) -> None:
        """Running, or waiting for the user."""
        self.foreground = {"sessionUpdate": "state_update", "state": state}
        told = raw(self.foreground)
        for seat in self.seats:
            seat.tell(told, "state_update", own=False)

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
        self._updated_at = self.authored.timestamp()
        self.publish({"sessionUpdate": "session_info_update", "title": title, "updatedAt": self._updated_at})

    # -- beside its turns ----------------------------------------------------------------------------------------

    def start(self, function: Function, *args: Any) -> None:
        """Run something until it is done or the session ends."""
        if not self.seats:
            raise LocalProtocolError("the session is closed; nothing can be started in it")
        scope = anyio.CancelScope()
        self._background.add(scope)
        self.seats[0].client.tasks.start_soon(self._run, scope, function, args)

    async def _run(self, scope: anyio.CancelScope, function: Function, args: tuple[Any, ...]) -> None:
        try:
            with contained(), scope:
                await call(function, *args)
        except Exception:  # the author's own; it must not end the session
            logger.exception("a background task of session %s failed", self.id)
        finally:
            self._background.discard(scope)

    def stop_background(self) -> None:
        for scope in tuple(self._background):
            scope.cancel()

    # -- keeping -------------------------------------------------------------------------------------------------

    def record(self) -> Kept:
        """As a store keeps it, without its history."""
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
        self._updated_at = self.authored.timestamp()

    async def save(self) -> None:
        """Have the store keep what has changed."""
        await self.keeping.save()

    async def claim(self) -> None:
        """A turn is to begin: say so in the store, and take up what another process kept there since."""
        self.touch()
        await self.save()

    def _save_later(self) -> None:
        if self._is_save_due or not self.seats or not self.is_opened:
            return
        is_idle = self.foreground["state"] == "idle"
        if is_idle or self.history.waiting >= SAVE_AT:
            self._is_save_due = True
            self.seats[0].client.tasks.start_soon(self._save_now)

    async def _save_now(self) -> None:
        self._is_save_due = False
        await self.save()


def _decoded(update: Raw) -> Json:
    return msgspec.json.decode(update, type=dict[str, Any])
