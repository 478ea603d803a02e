"""Many events at a time: a page contains exactly the frames of its events one by one, in the same order."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import msgspec
import pytest
from tests.server.acp.http_client import is_answer, talking
from tests.server.acp.socket_client import open_socket
from tests.server.acp.test_connection_streams import Stream, answers, streaming
from tests.support.acp import Json, Place, acp_daemon
from tests.support.daemons import running_daemon

from turnwire.ids import AgentSessionId, ChildId, MessageId, PromptId, SessionId
from turnwire.projections.encoder import SessionEncoder, Tell
from turnwire.projections.encoder.encoder import Dialect
from turnwire.projections.translate.handshake import ClientProfile
from turnwire.server.access.tokens import ANYBODY
from turnwire.server.acp.client_state import ClientState
from turnwire.server.acp.frame_writer import (
    AT_ONCE,
    KEPT,
    Fold,
    FramePage,
    FrameWriter,
    PlainRun,
    PlainRuns,
    WriterMode,
)
from turnwire.server.acp.subscription import Subscription
from turnwire.session import events as ev
from turnwire.session.codec import encode
from turnwire.wire.jsonrpc import raw
from turnwire_testing.patience import quiet

pytestmark = pytest.mark.anyio

Told: TypeAlias = tuple[int | None, bytes]

SESSION = SessionId("s-1")
TURN = PromptId("p-1")
MANY = 1500
"""More than one page of the log has."""
NUMBERED = "\n".join(f"say 1 n{number}" for number in range(MANY))


def update(kind: str, *, echo: bool = False, late: bool = False, **members: Any) -> ev.SessionUpdated:
    told = raw({"sessionUpdate": kind, **members})
    return ev.SessionUpdated(
        at=1, kind=kind, update=told, prompt_id=None if late else TURN, after=TURN if late else None, echo=echo
    )


def chunk(text: str, **members: Any) -> ev.SessionUpdated:
    return update("agent_message_chunk", content={"type": "text", "text": text}, **members)


EVENTS: list[ev.AnyEvent] = [
    chunk("one"),
    chunk("böse \u2028 \U0001f600"),
    update("user_message_chunk", content={"type": "text", "text": "mine"}, echo=True),
    update("turn_complete", stopReason="end_turn"),
    update("state_update", state="running"),
    update("config_option_update", configOptions=[]),
    update("_theirs", about="agent_message_chunk"),
    update("usage_update", used=1),
    chunk("usage_update"),
    ev.TurnStarted(at=1, prompt_id=TURN),
    chunk("late", late=True),
]


def writer(place: Place, **agreed: Any) -> FrameWriter:
    client = ClientState(place.daemon, ANYBODY, place.tasks)
    client.profile = ClientProfile(version=1, withheld=frozenset({"usage_update"}))
    client.shows_offsets = agreed.get("shows_offsets", False)
    return FrameWriter(client, Subscription(SESSION, 64), Fold(0, SessionEncoder(client.dialect, SESSION), {}))


def told(page: FramePage) -> list[Told]:
    return list(zip(page.offsets, page.frames, strict=True))


def expected(offset: int, event: ev.AnyEvent, face: SessionEncoder) -> list[tuple[int, Json]]:
    """Return the fold's frames of an event, without any optimization."""
    told = [each.update for each in face.take(event, own=False) if isinstance(each, Tell)]
    updates: list[Json] = [msgspec.json.decode(each) for each in told]
    heard = [each for each in updates if each["sessionUpdate"] != "usage_update"]
    return [(offset, {"sessionId": SESSION, "update": each}) for each in heard]


