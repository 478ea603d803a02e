"""Commands with which the agent misbehaves: bytes that are no frames, floods, exits, grandchildren.

Each function does one command in the `Work` it is given. Nothing here is kept in the session's history.
"""

from __future__ import annotations

from itertools import cycle, islice

import msgspec
from anyio.lowlevel import checkpoint

from turnwire.errors import LimitExceeded
from turnwire.testing.scripted import commands as c
from turnwire.testing.scripted.work import Work, performs

GARBAGE = (
    b"this is not JSON",
    b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":',
    b'"only a string"',
    b"42",
    b"null",
    b"[]",
    b"\xff\xfe\xfd not UTF-8",
    b'{"jsonrpc":"2.0"}',
    b'{"jsonrpc":"1.0","id":0,"result":{}}',
    b'{"jsonrpc":"2.0","id":true,"result":{}}',
    b'{"jsonrpc":"2.0","id":1.5,"result":{}}',
    b'{"jsonrpc":"2.0","id":{"a":1},"result":{}}',
    b'{"jsonrpc":"2.0","id":"nobody asked","result":{},"error":{"code":1,"message":"both"}}',
)
"""One line of each kind that is no frame."""

UNKNOWN_ID = "nobody-asked-this"

BREATH = 256
"""After so many chunks of a flood the agent looks up, so that it hears a cancel whatever the link takes."""


@performs(c.Raw)
async def raw(work: Work, command: c.Raw) -> None:
    await work.peer.send_line(command.line.encode())


@performs(c.Garbage)
async def garbage(work: Work, command: c.Garbage) -> None:
    for line in islice(cycle(GARBAGE), command.n or len(GARBAGE)):
        await work.peer.send_line(line)


@performs(c.AnswerUnknownId)
async def answer_unknown_id(work: Work, command: c.AnswerUnknownId) -> None:
    await work.peer.respond(UNKNOWN_ID, {"stopReason": "end_turn"})


@performs(c.Bigline)
async def bigline(work: Work, command: c.Bigline) -> None:
    head, tail = _around_text(work)
    padding = max(0, command.size - len(head) - len(tail))
    await work.peer.send_line(b"%b%b%b" % (head, b"x" * padding, tail))


@performs(c.Flood)
async def flood(work: Work, command: c.Flood) -> None:
    head, tail = _around_text(work)
    tail = b" " + b"x" * command.size + tail if command.size else tail
    link = work.peer.link
    for number in range(command.n):
        line = b"%b%d%b" % (head, number, tail)
        # A wait costs several times a write, so it is taken only where there is no room.
        try:
            link.send_nowait(line)
        except LimitExceeded:
            await link.send(line)
        if number % BREATH == 0:
            await checkpoint()


@performs(c.Exit)
async def exit_(work: Work, command: c.Exit) -> None:
    await work.host.exit(command.code)


@performs(c.Signal)
async def signal(work: Work, command: c.Signal) -> None:
    await work.host.die_by(command.name)


@performs(c.IgnoreSignal)
async def ignore_signal(work: Work, command: c.IgnoreSignal) -> None:
    work.host.ignore(command.name)


@performs(c.Stderr)
async def stderr(work: Work, command: c.Stderr) -> None:
    work.host.complain(command.text)


@performs(c.Fork)
async def fork(work: Work, command: c.Fork) -> None:
    await work.say(str(work.host.fork(hold_pipes=command.pipes == "held")))


def _around_text(work: Work) -> tuple[bytes, bytes]:
    """A message chunk's frame, cut where its text goes."""
    mark = "\x1f"
    chunk = work.shapes.chunk("agent_message", mark, work.message_id("agent_message"))
    head, _, tail = work.session.line(msgspec.json.encode(chunk)).partition(msgspec.json.encode(mark)[1:-1])
    return head, tail
