"""One session of a scripted agent: what it has said, what it holds back, and what it works on.

Takes updates from running commands; gives them to the client in order, or holds the unsolicited ones until
the client is ready. Never starts work. The history is what `session/load` replays; floods are kept out of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from turnwire.testing.scripted.peer import Peer
from turnwire.testing.scripted.shapes import CHOICES, Json
from turnwire.wire.jsonrpc import Request

if TYPE_CHECKING:
    from turnwire.testing.scripted.work import Work

HISTORY_UPDATES = 10_000
"""How many updates a session remembers: more than any test says by hand, and bounded."""


class Waiting(msgspec.Struct, frozen=True):
    """A prompt that is not inserted yet, because another one is worked on."""

    request: Request
    blocks: list[Any]


class Session:
    """A conversation with one client."""

    def __init__(self, session_id: str, cwd: str, peer: Peer) -> None:
        self.id = session_id
        self.cwd = cwd
        self.title: str | None = None
        self.config = {option: values[0] for option, values in CHOICES.items()}
        self.tool_calls: set[str] = set()
        self.is_open = True
        self.is_ready = True
        self.work: Work | None = None
        """The turn that runs, if any."""
        self.waiting: deque[Waiting] = deque()
        self.last_stop: str | None = None
        self.background: set[anyio.CancelScope] = set()
        """What goes on while the session is idle; ends when the session is closed."""
        self._peer = peer
        self._history: deque[bytes] = deque(maxlen=HISTORY_UPDATES)
        self._held: deque[bytes] = deque()
        self._ids = count(1)
        self._prefix = b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":%b,"update":' % (
            msgspec.json.encode(session_id)
        )

    def new_id(self, kind: str) -> str:
        """An id that is new in this session."""
        return f"{kind}-{next(self._ids)}"

    def line(self, update: bytes) -> bytes:
        """An encoded update as a frame of this session."""
        return b"%b%b}}" % (self._prefix, update)

    async def update(self, update: Json | bytes, *, solicited: bool, kept: bool = True) -> None:
        """Tell the client something; unsolicited updates wait until it is ready."""
        encoded = update if isinstance(update, bytes) else msgspec.json.encode(update)
        if kept:
            self._history.append(encoded)
        if not solicited and (not self.is_ready or self._held):
            self._held.append(encoded)
            return
        await self._peer.send_line(self.line(encoded))

    def remember(self, updates: Sequence[Json]) -> None:
        """Keep updates for a later replay without sending them."""
        self._history.extend(msgspec.json.encode(update) for update in updates)

    async def replay(self) -> None:
        """Tell the whole history again."""
        for update in tuple(self._history):
            await self._peer.send_line(self.line(update))

    async def become_ready(self) -> None:
        """The client knows the session now: give it what was held back, in order."""
        self.is_ready = True
        while self._held:
            await self._peer.send_line(self.line(self._held.popleft()))

    def copy_to(self, other: Session) -> None:
        """Give another session this one's past."""
        other._history.extend(self._history)
        other.config = dict(self.config)
        other.title = self.title
        other.tool_calls = set(self.tool_calls)
