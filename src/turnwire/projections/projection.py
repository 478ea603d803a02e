"""The interface of projections: folds over the stored events of a session for one kind of reader.

A projection is pure: it depends only on the events, so readers of the same kind share one, and its frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self


class Projection(Protocol):
    """A fold over one session's log that produces the frames of each event.

    A projection without memory may begin in the middle of the log. When it meets an event that needs earlier ones,
    it stops before it (`is_stuck`), and a projection that begins at the start of the log takes over.
    """

    offset: int
    """Offset of the last projected event."""
    is_stuck: bool
    """True if the next event needs the events before this projection began."""
    translates: bool
    """True if the agent speaks another version: an event costs more, and the fold cannot be copied."""

    def project(self, bodies: Sequence[bytes], /) -> list[bytes]:
        """Return one item per event, in order. Fewer if the projection gets stuck.

        An item holds all frames of its event, with the event's id on the last of them.
        """
        ...

    def pass_over(self, bodies: Sequence[bytes], /) -> None:
        """Move past events without frames. Stops where the projection gets stuck."""
        ...

    def copy(self) -> Self | None:
        """Return an independent copy; `None` if it is as large as the session."""
        ...
