"""The player alone: its waits, its rejections, its ids. The test is its client."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest

from turnwire.errors import RecordingMismatch
from turnwire.hosting.memory import MemoryLink, memory_pair
from turnwire_testing.clock import ManualClock
from turnwire_testing.patience import WAIT_S, quiet
from turnwire_testing.recording.format import Entry, Side
from turnwire_testing.recording.matching import Match
from turnwire_testing.recording.player import Player

pytestmark = pytest.mark.anyio


def asked(number: Any, method: str, **params: Any) -> dict[str, Any]:
    return {"id": number, "method": method, "params": params}


def prompted(number: Any, text: str, session: str = "s") -> dict[str, Any]:
    return asked(number, "session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])


def said(text: str, session: str = "s") -> dict[str, Any]:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    return {"method": "session/update", "params": {"sessionId": session, "update": update}}


def answered(number: Any, **result: Any) -> dict[str, Any]:
    return {"id": number, "result": result}


def line_of(frame: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", **frame})


def recording(*frames: tuple[Side, dict[str, Any]]) -> list[Entry]:
    """Frames that passed, a second between each and the next."""
    return [Entry(at, at * 1000, side, line_of(each)) for at, (side, each) in enumerate(frames, 1)]


OPENED: list[tuple[Side, dict[str, Any]]] = [
    ("client", asked(1, "session/new", cwd="/old/place", mcpServers=[])),
    ("agent", answered(1, sessionId="s")),
]
TURN: list[tuple[Side, dict[str, Any]]] = [
    ("client", prompted(2, "say it")),
    ("agent", said("one")),
    ("agent", answered(2, stopReason="end_turn")),
]


class Client:
    """The far end, by hand."""

    def __init__(self, link: MemoryLink, clock: ManualClock) -> None:
        self.link = link
        self.clock = clock
        self.code: int | None = None
        self.ended = anyio.Event()
        self.mismatch: RecordingMismatch | None = None
        self.notes: list[str] = []
        self._come: list[dict[str, Any]] = []

    def send(self, frame: dict[str, Any]) -> None:
        self.link.send_nowait(line_of(frame))

    async def hear(self) -> dict[str, Any]:
        with anyio.fail_after(WAIT_S):
            while not self._come:
                self._come += map(msgspec.json.decode, await self.link.receive())
        frame = self._come.pop(0)
        del frame["jsonrpc"]
        return frame

    async def silence(self) -> None:
        await quiet()
        assert not self._come
        assert not self.link.waiting

    async def end(self) -> None:
        with anyio.fail_after(WAIT_S):
            await self.ended.wait()


@asynccontextmanager
async def played(entries: list[Entry], match: Match = Match.STRICT, **options: Any) -> AsyncGenerator[Client]:
    ours, theirs = memory_pair()
    clock = ManualClock()
    client = Client(ours, clock)

    async def play() -> None:
        player = Player(theirs, entries, clock=clock, match=match, note=client.notes.append, **options)
        try:
            client.code = await player.play()
        except RecordingMismatch as mismatch:
            client.mismatch = mismatch
        client.ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(play)
        yield client
        await ours.aclose()
        await client.end()
        await theirs.aclose()


async def opened(client: Client, number: Any = 1, cwd: str = "/old/place") -> None:
    client.send(asked(number, "session/new", cwd=cwd, mcpServers=[]))
    assert await client.hear() == answered(number, sessionId="s")


async def test_the_agent_says_nothing_before_the_client_has_asked() -> None:
    async with played(recording(*OPENED, *TURN)) as client:
        await client.silence()
        await opened(client)
        await client.silence()
        client.send(prompted(2, "say it"))
        assert [await client.hear(), await client.hear()] == [each for side, each in TURN if side == "agent"]


@pytest.mark.parametrize("match", [Match.STRICT, Match.LOOSE])
async def test_what_was_taken_out_of_a_recording_may_have_been_anything(match: Match) -> None:
    mode = asked(2, "session/set_mode", sessionId="s", modeId="a ***")
    frames: list[tuple[Side, dict[str, Any]]] = [
        *OPENED,
        ("client", mode),
        ("agent", answered(2)),
        ("client", prompted(3, "use *** and *** now")),
        ("agent", answered(3, stopReason="end_turn")),
    ]
    async with played(recording(*frames), match) as client:
        await opened(client)
        client.send(asked(2, "session/set_mode", sessionId="s", modeId="a b"))
        assert await client.hear() == answered(2)
        client.send(prompted(3, "use this\nthing and that later"))
        assert "error" in await client.hear()
        client.send(prompted(4, "use this\nthing and that now"))
        assert await client.hear() == answered(4, stopReason="end_turn")


async def test_an_answer_has_the_id_of_the_live_request() -> None:
    async with played(recording(*OPENED, *TURN)) as client:
        await opened(client, "first")
        client.send(prompted("second", "say it"))
        await client.hear()
        assert await client.hear() == answered("second", stopReason="end_turn")


async def test_a_prompt_that_the_agent_names_is_named_by_the_live_id() -> None:
    marker = {"sessionUpdate": "turn_complete", "promptRequestId": 2}
    told = {"method": "session/update", "params": {"sessionId": "s", "update": marker}}
    async with played(recording(*OPENED, TURN[0], ("agent", told))) as client:
        await opened(client)
        client.send(prompted("mine", "say it"))
        assert (await client.hear())["params"]["update"]["promptRequestId"] == "mine"


async def test_paths_are_in_the_folder_of_the_live_session() -> None:
    text = "/old/place/a.py, /old/place, /old/places, file:///old/place/b"
    async with played(recording(*OPENED, TURN[0], ("agent", said(text)))) as client:
        await opened(client, cwd="/new/one")
        client.send(prompted(2, "say it"))
        found = (await client.hear())["params"]["update"]["content"]["text"]
        assert found == "/new/one/a.py, /new/one, /old/places, file:///new/one/b"


async def test_a_session_that_the_client_names_otherwise_is_that_session() -> None:
    load = asked(1, "session/load", sessionId="s", cwd="/a", mcpServers=[])
    frames: list[tuple[Side, dict[str, Any]]] = [("client", load), ("agent", answered(1)), *TURN]
    async with played(recording(*frames)) as client:
        client.send(asked(1, "session/load", sessionId="mine", cwd="/a", mcpServers=[]))
        await client.hear()
        client.send(prompted(2, "say it", "mine"))
        assert await client.hear() == said("one", "mine")


async def test_what_the_agent_asks_is_asked_again_and_its_answer_is_waited_for() -> None:
    terminal = asked(7, "terminal/create", sessionId="s", command="ls")
    frames: list[tuple[Side, dict[str, Any]]] = [
        *OPENED,
        TURN[0],
        ("agent", terminal),
        ("client", answered(7, terminalId="old")),
        ("agent", asked(8, "terminal/release", sessionId="s", terminalId="old")),
    ]
    async with played(recording(*frames)) as client:
        await opened(client)
        client.send(prompted(2, "say it"))
        assert await client.hear() == terminal
        await client.silence()
        client.send(answered(7, terminalId="new"))
        assert (await client.hear())["params"]["terminalId"] == "new"


PERMISSION: list[tuple[Side, dict[str, Any]]] = [
    *OPENED,
    TURN[0],
    ("agent", asked(0, "session/request_permission", sessionId="s", options=[])),
    ("client", answered(0, outcome={"outcome": "selected", "optionId": "yes"})),
    *TURN[1:],
]


@pytest.mark.parametrize("match", [Match.STRICT, Match.LOOSE])
async def test_another_decision_than_the_recorded_one_ends_the_play_and_names_the_frame(match: Match) -> None:
    async with played(recording(*PERMISSION), match) as client:
        await opened(client)
        client.send(prompted(9, "say it"))
        await client.hear()
        client.send(answered(0, outcome={"outcome": "selected", "optionId": "no"}))
        refused = await client.hear()
        assert (refused["id"], refused["error"]["data"]) == (9, {"code": "recording_mismatch", "frame": 5})
        await client.end()
    assert client.mismatch is not None


async def test_in_order_any_decision_is_taken() -> None:
    async with played(recording(*PERMISSION), Match.ORDER) as client:
        await opened(client)
        client.send(prompted(2, "something else"))
        await client.hear()
        client.send(answered(0, outcome={"outcome": "cancelled"}))
        assert await client.hear() == said("one")


@pytest.mark.parametrize(
    ("match", "text", "is_taken"),
    [
        (Match.STRICT, "say it", True),
        (Match.STRICT, "Say  it\n", False),
        (Match.LOOSE, "Say  it\n", True),
        (Match.LOOSE, "say that", False),
        (Match.ORDER, "say that", True),
    ],
)
async def test_a_prompt_is_the_recorded_one_as_far_as_is_asked_for(match: Match, text: str, is_taken: bool) -> None:
    async with played(recording(*OPENED, *TURN), match) as client:
        await opened(client)
        client.send(prompted(2, text))
        heard = await client.hear()
        if is_taken:
            assert heard == said("one")
            return
        assert heard["error"]["data"] == {"code": "recording_mismatch", "frame": 3}
        assert "frame 3 (client: session/prompt 'say it')" in heard["error"]["message"]
        client.send(prompted(3, "say it"))
        assert await client.hear() == said("one")


MODE: list[tuple[Side, dict[str, Any]]] = [
    ("client", asked(5, "session/set_mode", sessionId="s", modeId="code")),
    ("agent", answered(5)),
]


async def test_what_a_client_leaves_out_is_missed_strictly_and_skipped_otherwise() -> None:
    entries = recording(*OPENED, *MODE, *TURN)
    async with played(entries) as client:
        await opened(client)
        client.send(prompted(2, "say it"))
        assert (await client.hear())["error"]["data"]["frame"] == 3
    async with played(entries, Match.LOOSE) as client:
        await opened(client)
        client.send(prompted(2, "say it"))
        assert await client.hear() == said("one")


async def test_a_prompt_is_never_skipped() -> None:
    later: list[tuple[Side, dict[str, Any]]] = [("client", prompted(3, "and that"))]
    async with played(recording(*OPENED, *TURN, *later), Match.LOOSE) as client:
        await opened(client)
        client.send(prompted(2, "and that"))
        assert (await client.hear())["error"]["data"]["frame"] == 3


async def test_what_is_not_recorded_is_refused_at_once_and_a_notification_is_passed_over() -> None:
    async with played(recording(*OPENED, *TURN)) as client:
        await opened(client)
        client.send({"method": "session/cancel", "params": {"sessionId": "s"}})
        client.send(asked(4, "session/list"))
        assert (await client.hear())["error"]["data"]["frame"] == 3
        client.send(prompted(2, "say it"))
        assert await client.hear() == said("one")
        await client.hear()
        client.send(prompted(5, "more"))
        assert "nothing more" in (await client.hear())["error"]["message"]
    assert "session/cancel" in client.notes[0]


async def test_what_comes_early_is_kept_for_its_place() -> None:
    cancel: dict[str, Any] = {"method": "session/cancel", "params": {"sessionId": "s"}}
    frames: list[tuple[Side, dict[str, Any]]] = [*OPENED, *TURN[:2], ("client", cancel), TURN[2]]
    async with played(recording(*frames), speed=1.0) as client:
        client.send(OPENED[0][1])
        client.send(TURN[0][1])
        client.send(cancel)
        for expected in (OPENED[1][1], TURN[1][1], TURN[2][1]):
            await client.silence()
            client.clock.advance(1)
            assert await client.hear() == expected


@pytest.mark.parametrize(("speed", "seconds"), [(1.0, 1.0), (4.0, 0.25), (0.5, 2.0)])
async def test_it_waits_as_long_as_was_recorded_or_a_part_of_it(speed: float, seconds: float) -> None:
    async with played(recording(*OPENED), speed=speed) as client:
        client.send(OPENED[0][1])
        await quiet()
        client.clock.advance(seconds * 0.9)
        await client.silence()
        client.clock.advance(seconds * 0.2)
        assert await client.hear() == answered(1, sessionId="s")


async def test_it_ends_as_the_recorded_agent_did() -> None:
    died = [*recording(*OPENED, *TURN[:2]), Entry(5, 9000, "agent", b"", 7)]
    async with played(died) as client:
        await opened(client)
        client.send(prompted(2, "say it"))
        assert await client.hear() == said("one")
        await client.end()
        assert client.code == 7
    left = [*recording(*OPENED), Entry(3, 0, "client", b"", closed=True), Entry(4, 0, "agent", b"", 5)]
    async with played(left) as client:
        await opened(client)
        await client.silence()
    assert client.code == 5


async def test_a_client_that_leaves_early_ends_the_play() -> None:
    async with played(recording(*OPENED, *TURN)) as client:
        await opened(client)
    assert client.code == 0


async def test_bytes_that_are_no_frame_are_answered_and_played() -> None:
    noise = Entry(3, 0, "agent", b"Warning: not JSON")
    async with played([*recording(*OPENED), noise]) as client:
        client.link.send_nowait(b"{nonsense")
        assert (await client.hear())["error"]["code"] == -32700
        client.send(OPENED[0][1])
        await quiet()
        assert (await client.link.receive())[1] == b"Warning: not JSON"


async def test_each_frame_can_be_stopped_before() -> None:
    seen: list[int] = []

    async def before(entry: Entry) -> None:
        seen.append(entry.number)

    async with played(recording(*OPENED, *TURN), before=before) as client:
        await opened(client)
        await client.silence()
        assert seen == [1, 2, 3]
