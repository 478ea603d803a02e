"""Bounds for request bodies: the size and time of one, and the memory of all unfinished ones.

A body is held in memory until it is complete, so a client that sends one slowly holds memory of the daemon. Each
kind of body has a size and a time. The bytes of one credential are bounded (`CredentialBytes`): a further body is
rejected. The bytes of all callers without a credential are bounded together (`HeldBytes`), and there the oldest
request is dropped: an honest one arrives without a pause, so clients that send slowly do not lock others out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from enum import Enum, auto
from typing import NamedTuple

import anyio

from turnwire.errors import BodyTooSlow, LimitExceeded, TooManyRequests
from turnwire.limits import KiB, Limits
from turnwire.server.access.tokens import Identity

PUBLIC_BODY_BYTES = 4 * KiB
"""Body of a public route: one login code fits many times."""
FIELDS_BODY_BYTES = 64 * KiB
"""Body of names and numbers, without a prompt, file or message."""
STRANGER_REQUEST_BYTES = 8 * KiB
"""Memory of an unfinished request besides its body, so that requests with empty bodies are bounded as well."""
BODY_S = 300.0
"""Time for the longest body over a slow line. Then it is dropped with its memory."""


class BodyKind(Enum):
    """The expected content of a body."""

    STRANGERS = auto()
    """Sent without a credential."""
    FIELDS = auto()
    """Names and numbers."""
    CONTENT = auto()
    """Prompts, files, messages."""


class BodyBound(NamedTuple):
    """Bounds of one body."""

    limit: str
    """Name of the size limit, as errors show it."""
    most: int
    """Bytes."""
    seconds: float
    """From the head of the request to the last byte."""

    @classmethod
    def of(cls, kind: BodyKind, limits: Limits) -> BodyBound:
        match kind:
            case BodyKind.STRANGERS:
                return cls("public_body_bytes", PUBLIC_BODY_BYTES, limits.short_body_s)
            case BodyKind.FIELDS:
                return cls("fields_body_bytes", FIELDS_BODY_BYTES, limits.short_body_s)
            case BodyKind.CONTENT:
                return cls("body_bytes", limits.body_bytes, BODY_S)

    def check(self, size: int) -> None:
        """Raise `LimitExceeded` if `size` exceeds the bound."""
        if size > self.most:
            advice = ", or start the daemon with a larger --limit body_bytes=BYTES" if self.is_setting else ""
            raise LimitExceeded(
                f"the body is larger than {self.most} bytes; send less{advice}", limit=self.limit, value=self.most
            )

    @property
    def is_setting(self) -> bool:
        """True if an operator can raise this limit."""
        return self.limit == "body_bytes"


class Held:
    """Bytes of one unfinished request."""

    def __init__(self, shared: HeldBytes, drop: Callable[[], None]) -> None:
        self._shared = shared
        self.drop = drop
        self.size = 0

    def add(self, size: int) -> None:
        """Count `size` more bytes. Drops the oldest holders, possibly this one, until the total fits."""
        self.size += size
        self._shared.changed(self, size)

    def release(self) -> None:
        """Set the size to zero: the request is complete or over. May be called twice."""
        size, self.size = self.size, 0
        self._shared.changed(self, -size)


class HeldBytes:
    """Bytes of unfinished requests without a credential. Beyond the limit the oldest request is dropped."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._holders: dict[Held, None] = {}
        self.all = 0

    def holder(self, drop: Callable[[], None]) -> Held:
        """Return a holder of no bytes; `drop` ends its request."""
        return Held(self, drop)

    def changed(self, holder: Held, by: int) -> None:
        """Update the total after a holder has changed its size."""
        self.all += by
        if holder.size:
            self._holders.setdefault(holder)
        else:
            self._holders.pop(holder, None)
        while self.all > self._most:
            oldest = next(iter(self._holders))
            oldest.release()
            oldest.drop()


class CredentialBytes:
    """Unfinished bytes by credential."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._sizes: Counter[str] = Counter()

    @property
    def all(self) -> int:
        return self._sizes.total()

    def add(self, credential: str, by: int, own: int) -> None:
        """Count bytes of one body or message of size `own`. A single one is limited only by its own bound.

        Raises `TooManyRequests`. The bytes are counted nevertheless, until the caller subtracts them.
        """
        total = self._sizes[credential] + by
        if total:
            self._sizes[credential] = total
        else:
            del self._sizes[credential]
        if by > 0 and total > max(self._most, own):
            raise TooManyRequests(
                "too much is on its way in with this credential; send less at a time",
                limit="credential_body_bytes",
            )


class Bodies:
    """All incoming bodies."""

    def __init__(self, limits: Limits) -> None:
        self._strangers = HeldBytes(limits.stranger_bytes)
        self._each = CredentialBytes(limits.credential_body_bytes)

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of all incomplete bodies."""
        return self._strangers.all + self._each.all

    async def read(
        self, parts: AsyncIterator[bytes], bound: BodyBound, who: Identity, *, is_stranger: bool
    ) -> bytes:
        """Return the whole body. Raises `LimitExceeded`, `BodyTooSlow`, `TooManyRequests`."""
        with anyio.move_on_after(bound.seconds) as waiting:
            if is_stranger:
                return await self._read_strangers(parts, bound, waiting)
            return await self._read_known(parts, bound, who.token_id or "")
        raise BodyTooSlow("the body took too long; send it in one go", limit_s=bound.seconds)

    async def _read_strangers(
        self, parts: AsyncIterator[bytes], bound: BodyBound, waiting: anyio.CancelScope
    ) -> bytes:
        held = self._strangers.holder(waiting.cancel)
        held.add(STRANGER_REQUEST_BYTES)
        try:
            return await _gather(parts, bound, held.add)
        finally:
            held.release()

    async def _read_known(self, parts: AsyncIterator[bytes], bound: BodyBound, credential: str) -> bytes:
        own = 0

        def add(size: int) -> None:
            nonlocal own
            own += size
            self._each.add(credential, size, own)

        try:
            return await _gather(parts, bound, add)
        finally:
            self._each.add(credential, -own, 0)


async def _gather(parts: AsyncIterator[bytes], bound: BodyBound, add: Callable[[int], None]) -> bytes:
    gathered: list[bytes] = []
    size = 0
    async for part in parts:
        size += len(part)
        bound.check(size)
        add(len(part))
        gathered.append(part)
    return b"".join(gathered)
