"""Faults that a played agent has on purpose: what agents do wrong now and then, at a place that a seed decides.

A fault changes the list of frames before it is played, so the same seed does the same again. Each strikes in one
turn of the recording, between the prompt and its end. `split` alone is about bytes: frames arrive in odd pieces.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from random import Random
from typing import Final, NamedTuple

import anyio
from msgspec.structs import replace

from turnwire.link.stdio import StdioLink
from turnwire.recording.format import Entry
from turnwire.wire.jsonrpc import Failure, Request
from turnwire.wire.methods import SESSION_PROMPT, SESSION_UPDATE

FLOOD: Final = 2_000
"""Updates that come at once."""
KILLED: Final = -9
MOST_CUTS: Final = 3


class Fault(StrEnum):
    """What goes wrong."""

    LATE = "late"
    """An update of a turn comes after the turn's end."""
    DUP = "dup"
    """An update comes twice, and so does what ends the turn."""
    STALL = "stall"
    """The agent says no more, and lives on."""
    DIE = "die"
    """The agent is killed in the middle of a turn."""
    FLOOD = "flood"
    """One update comes two thousand times."""
    SPLIT = "split"
    """Frames are written in pieces, cut anywhere."""


class Turn(NamedTuple):
    """The places of a turn in a recording."""

    prompt: int
    end: int


def with_faults(entries: Sequence[Entry], faults: Collection[Fault], seed: int) -> list[Entry]:
    """The recording with these faults in it; those that find no place change nothing."""
    changed, random = list(entries), Random(seed)
    for fault, change in _CHANGES.items():
        turns = turns_of(changed)
        if fault in faults and turns:
            change(changed, random.choice(turns), random)
    return changed


def turns_of(entries: Sequence[Entry]) -> list[Turn]:
    """Every turn that has a prompt and an end: its answer, or where an agent says that it is idle."""
    asked = [place for place, each in enumerate(entries) if each.asks(SESSION_PROMPT)]
    ends = [(place, end_of(entries, place)) for place in asked]
    return [Turn(place, end) for place, end in ends if end is not None]


def end_of(entries: Sequence[Entry], prompt: int) -> int | None:
    """Where the turn of the prompt at this place ends; none if it does not."""
    asked = entries[prompt].message
    assert isinstance(asked, Request), "a prompt is a request"
    places = range(prompt, len(entries))
    return next((at for at in places if _ends(entries[at], entries[prompt], asked)), None)


def answer_to(entries: Sequence[Entry], place: int) -> Entry | None:
    """The agent's answer to the request at this place; none if it never came."""
    asked = entries[place].message
    assert isinstance(asked, Request), "only requests have answers"
    return next((each for each in entries[place:] if each.answers(asked)), None)


def _ends(entry: Entry, prompt: Entry, asked: Request) -> bool:
    if entry.side == "client":
        return False
    if entry.update:
        is_same = entry.payload.get("sessionId") == prompt.payload.get("sessionId")
        return is_same and entry.update.get("state") == "idle"
    # An agent of v2 answers that it has the prompt; then the turn begins.
    return entry.answers(asked) and (isinstance(entry.message, Failure) or "messageId" not in entry.payload)


def _updates(entries: Sequence[Entry], turn: Turn) -> list[int]:
    """Updates in a turn that neither begin nor end anything."""
    places = range(turn.prompt + 1, turn.end)
    return [at for at in places if entries[at].method == SESSION_UPDATE and "state" not in entries[at].update]


def _late(entries: list[Entry], turn: Turn, random: Random) -> None:
    if found := _updates(entries, turn):
        entries.insert(turn.end, entries.pop(random.choice(found)))


def _dup(entries: list[Entry], turn: Turn, random: Random) -> None:
    entries.insert(turn.end, entries[turn.end])
    if found := _updates(entries, turn):
        at = random.choice(found)
        entries.insert(at, entries[at])


def _flood(entries: list[Entry], turn: Turn, random: Random) -> None:
    if found := _updates(entries, turn):
        at = random.choice(found)
        entries[at:at] = [entries[at]] * FLOOD


def _stall(entries: list[Entry], turn: Turn, random: Random) -> None:
    # A frame of the client that no frame fits: it is waited for, for ever.
    at = random.randint(turn.prompt + 1, turn.end)
    entries.insert(at, replace(entries[at], side="client", line=b"", exit=None))


def _die(entries: list[Entry], turn: Turn, random: Random) -> None:
    at = random.randint(turn.prompt + 1, turn.end)
    entries.insert(at, replace(entries[at], side="agent", line=b"", exit=KILLED))


_CHANGES: Final[Mapping[Fault, Callable[[list[Entry], Turn, Random], None]]] = {
    Fault.LATE: _late,
    Fault.DUP: _dup,
    Fault.FLOOD: _flood,
    Fault.STALL: _stall,
    Fault.DIE: _die,
}
"""In this order: what ends everything comes last."""


class SplitLink:
    """A link whose frames leave in pieces, each in a write of its own."""

    def __init__(self, link: StdioLink, descriptor: int, seed: int) -> None:
        self._link = link
        self._descriptor = descriptor
        """Where the link writes to, too."""
        self._random = Random(seed)
        self._lock = anyio.Lock()

    async def receive(self) -> list[bytes]:
        return await self._link.receive()

    async def send(self, frame: bytes) -> None:
        """Send one frame, in two to four pieces."""
        line = frame + b"\n"
        cuts = sorted(self._random.randint(1, len(line)) for _ in range(self._random.randint(1, MOST_CUTS)))
        async with self._lock:
            for start, end in zip([0, *cuts], [*cuts, len(line)], strict=True):
                await self._write(line[start:end])

    async def _write(self, piece: bytes) -> None:
        while piece:
            await anyio.wait_writable(self._descriptor)
            piece = piece[os.write(self._descriptor, piece) :]

    def send_nowait(self, frame: bytes) -> None:
        self._link.send_nowait(frame)

    async def aclose(self) -> None:
        await self._link.aclose()