@pytest.mark.parametrize("size", [1, 2, 4, len(EVENTS)])
async def test_a_page_tells_what_the_fold_says_of_each_event(size: int) -> None:
    async with acp_daemon() as place:
        paged, client = writer(place), ClientState(place.daemon, ANYBODY, place.tasks)
        face = SessionEncoder(client.dialect, SESSION)
        wanted = [each for offset, event in enumerate(EVENTS, 1) for each in expected(offset, event, face)]
        bodies = [encode(each) for each in EVENTS]
        got = [
            (offset, msgspec.json.decode(frame)["params"])
            for start in range(0, len(bodies), size)
            for offset, frame in told(paged.take(start + 1, bodies[start : start + size], WriterMode.LIVE))
        ]
        assert got == wanted
        assert [offset for offset, _ in got] == [1, 2, 6, 7, 9, 11]


async def test_an_update_that_is_passed_on_keeps_its_bytes() -> None:
    async with acp_daemon() as place:
        odd = b'{"sessionUpdate" : "agent_message_chunk","x":1.0e2,"content":{"type":"text","text":"\\u0041"}}'
        body = b'{"type":"session_update","at":1,"kind":"agent_message_chunk","update":%b}' % odd
        (given,) = writer(place).take(7, [body], WriterMode.LIVE).frames
        assert odd in given
        (shown,) = writer(place, shows_offsets=True).take(7, [body], WriterMode.LIVE).frames
        assert msgspec.json.decode(shown)["params"]["_meta"] == {"turnwire": {"eventId": 7}}


async def test_what_the_client_knows_is_not_told_again() -> None:
    async with acp_daemon() as place:
        assert writer(place).take(1, [encode(each) for each in EVENTS], WriterMode.QUIET).frames == []


class Folding(SessionEncoder):
    """A fold that is called for every event."""

    @property
    def passes_on(self) -> bool:
        return False


WORDS = (
    raw(
        {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": 'x","promptId":"p-1","at":5}'}}
    ),
    raw({"sessionUpdate": "agent_message_chunk", "messageId": "m", "content": {"type": "text", "text": "\u2028é"}}),
    raw({"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": "{}"}, "promptId": "p-1"}),
    raw({"sessionUpdate": "tool_call", "toolCallId": "t", "title": "T"}),
    raw({"sessionUpdate": "tool_call_update", "toolCallId": "t", "status": "completed"}),
    raw({"sessionUpdate": "usage_update", "used": 1, "size": 2}),
    raw({"sessionUpdate": "state_update", "state": "running"}),
    raw({"sessionUpdate": "config_option_update", "configOptions": []}),
    raw({"sessionUpdate": "notice", "text": "now"}),
    raw({"sessionUpdate": "_theirs", "about": "usage_update"}),
)


def said(chance: Random) -> ev.SessionUpdated:
    """Generate any agent output, most of it in a turn and at one of two times."""
    told = chance.choice(WORDS[:2] if chance.random() < 0.7 else WORDS)
    odd = chance.random() < 0.2
    return ev.SessionUpdated(
        at=chance.choice((5, 5, 5, 6)),
        kind=msgspec.json.decode(told)["sessionUpdate"],
        update=told,
        prompt_id=None if odd and chance.random() < 0.5 else chance.choice((TURN, TURN, PromptId("p-2"))),
        after=TURN if odd and chance.random() < 0.3 else None,
        echo=odd and chance.random() < 0.3,
        beside=raw({"_meta": {"x": [1]}}) if odd and chance.random() < 0.3 else msgspec.UNSET,
        child=ChildId("c-1") if odd and chance.random() < 0.3 else None,
    )


def happened(chance: Random) -> ev.AnyEvent:
    """Anything that a session's log may hold."""
    if chance.random() < 0.9:
        return said(chance)
    return chance.choice(
        [
            ev.PromptAccepted(at=1, prompt_id=TURN, after_offset=0),
            ev.TurnStarted(at=1, prompt_id=TURN),
            ev.UserMessage(at=1, prompt_id=TURN, message_id=MessageId("u-1"), content=raw([])),
            ev.TurnCompleted(at=1, prompt_id=TURN, stop_reason="end_turn", ending=ev.Ending.RESPONSE),
            started(chance.choice((1, 2))),
        ]
    )


