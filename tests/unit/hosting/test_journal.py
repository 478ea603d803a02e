"""A peer whose link has a journal: what one process leaves, the next one continues (J1 to J3)."""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import pytest
from msgspec import Raw

from turnwire.hosting.hosted_session import FramesNote
from turnwire.hosting.memory import memory_pair
from turnwire.hosting.peer import IDS, Peer
from turnwire.ids import Epoch
from turnwire.wire.jsonrpc import Notification, Request, Result
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

ASK = b'{"jsonrpc":"2.0","id":"q1","method":"fs/read_text_file","params":{}}'
ANSWER = Raw(b"{}")


class Notes:
    """A journal in memory."""

    def __init__(self, notes: Mapping[str, bytes] | None = None, acknowledged: int = 0) -> None:
        self.notes: dict[str, bytes] = dict(notes or {})
        self.acknowledged = acknowledged

    def note(self, name: str, value: bytes | None) -> None:
        if value is None:
            self.notes.pop(name, None)
        else:
            self.notes[name] = value

    async def stored(self) -> None:
        """Do nothing: memory is at once."""

    def acknowledge(self, frame: int) -> None:
        self.acknowledged = frame

    def leave(self) -> None:
        """Do nothing: there is no connection."""


class Side:
    """A peer and what it delivered."""

    def __init__(self, journal: Notes) -> None:
        self.near, self.far = memory_pair()
        self.requests: list[Request] = []
        self.frames: list[int | None] = []
        self.answered: str | None = None
        """The request that is answered at once."""
        self._read = anyio.Event()
        self.peer = Peer(self.near, self._incoming, self._settled, lambda _: None, journal)

    def _incoming(self, frame: Request | Notification) -> None:
        self.frames.append(self.peer.frame)
        if isinstance(frame, Request):
            self.requests.append(frame)
            if frame.id == self.answered:
                self.peer.answer(frame.id, ANSWER)

    async def _settled(self) -> None:
        """Everything that was sent together has been delivered."""
        self._read.set()

    async def read(self, *lines: bytes) -> None:
        """Deliver these lines."""
        for each in lines:
            self.far.send_nowait(each)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.peer.run)
            with anyio.fail_after(WAIT_S):
                await self._read.wait()
            tasks.cancel_scope.cancel()


async def test_an_open_request_is_delivered_again_and_an_answered_one_is_not() -> None:
    first = Notes()
    side = Side(first)
    side.answered = "q1"
    await side.read(ASK, ASK.replace(b"q1", b"q2"))
    assert side.frames == [1, 2]
    again = Side(Notes(first.notes))
    await again.read(ASK, ASK.replace(b"q1", b"q2"))
    assert [each.id for each in again.requests] == ["q2"]
    acknowledged = Notes(first.notes, acknowledged=2)
    later = Side(acknowledged)
    later.peer.deliver_noted()
    assert ([each.id for each in later.requests], later.frames) == (["q2"], [2])
    later.peer.acknowledge(2)
    assert [name for name in acknowledged.notes if name.startswith("asked:")] == ["asked:2"]


async def test_ids_of_requests_are_never_used_again() -> None:
    first = Notes()
    assert Side(first).peer.ask("session/prompt", ANSWER, lambda _: None) == 1
    assert Side(Notes(first.notes)).peer.ask("session/prompt", ANSWER, lambda _: None) == IDS + 1


async def test_an_answer_to_a_request_of_the_earlier_process_arrives() -> None:
    side = Side(Notes())
    heard: list[object] = []
    side.peer.reopen(7, heard.append)
    await side.read(b'{"jsonrpc":"2.0","id":7,"result":{}}')
    assert [type(each) for each in heard] == [Result]


@pytest.mark.parametrize(("epoch", "head", "frame"), [("a", 9, 3), ("a", 10, 5), ("a", 12, 5), ("b", 12, 0)])
def test_the_head_of_the_log_says_which_frames_it_has(epoch: str, head: int, frame: int) -> None:
    note = FramesNote(epoch=Epoch("a"), head=10, frame=5, before=3)
    assert note.recorded(Epoch(epoch), head) == frame
