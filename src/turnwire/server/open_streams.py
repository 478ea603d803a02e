"""Open event streams, sockets and exports by credential; each holds a descriptor while its client is connected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import NamedTuple

import anyio
from starlette.types import Scope

from turnwire.errors import TooManyRequests
from turnwire.server.access.tokens import Identity, Role
from turnwire.server.connections import DETACHED, DetachedAnswer

CREDENTIAL_STREAMS = 256
"""Event streams of one credential: a page needs one, a busy dashboard some dozens."""
SESSION_CREDENTIAL_STREAMS = 128
"""Event streams of a credential for one session, such as a share link that is passed on."""

CREDENTIAL_EXPORTS = 4
"""Exports of one credential at a time: each reads a whole session, and hundreds would delay everybody."""


class OpenStream(NamedTuple):
    """An open stream or socket."""

    credential: str
    number: int
    drop: Callable[[], None]
    """Ends it at once."""


class OpenStreams:
    """All streams and sockets of a daemon. An owner's are not limited, because an owner could change any limit."""

    def __init__(self) -> None:
        self._by_credential: dict[str, dict[OpenStream, None]] = {}
        self._number = 0
        self._exports: Counter[str] = Counter()

    def add(self, who: Identity, drop: Callable[[], None]) -> OpenStream:
        """Count a stream or socket until it is removed."""
        self._number += 1
        stream = OpenStream(who.token_id or "", self._number, drop)
        self._by_credential.setdefault(stream.credential, {})[stream] = None
        return stream

    def remove(self, stream: OpenStream) -> None:
        """Forget a stream. May be called twice."""
        streams = self._by_credential.get(stream.credential, {})
        streams.pop(stream, None)
        if not streams:
            self._by_credential.pop(stream.credential, None)

    def drop_one(self) -> bool:
        """Drop the oldest stream of the credential that has most. Return False if none has more than one."""
        streams = max(self._by_credential.values(), key=len, default=dict[OpenStream, None]())
        if len(streams) < 2:
            return False
        oldest = next(iter(streams))
        self.remove(oldest)
        oldest.drop()
        return True

    @contextmanager
    def event_stream(self, who: Identity, scope: Scope) -> Generator[None]:
        """Count an event stream while its request runs, and after that while its detached answer is open.

        A stream that is dropped is not ended: the request returns, and the server drops the connection. Raises
        `TooManyRequests`.
        """
        most = CREDENTIAL_STREAMS if who.session_id is None else SESSION_CREDENTIAL_STREAMS
        if who.role is not Role.OWNER and len(self._by_credential.get(who.token_id or "", ())) >= most:
            raise TooManyRequests(
                "this credential has too many event streams open; close some",
                limit="credential_streams",
                value=most,
            )
        with anyio.CancelScope() as running:
            answer: DetachedAnswer | None = None

            def drop() -> None:
                running.cancel() if answer is None else answer.drop()

            stream = self.add(who, drop)
            try:
                yield
            finally:
                answer = scope.get(DETACHED)
                if answer is None or answer.is_over:
                    self.remove(stream)
                else:
                    answer.on_end = lambda: self.remove(stream)

    @contextmanager
    def export(self, who: Identity) -> Generator[None]:
        """Count an export while it runs. Raises `TooManyRequests`."""
        credential = who.token_id or ""
        if who.role is not Role.OWNER and self._exports[credential] >= CREDENTIAL_EXPORTS:
            raise TooManyRequests(
                "this credential has too many exports running; wait until one has ended",
                limit="credential_exports",
                value=CREDENTIAL_EXPORTS,
            )
        self._exports[credential] += 1
        try:
            yield
        finally:
            self._exports[credential] -= 1
            if not self._exports[credential]:
                del self._exports[credential]
