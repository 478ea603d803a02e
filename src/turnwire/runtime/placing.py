"""Which sessions this node has: how it comes to them, and how it lets them go.

A node that has its log alone has all of them; what the process before it left open is listed at its start. Where
nodes share a log (`turnwire.log.owners`), a session is claimed before it is opened, and released when it is put
away. In both cases a session that comes here is first told what became of its last owner (`Recover`), once.

What a life left unsettled that is gone is taken over without anybody asking, some sessions at a time, so that the
nodes that are left share the work. One of our own place goes on here. Of another place this node is the *trustee*:
it records what is owed, holds the queue and lets the session go. Its queue goes on once a node of its place is
there, which finds it unsettled and free, and adopts it.

No answer of the database is relied upon: who heard none looks later for what is ours and was not told so.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from enum import Enum, auto
from typing import Final, NamedTuple

import anyio

from turnwire.core.ending import NODE_LOST, RESTARTED
from turnwire.errors import LifeOver, LogError, LogUnavailable, NotOwner, ShuttingDown, TurnwireError
from turnwire.ids import SessionId
from turnwire.log.base import EventLog, SessionHead
from turnwire.log.owners import Claim, Owners
from turnwire.runtime.clock import Clock

logger = logging.getLogger(__name__)

RECOVERED_AT_ONCE: Final = 64
"""Sessions that are recovered side by side: as many as share one commit of the log."""
TAKEN_AT_ONCE: Final = 32
"""Sessions that are taken over with one statement. What one node takes the others need not."""
LOOKED_EVERY_S: Final = 0.5
"""How soon it is found what a life has left that was declared gone, or what a drain or a trustee has let go."""


class Standing(Enum):
    """What this node may do."""

    SERVING = auto()
    LEAVING = auto()
    """It ends what it has, and comes to nothing new."""
    LOST = auto()
    """Its life is over: others may act for its sessions."""


class Debt(NamedTuple):
    """What a session has to be told that comes here."""

    code: str
    """What became of its last owner."""
    head: SessionHead | None = None
    """Where its log stands, if that is known."""


class Placing:
    """The sessions that a node has. It opens none itself: `opens` and `concludes` are the node's."""

    def __init__(
        self,
        owners: Owners,
        log: EventLog,
        clock: Clock,
        *,
        opens: Callable[[SessionId], Awaitable[object]],
        concludes: Callable[[SessionId, Debt], Awaitable[None]],
        later: Callable[[SessionId], None],
    ) -> None:
        """`concludes` records what is owed to a session of another place. `later` opens one once the log can."""
        self._owners = owners
        self._log = log
        self._clock = clock
        self._opens = opens
        self._concludes = concludes
        self._later = later
        self._standing = Standing.SERVING
        self._held: set[SessionId] = set()
        """Sessions that are ours, and what was owed to them has been paid."""
        self._owed: dict[SessionId, Debt] = {}
        """Sessions that are ours, and what is owed to them has not been paid yet."""
        self._failed: set[SessionId] = set()
        """Sessions whose loop failed here: no other node is to blame."""
        self._unconcluded: dict[SessionId, str] = {}
        """Sessions of other places that are ours, to which could not be recorded what is owed."""
        self._is_unsure = False
        """Something may be ours of which we have not heard, or is ours and could not be opened."""
        self._recovered = anyio.Event()

    # -- what the node asks before it acts -------------------------------------------------------------------

    @property
    def is_shared(self) -> bool:
        """Whether other nodes use this log."""
        return not self._owners.is_sole

    @property
    def held(self) -> Collection[SessionId]:
        """Sessions that came here and were not let go."""
        return self._held

    @property
    def is_recovering(self) -> bool:
        return not self._recovered.is_set()

    async def recovered(self) -> None:
        """Return once all that was left open when this node began has been looked at."""
        await self._recovered.wait()

    def is_owed(self, session_id: SessionId) -> bool:
        """Whether the session has yet to be told what became of its last owner."""
        return session_id in self._owed

    def check_life(self) -> None:
        """Whether this node may act for what it has. Raises `LifeOver`."""
        if self._standing is Standing.LOST:
            raise LifeOver("this node was cut off, and others have its sessions; ask again")

    def check(self) -> None:
        """Whether this node may come to a session. Raises `LifeOver`, `ShuttingDown`."""
        self.check_life()
        if self._standing is Standing.LEAVING:
            raise ShuttingDown("this node is about to stop; ask again, another one answers")

    async def claim(self, session_id: SessionId) -> Debt | None:
        """Make a session ours that is to be opened; gives what it has to be told, none if it was ours before.

        Raises `NotOwner`, whose context may name the `owner`, `SessionNotFound`, and as `check` does.
        """
        if session_id in self._held:
            return None
        if (owed := self._owed.get(session_id)) is not None:
            return owed
        if self.is_shared:
            self.check()
            return await self._claim(session_id)
        return Debt(RESTARTED)

    async def _claim(self, session_id: SessionId) -> Debt:
        head = (await self._owners.claim(session_id)).head
        is_restart = not head.unsettled or session_id in self._failed
        return Debt(RESTARTED if is_restart else self._lost_by, head)

    @property
    def _lost_by(self) -> str:
        """What became of an owner that nobody can name: at our start it was most likely we ourselves."""
        return RESTARTED if self.is_recovering else NODE_LOST

    def paid(self, session_id: SessionId) -> None:
        """The session is open, or made, and owes nothing of old."""
        self._held.add(session_id)
        self._owed.pop(session_id, None)
        self._failed.discard(session_id)

    def unpaid(self) -> None:
        """A session could not be opened, though it may be ours."""
        self._is_unsure = True

    def failed(self, session_id: SessionId) -> None:
        """The session's loop failed: the next opening owes what a restart owes."""
        self._held.discard(session_id)
        self._failed.add(session_id)

    def forget(self, session_id: SessionId) -> None:
        """The session is deleted, or another node's."""
        self._held.discard(session_id)
        self._owed.pop(session_id, None)
        self._failed.discard(session_id)

    async def release(self, session_id: SessionId) -> None:
        """Let anybody have a session that was put away. One that cannot be told of stays ours, and idle."""
        if self.is_shared and session_id in self._held:
            self.forget(session_id)
            try:
                await self._owners.release(session_id)
            except LogError as error:
                extra = {"event": "session_not_released", "session": session_id, "code": error.code}
                logger.warning("a session could not be released", extra=extra)

    async def leave(self) -> None:
        """Come to nothing new: this node is about to stop."""
        if self.is_shared and self._standing is Standing.SERVING:
            self._standing = Standing.LEAVING
            try:
                await self._owners.set_draining()
            except LogError as error:
                extra = {"event": "draining_not_told", "code": error.code}
                logger.warning("other nodes could not be told that this one stops", extra=extra)

    def lose(self) -> None:
        """This life is over."""
        self._standing = Standing.LOST
        self._held.clear()
        self._owed.clear()

    # -- what is taken over without anybody asking ------------------------------------------------------------

    async def list_owed(self) -> bool:
        """Note what the process before this one left open. False if there is nothing to `run` for."""
        if self.is_shared:
            return True
        after: SessionId | None = None
        while heads := await self._log.sessions(unsettled_only=True, after=after):
            after = heads[-1].session_id
            self._owed.update((head.session_id, Debt(RESTARTED, head)) for head in heads)
        if not self._owed:
            self._recovered.set()
        return bool(self._owed)

    async def run(self) -> None:
        """Recover what is owed; where nodes share the log, look for more for ever."""
        if not self.is_shared:
            await self._recover(list(self._owed))
            self._recovered.set()
            return
        is_first = True
        while self._standing is Standing.SERVING:
            try:
                await self._look(is_first=is_first)
                is_first = False
                self._recovered.set()
            except LifeOver:
                return
            except LogError as error:
                self._is_unsure = True
                extra = {"event": "nothing_taken_over", "code": error.code}
                logger.warning("what other nodes left open cannot be looked for now", extra=extra)
            await self._clock.sleep(LOOKED_EVERY_S)

    async def _look(self, *, is_first: bool) -> None:
        unconcluded, self._unconcluded = self._unconcluded, {}
        for session_id, code in unconcluded.items():
            await self._conclude(session_id, Debt(code))
        if is_first:
            for life in await self._owners.succeed():
                await self.inherit(life, is_ours=True)
        for life in await self._owners.gone_with_sessions():
            await self.inherit(life)
        await self.adopt()
        if self._is_unsure:
            self._is_unsure = False
            await self._find_unheard()

    async def inherit(self, life: int, *, is_ours: bool = False) -> None:
        """Take over what a life left unsettled that is gone. `is_ours`: it was an earlier one of this node."""
        code = RESTARTED if is_ours else NODE_LOST
        while self._standing is Standing.SERVING and (claims := await self._owners.steal(life, TAKEN_AT_ONCE)):
            await self._take_over(claims, code)

    async def adopt(self) -> None:
        """Take over what is of our place, unsettled and free."""
        while self._standing is Standing.SERVING and (claims := await self._owners.adopt(TAKEN_AT_ONCE)):
            await self._take_over(claims, self._lost_by)

    async def _take_over(self, claims: list[Claim], code: str) -> None:
        ours = [each.head for each in claims if each.place == self._owners.place]
        self._owed.update((head.session_id, Debt(code, head)) for head in ours)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._recover, [head.session_id for head in ours])
            for each in claims:
                if each.place != self._owners.place:
                    tasks.start_soon(self._conclude, each.head.session_id, Debt(code, each.head))

    async def _conclude(self, session_id: SessionId, debt: Debt) -> None:
        try:
            await self._concludes(session_id, debt)
        except LogUnavailable:
            self._unconcluded[session_id] = debt.code
        except TurnwireError as error:
            _not_recovered(session_id, error)

    async def _recover(self, session_ids: Collection[SessionId]) -> None:
        """Open all of them; opening pays what is owed."""
        waiting = iter(session_ids)
        async with anyio.create_task_group() as tasks:
            for _ in range(min(RECOVERED_AT_ONCE, len(session_ids))):
                tasks.start_soon(self._recover_each, waiting)

    async def _recover_each(self, waiting: Iterator[SessionId]) -> None:
        for session_id in waiting:
            try:
                await self._opens(session_id)
            except LogUnavailable:
                self._later(session_id)
            except TurnwireError as error:
                _not_recovered(session_id, error)
                # It is read as it was left: nothing better will come.
                self._owed.pop(session_id, None)

    async def _find_unheard(self) -> None:
        """Open what is ours, unsettled and not held: the answer that gave it to us was lost, or opening failed."""
        after: SessionId | None = None
        while heads := await self._log.sessions(unsettled_only=True, after=after):
            after = heads[-1].session_id
            for head in heads:
                if head.session_id not in self._held and head.session_id not in self._owed:
                    await self._open_unheard(head.session_id)

    async def _open_unheard(self, session_id: SessionId) -> None:
        try:
            if await self._owners.owner(session_id) == self._owners.life:
                await self._opens(session_id)
        except NotOwner:
            # It is of another place, and was to be concluded. A node of that place does it.
            await self._owners.release(session_id)
        except LogUnavailable:
            raise
        except TurnwireError as error:
            _not_recovered(session_id, error)


def _not_recovered(session_id: SessionId, error: TurnwireError) -> None:
    extra = {"event": "recovery_failed", "session": session_id, "code": error.code}
    logger.exception("a session could not be recovered", extra=extra, exc_info=error)
