"""A peer: everything in the order of arrival, each answer to its caller, breaches counted and never fatal."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import anyio
import anyio.lowlevel
import pytest
from msgspec import Raw

from turnwire.errors import LimitExceeded, LinkBroken, LocalProtocolError
from turnwire.hosting.memory import memory_pair
from turnwire.hosting.peer import AT_ONCE, AT_ONCE_BYTES, KEPT_BREACHES, KEPT_BYTES, Peer
from turnwire.limits import KiB
from turnwire.wire.jsonrpc import Failure, Notification, Request, Result, decode, raw
from turnwire.wire.peek import Pieces, UpdateParams
from turnwire_testing.faults import Duplicate, FaultyLink
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

EMPTY = raw({})


class Desk:
    """A peer under test, the other end of its link, and the received frames in order."""

    def __init__(self, max_frames: int = 1024) -> None:
        ours, self.other = memory_pair(max_frames)
        self.ours = ours
        self.heard: list[str] = []
        self.bursts = 0
        self.peer = Peer(ours, self._incoming, self._settled)

    def _incoming(self, frame: Request | Notification) -> None:
        self.heard.append(frame.method)

    async def _settled(self) -> None:
        self.bursts += 1

    def answer(self, frame: Result | Failure | None) -> None:
        self.heard.append("gone" if frame is None else f"answer {frame.id}")

    async def sends(self, *lines: bytes) -> None:
        """The other side sends, and the peer has read it all."""
        for line in lines:
            self.other.send_nowait(line)
        with anyio.fail_after(WAIT_S):
            await quiet()

    async def sent(self) -> list[Request | Notification | Result | Failure]:
        """Return the peer's sent frames."""
        with anyio.fail_after(WAIT_S):
            frames = [decode(line) for line in await self.other.receive()]
        return [frame for frame in frames if isinstance(frame, Request | Notification | Result | Failure)]


@pytest.fixture
async def desk() -> AsyncGenerator[Desk]:
    made = Desk()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.peer.run)
        yield made
        tasks.cancel_scope.cancel()


def note(method: str) -> bytes:
    return b'{"jsonrpc":"2.0","method":"%b"}' % method.encode()


def result(request_id: object) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":{}}' % bytes(raw(request_id))


async def test_answers_take_their_place_among_the_other_frames(desk: Desk) -> None:
    first, second = (desk.peer.ask("m", EMPTY, desk.answer) for _ in range(2))
    await desk.sends(note("a"), result(second), note("b"), note("c"), result(first), note("d"))
    assert desk.heard == ["a", f"answer {second}", "b", "c", f"answer {first}", "d"]
    assert desk.bursts == 1, "the reader waits for room once per burst"


async def test_what_is_sent_keeps_its_order(desk: Desk) -> None:
    desk.peer.ask("one", EMPTY, desk.answer)
    desk.peer.notify("two", EMPTY)
    desk.peer.ask("three", raw({"x": 1}), desk.answer)
    sent = await desk.sent()
    assert [frame.method for frame in sent if isinstance(frame, Request | Notification)] == ["one", "two", "three"]
    assert isinstance(sent[0], Request)
    assert isinstance(sent[2], Request)
    assert sent[0].id != sent[2].id


async def test_an_answer_in_another_type_or_a_second_one_reaches_nobody(desk: Desk) -> None:
    request_id = desk.peer.ask("m", EMPTY, desk.answer)
    await desk.sends(result(str(request_id)), result(request_id), result(request_id), result(77))
    assert desk.heard == [f"answer {request_id}"]
    assert desk.peer.breaches == {"answers_nothing": 3}


async def test_a_call_gives_the_answer_and_an_error_is_an_answer(desk: Desk) -> None:
    got: list[Result | Failure] = []

    async def call() -> None:
        got.append(await desk.peer.call("m", EMPTY))

    with anyio.fail_after(WAIT_S):
        for line in (
            b'{"jsonrpc":"2.0","id":1,"result":[1]}',
            b'{"jsonrpc":"2.0","id":2,"error":{"code":-1,"message":"no"}}',
        ):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
                await desk.sent()
                desk.other.send_nowait(line)
    assert isinstance(got[0], Result)
    assert got[0].result == Raw(b"[1]")
    assert isinstance(got[1], Failure)
    assert got[1].error.code == -1


