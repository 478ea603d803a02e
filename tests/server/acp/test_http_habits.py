"""Behaviour of shipped clients over Streamable HTTP, each supported: its number is in the name of its test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.server.acp.http_client import (
    EVENTS,
    PATH,
    YES,
    connect,
    connected,
    initialize,
    is_answer,
    load,
    prompt,
    talking,
)
from tests.support.daemons import running_daemon

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("names_session", [False, True])
async def test_habit_1_an_answer_is_taken_with_and_without_the_header_of_its_session(
    tmp_path: Path, names_session: bool
) -> None:
    async with talking(tmp_path / "d") as talk:
        asked = await talk.client.prompt(talk.session_id, "ask t1 yes,no")
        question = await talk.session.ask()
        answer = {"jsonrpc": "2.0", "id": question["id"], "result": YES}
        await talk.client.post(answer, talk.session_id if names_session else None)
        heard = await talk.session.until(lambda each: is_answer(each, asked))
        assert "selected yes" in [each.text for each in heard]


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
async def test_habit_2_a_session_is_loaded_and_resumed_without_its_header(tmp_path: Path, method: str) -> None:
    async with talking(tmp_path / "d") as talk:
        client = await connect(talk.client.running, talk.client.http)
        async with client.stream() as connection:
            params = load(talk.session_id, client.cwd, 0)["params"]
            await client.call(connection, method, params)
            async with client.stream(talk.session_id) as stream:
                asked = await client.prompt(talk.session_id, "say 1 hi")
                assert (await stream.answer(asked))["result"]["stopReason"] == "end_turn"


async def test_habit_8_the_content_type_may_have_parameters_and_any_case(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    cases: list[str] = [
        "application/json; charset=utf-8",
        "Application/JSON",
        "application/json;charset=UTF-8; x=y",
    ]
    async with running_daemon(tmp_path / "d") as running, running.client() as http:
        for kind in cases:
            with subtests.test(repr(kind)):
                answer = await http.post(PATH, content=json.dumps(initialize()), headers={"Content-Type": kind})
                assert answer.status_code == 200


async def test_habit_9_only_an_accept_that_excludes_events_is_406(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    cases: list[tuple[str, int]] = [
        (EVENTS, 200),
        ("text/*", 200),
        ("*/*", 200),
        ("application/json, text/event-stream", 200),
        ("Text/Event-Stream; q=0.5", 200),
        ("", 200),
        ("application/json", 406),
        ("text/event-stream;q=0, */*", 406),
        ("text/html, application/xml;q=0.9", 406),
    ]
    async with connected(tmp_path / "d") as client:
        for accept, status in cases:
            with subtests.test(repr((accept, status))):
                headers = client.headers() | {"Accept": accept}
                async with client.http.stream("GET", PATH, headers=headers) as answer:
                    assert answer.status_code == status


async def test_habit_10_http_1_is_served(tmp_path: Path) -> None:
    async with connected(tmp_path / "d") as client, client.stream() as stream:
        assert stream.response.http_version == "HTTP/1.1"


async def test_habit_11_every_event_is_one_json_object_on_one_line(tmp_path: Path) -> None:
    async with talking(tmp_path / "d") as talk:
        asked = await talk.client.prompt(talk.session_id, "say 3 hi\nplan a; b\ntool t1 read x")
        await talk.session.answer(asked)
        for block in talk.session.bytes.split(b"\n\n"):
            lines = [line for line in block.split(b"\n") if line.startswith(b"data:")]
            assert len(lines) <= 1
            for line in lines:
                assert json.loads(line.removeprefix(b"data:"))["jsonrpc"] == "2.0"
        assert b"event:" not in talk.session.bytes


async def test_habit_14_no_cookie_is_needed_or_given_and_foreign_ones_do_no_harm(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, running.client() as http:
        answer = await http.post(PATH, json=initialize(), headers={"Cookie": "affinity=node-7; other=1"})
        assert answer.status_code == 200
        assert "Set-Cookie" not in answer.headers


async def test_habit_15_a_frame_of_several_mebibytes_comes_whole(tmp_path: Path) -> None:
    async with talking(tmp_path / "d") as talk:
        asked = await talk.client.prompt(talk.session_id, "bigline 3000000")
        heard = await talk.session.until(lambda each: is_answer(each, asked))
        assert max(len(each.text) for each in heard) > 2_900_000


async def test_habit_16_the_params_of_a_notification_have_no_meta_for_who_did_not_ask(tmp_path: Path) -> None:
    async with talking(tmp_path / "d") as talk:
        asked = await talk.client.prompt(talk.session_id, "say 2 hi\nplan a; b\nmode code")
        heard = await talk.session.until(lambda each: is_answer(each, asked))
        told = [each.message["params"] for each in heard if each.method is not None]
        assert told
        assert not any("_meta" in params for params in told)


async def test_a_client_may_state_its_protocol_version(tmp_path: Path) -> None:
    async with talking(tmp_path / "d") as talk:
        message = prompt(talk.session_id, "say 1 hi", 5)
        headers = talk.client.headers(talk.session_id) | {"Acp-Protocol-Version": "1"}
        assert (await talk.client.http.post(PATH, json=message, headers=headers)).status_code == 202
        assert (await talk.session.answer(5))["result"]["stopReason"] == "end_turn"
