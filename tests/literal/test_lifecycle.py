"""003, to the letter: a prompt is answered when it is accepted, and states report the rest.

In the form of the proposal (`state_change`, `stop_reason`, `{}`), on version 1 with its flag and from agents of
either version; and in that of the published v2 that it became.
"""

from __future__ import annotations

from itertools import groupby

import pytest
from tests.literal.agents import LIFECYCLE, LIFECYCLE_V1, PLAIN, PUBLISHED, AgentText, text_block
from tests.literal.clients import FLAGGED, NAMELESS, V2, kinds, said
from tests.literal.heard import Fits, Frame, about, answers, member
from tests.literal.stages import House, Talk

USAGE = {"totalTokens": 12, "inputTokens": 7, "outputTokens": 5}
STATEFUL = pytest.mark.parametrize(
    "agent", [LIFECYCLE_V1, LIFECYCLE, PUBLISHED], ids=["state_change-v1", "state_change-v2", "state_update"]
)
EVERY_AGENT = pytest.mark.parametrize(
    "agent", [PLAIN, LIFECYCLE_V1, LIFECYCLE, PUBLISHED], ids=lambda text: text.name
)
EVERY_V2 = pytest.mark.parametrize("agent", [LIFECYCLE, PUBLISHED], ids=["state_change", "state_update"])


def states(talk: Talk, word: str) -> list[str]:
    """Return the states in order; repeated ones count once."""
    told = [each["state"] for each in talk.updates() if each["sessionUpdate"] == word]
    return [state for state, _ in groupby(told)]


def test_the_flag_is_offered(house: House, transport: str) -> None:
    """003: in `initialize`, next to the other capabilities of a session."""
    offered = house.stage(transport, NAMELESS, PLAIN).client.initialized["agentCapabilities"]
    assert offered["sessionCapabilities"]["lifecycle"] == {}


@pytest.mark.parametrize("agent", [PLAIN, PUBLISHED], ids=lambda text: text.name)
def test_a_flagged_client_is_answered_at_acceptance_and_told_by_states(
    house: House, transport: str, agent: AgentText
) -> None:
    """003."""
    talk = house.stage(transport, FLAGGED, agent).open()
    asked = talk.prompt("hello")
    prompt = talk.agent.asked()
    talk.agent.begin(prompt)
    talk.agent.say(talk.agent.chunk("hi"))
    assert talk.client.response(asked)["result"] == {}
    message = talk.update("user_message")
    assert message["content"] == [text_block("hello")]
    assert isinstance(message["messageId"], str)
    talk.update("state_change", state="running")
    talk.update("agent_message_chunk")
    assert states(talk, "state_change") == ["running"]
    talk.agent.end(prompt, "max_tokens", USAGE)
    idle = talk.update("state_change", state="idle")
    assert (idle["stop_reason"], idle["usage"]) == ("max_tokens", USAGE)
    heard = kinds(talk.updates())
    assert heard.index("state_change") < heard.index("agent_message_chunk") < len(heard) - 1
    assert heard[-1] == "state_change"


@EVERY_V2
def test_a_flagged_client_is_answered_only_when_the_agent_accepted(house: House, agent: AgentText) -> None:
    """003: before that, an error is still possible, and then there is no user message."""
    stage = house.stage("websocket", FLAGGED, agent)
    talk = stage.open()
    refused = talk.prompt("no")
    talk.agent.agent.refuse(talk.agent.asked(), -32042, "not that")
    assert talk.client.response(refused)["error"]["code"] == -32042
    accepted = talk.prompt("yes")
    prompt = talk.agent.asked()
    stage.open()
    assert talk.client.heard.find(answers(accepted)) is None
    assert "user_message" not in kinds(talk.updates())
    talk.agent.begin(prompt, "of-the-agent")
    assert talk.client.response(accepted)["result"] == {}
    assert talk.update("user_message")["messageId"] == "of-the-agent"
    talk.agent.end(prompt)
    talk.update("state_change", state="idle", stop_reason="end_turn")


