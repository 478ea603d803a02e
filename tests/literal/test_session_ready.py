"""001, to the letter: an agent that offers `session/ready` sends nothing about a session before its client is
ready.

A client that reads the offer sends the notification when it has processed the answer to `session/new` or
`session/load`. A client that does not know the text sends nothing, and must lose nothing.
"""

from __future__ import annotations

from dataclasses import replace
from threading import Event
from time import monotonic

import pytest
from tests.literal.agents import PLAIN, PUBLISHED, READY_PLACES, AgentListener, AgentText, RawAgent, of_method
from tests.literal.clients import KNOWN, NAMELESS, V2, RawClient, kinds
from tests.literal.heard import Frame, member
from tests.literal.stages import House, Stage, Talk

COMMANDS: Frame = {
    "sessionUpdate": "available_commands_update",
    "availableCommands": [{"name": "plan", "description": "Make a plan"}],
}
WAITING = ("--ready-timeout", "never")
DEFAULT_S = 2.0
TRIES = 3
"""A busy machine makes one of them slow; a delayed client makes all of them slow."""


def wait_for_commands(stage: Stage) -> float:
    """Seconds from opening a session until the client has the agent's commands."""
    began = monotonic()
    talk = stage.open()
    talk.agent.say(COMMANDS)
    talk.update("available_commands_update")
    return monotonic() - began


def is_offered(initialized: Frame) -> bool:
    """In the place that the text shows."""
    return member(initialized, "capabilities", "session", "ready") is True


def titled(title: str) -> Frame:
    return {"sessionUpdate": "session_info_update", "title": title}


def titles(talk: Talk) -> list[str]:
    return [each["title"] for each in talk.updates() if each["sessionUpdate"] == "session_info_update"]


def roundtrip(stage: Stage) -> None:
    """Open another session: when it returns, all earlier messages to the client have arrived."""
    stage.open()


@pytest.mark.parametrize("client", [NAMELESS, V2], ids=["nameless", "v2"])
def test_a_client_that_asked_for_nothing_is_offered_session_ready(
    house: House, transport: str, client: Frame
) -> None:
    """001: shown as `capabilities.session.ready: true`."""
    initialized = house.stage(transport, client, PLAIN).client.initialized
    assert is_offered(initialized)
    if client is not V2:
        assert initialized["agentCapabilities"]["sessionCapabilities"]["ready"] == {}


@pytest.mark.parametrize("client", [NAMELESS, V2], ids=["v1", "v2"])
def test_what_is_offered_is_held_until_the_client_is_ready_and_then_comes_in_order(
    house: House, transport: str, client: Frame
) -> None:
    """001: nothing before, all of it after, once; and the notification itself is not answered."""
    stage = house.stage(transport, client, PLAIN, *WAITING)
    talk = stage.open()
    talk.agent.say(*(titled(f"title {number}") for number in range(5)), COMMANDS)
    roundtrip(stage)
    assert talk.updates() == []
    talk.client.notify("session/ready", {"sessionId": talk.id})
    talk.update("available_commands_update")
    assert titles(talk) == [f"title {number}" for number in range(5)]
    assert not [frame for frame in talk.client.heard.all() if "id" in frame and frame["id"] is None]


def test_a_prompt_counts_as_ready(house: House, transport: str) -> None:
    """001: and the held updates precede those of the turn."""
    stage = house.stage(transport, NAMELESS, PLAIN, *WAITING)
    talk = stage.open()
    talk.agent.say(COMMANDS)
    asked = talk.prompt("hello")
    prompt = talk.agent.asked()
    talk.agent.say(talk.agent.chunk("hi"))
    talk.agent.end(prompt)
    talk.client.response(asked)
    heard = kinds(talk.updates())
    assert heard.index("available_commands_update") < heard.index("agent_message_chunk")


def test_a_backend_that_is_faster_than_the_answer_cannot_make_its_news_overtake_it(
    house: House, transport: str
) -> None:
    """001: the agent's update is on the wire before its answer to `session/new`."""
    stage = house.stage(transport, NAMELESS, PLAIN, *WAITING)

    def hasty(agent: RawAgent, frame: Frame) -> None:
        session_id = f"hasty-{frame['params']['cwd']}"
        news = {"sessionId": session_id, "update": COMMANDS}
        agent.send(
            {"method": "session/update", "params": news}, {"id": frame["id"], "result": {"sessionId": session_id}}
        )
        stage.agents.opened(agent, frame, session_id)

    stage.agents.replies["session/new"] = hasty
    try:
        talk = stage.open()
    finally:
        del stage.agents.replies["session/new"]
    frames = talk.client.frames(talk.id)
    assert frames == []
    talk.client.notify("session/ready", {"sessionId": talk.id})
    assert talk.update("available_commands_update")["availableCommands"][0]["name"] == "plan"


