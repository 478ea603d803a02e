"""The ready gate of one session at one client: what nobody asked for waits until the client can take it.

Takes frames in order; says which may go now. Before the answer that opens the session nothing passes, so nothing
can overtake it. After it, frames wait for `session/ready`, a prompt or a time limit, if the agent offers to wait.
Pure: holds no clock, sends nothing. Order is kept and nothing is dropped but a full state that a later one
replaces.
"""

from __future__ import annotations

from enum import Enum

from turnwire.errors import LimitExceeded

FULL_STATE = frozenset(
    {"available_commands_update", "config_option_update", "current_mode_update", "usage_update"},
)
"""Updates that say all there is to say, so that a later one replaces an earlier one."""


class Stage(Enum):
    """Where a session is in its opening."""

    OPENING = "opening"
    """The answer that opens it is not written."""
    WAITING = "waiting"
    """It is, and the client has not said that it is ready."""
    OPEN = "open"


class Gate:
    """One session at one client."""

    def __init__(self, max_held: int) -> None:
        self.stage = Stage.OPENING
        self._max_held = max_held
        self._held: list[tuple[str, bytes]] = []

    @property
    def holds(self) -> int:
        """How many wait."""
        return len(self._held)

    def check(self, kind: str) -> None:
        """Raise `LimitExceeded` if too many wait already and none of them can be replaced."""
        if self.stage is Stage.OPEN or len(self._held) < self._max_held:
            return
        self._coalesce(kind)
        if len(self._held) >= self._max_held:
            raise LimitExceeded(
                "too many updates wait for the client to be ready; send fewer before the first prompt",
                limit="held",
                value=self._max_held,
            )

    def take(self, kind: str, frame: bytes) -> bool:
        """Whether the frame may go now; else it is held. An end or a request is held whatever the bound is."""
        if self.stage is Stage.OPEN:
            return True
        self._held.append((kind, frame))
        return False

    def answered(self, *, waits: bool) -> list[bytes]:
        """The answer that opens the session is written. `waits`: the client is to say when it is ready."""
        if self.stage is not Stage.OPENING:
            return []
        self.stage = Stage.WAITING
        return [] if waits else self.open()

    def open(self) -> list[bytes]:
        """What may go now, because the client can take it all. While it is opening it cannot, whoever says so."""
        if self.stage is not Stage.WAITING:
            return []
        self.stage = Stage.OPEN
        frames, self._held = [frame for _, frame in self._held], []
        return frames

    def discard(self) -> None:
        """The client has left: what waits for it is forgotten, and nothing waits any more."""
        self._held.clear()
        self.stage = Stage.OPEN

    def _coalesce(self, coming: str) -> None:
        """Drop each full state that a later one replaces."""
        kept: list[tuple[str, bytes]] = []
        later = {coming} & FULL_STATE
        for kind, frame in reversed(self._held):
            if kind in later:
                continue
            later |= {kind} & FULL_STATE
            kept.append((kind, frame))
        self._held = kept[::-1]
