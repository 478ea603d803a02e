"""The session loop: inputs become events in the log, and only then are published and acted upon.

The inbox's content is decided, appended, evolved, published, answered and performed, in this order. The loop never
waits for a peer. It never shows or performs anything that is not stored.

Theory of operation
-------------------
Everything in the inbox is decided as one batch over one draft, appended in one transaction and published at once.
So a burst of inputs costs a handful of commits, and a single input is not delayed by any timer. The draft folds the
state ahead of the log; the session adopts that state only after the append, so a failed append changes nothing.

    S1  Recorded before shown: `publish` and replies follow the append of the events they refer to.
    S2  Recorded before done: effects follow the append of the events that explain them.
    S3  An input is rejected alone: an error in one never affects the other inputs of the batch.
    S4  The log is the truth: when an append fails, the session reads the log. If nothing is stored, clients receive
        the failure and agent inputs are retried until they are stored. If everything is stored, only the
        acknowledgement was lost. Anything else means that another node owns the session now. An engine with owners
        reports that itself (`NotOwner`): then nothing was stored.
    S5  Answered before done: while a prompt's answer is being written to its client (`hold`), the prompt is not
        sent to the agent.
    S6  Order holds for frames that no log stores: each is passed on when every event before it is published,
        with the offset of the last of them (`Barrier`).
    S7  An append of what an agent said is announced to the agent's notes, if it has any, before it is made. So the
        next owner knows from the log's head which of the agent's frames are in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import anyio
from anyio.lowlevel import checkpoint

from turnwire.clock import Clock
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
from turnwire.runtime.tail import Tail
from turnwire.session.codec import encode_all, encode_state
from turnwire.session.decide import take
from turnwire.session.draft import Draft
from turnwire.session.effects import OF_A_TURN, AnyEffect
from turnwire.session.events import RELAXED, AnyEvent
from turnwire.session.inputs import AgentPieces, AnyInput, Barrier, Detach
from turnwire.session.receipts import Chain, seal
from turnwire.session.state import STATE_VERSION, Phase, SessionState, find_turn

STATE = "state"
"""Name of the snapshot that holds a session's state."""

MOST_PAUSES = 256
"""Event loop rounds that a batch yields to the tasks that notify readers of it. The session waits for no reader."""

Watch: TypeAlias = Callable[[SessionId, Sequence[AnyEvent]], None]
"""Receives published events. Must not wait and must not raise."""

logger = logging.getLogger(__name__)

Reply: TypeAlias = asyncio.Future[object]


Entry: TypeAlias = tuple[AnyInput | Barrier, Reply | None, int]
"""An input, its reply, and the number of the agent's frame that it came from; 0 for any other."""


