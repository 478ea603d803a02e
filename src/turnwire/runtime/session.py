"""The one loop: a session's inputs become events in its log, and only then are seen and acted upon.

What waits in the inbox is decided, appended, evolved, published, answered and performed, in this order. Never waits
for a peer. Never shows or does what is not stored.

Theory of operation
-------------------
Everything that waits in the inbox is decided as one batch over one draft, appended in one go and published in one
go. So a burst costs a handful of commits, and a lone input is not delayed by any timer. The draft folds the state
ahead of the log; the session adopts that state only after the append, so a failed append leaves it as it was.

    S1  Recorded before shown: `publish` and replies follow the append of the events they speak of.
    S2  Recorded before done: effects follow the append of the events that explain them.
    S3  An input is refused alone: what is wrong with one never touches its neighbours in the batch.
    S4  The log is the truth: when an append fails, the session asks the log what it holds. Nothing stored means
        clients hear the failure and what the agent said is tried again until it is stored; everything stored means
        only the acknowledgement was lost; anything else means that somebody else owns the session now, which an
        engine with owners says itself (`NotOwner`): then nothing was stored.
    S5  Told before done: while a prompt's answer is being written to its client (`hold`), the agent is not asked.
    S6  A place is a place: what the agent said that is in no log is handed on when everything before it is
        published, with the offset that it stands behind (`Place`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import anyio
from anyio.lowlevel import checkpoint

from turnwire.core.codec import encode_all, encode_state
from turnwire.core.decide import take
from turnwire.core.draft import Draft
from turnwire.core.effects import OF_A_TURN, AnyEffect
from turnwire.core.events import RELAXED, AnyEvent
from turnwire.core.inputs import AgentPieces, AnyInput, Detach
from turnwire.core.receipts import Chain
from turnwire.core.state import STATE_VERSION, Phase, SessionState, find_turn
from turnwire.errors import (
    AppendConflict,
    LifeOver,
    LimitExceeded,
    LogError,
    LogUnavailable,
    NotOwner,
    SessionClosed,
    SessionNotFound,
    TurnwireError,
)
from turnwire.ids import Epoch, PromptId, SessionId
from turnwire.limits import Limits
from turnwire.log.base import EventLog, Position, Snapshot
from turnwire.runtime.clock import Clock
from turnwire.runtime.tail import Tail

STATE = "state"
"""Name of the snapshot that holds a session's state."""

MOST_PAUSES = 256
"""Rounds of the loop that a batch leaves to those who tell readers of it: the session waits for no reader."""

Watch: TypeAlias = Callable[[SessionId, Sequence[AnyEvent]], None]
"""Hears what was published. Must not wait and must not raise."""

logger = logging.getLogger(__name__)

Reply: TypeAlias = asyncio.Future[object]


class Place(NamedTuple):
    """The place of something that the agent said and no log has: a request to its client, a notification."""

    reached: Callable[[int], None]
    """Hears the offset of the last event before it, once that can be seen. Must not wait and must not raise."""


Entry: TypeAlias = tuple[AnyInput | Place, Reply | None]


