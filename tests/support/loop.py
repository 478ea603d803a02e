"""A session's loop with a record of everything around it: the log's calls, the ring, replies and effects.

The input is a plan of faults for the log; the result is a rig whose loop runs in the test's task group. It never
starts an agent: the test puts the agent's messages into the inbox.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio
from anyio.abc import TaskGroup
from msgspec import Raw
from tests.support.driving import events_of

from turnwire.errors import AppendConflict, LogCorrupt
from turnwire.ids import AgentSessionId, PromptId, SessionId
from turnwire.limits import Limits
from turnwire.log import EventLog, MemoryEventLog
from turnwire.log.base import Snapshot
from turnwire.runtime.session import Opened, Session
from turnwire.runtime.tail import Tail
from turnwire.session import effects as fx
from turnwire.session import events as ev
from turnwire.session.codec import decode
from turnwire.session.inputs import AgentAnswered, AgentReady, AgentUpdate, AnyInput, CreateSession
from turnwire.session.receipts import Chain
from turnwire.session.state import NOTHING
from turnwire.wire.peek import peek_update
from turnwire_testing import ManualClock
from turnwire_testing.faults import FaultyLog, LogFault
from turnwire_testing.patience import WAIT_S, quiet

SESSION = SessionId("s1")


class Spy(FaultyLog):
    """A log with faults that records each append, before and after it."""

    def __init__(self, log: EventLog, plan: Sequence[LogFault], journal: list[str]) -> None:
        super().__init__(log, plan)
        self.journal = journal
        self.durable: list[tuple[tuple[str, ...], bool]] = []
        self.snapshots: list[int] = []

    async def append(
        self, session_id: SessionId, bodies: Sequence[bytes], *, expected: int, unsettled: bool, durable: bool
    ) -> int:
        kinds = tuple(type(decode(body)).__name__ for body in bodies)
        self.journal.append(f"append {len(bodies)}")
        head = await super().append(session_id, bodies, expected=expected, unsettled=unsettled, durable=durable)
        self.durable.append((kinds, durable))
        self.journal.append("stored")
        return head

    async def save_snapshot(self, session_id: SessionId, snapshot: Snapshot) -> None:
        self.snapshots.append(snapshot.offset)
        await super().save_snapshot(session_id, snapshot)


class SpyTail(Tail):
    journal: list[str]

    def publish(self, bodies: Sequence[bytes]) -> None:
        self.journal.append(f"publish {len(bodies)}")
        super().publish(bodies)


class Rig:
    """A session's loop with a record of everything around it."""

    def __init__(self, plan: Sequence[LogFault], limits: Limits) -> None:
        self.journal: list[str] = []
        self.inner = MemoryEventLog()
        self.log = Spy(self.inner, plan, self.journal)
        self.clock = ManualClock()
        self.limits = limits
        self.effects: list[fx.AnyEffect] = []
        self.session: Session

    async def open(self) -> None:
        head = await self.log.create(SESSION)
        tail = SpyTail(self.limits, head.epoch, 0)
        tail.journal = self.journal
        self.session = Session(
            Opened(SESSION, head.epoch, NOTHING, 0, Chain()), self.log, tail, self.clock, self.limits
        )
        self.session.perform = self.perform

    def perform(self, effect: fx.AnyEffect) -> None:
        self.journal.append(f"perform {type(effect).__name__}")
        self.effects.append(effect)

    async def submit(self, given: AnyInput) -> object:
        with anyio.fail_after(WAIT_S):
            answer = await self.session.submit(given)
        self.journal.append("answered")
        return answer

    def says(self, *words: str) -> None:
        for word in words:
            self.session.inbox.put(chunk(word))

    async def events(self) -> list[ev.AnyEvent]:
        return await events_of(self.inner, SESSION)

    async def quiet(self) -> None:
        """Until the loop waits for inputs again."""
        with anyio.fail_after(WAIT_S):
            await quiet()

    async def retry(self) -> None:
        await self.clock.wait_for_sleepers(1)
        self.clock.advance(self.limits.log_retry_s)


def chunk(text: str) -> AgentUpdate:
    update = Raw(b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"%b"}}' % text.encode())
    return AgentUpdate(at=1, update=update, peek=peek_update(update))


def ready() -> AgentReady:
    return AgentReady(at=1, agent_session_id=AgentSessionId("a"), protocol_version=1, turn_end=ev.TurnEnd.RESPONSE)


def answered(prompt_id: str = "p1") -> AgentAnswered:
    return AgentAnswered(at=1, prompt_id=PromptId(prompt_id), stop_reason="end_turn")


CREATE = CreateSession(at=1, session_id=SESSION, cwd="/work")


class Rigs:
    """Creates rigs whose loops run inside one task group."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self.failures: list[Exception] = []

    async def open(self, *plan: LogFault, limits: Limits | None = None, created: bool = True) -> Rig:
        rig = Rig(plan, limits or Limits())
        await rig.open()
        self._tasks.start_soon(self._run, rig)
        if created:
            await rig.submit(CREATE)
            rig.journal.clear()
        return rig

    async def _run(self, rig: Rig) -> None:
        try:
            await rig.session.run()
        except (LogCorrupt, AppendConflict) as error:
            self.failures.append(error)
