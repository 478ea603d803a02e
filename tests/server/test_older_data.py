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

from turnwire.testing.patience import WAIT_S

Json = dict[str, Any]
FOLDERS = Path(__file__).parent / "data_0_1_0"


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


async def events(running: Running, session_id: str, is_enough: Callable[[list[Json]], bool]) -> list[Json]:
    """The events of a session from the first, until there are enough."""
    found: list[Json] = []
    async with running.client() as client, client.stream("GET", f"/session/{session_id}/events?after=0") as stream:
        with anyio.fail_after(WAIT_S):
            async for line in stream.aiter_lines():
                event: Json = json.loads(line[6:]) if line.startswith("data: ") else {}
                found += [event] if "id" in event else []
                if is_enough(found):
                    break
    return found


def ends(found: list[Json]) -> dict[str, str]:
    """How each prompt ended."""
    return {each["promptId"]: each["type"] for each in found if each["type"] in ("turn_complete", "turn_error")}


async def read(running: Running, path: str) -> Json:
    async with running.client() as client:
        answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.anyio
async def test_what_an_older_version_wrote_reads_as_it_did(data: Path, older: Json, version: str) -> None:
    settled, _ = older["shown"]
    shown = older["shown"][settled]
    async with running_daemon(data, agent=(*SCRIPTED, "--profile", version)) as running:
        count = len(shown["events"])
        assert await events(running, settled, lambda found: len(found) == count) == shown["events"]
        transcript = await read(running, f"/session/{settled}/transcript")
        # The log has grown by what the new daemon noted: that the agent of the old one is gone.
        assert transcript | {"lastEventId": count} == shown["transcript"]
        assert await read(running, f"/session/{settled}/turns") == shown["turns"]


@pytest.mark.anyio
@pytest.mark.requirement("G1", "G3", "G7")
async def test_a_session_that_an_older_version_left_open_goes_on(data: Path, older: Json, version: str) -> None:
    _, opened = older["shown"]
    shown = older["shown"][opened]
    accepted = [event["promptId"] for event in shown["events"] if event["type"] == "prompt_accepted"]
    async with running_daemon(data, agent=(*SCRIPTED, "--profile", version)) as running:
        now = await events(running, opened, lambda found: len(ends(found)) == len(accepted))
    assert now[: len(shown["events"])] == shown["events"]
    assert [event["id"] for event in now] == list(range(1, len(now) + 1))
    # The turn that ran when the daemon was killed has failed; the prompt that waited has run.
    assert [ends(now)[each] for each in accepted] == ["turn_error", "turn_complete"]
