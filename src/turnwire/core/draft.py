"""A decision in the making: the state so far, the events recorded and the effects that will follow them.

Takes events and effects one after another; gives the state as it will be once they are stored, so that a
later step of the same decision, or the next input of the same batch, sees what the earlier ones did. Never
touches the state it began with: dropping a draft undoes it.
"""

from __future__ import annotations

from turnwire.core.effects import AnyEffect
from turnwire.core.events import AnyEvent
from turnwire.core.evolve import evolve
from turnwire.core.receipts import Run
from turnwire.core.state import SessionState
from turnwire.limits import Limits


class Draft:
    """Events and effects of one or more inputs, not stored yet."""

    __slots__ = ("effects", "events", "limits", "offset", "runs", "state")

    def __init__(self, state: SessionState, offset: int, limits: Limits) -> None:
        self.state = state
        self.offset = offset
        """The log's head before this draft."""
        self.limits = limits
        self.events: list[AnyEvent] = []
        self.runs: list[Run] = []
        """Those of its events that are alike but for their payloads."""
        self.effects: list[AnyEffect] = []

    @property
    def head(self) -> int:
        """The log's head once what is recorded so far is stored."""
        return self.offset + len(self.events)

    def record(self, event: AnyEvent) -> None:
        """Add a fact. Raises `LocalProtocolError`, changing nothing, if it is not legal."""
        self.state = evolve(self.state, event)
        self.events.append(event)

    def add_effect(self, effect: AnyEffect) -> None:
        """Add something to do once the facts are stored."""
        self.effects.append(effect)

    def rewind(self, state: SessionState, events: int, effects: int) -> None:
        """Be again as the draft was with that state and so many events and effects."""
        self.state = state
        del self.events[events:]
        while self.runs and self.runs[-1].begin >= events:
            self.runs.pop()
        del self.effects[effects:]
