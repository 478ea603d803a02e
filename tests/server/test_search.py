"""Search over REST: sessions are found by their text, and only by clients that may read them."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.cli.rig import Served, served
from tests.server.seats import Seat, answer, seated

from turnwire.ids import SessionId
from turnwire.server.access.tokens import Role
from turnwire.server.daemon import text_index

pytestmark = pytest.mark.anyio


async def entries(client: httpx.AsyncClient, search: str, **parameters: Any) -> list[dict[str, Any]]:
    found = answer(await client.get("/session", params={"search": search, **parameters}), 200)
    assert "nextCursor" not in found
    return found["sessions"]


async def found(client: httpx.AsyncClient, search: str, **parameters: Any) -> list[str]:
    return [each["sessionId"] for each in await entries(client, search, **parameters)]


async def also(seat: Seat, name: str, text: str) -> Seat:
    """Another session of the same daemon, in which something was asked."""
    answer(await seat.client.post("/session", json={"sessionId": name}), 200)
    other = seat._replace(session_id=SessionId(name))
    await other.run(text)
    return other


async def settle(seat: Seat) -> None:
    await seat.running.daemon.search.catch_up()


async def test_a_session_is_found_by_what_was_said_with_where(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        end = await seat.run("say 1 Größenwahn\nthink hidden\ntool t1 read Grammar of Pascal")
        await also(seat, "s2", "say 1 nothing of it")
        await settle(seat)
        [entry] = await entries(seat.client, "größen")
        agents, users = entry["matches"]
        assert (agents["role"], agents["snippet"], agents["marks"]) == ("agent", "Größenwahn", [[0, 10]])
        assert (users["role"], users["marks"]) == ("user", [[6, 16]])
        assert agents["promptId"] == users["promptId"] == end.prompt_id
        assert agents["eventId"] > users["eventId"] > 0
        told = (await seat.get("transcript"))["items"]
        assert {each["firstEventId"] for each in told} > {agents["eventId"], users["eventId"]}
        tools = [each["role"] for each in (await entries(seat.client, "pascal gram"))[0]["matches"]]
        assert tools == ["tool", "user"]
        assert await found(seat.client, "nothing") == ["s2"]
        assert await found(seat.client, "größen nothing") == []
        assert "session_text_search" in answer(await seat.client.get("/capabilities"), 200)["features"]


async def test_titles_and_texts_are_found_together_and_only_texts_have_matches(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        await seat.run("say 1 the parser")
        answer(await seat.client.post("/session", json={"sessionId": "s2", "title": "My parser"}), 200)
        await settle(seat)
        by_text, by_title = await entries(seat.client, "parser")
        assert (by_text["sessionId"], by_title["sessionId"]) == ("s1", "s2")
        assert by_text["matches"]
        assert "matches" not in by_title
        assert "matches" not in answer(await seat.client.get("/session"), 200)["sessions"][0]
        assert "matches" not in answer(await seat.client.get("/session/s1"), 200)


async def test_other_filters_hold_also_for_closed_and_archived_sessions(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        await seat.run("say 1 wanted")
        for name in ("s2", "s3"):
            await also(seat, name, "say 1 wanted")
        answer(await seat.client.delete("/session/s2"), 204)
        answer(await seat.client.post("/session/s3/archive"), 204)
        await settle(seat)
        assert await found(seat.client, "wanted") == ["s1", "s2"]
        assert await found(seat.client, "wanted", state="closed") == ["s2"]
        assert await found(seat.client, "wanted", archived="true") == ["s3"]
        assert await found(seat.client, "wanted", archived="all") == ["s1", "s2", "s3"]
        assert await found(seat.client, "wanted", cwd="/nowhere") == []


async def test_pages_of_a_search_go_on_where_the_last_one_ended(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s0") as seat:
        await seat.run("say 1 wanted")
        for number in range(1, 5):
            await also(seat, f"s{number}", "say 1 wanted")
        await settle(seat)
        seen: list[str] = []
        cursor: dict[str, str] = {}
        for _ in range(3):
            page = answer(await seat.client.get("/session", params={"search": "wanted", "size": 2, **cursor}), 200)
            seen += [each["sessionId"] for each in page["sessions"]]
            assert all(each["matches"] for each in page["sessions"])
            cursor = {"cursor": page.get("nextCursor")}
        assert seen == ["s0", "s1", "s2", "s3", "s4"]
        assert cursor == {"cursor": None}


@pytest.mark.guarantee("G13")
async def test_who_may_read_one_session_finds_words_in_that_one_only(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        await seat.run("say 1 common first")
        await also(seat, "s2", "say 1 common second")
        await settle(seat)
        _, secret = await seat.running.daemon.tokens.issue("watcher", Role.OBSERVER, session_id=SessionId("s2"))
        async with seat.running.stranger(headers={"Authorization": f"Bearer {secret}"}) as watcher:
            assert await found(watcher, "common") == ["s2"]
            assert await found(watcher, "first") == []
            assert "common first" not in (await watcher.get("/session", params={"search": "common"})).text


@pytest.mark.guarantee("G13")
async def test_what_was_said_in_a_deleted_session_is_nowhere(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        await seat.run("say 1 forgettable")
        await settle(seat)
        assert await found(seat.client, "forgettable") == ["s1"]
        answer(await seat.client.delete("/session/s1?purge=true"), 204)
        assert await found(seat.client, "forgettable") == []
        answer(await seat.client.post("/session", json={"sessionId": "s1"}), 200)
        await settle(seat)
        assert await found(seat.client, "forgettable") == []
        with closing(sqlite3.connect(tmp_path / "d" / "search.db")) as file:
            assert file.execute("SELECT text FROM texts").fetchall() == []


async def test_a_log_in_memory_is_searched_as_well(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1", log="memory") as seat:
        await seat.run("say 1 volatile")
        await settle(seat)
        assert await found(seat.client, "volat") == ["s1"]


async def test_without_fts5_titles_are_found_and_capabilities_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise sqlite3.OperationalError("no such module: fts5")

    monkeypatch.setattr(text_index, "_check_fts5", refuse)
    async with seated(tmp_path / "d", "s1") as seat:
        await seat.run("say 1 unfindable\ntitle Known")
        assert await found(seat.client, "known") == ["s1"]
        assert await found(seat.client, "unfindable") == []
        features = answer(await seat.client.get("/capabilities"), 200)["features"]
        assert "session_search" in features
        assert "session_text_search" not in features


def until_found(daemon: Served, words: str, count: int) -> list[dict[str, Any]]:
    """Return the results of a search, as soon as there are this many."""
    while True:
        sessions = daemon.ask("GET", f"/session?search={words}&size=100")["sessions"]
        if sum("matches" in each for each in sessions) >= count:
            return sessions


@pytest.mark.full("starts and kills sixteen processes")
@pytest.mark.guarantee("G9")
def test_what_was_said_before_a_kill_is_found_after_it_however_far_the_index_was(tmp_path: Path) -> None:
    sessions: list[str] = []
    for life in range(3):
        with served(tmp_path) as daemon:
            for number in range(4):
                sessions.append(daemon.session())
                daemon.said(sessions[-1], f"say 1 survivor{life}x{number}")
            daemon.stop(signal.SIGKILL)
    with served(tmp_path) as daemon:
        found = until_found(daemon, "survivor", len(sessions))
        assert sorted(each["sessionId"] for each in found) == sorted(sessions)
        for life in range(3):
            assert len(until_found(daemon, f"survivor{life}x", 4)) == 4
