"""The endpoint's response to each request: its statuses, its headers, and the stream of an answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.acp.http_client import (
    EVENTS,
    PATH,
    Client,
    connect,
    connected,
    initialize,
    new,
    notification,
    prompt,
    request,
    talking,
)
from tests.support.daemons import running_daemon

from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.server.access.tokens import Role

pytestmark = pytest.mark.anyio

JSON = {"Content-Type": "application/json"}


async def test_initialize_is_answered_in_place_with_the_id_of_the_connection(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, running.client() as http:
        answer = await http.post(PATH, json=initialize(request_id="first"))
        assert answer.status_code == 200
        assert answer.headers["Content-Type"] == "application/json"
        assert len(answer.headers["Acp-Connection-Id"]) >= 22
        assert answer.json()["id"] == "first"
        assert answer.json()["result"]["protocolVersion"] == 1
        other = await http.post(PATH, json=initialize())
        assert other.headers["Acp-Connection-Id"] != answer.headers["Acp-Connection-Id"]


async def test_an_initialize_that_fails_opens_no_connection(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, running.client() as http:
        answer = await http.post(PATH, json=request("initialize", {"protocolVersion": "one"}, 1))
        assert answer.status_code == 200
        assert answer.json()["error"]["code"] == -32602
        assert "Acp-Connection-Id" not in answer.headers


async def test_a_message_that_is_not_sent_as_json_is_415(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases: list[str] = ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""]
    async with running_daemon(tmp_path / "d") as running, running.client() as http:
        for kind in cases:
            with subtests.test(repr(kind)):
                answer = await http.post(PATH, content=json.dumps(initialize()), headers={"Content-Type": kind})
                assert answer.status_code == 415
                assert answer.json()["code"] == "unsupported_media_type"


async def test_a_batch_is_501_and_changes_nothing(tmp_path: Path) -> None:
    async with talking(tmp_path / "d") as talk:
        body = [prompt(talk.session_id, "say 1 no", 7), prompt(talk.session_id, "say 1 no", 8)]
        answer = await talk.client.post(body, talk.session_id, 501)
        assert answer.json()["id"] is None
        assert answer.json()["error"]["code"] == -32600
        assert (await talk.client.post([], status=501)).json() == answer.json(), "also one with nothing in it"
        await talk.client.prompt(talk.session_id, "say 1 yes")
        heard = await talk.session.until(lambda each: "method" not in each.message)
        assert [each.text for each in heard if each.text] == ["yes"]


async def test_what_is_no_message_is_400_with_the_error_in_place(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases: list[tuple[bytes, int, int | None]] = [
        (b"{not json", -32700, None),
        (b'"text"', -32600, None),
        (b'{"jsonrpc":"1.0","id":5,"method":"session/list"}', -32600, 5),
        (b"\xff\xfe", -32700, None),
    ]
    async with connected(tmp_path / "d") as client:
        for body, code, request_id in cases:
            with subtests.test(repr((body, code, request_id))):
                answer = await client.http.post(PATH, content=body, headers=client.headers() | JSON)
                assert answer.status_code == 400
                assert answer.json()["error"]["code"] == code
                assert answer.json()["id"] == request_id


async def test_everything_after_initialize_names_its_connection(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, running.client() as http:
        for answer in (
            await http.post(PATH, json=new(tmp_path, 1)),
            await http.get(PATH, headers={"Accept": EVENTS}),
            await http.delete(PATH),
        ):
            assert answer.status_code == 400, answer.request.method
            assert answer.json()["code"] == "bad_request"


async def test_a_connection_that_is_not_there_is_404(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, running.client() as http:
        nobody = {"Acp-Connection-Id": "nobody"}
        for answer in (
            await http.post(PATH, json=new(tmp_path, 1), headers=nobody),
            await http.get(PATH, headers=nobody | {"Accept": EVENTS}),
            await http.delete(PATH, headers=nobody),
        ):
            assert answer.status_code == 404, answer.request.method


async def test_a_second_initialize_on_a_connection_is_400(tmp_path: Path) -> None:
    async with connected(tmp_path / "d") as client:
        answer = await client.post(initialize(), status=400)
        assert "initialized" in answer.json()["error"]


async def test_a_header_that_names_another_session_than_the_message_is_400(tmp_path: Path) -> None:
    async with talking(tmp_path / "d") as talk:
        await talk.client.post(prompt(talk.session_id, "say 1 no", 9), "another", status=400)
        await talk.client.post(
            notification("session/cancel", {"sessionId": "another"}), talk.session_id, status=400
        )


async def test_a_stream_of_an_unknown_session_is_404(tmp_path: Path) -> None:
    async with connected(tmp_path / "d") as client:
        answer = await client.http.get(PATH, headers=client.headers("nothing", Accept=EVENTS))
        assert answer.status_code == 404


async def test_a_message_about_an_unknown_session_is_taken_and_refused_on_the_connections_stream(
    tmp_path: Path,
) -> None:
    async with connected(tmp_path / "d") as client, client.stream() as stream:
        await client.post(prompt("nothing", "say 1 no", 3), "nothing")
        answer = await stream.answer(3)
        assert answer["error"]["code"] == -32002


async def test_other_methods_are_405_with_those_that_are_allowed(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases: list[str] = ["PUT", "PATCH", "OPTIONS", "HEAD"]
    async with connected(tmp_path / "d") as client:
        for method in cases:
            with subtests.test(repr(method)):
                answer = await client.http.request(method, PATH, headers=client.headers())
                assert answer.status_code == 405
                assert answer.headers["Allow"] == "DELETE, GET, POST"


async def test_a_body_that_is_too_large_is_413_and_hits_one_request_only(tmp_path: Path) -> None:
    async with talking(tmp_path / "d", limits=Limits(body_bytes=4096)) as talk:
        await talk.client.post(prompt(talk.session_id, "x" * 5000, 9), talk.session_id, status=413)
        asked = await talk.client.prompt(talk.session_id, "say 1 hi")
        assert (await talk.session.answer(asked))["result"]["stopReason"] == "end_turn"


async def test_too_many_connections_are_503_with_a_time_to_come_back(tmp_path: Path) -> None:
    async with (
        running_daemon(tmp_path / "d", limits=Limits(acp_connections=2)) as running,
        running.client() as http,
    ):
        first = await connect(running, http)
        await connect(running, http)
        refused = await http.post(PATH, json=initialize())
        assert refused.status_code == 503
        assert refused.json()["code"] == "connection_limit_exceeded"
        assert int(refused.headers["Retry-After"]) >= 1
        await http.delete(PATH, headers=first.headers())
        await connect(running, http)


async def test_delete_ends_the_connection_and_its_streams_and_may_be_repeated(tmp_path: Path) -> None:
    async with talking(tmp_path / "d") as talk:
        client = talk.client
        for _ in range(2):
            answer = await client.http.delete(PATH, headers=client.headers())
            assert answer.status_code == 202
            assert answer.content == b""
        await talk.connection.to_the_end()
        await talk.session.to_the_end()
        await client.post(prompt(talk.session_id, "say 1 no", 9), talk.session_id, status=404)


@pytest.mark.guarantee("G8")
async def test_a_turn_goes_on_when_its_connection_is_deleted(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with talking(tmp_path / "d") as talk:
        await talk.client.prompt(talk.session_id, f"gate {gate}\nsay 1 done")
        await talk.client.http.delete(PATH, headers=talk.client.headers())
        await talk.session.to_the_end()
        gate.touch()
        again = await connect(talk.client.running, talk.client.http)
        status = await _settled(again, talk.session_id)
        assert status["stopReason"] == "end_turn"


async def _settled(client: Client, session_id: str) -> dict[str, Any]:
    """Return the end of the last turn, as REST reports it once no turn is open."""
    session = await client.running.daemon.node.session(SessionId(session_id))
    while session.state.unsettled:
        await session.tail.wait(session.tail.head)
    turns = (await client.http.get(f"/session/{session_id}/turns")).json()
    return turns["turns"][-1]


async def test_answers_to_session_requests_come_on_the_stream_of_their_session_only(tmp_path: Path) -> None:
    async with talking(tmp_path / "d") as talk:
        client = talk.client
        other = await client.new(talk.connection)
        async with client.stream(other) as second:
            one, two = await client.prompt(talk.session_id, "say 1 one"), await client.prompt(other, "say 1 two")
            first_heard = await talk.session.until(lambda each: "method" not in each.message)
            second_heard = await second.until(lambda each: "method" not in each.message)
        assert ([each.text for each in first_heard if each.text], first_heard[-1].message["id"]) == (["one"], one)
        assert ([each.text for each in second_heard if each.text], second_heard[-1].message["id"]) == (["two"], two)
        # Nothing of the sessions was on the connection's stream: the next there is the answer to this.
        listed = client.next_id()
        await client.post(request("session/list", {}, listed))
        assert (await talk.connection.next()).message["id"] == listed


@pytest.mark.guarantee("G13")
async def test_a_connection_of_another_credential_is_not_there(tmp_path: Path) -> None:
    async with talking(tmp_path / "d") as talk:
        tokens = talk.client.running.daemon.tokens
        _, secret = await tokens.issue("bob", Role.CONTROLLER)
        async with httpx.AsyncClient(
            base_url=talk.client.running.url, headers={"Authorization": f"Bearer {secret}"}
        ) as bob:
            theirs = talk.client.headers(talk.session_id)
            assert (await bob.post(PATH, json=prompt(talk.session_id, "x", 1), headers=theirs)).status_code == 404
            assert (await bob.get(PATH, headers=theirs | {"Accept": EVENTS})).status_code == 404
            assert (await bob.delete(PATH, headers=theirs)).status_code == 404
        asked = await talk.client.prompt(talk.session_id, "say 1 hi")
        assert (await talk.session.answer(asked))["result"]["stopReason"] == "end_turn"


@pytest.mark.guarantee("G13")
async def test_ids_are_no_credential_and_the_door_is_the_same_for_every_method(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    cases: list[tuple[dict[str, str], int]] = [
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Host": "evil.example"}, 403),
        ({"Origin": "https://evil.example"}, 403),
    ]
    async with connected(tmp_path / "d") as client:
        for headers, status in cases:
            with subtests.test(repr((headers, status))):
                given = client.headers(Accept=EVENTS) | headers
                for answer in (
                    await client.http.post(PATH, json=initialize(), headers=headers),
                    await client.http.post(PATH, json=new(tmp_path, 1), headers=given),
                    await client.http.get(PATH, headers=given),
                    await client.http.delete(PATH, headers=given),
                ):
                    assert answer.status_code == status