class Inbox:
    """Everything that happens to one session, oldest first. What it took it never drops.

    Bounded twice: the agent's reader waits for room, so a flood fills the pipe and not our memory; clients have
    room of their own and are refused beyond it, so a flood cannot keep a cancel out either. Pieces that came in one
    input count as that many, and are not taken apart: a bound may be passed by what one of these has too many. The
    agent's reader looks for room behind each part of a burst, so what waits is less than its bound and one part.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._entries: deque[Entry] = deque()
        self._replies = 0
        self._said = 0
        """What of it nobody waits for, pieces one by one."""
        self._wanted: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self.is_closed = False

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, input: AnyInput | Place) -> None:
        """Take an input that nobody waits for: the agent's words, deadlines. The caller then awaits `room`."""
        self._entries.append((input, None))
        self._said += len(input.updates) if isinstance(input, AgentPieces) else 1
        self._wake()

    def ask(self, input: AnyInput) -> Reply:
        """Take a client's input; its reply holds the answer or refusal. Raises `LimitExceeded`, `SessionClosed`."""
        if self.is_closed:
            raise SessionClosed("the session is being put away; ask again")
        # Who leaves has nobody to try again for it, and would be attached for ever. Each leaves once.
        if self._replies >= self._limits.client_inputs and not isinstance(input, Detach):
            raise LimitExceeded("too many requests wait for this session; try again", limit="client_inputs")
        reply: Reply = asyncio.get_running_loop().create_future()
        self._entries.append((input, reply))
        self._replies += 1
        self._wake()
        return reply

    async def room(self) -> None:
        """Return once the agent's share is below its bound. Cancel-safe."""
        while self._said >= self._limits.agent_inputs and not self.is_closed:
            if self._room is None or self._room.done():
                self._room = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._room)

    async def take(self) -> list[Entry]:
        """All that waits, up to one batch; waits for the first. Cancel-safe."""
        while not self._entries:
            wanted = self._wanted = asyncio.get_running_loop().create_future()
            await wanted
        return self.take_nowait()

    def take_nowait(self) -> list[Entry]:
        """What waits now, up to one batch; may be nothing."""
        entries, most = self._entries, self._limits.batch_inputs
        if self._said + self._replies <= most:
            batch = list(entries)
            entries.clear()
            self._said = self._replies = 0
        else:
            batch = list[Entry]()
            while most > 0 and entries:
                input, reply = entry = entries.popleft()
                batch.append(entry)
                count = len(input.updates) if isinstance(input, AgentPieces) else 1
                most -= count
                if reply is None:
                    self._said -= count
                else:
                    self._replies -= 1
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        return batch

    def refuse_clients(self, error: TurnwireError) -> None:
        """Answer what clients wait for with an error. What the agent said stays."""
        for _, reply in self._entries:
            _refuse(reply, error)
        self._entries = deque(each for each in self._entries if each[1] is None)
        self._replies = 0

    def close(self) -> None:
        """Take no more from clients, and let nobody wait for room."""
        self.is_closed = True
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _wake(self) -> None:
        wanted = self._wanted
        if wanted is not None:
            self._wanted = None
            if not wanted.done():
                wanted.set_result(None)


class Opened(NamedTuple):
    """A session as the log gave it."""

    session_id: SessionId
    epoch: Epoch
    state: SessionState
    head: int
    chain: Chain
    """Of its receipts, up to the head."""


class Readable(Protocol):
    """A session for who only reads it, wherever its loop runs. It goes on: what is taken of it is of now."""

    @property
    def session_id(self) -> SessionId: ...
    @property
    def epoch(self) -> Epoch: ...
    @property
    def state(self) -> SessionState:
        """What its events come to, up to `head`."""
        ...

    @property
    def head(self) -> int:
        """Its newest event that can be seen here."""
        ...

    @property
    def tail(self) -> Tail: ...


