"""Reading a session's past: the folded view, the whole log as a file, and the evidence about a turn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.server.reading import after, reading
from tests.server.seats import answer, seated
from tests.support.daemons import running_daemon

from turnwire.limits import KiB, Limits
from turnwire.projections.envelope import read_envelope
from turnwire.projections.view import View, encode_view
from turnwire.server.access.tokens import Role
from turnwire.session import events as ev
from turnwire.session.stored_file import check, read_head

pytestmark = pytest.mark.anyio


async def test_a_transcript_is_what_was_said_and_done(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        done = await seat.run("say 3 'word '\ntool t1 read Look\nplan one,two\nusage 5 10")
        told = await seat.get("transcript")
        assert told["lastEventId"] == (await seat.running.daemon.node.head(seat.session_id)).head
        assert [each["item"] for each in told["items"]] == ["message", "message", "tool_call"]
        assert told["items"][1]["content"] == [{"type": "text", "text": "word word word "}]
        assert told["latest"]["usage"] == {"used": 5, "size": 10}
        assert [each["promptId"] for each in told["turns"]] == [done.prompt_id]
        assert (told["state"], told["workspaceCwd"]) == ("idle", str(tmp_path))
        await seat.client.delete("/session/s1")
        assert (await seat.get("transcript"))["state"] == "closed"
        assert answer(await seat.client.get("/session/nobody/transcript"), 404)["code"] == "session_not_found"


@pytest.mark.guarantee("G1")
async def test_an_export_is_every_event_once_in_order_and_folds_to_the_same_view(tmp_path: Path) -> None:
    limits = Limits(page_bytes=16 * KiB)
    async with seated(tmp_path / "d", "s1", limits=limits) as seat:
        await seat.run("flood 500 100")
        response = await seat.client.get(seat.path("export"))
        assert response.status_code == 200
        assert response.headers["content-type"] == "application/x-ndjson"
        assert response.headers["content-disposition"] == 'attachment; filename="s1.ndjson"'
        lines = response.content.splitlines()
        head = await seat.running.daemon.node.head(seat.session_id)
        assert response.headers["turnwire-epoch"] == head.epoch
        assert [json.loads(each)["id"] for each in lines] == list(range(1, head.head + 1))
        view = View()
        for line in lines:
            _, event = read_envelope(line)
            assert event is not None
            view.apply(event)
        assert encode_view(view) == encode_view(await seat.running.daemon.node.view(seat.session_id))
        async with reading(seat.client, seat.path("events"), **after(0)) as reader:
            seen = await reader.until(lambda each: each.type == "replay_complete")
        assert [json.loads(each) for each in lines] == [each.envelope for each in seen[:-1]]


async def test_an_export_of_a_trimmed_log_begins_with_its_oldest_event(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        await seat.run("say 20 word")
        first = await seat.running.daemon.node.retain(seat.session_id, keep_events=5)
        lines = (await seat.client.get(seat.path("export"))).content.splitlines()
        assert [json.loads(each)["id"] for each in lines] == list(range(first, first + 5))
        assert (await seat.client.get("/session/nobody/export")).status_code == 404


async def test_a_closed_session_is_exported_after_a_restart(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        await seat.run("say 2 word")
        await seat.client.delete("/session/s1")
        before = (await seat.client.get(seat.path("export"))).content
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        assert (await client.get("/session/s1/export")).content == before
        assert json.loads(before.splitlines()[-1])["type"] == "session_closed"


@pytest.mark.guarantee("G5")
async def test_an_explanation_has_the_evidence_and_is_not_for_observers(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        client_id = await seat.attach()
        accepted = await seat.prompt("tool-open t1\nnever")
        await seat.until(ev.SessionUpdated)
        told = await seat.get("explain")
        assert (told["sessionId"], told["state"]) == ("s1", "running")
        assert told["promptId"] == accepted["promptId"]
        assert told["toolsInFlight"] == ["t1"]
        assert told["agent"]["connected"] is True
        assert any("session/prompt" in each for each in told["agent"]["lastSent"])
        assert (told["clients"], told["attended"]) == ({client_id: "controller"}, False)
        _, secret = await seat.running.daemon.tokens.issue("eve", Role.OBSERVER, None, None)
        refused = await seat.client.get(seat.path("explain"), headers={"Authorization": f"Bearer {secret}"})
        assert answer(refused, 403)["code"] == "forbidden"


@pytest.mark.guarantee("G1")
async def test_what_is_exported_as_it_is_stored_proves_itself_and_is_for_owners(tmp_path: Path) -> None:
    limits = Limits(page_bytes=16 * KiB)
    async with seated(tmp_path / "d", "s1", limits=limits) as seat:
        await seat.run("flood 500 100")
        path = seat.path("export/stored")
        lines = (await seat.client.get(path)).content.splitlines(keepends=True)
        head = read_head(lines[0])
        assert head is not None
        report = check(head, lines)
        assert (report.problem, report.turns, list(report.unproven)) == (None, 1, [])
        shown = json.loads((await seat.client.get(seat.path("export"))).content.splitlines()[-1])
        assert shown["data"]["receipt"]["hash"] == report.hash
        turn = (await seat.get("transcript"))["turns"][-1]
        assert turn["outcome"]["receipt"] == shown["data"]["receipt"]
        for role in ("observer", "controller"):
            made = await seat.client.post("/tokens", json={"name": role, "role": role})
            refused = await seat.client.get(path, headers={"Authorization": f"Bearer {made.json()['token']}"})
            assert refused.status_code == 403
