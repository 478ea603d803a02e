"""What an operator and a client can say about `turn_complete` (000): offered is always the same as sent.

The text knows none of this; who knows only the text is `nameless` here.
"""

from __future__ import annotations

import pytest
from tests.literal.agents import PLAIN
from tests.literal.clients import KNOWN, NAMELESS, kinds
from tests.literal.heard import Frame
from tests.literal.stages import House

ASKING: Frame = {"session": {"turnComplete": {}}}
DECLINING: Frame = {"session": {"turnComplete": False}}
CLIENTS: dict[str, Frame] = {
    "nameless": NAMELESS,
    "known": KNOWN,
    "asking": NAMELESS | {"clientCapabilities": ASKING},
    "known and asking": KNOWN | {"clientCapabilities": ASKING},
    "declining": NAMELESS | {"clientCapabilities": DECLINING},
}
POLICIES: dict[str, set[str]] = {
    "auto": {"nameless", "asking", "known and asking"},
    "always": {"nameless", "known", "asking", "known and asking"},
    "asked": {"asking", "known and asking"},
    "off": set(),
}
CASES = [
    pytest.param(policy, client, client in served, id=f"{policy}-{client}")
    for policy, served in POLICIES.items()
    for client in CLIENTS
    if (policy, client) != ("always", "declining")
]


@pytest.mark.requirement("R6", "R18", "R25")
@pytest.mark.parametrize(("policy", "client", "is_served"), CASES)
def test_turn_complete_is_offered_and_sent_to_whom_the_policy_says(
    house: House, policy: str, client: str, is_served: bool
) -> None:
    """000."""
    stage = house.stage("websocket", CLIENTS[client], PLAIN, "--turn-complete", policy)
    offered = stage.client.initialized["agentCapabilities"]["sessionCapabilities"]
    mirrored = stage.client.initialized.get("capabilities", {}).get("session", {})
    assert ("turnComplete" in offered, "turnComplete" in mirrored) == (is_served, is_served)
    talk = stage.open()
    asked = talk.prompt("hello")
    talk.agent.end(talk.agent.asked())
    assert talk.client.response(asked)["result"]["stopReason"] == "end_turn"
    assert kinds(talk.updates()) == ["turn_complete"] * is_served
    assert not [frame for frame in talk.client.frames(talk.id) if frame["method"] != "session/update"]