class SlowClient:
    """A client as the text describes it: it drops messages about a session that it has not registered yet."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.registered_at = 0

    def register(self) -> None:
        """Process the answer for 20 ms; messages that arrive before that are lost."""
        Event().wait(0.02)
        self.registered_at = len(self.client.heard.all())

    def seen(self, session_id: str) -> list[str]:
        kept = self.client.heard.all()[self.registered_at :]
        return [
            frame["params"]["update"]["sessionUpdate"]
            for frame in kept
            if frame.get("method") == "session/update" and frame["params"]["sessionId"] == session_id
        ]


def test_a_client_that_needs_20_ms_to_register_a_session_loses_nothing(house: House, transport: str) -> None:
    """001."""
    stage = house.stage(transport, NAMELESS, PLAIN, is_fresh=True)
    slow = SlowClient(stage.client)
    talk = stage.open()
    talk.agent.say(COMMANDS)
    slow.register()
    talk.client.notify("session/ready", {"sessionId": talk.id})
    talk.update("available_commands_update")
    assert "available_commands_update" in slow.seen(talk.id)


@pytest.mark.parametrize("way", ["websocket", "stdio"])
def test_without_ready_the_news_comes_after_the_timeout_and_the_connection_is_not_held_again(
    house: House, way: str
) -> None:
    """001: a client that does not know the text waits once."""
    stage = house.stage(way, NAMELESS, PLAIN, is_fresh=True)
    opened = monotonic()
    first = stage.open()
    first.agent.say(COMMANDS)
    first.update("available_commands_update")
    assert monotonic() - opened > 0.9 * DEFAULT_S
    assert min(wait_for_commands(stage) for _ in range(TRIES)) < 0.9 * DEFAULT_S


def test_a_released_client_that_never_sends_it_is_neither_offered_it_nor_held(house: House, transport: str) -> None:
    """001."""
    stage = house.stage(transport, KNOWN, PLAIN, *WAITING)
    assert not is_offered(stage.client.initialized)
    assert "ready" not in stage.client.initialized["agentCapabilities"]["sessionCapabilities"]
    talk = stage.open()
    talk.agent.say(COMMANDS)
    talk.update("available_commands_update")


@pytest.mark.parametrize("client", [NAMELESS, V2], ids=["v1", "v2"])
def test_with_a_timeout_of_nought_it_is_neither_offered_nor_held(house: House, client: Frame) -> None:
    """001."""
    stage = house.stage("websocket", client, PLAIN, "--ready-timeout", "0")
    assert not is_offered(stage.client.initialized)
    assert min(wait_for_commands(stage) for _ in range(TRIES)) < 0.9 * DEFAULT_S


def test_ready_again_and_ready_for_nothing_change_nothing(house: House, transport: str) -> None:
    """001."""
    stage = house.stage(transport, NAMELESS, PLAIN)
    talk = stage.open()
    before = len(talk.client.heard.all())
    for session_id in (talk.id, talk.id, talk.id):
        talk.client.notify("session/ready", {"sessionId": session_id})
    if transport != "http":
        talk.client.notify("session/ready", {"sessionId": "nobody-knows-it"})
    talk.agent.say(COMMANDS)
    talk.update("available_commands_update")
    roundtrip(stage)
    heard = talk.client.heard.all()[before:]
    assert kinds(talk.updates()).count("available_commands_update") == 1
    assert not [frame for frame in heard if "error" in frame]


def test_the_history_is_not_held(house: House, served_by: str) -> None:
    """001: it comes before the answer to `session/load`, so before anybody can be ready."""
    stage = house.stage(served_by, NAMELESS, PLAIN, *WAITING)
    talk = stage.open()
    asked = talk.prompt("hello")
    prompt = talk.agent.asked()
    talk.agent.say(talk.agent.chunk("hi"))
    talk.agent.end(prompt)
    talk.client.response(asked)
    other = house.connect(stage.daemon.socket(), NAMELESS)
    other.call("session/load", {"sessionId": talk.id, "cwd": str(talk.cwd), "mcpServers": []})
    frames = other.heard.all()
    told = [frame for frame in frames if frame.get("method") == "session/update"]
    assert kinds([frame["params"]["update"] for frame in told])[:2] == ["user_message_chunk", "agent_message_chunk"]


@pytest.mark.parametrize("place", READY_PLACES)
def test_an_agent_that_offers_it_anywhere_is_told_once_that_its_client_is_ready(house: House, place: str) -> None:
    """001: after the answer to `session/new` was processed."""
    text = offering(READY_PLACES[place])
    agents = AgentListener(text)
    raw = house.hosted(agents)
    raw.initialize(NAMELESS)
    cwd = house.folder()
    session_id = raw.new_session(cwd)
    raw.notify("session/ready", {"sessionId": session_id})
    agent = agents.session(cwd)
    agent.asked("session/ready")
    talk = Talk(raw, session_id, cwd, agents)
    asked = talk.prompt("hello")
    prompt = agent.asked()
    agent.begin(prompt)
    agent.end(prompt)
    raw.response(asked)
    heard = agent.agent.heard.all()
    ready = [frame for frame in heard if frame.get("method") == "session/ready"]
    assert len(ready) == 1
    assert "id" not in ready[0]


def offering(initialized: Frame) -> AgentText:
    text = PUBLISHED if initialized["protocolVersion"] == 2 else PLAIN
    return replace(text, initialized=initialized)


def test_an_agent_that_does_not_offer_it_is_told_nothing(house: House) -> None:
    """001: and not otherwise."""
    stage = house.stage("websocket", NAMELESS, PLAIN)
    talk = stage.open()
    talk.client.notify("session/ready", {"sessionId": talk.id})
    asked = talk.prompt("hello")
    talk.agent.end(talk.agent.asked())
    talk.client.response(asked)
    assert talk.agent.agent.heard.find(of_method("session/ready")) is None


def test_an_agent_that_comes_back_and_loads_a_session_is_told_again(house: House) -> None:
    """001: after the answer to `session/load` too."""
    served = house.serve(offering(READY_PLACES["capabilities.session"]))
    with served:
        client = house.connect(served.daemon.socket(), NAMELESS)
        cwd = house.folder()
        talk = Talk(client, client.new_session(cwd), cwd, served.agents)
        asked = talk.prompt("one")
        talk.agent.asked("session/ready")
        talk.agent.asked()
        talk.agent.agent.kill()
        assert "error" in client.response(asked)
        asked = talk.prompt("two")
        back = served.agents.returned(talk.agent.id, 1)
        back.asked("session/load")
        back.asked("session/ready")
        back.end(back.asked())
        assert client.response(asked)["result"]["stopReason"] == "end_turn"