class Inbox:
    """The inputs of one session, oldest first. It never drops an accepted input.

    It has two bounds. The agent's reader waits for room, so a flood fills the pipe and not our memory. Clients have
    a separate bound and are rejected beyond it, so a flood cannot block a cancel either. Chunks that came in one
    input count one by one but are not split: the last such input may exceed the bound. The agent's reader checks
    for room after each part of a batch, so the agent's queued inputs stay below the bound plus one part.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._entries: deque[Entry] = deque()
        self._replies = 0
        self._said = 0
        """Queued agent inputs; every chunk of a batch counts."""
        self._wanted: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self.is_closed = False

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, input: AnyInput | Barrier, frame: int = 0) -> None:
        """Enqueue an input without a reply: agent messages and deadlines. The caller then awaits `room`."""
        self._entries.append((input, None, frame))
        self._said += len(input.updates) if isinstance(input, AgentPieces) else 1
        self._wake()

    def ask(self, input: AnyInput) -> Reply:
        """Enqueue a client's input and return its reply, the answer or rejection. Raises `LimitExceeded`,
        `SessionClosed`.
        """
        if self.is_closed:
            raise SessionClosed("the session is being put away; ask again")
        # A client that disconnects cannot retry and would stay attached forever. Each client detaches only once.
        if self._replies >= self._limits.client_inputs and not isinstance(input, Detach):
            raise LimitExceeded("too many requests wait for this session; try again", limit="client_inputs")
        reply: Reply = asyncio.get_running_loop().create_future()
        self._entries.append((input, reply, 0))
        self._replies += 1
        self._wake()
        return reply

    async def room(self) -> None:
        """Return once the number of agent inputs is below its bound. Cancel-safe."""
        while self._said >= self._limits.agent_inputs and not self.is_closed:
            if self._room is None or self._room.done():
                self._room = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._room)

    async def take(self) -> list[Entry]:
        """Dequeue all inputs, up to one batch; wait for the first. Cancel-safe."""
        while not self._entries:
            wanted = self._wanted = asyncio.get_running_loop().create_future()
            await wanted
        return self.take_nowait()

    def take_nowait(self) -> list[Entry]:
        """Dequeue the inputs that are queued now, up to one batch; possibly none."""
        entries, most = self._entries, self._limits.batch_inputs
        if self._said + self._replies <= most:
            batch = list(entries)
            entries.clear()
            self._said = self._replies = 0
        else:
            batch = list[Entry]()
            while most > 0 and entries:
                input, reply, _ = entry = entries.popleft()
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
        """Answer all queued client inputs with an error. Agent inputs stay queued."""
        for _, reply, _ in self._entries:
            _refuse(reply, error)
        self._entries = deque(each for each in self._entries if each[1] is None)
        self._replies = 0

    def close(self) -> None:
        """Reject further client inputs, and release all callers that wait for room."""
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
    """A session as loaded from the log."""

    session_id: SessionId
    epoch: Epoch
    state: SessionState
    head: int
    chain: Chain
    """Chain of receipts, up to the head."""


class Readable(Protocol):
    """A session for readers, wherever its loop runs. It changes over time: each attribute is the current value."""

    @property
    def session_id(self) -> SessionId: ...
    @property
    def epoch(self) -> Epoch: ...
    @property
    def state(self) -> SessionState:
        """The fold of its events up to `head`."""
        ...

    @property
    def head(self) -> int:
        """The newest event that is visible here."""
        ...

    @property
    def tail(self) -> Tail: ...


class FrameJournal(Protocol):
    """Notes with the agent about its frames (`hosting.hosted_session`)."""

    async def record(self, frame: int, epoch: Epoch, head: int) -> None:
        """Note that the log has the frames up to this one, if it reaches `head`."""
        ...

    def recorded(self, frame: int) -> None:
        """The frames up to this one are dealt with."""
        ...


class Session:
    """One session's loop. `run` is its only task; all other methods pass work to it."""

    def __init__(self, opened: Opened, log: EventLog, tail: Tail, clock: Clock, limits: Limits) -> None:
        self.session_id = opened.session_id
        self.epoch = opened.epoch
        self.state = opened.state
        self.head = opened.head
        self.chain = opened.chain
        """Chain of receipts, up to the head."""
        self.inbox = Inbox(limits)
        self.tail = tail
        self.perform: Callable[[AnyEffect], None] = _nothing
        """Performs an effect; enqueues it and returns."""
        self.journal: FrameJournal | None = None
        """Records which frames of the agent are in the log, if the agent outlives this process."""
        self.busy_at = clock.monotonic()
        """Time of the session's last activity."""
        self.watch: Watch = _unwatched
        """Receives every batch of events right after it was published."""
        self._unanswered: dict[PromptId, list[AnyEffect]] = {}
        """Deferred effects of prompts whose client has not been answered yet."""
        self._log = log
        self._clock = clock
        self._limits = limits
        self._snapshot_head = opened.head
        self._is_working = False
        self._scope = anyio.CancelScope()

    @property
    def is_at_rest(self) -> bool:
        """True if no input is queued or being processed: `state` is the state that the next input meets."""
        return not (self._is_working or len(self.inbox))

    @property
    def is_idle(self) -> bool:
        """True if it is at rest and settled: no turn is open and no prompt is queued."""
        return self.is_at_rest and not self.state.unsettled

    def stop(self) -> None:
        """End the loop. Only for a session at rest: queued inputs are rejected, a batch being stored may still be
        published.
        """
        self.inbox.close()
        self._scope.cancel()

    async def submit(self, input: AnyInput) -> object:
        """Enqueue a client's input and return its answer once it is stored. Raises the rejection, or the log's
        failure.

        If the caller is cancelled, the input may still be accepted.
        """
        return await self.inbox.ask(input)

    def hold(self, prompt_id: PromptId) -> None:
        """Defer the effects of this prompt until `answered`: its client is answered first (S5)."""
        self._unanswered[prompt_id] = []

    def answered(self, prompt_id: PromptId) -> None:
        """The client has its answer or has disconnected. Perform deferred effects, unless the turn or this loop is
        over.

        If the loop is over, the session was unloaded or another node has it, and its next owner recovers the
        effects.
        """
        for effect in self._unanswered.pop(prompt_id, ()):
            if not self.inbox.is_closed and find_turn(self.state, prompt_id) is not None:
                self.perform(effect)

    async def run(self) -> None:
        """Process batches forever. A failure other than an input's own ends the session's loop, not the node."""
        batch: list[Entry] = []
        refusal: TurnwireError = LogUnavailable("the session stopped before this was taken; ask again")
        try:
            with self._scope:
                while True:
                    batch = await self.inbox.take()
                    self._is_working = True
                    await self._settle(batch)
                    self._is_working, batch = False, []
                    # A log may have stored the batch without yielding, and the loop has no other yield. Let the
                    # readers that are being notified run first, or a burst would leave all of them behind the ring.
                    pauses = 0
                    while pauses < MOST_PAUSES and (self.tail.walks or (len(self.inbox) and not pauses)):
                        pauses += 1
                        await checkpoint()
        except (NotOwner, LifeOver) as error:
            # Nothing of the batch was stored, so clients may ask the owner.
            refusal = error
            raise
        finally:
            self.inbox.close()
            while batch or len(self.inbox):
                for _, reply, _ in batch:
                    _refuse(reply, refusal)
                batch = self.inbox.take_nowait()

    async def _settle(self, batch: list[Entry]) -> None:
        draft, answers, barriers = self._decide(batch)
        while draft.events and not await self._append(draft, answers, max(frame for *_, frame in batch)):
            # Client inputs have been rejected; the rest are facts, retried together with new inputs. In place, so
            # that `run` knows the waiting clients if the loop ends here.
            batch[:] = [each for each in batch if each[1] is None]
            await self._clock.sleep(self._limits.log_retry_s)
            batch.extend(self.inbox.take_nowait())
            draft, answers, barriers = self._decide(batch)
        # There is no await from here to the effects, so no reader sees a state without its events or the reverse.
        self.state = draft.state
        if (frame := max(frame for *_, frame in batch)) and self.journal is not None:
            self.journal.recorded(frame)
        for barrier, offset in barriers:
            barrier.reached(offset)
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
        barriers: list[tuple[Barrier, int]] = []
        for input, reply, _ in batch:
            if isinstance(input, Barrier):
                barriers.append((input, self.head + len(draft.events)))
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
        return _Decided(draft, answers, barriers)

    async def _append(self, draft: Draft, answers: list[tuple[Reply, object]], frame: int) -> bool:
        """Store and publish the draft's events. Return false if nothing was stored and a retry is useful."""
        bodies, sealed = encode_all(draft.events), None
        durable = not RELAXED.issuperset(map(type, draft.events))
        if durable:
            # Events that are not stored in the end have no place in the chain. The end of a turn is never relaxed.
            sealed = seal(self.chain.copy(), draft.events, bodies)
        if frame and self.journal is not None:
            await self.journal.record(frame, self.epoch, self.head + len(bodies))
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
            self.chain.take(bodies)
        else:
            self.chain = sealed
        self.tail.publish(bodies)
        assert self.tail.head == self.head, "the ring ends where the log does"
        if draft.state.phase is Phase.CLOSED:
            self.tail.end()
        self.watch(self.session_id, draft.events)
        return True

    async def _is_stored(self, bodies: list[bytes], error: LogError) -> bool:
        """Return true if the log holds the batch after a failed append (S4). Raises if another node owns the
        session now.
        """
        if isinstance(error, NotOwner) or not isinstance(error, LogUnavailable | AppendConflict):
            raise error
        while True:
            try:
                return await self._holds(bodies, error)
            except LogUnavailable as unavailable:
                # The fate of this batch is unknown. Newer inputs are certainly not stored, so their clients need
                # not wait.
                self.inbox.refuse_clients(unavailable)
                await self._clock.sleep(self._limits.log_retry_s)

    async def _holds(self, bodies: list[bytes], error: LogError) -> bool:
        head = (await self._log.head(self.session_id)).head
        if head == self.head and isinstance(error, LogUnavailable):
            logger.warning(
                "the event log cannot be written; trying again",
                extra={"event": "log_unavailable", "code": error.code},
            )
            return False
        after = Position(self.epoch, self.head)
        held = await self._log.read(
            self.session_id, after, max_events=len(bodies) + 1, max_bytes=sum(map(len, bodies)) + 1
        )
        if [each.body for each in held] != bodies:
            raise AppendConflict("another owner writes to this session") from error
        return True

    async def save_snapshot(self) -> None:
        """Save the state, so that opening the session does not fold its whole log. Losing a snapshot loses only
        time.
        """
        snapshot = Snapshot(STATE, self.head, STATE_VERSION, encode_state(self.state, self.chain))
        self._snapshot_head = self.head
        try:
            await self._log.save_snapshot(self.session_id, snapshot)
        except (LogError, SessionNotFound) as error:
            logger.warning("a snapshot was not kept", extra={"event": "snapshot_not_kept", "code": error.code})


class _Decided(NamedTuple):
    """The result of deciding a batch."""

    draft: Draft
    answers: list[tuple[Reply, object]]
    barriers: list[tuple[Barrier, int]]


def _unwatched(session_id: SessionId, events: Sequence[AnyEvent]) -> None:
    """Do nothing: no watcher is set."""


def _nothing(effect: AnyEffect) -> None:
    """Do nothing: no agent is attached yet."""


def _refuse(reply: Reply | None, error: TurnwireError) -> None:
    if reply is not None and not reply.done():
        reply.set_exception(error)
