"""Prompting over HTTP: answered at once, rejected at once, accepted once, and ended once with or without
viewers.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import msgspec
import pytest
from starlette.types import ASGIApp, Message
from tests.patience import LONG_S, SOON_S
from tests.server.reading import WAIT_S, is_end, offsets, reading
from tests.server.seats import answer, blocks, seated
from tests.support.daemons import TOKEN, running_daemon
from tests.support.driving import check_ends, events_of, of

from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.server.access.tokens import Role
from turnwire.server.app import create_app
from turnwire.server.daemon import open_daemon
from turnwire.server.settings.declared import Settings
from turnwire.session import events as ev
from turnwire.session.inputs import Close
from turnwire_testing.patience import quiet
from turnwire_testing.scripted.agent import ScriptedSource

pytestmark = pytest.mark.anyio


# -- the answer ----------------------------------------------------------------------------------------------


async def test_a_prompt_is_answered_within_a_second_however_long_its_turn_takes(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat:
        head = (await seat.running.daemon.node.head(seat.session_id)).head
        with anyio.fail_after(SOON_S):
            accepted = await seat.prompt("never")
        assert accepted["lastEventId"] == head, "a reader who starts there sees all of the turn"
        assert accepted["eventEpoch"] == (await seat.running.daemon.node.head(seat.session_id)).epoch
        assert "queued" not in accepted
        with anyio.fail_after(SOON_S):
            assert (await seat.prompt("say 1 later"))["queued"] is True
        started = await seat.until(ev.TurnStarted)
        assert started.prompt_id == accepted["promptId"]


@pytest.mark.guarantee("G2")
async def test_the_answer_is_written_before_the_agent_is_asked() -> None:
    settings = Settings(token=TOKEN, log="memory", cwd=(Path("/"),))
    writing, go_on = anyio.Event(), anyio.Event()
    written: list[Message] = []

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            writing.set()
            await go_on.wait()
        written.append(message)

    async def ask(app: ASGIApp, session_id: str) -> None:
        await app(*_request(session_id), send)

    async with ScriptedSource() as source, open_daemon(settings, Limits(), source) as daemon:
        session_id = await daemon.node.create("/", session_id=SessionId("s1"))
        await quiet()
        with anyio.fail_after(WAIT_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, create_app(daemon), session_id)
                await writing.wait()
                await quiet()
                events = await events_of(daemon.log, session_id)
                assert len(of(events, ev.TurnStarted)) == 1, "accepted and in the log"
                assert of(events, ev.PromptSent) == []
                go_on.set()
            await quiet()
        assert written[0]["status"] == 202
        assert len(of(await events_of(daemon.log, session_id), ev.PromptSent)) == 1


def _request(session_id: str) -> tuple[dict[str, Any], Any]:
    body = json.dumps({"prompt": blocks("never")}).encode()
    headers = {
        "host": "127.0.0.1:4170",
        "authorization": f"Bearer {TOKEN}",
        "content-type": "application/json",
        "content-length": str(len(body)),
    }
    path = f"/session/{session_id}/prompt"
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 4170),
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return scope, receive


async def test_a_malformed_prompt_is_refused_at_once_and_starts_no_turn(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    cases: list[bytes] = [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"prompt":"hello"}',
        b'{"prompt":[]}',
        b'{"prompt":["hello"]}',
        b'{"prompt":[{"type":"text","text":"\xff"}]}',
        b'{"prompt":[{"text":"no type"}]}',
        b'{"prompt":[{"type":"hologram"}]}',
        b'{"prompt":[{"type":"text"}]}',
        b'{"prompt":[{"type":"text","text":5}]}',
        b'{"prompt":[{"type":"text","text":"a"},{"type":"text","text":null}]}',
        b'{"prompt":[{"type":"resource_link"}]}',
        b'{"prompt":[{"type":"text","text":"a"}],"whenBusy":"later"}',
        b'{"prompt":[{"type":"text","text":"a"}],"deadlineMs":0}',
        b'{"prompt":[{"type":"text","text":"a"}],"promptRequestId":true}',
        b'{"prompt":[{"type":"text","text":"a"}],"_meta":3}',
        b'{"prompt":[{"type":"text","x":' + b"[" * 5000 + b"]" * 5000 + b"}]}",
    ]
    async with seated(tmp_path / "d", log="memory") as seat:
        for body in cases:
            with subtests.test(repr(body)):
                head = (await seat.running.daemon.node.head(seat.session_id)).head
                headers = {"Content-Type": "application/json"}
                refused = await seat.client.post(seat.path("prompt"), content=body, headers=headers)
                problem = answer(refused, 400)
                assert problem["code"] in {"bad_request", "content_refused"}
                assert problem["status"] == 400
                assert problem["error"] == problem["detail"]
                assert (await seat.running.daemon.node.head(seat.session_id)).head == head


async def test_malformed_content_is_refused_for_steering_and_for_what_waits_too(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", log="memory") as seat:
        running = (await seat.prompt("never"))["promptId"]
        waiting = (await seat.prompt("say 1 a"))["promptId"]
        await seat.until(ev.PromptSent, running)
        head = (await seat.running.daemon.node.head(seat.session_id)).head
        wrong = [{"type": "text"}]
        for refused in (
            await seat.post("steer", {"prompt": wrong}, 400),
            await seat.post("prompt", {"prompt": wrong, "whenBusy": "steer"}, 400),
            await seat.patch(f"queue/{waiting}", {"content": wrong}, 400),
        ):
            assert (refused["code"], refused["block"]) == ("content_refused", 1)
        assert (await seat.running.daemon.node.head(seat.session_id)).head == head


@pytest.mark.every_log
async def test_an_unknown_session_a_busy_one_and_a_closed_one_are_refused_and_start_no_turn(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat:
        unknown = await seat.client.post("/session/nobody/prompt", json={"prompt": blocks("a")})
        assert answer(unknown, 404)["code"] == "session_not_found"
        first = (await seat.prompt("never"))["promptId"]
        busy = await seat.prompt("a", 409, whenBusy="reject")
        assert busy["code"] == "busy"
        await seat.running.daemon.node.submit(seat.session_id, Close(at=1))
        assert (await seat.prompt("a", 410))["code"] == "session_closed"
        assert [each.prompt_id for each in of(await seat.events(), ev.PromptAccepted)] == [first]


async def test_an_operator_may_let_prompts_be_refused_that_do_not_say_to_wait(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", when_busy="reject") as seat:
        assert (await seat.client.get("/capabilities")).json()["policy"]["whenBusy"] == "reject"
        first = (await seat.prompt("never"))["promptId"]
        assert (await seat.prompt("a", 409))["code"] == "busy"
        waiting = await seat.prompt("a", whenBusy="queue")
        assert waiting["queued"]
        accepted = of(await seat.events(), ev.PromptAccepted)
        assert [each.prompt_id for each in accepted] == [first, waiting["promptId"]]


@pytest.mark.every_log
async def test_a_repeated_prompt_is_the_same_whatever_the_operator_chose_meanwhile(tmp_path: Path) -> None:
    body, key = {"prompt": blocks("say 1 a")}, {"Idempotency-Key": "k"}
    async with seated(tmp_path / "d", "s1") as seat:
        first = answer(await seat.client.post(seat.path("prompt"), json=body, headers=key), 202)
    async with seated(tmp_path / "d", "s1", when_busy="reject") as seat:
        again = answer(await seat.client.post(seat.path("prompt"), json=body, headers=key), 202)
        assert (again["promptId"], again["repeated"]) == (first["promptId"], True)


@pytest.mark.every_log
async def test_a_full_queue_is_told_with_how_full_it_is_and_when_to_come_back(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", limits=Limits(queue_length=2)) as seat:
        for _ in range(3):
            await seat.prompt("never")
        body = {"prompt": blocks("one too many")}
        refused = await seat.client.post(seat.path("prompt"), json=body)
        problem = answer(refused, 503)
        assert problem["code"] == "prompt_queue_full"
        assert (problem["sessionId"], problem["limit"], problem["pendingCount"]) == (seat.session_id, 2, 2)
        assert int(refused.headers["retry-after"]) >= 1


async def test_large_queued_prompts_are_refused_before_they_fill_memory(tmp_path: Path) -> None:
    limits = Limits(queue_bytes=3_000_000, all_queue_bytes=4_000_000)
    body = {"prompt": blocks("a" * 1_000_000)}
    async with seated(tmp_path / "d", limits=limits) as seat:
        await seat.prompt("never")
        for _ in range(2):
            await seat.post("prompt", body, 202)
        problem = answer(refused := await seat.client.post(seat.path("prompt"), json=body), 429)
        assert (problem["code"], problem["limit"]) == ("prompt_queue_too_large", 3_000_000)
        assert int(refused.headers["retry-after"]) >= 1
        other = (await seat.client.post("/session", json={})).json()["sessionId"]
        await seat.client.post(f"/session/{other}/prompt", json={"prompt": blocks("never")})
        answers = [await seat.client.post(f"/session/{other}/prompt", json=body) for _ in range(2)]
        statuses = [each.status_code for each in answers]
        assert statuses == [202, 429], "the bound of all sessions together"


async def test_a_client_id_that_the_session_does_not_know_is_refused_and_a_known_one_is_the_originator(
    tmp_path: Path,
) -> None:
    async with seated(tmp_path / "d") as seat:
        body = {"prompt": blocks("say 1 a")}
        refused = await seat.post("prompt", body, 400, **{"X-Qwen-Client-Id": "c_nobody"})
        assert refused["code"] == "invalid_client_id"
        client_id = await seat.attach()
        accepted = await seat.post("prompt", body, 202, **{"Turnwire-Client-Id": client_id})
        await seat.end(accepted["promptId"])
        turn = await seat.get(f"turns/{accepted['promptId']}")
        assert (turn["originatorClientId"], turn["author"]) == (client_id, "owner")


async def test_a_daemon_that_is_about_to_stop_takes_no_prompt(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat:
        seat.running.daemon.stopping.set()
        assert (await seat.prompt("a", 503))["code"] == "shutting_down"
        assert of(await seat.events(), ev.PromptAccepted) == []


# -- one end -------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G3")
@pytest.mark.every_log
async def test_sender_and_observer_see_one_end_per_prompt_after_all_its_updates(tmp_path: Path) -> None:
    scripts = ["say 3 word", "tool t1\nsay 1 done", "say 1 so\nerror -32000 no", "say 2 late\nstop refusal"]
    async with seated(tmp_path / "d") as seat, seat.running.client() as other:
        path = seat.path("events")
        async with reading(seat.client, path) as sender, reading(other, path) as observer:
            asked = [(await seat.prompt(each, promptRequestId=n))["promptId"] for n, each in enumerate(scripts)]
            seen = [await each.until(_is_last(asked)) for each in (sender, observer)]
        assert seen[0] == seen[1]
        assert offsets(seen[0]) == sorted(set(offsets(seen[0])))
        ends = [each for each in seen[0] if is_end(each)]
        assert [(each.type, each.data["promptId"], each.data["promptRequestId"]) for each in ends] == [
            ("turn_error" if "error" in script else "turn_complete", prompt_id, n)
            for n, (script, prompt_id) in enumerate(zip(scripts, asked, strict=True))
        ]
        for end in ends:
            of_the_turn = [each.offset for each in seen[0] if each.envelope.get("promptId") == end.data["promptId"]]
            assert max(of_the_turn) == end.offset
        check_ends(await seat.events())


def _is_last(asked: list[str]) -> Any:
    left = set(asked)

    def is_last(event: Any) -> bool:
        if is_end(event):
            left.discard(event.data["promptId"])
        return not left

    return is_last


@pytest.mark.guarantee("G8")
@pytest.mark.parametrize("reads_the_answer", [True, False])
@pytest.mark.every_log
async def test_a_client_that_is_cut_off_after_its_prompt_changes_nothing(
    tmp_path: Path, reads_the_answer: bool
) -> None:
    gate = tmp_path / "gate"
    async with seated(tmp_path / "d") as seat:
        body = json.dumps({"prompt": blocks(f"gate {gate}\nsay 1 done")}).encode()
        address = urlsplit(seat.running.url)
        head = [
            f"POST {seat.path('prompt')} HTTP/1.1",
            f"Host: {address.netloc}",
            f"Authorization: Bearer {TOKEN}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        ]
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write("\r\n".join([*head, "", ""]).encode() + body)
        await writer.drain()
        if reads_the_answer:
            assert (await reader.readline()).startswith(b"HTTP/1.1 202")
        else:
            await seat.until(ev.PromptAccepted)
        writer.transport.abort()
        sent = await seat.until(ev.PromptSent)
        gate.touch()
        end = await seat.end(sent.prompt_id)
        assert isinstance(end, ev.TurnCompleted)
        assert end.stop_reason == "end_turn"
        assert (await seat.get(f"turns/{end.prompt_id}"))["resultText"] == "done"


@pytest.mark.guarantee("G3")
@pytest.mark.every_log
async def test_three_hundred_fast_prompts_from_ten_clients_end_once_each_in_the_order_of_their_acceptance(
    tmp_path: Path,
) -> None:
    async with seated(tmp_path / "d", limits=Limits(queue_length=400)) as seat:
        asked: list[str] = []

        async def ask(client: int) -> None:
            asked.extend([(await seat.prompt(f"say 1 {client}-{n}"))["promptId"] for n in range(30)])

        with anyio.fail_after(LONG_S):
            async with anyio.create_task_group() as tasks:
                for client in range(10):
                    tasks.start_soon(ask, client)
            await seat.end(of(await seat.events(), ev.PromptAccepted)[-1].prompt_id)
        events = await seat.events()
        check_ends(events)
        accepted = [each.prompt_id for each in of(events, ev.PromptAccepted)]
        assert sorted(accepted) == sorted(asked)
        assert len(set(asked)) == 300
        assert [each.prompt_id for each in of(events, ev.TurnCompleted)] == accepted


@pytest.mark.every_log
async def test_an_interrupting_prompt_cancels_what_runs_and_goes_next(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat:
        first, waiting = await seat.prompt("never"), await seat.prompt("say 1 waiting")
        interrupting = await seat.prompt("say 1 now", whenBusy="interrupt")
        end = await seat.end(first["promptId"])
        assert isinstance(end, ev.TurnCompleted)
        assert (end.stop_reason, end.cancelled_by) == ("cancelled", "owner")
        await seat.end(waiting["promptId"])
        started = [each.prompt_id for each in of(await seat.events(), ev.TurnStarted)]
        assert started == [each["promptId"] for each in (first, interrupting, waiting)]


@pytest.mark.every_log
async def test_the_callers_trace_and_meta_go_to_the_agent_with_the_prompt(tmp_path: Path) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with seated(tmp_path / "d") as seat:
        body = {"prompt": blocks("say 1 a"), "_meta": {"mine": [1, None]}}
        await seat.post("prompt", body, 202, traceparent=trace)
        accepted = await seat.until(ev.PromptAccepted)
        assert isinstance(accepted.meta, msgspec.Raw)
        assert msgspec.json.decode(accepted.meta) == {"mine": [1, None], "traceparent": trace}


async def test_an_observer_may_ask_and_not_prompt(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d", log="memory") as running:
        session_id = await running.daemon.node.create(str(tmp_path))
        _, secret = await running.daemon.tokens.issue("eve", Role.OBSERVER)
        async with running.client(headers={"Authorization": f"Bearer {secret}"}) as client:
            refused = await client.post(f"/session/{session_id}/prompt", json={"prompt": blocks("a")})
            assert answer(refused, 403)["code"] == "forbidden"
            assert answer(await client.get(f"/session/{session_id}/turns"), 200) == {"turns": []}