@pytest.mark.parametrize("agent", [PLAIN, PUBLISHED], ids=lambda text: text.name)
@pytest.mark.parametrize(("client", "word"), [(FLAGGED, "state_change"), (V2, "state_update")], ids=["flag", "v2"])
def test_requires_action_names_what_it_waits_for(
    house: House, transport: str, client: Frame, word: str, agent: AgentText
) -> None:
    """003: the open request on that connection, and its kind; running afterwards."""
    talk = house.stage(transport, client, agent).open()
    talk.prompt("ask me")
    session = talk.agent
    prompt = session.asked()
    session.begin(prompt)
    asked = session.request_permission()
    if agent is PUBLISHED:
        session.say(session.state("requires_action"))
    request = talk.client.asked("session/request_permission", talk.id)
    blocked = talk.update(word, state="requires_action")
    [awaited] = blocked["_meta"]["turnwire"]["waitsFor"]
    assert awaited["requestId"] == request["id"]
    assert awaited["kind"] == "permission"
    talk.client.answer(request, {"outcome": {"outcome": "selected", "optionId": "yes"}})
    assert session.agent.told(asked)["result"]["outcome"]["optionId"] == "yes"
    if agent is PUBLISHED:
        session.say(session.state("running"))
    session.say(session.chunk("done"))
    session.end(prompt)
    talk.update(word, state="idle")
    assert states(talk, word) == ["running", "requires_action", "running", "idle"]


def test_requires_action_names_what_it_waits_for_on_rest(house: House) -> None:
    """003, 002: there the request has the daemon's own id."""
    talk = house.rest_talk(PLAIN)
    events = talk.events()
    prompt_id = talk.prompt("ask me")
    prompt = talk.agent.asked()
    talk.agent.request_permission()
    question = events.until("permission_request")["data"]["requestId"]
    blocked = events.until("state_changed", state="requires_action")
    assert blocked["data"]["waitsFor"] == [{"requestId": question, "kind": "permission"}]
    answer = {"outcome": {"outcome": "selected", "optionId": "no"}}
    assert talk.rest.ask("POST", f"/session/{talk.id}/permission/{question}", answer).status == 200
    talk.agent.end(prompt)
    events.terminal(prompt_id)


@STATEFUL
@pytest.mark.parametrize("client", [NAMELESS, V2], ids=["v1", "v2"])
def test_a_turn_of_an_agent_that_speaks_of_states_ends_at_idle_and_the_next_prompt_runs(
    house: House, client: Frame, agent: AgentText
) -> None:
    """003: for both versions and both spellings, including usage."""
    stage = house.stage("websocket", client, agent)
    talk = stage.open()
    events = stage.rest().events(talk.id)
    for number, text in enumerate(("one", "two"), 1):
        asked = talk.prompt(text)
        prompt = talk.agent.asked()
        talk.agent.begin(prompt, f"u-{number}")
        talk.agent.say(talk.agent.chunk(f"to {text} ", f"a-{number}"))
        talk.agent.end(prompt, "max_tokens", USAGE)
        terminal = events.heard.several(lambda event: event["type"] == "turn_complete", number)[-1]["data"]
        assert (terminal["stopReason"], terminal["usage"]) == ("max_tokens", USAGE)
        if client is V2:
            idles = talk.client.heard.several(is_idle(talk), number)
            assert idles[-1]["params"]["update"]["stopReason"] == "max_tokens"
            assert idles[-1]["params"]["update"]["usage"] == USAGE
        else:
            assert talk.client.response(asked)["result"] | {"_meta": 0} == {
                "stopReason": "max_tokens",
                "usage": USAGE,
                "_meta": 0,
            }
    assert said(talk.updates()) == "to one to two "