def started(version: int) -> ev.AgentStarted:
    """Return an agent of that version."""
    named = AgentSessionId("a-1")
    return ev.AgentStarted(at=1, agent_session_id=named, protocol_version=version, turn_end=ev.TurnEnd.RESPONSE)


def any_client(place: Place, version: int, chance: Random) -> ClientState:
    client = ClientState(place.daemon, ANYBODY, place.tasks)
    client.dialect = Dialect(version=version)
    client.shows_offsets = chance.random() < 0.3
    withheld = frozenset({"usage_update"} if chance.random() < 0.5 else ())
    client.profile = ClientProfile(version=version, withheld=withheld)
    return client


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("agent_version", [1, 2])
@pytest.mark.parametrize("mode", WriterMode)
async def test_what_is_passed_on_is_byte_for_byte_what_the_fold_says(
    version: int, agent_version: int, mode: WriterMode
) -> None:
    """Readers of all kinds, each with separate pages, against one that folds each event by itself."""
    chance = Random(f"{version} {agent_version} {mode}")
    async with acp_daemon() as place:
        for _ in range(40):
            events = [started(agent_version), *(happened(chance) for _ in range(chance.randrange(60)))]
            bodies = [encode(each) for each in events]
            client = any_client(place, version, chance)
            folded, wanted = over(client, Folding), list[Told]()
            for offset, body in enumerate(bodies, 1):
                wanted += told(folded.take(offset, [body], mode))
            for _ in range(3):
                assert in_pages(over(client, SessionEncoder), bodies, mode, chance) == wanted


@pytest.mark.parametrize("seed", range(20))
async def test_readers_that_share_runs_are_told_what_each_would_be_told_alone(seed: int) -> None:
    """Of both versions, with and without offsets, withheld kinds and history, each at its own pace."""
    chance = Random(seed)
    async with acp_daemon() as place:
        bodies = [encode(started(1)), *(encode(happened(chance)) for _ in range(80))]
        shared, readers = PlainRuns(), list[tuple[FrameWriter, FrameWriter, WriterMode]]()
        for _ in range(chance.randrange(2, 6)):
            client, mode = any_client(place, chance.choice((1, 1, 2)), chance), chance.choice([*WriterMode])
            shared.enter()
            alone, sharing = over(client, SessionEncoder), over(client, SessionEncoder, shared)
            readers.append((alone, sharing, mode))
        for _ in range(12):
            for alone, sharing, mode in readers:
                start = sharing.offset
                page = bodies[start : start + chance.choice((2, 3, 4, 8, 12))]
                if page:
                    assert told(sharing.take(start + 1, page, mode)) == told(alone.take(start + 1, page, mode))


def test_one_reader_alone_keeps_no_runs() -> None:
    shared, run = PlainRuns(), PlainRun("agent_message_chunk", [b"x"])
    shared.enter()
    shared.keep(1, run)
    assert shared.get(1) is None
    shared.enter()
    shared.keep(0, PlainRun("agent_message_chunk", [b"x"] * (KEPT - 1)))
    shared.keep(1, run)
    assert shared.get(0) is not None
    shared.keep(2, run)
    assert shared.get(0) is None
    assert shared.get(1) is run
    shared.leave()
    assert shared.get(1) is None


def in_pages(paged: FrameWriter, bodies: list[bytes], mode: WriterMode, chance: Random) -> list[Told]:
    got, start = list[Told](), 0
    while start < len(bodies):
        end = start + chance.choice((1, 2, 7, 100))
        got += told(paged.take(start + 1, bodies[start:end], mode))
        assert paged.offset == min(end, len(bodies))
        start = end
    return got


def over(client: ClientState, face: type[SessionEncoder], runs: PlainRuns | None = None) -> FrameWriter:
    return FrameWriter(client, Subscription(SESSION, 64), Fold(0, face(client.dialect, SESSION), {}), runs)


