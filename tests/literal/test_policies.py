"""Settings of operators and clients for `turn_complete` (000): the offer always matches the sent frames.

The text has no such settings; a client that knows only the text is `nameless` here.
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


@pytest.mark.parametrize("policy", POLICIES)
def test_turn_complete_is_offered_and_sent_to_the_clients_of_the_policy(house: House, policy: str) -> None:
    """000."""
    wrong: list[str] = []
    for client, initialize in CLIENTS.items():
        if (policy, client) == ("always", "declining"):
            continue
        stage = house.stage("websocket", initialize, PLAIN, "--turn-complete", policy)
        offered = stage.client.initialized["agentCapabilities"]["sessionCapabilities"]
        mirrored = stage.client.initialized.get("capabilities", {}).get("session", {})
        talk = stage.open()
        asked = talk.prompt("hello")
        talk.agent.end(talk.agent.asked())
        assert talk.client.response(asked)["result"]["stopReason"] == "end_turn"
        assert not [frame for frame in talk.client.frames(talk.id) if frame["method"] != "session/update"]
        found = ("turnComplete" in offered, "turnComplete" in mirrored, kinds(talk.updates()) == ["turn_complete"])
        if found != (client in POLICIES[policy],) * 3:
            wrong.append(f"{client}: offered, mirrored, sent = {found}")
    assert wrong == []