async def test_a_cancelled_call_leaves_the_peer_usable(desk: Desk) -> None:
    with anyio.move_on_after(0.01):
        await desk.peer.call("slow", EMPTY)
    request_id = desk.peer.ask("next", EMPTY, desk.answer)
    await desk.sends(result(1), result(request_id))
    assert desk.heard == [f"answer {request_id}"]
    assert not desk.peer.breaches, "the late answer to a cancelled call is no breach"


async def test_when_the_other_side_goes_every_open_request_hears_so_after_what_had_arrived() -> None:
    desk = Desk()
    desk.peer.ask("a", EMPTY, desk.answer)
    desk.peer.ask("b", EMPTY, desk.answer)
    desk.other.send_nowait(note("last words"))
    desk.other.send_nowait(result(2))
    await desk.other.aclose()
    with anyio.fail_after(WAIT_S):
        await desk.peer.run()
    assert desk.heard == ["last words", "answer 2", "gone"]
    with pytest.raises(LinkBroken):
        desk.peer.ask("c", EMPTY, desk.answer)


async def test_a_call_fails_when_the_other_side_goes(desk: Desk) -> None:
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:

            async def call() -> None:
                with pytest.raises(LinkBroken):
                    await desk.peer.call("m", EMPTY)

            tasks.start_soon(call)
            await desk.sent()
            await desk.other.aclose()


async def test_a_call_fails_with_what_the_link_knows_of_its_end(desk: Desk) -> None:
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:

            async def call() -> None:
                with pytest.raises(LinkBroken, match="the peer closed its end"):
                    await desk.peer.call("m", EMPTY)

            tasks.start_soon(call)
            await desk.sent()
            await desk.other.aclose()


async def test_an_answer_that_is_malformed_is_not_the_fault_of_who_asked(desk: Desk) -> None:
    got: list[Result | Failure | None] = []
    request_id = desk.peer.ask("m", EMPTY, got.append)
    await desk.sends(b'{"jsonrpc":"2.0","id":%d,"error":"failed badly"}' % int(request_id))
    [failure] = got
    assert isinstance(failure, Failure)
    assert (failure.error.code, failure.error.message) == (-32603, "the agent's answer was malformed")
    assert desk.peer.breaches == {"bad_error": 1}


async def test_a_request_that_is_malformed_is_the_fault_of_who_asks(desk: Desk) -> None:
    await desk.sends(b'{"jsonrpc":"2.0","id":4,"method":7}')
    [refused] = await desk.sent()
    assert isinstance(refused, Failure)
    assert (refused.id, refused.error.code) == (4, -32600)


async def test_a_request_is_answered_once_with_its_own_id(desk: Desk) -> None:
    await desk.sends(b'{"jsonrpc":"2.0","id":1,"method":"x"}', b'{"jsonrpc":"2.0","id":"1","method":"y"}')
    assert desk.heard == ["x", "y"]
    desk.peer.answer("1", raw("text"))
    assert desk.peer.has_asked(1)
    assert not desk.peer.has_asked("1")
    desk.peer.refuse(1)
    sent = await desk.sent()
    assert sent[0] == Result("1", raw("text"))
    assert isinstance(sent[1], Failure)
    assert (sent[1].id, sent[1].error.code) == (1, -32601)
    with pytest.raises(LocalProtocolError):
        desk.peer.answer(1, EMPTY)
    with pytest.raises(LocalProtocolError):
        desk.peer.refuse(1)


async def test_a_request_with_an_id_that_is_open_is_a_breach(desk: Desk) -> None:
    await desk.sends(b'{"jsonrpc":"2.0","id":1,"method":"x"}', b'{"jsonrpc":"2.0","id":1,"method":"y"}')
    assert desk.heard == ["x"]
    assert desk.peer.breaches == {"id_in_use": 1}


async def test_what_is_no_frame_is_counted_and_the_next_frame_is_read(desk: Desk) -> None:
    await desk.sends(b"no json", b"[]", b"[1]", b'{"jsonrpc":"2.0"}', b"\xff", b"x" * 1000, note("still here"))
    assert desk.heard == ["still here"]
    assert sum(desk.peer.breaches.values()) == 6
    assert desk.peer.breaches["batch"] == 1
    assert len(desk.peer.last_breaches[-1].head) == KEPT_BYTES


