"""What a peer has claimed: a path into its answer to `initialize`, or a draft that may stand in several places."""

from __future__ import annotations

from turnwire.conformance.tape import at, items

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
"""Where the texts of the drafts put them."""


def offers(offer: object, capability: str) -> bool:
    """Whether the peer claims this: true, an object, or a list that is not empty. Anything else offers nothing."""
    if capability in DRAFTS:
        return any(_is_claim(at(offer, *place, capability)) for place in PLACES)
    return _is_claim(at(offer, *capability.split(".")))


def _is_claim(found: object) -> bool:
    return found is True or isinstance(found, dict) or bool(items(found))


def in_words(capability: str) -> str:
    return DRAFTS.get(capability, f"`{capability}`")
