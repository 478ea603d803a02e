"""Fuzzing without a fuzzer: inputs made from seeds by blind changes, the same ones for the same number.

Takes a target and how long; gives how many inputs held. atheris, which sees what its inputs reach, finds more; this
needs nothing, and stops at what breaks a rule with the input in hand.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

LONGEST = 2048
CHANGES = 6
PIECES = (
    *(b"{", b"}", b"[", b"]", b'"', b":", b",", b"null", b"true", b"-1", b"1e999", b"\\ud800", b"\\u0000", b"\x00"),
    *(b"\xff", b"\n", b"\r\n", b" ", b"\t", b"9223372036854775808", b"[[[[[[[[", b'{"a":{"a":', b"\xe2\x80\xae"),
    *(
        b"%00",
        b"../",
        b"$ref",
        b'"id":',
        b'"method":',
        b'"params":',
        b'"sessionId":"s1"',
        b'"_meta":{}',
        b"session/",
    ),
    *(b"; rm x", b"$(x)", b"'", b"`"),
)
"""What breaks readers, more often than single bytes do."""


def mutated(seeds: Sequence[bytes], chance: random.Random) -> bytes:
    """A seed with some changes: bytes, pieces, repetitions, cuts, or a part of another seed."""
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.randint(0, CHANGES)):
        at = chance.randint(0, len(data))
        end = min(len(data), at + chance.choice((0, 0, 1, 2, 8, 64)))
        kind = chance.randrange(6)
        if kind == 0:
            data[at:end] = bytes([chance.randrange(256)])
        elif kind == 1:
            data[at:end] = chance.choice(PIECES)
        elif kind == 2:
            data[at:at] = data[at:end] * chance.randint(1, 8)
        elif kind == 3:
            del data[at:end]
        else:
            other = chance.choice(seeds)
            start = chance.randint(0, len(other))
            data[at:end] = other[start : start + chance.randint(0, 64)]
    return bytes(data[:LONGEST])


def run(target: Callable[[bytes], None], seeds: Sequence[bytes], seconds: float, number: int = 0) -> int:
    """Feed the target until the time is over. Raises what it raises, with the input as a note."""
    chance = random.Random(number)
    until, count = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        for _ in range(100):
            data = mutated(seeds, chance)
            try:
                target(data)
            except BaseException as error:
                error.add_note(f"the input: {data!r}")
                raise
            count += 1
    return count
