"""The pipe link's additions to the contract of every link: batches, bounds in bytes, breaches, files."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import anyio
import pytest
from anyio import fail_after
from tests.patience import SOON_S

from turnwire.errors import LimitExceeded, LinkBroken, LinkClosed
from turnwire.hosting.stdio import READ_BYTES, StdioLink
from turnwire.limits import KiB, Limits
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

SMALL = Limits(frame_bytes=64 * KiB, link_buffer_bytes=64 * KiB, stop_eof_s=0.05)


class Wires:
    """The raw ends of a link's two pipes, as its peer holds them."""

    def __init__(self) -> None:
        self.link_reads, self.peer_writes = os.pipe()
        self.peer_reads, self.link_writes = os.pipe()
        self._open = {self.peer_writes, self.peer_reads}
        os.set_blocking(self.peer_reads, False)
        os.set_blocking(self.peer_writes, False)

    def link(self, limits: Limits = SMALL) -> StdioLink:
        return StdioLink(self.link_reads, self.link_writes, limits)

    def close(self, *fds: int) -> None:
        for fd in self._open & set(fds or self._open):
            self._open.remove(fd)
            os.close(fd)


@pytest.fixture
def wires() -> Iterator[Wires]:
    wires = Wires()
    yield wires
    wires.close()


async def read_all(fd: int) -> bytes:
    found = bytearray()
    with fail_after(WAIT_S):
        while True:
            await anyio.wait_readable(fd)
            chunk = os.read(fd, READ_BYTES)
            if not chunk:
                return bytes(found)
            found += chunk


async def test_a_burst_is_taken_as_one_list_whatever_its_line_ends(wires: Wires) -> None:
    link = wires.link()
    os.write(wires.peer_writes, b"1\r\n\n  \n2\n3\nhalf")
    assert await link.receive() == [b"1", b"2", b"3"]
    wires.close(wires.peer_writes)
    assert await link.receive() == [b"half"]
    with pytest.raises(LinkBroken):
        await link.receive()
    await link.aclose()


async def test_what_is_sent_in_one_turn_of_the_loop_is_written_at_once(wires: Wires) -> None:
    link = wires.link()
    for number in range(100):
        link.send_nowait(b"%d" % number)
    with pytest.raises(BlockingIOError):
        os.read(wires.peer_reads, 1)
    await anyio.wait_readable(wires.peer_reads)
    assert os.read(wires.peer_reads, READ_BYTES) == b"".join(b"%d\n" % number for number in range(100))
    await link.aclose()


async def test_lines_beyond_the_limit_are_counted_and_the_next_line_is_unharmed(wires: Wires) -> None:
    link = wires.link()
    os.write(wires.peer_writes, b"a" * 30 * KiB)
    await quiet()
    for part in (b"a" * 40 * KiB, b"\nnext\n"):
        await anyio.wait_writable(wires.peer_writes)
        os.write(wires.peer_writes, part)
        await quiet()
    assert await link.receive() == [b"next"]
    assert link.breaches == {"oversized": 1}
    assert [(each.reason, each.head) for each in link.last_breaches] == [("oversized", b"a" * 256)]
    await link.aclose()


async def test_reading_pauses_while_enough_waits_to_be_received(wires: Wires) -> None:
    link = wires.link()
    line = b"x" * 99 + b"\n"
    written = 0
    while written < 10_000_000:
        try:
            written += os.write(wires.peer_writes, line * 100)
        except BlockingIOError:
            await anyio.lowlevel.checkpoint()
            await quiet()
            try:
                written += os.write(wires.peer_writes, line)
            except BlockingIOError:
                break
    assert written < 1_000_000
    wires.close(wires.peer_writes)
    received = 0
    with fail_after(WAIT_S):
        while received < written:
            received += sum(len(frame) + 1 for frame in await link.receive())
    await link.aclose()


async def test_a_line_longer_than_the_buffer_is_read_to_its_end(wires: Wires) -> None:
    link = wires.link(Limits(link_buffer_bytes=64 * KiB))
    line = b"y" * 1_000_000

    async def write() -> None:
        rest = memoryview(line + b"\n")
        while rest:
            await anyio.wait_writable(wires.peer_writes)
            rest = rest[os.write(wires.peer_writes, rest) :]

    with fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            assert await link.receive() == [line]
    await link.aclose()


async def test_the_bound_of_what_waits_for_the_peer_is_in_bytes(wires: Wires) -> None:
    link = wires.link()
    link.send_nowait(b"x" * 200 * KiB)
    with pytest.raises(LimitExceeded) as refusal:
        link.send_nowait(b"y")
    assert refusal.value.context == {"limit": "link_buffer_bytes", "value": 64 * KiB}
    await link.aclose()


