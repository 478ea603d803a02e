"""A long history blocks no other client: the loop is free while any of it is read."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from msgspec import Raw
from tests.support.daemons import running_daemon
from tests.support.held import held_at_most

from turnwire.ids import AgentSessionId, MessageId, PromptId, SessionId
from turnwire.limits import Limits
from turnwire.log import Durability, SqliteEventLog
from turnwire.runtime.folds import KeptViews
from turnwire.session import events as ev
from turnwire.session.codec import encode

pytestmark = pytest.mark.anyio

SESSION, PROMPT = SessionId("s1"), PromptId("@@@@@@")
TURNS, CHUNKS = 5_000, 14
EVENTS = 2 + TURNS * (CHUNKS + 6)
HELD_S = 0.25
"""CPU time limit of one callback. It needs some milliseconds; to fold or to encode all at once would need a
second.
"""


def update(kind: str, **fields: Any) -> ev.SessionUpdated:
    body = Raw(msgspec.json.encode({"sessionUpdate": kind, **fields}))
    return ev.SessionUpdated(at=1, kind=kind, update=body, prompt_id=PROMPT)


def turn() -> bytes:
    """Return one turn; its id is replaced in the encoded form."""
    said = update("agent_message_chunk", content={"type": "text", "text": "word @@@@@@ "})
    events: list[ev.AnyEvent] = [
        ev.PromptAccepted(at=1, prompt_id=PROMPT, after_offset=0),
        ev.UserMessage(
            at=1,
            prompt_id=PROMPT,
            message_id=MessageId("u@@@@@@"),
            content=Raw(b'[{"type":"text","text":"go @@@@@@"}]'),
        ),
        ev.TurnStarted(at=1, prompt_id=PROMPT),
        update("tool_call", toolCallId="t@@@@@@", title="look", status="in_progress"),
        *[said] * CHUNKS,
        update("tool_call_update", toolCallId="t@@@@@@", status="completed"),
        ev.TurnCompleted(at=1, prompt_id=PROMPT, stop_reason="end_turn", ending=ev.Ending.RESPONSE),
    ]
    return b"\n".join(map(encode, events))


@pytest.fixture(scope="module")
async def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder with a session of a hundred thousand events, and no stored view of it."""
    folder = tmp_path_factory.mktemp("long") / "data"
    folder.mkdir()
    opening: list[ev.AnyEvent] = [
        ev.SessionCreated(at=1, session_id=SESSION, cwd="/work"),
        ev.AgentStarted(
            at=1, agent_session_id=AgentSessionId("a"), protocol_version=1, turn_end=ev.TurnEnd.RESPONSE
        ),
    ]
    template = turn()
    async with await SqliteEventLog.open(
        folder / "turnwire.db", limits=Limits(), durability=Durability.NORMAL
    ) as log:
        await log.create(SESSION)
        head = await log.append(SESSION, [*map(encode, opening)], expected=0, unsettled=False, durable=False)
        for first in range(0, TURNS, 500):
            bodies: list[bytes] = []
            for number in range(first, first + 500):
                bodies += template.replace(b"@@@@@@", b"%06d" % number).split(b"\n")
            head = await log.append(SESSION, bodies, expected=head, unsettled=False, durable=False)
    assert head == EVENTS
    return folder


@asynccontextmanager
async def opened(data: Path) -> AsyncGenerator[httpx.AsyncClient]:
    async with running_daemon(data) as running, running.client() as client:
        yield client


async def get(client: httpx.AsyncClient, path: str) -> Any:
    return (await client.get(f"/session/{SESSION}{path}")).raise_for_status().json()


ROUTES = [
    *("", "/status", "/turns", "/turns?limit=500&after=002000", "/turns/current", "/turns/000007"),
    *("/prompt-status", "/prompt-status?promptId=002500", "/transcript?limit=50", "/transcript"),
    *("/transcript?limit=100&before=300", "/queue", "/pending-prompts", "/permissions", "/children", "/explain"),
    "/log?after=50000&limit=100",
]


async def test_no_read_of_a_long_session_holds_the_loop_cold_or_warm(data: Path) -> None:
    """The first round folds the log for the first time; the second comes after a restart, the third is warm."""
    for _ in range(2):
        async with opened(data) as client:
            with held_at_most(HELD_S):
                for path in (*ROUTES, *ROUTES):
                    await get(client, path)
                (await client.get("/session")).raise_for_status()


async def test_after_a_restart_a_read_folds_the_newest_events_only(data: Path) -> None:
    async with await SqliteEventLog.open(
        data / "turnwire.db", limits=Limits(), durability=Durability.NORMAL
    ) as log:
        await KeptViews(log, Limits()).newest(SESSION)
        views = KeptViews(log, Limits())
        reads: list[int] = []
        whole = log.read

        async def read(session_id: SessionId, after: Any, *, max_events: int, max_bytes: int) -> Any:
            reads.append(after.offset)
            return await whole(session_id, after, max_events=max_events, max_bytes=max_bytes)

        log.read = read  # type: ignore[method-assign]
        record = await views.read(SESSION, lambda view: view.turn(PromptId("000100")))
        assert record is not None
        assert record.outcome is not None
        assert all(offset >= EVENTS - 2048 for offset in reads)


async def test_the_turns_of_a_long_session_are_read_page_by_page_each_once_with_their_words(data: Path) -> None:
    names: list[str] = []
    async with opened(data) as client:
        cursor = ""
        while True:
            page = await get(client, f"/turns?limit=500{cursor}")
            for each in page["turns"]:
                number = each["promptId"]
                assert each["promptText"] == f"go {number}"
                assert each["resultText"] == f"word {number} " * CHUNKS
            names += [each["promptId"] for each in page["turns"]]
            if "nextCursor" not in page:
                break
            cursor = f"&after={page['nextCursor']}"
        unknown = await client.get(f"/session/{SESSION}/turns?after=nobody")
    assert names == [f"{number:06d}" for number in range(TURNS)]
    assert unknown.status_code == 404


async def test_a_long_transcript_that_is_asked_for_without_a_page_is_its_newest_one(data: Path) -> None:
    async with opened(data) as client:
        page = await get(client, "/transcript")
        assert page["before"] == page["first"] == 3 * TURNS - len(page["items"])
        assert 0 < len(page["items"]) <= 1000
        before = await get(client, f"/transcript?before={page['before']}&limit=3")
    assert before["first"] == page["first"] - 3
    assert sorted(each["item"] for each in before["items"]) == ["message", "message", "tool_call"]
    assert {each["promptId"] for each in before["turns"]} == {each["promptId"] for each in before["items"]}