def is_idle(talk: Talk) -> Fits:
    """Return True for the end of a turn of this session, as v2 reports it."""

    def fits(frame: Frame) -> bool:
        update = member(frame, "params", "update")
        return about(frame) == talk.id and member(update, "state") == "idle" and "stopReason" in update

    return fits


def test_a_turn_ends_by_state_over_every_transport(house: House, transport: str) -> None:
    """003: the client receives the end of its own version."""
    talk = house.stage(transport, NAMELESS, LIFECYCLE).open()
    asked = talk.prompt("hello")
    prompt = talk.agent.asked()
    talk.agent.begin(prompt)
    talk.agent.say(talk.agent.chunk("hi"))
    talk.agent.end(prompt, "refusal")
    assert talk.client.response(asked)["result"]["stopReason"] == "refusal"


def after(talk: Talk, count: int) -> list[Frame]:
    """Return the frames about the session after its first `count` frames."""
    return talk.client.frames(talk.id)[count:]


@EVERY_V2
def test_idle_without_a_reason_stays_without_one_for_v2_and_is_an_end_for_the_others(
    house: House, agent: AgentText
) -> None:
    """003: `stop_reason` is optional there."""
    stage = house.stage("websocket", V2, agent)
    talk = stage.open()
    onlooker = stage.join(talk, NAMELESS)
    events = stage.rest().events(talk.id)
    talk.prompt("hello")
    prompt = talk.agent.asked()
    talk.agent.begin(prompt)
    talk.update("state_update", state="running")
    before = len(talk.client.frames(talk.id))
    talk.agent.say(talk.agent.state("idle"))
    events.until("turn_complete", stopReason="end_turn")
    onlooker.update("turn_complete", stopReason="end_turn")
    idle = talk.client.heard.until(
        lambda frame: member(frame, "params", "update", "state") == "idle" and frame in after(talk, before)
    )
    assert "stopReason" not in idle["params"]["update"]


@EVERY_V2
def test_a_failure_after_acceptance_is_told_by_the_idle_state(house: House, agent: AgentText) -> None:
    """003: for v1 the error of the prompt, for REST `turn_error`."""
    stage = house.stage("websocket", V2, agent)
    talk = stage.open()
    onlooker = stage.join(talk, NAMELESS)
    events = stage.rest().events(talk.id)
    asked = talk.prompt("fail")
    prompt = talk.agent.asked()
    talk.agent.begin(prompt)
    assert "result" in talk.client.response(asked)
    error = {"code": -32603, "message": "the model is gone"}
    talk.agent.say(talk.agent.state("idle", "error", error=error))
    idle = talk.update("state_update", state="idle", stopReason="error")
    assert idle["error"]["code"] == -32603
    assert idle["error"]["message"] == "the model is gone"
    assert events.until("turn_error")["data"]["agentError"]["message"] == "the model is gone"
    assert onlooker.update("turn_complete", stopReason="refusal")["error"]["message"] == "the model is gone"


@EVERY_V2
def test_a_whole_message_of_an_agent_stays_whole_for_v2_and_comes_in_pieces_for_v1(
    house: House, agent: AgentText
) -> None:
    """003: both forms, for agents as for users."""
    stage = house.stage("websocket", V2, agent)
    talk = stage.open()
    onlooker = stage.join(talk, NAMELESS)
    talk.prompt("hello")
    prompt = talk.agent.asked()
    talk.agent.begin(prompt)
    whole = {
        "sessionUpdate": "agent_message",
        "messageId": "a-9",
        "content": [text_block("all "), text_block("of it")],
    }
    talk.agent.say(whole)
    talk.agent.end(prompt)
    talk.update("state_update", state="idle", stopReason="end_turn")
    assert talk.update("agent_message")["content"] == whole["content"]
    assert "agent_message_chunk" not in kinds(talk.updates())
    onlooker.update("turn_complete")
    assert said(onlooker.updates()) == "all of it"