async def test_senders_that_wait_keep_their_order_and_nobody_overtakes_them(wires: Wires) -> None:
    link = wires.link()
    link.send_nowait(b"x" * 200 * KiB)
    found = bytearray()
    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(link.send, b"%d" % number)
        await quiet()
        with pytest.raises(LimitExceeded):
            link.send_nowait(b"overtakes")
        tasks.start_soon(link.send, b"last")
        await quiet()
        with fail_after(WAIT_S):
            while not found.endswith(b"last\n"):
                await anyio.wait_readable(wires.peer_reads)
                found += os.read(wires.peer_reads, READ_BYTES)
    assert found.split()[1:] == [b"0", b"1", b"2", b"3", b"4", b"last"]
    await link.aclose()


async def test_ending_the_output_delivers_what_was_sent_and_receiving_goes_on(wires: Wires) -> None:
    link = wires.link()
    link.send_nowait(b"x" * 200 * KiB)
    link.end_output()
    link.end_output()
    with pytest.raises(LinkClosed):
        await link.send(b"late")
    assert await read_all(wires.peer_reads) == b"x" * 200 * KiB + b"\n"
    os.write(wires.peer_writes, b"answer\n")
    assert await link.receive() == [b"answer"]
    await link.aclose()


async def test_ending_the_output_turns_a_sender_away_that_waits(wires: Wires) -> None:
    link = wires.link()
    link.send_nowait(b"x" * 200 * KiB)

    async def expect_closed() -> None:
        with pytest.raises(LinkClosed):
            await link.send(b"late")

    with fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(expect_closed)
            await quiet()
            link.end_output()
    await link.aclose()


async def test_a_peer_that_no_longer_reads_is_still_heard(wires: Wires) -> None:
    link = wires.link()
    os.write(wires.peer_writes, b"before\n")
    wires.close(wires.peer_reads)
    link.send_nowait(b"x")
    await quiet()
    with pytest.raises(LinkBroken):
        link.send_nowait(b"y")
    os.write(wires.peer_writes, b"after\n")
    received: list[bytes] = []
    with fail_after(WAIT_S):
        while len(received) < 2:
            received += await link.receive()
    assert received == [b"before", b"after"]
    await link.aclose()


async def test_an_input_that_is_ended_gives_what_has_arrived_and_no_half_line(wires: Wires) -> None:
    link = wires.link()
    os.write(wires.peer_writes, b"1\n2\nhalf")
    link.end_input()
    link.end_input()
    assert await link.receive() == [b"1", b"2"]
    with pytest.raises(LinkBroken):
        await link.receive()
    await link.aclose()


async def test_closing_does_not_wait_for_ever_for_a_peer_that_never_reads(wires: Wires) -> None:
    link = wires.link()
    link.send_nowait(b"x" * 200 * KiB)
    with fail_after(SOON_S):
        await link.aclose()
    assert set(await read_all(wires.peer_reads)) == set(b"x")


async def test_closing_lets_go_of_both_descriptors_and_leaves_them_as_they_were(wires: Wires) -> None:
    mine = os.dup(wires.link_writes)
    link = wires.link()
    assert not os.get_blocking(mine)
    await link.aclose()
    assert os.get_blocking(mine)
    os.close(mine)
    for fd in (wires.link_reads, wires.link_writes):
        with pytest.raises(OSError, match="descriptor"):
            os.fstat(fd)


async def test_a_file_is_read_and_another_is_written_as_the_streams_of_a_program_may_be(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"x" * 300_000 + b"\none\ntwo")
    source = os.open(tmp_path / "in", os.O_RDONLY)
    target = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    link = StdioLink(source, target, SMALL)
    await link.send(b"answer")
    received: list[bytes] = []
    with fail_after(WAIT_S), pytest.raises(LinkBroken):
        await collect(link, received)
    await link.aclose()
    assert received == [b"one", b"two"]
    assert link.breaches == {"oversized": 1}
    assert (tmp_path / "out").read_bytes() == b"answer\n"


async def collect(link: StdioLink, received: list[bytes]) -> None:
    while True:
        received += await link.receive()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has pipes of more than one size")
async def test_a_pipe_holds_what_one_read_takes_unless_that_is_refused(
    wires: Wires, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aclosing(wires.link()):
        assert fcntl.fcntl(wires.peer_writes, fcntl.F_GETPIPE_SZ) >= READ_BYTES

    def refused(fd: int, command: int, size: int = 0) -> int:
        raise PermissionError("there are too many pipes of this size")

    monkeypatch.setattr(fcntl, "fcntl", refused)
    others = Wires()
    async with aclosing(others.link()) as link:
        os.write(others.peer_writes, b"a\n")
        with fail_after(WAIT_S):
            assert await link.receive() == [b"a"]
    others.close()