async def test_breaches_are_kept_up_to_a_bound(desk: Desk) -> None:
    await desk.sends(*(b"garbage %d" % number for number in range(500)))
    assert sum(desk.peer.breaches.values()) == 500
    assert len(desk.peer.last_breaches) == KEPT_BREACHES
    assert desk.peer.last_breaches[-1].head == b"garbage 499"


async def test_a_peer_that_does_not_read_refuses_the_request_and_forgets_it() -> None:
    desk = Desk(max_frames=2)
    desk.peer.notify("a", EMPTY)
    desk.peer.notify("b", EMPTY)
    with pytest.raises(LimitExceeded):
        desk.peer.ask("c", EMPTY, desk.answer)
    await desk.other.aclose()
    with anyio.fail_after(WAIT_S):
        await desk.peer.run()
    assert desk.heard == [], "a request that was not sent has no answer to miss"


async def test_a_frame_that_comes_twice_answers_once() -> None:
    ours, other = memory_pair()
    heard: list[str] = []

    async def settled() -> None:
        """Nothing holds this reader back."""

    peer = Peer(FaultyLink(ours, [Duplicate(at=1)]), lambda frame: heard.append(frame.method), settled)
    peer.ask("m", EMPTY, lambda frame: heard.append("answer"))
    other.send_nowait(result(1))
    await other.aclose()
    with anyio.fail_after(WAIT_S):
        await peer.run()
    assert heard == ["answer"]
    assert peer.breaches == {"answers_nothing": 1}


async def test_the_reader_is_held_back_until_there_is_room() -> None:
    ours, other = memory_pair()
    heard, room = list[str](), anyio.Event()
    peer = Peer(ours, lambda frame: heard.append(frame.method), room.wait)
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(peer.run)
            other.send_nowait(note("a"))
            await quiet()
            other.send_nowait(note("b"))
            await quiet()
            assert heard == ["a"]
            room.set()
            await quiet()
            assert heard == ["a", "b"]
            tasks.cancel_scope.cancel()


# -- bursts --------------------------------------------------------------------------------------------------


def piece(text: str) -> bytes:
    update = b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"%b"}}' % text.encode()
    return b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":%b}}' % update


class Listening:
    """A peer whose listener is full at first."""

    def __init__(self, *lines: bytes) -> None:
        ours, other = memory_pair(len(lines))
        for line in lines:
            other.send_nowait(line)
        self.heard: list[bytes] = []
        self.others: list[str] = []
        self.freed = anyio.Event()
        self.peer = Peer(ours, self._incoming, self._settled, self._updated)

    def _incoming(self, frame: Request | Notification) -> None:
        self.others.append(f"{frame.method} behind {len(self.heard)}")

    def _updated(self, said: UpdateParams | Pieces) -> None:
        self.heard += map(bytes, said.updates if isinstance(said, Pieces) else [said.update])

    async def _settled(self) -> None:
        await self.freed.wait()


@pytest.mark.guarantee("G8")
@pytest.mark.parametrize(("size", "most"), [(1, AT_ONCE), (64 * KiB, AT_ONCE_BYTES // (64 * KiB))])
async def test_a_long_burst_is_taken_in_parts_and_a_full_inbox_holds_it_back_between_them(
    size: int, most: int
) -> None:
    lines = [piece(f"{number:0{size}}") for number in range(2 * most + 7)]
    lines.insert(most // 2, note("one"))
    desk = Listening(*lines)
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(desk.peer.run)
            await quiet()
            assert most // 2 < len(desk.heard) < most, "a part, and not the burst"
            desk.freed.set()
            await quiet()
            tasks.cancel_scope.cancel()
    updates = [line.partition(b'"update":')[2][:-2] for line in lines]
    assert desk.heard == [each for each in updates if each]
    assert desk.others == [f"one behind {most // 2}"]


async def test_others_get_a_turn_between_the_parts_of_a_burst() -> None:
    desk, seen = Listening(*[piece("x")] * 4 * AT_ONCE), list[int]()
    desk.freed.set()

    async def look() -> None:
        while len(desk.heard) < 4 * AT_ONCE:
            await anyio.lowlevel.checkpoint()
            seen.append(len(desk.heard))

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(desk.peer.run)
            await look()
            tasks.cancel_scope.cancel()
    assert {AT_ONCE, 2 * AT_ONCE, 3 * AT_ONCE} <= set(seen)
