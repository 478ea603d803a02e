"""Clients of a session: heartbeats, disconnecting, and serving the agent's requests to its client."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from msgspec import Raw
from tests.patience import SOON_S
from tests.server.acp.recorder import V2_AGENT, Recorder
from tests.server.reading import Reader
from tests.server.seats import Seat, answer, seated
from tests.support.acp import TOKEN, acp_daemon
from tests.support.driving import events_of, texts

from turnwire.errors import NotFound, RequestRefused
from turnwire.ids import ClientId, SessionId
from turnwire.server.access.tokens import Role
from turnwire.server.app import create_app
from turnwire.server.daemon import clients
from turnwire.server.daemon.clients import LISTED_S, Offers
from turnwire.session import events as ev
from turnwire_testing import ManualClock
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio
READ = "fs/read_text_file"


# -- signs of life -------------------------------------------------------------------------------------------


async def test_a_heartbeat_says_who_was_seen_and_when(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        client_id = await seat.attach()
        head = (await seat.running.daemon.node.head(seat.session_id)).head
        told = await seat.post("heartbeat", None, 200, **{"X-Qwen-Client-Id": client_id})
        assert (told["sessionId"], told["clientId"]) == ("s1", client_id)
        assert told["lastSeenAt"] > 1_600_000_000_000
        assert seat.running.daemon.clients.attended(seat.session_id)
        anonymous = await seat.client.post(seat.path("heartbeat"))
        assert set(answer(anonymous, 200)) == {"sessionId", "lastSeenAt"}
        unknown = await seat.post("heartbeat", None, 400, **{"Turnwire-Client-Id": "c_nobody"})
        assert unknown["code"] == "invalid_client_id"
        assert (await seat.client.post("/session/nobody/heartbeat", json={})).status_code == 404
        assert (await seat.running.daemon.node.head(seat.session_id)).head == head, "it is not in the log"


async def test_an_observer_who_looks_on_does_not_count_as_somebody_who_answers(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        client_id = await seat.attach("eve", Role.OBSERVER)
        _, secret = await seat.running.daemon.tokens.issue("eve", Role.OBSERVER, None, None)
        headers = {"Authorization": f"Bearer {secret}", "Turnwire-Client-Id": client_id}
        assert (await seat.post("heartbeat", None, 200, **headers))["clientId"] == client_id
        assert not seat.running.daemon.clients.attended(seat.session_id)


@pytest.mark.guarantee("G8")
async def test_a_client_that_leaves_is_forgotten_and_its_turn_goes_on(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        client_id = await seat.attach()
        headers = {"Turnwire-Client-Id": client_id}
        prompted = await seat.client.post(
            seat.path("prompt"), json={"prompt": [{"type": "text", "text": "never"}]}, headers=headers
        )
        accepted = answer(prompted, 202)
        await seat.until(ev.PromptSent)
        for _ in range(2):
            answer(await seat.client.post(seat.path("detach"), headers=headers), 204)
        answer(await seat.client.post(seat.path("detach")), 204)
        assert (await seat.client.post("/session/nobody/detach", headers=headers)).status_code == 404
        refused = await seat.post("heartbeat", None, 400, **headers)
        assert refused["code"] == "invalid_client_id"
        state = (await seat.running.daemon.node.session(seat.session_id)).state
        assert state.turn is not None
        assert state.turn.prompt_id == accepted["promptId"]
        assert len([each for each in await seat.events() if isinstance(each, ev.ClientDetached)]) == 1


# -- whose client it is --------------------------------------------------------------------------------------


async def bearing(seat: Seat, name: str, role: Role = Role.CONTROLLER) -> dict[str, str]:
    _, secret = await seat.running.daemon.tokens.issue(name, role)
    return {"Authorization": f"Bearer {secret}"}


async def resumed(seat: Seat, headers: dict[str, str]) -> dict[str, str]:
    """The headers of a client that has come to the session with this token."""
    client_id = (await seat.post("resume", None, 200, **headers))["clientId"]
    return {**headers, "Turnwire-Client-Id": client_id}


@pytest.mark.parametrize(
    ("name", "role"), [("eve", Role.OBSERVER), ("eve", Role.CONTROLLER), ("ann", Role.OBSERVER)]
)
async def test_nobody_sends_the_client_of_somebody_else_away(tmp_path: Path, name: str, role: Role) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        ann = await resumed(seat, await bearing(seat, "ann"))
        eve = {**ann, **await bearing(seat, name, role)}
        refused = await seat.client.post(seat.path("detach"), headers=eve)
        assert answer(refused, 403)["code"] == "forbidden"
        assert not [each for each in await seat.events() if isinstance(each, ev.ClientDetached)]
        await seat.post("heartbeat", None, 200, **ann)
        answer(await seat.client.post(seat.path("detach"), headers=ann), 204)


async def test_an_owner_acts_for_every_client(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        ann = await resumed(seat, await bearing(seat, "ann"))
        named = {"Turnwire-Client-Id": ann["Turnwire-Client-Id"]}
        await seat.post("heartbeat", None, 200, **named)
        answer(await seat.client.post(seat.path("detach"), headers=named), 204)
        assert (await seat.post("heartbeat", None, 400, **ann))["code"] == "invalid_client_id"


async def test_no_route_takes_the_client_id_of_somebody_else(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        ann = await resumed(seat, await bearing(seat, "ann"))
        eve = {**ann, **await bearing(seat, "eve")}
        asking = await seat.prompt("ask t1 yes,no")
        question = await seat.until(ev.PermissionRequested)
        head = (await seat.running.daemon.node.head(seat.session_id)).head
        prompt = {"prompt": [{"type": "text", "text": "say 1 as ann"}]}
        yes = {"outcome": {"outcome": "selected", "optionId": "yes"}}
        posted: list[tuple[str, object]] = [
            ("prompt", prompt),
            ("steer", prompt),
            ("cancel", {}),
            ("settle", {"promptId": asking["promptId"]}),
            ("heartbeat", {}),
            ("mode", {"modeId": "code"}),
            (f"permissions/{question.request_id}", yes),
            (f"permission/{question.request_id}", yes),
        ]
        for path, body in posted:
            assert (await seat.post(path, body, 403, **eve))["code"] == "forbidden", path
        held = await seat.client.patch(seat.path("queue"), json={"held": True}, headers=eve)
        renamed = await seat.client.patch(seat.path("metadata"), json={"title": "hers"}, headers=eve)
        closed = await seat.client.delete("/session/s1", headers=eve)
        served = await seat.client.get(seat.path("services"), params={"methods": READ}, headers=eve)
        assert [each.status_code for each in (held, renamed, closed, served)] == [403] * 4
        assert (await seat.running.daemon.node.head(seat.session_id)).head == head
        assert (await seat.post(f"permissions/{question.request_id}", yes, 200, **ann))["won"]


async def test_after_a_restart_the_log_still_knows_whose_a_client_is(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        ann = await resumed(seat, await bearing(seat, "ann"))
    async with seated(tmp_path / "d", "s1") as seat:
        eve = {**ann, **await bearing(seat, "eve")}
        answer(await seat.client.post(seat.path("detach"), headers=eve), 403)
        again = {**ann, **await bearing(seat, "ann")}
        for headers in (ann, again):
            await seat.post("heartbeat", None, 200, **headers)
        answer(await seat.client.post(seat.path("detach"), headers=again), 204)


async def test_a_holder_that_is_not_remembered_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "KEPT_HOLDERS", 1)
    async with seated(tmp_path / "d", "s1") as seat:
        headers = await bearing(seat, "ann")
        first, second = await resumed(seat, headers), await resumed(seat, headers)
        for each in (first, second, first):
            await seat.post("heartbeat", None, 200, **each)
            await seat.post("heartbeat", None, 403, **{**each, **await bearing(seat, "eve")})


# -- work for the agent --------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(seat: Seat, methods: str = READ, client_id: ClientId | None = None) -> AsyncGenerator[Reader]:
    """Attach a client that serves `methods` for the agent; its requests come from the reader."""
    client_id = client_id or await seat.attach()
    params = {"methods": methods, "clientId": client_id}
    async with seat.client.stream("GET", seat.path("services"), params=params) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        reader = Reader(response)
        await reader.until_bytes(b"retry:")
        yield reader


async def asked_of(reader: Reader) -> dict[str, Any]:
    event = await reader.next()
    assert (event.type, event.id) == ("service_request", None)
    return event.data


async def test_a_client_does_what_the_agent_asks_while_its_stream_is_open(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat, serving(seat) as reader:
        accepted = await seat.prompt(f"read {tmp_path}/unsaved.txt")
        asked = await asked_of(reader)
        assert asked["method"] == READ
        assert asked["params"]["path"] == f"{tmp_path}/unsaved.txt"
        answer(
            await seat.client.post(
                seat.path(f"services/{asked['requestId']}"), json={"result": {"content": "from the editor"}}
            ),
            204,
        )
        await seat.end(accepted["promptId"])
        await seat.until(ev.SessionUpdated, text="from the editor")
        repeated = await seat.post(f"services/{asked['requestId']}", {"result": {"content": "again"}}, 404)
        assert repeated["code"] == "not_found"


async def test_a_request_names_the_event_that_it_stands_behind(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat, serving(seat) as reader:
        await seat.prompt(f"say 300 word\nread {tmp_path}/x")
        asked = await asked_of(reader)
        events = await events_of(seat.running.daemon.log, SessionId("s1"))
        assert texts(events[: asked["lastEventId"]]) == ["word"] * 300


async def test_a_client_can_say_that_it_cannot(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat, serving(seat) as reader:
        accepted = await seat.prompt(f"read {tmp_path}/x")
        asked = await asked_of(reader)
        path = f"services/{asked['requestId']}"
        for body in ({}, {"result": {}, "error": {"code": -1, "message": "both"}}, {"error": {"code": "x"}}):
            assert (await seat.post(path, body, 400))["code"] == "bad_request"
        other = await seat.client.post(
            f"/session/s2/services/{asked['requestId']}", json={"result": {"content": "not mine"}}
        )
        assert other.status_code == 404
        error = {"error": {"code": -32000, "message": "the file is locked"}}
        answer(await seat.client.post(seat.path(path), json=error), 204)
        await seat.end(accepted["promptId"])
        received = (await seat.get("explain"))["agent"]["lastSent"]
        assert any("the file is locked" in each for each in received)


async def test_work_of_a_client_that_goes_is_done_by_the_next_one(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        async with serving(seat) as first:
            accepted = await seat.prompt(f"read {tmp_path}/x")
            await asked_of(first)
            async with serving(seat) as second:
                await first.response.aclose()
                with anyio.fail_after(SOON_S):
                    asked = await asked_of(second)
                path = seat.path(f"services/{asked['requestId']}")
                answer(await seat.client.post(path, json={"result": {"content": "second"}}), 204)
                await seat.end(accepted["promptId"])
        await seat.until(ev.SessionUpdated, text="second")


async def test_work_of_the_last_client_falls_to_the_daemon_or_ends_with_an_error(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("on disk")
    async with seated(tmp_path / "d", "s1") as seat:
        async with serving(seat) as reader:
            accepted = await seat.prompt(f"read {tmp_path}/x")
            await asked_of(reader)
        with anyio.fail_after(SOON_S):
            await seat.end(accepted["promptId"])
        await seat.until(ev.SessionUpdated, text="on disk")


async def test_the_end_of_a_session_ends_the_work_for_it(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat, serving(seat) as reader:
        await seat.prompt(f"read {tmp_path}/x")
        asked = await asked_of(reader)
        await seat.client.delete("/session/s1")
        await reader.to_the_end()
        refused = await seat.post(f"services/{asked['requestId']}", {"result": {"content": "late"}}, 404)
        assert refused["code"] == "not_found"


async def test_a_client_hears_that_a_request_was_taken_back() -> None:
    offers = Offers()
    offer = offers.offer(SessionId("s1"), frozenset({READ}), most=1)
    asked = b""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(offer.serve, READ, Raw(b""), 7)
        with anyio.fail_after(WAIT_S):
            asked = await offer.frames()
            assert b'"params":{}' in asked
            assert b'"lastEventId":7' in asked
            with pytest.raises(RequestRefused, match="too much"):
                await offer.serve(READ, Raw(b"{}"), 7)
            tasks.cancel_scope.cancel()
    request_id = json.loads(asked.split(b"data: ")[1])["data"]["requestId"]
    with anyio.fail_after(WAIT_S):
        taken_back = await offer.frames()
    assert taken_back.startswith(b"event: service_cancelled")
    assert request_id.encode() in taken_back
    with pytest.raises(NotFound):
        offers.answer(SessionId("s1"), request_id, Raw(b"{}"))


async def test_only_an_attached_controller_serves_and_only_what_is_a_service(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        client_id = await seat.attach()
        path = seat.path("services")
        anonymous = await seat.client.get(path, params={"methods": READ})
        assert answer(anonymous, 400)["code"] == "invalid_client_id"
        for methods in (",", "session/request_permission"):
            refused = await seat.client.get(path, params={"methods": methods, "clientId": client_id})
            assert answer(refused, 400)["code"] == "bad_request"
        assert (await seat.client.get(path, params={"clientId": client_id})).status_code == 400
        _, secret = await seat.running.daemon.tokens.issue("eve", Role.OBSERVER, None, None)
        headers = {"Authorization": f"Bearer {secret}"}
        refused = await seat.client.get(path, params={"methods": READ, "clientId": client_id}, headers=headers)
        assert refused.status_code == 403
        await seat.client.delete("/session/s1")
        closed = await seat.client.get(path, params={"methods": READ, "clientId": client_id})
        assert closed.status_code in {400, 410}


async def test_a_client_that_left_without_a_word_is_listed_for_a_while_and_not_for_ever() -> None:
    clock, agent = ManualClock(), Recorder(V2_AGENT)
    async with (
        agent,
        acp_daemon(source=agent, clock=clock) as place,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app=create_app(place.daemon)),
            base_url="http://127.0.0.1",
            headers={"Authorization": f"Bearer {TOKEN}"},
        ) as client,
    ):
        opened = (await client.post("/session", json={"sessionId": "s1"})).json()
        other = (await client.post("/session/s1/resume", json={})).json()["clientId"]
        named = {"Turnwire-Client-Id": other}

        async def listed() -> tuple[set[str], int, int]:
            explained = (await client.get("/session/s1/explain")).json()
            status = (await client.get("/session/s1/status")).json()
            [entry] = (await client.get("/session")).json()["sessions"]
            return set(explained["clients"]), status["clientCount"], entry["clientCount"]

        assert await listed() == ({opened["clientId"], other}, 2, 2)
        clock.advance(LISTED_S - 1)
        assert (await client.post("/session/s1/heartbeat", json={}, headers=named)).status_code == 200
        clock.advance(2)
        assert await listed() == ({other}, 1, 1)
        clock.advance(LISTED_S + 1)
        assert await listed() == (set(), 0, 0)
        # A client that returns is recognized, and listed again.
        assert (await client.post("/session/s1/heartbeat", json={}, headers=named)).status_code == 200
        assert await listed() == ({other}, 1, 1)
        assert (await client.post("/session/s1/detach", headers=named)).status_code == 204
        assert await listed() == (set(), 0, 0)
