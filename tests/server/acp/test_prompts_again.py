"""A prompt that is sent twice with one idempotency key: one turn, and an answer for each request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.server.acp.http_client import request, talking
from tests.server.acp.socket_client import Socket, started
from tests.support.daemons import Running, running_daemon

from turnwire.ids import SessionId
from turnwire.log.base import Position
from turnwire.session import events as ev
from turnwire.session.codec import decode

pytestmark = pytest.mark.anyio


def keyed(session_id: str, text: str, request_id: int | str, key: str = "k", **meta: Any) -> dict[str, Any]:
    block = {"type": "text", "text": text}
    params = {"sessionId": session_id, "prompt": [block], "_meta": {"turnwire": {"idempotencyKey": key}, **meta}}
    return request("session/prompt", params, request_id)


async def accepted(running: Running, session_id: str) -> list[ev.PromptAccepted]:
    """The prompts of a session, as the log has them."""
    head = await running.daemon.log.head(SessionId(session_id))
    stored = await running.daemon.log.read(
        SessionId(session_id), Position(head.epoch, 0), max_events=1000, max_bytes=1 << 20
    )
    return [event for each in stored if isinstance(event := decode(each.body), ev.PromptAccepted)]


async def attach(socket: Socket, session_id: str) -> None:
    await socket.call("session/attach", {"sessionId": session_id, "historyPolicy": "none"})


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.every_log
async def test_a_prompt_that_has_ended_is_answered_again(tmp_path: Path, version: int) -> None:
    async with running_daemon(tmp_path / "data") as running:
        async with started(running, version) as first:
            session_id = await first.new()
            await first.send(keyed(session_id, "say 1 once", 10, other=1))
            answer = await first.answer(10)
            await first.send(keyed(session_id, "say 1 once", "again", other=1))
            again = await first.answer("again")
            assert again["result"].get("stopReason") == answer["result"].get("stopReason")
            assert again["result"].get("messageId") == answer["result"].get("messageId")
            if version == 1:
                assert again["result"]["_meta"]["turnwire"]["turnComplete"]["promptRequestId"] == "again"
        async with started(running, version) as second:
            await attach(second, session_id)
            await second.send(keyed(session_id, "say 1 once", 3, other=1))
            assert "result" in await second.answer(3)
        [prompt] = await accepted(running, session_id)
        assert prompt.key == "k"
        assert bytes(prompt.meta or b"") == b'{"other":1}', "the key is not for the agent"


@pytest.mark.every_log
async def test_a_prompt_that_runs_is_answered_to_all_who_asked_when_it_ends(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with running_daemon(tmp_path / "data") as running, started(running) as first, started(running) as second:
        session_id = await first.new()
        await attach(second, session_id)
        script = f"say 1 begun\ngate {gate}\nsay 1 ended"
        await first.send(keyed(session_id, script, 10))
        await second.until(lambda each: each.text == "begun")
        await first.send(keyed(session_id, script, 11))
        await second.send(keyed(session_id, script, 10))
        await second.send(keyed(session_id, script, 10))
        open_already = await second.answer(10)
        assert open_already["error"]["data"]["code"] == "request_open"
        gate.touch()
        for socket, request_id in ((first, 10), (first, 11), (second, 10)):
            heard = await socket.until(lambda each, n=request_id: each.message.get("id") == n)
            assert heard[-1].message["result"]["stopReason"] == "end_turn"
        assert len(await accepted(running, session_id)) == 1


async def test_a_request_for_a_prompt_that_runs_can_be_taken_back(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "data") as running, started(running) as first, started(running) as second:
        session_id = await first.new()
        await attach(second, session_id)
        await first.send(keyed(session_id, "say 1 begun\nnever", 10))
        await second.until(lambda each: each.text == "begun")
        await second.send(keyed(session_id, "say 1 begun\nnever", 5))
        await second.send({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 5}})
        for socket, request_id in ((first, 10), (second, 5)):
            assert (await socket.answer(request_id))["result"]["stopReason"] == "cancelled"


@pytest.mark.every_log
async def test_a_restarted_daemon_answers_what_its_last_life_accepted(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "data") as running, started(running) as socket:
        session_id = await socket.new()
        await socket.send(keyed(session_id, "say 1 begun\nnever", 10))
        await socket.until(lambda each: each.text == "begun")
    async with running_daemon(tmp_path / "data") as running, started(running) as socket:
        await attach(socket, session_id)
        await socket.send(keyed(session_id, "say 1 begun\nnever", 10))
        assert (await socket.answer(10))["error"]["data"]["code"] == "daemon_restarted"
        assert len(await accepted(running, session_id)) == 1


@pytest.mark.every_log
async def test_acp_and_rest_mean_the_same_prompt_by_the_same_key(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "data") as running, started(running) as socket, running.client() as http:
        session_id = await socket.new()
        await socket.send(keyed(session_id, "say 1 once", 1))
        await socket.answer(1)
        body = {"prompt": [{"type": "text", "text": "say 1 once"}]}
        posted = await http.post(f"/session/{session_id}/prompt", json=body, headers={"Idempotency-Key": "k"})
        [prompt] = await accepted(running, session_id)
        assert posted.json()["promptId"] == prompt.prompt_id


@pytest.mark.parametrize("key", ["", "x" * 256, 7])
async def test_a_key_that_is_none_is_refused(tmp_path: Path, key: Any) -> None:
    async with running_daemon(tmp_path / "data", log="memory") as running, started(running) as socket:
        session_id = await socket.new()
        await socket.send(keyed(session_id, "say 1 x", 1, key))
        assert (await socket.answer(1))["error"]["code"] == -32602


async def test_a_key_of_another_prompt_is_refused(tmp_path: Path) -> None:
    async with talking(tmp_path / "data", log="memory") as talk:
        await talk.client.post(keyed(talk.session_id, "say 1 x", 1))
        await talk.session.answer(1)
        await talk.client.post(keyed(talk.session_id, "say 1 y", 2))
        error = (await talk.session.answer(2))["error"]
        assert (error["code"], error["data"]["code"]) == (-32602, "idempotency_conflict")
