"""An uncommitted decision: the state so far, the recorded events, and the effects that follow them.

It accepts events and effects in order and has the state as it will be once they are stored, so that a later step of
the same decision, or the next input of the same batch, sees their result. It never modifies the initial state:
dropping a draft undoes it.
"""

from __future__ import annotations

from turnwire.limits import Limits
from turnwire.session.effects import AnyEffect
from turnwire.session.events import AnyEvent
from turnwire.session.evolve import evolve
from turnwire.session.state import SessionState


class Draft:
    """Events and effects of one or more inputs, not stored yet."""

    __slots__ = ("effects", "events", "limits", "offset", "state")

    def __init__(self, state: SessionState, offset: int, limits: Limits) -> None:
        self.state = state
        self.offset = offset
        """The log's head before this draft."""
        self.limits = limits
        self.events: list[AnyEvent] = []
        self.effects: list[AnyEffect] = []

    @property
    def head(self) -> int:
        """The log's head once the recorded events are stored."""
        return self.offset + len(self.events)

    def record(self, event: AnyEvent) -> None:
        """Add an event. Raises `LocalProtocolError`, changing nothing, if it is not legal."""
        self.state = evolve(self.state, event)
        self.events.append(event)

    def add_effect(self, effect: AnyEffect) -> None:
        """Add an effect to run once the events are stored."""
        self.effects.append(effect)

    def rewind(self, state: SessionState, events: int, effects: int) -> None:
        """Reset the draft to that state and to those numbers of events and effects."""
        self.state = state
        del self.events[events:]
        del self.effects[effects:]
