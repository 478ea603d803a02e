"""Clients of a cluster, without affinity: every request and every connection goes to any node.

The nodes' addresses and a ledger are the input; every received fact is recorded in the ledger at once. Senders
repeat a prompt under its key until they get a 202; readers resume at another node with their last id; reactions are
sent through any node. Nodes that are down, reject temporarily or disconnect are expected here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from random import Random
from typing import Any

import anyio
import httpx
from anyio.abc import TaskGroup
from tests.cluster.nodes import Cluster, Node
from tests.crash.daemon_ledger import Json, Ledger, Reading, Receipt, session_of
from tests.crash.daemon_life import TOKEN

from turnwire.limits import MiB
from turnwire.wire.sse import SseReader

SESSIONS = ("s0", "s1", "s2", "s3", "s4", "s5")
READERS = ("tab", "second tab")
MOST_WAITING = 4
AGAIN_S = 0.05
"""Before a client that was refused asks another node."""
PATIENCE_S = 4.0
"""Timeout of an answer before the client tries another node."""
WHATS = ("quick", "flood 80", "work 200", "work 900", "work 2500", "ask answer", "hold cancel")
WEIGHTS = (4, 3, 4, 3, 2, 3, 2)

ALLOWED: dict[str, Any] = {"outcome": {"outcome": "selected", "optionId": "allow"}}
FOR_A_MOMENT = frozenset({429, 502, 503, 504})
"""Answers after which the same request is sent elsewhere."""


class ClusterClients:
    """Senders and readers of all sessions."""

    def __init__(
        self,
        cluster: Cluster,
        ledger: Ledger,
        random: Random,
        sessions: Sequence[str] = SESSIONS,
        made_at: Node | None = None,
        readers_at: Node | None = None,
    ) -> None:
        """`made_at`, `readers_at`: where sessions are made, and where readers are and stay; by default anywhere."""
        self._nodes = cluster.nodes
        self._urls = [node.url for node in cluster.nodes]
        self.sessions = sessions
        self._made_at = made_at
        self._readers_at = readers_at
        self._ledger = ledger
        self._random = random
        self._moved = anyio.Event()
        self._is_sending = True
        self.told: dict[str, list[list[str]]] = {}
        """All events of each session at the end, as each node returns them."""
        self.refusals = 0
        """Answers that sent a client elsewhere."""
        self.refused: dict[str, str] = {}
        """Requests that failed, and the last response."""
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {TOKEN}"},
            timeout=httpx.Timeout(PATIENCE_S, pool=None),
            trust_env=False,
            verify=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
        )

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Open and read the sessions, do the work, and return once all that was accepted has ended for all."""
        async with self._http, anyio.create_task_group() as tasks:
            async with anyio.create_task_group() as opening:
                for session in self.sessions:
                    opening.start_soon(self._open, session)
            for session in self.sessions:
                for client in READERS:
                    tasks.start_soon(self._read, client, session, tasks)
            await work()
            await self._until(lambda: not any(map(self._ledger.waiting, self.sessions)))
            for session in self.sessions:
                await self._hear_all(session)
            await self._until(self._have_read)
            tasks.cancel_scope.cancel()

    async def send(self, seconds: float, pause_s: float = 0.0) -> None:
        """Send random requests for this duration, with a bounded pause after each prompt."""
        async with anyio.create_task_group() as senders:
            for session in self.sessions:
                senders.start_soon(self._send, session, pause_s)
            await anyio.sleep(seconds)
            self._is_sending = False
            self._move()

    async def prompt(self, session: str, what: str, node: Node | None = None) -> str:
        """Send one prompt, to that node or to any, until it is accepted. Return its key."""
        key = f"{session}-{len(self._ledger.sent)}"
        self._ledger.sent[key] = f"{key} {what}"
        await self.post(key, node)
        return key

    async def are_reading(self) -> None:
        """Return once all readers are there."""
        wanted = len(self.sessions) * len(READERS)
        await self._until(lambda: sum(each.last > 0 for each in self._ledger.readings.values()) == wanted)

    async def ended(self, key: str) -> None:
        """Return once a reader has seen its end."""
        await self._until(lambda: self._ledger.receipts[key].prompt_id in self._ledger.ends)

    def _have_read(self) -> bool:
        readings = self._ledger.readings.items()
        return all(reading.last >= len(self.told[session][0]) for (_, session), reading in readings)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await self._moved.wait()

    def _move(self) -> None:
        moved, self._moved = self._moved, anyio.Event()
        moved.set()

    # -- sending -------------------------------------------------------------------------------------------

    async def _ask(
        self, path: str, body: Json, *accepted: int, key: str | None = None, node: Node | None = None
    ) -> httpx.Response | None:
        """Ask one node after the other, until one gives a conclusive answer; or one only."""
        headers = {} if key is None else {"Idempotency-Key": key}
        while True:
            url = self._random.choice(self._urls) if node is None else node.url
            try:
                answer = await self._http.post(url + path, json=body, headers=headers)
            except httpx.TransportError as error:
                self.refusals += 1
                self.refused[f"{path} {body}"] = f"{url} {error!r}"
                await anyio.sleep(AGAIN_S)
                continue
            if answer.status_code in accepted:
                self.refused.pop(f"{path} {body}", None)
                return answer
            if answer.status_code not in FOR_A_MOMENT:
                self._ledger.complaints.append(f"{url}{path}: {answer.status_code} {answer.text}")
                return None
            self.refusals += 1
            self.refused[f"{path} {body}"] = f"{url} {answer.status_code} {answer.text}"
            await anyio.sleep(AGAIN_S)

    async def order(self, session: str, what: str, node: Node) -> None:
        """`cancel` the running turn, `archive` or `unarchive` the session."""
        await self._ask(f"/session/{session}/{what}", {}, 200, 204, 404, 409, node=node)

    async def _open(self, session: str) -> None:
        await self._ask("/session?wait=false", {"sessionId": session}, 200, 409, node=self._made_at)

    async def _send(self, session: str, pause_s: float) -> None:
        ledger, chance = self._ledger, self._random
        while self._is_sending:
            await self._until(lambda: ledger.waiting(session) < MOST_WAITING or not self._is_sending)
            key = await self.prompt(session, chance.choices(WHATS, WEIGHTS)[0])
            if chance.random() < 0.1:
                # A client that did not trust its answer.
                await self.post(key)
            await anyio.sleep(chance.uniform(0, pause_s))

    async def post(self, key: str, node: Node | None = None) -> None:
        """Send a prompt, perhaps again."""
        body = {"prompt": [{"type": "text", "text": self._ledger.sent[key]}]}
        answer = await self._ask(f"/session/{session_of(key)}/prompt", body, 202, key=key, node=node)
        if answer is not None:
            told: Json = answer.json()
            self._ledger.hold(key, Receipt(told["promptId"], told["lastEventId"], told["eventEpoch"]))

    # -- reading -------------------------------------------------------------------------------------------

    async def _read(self, client: str, session: str, tasks: TaskGroup) -> None:
        reading = self._ledger.readings.setdefault((client, session), Reading())
        while True:
            try:
                # Move on from time to time, so that readers change nodes in quiet times as well.
                stays_s = self._random.uniform(0.5, 6) if self._readers_at is None else None
                url = self._random.choice(self._urls) if self._readers_at is None else self._readers_at.url
                with anyio.move_on_after(stays_s):
                    await self._read_at(url, client, session, reading, tasks)
            except httpx.TransportError:
                self.refusals += 1
            await anyio.sleep(AGAIN_S)

    async def _read_at(self, url: str, client: str, session: str, reading: Reading, tasks: TaskGroup) -> None:
        headers = {"Last-Event-ID": str(reading.last)}
        if reading.epoch is not None:
            headers["Turnwire-Epoch"] = reading.epoch
        sse = SseReader(64 * MiB)
        async with self._http.stream(
            "GET", f"{url}/session/{session}/events", headers=headers, timeout=httpx.Timeout(PATIENCE_S, read=None)
        ) as answer:
            if answer.status_code != 200:
                await answer.aread()
                if answer.status_code not in FOR_A_MOMENT:
                    self._ledger.complaints.append(f"{url} {session}: {answer.status_code} {answer.text}")
                return
            self._ledger.complaints += reading.open(answer.headers["Turnwire-Epoch"])
            async for chunk in answer.aiter_raw():
                for event in sse.feed(chunk):
                    if event.event == "state_resync_required":
                        self._ledger.complaints.append(f"G9 {client} of {session}, {headers}: {event.data}")
                        return
                    if event.event != "replay_complete":
                        told = self._ledger.read(client, session, int(event.id or 0), event.data)
                        self._react(session, told, tasks)
                self._move()

    def _react(self, session: str, event: Json, tasks: TaskGroup) -> None:
        data: Json = event["data"]
        match event["type"]:
            case "permission_request":
                path = f"/session/{session}/permissions/{data['requestId']}"
                tasks.start_soon(self._ask, path, ALLOWED, 200, 204, 404, 409)
            case "session_update":
                text = str(data["update"].get("content", {}).get("text", ""))
                if text.endswith("hold cancel"):
                    path, body = f"/session/{session}/cancel", {"promptId": event["promptId"]}
                    tasks.start_soon(self._ask, path, body, 200, 204, 404, 409)
            case _:
                pass

    # -- at the end ----------------------------------------------------------------------------------------

    async def _hear_all(self, session: str) -> None:
        """Read the whole session from each node. A node that lacks the newest event is asked again."""
        while True:
            told = [await self._whole(node.url, session) for node in self._nodes if node.is_wanted]
            self.told[session] = told
            longest = max(told, key=len)
            if all(len(each) == len(longest) or each != longest[: len(each)] for each in told):
                return
            await anyio.sleep(AGAIN_S)

    async def _whole(self, url: str, session: str) -> list[str]:
        """Return all events of a session, as a new client reads them."""
        while True:
            try:
                return await self._replay(url, session)
            except (httpx.TransportError, EOFError):
                # A node that has just come back may not be there yet.
                await anyio.sleep(AGAIN_S)

    async def _replay(self, url: str, session: str) -> list[str]:
        reading, sse = Reading(), SseReader(64 * MiB)
        headers = {"Last-Event-ID": "0"}
        async with self._http.stream("GET", f"{url}/session/{session}/events", headers=headers) as answer:
            async for chunk in answer.aiter_raw() if answer.is_success else _nothing():
                for event in sse.feed(chunk):
                    if event.event == "replay_complete":
                        return reading.envelopes
                    self._ledger.complaints += reading.take(int(event.id or 0), event.data)
        raise EOFError("a replay ended before it was complete")


async def _nothing() -> AsyncGenerator[bytes]:
    """Return the body of a rejection that the caller ignores."""
    return
    yield
