"""Capabilities of a peer: a path into its answer to `initialize`, or a draft that may appear in several
positions.
"""

from __future__ import annotations

from turnwire_check.tape import at, items

MARKER, READY, LIFECYCLE = "turnComplete", "ready", "lifecycle"

DRAFTS = {
    MARKER: "the draft turn_complete",
    READY: "the draft session/ready",
    LIFECYCLE: "the draft of the prompt lifecycle",
}
PLACES = (
    ("agentCapabilities", "sessionCapabilities"),
    ("agentCapabilities", "session"),
    ("capabilities", "session"),
)
"""Positions of the drafts' capabilities according to their texts."""


def offers(offer: object, capability: str) -> bool:
    """Return True if the peer claims this: true, an object, or a non-empty list. Any other value claims nothing."""
    if capability in DRAFTS:
        return any(_is_claim(at(offer, *place, capability)) for place in PLACES)
    return _is_claim(at(offer, *capability.split(".")))


def _is_claim(found: object) -> bool:
    return found is True or isinstance(found, dict) or bool(items(found))


def speaks_v2(offer: object) -> bool:
    """Return True if an answer to `initialize` with version 2 uses the members of version 2, and not those of
    version 1.
    """
    return at(offer, "agentCapabilities") is None or at(offer, "capabilities") is not None


def in_words(capability: str) -> str:
    return DRAFTS.get(capability, f"`{capability}`")
