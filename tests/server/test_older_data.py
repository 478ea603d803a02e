"""A data folder that an older turnwire wrote opens, reads as it did then, and goes on where it was killed.

`data_0_1_0` holds two folders as text, written by turnwire 0.1.0 (commit c3bc422) with a scripted agent of each
version and ended by SIGKILL: the rows of `turnwire.db`, `tokens.json`, and what that daemon showed of each session
over REST just before. They are never written again: they are what users have on their disks.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.daemons import SCRIPTED, Running, running_daemon
from tests.unit.core.translate.speaking import complaints

from turnwire.core.stored_file import check, read_head
from turnwire.testing.patience import WAIT_S

Json = dict[str, Any]
FOLDERS = Path(__file__).parent / "data_0_1_0"

pytestmark = [pytest.mark.anyio, pytest.mark.own_log("turnwire 0.1.0 had no other log")]


@pytest.fixture(params=["v1", "v2"])
def version(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def older(version: str) -> Json:
    return json.loads((FOLDERS / f"{version}.json").read_text(encoding="utf-8"))


@pytest.fixture
def data(tmp_path: Path, older: Json) -> Path:
    """The folder as it lay on the disk."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    tokens = folder / "tokens.json"
    tokens.touch(mode=0o600)
    tokens.write_text(json.dumps(older["tokens"]), encoding="utf-8")
    with closing(sqlite3.connect(folder / "turnwire.db")) as file:
        for statement in older["schema"]:
            file.execute(statement)
        for table, rows in older["tables"].items():
            for row in rows:
                # Events and snapshots were stored as bytes; the text of the fixture is those bytes.
                values = [*row[:-1], row[-1].encode()] if table in ("events", "snapshots") else row
                file.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", values)
        file.execute(f"PRAGMA application_id = {older['applicationId']}")
        file.execute(f"PRAGMA user_version = {older['version']}")
        file.commit()
    return folder


async def events(
    running: Running, session_id: str, is_enough: Callable[[list[Json]], bool], acp: str = "agent"
) -> list[Json]:
    """The events of a session from the first, until there are enough."""
    found: list[Json] = []
    path = f"/session/{session_id}/events?after=0&acp={acp}"
    async with running.client() as client, client.stream("GET", path) as stream:
        with anyio.fail_after(WAIT_S):
            async for line in stream.aiter_lines():
                event: Json = json.loads(line[6:]) if line.startswith("data: ") else {}
                found += [event] if "id" in event else []
                if is_enough(found):
                    break
    return found


def as_then(found: list[Json], shown: list[Json]) -> list[Json]:
    """Events without what later versions tell besides: who prompted a turn, and the words of a question in v2."""
    more = ("author", "originatorClientId")
    told: list[Json] = []
    for now, then in zip(found, shown, strict=True):
        event = {name: value for name, value in now.items() if name not in more or name in then}
        if event["type"] == "permission_request":
            event["data"] = {name: value for name, value in now["data"].items() if name in then["data"]}
        told.append(event)
    return told


def check_people(found: list[Json]) -> None:
    """R100: every event of a turn names who prompted it."""
    authors = {each["promptId"]: each["author"] for each in found if each["type"] == "prompt_accepted"}
    assert authors
    for each in found:
        if "promptId" in each:
            assert each["author"] == authors[each["promptId"]], each


def ends(found: list[Json]) -> dict[str, str]:
    """How each prompt ended."""
    return {each["promptId"]: each["type"] for each in found if each["type"] in ("turn_complete", "turn_error")}


async def read(running: Running, path: str) -> Json:
    async with running.client() as client:
        answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_what_an_older_version_wrote_reads_as_it_did(data: Path, older: Json, version: str) -> None:
    settled, _ = older["shown"]
    shown = older["shown"][settled]
    async with running_daemon(data, agent=(*SCRIPTED, "--profile", version)) as running:
        count = len(shown["events"])
        now = await events(running, settled, lambda found: len(found) == count)
        assert as_then(now, shown["events"]) == shown["events"]
        check_people(now)
        transcript = await read(running, f"/session/{settled}/transcript?acp=agent")
        # Later versions tell besides where a page begins, who speaks, and of what they fold themselves, its events.
        assert transcript.pop("first") == 0
        assert transcript.pop("speaker").get("protocolVersion", 1) == int(version.removeprefix("v"))
        transcript.pop("named", None)
        for each in transcript["items"]:
            assert 0 <= each.pop("firstEventId", 0) <= each.pop("lastEventId", 0) <= count
        # The log has grown by what the new daemon noted: that the agent of the old one is gone.
        assert transcript | {"lastEventId": count} == shown["transcript"]
        assert await read(running, f"/session/{settled}/turns") == shown["turns"]


@pytest.mark.requirement("G1", "G3", "G7")
async def test_a_session_that_an_older_version_left_open_goes_on(data: Path, older: Json, version: str) -> None:
    _, opened = older["shown"]
    shown = older["shown"][opened]
    accepted = [event["promptId"] for event in shown["events"] if event["type"] == "prompt_accepted"]
    async with running_daemon(data, agent=(*SCRIPTED, "--profile", version)) as running:
        now = await events(running, opened, lambda found: len(ends(found)) == len(accepted))
        async with running.client() as client:
            lines = (await client.get(f"/session/{opened}/export/stored")).content.splitlines()
    count = len(shown["events"])
    assert as_then(now[:count], shown["events"]) == shown["events"]
    check_people(now)
    assert [event["id"] for event in now] == list(range(1, len(now) + 1))
    # The turn that ran when the daemon was killed has failed; the prompt that waited has run.
    assert [ends(now)[each] for each in accepted] == ["turn_error", "turn_complete"]
    # Both ends have receipts, over what the older version stored of them as well.
    head = read_head(lines[0])
    assert head is not None
    report = check(head, lambda: lines)
    assert (report.problem, report.receipts) == (None, 2)
    before = [each["id"] for each in shown["events"] if each["type"] in ("turn_complete", "turn_error")]
    assert report.proven[0].first == max(before, default=0) + 1


@pytest.mark.requirement("G1", "G11")
async def test_what_an_older_version_wrote_is_told_in_either_shape(data: Path, older: Json, version: str) -> None:
    settled, _ = older["shown"]
    count = len(older["shown"][settled]["events"])
    async with running_daemon(data, agent=(*SCRIPTED, "--profile", version)) as running:
        for acp, number in (("1", 1), ("2", 2)):
            now = await events(running, settled, lambda found: len(found) == count, acp)
            assert [event["id"] for event in now] == list(range(1, count + 1))
            check_people(now)
            for event in now:
                if event["type"] == "session_update":
                    assert complaints(number, "SessionUpdate", event["data"]["update"]) == []
            omitted = {each["data"]["sessionUpdate"] for each in now if each["type"] == "session_update_omitted"}
            assert omitted == (set() if version == "v1" else {"user_message", "state_update"})
