"""Agent processes that serve several cases, one after the other.

Starting a real agent needs a second or more, and most cases only need an initialized connection. A case that begins
with a plain `initialize` gets a used process if the previous case left no open work in it; the recorded handshake
is put at the start of its tape. Any other case gets a new process. A case that does not pass on a used process is
repeated on a new one, so that no verdict but `passed` depends on earlier cases.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, cast

import anyio
from anyio.abc import TaskGroup, TaskStatus

from turnwire_check.tape import Frame, Tape, at, items
from turnwire_check.transport import Opener, Transport

SESSIONS_PER_PROCESS = 12
"""A process is replaced after this number of sessions: some agents start a child process for each."""


@dataclass(eq=False)
class Worker:
    """A running process."""

    transport: Transport
    greeting: bytes = b""
    """The params of `initialize` that it was sent, as JSON."""
    answer: dict[str, Any] = field(default_factory=dict[str, Any])
    """Its answer to them."""
    sessions: set[str] = field(default_factory=set[str])
    release: anyio.Event = field(default_factory=anyio.Event)
    released: anyio.Event = field(default_factory=anyio.Event)

    async def stop(self) -> None:
        self.release.set()
        await self.released.wait()


class Pool:
    """The processes of one run."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._idle: list[Worker] = []
        self._tasks: TaskGroup | None = None

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Transport]:
        """Open the transport of a case. It gets its process when the case sends its first message."""
        transport = PooledTransport(self)
        try:
            yield transport
        finally:
            with anyio.CancelScope(shield=True):
                await transport.aclose()

    def idle(self, greeting: bytes) -> Worker | None:
        """Remove and return an idle process that was initialized with these params."""
        for worker in self._idle:
            if worker.greeting == greeting and not worker.transport.tape.ended:
                self._idle.remove(worker)
                return worker
        return None

    def keep(self, worker: Worker) -> None:
        self._idle.append(worker)

    async def start(self) -> Worker:
        assert self._tasks is not None
        return await self._tasks.start(self._run)

    async def _run(self, *, task_status: TaskStatus[Worker]) -> None:
        worker: Worker | None = None
        try:
            async with self._opener() as transport:
                worker = Worker(transport)
                task_status.started(worker)
                await worker.release.wait()
        finally:
            if worker is not None:
                worker.released.set()

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tasks is not None
        for worker in self._idle:
            worker.release.set()
        await self._tasks.__aexit__(kind, error, trace)


class PooledTransport:
    """The connection of one case."""

    def __init__(self, pool: Pool) -> None:
        self.tape = Tape()
        self.needs_new = False
        """The case needs a process that has served no other case."""
        self.is_reusable = False
        """True if the case is over and another one may use its process."""
        self.was_used = False
        """The process had served another case."""
        self._pool = pool
        self._worker: Worker | None = None
        self._is_left = False

    @property
    def stderr_tail(self) -> bytes:
        return bytes(getattr(self._worker and self._worker.transport, "stderr_tail", b""))

    async def send(self, raw: bytes) -> None:
        if self._worker is None:
            greeting = _greeting(raw)
            worker = None if self.needs_new or not greeting else self._pool.idle(greeting)
            if worker is not None:
                self._take(worker, self.tape.frames[-1])
                return
            self._adopt(await self._pool.start(), greeting)
        await self._transport.send(raw)

    async def more(self, length: int) -> bool:
        if self._worker is None:
            self._adopt(await self._pool.start(), b"")
        return await self._transport.more(length)

    async def let_go(self, within_s: float) -> bool:
        """End the input of the process; whether it exits in time."""
        self._is_left = True
        leaving = getattr(self._worker and self._worker.transport, "let_go", None)
        return True if leaving is None else bool(await leaving(within_s))

    async def aclose(self) -> None:
        """Release the process to the next case, or stop it."""
        worker = self._worker
        if worker is None:
            return
        sessions = sessions_of(self.tape)
        is_young = len(worker.sessions | sessions) < SESSIONS_PER_PROCESS
        if self.is_reusable and not self._is_left and is_young and worker.greeting and self._learn(worker):
            worker.sessions |= sessions
            self._pool.keep(worker)
        else:
            await worker.stop()

    @property
    def _transport(self) -> Transport:
        assert self._worker is not None
        return self._worker.transport

    def _adopt(self, worker: Worker, greeting: bytes) -> None:
        """Record a new process's frames on the tape of this case."""
        worker.greeting = greeting
        self._worker = worker
        before, worker.transport.tape = worker.transport.tape, self.tape
        for each in before.frames:
            self.tape.add(each.raw, is_ours=False)
        if before.ended:
            self.tape.end(before.ended)

    def _take(self, worker: Worker, asked: Frame) -> None:
        """Use a process that has served other cases: its messages about their sessions are ignored."""
        self.was_used = True
        self._worker = worker
        self.tape.ignored = worker.sessions
        worker.transport.tape = self.tape
        self.tape.add(json.dumps({**worker.answer, "id": asked.id}).encode(), is_ours=False)

    def _learn(self, worker: Worker) -> bool:
        """Check that the process is like a new one, apart from sessions in which nothing runs. Store its
        handshake.
        """
        if not is_settled(self.tape):
            return False
        hello = next(each for each in self.tape.frames if each.is_ours)
        answer = next((each for each in self.tape.heard() if each.is_answer and each.id == hello.id), None)
        if answer is None or not answer.succeeded:
            return False
        worker.answer = cast("dict[str, Any]", answer.value)
        return True


def _greeting(raw: bytes) -> bytes:
    """The params of a plain `initialize`, without capabilities of the client; empty for any other message."""
    try:
        message: object = json.loads(raw)
    except ValueError:
        return b""
    params = at(message, "params")
    has_more = at(params, "clientCapabilities") or at(params, "capabilities")
    if at(message, "method") != "initialize" or has_more or at(params, "protocolVersion") not in (1, 2):
        return b""
    return json.dumps(params, sort_keys=True).encode()


def sessions_of(tape: Tape) -> set[str]:
    """The sessions that were opened or named on a tape."""
    named = {each.session for each in tape.frames} | {at(each.result, "sessionId") for each in tape.heard()}
    return {each for each in named if isinstance(each, str)}


def is_settled(tape: Tape) -> bool:
    """Return True if the connection is intact, no request of either side is open, and no work runs in a session."""
    if tape.ended or any(each.flaw for each in tape.frames):
        return False
    if sum(each.is_ours and each.method == "initialize" for each in tape.frames) != 1:
        return False
    for is_ours in (True, False):
        asked = [json.dumps(each.id) for each in tape.frames if each.is_ours is is_ours and each.is_request]
        answered = {json.dumps(each.id) for each in tape.frames if each.is_ours is not is_ours and each.is_answer}
        if len(set(asked)) != len(asked) or not set(asked) <= answered:
            return False
    states: dict[Any, Any] = {}
    for each in tape.heard():
        if each.kind == "state_update" and isinstance(each.session, str):
            states[each.session] = each.update
    return all(at(each, "state") == "idle" and not items(at(each, "background")) for each in states.values())
