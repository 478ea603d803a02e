"""`_session/steering` as the released Claude and Codex adapters have it, on both sides of turnwire."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.literal.agents import PLAIN, PUBLISHED, AgentText, text_block
from tests.literal.clients import NAMELESS, V2, said
from tests.literal.heard import Frame
from tests.literal.stages import House, Talk

STEERABLE: Frame = {"_meta": {"steering": {"supported": True}}}
CLAUDE = replace(PLAIN, name="steered-v1", initialized=PLAIN.initialized | STEERABLE)
CODEX = replace(PUBLISHED, name="steered-v2", initialized=PUBLISHED.initialized | STEERABLE)
DECLINING = replace(
    PLAIN, name="unsteered", initialized=PLAIN.initialized | {"_meta": {"steering": {"supported": False}}}
)
REQUIRED: Frame = {"steering": {"idleBehavior": "promptRequired"}}
AGENTS = pytest.mark.parametrize("agent", [CLAUDE, CODEX], ids=["v1", "v2"])


def running(talk: Talk, text: str = "work") -> tuple[int | str, Frame]:
    """Start a turn; return the client's request and the agent's."""
    asked = talk.prompt(text)
    prompt = talk.agent.asked()
    if talk.agent.text.is_accepting:
        talk.agent.begin(prompt)
    talk.agent.say(talk.agent.chunk("at it"))
    talk.update("agent_message_chunk")
    return asked, prompt


def steer(talk: Talk, text: str, **more: object) -> int | str:
    return talk.client.request("_session/steering", {"sessionId": talk.id, "prompt": [text_block(text)], **more})


@AGENTS
def test_a_clients_steering_is_injected_and_in_the_history(house: House, transport: str, agent: AgentText) -> None:
    client = V2 if agent is CODEX else NAMELESS
    talk = house.stage(transport, client, agent).open()
    _, prompt = running(talk)
    sent = steer(talk, "left!", _meta=REQUIRED)
    request = talk.agent.asked("_session/steering")
    assert request["params"]["_meta"]["steering"] == {"idleBehavior": "promptRequired"}
    assert request["params"]["prompt"] == [text_block("left!")]
    talk.agent.agent.answer(request, {"outcome": "injected"})
    assert talk.client.response(sent)["result"]["outcome"] == "injected"
    assert talk.update("user_message_chunk" if client is NAMELESS else "user_message")
    talk.agent.end(prompt)


def test_rest_steers_an_agent_that_offers_it_at_the_top_and_shows_the_words_once(house: House) -> None:
    talk = house.rest_talk(CLAUDE)
    talk.prompt("work")
    prompt = talk.agent.asked()
    steering = talk.prompt("left!", whenBusy="steer")
    talk.agent.agent.answer(talk.agent.asked("_session/steering"), {"outcome": "injected"})
    events = talk.events()
    events.until("prompt_injected", promptId=steering)
    talk.agent.end(prompt)
    assert events.terminal(steering)["data"]["stopReason"] == "end_turn"
    assert talk.agent.prompts() == ["work"]


def test_steering_that_crosses_the_end_of_the_turn_prompts_the_agent_once(house: House) -> None:
    """The agent's turn is over, and its end has not arrived when the words are sent."""
    talk = house.rest_talk(CLAUDE)
    talk.prompt("work")
    prompt = talk.agent.asked()
    steering = talk.prompt("left!", whenBusy="steer")
    request = talk.agent.asked("_session/steering")
    talk.agent.agent.answer(request, {"outcome": "promptRequired", "reason": "noRunningTurn"})
    talk.agent.end(prompt)
    own = talk.agent.asked(words="left!")
    talk.agent.end(own)
    assert talk.events().terminal(steering)["data"]["stopReason"] == "end_turn"
    assert talk.agent.prompts() == ["work", "left!"]


def test_an_agent_that_starts_a_turn_with_the_words_is_not_prompted_again(house: House) -> None:
    talk = house.rest_talk(CODEX)
    talk.prompt("work")
    prompt = talk.agent.asked()
    talk.agent.begin(prompt)
    steering = talk.prompt("left!", whenBusy="steer")
    request = talk.agent.asked("_session/steering")
    talk.agent.end(prompt)
    talk.agent.agent.answer(request, {"outcome": "startedNewTurn"})
    talk.agent.say(
        talk.agent.state("running"), talk.agent.chunk("to the left"), talk.agent.state("idle", "end_turn")
    )
    assert talk.events().terminal(steering)["data"]["stopReason"] == "end_turn"
    assert talk.turn(steering)["resultText"] == "to the left"
    assert talk.agent.prompts() == ["work"]


@pytest.mark.parametrize("answer", [{"outcome": "failed"}, {"outcome": "later"}, {}])
def test_steering_that_fails_runs_as_the_next_turn(house: House, answer: Frame) -> None:
    talk = house.stage("websocket", NAMELESS, CLAUDE).open()
    _, prompt = running(talk)
    sent = steer(talk, "left!", _meta=REQUIRED)
    talk.agent.agent.answer(talk.agent.asked("_session/steering"), answer)
    assert talk.client.response(sent)["result"]["outcome"] == "startedNewTurn"
    talk.agent.end(prompt)
    own = talk.agent.asked(words="left!")
    talk.agent.end(own)
    assert talk.agent.prompts() == ["work", "left!"]


def test_an_idle_session_wants_a_prompt_and_accepts_nothing(house: House, transport: str) -> None:
    talk = house.stage(transport, NAMELESS, CLAUDE).open()
    sent = steer(talk, "left!", _meta=REQUIRED)
    assert talk.client.response(sent)["result"] == {"outcome": "promptRequired", "reason": "noRunningTurn"}
    assert talk.agent.prompts() == []


def test_an_idle_session_starts_a_turn_for_a_client_that_allows_it(house: House) -> None:
    talk = house.stage("websocket", NAMELESS, CLAUDE).open()
    sent = steer(talk, "left!")
    prompt = talk.agent.asked(words="left!")
    assert talk.client.response(sent)["result"]["outcome"] == "startedNewTurn"
    talk.agent.say(talk.agent.chunk("to the left"))
    talk.agent.end(prompt)
    talk.update("agent_message_chunk")
    assert said(talk.updates()) == "to the left"


def test_steering_is_offered_where_the_agent_can(house: House, transport: str) -> None:
    def offered(agent: AgentText) -> object:
        return house.stage(transport, NAMELESS, agent).client.initialized.get("_meta", {}).get("steering")

    assert offered(CLAUDE) == {"supported": True}
    assert offered(DECLINING) is None


@pytest.mark.parametrize(("agent", "reason"), [(DECLINING, "not_offered"), (PUBLISHED, "not_on_v2")])
def test_an_agent_that_offers_none_is_not_asked_and_the_reason_is_shown(
    house: House, agent: AgentText, reason: str
) -> None:
    talk = house.rest_talk(agent)
    talk.prompt("work")
    prompt = talk.agent.asked()
    if agent.is_accepting:
        talk.agent.begin(prompt)
    steering = talk.prompt("left!", whenBusy="steer")
    events = talk.events()
    assert events.until("prompt_steer_declined", promptId=steering)["data"]["reason"] == reason
    talk.agent.end(prompt)
    talk.agent.asked(words="left!")


def test_an_extension_that_prompts_the_agent_is_refused(house: House) -> None:
    talk = house.stage("websocket", NAMELESS, CLAUDE).open()
    sent = talk.client.request("_session/inject", {"sessionId": talk.id, "prompt": [text_block("psst")]})
    error = talk.client.response(sent)["error"]
    assert error["code"] == -32601
    assert "_session/steering" in error["message"]
