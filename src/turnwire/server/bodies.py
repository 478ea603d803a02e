"""The bodies of requests: how large one may be, how long it may take, and what all of them may hold together.

A body is held in memory until it is whole, so whoever sends one slowly holds memory of ours. Each kind of body has
a size and a time. What one credential holds is bounded, and a further body of it is refused. What strangers hold is
bounded all together (`HeldBytes`), and there it is the oldest that is dropped: an honest request comes in one go,
so nobody is kept out by those who hold theirs back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from enum import Enum, auto
from typing import NamedTuple

import anyio

from turnwire.errors import BodyTooSlow, LimitExceeded, TooManyRequests
from turnwire.limits import Limits
from turnwire.server.access.identity import Identity


class BodyKind(Enum):
    """What a route expects in a body."""

    STRANGERS = auto()
    """Of somebody without a credential."""
    FIELDS = auto()
    """Some names and numbers."""
    CONTENT = auto()
    """Prompts, files, messages."""


class BodyBound(NamedTuple):
    """What a body may be."""

    limit: str
    """The name of its size, as an error tells it."""
    most: int
    """Bytes."""
    seconds: float
    """From the head of the request to the last byte."""

    @classmethod
    def of(cls, kind: BodyKind, limits: Limits) -> BodyBound:
        match kind:
            case BodyKind.STRANGERS:
                return cls("public_body_bytes", limits.public_body_bytes, limits.short_body_s)
            case BodyKind.FIELDS:
                return cls("fields_body_bytes", limits.fields_body_bytes, limits.short_body_s)
            case BodyKind.CONTENT:
                return cls("body_bytes", limits.body_bytes, limits.body_s)

    def check(self, size: int) -> None:
        """Raises `LimitExceeded`."""
        if size > self.most:
            raise LimitExceeded(
                f"the body is larger than {self.most} bytes; send less, or start the daemon with a larger"
                f" --limit {self.limit}=BYTES",
                limit=self.limit,
                value=self.most,
            )


class Held:
    """What one of those who share `HeldBytes` holds."""

    def __init__(self, shared: HeldBytes, drop: Callable[[], None]) -> None:
        self._shared = shared
        self.drop = drop
        self.size = 0

    def add(self, size: int) -> None:
        """So much more came. The oldest of all are dropped until it fits, this one perhaps."""
        self.hold(self.size + size)

    def hold(self, size: int) -> None:
        """It is so much now. As `add`."""
        before, self.size = self.size, size
        self._shared.changed(self, before)

    def release(self) -> None:
        """It is whole, or over. May be called twice."""
        self.hold(0)


class HeldBytes:
    """Bytes of requests that are not whole, from those who have shown no credential."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._holders: dict[Held, None] = {}
        self.all = 0

    def holder(self, drop: Callable[[], None]) -> Held:
        """Somebody who will hold some, and how to drop it."""
        return Held(self, drop)

    def changed(self, holder: Held, before: int) -> None:
        """One of them holds more or less than before."""
        self.all += holder.size - before
        if holder.size:
            self._holders.setdefault(holder)
        else:
            self._holders.pop(holder, None)
        while self.all > self._most:
            oldest = next(iter(self._holders))
            oldest.release()
            oldest.drop()


class Bodies:
    """All bodies that are on their way in."""

    def __init__(self, limits: Limits) -> None:
        self._strangers = HeldBytes(limits.stranger_bytes)
        self._each: Counter[str] = Counter()
        self._most_each = limits.credential_body_bytes

    async def read(
        self, parts: AsyncIterator[bytes] | bytes, bound: BodyBound, who: Identity, *, is_stranger: bool
    ) -> bytes:
        """The whole body, of its parts or as it came. Raises `LimitExceeded`, `BodyTooSlow`, `TooManyRequests`."""
        if isinstance(parts, bytes):
            bound.check(len(parts))
            if not is_stranger:
                self._check_known(who.token_id or "", len(parts), len(parts))
            return parts
        with anyio.move_on_after(bound.seconds) as waiting:
            if is_stranger:
                return await self._read_strangers(parts, bound, waiting)
            return await self._read_known(parts, bound, who.token_id or "")
        raise BodyTooSlow("the body took too long; send it in one go", limit_s=bound.seconds)

    async def _read_strangers(
        self, parts: AsyncIterator[bytes], bound: BodyBound, waiting: anyio.CancelScope
    ) -> bytes:
        held = self._strangers.holder(waiting.cancel)
        try:
            return await _gather(parts, bound, held.add)
        finally:
            held.release()

    async def _read_known(self, parts: AsyncIterator[bytes], bound: BodyBound, credential: str) -> bytes:
        own = 0

        def add(size: int) -> None:
            nonlocal own
            own += size
            self._each[credential] += size
            self._check_known(credential, 0, own)

        try:
            return await _gather(parts, bound, add)
        finally:
            self._each[credential] -= own
            if not self._each[credential]:
                del self._each[credential]

    def _check_known(self, credential: str, more: int, own: int) -> None:
        """See that what one credential holds, and so much more, is not too much. One alone has its own bound."""
        if self._each[credential] + more > max(self._most_each, own):
            raise TooManyRequests(
                "too much is on its way in with this credential; send less at a time",
                limit="credential_body_bytes",
            )


async def _gather(parts: AsyncIterator[bytes], bound: BodyBound, add: Callable[[int], None]) -> bytes:
    gathered: list[bytes] = []
    size = 0
    async for part in parts:
        size += len(part)
        bound.check(size)
        add(len(part))
        gathered.append(part)
    return b"".join(gathered)
