"""The clients of one generation of the crash test: they prompt, cancel, answer, move, remove and read, all at once.

They use a node and its log, and report their acknowledgements and events at once. They work without end, or, in the
last generation, only until nothing is owed any more. Reading clients also react: they answer requests and cancel
the turns that would never end.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol
from zlib import crc32

import anyio
import msgspec
from msgspec import Raw, Struct
from tests.crash.orders import Order

from turnwire.clock import SystemClock
from turnwire.errors import TurnwireError
from turnwire.ids import ClientId, PermissionId, PromptId, SessionId
from turnwire.log.base import EventLog, Position, SessionHead
from turnwire.runtime.node import Node
from turnwire.session.inputs import (
    AnswerPermission,
    AnyInput,
    Attach,
    Cancel,
    Detach,
    Prompt,
    RemovePrompt,
    Rename,
    UpdatePrompt,
    WhenBusy,
)
from turnwire.session.queue import Accepted
from turnwire.wire.jsonrpc import raw

BUSY = 3
"""Clients that work at the same time."""

SESSIONS = 4
"""Sessions per file; most prompts meet a session that has a history."""

PROMPTS = 6
"""Number of prompts a client submits before it waits for its session to settle."""

KEYS = 12
"""Idempotency keys per session: few, so that most of them are repeated, also after a restart."""

SCRIPTS = (
    "hello there",
    "say 3 hello",
    "flood 60 20",
    "tool t1\nsay 1 done",
    "think about it\nplan one;two\ntool t2\nsay 2 ok",
    "ask q1 allow,reject\nsay 1 asked",
    "tool-open t3\nask q2 reject,allow",
    "never",
    "ask q3 allow,reject\nnever",
    "ignore-cancel\nnever",
    "error -32000 no model",
    "stop max_tokens\nsay 1 cut",
    "duplicate-answer\nsay 1 twice",
    "say 1 first\nafter say 2 late",
    "idle-speak say 2 idle",
    "agent-turn 2",
)
RARE = ("exit 1", "say 2 x\nexit 3", "reject -32001 no")
ENDLESS = "never"


class Say(Protocol):
    """Reports to the test, all lines in one write."""

    def __call__(self, *lines: str) -> None: ...


class Fact(Struct, rename="camel"):
    """The members of an event that a reacting client reads."""

    type: str
    prompt_id: PromptId | None = None
    request_id: PermissionId | None = None
    content: Raw = Raw(b"")


class Clients:
    """All clients of one process."""

    def __init__(self, node: Node, log: EventLog, order: Order, say: Say, passes: Callable[[str], None]) -> None:
        self._node = node
        self._log = log
        self._say = say
        self._passes = passes
        self._random = Random(f"{order.seed}/{order.generation}")
        self._prefix = f"p{order.generation}"
        self._submitted: list[tuple[SessionId, PromptId]] = []
        self._clock = SystemClock()
        self._moved = anyio.Event()
        self._sessions: list[SessionId] = []
        self._created = 0
        self._followed: set[SessionId] = set()

    async def work(self) -> None:
        """Send requests without end."""
        async with anyio.create_task_group() as tasks:
            for head in await self._heads():
                tasks.start_soon(self._follow, head, self._random.randint(0, head.head))
            for _ in range(BUSY):
                tasks.start_soon(self._busy)

    async def settle(self) -> None:
        """Ask for nothing; return once nothing is owed."""
        async with anyio.create_task_group() as tasks:
            for head in await self._heads():
                tasks.start_soon(self._react, head)
            while True:
                moved = self._moved
                if not await self._log.sessions(unsettled_only=True):
                    break
                await moved.wait()
            tasks.cancel_scope.cancel()

    async def _heads(self) -> list[SessionHead]:
        # A kill between the row and its first event leaves a session that was never created.
        heads = [head for head in await self._log.sessions() if head.head]
        self._sessions = [head.session_id for head in heads]
        return heads

    # -- reading -------------------------------------------------------------------------------------------

    async def _follow(self, head: SessionHead, after: int) -> None:
        """Read from somewhere on."""
        async for page in self._node.follow(head.session_id, Position(head.epoch, after)):
            self._tell(head.session_id, page.offset, page.frames)

    async def _react(self, head: SessionHead) -> None:
        """Read everything; answer requests and cancel endless turns, but only those that are still open."""
        session_id, owed = head.session_id, dict[str, AnyInput]()
        async for page in self._node.follow(session_id, Position(head.epoch, 0)):
            self._tell(session_id, page.offset, page.frames)
            for frame in page.frames:
                self._note(msgspec.json.decode(frame, type=Fact), owed)
            if page.offset >= head.head:
                todo, owed = owed, {}
                for given in todo.values():
                    await self._try(session_id, given)

    def _note(self, fact: Fact, owed: dict[str, AnyInput]) -> None:
        now = self._clock.now_ms()
        match fact:
            case Fact("user_message", str() as prompt_id) if ENDLESS in str(bytes(fact.content)):
                owed[prompt_id] = Cancel(at=now, prompt_id=prompt_id, client_id=ClientId("reader"))
            case Fact("turn_complete" | "turn_error", str() as prompt_id):
                owed.pop(prompt_id, None)
            case Fact("permission_request", _, str() as request_id):
                answer = raw({"outcome": {"outcome": "selected", "optionId": "allow"}})
                owed[request_id] = AnswerPermission(at=now, request_id=request_id, answer=answer, option_id="allow")
            case Fact("permission_resolved", _, str() as request_id):
                owed.pop(request_id, None)
            case _:
                pass

    def _tell(self, session_id: SessionId, last: int, frames: list[bytes]) -> None:
        first = last + 1 - len(frames)
        self._say(*(f"seen {session_id} {first + i} {crc32(frame)}" for i, frame in enumerate(frames)))
        moved, self._moved = self._moved, anyio.Event()
        moved.set()

    # -- asking --------------------------------------------------------------------------------------------

    async def _busy(self) -> None:
        session_id = await self._pick()
        async with anyio.create_task_group() as tasks:
            if session_id not in self._followed:
                self._followed.add(session_id)
                tasks.start_soon(self._react, await self._log.head(session_id))
            while True:
                for _ in range(PROMPTS):
                    tasks.start_soon(self._submit, session_id)
                    await self._disturb(session_id)
                await self._settled(session_id)

    async def _pick(self) -> SessionId:
        if self._sessions and (len(self._sessions) >= SESSIONS or self._random.random() < 0.6):
            return self._random.choice(self._sessions)
        self._created += 1
        session_id = await self._node.create("/tmp", session_id=SessionId(f"s{self._prefix}-{self._created}"))
        self._sessions.append(session_id)
        return session_id

    async def _settled(self, session_id: SessionId) -> None:
        while True:
            moved = self._moved
            if not (await self._log.head(session_id)).unsettled:
                return
            await moved.wait()

    async def _submit(self, session_id: SessionId) -> None:
        chance = self._random
        prompt_id = PromptId(f"{self._prefix}-{len(self._submitted)}")
        self._submitted.append((session_id, prompt_id))
        key = f"k{chance.randrange(KEYS)}" if chance.random() < 0.4 else None
        # A key always comes with the same body.
        text = Random(key).choice(SCRIPTS) if key else chance.choice(RARE if chance.random() < 0.05 else SCRIPTS)
        given = Prompt(
            at=self._clock.now_ms(),
            prompt_id=prompt_id,
            content=raw([{"type": "text", "text": text}]),
            when_busy=chance.choices(list(WhenBusy), weights=[12, 1, 2, 3, 3])[0],
            key=key,
            digest=key and f"digest of {key}",
        )
        accepted = await self._try(session_id, given)
        if isinstance(accepted, Accepted):
            self._say(f"accepted {session_id} {accepted.prompt_id} {key or '-'} {accepted.after_offset}")
            self._passes("reply")

    async def _disturb(self, session_id: SessionId) -> None:
        """Do one of the other actions of clients."""
        now, chance = self._clock.now_ms(), self._random
        mine = [prompt_id for owner, prompt_id in self._submitted[-8:] if owner == session_id]
        prompt_id = chance.choice(mine) if mine else PromptId("nobody")
        client_id = ClientId(f"c{chance.randrange(3)}")
        wishes: list[AnyInput] = [
            RemovePrompt(at=now, prompt_id=prompt_id, author="someone"),
            UpdatePrompt(at=now, prompt_id=prompt_id, position=0),
            Cancel(at=now, prompt_id=prompt_id),
            Cancel(at=now),
            Attach(at=now, client_id=client_id),
            Detach(at=now, client_id=client_id),
            Rename(at=now, title=f"title {chance.randrange(100)}"),
        ]
        for given in chance.sample(wishes, chance.randrange(3)):
            await self._try(session_id, given)

    async def _try(self, session_id: SessionId, given: AnyInput) -> object:
        """Ask; a refusal is an answer too."""
        try:
            return await self._node.submit(session_id, given)
        except TurnwireError:
            return None
