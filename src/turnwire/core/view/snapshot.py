"""Views to bytes and back, for snapshots.

Takes a view, gives bytes; takes such bytes and their version, gives a view that goes on folding exactly like
the one that was stored. Never reads another version: then the log is folded anew.
"""

from __future__ import annotations

import msgspec

from turnwire.core.view.view import Stored, View

VIEW_VERSION = 1
"""Version of the encoded view. It rises with every change of the shape, and of what a fold makes of an event."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Stored)


def encode_view(view: View) -> bytes:
    """A view as a snapshot keeps it. Equal views give equal bytes."""
    return _encoder.encode(view.stored())


def decode_view(body: bytes, version: int) -> View | None:
    """The view of a snapshot; none if it is of another version or not readable."""
    if version != VIEW_VERSION:
        return None
    try:
        return View(_decoder.decode(body))
    except msgspec.DecodeError:
        return None
