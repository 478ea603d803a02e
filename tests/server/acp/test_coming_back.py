"""Cursors on `/acp` that the log cannot honour, coming back by attaching, and leaving for good."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.server.acp.http_client import PATH, WAIT_S, is_mark, request, talking
from tests.server.acp.socket_client import started
from tests.support.daemons import running_daemon

from turnwire.errors import SessionNotFound
from turnwire.ids import SessionId
from turnwire.server.daemon import Daemon
from turnwire.session.state import SessionState

pytestmark = pytest.mark.anyio

RESYNC = "_turnwire/state_resync_required"


@pytest.mark.guarantee("G9")
@pytest.mark.every_log
async def test_a_cursor_before_what_is_kept_is_told_once_and_the_stream_goes_on_from_there(tmp_path: Path) -> None:
    async with talking(tmp_path / "data") as talk:
        for text in ("say 20 old", "say 1 new"):
            await talk.session.answer(await talk.client.prompt(talk.session_id, text))
        node = talk.client.running.daemon.node
        first = await node.retain(SessionId(talk.session_id), keep_events=6)
        async with talk.client.stream(talk.session_id, **{"Last-Event-ID": "2"}) as stream:
            marker = (await stream.next()).message
            heard = await stream.until(is_mark)
        assert (marker["method"], marker["params"]["reason"]) == (RESYNC, "trimmed")
        assert (marker["params"]["lastDeliveredId"], marker["params"]["earliestAvailableId"]) == (2, first)
        assert [each.text for each in heard if each.text] == ["new"]
        assert not [each for each in heard if each.method == RESYNC], "it is told once"


@pytest.mark.every_log
async def test_positions_are_judged_as_everywhere_else(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "data") as running, started(running) as socket:
        session_id = await socket.new()
        for text in ("say 20 old", "say 1 new"):
            await socket.answer(await socket.prompt(session_id, text))
        await running.daemon.node.retain(SessionId(session_id), keep_events=6)
        cursors: list[tuple[dict[str, Any], str]] = [
            ({"after": 1}, "trimmed"),
            ({"after": 10**6}, "ahead"),
            ({"after": 40, "epoch": "another"}, "epoch"),
            ({"epoch": "another"}, "epoch"),
        ]
        for cursor, why in cursors:
            for method in ("session/load", "session/resume", "session/attach"):
                params: dict[str, Any] = {"sessionId": session_id, "cwd": str(tmp_path), "mcpServers": []}
                await socket.send(request(method, {**params, "_meta": {"turnwire": cursor}}, why + method))
                error = (await socket.answer(why + method))["error"]
                assert (error["data"]["code"], error["data"]["why"]) == ("position_lost", why)
        await socket.send(
            request("session/attach", {"sessionId": session_id, "_meta": {"turnwire": {"after": -1}}}, 9)
        )
        assert (await socket.answer(9))["error"]["code"] == -32602


@pytest.mark.guarantee("G9")
@pytest.mark.every_log
async def test_attaching_behind_an_event_brings_what_came_after_it_once(tmp_path: Path) -> None:
    shows: dict[str, Any] = {"_meta": {"turnwire": {"eventIds": True}}}
    async with running_daemon(tmp_path / "data") as running, started(running, **shows) as first:
        session_id = await first.new()
        request_id = await first.prompt(session_id, "say 1 one\nsay 1 two\nsay 1 three")
        seen = (await first.until(lambda each: each.text == "two"))[-1].id
        await first.answer(request_id)
        async with started(running) as second:
            params = {"sessionId": session_id, "_meta": {"turnwire": {"after": seen}}}
            await second.send(request("session/attach", params, "a"))
            heard = await second.until(lambda each: each.message.get("id") == "a")
            assert [each.text for each in heard if each.text] == ["three"]
            head = await running.daemon.node.head(SessionId(session_id))
            told = heard[-1].message["result"]["_meta"]["turnwire"]["lastEventId"]
            assert seen is not None
            assert seen < told <= head.head


async def state_when(daemon: Daemon, session_id: str, queue: int, clients: int) -> SessionState:
    """Return the session's state once these numbers of prompts are queued and clients are attached."""
    session = await daemon.node.session(SessionId(session_id))
    with anyio.fail_after(WAIT_S):
        while (len(session.state.queue), len(session.state.clients)) != (queue, clients):
            await session.tail.wait(session.tail.head)
    return session.state


@pytest.mark.parametrize("ends_work", ["true", "false", None])
@pytest.mark.every_log
async def test_a_client_that_ends_its_connection_may_take_its_waiting_prompts_along(
    tmp_path: Path, ends_work: str | None
) -> None:
    async with talking(tmp_path / "data") as talk:
        client, daemon = talk.client, talk.client.running.daemon
        for _ in range(3):
            await client.prompt(talk.session_id, "say 1 begun\nnever")
        async with started(client.running) as other:
            await other.call("session/attach", {"sessionId": talk.session_id, "historyPolicy": "none"})
            await other.prompt(talk.session_id, "say 1 theirs")
            await state_when(daemon, talk.session_id, 3, 2)
            query = {} if ends_work is None else {"endsWork": ends_work}
            assert (await client.http.delete(PATH, params=query, headers=client.headers())).status_code == 202
            state = await state_when(daemon, talk.session_id, 1 if ends_work == "true" else 3, 1)
            assert state.turn is not None, "what runs goes on"
            assert state.queue[-1].client_id in state.clients, "the prompt of the other client waits as before"


async def test_a_session_that_was_deleted_does_not_keep_a_client_that_ends_its_work_in_the_others(
    tmp_path: Path,
) -> None:
    async with talking(tmp_path / "data") as talk:
        client, daemon = talk.client, talk.client.running.daemon
        deleted, kept = await client.new(talk.connection), await client.new(talk.connection)
        for _ in range(2):
            await client.prompt(kept, "never")
        await state_when(daemon, kept, 1, 1)
        await daemon.node.delete(SessionId(deleted))
        query = {"endsWork": "true"}
        assert (await client.http.delete(PATH, params=query, headers=client.headers())).status_code == 202
        state = await state_when(daemon, kept, 0, 0)
        assert state.turn is not None, "what runs goes on"


async def test_another_word_for_ending_work_is_refused_and_ends_nothing(tmp_path: Path) -> None:
    async with talking(tmp_path / "data", log="memory") as talk:
        client = talk.client
        answer = await client.http.delete(PATH, params={"endsWork": "yes"}, headers=client.headers())
        assert answer.status_code == 400
        assert (await talk.session.answer(await client.prompt(talk.session_id, "say 1 x")))["result"]


@pytest.mark.every_log
async def test_a_deleted_session_ends_a_request_that_was_asked_again(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "data") as running, started(running) as first, started(running) as second:
        session_id = await first.new()
        await second.call("session/attach", {"sessionId": session_id, "historyPolicy": "none"})
        params: dict[str, Any] = {"sessionId": session_id, "prompt": [{"type": "text", "text": "say 1 x\nnever"}]}
        params["_meta"] = {"turnwire": {"idempotencyKey": "k"}}
        await first.send(request("session/prompt", params, 50))
        await second.until(lambda each: each.text == "x")
        await second.send(request("session/prompt", params, 60))
        await first.call("session/delete", {"sessionId": session_id})
        assert (await second.answer(60))["result"]["stopReason"] == "cancelled"
        with pytest.raises(SessionNotFound):
            await running.daemon.node.head(SessionId(session_id))
