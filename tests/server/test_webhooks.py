"""Webhooks of a real daemon: a raw receiver, a process that is killed and started again, and one that is dead."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from anyio.abc import Process, SocketAttribute, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream
from tests.patience import LONG_S, SOON_S
from tests.server.seats import seated
from tests.support.daemons import SCRIPTED, TOKEN

from turnwire.cli.doctor import check_webhooks
from turnwire.cli.reach import Reach
from turnwire.server.settings.webhooks import WebhookEntry
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

KEY = os.urandom(32)
SECRET = "whsec_" + base64.b64encode(KEY).decode()
LIVES, SESSIONS, TURNS = 5, 4, 5


@dataclass
class Delivery:
    """One request, as received on the socket."""

    headers: dict[str, str]
    body: bytes

    @property
    def envelope(self) -> dict[str, Any]:
        return json.loads(self.body)

    @property
    def session_id(self) -> str:
        return self.envelope["data"]["sessionId"]

    def check(self) -> None:
        """Verify a request like a receiver that implements only the convention."""
        content = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode() + self.body
        wanted = base64.b64encode(hmac.new(KEY, content, hashlib.sha256).digest()).decode()
        assert f"v1,{wanted}" in self.headers["webhook-signature"].split(" ")


@dataclass
class Receiver:
    """A server made of a socket: answers with `answer`, and stores the successful requests."""

    answer: Callable[[Delivery], str | None] = lambda _: "204 No Content"
    """A status line, or None for no answer at all."""
    url: str = ""
    came: list[Delivery] = field(default_factory=list[Delivery])
    taken: list[Delivery] = field(default_factory=list[Delivery])
    moved: anyio.Event = field(default_factory=anyio.Event)

    async def handle(self, stream: SocketStream) -> None:
        async with stream:
            reader = BufferedByteReceiveStream(stream)
            # The daemon may disconnect at any byte.
            with suppress(anyio.IncompleteRead, anyio.BrokenResourceError):
                while True:
                    head = (await reader.receive_until(b"\r\n\r\n", 65_536)).decode()
                    lines = [each.partition(":") for each in head.split("\r\n")[1:]]
                    headers = {name.lower(): value.strip() for name, _, value in lines}
                    body = await reader.receive_exactly(int(headers["content-length"]))
                    await self._take(stream, Delivery(headers, body))

    async def _take(self, stream: SocketStream, delivery: Delivery) -> None:
        self.came.append(delivery)
        status = self.answer(delivery)
        if status is not None and status.startswith("2"):
            self.taken.append(delivery)
        moved, self.moved = self.moved, anyio.Event()
        moved.set()
        if status is None:
            await anyio.sleep_forever()
        await stream.send(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())

    async def until(self, fits: Callable[[], bool], within_s: float = WAIT_S) -> None:
        with anyio.fail_after(within_s):
            while not fits():
                await self.moved.wait()

    def entry(self, name: str) -> WebhookEntry:
        return WebhookEntry(name=name, url=self.url + "/hook", secret=SECRET)


@asynccontextmanager
async def receiving(answer: Callable[[Delivery], str | None] | None = None) -> AsyncGenerator[Receiver]:
    receiver = Receiver() if answer is None else Receiver(answer)
    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        port = listener.extra(SocketAttribute.local_port)
        receiver.url = f"http://127.0.0.1:{port}"
        tasks.start_soon(listener.serve, receiver.handle)
        yield receiver
        tasks.cancel_scope.cancel()


async def test_a_turn_end_arrives_signed_as_rest_shows_it(tmp_path: Path) -> None:
    async with receiving() as receiver, seated(tmp_path / "d", webhooks=(receiver.entry("r"),)) as seat:
        ended = await seat.run("say 3 fine")
        await receiver.until(lambda: bool(receiver.taken))
        [delivery] = receiver.taken
        delivery.check()
        shown = (await seat.client.get(seat.path("export?format=ndjson"))).text.splitlines()
        assert delivery.envelope in [json.loads(line) for line in shown if "turn_complete" in line]
        assert delivery.envelope["promptId"] == ended.prompt_id


async def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    async with (
        receiving() as other,
        receiving(lambda _: f"307 Moved\r\nLocation: {other.url}/x") as receiver,
        seated(tmp_path / "d", webhooks=(receiver.entry("r"),)) as seat,
    ):
        await seat.run("say 1 fine")
        await receiver.until(lambda: len(receiver.came) >= 2)
        assert not other.came


async def test_a_dead_receiver_and_a_silent_one_delay_no_healthy_one(tmp_path: Path) -> None:
    """W4."""
    dead = Receiver(url="http://127.0.0.1:1")
    async with receiving() as healthy, receiving(lambda _: None) as silent:
        hooks = (dead.entry("dead"), silent.entry("silent"), healthy.entry("healthy"))
        async with seated(tmp_path / "d", webhooks=hooks) as seat:
            for number in range(1, 6):
                await seat.run("say 1 fine")
                await healthy.until(partial(_has, healthy, number), SOON_S)
            assert len(silent.came) == 1
            shown = {each["name"]: each for each in (await seat.client.get("/webhooks")).json()["webhooks"]}
            assert (shown["dead"]["state"], shown["healthy"]["state"]) == ("failing", "working")
            assert shown["healthy"]["origin"] == healthy.url
            checks = check_webhooks(Reach(seat.running.url, TOKEN, None))
            told = {each.words.split()[0]: each.level async for each in checks}
            assert told == {"dead": "warn", "silent": "ok", "healthy": "ok"}
            scraped = (await seat.client.get("/metrics")).text
            assert 'turnwire_webhook_delivered_total{webhook="dead"} 0.0' in scraped
            assert 'turnwire_webhook_sessions_behind{webhook="dead"} 1.0' in scraped
            # The answer to the last one may not have been read yet.
            assert re.search(r'turnwire_webhook_delivered_total{webhook="healthy"} [45]\.0', scraped)


def _has(receiver: Receiver, number: int) -> bool:
    return len(receiver.taken) >= number


# -- over kills ----------------------------------------------------------------------------------------------


class Life:
    """One process of the daemon."""

    def __init__(self, process: Process, url: str) -> None:
        self.process = process
        self.client = httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=WAIT_S)

    async def kill(self) -> None:
        self.process.kill()
        await self.client.aclose()
        with anyio.fail_after(WAIT_S):
            await self.process.wait()
        assert self.process.stdout is not None
        await self.process.stdout.aclose()


async def live(home: Path, config: Path, *more: str) -> Life:
    words = ("serve", "--json", "--port", "0", "--data", str(home / "data"), "--cwd", str(home), *more)
    command = [sys.executable, "-m", "turnwire", *words, "--token", TOKEN, "--config", str(config), "--", *SCRIPTED]
    process = await anyio.open_process(command, stdin=None, stderr=None, cwd=home)
    assert process.stdout is not None
    with anyio.fail_after(WAIT_S):
        line = await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", 65_536)
    return Life(process, json.loads(line)["url"])


@pytest.mark.full("kills daemons")
async def test_over_kills_every_turn_end_arrives_at_least_once_and_in_order(tmp_path: Path) -> None:
    """W1, W2: a daemon is killed between turns, in turns and while it tries again, over a hundred turns."""
    requests, refuses_all = count(), False

    def moody(_: Delivery) -> str | None:
        return "500 Oh" if refuses_all or next(requests) % 5 == 1 else "204 No Content"

    ended: dict[str, list[str]] = {}
    async with receiving(moody) as receiver, AsyncExitStack() as stack:
        config = tmp_path / "turnwire.toml"
        # A turn must end with its daemon here, so agents do not outlive it.
        words = f'limits = {{hold_s = 0}}\n[[webhooks]]\nurl = "{receiver.url}/hook"\nsecret = "{SECRET}"\n'
        config.write_text(words, encoding="utf-8")
        config.chmod(0o600)
        sessions: list[str] = []
        for number in range(LIVES):
            # In every second process nothing is accepted, so the kill happens while everything is retried.
            refuses_all = number % 2 == 1
            had = len(receiver.taken), len(receiver.came)
            life = await live(tmp_path, config)
            if not sessions:
                made = [await life.client.post("/session", json={"cwd": str(tmp_path)}) for _ in range(SESSIONS)]
                sessions = [each.json()["sessionId"] for each in made]
            async with anyio.create_task_group() as tasks:
                for each in sessions:
                    run = partial(_run_turns, life, each, ended.setdefault(each, []), is_last=number == LIVES - 1)
                    tasks.start_soon(run)
            if number < LIVES - 1:
                await life.kill()
                assert refuses_all == (len(receiver.taken) == had[0])
                assert len(receiver.came) > had[1]
            else:
                stack.push_async_callback(life.kill)
        wanted = {(each, prompt_id) for each, prompts in ended.items() for prompt_id in prompts}
        assert len(wanted) >= 100

        def arrived() -> bool:
            return wanted <= {(each.session_id, each.envelope["promptId"]) for each in receiver.taken}

        await receiver.until(arrived, LONG_S)
        for delivery in receiver.came:
            delivery.check()
        for session_id in sessions:
            _check_order(receiver, session_id)


async def _run_turns(life: Life, session_id: str, ended: list[str], *, is_last: bool) -> None:
    """Turns one after the other, and one more that a kill will find under way."""
    path = f"/session/{session_id}/prompt"
    for _ in range(TURNS):
        answer = await life.client.post(path, json=_asking("say 1 fine"), headers={"Prefer": "wait=60"})
        ended.append(answer.json()["promptId"])
    if not is_last:
        ended.append((await life.client.post(path, json=_asking("never"))).json()["promptId"])


def _asking(text: str) -> dict[str, Any]:
    return {"prompt": [{"type": "text", "text": text}]}


def _check_order(receiver: Receiver, session_id: str) -> None:
    """Check that accepted requests, without repeats of the same id, are in the order of the log."""
    taken = {each.headers["webhook-id"]: each for each in receiver.taken if each.session_id == session_id}
    firsts = [each.envelope["id"] for each in taken.values()]
    assert firsts == sorted(set(firsts))