class Session:
    """One session's loop. `run` is its only task; everything else hands over to it."""

    def __init__(self, opened: Opened, log: EventLog, tail: Tail, clock: Clock, limits: Limits) -> None:
        self.session_id = opened.session_id
        self.epoch = opened.epoch
        self.state = opened.state
        self.head = opened.head
        self.chain = opened.chain
        """Of its receipts, up to the head."""
        self.inbox = Inbox(limits)
        self.tail = tail
        self.perform: Callable[[AnyEffect], None] = _nothing
        """Carries out an effect; hands over and returns."""
        self.busy_at = clock.monotonic()
        """When the session last did something."""
        self.watch: Watch = _unwatched
        """Hears every batch of events right after it was published."""
        self._unanswered: dict[PromptId, list[AnyEffect]] = {}
        """What is to be done for prompts whose client has not been answered yet."""
        self._log = log
        self._clock = clock
        self._limits = limits
        self._snapshot_head = opened.head
        self._is_working = False
        self._scope = anyio.CancelScope()

    @property
    def is_at_rest(self) -> bool:
        """Nothing waits and nothing is being done: `state` is what the next input meets."""
        return not (self._is_working or len(self.inbox))

    @property
    def is_idle(self) -> bool:
        """It is at rest, and nothing is owed."""
        return self.is_at_rest and not self.state.unsettled

    def stop(self) -> None:
        """End the loop. Only for a session at rest: what waits is refused, what is being stored may be shown."""
        self.inbox.close()
        self._scope.cancel()

    async def submit(self, input: AnyInput) -> object:
        """What a client wants: its answer, once it is stored. Raises the refusal, or the failure of the log.

        If the caller is cancelled, the input may still be taken.
        """
        return await self.inbox.ask(input)

    def hold(self, prompt_id: PromptId) -> None:
        """Do nothing for this prompt before `answered`: its client shall hear of it first (S5)."""
        self._unanswered[prompt_id] = []

    def answered(self, prompt_id: PromptId) -> None:
        """The client has its answer, or has left. What waits is done, unless the turn is over, or this loop is.

        Then the session was put away, or another node has it, and whoever opens it does what is owed.
        """
        for effect in self._unanswered.pop(prompt_id, ()):
            if not self.inbox.is_closed and find_turn(self.state, prompt_id) is not None:
                self.perform(effect)

    async def run(self) -> None:
        """Take batches for ever. A failure that is not the input's own ends the session's loop, not the node."""
        batch: list[Entry] = []
        refusal: TurnwireError = LogUnavailable("the session stopped before this was taken; ask again")
        try:
            with self._scope:
                while True:
                    batch = await self.inbox.take()
                    self._is_working = True
                    await self._settle(batch)
                    self._is_working, batch = False, []
                    # A log may have stored it without a pause, and there is no other here. Whoever is just being
                    # told of it is told first, or a burst would leave all its readers behind the ring.
                    pauses = 0
                    while pauses < MOST_PAUSES and (self.tail.walks or (len(self.inbox) and not pauses)):
                        pauses += 1
                        await checkpoint()
        except (NotOwner, LifeOver) as error:
            # Nothing of it was stored, so whoever asked may ask the owner.
            refusal = error
            raise
        finally:
            self.inbox.close()
            while batch or len(self.inbox):
                for _, reply in batch:
                    _refuse(reply, refusal)
                batch = self.inbox.take_nowait()

    async def _settle(self, batch: list[Entry]) -> None:
        draft, answers, places = self._decide(batch)
        while draft.events and not await self._append(draft, answers):
            # What clients asked has been refused; the rest are facts, tried again with what came since. In place,
            # so that `run` knows who waits if the loop ends here.
            batch[:] = [(input, reply) for input, reply in batch if reply is None]
            await self._clock.sleep(self._limits.log_retry_s)
            batch.extend(self.inbox.take_nowait())
            draft, answers, places = self._decide(batch)
        # Nothing waits from here to the effects, so nobody sees a state without its events or the reverse.
        self.state = draft.state
        for place, offset in places:
            place.reached(offset)
        for reply, answer in answers:
            if not reply.done():
                reply.set_result(answer)
        for effect in draft.effects:
            held = self._unanswered.get(effect.prompt_id) if isinstance(effect, OF_A_TURN) else None
            if held is None:
                self.perform(effect)
            else:
                held.append(effect)
        self.busy_at = self._clock.monotonic()
        if self.head - self._snapshot_head >= self._limits.snapshot_events:
            await self.save_snapshot()

    def _decide(self, batch: list[Entry]) -> _Decided:
        draft = Draft(self.state, self.head, self._limits)
        answers: list[tuple[Reply, object]] = []
        places: list[tuple[Place, int]] = []
        for input, reply in batch:
            if isinstance(input, Place):
                places.append((input, self.head + len(draft.events)))
                continue
            try:
                answer = take(draft, input)
            except TurnwireError as error:
                if reply is None:
                    extra = {"event": "input_refused", "session": self.session_id, "code": error.code}
                    logger.warning("an input was refused: %s", type(input).__name__, extra=extra)
                _refuse(reply, error)
            else:
                if reply is not None:
                    answers.append((reply, answer))
        return _Decided(draft, answers, places)

    async def _append(self, draft: Draft, answers: list[tuple[Reply, object]]) -> bool:
        """Store and show the draft's events. False if nothing was stored and it is worth trying again."""
        bodies, sealed = encode_all(draft.events), None
        durable = not RELAXED.issuperset(map(type, draft.events))
        if durable:
            # What is not stored after all has no place in the chain. No end of a turn is relaxed.
            sealed = self.chain.copy()
            sealed.seal(draft.events, bodies, draft.runs)
        try:
            await self._log.append(
                self.session_id,
                bodies,
                expected=self.head,
                unsettled=draft.state.unsettled,
                durable=durable,
            )
        except LogError as error:
            if not await self._is_stored(bodies, error):
                for reply, _ in answers:
                    _refuse(reply, error)
                return False
        self.head += len(bodies)
        if sealed is None:
            self.chain.take(bodies, draft.runs)
        else:
            self.chain = sealed
        self.tail.publish(bodies)
        assert self.tail.head == self.head, "the ring ends where the log does"
        if draft.state.phase is Phase.CLOSED:
            self.tail.end()
        self.watch(self.session_id, draft.events)
        return True

    async def _is_stored(self, bodies: list[bytes], error: LogError) -> bool:
        """What the log holds after a failed append (S4). Raises when the session is not ours any more."""
        if isinstance(error, NotOwner) or not isinstance(error, LogUnavailable | AppendConflict):
            raise error
        while True:
            try:
                return await self._holds(bodies, error)
            except LogUnavailable as unavailable:
                # The fate of this batch is not known. What came since is in no log, so nobody has to wait for it.
                self.inbox.refuse_clients(unavailable)
                await self._clock.sleep(self._limits.log_retry_s)

    async def _holds(self, bodies: list[bytes], error: LogError) -> bool:
        head = (await self._log.head(self.session_id)).head
        if head == self.head and isinstance(error, LogUnavailable):
            logger.warning("the log takes nothing now", extra={"event": "log_unavailable", "code": error.code})
            return False
        after = Position(self.epoch, self.head)
        held = await self._log.read(
            self.session_id, after, max_events=len(bodies) + 1, max_bytes=sum(map(len, bodies)) + 1
        )
        if [each.body for each in held] != bodies:
            raise AppendConflict("another owner writes to this session") from error
        return True

    async def save_snapshot(self) -> None:
        """Keep the state, so that the session opens without folding its whole log. Losing it loses only time."""
        snapshot = Snapshot(STATE, self.head, STATE_VERSION, encode_state(self.state, self.chain))
        self._snapshot_head = self.head
        try:
            await self._log.save_snapshot(self.session_id, snapshot)
        except (LogError, SessionNotFound) as error:
            logger.warning("a snapshot was not kept", extra={"event": "snapshot_not_kept", "code": error.code})


class _Decided(NamedTuple):
    """What a batch comes to."""

    draft: Draft
    answers: list[tuple[Reply, object]]
    places: list[tuple[Place, int]]


def _unwatched(session_id: SessionId, events: Sequence[AnyEvent]) -> None:
    """Nobody looks on."""


def _nothing(effect: AnyEffect) -> None:
    """Before an agent is attached there is nobody to act."""


def _refuse(reply: Reply | None, error: TurnwireError) -> None:
    if reply is not None and not reply.done():
        reply.set_exception(error)
