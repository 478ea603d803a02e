"""Waiting for frames, the same for every link that has them pushed to it.

Takes where frames arrive; gives all that are there, at least one. One reader at a time; a cancelled wait took
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import anyio

from turnwire.errors import LinkBroken, LinkClosed, LocalProtocolError


class Arriving(Protocol):
    """Where frames of the peer arrive. Sets `arrived` when there is something new to see, also the end."""

    arrived: anyio.Event | None
    """Somebody waits here."""

    @property
    def is_ended(self) -> bool: ...

    def take(self) -> list[bytes]: ...


async def next_frames(source: Arriving, is_closed: Callable[[], bool], ended: Callable[[], str]) -> list[bytes]:
    """Every frame that has arrived. Raises `LinkClosed`, and `LinkBroken` with what `ended` says."""
    if source.arrived is not None:
        raise LocalProtocolError("another task is already in receive(); a link has one reader")
    while True:
        if is_closed():
            raise LinkClosed("this link is closed; start a new one")
        if frames := source.take():
            return frames
        if source.is_ended:
            raise LinkBroken(ended())
        source.arrived = anyio.Event()
        try:
            await source.arrived.wait()
        finally:
            source.arrived = None
