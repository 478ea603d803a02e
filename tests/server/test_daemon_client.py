"""The plain client of a daemon: a prompt is a request with a result, for any state of the daemon and the
network.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import httpx
import pytest
from tests.support.daemons import Running, running_daemon
from tests.support.played import Answering, Play, Request, playing, streamed, told

from turnwire.client import DaemonClient
from turnwire.errors import DaemonUnreachable, PromptNotFound, SessionBusy, SessionNotFound, TurnError
from turnwire.ids import PromptId
from turnwire.limits import Limits
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncGenerator[Running]:
    async with running_daemon(tmp_path / "data") as running:
        yield running


@asynccontextmanager
async def plain(
    daemon: Running, url: str | None = None, limits: Limits | None = None
) -> AsyncGenerator[DaemonClient]:
    """The plain client, bounded."""
    with anyio.fail_after(WAIT_S):
        async with DaemonClient(url or daemon.url, daemon.token, limits=limits) as client:
            yield client


# -- prompt: a request with a result -------------------------------------------------------------------------


async def test_a_prompt_gives_the_stop_reason_of_its_own_end(daemon: Running) -> None:
    async with plain(daemon) as client:
        session = await client.create_session()
        results = [await client.prompt(session.session_id, f"say 1 {number}") for number in range(3)]
        assert [result.stop_reason for result in results] == ["end_turn"] * 3
        assert len({result.prompt_id for result in results}) == 3
        ends = [result.event_id or 0 for result in results]
        assert ends == sorted(ends)
        turns = await client.turns(session.session_id)
        assert [(turn.prompt_id, turn.result_text) for turn in turns] == [
            (result.prompt_id, str(number)) for number, result in enumerate(results)
        ]


async def test_a_prompt_whose_turn_fails_raises_with_what_is_known(daemon: Running) -> None:
    async with plain(daemon) as client:
        session_id = (await client.create_session()).session_id
        with pytest.raises(TurnError) as caught:
            await client.prompt(session_id, "error -32001 boom")
        assert caught.value.reason == "agent_error"
        assert b"boom" in (caught.value.agent_error or b"")
        with pytest.raises(TurnError) as caught:
            await client.prompt(session_id, "exit 3")
        assert caught.value.reason == "agent_exited"


async def test_a_turn_that_ended_before_the_stream_was_opened_is_heard(daemon: Running) -> None:
    async with plain(daemon) as client:
        session_id = (await client.create_session()).session_id
        first = await client.prompt(session_id, "say 3 x", key="k")
        await client.prompt(session_id, "say 1 other")
        again = await client.prompt(session_id, "say 3 x", key="k")
        assert again == first
        assert len(await client.turns(session_id)) == 2


async def test_ends_of_other_turns_and_of_a_replayed_history_are_not_taken_for_this_one(daemon: Running) -> None:
    async with plain(daemon) as client:
        session_id = (await client.create_session()).session_id
        old = await client.prompt(session_id, "say 1 old")
        loaded = await client.load(session_id)
        assert loaded.last_event_id >= (old.event_id or 0)
        ends: dict[str, PromptId | None] = {}

        async def ask(text: str) -> None:
            result = await client.prompt(session_id, f"say 1 {text}")
            ends[text] = result.prompt_id

        async with anyio.create_task_group() as tasks:
            for text in ("a", "b", "c"):
                tasks.start_soon(ask, text)
        texts = {turn.prompt_id: turn.result_text for turn in await client.turns(session_id)}
        assert {text: texts[prompt_id] for text, prompt_id in ends.items()} == {"a": "a", "b": "b", "c": "c"}
        assert old.prompt_id not in ends.values()


async def test_what_refuses_a_prompt_is_the_same_error_as_in_one_process(daemon: Running) -> None:
    async with plain(daemon) as client, anyio.create_task_group() as tasks:
        session_id = (await client.create_session()).session_id
        tasks.start_soon(client.prompt, session_id, "never")
        while not (await client.status(session_id)).has_active_prompt:
            await anyio.lowlevel.checkpoint()
        with pytest.raises(SessionBusy):
            await client.prompt(session_id, "hello", when_busy="reject")
        with pytest.raises(SessionNotFound):
            await client.prompt("nowhere", "hello")
        with pytest.raises(PromptNotFound):
            await client.turn(session_id, "p_nothing")
        await client.cancel(session_id)


async def test_permissions_status_and_events_through_the_plain_client(daemon: Running) -> None:
    async with plain(daemon) as client, anyio.create_task_group() as tasks:
        session = await client.create_session()
        tasks.start_soon(client.prompt, session.session_id, "ask t1 allow_once,reject_once")
        seen: list[int] = []
        async with aclosing(client.events(session.session_id, 0)) as events:
            async for event in events:
                seen += [event.id] if event.id is not None else []
                if event.type == "permission_request":
                    assert (await client.status(session.session_id)).is_waiting_for_permission
                    request_id = event.data["requestId"]
                    answer = client.answer_permission
                    assert await answer(session.session_id, request_id, "allow_once", client_id=session.client_id)
                    assert not await answer(session.session_id, request_id, "reject_once")
                if event.type == "turn_complete":
                    break
        assert seen == list(range(1, len(seen) + 1))
        [turn] = await client.turns(session.session_id)
        assert turn.result_text == "selected allow_once"
        resumed = await client.resume(session.session_id)
        assert resumed.client_id != session.client_id
        async with aclosing(client.events(session.session_id)) as events:
            tasks.start_soon(client.prompt, session.session_id, "say 1 x")
            async for event in events:
                assert (event.id or 9999) > seen[-1]
                if event.type == "turn_complete":
                    break


# -- daemons that are old, and networks that are bad ---------------------------------------------------------


async def test_an_old_daemon_that_answers_at_the_end_of_the_turn_is_understood() -> None:
    def old(request: Request) -> Play:
        if request.path == "/capabilities":
            return told({"v": 1, "features": ["session_prompt"]})
        return told({"stopReason": "max_tokens"})

    with anyio.fail_after(WAIT_S):
        async with playing(old) as daemon, DaemonClient(daemon.url) as client:
            result = await client.prompt("s1", "hello")
            assert (result.stop_reason, result.prompt_id) == ("max_tokens", None)


async def test_an_old_daemon_is_never_given_a_prompt_twice() -> None:
    def old(request: Request) -> Play:
        if request.path == "/capabilities":
            return told({"error": "no such route"}, 404)
        return Play(200, (b"{",), {"content-length": "99"}, breaks=True)

    with anyio.fail_after(WAIT_S):
        async with playing(old) as daemon, DaemonClient(daemon.url) as client:
            with pytest.raises(DaemonUnreachable):
                await client.prompt("s1", "hello")
            assert [each.method for each in daemon.asked] == ["GET", "POST"]


def in_front_of(daemon: Running, events: Play, streams: list[str]) -> Answering:
    """Run a proxy that forwards requests except for event streams."""

    async def answer(request: Request) -> Play:
        if request.path.split("?")[0].endswith("/events"):
            streams.append(request.path)
            return events
        async with httpx.AsyncClient(base_url=daemon.url) as http:
            dropped = {"host", "content-length", "transfer-encoding"}
            headers = {name: value for name, value in request.headers.items() if name not in dropped}
            got = await http.request(request.method, request.path, content=request.body, headers=headers)
        return Play(got.status_code, (got.content,), {"content-type": "application/json"})

    return answer


@pytest.mark.parametrize(
    ("blocked", "tries"),
    [(Play(403), 1), (Play(502), 3), (streamed(), 3), (streamed(stays_open=True), 3)],
    ids=["refused", "bad gateway", "empty", "held back"],
)
async def test_a_prompt_returns_although_no_event_stream_comes_through(
    daemon: Running, blocked: Play, tries: int
) -> None:
    streams: list[str] = []
    limits = Limits(heartbeat_s=0.1)
    async with playing(in_front_of(daemon, blocked, streams)) as proxy, plain(daemon, proxy.url, limits) as client:
        session_id = (await client.create_session()).session_id
        assert (await client.prompt(session_id, "say 1 x")).stop_reason == "end_turn"
        assert len(streams) == tries
        with pytest.raises(TurnError) as caught:
            await client.prompt(session_id, "error -32001 boom")
        assert caught.value.reason == "agent_error"
        assert b"boom" in (caught.value.agent_error or b"")
