"""A session's own streams: cursors, several readers, and sessions that have no stream yet."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import anyio
import msgspec
import pytest
from tests.support.acp import DIALECTS, V1, WAIT_S, Client, Json, Place, acp_daemon, connected
from tests.support.acp_client import is_update

from turnwire.errors import PositionLost
from turnwire.ids import Epoch, SessionId
from turnwire.log import Position
from turnwire.server.access.tokens import ANYBODY
from turnwire_testing.patience import quiet

pytestmark = pytest.mark.anyio


class Streaming(Client):
    """A client that reads the connection's stream, and each session's separately."""

    async def _read(self, scope: anyio.CancelScope) -> None:
        with scope:
            async with aclosing(self.connection.connection_frames()) as frames:
                async for some in frames:
                    for frame in some:
                        self.take(frame)


class Stream:
    """One reader of one session."""

    def __init__(self, client: Client, session_id: str, after: Position | None = None) -> None:
        self._pages = client.connection.session_frames(SessionId(session_id), after)
        self._page: deque[tuple[int | None, bytes]] = deque()
        self.got: list[tuple[int | None, Json]] = []

    async def until(self, fits: Callable[[Json], Any]) -> Json:
        """Read on until a frame fits."""
        with anyio.fail_after(WAIT_S):
            while True:
                while self._page:
                    offset, frame = self._page.popleft()
                    if not frame:
                        continue  # only the end of the history is marked
                    self.got.append((offset, msgspec.json.decode(frame)))
                    if fits(self.got[-1][1]):
                        return self.got[-1][1]
                page = await anext(self._pages)
                self._page.extend(zip(page.offsets, page.frames, strict=True))

    async def aclose(self) -> None:
        """Stop reading. Frames read to the end of their page count as delivered."""
        with anyio.move_on_after(0), suppress(StopAsyncIteration):
            if self.got and not self._page:
                await anext(self._pages)
        await self._pages.aclose()

    @property
    def frames(self) -> list[Json]:
        return [frame for _, frame in self.got]

    @property
    def offset(self) -> int:
        return max(offset for offset, _ in self.got if offset is not None)


@asynccontextmanager
async def streaming(place: Place, initialize: Json = V1) -> AsyncGenerator[Streaming]:
    client = Streaming(place, ANYBODY)
    answer = await client.connection.initialize(
        msgspec.json.encode({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": initialize})
    )
    client.version = msgspec.json.decode(answer)["result"]["protocolVersion"]
    client.read()
    try:
        yield client
    finally:
        await client.connection.aclose()


def answers(request_id: int | str) -> Callable[[Json], bool]:
    """Return True if a frame is the answer to this request."""

    def fits(frame: Json) -> bool:
        return "method" not in frame and frame.get("id") == request_id

    return fits


def anything(frame: Json) -> bool:
    return True


def nothing(frame: Json) -> bool:
    return False


def speaks(frame: Json) -> bool:
    return is_update(frame, "agent_message_chunk", {})


def idles(frame: Json) -> bool:
    return is_update(frame, "state_update", {"state": "idle"})


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_sessions_answers_come_on_its_own_stream(dialect: str) -> None:
    async with acp_daemon() as place, streaming(place, DIALECTS[dialect]) as client:
        session_id = await client.new()
        request_id = await client.prompt(session_id, "say 2 x")
        refused = await client.ask("session/prompt", sessionId=session_id, prompt=[])
        mode = await client.ask("session/set_config_option", sessionId=session_id, configId="none", value="x")
        async with aclosing(Stream(client, session_id)) as stream:
            for each in (request_id, refused, mode):
                if not any(map(answers(each), stream.frames)):
                    await stream.until(answers(each))
        assert [each["id"] for each in client.frames] == [1]


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_stream_goes_on_behind_a_cursor_without_a_gap_or_a_repeat(dialect: str) -> None:
    async with acp_daemon() as place, streaming(place, DIALECTS[dialect]) as client:
        session_id = await client.new()
        epoch = (await place.daemon.node.head(session_id)).epoch
        request_id = await client.prompt(session_id, "say 20 x\ntool t1 read look\nsay 20 y")
        end = idles if client.version == 2 else answers(request_id)
        async with aclosing(Stream(client, session_id)) as whole:
            await whole.until(end)
        offsets = [offset for offset, _ in whole.got if offset is not None]
        assert offsets == sorted(set(offsets))
        for cut in offsets:
            place_of_cut = next(index for index, (offset, _) in enumerate(whole.got) if offset == cut)
            rest = whole.got[place_of_cut + 1 :]
            if not rest:
                continue
            async with aclosing(Stream(client, session_id, Position(epoch, cut))) as resumed:
                while len(resumed.got) < len(rest):
                    await resumed.until(anything)
                assert resumed.got == rest


async def test_a_reader_without_a_cursor_goes_on_where_the_last_one_stood() -> None:
    async with acp_daemon() as place, streaming(place) as client:
        session_id = await client.new()
        first = await client.prompt(session_id, "say 1 one")
        async with aclosing(Stream(client, session_id)) as stream:
            await stream.until(answers(first))
        second = await client.prompt(session_id, "say 1 two")
        async with aclosing(Stream(client, session_id)) as stream:
            await stream.until(answers(second))
            assert not any("one" in str(each) for each in stream.frames)
            assert any("two" in str(each) for each in stream.frames)


async def test_two_readers_of_one_session_each_see_everything() -> None:
    async with acp_daemon() as place, streaming(place) as client:
        session_id = await client.new()
        one, two = Stream(client, session_id), Stream(client, session_id)
        got: dict[str, list[Json]] = {}

        async def read(name: str, stream: Stream) -> None:
            async with aclosing(stream):
                await stream.until(answers(3))
                got[name] = stream.frames

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, "one", one)
            tasks.start_soon(read, "two", two)
            await quiet()
            refused = await client.ask("session/prompt", sessionId=session_id, prompt=[])
            request_id = await client.prompt(session_id, "say 5 x\nask t1 yes")
            assert (refused, request_id) == (2, 3)
            while not any(each.get("method") == "session/request_permission" for each in one.frames):
                await quiet()
            asked = next(each for each in one.frames if each.get("method") == "session/request_permission")
            outcome = {"outcome": {"outcome": "selected", "optionId": "yes"}}
            await client.send({"jsonrpc": "2.0", "id": asked["id"], "result": outcome})
        assert got["one"] == got["two"]
        assert any(answers(2)(each) for each in got["one"])


@pytest.mark.parametrize(("cursor", "why"), [((None, 10**6), "ahead"), (("other", 1), "epoch")])
async def test_a_cursor_that_cannot_be_honoured_is_refused(cursor: tuple[str | None, int], why: str) -> None:
    async with acp_daemon() as place, streaming(place) as client:
        session_id = await client.new()
        epoch = (await place.daemon.node.head(session_id)).epoch
        stream = Stream(client, session_id, Position(Epoch(cursor[0] or epoch), cursor[1]))
        with pytest.raises(PositionLost) as lost:
            await stream.until(anything)
        assert lost.value.context["why"] == why


@pytest.mark.parametrize("dialect", ["v1", "v2"])
async def test_a_stream_may_be_opened_before_the_session_is_loaded(dialect: str) -> None:
    async with acp_daemon() as place, connected(place, V1) as first, streaming(place, DIALECTS[dialect]) as client:
        session_id = await first.new()
        await first.answer(await first.prompt(session_id, "say 1 one"))
        stream = Stream(client, session_id)
        async with aclosing(stream), anyio.create_task_group() as tasks:
            tasks.start_soon(stream.until, speaks)
            await quiet()
            replay: Json = {"replayFrom": {"type": "start"}} if client.version == 2 else {}
            method = "session/resume" if client.version == 2 else "session/load"
            request_id = await client.ask(method, sessionId=session_id, cwd=place.cwd, mcpServers=[], **replay)
            await quiet()
            # The history is not complete, so the answer is still to come.
            assert not client.frames

            tasks.start_soon(stream.until, nothing)
            await client.answer(request_id)
            tasks.cancel_scope.cancel()
        assert not any("update" in str(each) for each in client.frames)


@pytest.mark.parametrize("text", ["say 1 one", ""])
@pytest.mark.parametrize("dialect", ["v1", "v2"])
async def test_a_loaded_session_is_told_on_the_connection_until_it_has_a_stream(dialect: str, text: str) -> None:
    async with acp_daemon() as place, connected(place, V1) as first, streaming(place, DIALECTS[dialect]) as client:
        session_id = await first.new()
        if text:
            await first.answer(await first.prompt(session_id, text))
        await client.open("session/resume", session_id)
        named = [each for each in client.frames if each.get("params", {}).get("sessionId") == session_id]
        assert named, "something names the session before the answer"
        await first.answer(await first.prompt(session_id, "say 1 two"))
        await client.until(lambda _: "says two" in client.kinds())
        count = len(client.frames)
        async with aclosing(Stream(client, session_id)) as stream:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stream.until, answers("three"))
                await quiet()
                await client.prompt(session_id, "say 1 three", request_id="three")
            if client.version == 2:
                await stream.until(idles)
            told = [
                *client.updates(),
                *(each["params"]["update"] for each in stream.frames if "update" in str(each)),
            ]
            spoken = [each["content"]["text"] for each in told if each["sessionUpdate"] == "agent_message_chunk"]
            assert spoken == ["two", "three"]
        assert len(client.frames) in range(count, count + 4)


async def test_only_an_open_reader_counts_as_being_there() -> None:
    async with acp_daemon() as place, streaming(place) as client:
        session_id = await client.new()
        for _ in range(3):
            stream = Stream(client, session_id)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stream.until, nothing)
                await quiet()
                assert place.daemon.clients.attended(session_id)
                tasks.cancel_scope.cancel()
            await stream.aclose()
        assert not place.daemon.clients.attended(session_id)


async def test_closing_the_connection_ends_every_stream() -> None:
    async with acp_daemon() as place, streaming(place) as client:
        session_id = await client.new()
        ended: list[str] = []

        async def read() -> None:
            async for _ in client.connection.session_frames(session_id, None):
                pass
            ended.append("session")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await quiet()
            await client.connection.aclose()
        assert ended == ["session"]
        assert client.connection.sessions() == []