@STATEFUL
def test_a_turn_that_the_agent_begins_by_itself_is_told_by_states(house: House, agent: AgentText) -> None:
    """003: no prompt, so no `turn_complete`; its messages reach every client."""
    stage = house.stage("websocket", V2, agent)
    talk = stage.open()
    talk.client.notify("session/ready", {"sessionId": talk.id})
    onlooker = stage.join(talk, NAMELESS)
    talk.agent.say(talk.agent.state("running"), talk.agent.chunk("by myself"), talk.agent.state("idle", "end_turn"))
    talk.update("state_update", state="idle", stopReason="end_turn")
    assert states(talk, "state_update")[-2:] == ["running", "idle"]
    onlooker.update("agent_message_chunk")
    asked = onlooker.prompt("now I")
    prompt = talk.agent.asked()
    talk.agent.begin(prompt)
    talk.agent.end(prompt)
    onlooker.client.response(asked)
    assert kinds(onlooker.updates()).count("turn_complete") == 1


def test_news_from_the_background_leaves_the_session_idle(house: House, transport: str) -> None:
    """003: also before the first prompt."""
    stage = house.stage(transport, V2, PUBLISHED)
    talk = stage.open()
    talk.client.notify("session/ready", {"sessionId": talk.id})
    talk.agent.say({"sessionUpdate": "session_info_update", "title": "from behind"})
    talk.update("session_info_update", title="from behind")
    talk.prompt("hello")
    prompt = talk.agent.asked()
    talk.agent.begin(prompt)
    talk.agent.end(prompt)
    talk.update("state_update", state="idle", stopReason="end_turn")
    before = states(talk, "state_update")
    talk.agent.say(
        {"sessionUpdate": "tool_call_update", "toolCallId": "bg", "title": "Index", "status": "completed"}
    )
    talk.update("tool_call_update", toolCallId="bg")
    stage.open()
    assert states(talk, "state_update") == before


@EVERY_AGENT
def test_who_comes_to_a_running_session_learns_that_it_runs_and_hears_its_end(
    house: House, agent: AgentText
) -> None:
    """003: the state is sent after the history and before the answer."""
    stage = house.stage("websocket", V2, agent)
    talk = stage.open()
    talk.prompt("hello")
    prompt = talk.agent.asked()
    talk.agent.begin(prompt)
    talk.agent.say(talk.agent.chunk("so far"))
    talk.update("agent_message_chunk")
    onlooker = stage.join(talk, V2)
    assert states(onlooker, "state_update")[-1] == "running"
    assert "user_message" in kinds(onlooker.updates())
    talk.agent.end(prompt)
    onlooker.update("state_update", state="idle", stopReason="end_turn")


@EVERY_AGENT
def test_a_history_has_the_user_messages_with_their_ids_and_the_ends_of_turns(
    house: House, agent: AgentText
) -> None:
    """003."""
    stage = house.stage("websocket", V2, agent)
    talk = stage.open()
    for number, text in enumerate(("one", "two"), 1):
        talk.prompt(text)
        prompt = talk.agent.asked()
        talk.agent.begin(prompt, f"u-{number}")
        talk.agent.say(talk.agent.chunk(text, f"a-{number}"))
        talk.agent.end(prompt)
        talk.client.heard.several(is_idle(talk), number)
    later = stage.join(talk, V2)
    told = later.updates()
    live = [each for each in talk.updates() if each["sessionUpdate"] == "user_message"]
    again = [each for each in told if each["sessionUpdate"] == "user_message"]
    assert [each["content"] for each in again] == [[text_block("one")], [text_block("two")]]
    assert [each["messageId"] for each in again] == [each["messageId"] for each in live]
    if agent.is_accepting:
        assert [each["messageId"] for each in again] == ["u-1", "u-2"]
    ends = [each for each in told if each.get("state") == "idle" and each.get("stopReason") == "end_turn"]
    assert len(ends) >= 2
