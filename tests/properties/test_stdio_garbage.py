"""Whatever an agent writes, nothing is raised and everything is counted: as a frame or as a breach."""

from __future__ import annotations

import os

import anyio
from hypothesis import example, given, settings
from hypothesis import strategies as st

from turnwire.hosting.peer import Peer
from turnwire.hosting.stdio import StdioLink
from turnwire.limits import KiB, Limits
from turnwire.wire.jsonrpc import Notification, Request
from turnwire_testing.patience import WAIT_S

LIMITS = Limits(frame_bytes=64 * KiB, link_buffer_bytes=64 * KiB, stop_eof_s=0.0)

lines = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [
            *(b"", b" ", b"\r", b"{}", b"[]", b"null", b"\xff\xfe", b'{"jsonrpc":"2.0"', b"\x00" * 9, b"[" * 5000),
            *(b'{"jsonrpc":"2.0","method":"m"}', b'{"jsonrpc":"2.0","id":1,"method":"m","params":{}}'),
            *(b'{"jsonrpc":"2.0","id":1,"result":null}', b'{"jsonrpc":"2.0","id":true,"method":"m"}'),
            *(
                b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"x"}}',
                b"Starting server...",
                b"x" * 70_000,
            ),
        ]
    ),
)
streams = st.lists(lines, max_size=20).map(b"\n".join)


class Heard:
    """Output of a peer at the other end of a stream."""

    def __init__(self) -> None:
        self.frames = 0
        self.breaches = 0

    def incoming(self, _: Request | Notification) -> None:
        self.frames += 1

    async def settled(self) -> None:
        return

    async def listen(self, stream: bytes, step: int) -> None:
        (read, write), (sink, out) = os.pipe(), os.pipe()
        os.set_blocking(write, False)
        link = StdioLink(read, out, LIMITS)
        peer = Peer(link, self.incoming, self.settled)
        with anyio.fail_after(WAIT_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(peer.run)
                rest = memoryview(stream)
                while rest:
                    await anyio.wait_writable(write)
                    rest = rest[os.write(write, rest[:step]) :]
                os.close(write)
        await link.aclose()
        os.close(sink)
        self.breaches = link.breaches.total() + peer.breaches.total()


@settings(deadline=None, max_examples=60)
@given(streams, st.sampled_from([7, 1000, 65536]))
@example(b"\n".join([b"x" * 70_000, b'{"jsonrpc":"2.0","method":"m"}', b"\xff"]), 65536)
def test_every_line_is_a_frame_or_a_breach(stream: bytes, step: int) -> None:
    heard = Heard()
    anyio.run(heard.listen, stream, max(step, len(stream) // 200))
    assert heard.frames + heard.breaches == len([line for line in stream.split(b"\n") if line.strip()])
