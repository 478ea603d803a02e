"""The sessions that this node has: how it acquires and releases them.

A node with an unshared log has all sessions; those that the previous process left open are listed on start. If
nodes share a log (`turnwire.log.owners`), a session is claimed before it is opened and released when it is
unloaded. In both cases an acquired session first records the fate of its last owner (`Recover`), once.

The unsettled sessions of a dead incarnation are taken over without a request, in batches, so that the remaining
nodes share the work. A session of this node's place continues here. For a session of another place this node is the
*trustee*: it records the debt, holds the queue and releases the session. The queue continues once a node of that
place is running, which finds the session unsettled and free and adopts it.

Database answers are not relied upon: a node that missed one looks later for sessions it may own without knowing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from enum import Enum, auto
from typing import Final, NamedTuple

import anyio

from turnwire.clock import Clock
from turnwire.errors import LifeOver, LogError, LogUnavailable, NotOwner, ShuttingDown, TurnwireError
from turnwire.ids import SessionId
from turnwire.log.base import EventLog, SessionHead
from turnwire.log.owners import Claim, Owners
from turnwire.session.ending import NODE_LOST, RESTARTED

logger = logging.getLogger(__name__)

RECOVERED_AT_ONCE: Final = 64
"""Sessions that are recovered in parallel: as many as share one commit of the log."""
TAKEN_AT_ONCE: Final = 32
"""Sessions that are taken over with one statement; the other nodes need not take over the same ones."""
LOOKED_EVERY_S: Final = 0.5
"""Interval of the search for sessions of a dead incarnation, and for those a drain or a trustee has released."""


class Standing(Enum):
    """The permissions of this node."""

    SERVING = auto()
    LEAVING = auto()
    """It finishes its sessions and acquires no new ones."""
    LOST = auto()
    """Its incarnation is over: other nodes may act for its sessions."""


class Debt(NamedTuple):
    """The record that an acquired session still needs."""

    code: str
    """The fate of its last owner."""
    head: SessionHead | None = None
    """The head of its log, if known."""


class Placing:
    """The sessions that a node has. It opens none itself: it calls the node's `opens` and `concludes`."""

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
        """`concludes` records the debt of a session of another place. `later` opens a session once the log is
        available.
        """
        self._owners = owners
        self._log = log
        self._clock = clock
        self._opens = opens
        self._concludes = concludes
        self._later = later
        self._standing = Standing.SERVING
        self._held: set[SessionId] = set()
        """Sessions of this node without a debt."""
        self._owed: dict[SessionId, Debt] = {}
        """Sessions of this node with a debt."""
        self._failed: set[SessionId] = set()
        """Sessions whose loop failed here: no other node is to blame."""
        self._unconcluded: dict[SessionId, str] = {}
        """Sessions of other places that this node owns because their debt could not be recorded."""
        self._is_unsure = False
        """This node may own a session without knowing, or owns one that could not be opened."""
        self._recovered = anyio.Event()

    # -- checks and claims -----------------------------------------------------------------------------------

    @property
    def is_shared(self) -> bool:
        """True if other nodes use this log."""
        return not self._owners.is_sole

    @property
    def held(self) -> Collection[SessionId]:
        """Sessions that this node has acquired and not released."""
        return self._held

    @property
    def is_recovering(self) -> bool:
        return not self._recovered.is_set()

    async def recovered(self) -> None:
        """Return once recovery of every session left open before this node's start has been tried."""
        await self._recovered.wait()

    def is_owed(self, session_id: SessionId) -> bool:
        """Return true if the fate of the session's last owner is not recorded yet."""
        return session_id in self._owed

    def check_life(self) -> None:
        """Raise `LifeOver` if this node may not act for its sessions any more."""
        if self._standing is Standing.LOST:
            raise LifeOver("this node was cut off, and others have its sessions; ask again")

    def check(self) -> None:
        """Raise `LifeOver` or `ShuttingDown` if this node may not acquire sessions."""
        self.check_life()
        if self._standing is Standing.LEAVING:
            raise ShuttingDown("this node is about to stop; ask again, another one answers")

    async def claim(self, session_id: SessionId) -> Debt | None:
        """Claim a session that is to be opened; return its debt, or `None` if this node had it already.

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
        """The fate of an unknown owner: during our start it was most likely this node."""
        return RESTARTED if self.is_recovering else NODE_LOST

    def paid(self, session_id: SessionId) -> None:
        """The session is open or was created, and its debt is recorded."""
        self._held.add(session_id)
        self._owed.pop(session_id, None)
        self._failed.discard(session_id)

    def unpaid(self) -> None:
        """A session could not be opened, though this node may own it."""
        self._is_unsure = True

    def failed(self, session_id: SessionId) -> None:
        """The session's loop failed: the next opening recovers as after a restart."""
        self._held.discard(session_id)
        self._failed.add(session_id)

    def forget(self, session_id: SessionId) -> None:
        """The session is deleted, or belongs to another node."""
        self._held.discard(session_id)
        self._owed.pop(session_id, None)
        self._failed.discard(session_id)

    async def release(self, session_id: SessionId) -> None:
        """Release a session that was unloaded. If the log cannot be reached it stays ours, and idle."""
        if self.is_shared and session_id in self._held:
            self.forget(session_id)
            try:
                await self._owners.release(session_id)
            except LogError as error:
                extra = {"event": "session_not_released", "session": session_id, "code": error.code}
                logger.warning("a session could not be released", extra=extra)

    async def leave(self) -> None:
        """Acquire no more sessions: this node is about to stop."""
        if self.is_shared and self._standing is Standing.SERVING:
            self._standing = Standing.LEAVING
            try:
                await self._owners.set_draining()
            except LogError as error:
                extra = {"event": "draining_not_told", "code": error.code}
                logger.warning("other nodes could not be told that this one stops", extra=extra)

    def lose(self) -> None:
        """This incarnation is over."""
        self._standing = Standing.LOST
        self._held.clear()
        self._owed.clear()

    # -- recovery and takeover --------------------------------------------------------------------------------

    async def list_owed(self) -> bool:
        """List the sessions that the previous process left open. Return false if there is nothing to `run` for."""
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
        """Recover sessions with a debt; if nodes share the log, keep looking for more."""
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
        """Take over the unsettled sessions of a dead incarnation. `is_ours`: it was an earlier one of this node."""
        code = RESTARTED if is_ours else NODE_LOST
        while self._standing is Standing.SERVING and (claims := await self._owners.steal(life, TAKEN_AT_ONCE)):
            await self._take_over(claims, code)

    async def adopt(self) -> None:
        """Take over unsettled sessions of this node's place that have no owner."""
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
        """Open all of them; opening records the debt."""
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
                # It is read in its last state: another attempt would not help.
                self._owed.pop(session_id, None)

    async def _find_unheard(self) -> None:
        """Open sessions that this node owns, that are unsettled and not held: the reply to the claim was lost, or
        opening failed.
        """
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
            # It belongs to another place, and its debt was to be recorded here. A node of that place will do it.
            await self._owners.release(session_id)
        except LogUnavailable:
            raise
        except TurnwireError as error:
            _not_recovered(session_id, error)


def _not_recovered(session_id: SessionId, error: TurnwireError) -> None:
    extra = {"event": "recovery_failed", "session": session_id, "code": error.code}
    logger.exception("a session could not be recovered", extra=extra, exc_info=error)
