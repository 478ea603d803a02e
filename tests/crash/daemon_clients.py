"""The clients of one process of the daemon: several sessions, each with a sender and readers, all over real
sockets.

They use one process and the ledger of all of them, and record every acknowledgement in the ledger at once. Each
reader resumes with its last id. Readers also react: they answer requests and cancel turns that hold, but leave some
open, so that a kill finds turns in every state. When the daemon dies, readers read the data in transit.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import anyio
import httpx
from anyio.abc import TaskGroup
from tests.crash.daemon_ledger import TERMINALS, Json, Ledger, Reading, Receipt, session_of
from tests.crash.daemon_life import TOKEN, WAIT_S, Life

from turnwire.limits import MiB
from turnwire.wire.sse import SseEvent, SseReader

SESSIONS = ("s0", "s1", "s2")
READERS = (("tab", "s0"), ("tab", "s1"), ("tab", "s2"), ("second tab", "s0"))
MANY = "all tabs"
"""The client that reads every session on one connection."""
MOST_WAITING = 6
"""Accepted prompts of a session without an end, before its sender waits."""
MOST_SENT = 12
"""Prompts that one sender sends in one life: enough for any point, and the log stays small."""

WHATS = ("quick", "quick", "flood 120", "flood 300", "ask answer", "ask leave", "hold cancel", "hold on")
WEIGHTS = (4, 4, 3, 3, 4, 1, 2, 1)

POINTS = {"answer": 12, "queued": 4, "burst": 2, "question": 2, "end": 6}
"""Points at which the daemon is killed, as clients see them, and the latest occurrence: a client holds a 202, a
prompt waits, updates arrive faster than they are read, a permission request is open, a turn has just ended.
"""


class Fuse:
    """Kills the daemon at the nth passage of one point."""

    def __init__(self, life: Life, point: str, passage: int) -> None:
        self._life = life
        self._point = point
        self._left = passage
        self.has_burnt = False

    def passes(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if not self._left:
                self.has_burnt = True
                self._life.kill()


class DaemonClients:
    """All clients of one life."""

    def __init__(self, life: Life, ledger: Ledger, random: Random, fuse: Fuse, many_cursor: str | None) -> None:
        self._life = life
        self._ledger = ledger
        self._random = random
        self._fuse = fuse
        self._moved = anyio.Event()
        self.many_cursor = many_cursor
        """Cursor of the client of all sessions; it resumes from this at the next process."""
        self._is_last = False
        assert life.url is not None
        self._http = httpx.AsyncClient(
            base_url=life.url,
            headers={"Authorization": f"Bearer {TOKEN}"},
            timeout=WAIT_S,
            trust_env=False,
            verify=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
        )

    async def work(self) -> None:
        """Send and read until the daemon is dead, and everything that it had sent is read."""
        with anyio.fail_after(WAIT_S):
            async with self._http, anyio.create_task_group() as readers, anyio.create_task_group() as senders:
                senders.start_soon(self._lasting, self._send_all, readers, senders)
                await self._life.ended()
                # Readers continue to the end of the data in transit to them.
                senders.cancel_scope.cancel()

    async def settle(self) -> dict[str, list[str]]:
        """Send the doubtful prompts, and return once all accepted ones have ended: the sessions in their final
        state.
        """
        self._is_last = True
        whole: dict[str, list[str]] = {}
        with anyio.fail_after(WAIT_S):
            async with self._http, anyio.create_task_group() as tasks:
                whole = await self._settle(tasks)
                tasks.cancel_scope.cancel()
        return whole

    async def _settle(self, tasks: TaskGroup) -> dict[str, list[str]]:
        await self._open_sessions()
        self._start_readers(tasks, tasks)
        for key in [*self._ledger.doubtful, *self._ledger.receipts]:
            await self._post(key)
        await self._until(lambda: not any(map(self._ledger.waiting, SESSIONS)))
        await self._compare_turns(list(self._ledger.ends))
        whole = {session: await self._whole(session) for session in SESSIONS}
        await self._until(lambda: self._have_read(whole))
        return whole

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await self._moved.wait()

    async def _lasting(self, act: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Do something that the death of the daemon may end at any point, and nothing else."""
        try:
            await act(*arguments)
        except httpx.TransportError as error:
            if not self._life.was_killed:
                self._ledger.complaints.append(f"a connection broke while the daemon lived: {error!r}")

    # -- sending -------------------------------------------------------------------------------------------

    async def _send_all(self, readers: TaskGroup, senders: TaskGroup) -> None:
        await self._open_sessions()
        self._start_readers(readers, senders)
        senders.start_soon(self._lasting, self._look_back)
        for session in SESSIONS:
            senders.start_soon(self._lasting, self._send, session, senders)

    async def _open_sessions(self) -> None:
        for session in SESSIONS:
            answer = await self._http.post("/session?wait=false", json={"sessionId": session})
            self._expect(answer, 200, 409)

    async def _send(self, session: str, senders: TaskGroup) -> None:
        ledger, chance = self._ledger, self._random
        known = [key for key in ledger.receipts if session_of(key) == session]
        again = [key for key in ledger.doubtful if session_of(key) == session]
        for key in [*again, *chance.sample(known, min(2, len(known)))]:
            await self._post(key)
        for _ in range(MOST_SENT):
            await self._until(lambda: ledger.waiting(session) < MOST_WAITING)
            key = f"{session}-{len(ledger.sent)}"
            ledger.sent[key] = f"{key} {chance.choices(WHATS, WEIGHTS)[0]}"
            if chance.random() < 0.1:
                # Twice at once: a client that lost patience.
                senders.start_soon(self._lasting, self._post, key)
            await self._post(key)

    async def _post(self, key: str) -> None:
        body = {"prompt": [{"type": "text", "text": self._ledger.sent[key]}]}
        path, headers = f"/session/{session_of(key)}/prompt", {"Idempotency-Key": key}
        answer = await self._http.post(path, json=body, headers=headers)
        if self._expect(answer, 202):
            told: Json = answer.json()
            self._ledger.hold(key, Receipt(told["promptId"], told["lastEventId"], told["eventEpoch"]))
            self._fuse.passes("answer")

    async def _look_back(self) -> None:
        """Turns that had ended in an earlier life have the same end in this one."""
        ended = list(self._ledger.ends)
        await self._compare_turns(self._random.sample(ended, min(8, len(ended))))

    async def _compare_turns(self, prompt_ids: list[str]) -> None:
        for prompt_id in prompt_ids:
            session = self._ledger.ends[prompt_id]["data"]["sessionId"]
            answer = await self._http.get(f"/session/{session}/turns/{prompt_id}")
            if self._expect(answer, 200):
                self._ledger.told_turn(prompt_id, answer.json())

    def _expect(self, answer: httpx.Response, *statuses: int) -> bool:
        if answer.status_code not in statuses:
            self._ledger.complaints.append(f"{answer.request.url}: {answer.status_code} {answer.text}")
        return answer.status_code == statuses[0]

    # -- reading -------------------------------------------------------------------------------------------

    def _start_readers(self, readers: TaskGroup, senders: TaskGroup) -> None:
        for client, session in READERS:
            readers.start_soon(self._lasting, self._read, client, session, senders)
        readers.start_soon(self._lasting, self._read_many)

    async def _read(self, client: str, session: str, senders: TaskGroup) -> None:
        reading = self._ledger.readings.setdefault((client, session), Reading())
        headers = {"Last-Event-ID": str(reading.last)}
        if reading.epoch is not None:
            headers["Turnwire-Epoch"] = reading.epoch

        def take(event: SseEvent) -> None:
            if event.event not in {"replay_complete", "state_resync_required"}:
                self._react(session, self._ledger.read(client, session, int(event.id or 0), event.data), senders)
            elif event.event == "state_resync_required":
                self._ledger.complaints.append(f"G9 {client} of {session} came back with {headers}: {event.data}")

        async with self._http.stream("GET", f"/session/{session}/events", headers=headers) as answer:
            if await self._is_open(answer):
                self._ledger.complaints += reading.open(answer.headers["Turnwire-Epoch"])
                await self._take_all(answer, SseReader(64 * MiB), take)

    async def _read_many(self) -> None:
        headers = {} if self.many_cursor is None else {"Last-Event-ID": self.many_cursor}
        sse = SseReader(64 * MiB)

        def take(event: SseEvent) -> None:
            self.many_cursor = event.id or self.many_cursor
            if event.event == "state_resync_required":
                self._ledger.complaints.append(f"G9 {MANY} came back with {headers}: {event.data}")
            elif event.event != "replay_complete":
                envelope: Json = json.loads(event.data)
                session: str = envelope["data"]["sessionId"]
                # It began when it first came, wherever the session was then.
                self._ledger.readings.setdefault((MANY, session), Reading(first=envelope["id"]))
                self._ledger.read(MANY, session, envelope["id"], event.data)

        async with self._http.stream("GET", "/events", headers=headers) as answer:
            if await self._is_open(answer):
                await self._take_all(answer, sse, take)

    async def _is_open(self, answer: httpx.Response) -> bool:
        """Return True if a stream was opened; a rejection is short, and has a reason."""
        if not answer.is_success:
            await answer.aread()
        return self._expect(answer, 200)

    async def _take_all(self, answer: httpx.Response, sse: SseReader, take: Callable[[SseEvent], None]) -> None:
        """Every whole event, until the connection is cut."""
        async for chunk in answer.aiter_raw():
            for event in sse.feed(chunk):
                take(event)
            self._move()
        if not self._life.was_killed:
            self._ledger.complaints.append(f"{answer.request.url}: the stream ended while the daemon lived")

    def _move(self) -> None:
        moved, self._moved = self._moved, anyio.Event()
        moved.set()

    def _react(self, session: str, event: Json, senders: TaskGroup) -> None:
        data: Json = event["data"]
        match event["type"]:
            case "permission_request":
                self._fuse.passes("question")
                if self._is_last or data["toolCall"]["title"] == "answer":
                    self._act(senders, f"/session/{session}/permissions/{data['requestId']}", ALLOWED)
            case "session_update":
                text = str(data["update"].get("content", {}).get("text", ""))
                if text.endswith("hold cancel") or (self._is_last and text.endswith("hold on")):
                    self._act(senders, f"/session/{session}/cancel", {"promptId": event["promptId"]})
                elif text.endswith(" 40"):
                    self._fuse.passes("burst")
            case "pending_prompt_added":
                self._fuse.passes("queued")
            case kind if kind in TERMINALS:
                self._fuse.passes("end")
            case _:
                pass

    def _act(self, senders: TaskGroup, path: str, body: Json) -> None:
        async def act() -> None:
            # Requests by, or for, an earlier process's agent do not exist any more.
            self._expect(await self._http.post(path, json=body), 200, 204, 404)

        # The daemon is dead, and this was on its way.
        if not senders.cancel_scope.cancel_called:
            senders.start_soon(self._lasting, act)

    # -- at the end ----------------------------------------------------------------------------------------

    async def _whole(self, session: str) -> list[str]:
        """Return all events of a session, as a new client reads them."""
        reading, sse = Reading(), SseReader(64 * MiB)
        async with self._http.stream("GET", f"/session/{session}/events", headers={"Last-Event-ID": "0"}) as answer:
            if not await self._is_open(answer):
                return []
            async for chunk in answer.aiter_raw():
                for event in sse.feed(chunk):
                    if event.event == "replay_complete":
                        return reading.envelopes
                    self._ledger.complaints += reading.take(int(event.id or 0), event.data)
        raise EOFError("a replay ended before it was complete")

    def _have_read(self, whole: dict[str, list[str]]) -> bool:
        return all(reading.last >= len(whole[session]) for (_, session), reading in self._ledger.readings.items())


ALLOWED: dict[str, Any] = {"outcome": {"outcome": "selected", "optionId": "allow"}}