async def test_what_is_folded_is_taken_some_at_a_time() -> None:
    async with acp_daemon() as place:
        one, page = writer(place), [encode(update("usage_update", used=1))] * (AT_ONCE + 1)
        one.take(1, page, WriterMode.LIVE)
        assert one.offset == AT_ONCE
        one.take(1, [encode(chunk("x"))] * (AT_ONCE + 1), WriterMode.LIVE)
        assert one.offset == AT_ONCE + 1


def test_the_codec_writes_the_turn_right_behind_the_payload() -> None:
    names = ev.SessionUpdated.__struct_fields__
    assert names[:3] == ("kind", "update", "prompt_id")


async def test_a_refusal_comes_between_the_events_of_a_page_where_it_belongs() -> None:
    async with acp_daemon() as place, streaming(place) as client:
        session_id = await client.new()
        first = await client.prompt(session_id, "say 5 one")
        while place.daemon.node.loaded[session_id].state.turn is not None:
            await quiet()
        refused = await client.ask("session/prompt", sessionId=session_id, prompt=[])
        second = await client.prompt(session_id, "say 5 two")
        while place.daemon.node.loaded[session_id].state.turn is not None:
            await quiet()
        stream = Stream(client, session_id)
        await stream.until(answers(second))
        await stream.aclose()
        ids = [each["id"] for each in stream.frames if "id" in each]
        assert ids == [first, refused, second]
        at = next(place for place, each in enumerate(stream.frames) if answers(refused)(each))
        assert sum("one" in str(each) for each in stream.frames[:at]) == 5
        assert sum("two" in str(each) for each in stream.frames[at:]) == 5


@pytest.mark.guarantee("G9")
async def test_a_long_turn_comes_whole_and_in_order_on_a_socket(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, open_socket(running) as socket:
        await socket.start()
        asked = await socket.prompt(await socket.new(), NUMBERED)
        heard = await socket.until(lambda each: is_answer(each, asked))
        assert [each.text for each in heard if each.text] == [f"n{number}" for number in range(MANY)]


async def test_a_message_of_any_size_comes_whole_on_a_socket(tmp_path: Path) -> None:
    """Around the sizes at which a frame of a WebSocket begins in another way."""
    async with running_daemon(tmp_path / "d") as running, open_socket(running) as socket:
        await socket.start()
        session_id = await socket.new()

        async def said(letters: int) -> int:
            """Return the size of the message with a text of this length."""
            asked = await socket.prompt(session_id, f"say 1 {'x' * letters}")
            heard = await socket.until(lambda each: is_answer(each, asked))
            (found,) = [each for each in heard if each.text]
            assert found.text == "x" * letters
            return len(msgspec.json.encode(found.message))

        async def answered(letters: int) -> int:
            """Return the size of the answer to a request with an id of this length."""
            await socket.send({"jsonrpc": "2.0", "id": "x" * letters, "method": "none", "params": {}})
            return len(msgspec.json.encode(await socket.answer("x" * letters)))

        around = await said(1) - 1
        for size in (65_535, 65_536, 65_537):
            assert await said(size - around) == size
        around = await answered(1) - 1
        for size in (125, 126, 127):
            assert await answered(size - around) == size


@pytest.mark.guarantee("G9")
async def test_a_long_turn_comes_whole_and_in_order_on_a_stream(tmp_path: Path) -> None:
    async with talking(tmp_path / "d") as talk:
        asked = await talk.client.prompt(talk.session_id, NUMBERED)
        heard = await talk.session.until(lambda each: is_answer(each, asked))
        assert [each.text for each in heard if each.text] == [f"n{number}" for number in range(MANY)]
        ids = [each.id for each in heard if each.text and each.id is not None]
        assert len(ids) == MANY
        assert ids == sorted(set(ids))
