"""Webhooks with time and the receiver in the test's hand: order, waits, cursors, signatures.

W1 to W7 are the invariants of `turnwire.server.webhooks`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec import Raw

from turnwire.errors import ConfigError
from turnwire.ids import AgentSessionId, PermissionId, PromptId, SessionId
from turnwire.limits import Limits
from turnwire.log import MemoryEventLog
from turnwire.server import webhooks
from turnwire.server.settings.webhooks import WebhookEntry
from turnwire.server.webhooks import Webhook, Webhooks, WebhookState, signed
from turnwire.session import events as ev
from turnwire.session.codec import encode
from turnwire_testing.clock import START_MS, ManualClock
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

KEY = b"a key of thirty-two bytes, no less"
SECRET = "whsec_" + base64.b64encode(KEY).decode()
ONE, TWO = SessionId("one"), SessionId("two")


def entry(name: str = "hook", *events: str) -> WebhookEntry:
    more: dict[str, Any] = {"events": events} if events else {}
    return WebhookEntry(name=name, url="https://example.org/secret-path", secret=SECRET, **more)


def end(number: int) -> ev.AnyEvent:
    return ev.TurnCompleted(
        at=number, prompt_id=PromptId(f"p{number}"), stop_reason="end_turn", ending=ev.Ending.RESPONSE
    )


@dataclass
class Told:
    headers: Mapping[str, str]
    body: bytes

    @property
    def envelope(self) -> dict[str, Any]:
        return json.loads(self.body)

    @property
    def what(self) -> tuple[str, int]:
        return self.envelope["data"]["sessionId"], self.envelope["id"]


@dataclass
class Receiver:
    """Answers with 204 unless there is something else in `answers`, session by session."""

    answers: dict[str, list[int | None]] = field(default_factory=dict[str, list[int | None]])
    told: list[Told] = field(default_factory=list[Told])
    silent: set[str] = field(default_factory=set[str])
    """Sessions about which it never answers."""
    came: anyio.Event = field(default_factory=anyio.Event)

    async def post(self, entry: WebhookEntry, headers: Mapping[str, str], body: bytes) -> int | None:
        told = Told(headers, body)
        self.told.append(told)
        self.came.set()
        if told.what[0] in self.silent:
            await anyio.sleep_forever()
        planned = self.answers.get(told.what[0])
        return planned.pop(0) if planned else 204

    async def until(self, count: int) -> list[tuple[str, int]]:
        with anyio.fail_after(WAIT_S):
            while len(self.told) < count:
                self.came = anyio.Event()
                await self.came.wait()
        await anyio.wait_all_tasks_blocked()
        return [each.what for each in self.told]


@dataclass
class World:
    log: MemoryEventLog = field(default_factory=MemoryEventLog)
    clock: ManualClock = field(default_factory=ManualClock)
    receiver: Receiver = field(default_factory=Receiver)

    def hook(self, *events: str, name: str = "hook") -> Webhook:
        return Webhook(entry(name, *events), self.log, self.clock, Limits(), self.receiver.post, lambda: 1.0)

    async def append(self, session_id: SessionId, *events: ev.AnyEvent) -> None:
        if session_id not in {each.session_id for each in await self.log.sessions()}:
            await self.log.create(session_id)
        head = await self.log.head(session_id)
        bodies = [encode(each) for each in events]
        await self.log.append(session_id, bodies, expected=head.head, unsettled=False, durable=True)

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await anyio.wait_all_tasks_blocked()


@asynccontextmanager
async def running(hook: Webhook) -> AsyncGenerator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hook.run)
        yield
        tasks.cancel_scope.cancel()


# -- what is sent --------------------------------------------------------------------------------------------


async def test_what_is_sent_verifies_by_the_convention() -> None:
    """W6, checked as a receiver would, without our code."""
    world = World()
    await world.append(ONE, end(1))
    async with running(world.hook()):
        await world.receiver.until(1)
    [told] = world.receiver.told
    message_id, timestamp = told.headers["webhook-id"], told.headers["webhook-timestamp"]
    assert int(timestamp) == START_MS // 1000
    content = message_id.encode() + b"." + timestamp.encode() + b"." + told.body
    wanted = base64.b64encode(hmac.new(KEY, content, hashlib.sha256).digest()).decode()
    assert told.headers["webhook-signature"] == f"v1,{wanted}"


def test_the_signature_is_that_of_other_senders_of_the_convention() -> None:
    """W6: a value that libraries of the convention share in their tests."""
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = signed(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


async def test_the_body_is_the_envelope_with_who_prompted_also_after_a_restart() -> None:
    world = World()
    accepted = ev.PromptAccepted(at=1, prompt_id=PromptId("p2"), after_offset=0, author="ann")
    await world.append(ONE, accepted, end(1))
    async with running(world.hook()):
        await world.receiver.until(1)
    await world.append(ONE, end(2))
    async with running(world.hook()):
        await world.receiver.until(2)
    last = world.receiver.told[-1].envelope
    assert (last["type"], last["id"], last["promptId"]) == ("turn_complete", 3, "p2")
    assert (last["author"], last["data"]["sessionId"]) == ("ann", "one")


async def test_a_permission_request_of_a_v2_agent_is_told_in_the_words_of_rest() -> None:
    world = World()
    theirs = AgentSessionId("theirs")
    started = ev.AgentStarted(at=1, agent_session_id=theirs, protocol_version=2, turn_end=ev.TurnEnd.IDLE)
    subject = {"type": "tool_call", "toolCall": {"toolCallId": "t"}}
    params: dict[str, Any] = {"sessionId": theirs, "title": "May I?", "options": [], "subject": subject}
    asked = ev.PermissionRequested(
        at=2,
        request_id=PermissionId("r"),
        agent_request_id=1,
        method="session/request_permission",
        params=Raw(json.dumps(params).encode()),
    )
    await world.append(ONE, started, asked)
    async with running(world.hook()):
        await world.receiver.until(1)
    data = world.receiver.told[0].envelope["data"]
    assert data["params"]["sessionId"] == "one"
    assert data["params"]["toolCall"]["toolCallId"] == data["toolCall"]["toolCallId"] == "t"


async def test_only_what_the_entry_names_is_sent() -> None:
    world = World()
    await world.append(ONE, end(1), ev.SessionClosed(at=2, reason="asked"))
    async with running(world.hook("session_closed")):
        assert await world.receiver.until(1) == [("one", 2)]


# -- order, repeats, beginnings ------------------------------------------------------------------------------


async def test_a_session_is_told_in_order_and_goes_on_where_it_was() -> None:
    """W1, W2: the cursor is in the log, so another incarnation of the daemon continues from there."""
    world = World()
    await world.append(ONE, *map(end, range(1, 41)))
    async with running(world.hook()):
        assert await world.receiver.until(40) == [("one", each) for each in range(1, 41)]
    await world.append(ONE, end(41))
    async with running(world.hook()):
        assert (await world.receiver.until(41))[40:] == [("one", 41)]


async def test_what_another_node_was_to_tell_is_found_when_that_may_be_gone() -> None:
    """This includes an end that is reported while the log is being scanned."""
    world, gate = World(), anyio.Event()
    hook = world.hook()
    hooks = Webhooks([hook])
    async with running(hook):
        for number, session_id in enumerate((ONE, TWO), start=1):
            await anyio.wait_all_tasks_blocked()
            await world.append(session_id, end(1))
            hooks.grown({session_id: 1})
            await anyio.wait_all_tasks_blocked()
            assert len(world.receiver.told) == number - 1, "nobody has said that its node is gone"
            hooks.missed()
            await world.receiver.until(number)
        found = world.log.sessions

        async def slow(*given: Any, **more: Any) -> Any:
            heads = await found(*given, **more)
            if not heads:
                await gate.wait()
            return heads

        world.log.sessions = slow
        hooks.missed()
        await anyio.wait_all_tasks_blocked()
        await world.append(ONE, end(2))
        hooks.missed()
        gate.set()
        assert await world.receiver.until(3) == [("one", 1), ("two", 1), ("one", 2)]


async def test_what_was_not_acknowledged_comes_again_with_the_same_id() -> None:
    """W1: the daemon ends while the receiver thinks."""
    world = World()
    await world.append(ONE, end(1), end(2))
    world.receiver.silent = {"one"}
    async with running(world.hook()):
        await world.receiver.until(1)
    world.receiver.silent = set()
    async with running(world.hook()):
        assert await world.receiver.until(3) == [("one", 1), ("one", 1), ("one", 2)]
    first, again, other = (each.headers["webhook-id"] for each in world.receiver.told)
    assert first == again != other


async def test_a_session_that_is_created_again_has_other_ids() -> None:
    world = World()
    async with running(hook := world.hook()):
        for count in (1, 2):
            await world.append(ONE, end(1))
            hook.notice(ONE)
            await world.receiver.until(count)
            await world.log.delete(ONE)
    first, second = (each.headers["webhook-id"] for each in world.receiver.told)
    assert first != second


async def test_a_new_receiver_hears_nothing_of_the_past_and_all_that_follows(tmp_path: Path) -> None:
    """W3, also when it is removed from the settings and added again; and an old one continues."""
    world, file = World(), tmp_path / "webhooks.json"
    await world.append(ONE, end(1))
    await Webhooks([world.hook()]).begin(file)
    await world.append(ONE, end(2))
    await world.append(TWO, end(1))
    hook = world.hook()
    await Webhooks([hook]).begin(file)
    async with running(hook):
        assert sorted(await world.receiver.until(2)) == [("one", 2), ("two", 1)]
    await Webhooks([]).begin(file)
    await world.append(ONE, end(3))
    hook = world.hook()
    await Webhooks([hook]).begin(file)
    await world.append(ONE, end(4))
    async with running(hook):
        assert (await world.receiver.until(3))[2:] == [("one", 4)]


async def test_a_damaged_file_of_beginnings_refuses_to_start(tmp_path: Path) -> None:
    (tmp_path / "webhooks.json").write_bytes(b"{")
    with pytest.raises(ConfigError, match="start from now"):
        await Webhooks([]).begin(tmp_path / "webhooks.json")


async def test_what_was_trimmed_is_passed_over_and_the_rest_is_told() -> None:
    world = World()
    await world.append(ONE, end(1), end(2), end(3))
    world.receiver.answers["one"] = [204, 400]
    async with running(world.hook()):
        await world.receiver.until(2)
        await world.log.trim(ONE, upto=2)
        await world.pass_time(1)
        assert (await world.receiver.until(3))[2:] == [("one", 3)]


# -- failures ------------------------------------------------------------------------------------------------


async def test_a_refused_event_is_tried_again_with_longer_waits_and_holds_up_its_session_only() -> None:
    """W2, W4, W5."""
    world = World()
    await world.append(ONE, end(1), end(2))
    world.receiver.answers["one"] = [400, 500, 302]
    async with running(hook := world.hook()):
        await world.receiver.until(1)
        await world.append(TWO, end(1))
        hook.notice(TWO)
        assert (await world.receiver.until(2))[1] == ("two", 1)
        for count, wait in ((3, 1.0), (4, 2.0), (6, 4.0)):
            await world.pass_time(wait - 0.01)
            assert len(world.receiver.told) < count
            await world.pass_time(0.01)
            await world.receiver.until(count - (count == 6))
        assert (await world.receiver.until(6))[2:] == [("one", 1), ("one", 1), ("one", 1), ("one", 2)]
        assert (hook.delivered, hook.failed, hook.retried, hook.behind) == (3, 3, 3, 0)


async def test_waits_have_a_ceiling() -> None:
    """W5."""
    world = World()
    await world.append(ONE, end(1))
    world.receiver.answers["one"] = [500] * 20
    async with running(world.hook()):
        for count in range(1, 20):
            await world.receiver.until(count)
            await world.pass_time(webhooks.MAX_RETRY_S)


@pytest.mark.parametrize("status", [None, 503, 410])
async def test_receiver_that_was_away_gets_every_event(
    status: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """W1, W5."""
    caplog.set_level("INFO")
    world = World()
    sessions = [SessionId(f"s{each:02}") for each in range(30)]
    for each in sessions:
        await world.append(each, end(1))
        world.receiver.answers[each] = [status]
    async with running(hook := world.hook()):
        await world.receiver.until(30)
        assert (hook.state, hook.behind, hook.last_status) == (WebhookState.FAILING, 30, status)
        await world.pass_time(1)
        told = await world.receiver.until(60)
        assert sorted(told) == sorted([(each, 1) for each in sessions] * 2)
        assert (hook.state, hook.behind, hook.lag_s) == (WebhookState.WORKING, 0, 0)
    assert caplog.text.count("did not accept an event") == 1
    assert caplog.text.count("accepts events again") == 1


async def test_sessions_that_are_never_answered_hold_up_no_other() -> None:
    """W4, up to the number of slots."""
    world = World()
    stuck = [SessionId(f"a{each}") for each in range(webhooks.CONCURRENT - 1)]
    world.receiver.silent = set(stuck)
    for each in (*stuck, ONE, TWO):
        await world.append(each, end(1), end(2))
    async with running(world.hook()):
        told = await world.receiver.until(len(stuck) + 4)
        assert sorted(each for each in told if each[0] in (ONE, TWO)) == [
            ("one", 1),
            ("one", 2),
            ("two", 1),
            ("two", 2),
        ]


async def test_nothing_that_is_said_or_shown_has_the_secret_or_the_path(caplog: pytest.LogCaptureFixture) -> None:
    """W6."""
    caplog.set_level("DEBUG")
    world = World()
    await world.append(ONE, end(1))
    world.receiver.answers["one"] = [None, 400, 410]
    async with running(hook := world.hook()):
        for count in (1, 2, 3):
            await world.receiver.until(count)
            await world.pass_time(10)
    said = caplog.text + repr([vars(each) for each in caplog.records]) + repr(hook.entry) + str(hook.entry)
    assert "example.org" in said
    assert SECRET not in said
    assert "secret-path" not in said
