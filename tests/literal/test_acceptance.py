"""003, to the letter: with an agent that accepts prompts itself, acceptance is the agent's decision.

It decides whether, where and under which id a prompt enters the conversation, and the handling of one that arrives
while it works. Every reader of the session sees it as the agent reported it.
"""

from __future__ import annotations

from itertools import permutations

import pytest
from tests.literal.agents import LIFECYCLE, PLAIN, PUBLISHED, AgentSession, AgentText, text_block
from tests.literal.clients import NAMELESS, V2, EventReader, RestClient, ends, kinds
from tests.literal.heard import Frame, answers
from tests.literal.stages import House, RestTalk, Stage, Talk

EVERY_V2 = pytest.mark.parametrize("agent", [LIFECYCLE, PUBLISHED], ids=["state_change", "state_update"])
ORDERS = list(permutations(("user_message", "response", "running")))
CHUNKS = 300


class Room:
    """One session of a v2 agent with all kinds of readers: v2, v1, and REST in both shapes."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.sender = stage.open()
        self.v2 = stage.join(self.sender, V2)
        self.v1 = stage.join(self.sender, NAMELESS)
        self.rest: RestClient = stage.rest()
        self.events = {query: self.rest.events(self.sender.id, query=query) for query in ("", "?acp=2")}

    @property
    def agent(self) -> AgentSession:
        return self.sender.agent

    def readers(self) -> list[Talk | EventReader]:
        return [self.sender, self.v2, self.v1, *self.events.values()]

    def wait_for(self, text: str) -> None:
        """Wait until every reader has received a text."""
        for talk in (self.sender, self.v2, self.v1):
            talk.update("agent_message_chunk", content=text_block(text))
        for events in self.events.values():
            events.heard.until(lambda event: f'"{text}"' in event["sse"]["data"], what=f"{text} on REST")

    def user_messages(self) -> list[list[Frame]]:
        """Return each reader's user messages."""
        return [[each for each in reader.updates() if is_user(each)] for reader in self.readers()]


def is_user(update: Frame) -> bool:
    return update["sessionUpdate"].startswith("user_message")


def accepting(agent: AgentSession, prompt: Frame, message_id: str, order: tuple[str, ...]) -> list[Frame]:
    """Return the first three messages about a prompt, in this order."""
    words = {
        "user_message": agent.update(agent.user_message(prompt, message_id)),
        "response": agent.accept(prompt, message_id),
        "running": agent.update(agent.state("running")),
    }
    return [words[each] for each in order]


@EVERY_V2
@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_a_prompt_is_answered_with_the_agents_id_in_whatever_order_it_was_accepted(
    house: House, agent: AgentText, order: tuple[str, ...]
) -> None:
    """003: the order of user message, response and running is free."""
    talk = house.stage("websocket", V2, agent).open()
    asked = talk.prompt("hello")
    session = talk.agent
    prompt = session.asked()
    session.agent.send(*accepting(session, prompt, "of-the-agent", order))
    session.say(session.chunk("hi"))
    session.end(prompt)
    assert talk.client.response(asked)["result"]["messageId"] == "of-the-agent"
    talk.update("state_update", state="idle", stopReason="end_turn")
    users = [each for each in talk.updates() if is_user(each)]
    assert [(each["sessionUpdate"], each["messageId"], each["content"]) for each in users] == [
        ("user_message", "of-the-agent", [text_block("hello")])
    ]


def test_acceptance_is_the_agents_on_every_transport(house: House, transport: str) -> None:
    """003: no answer and no update precede the agent's acceptance."""
    stage = house.stage(transport, V2, PUBLISHED)
    talk = stage.open()
    asked = talk.prompt("hello")
    prompt = talk.agent.asked()
    stage.open()
    assert talk.client.heard.find(answers(asked)) is None
    assert not [each for each in talk.updates() if is_user(each)]
    talk.agent.begin(prompt, "of-the-agent")
    assert talk.client.response(asked)["result"]["messageId"] == "of-the-agent"
    assert talk.update("user_message")["messageId"] == "of-the-agent"
    talk.agent.end(prompt)
    talk.update("state_update", state="idle", stopReason="end_turn")


@EVERY_V2
def test_a_prompt_that_is_accepted_three_hundred_pieces_later_stands_where_the_agent_put_it(
    house: House, agent: AgentText
) -> None:
    """003: for the sender, for other viewers, and on REST in either shape."""
    room = Room(house.stage("websocket", V2, agent))
    asked = room.sender.prompt("hello")
    session = room.agent
    prompt = session.asked()
    session.say(session.state("running"), *(session.chunk(f"{number} ", "a-early") for number in range(CHUNKS)))
    room.wait_for(f"{CHUNKS - 1} ")
    assert room.sender.client.heard.find(answers(asked)) is None
    assert room.user_messages() == [[]] * 5
    session.say(session.user_message(prompt, "of-the-agent"), session.chunk("late ", "a-late"))
    session.agent.send(session.accept(prompt, "of-the-agent"))
    assert room.sender.client.response(asked)["result"]["messageId"] == "of-the-agent"
    session.end(prompt)
    for events in room.events.values():
        events.until("turn_complete", stopReason="end_turn")
    room.wait_for("late ")
    for reader in room.readers():
        told = [each["sessionUpdate"].removesuffix("_chunk") for each in reader.updates()]
        spoken = [each for each in told if each in ("user_message", "agent_message")]
        assert spoken == ["agent_message"] * CHUNKS + ["user_message", "agent_message"]
    assert {each["messageId"] for told in room.user_messages() for each in told} == {"of-the-agent"}


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_a_v1_client_of_a_v2_agent_is_answered_at_the_end_in_whatever_order_it_was_accepted(
    house: House, order: tuple[str, ...]
) -> None:
    """003, 004: and the messages before the acceptance belong to its turn."""
    talk = house.stage("websocket", NAMELESS, PUBLISHED).open()
    asked = talk.prompt("hello")
    session = talk.agent
    prompt = session.asked()
    words = accepting(session, prompt, "u-1", order)
    session.agent.send(words[0], session.update(session.chunk("one ")), words[1])
    session.agent.send(session.update(session.chunk("two ")), words[2])
    session.say(session.chunk("three"))
    session.end(prompt)
    assert talk.client.response(asked)["result"]["stopReason"] == "end_turn"
    assert kinds(talk.updates()) == ["agent_message_chunk"] * 3 + ["turn_complete"]


@EVERY_V2
def test_a_prompt_that_the_agent_refuses_is_an_error_and_leaves_no_user_message(
    house: House, agent: AgentText
) -> None:
    """003, 002: its code and its message, to the sender and on REST; the record retains the text."""
    room = Room(house.stage("websocket", V2, agent))
    asked = room.sender.prompt("not this")
    room.agent.agent.refuse(room.agent.asked(), -32042, "I will not")
    error = room.sender.client.response(asked)["error"]
    assert (error["code"], error["message"]) == (-32042, "I will not")
    refused = [events.until("turn_error")["data"] for events in room.events.values()]
    for each in refused:
        assert (each["agentError"]["code"], each["agentError"]["message"]) == (-32042, "I will not")
    record = room.rest.get(f"/session/{room.sender.id}/turns/{refused[0]['promptId']}")
    assert (record["state"], record["promptText"]) == ("error", "not this")
    room.sender.prompt("but this")
    prompt = room.agent.asked()
    room.agent.begin(prompt, "u-2")
    room.agent.say(room.agent.chunk("yes"))
    room.agent.end(prompt)
    room.wait_for("yes")
    assert {len(told) for told in room.user_messages()} == {1}
    assert {str(each["content"]) for told in room.user_messages() for each in told} <= {
        str([text_block("but this")]),
        str(text_block("but this")),
    }


@EVERY_V2
@pytest.mark.parametrize("client", [NAMELESS, V2], ids=["v1", "v2"])
def test_a_refusal_has_the_agents_code_for_every_client_and_one_end(
    house: House, client: Frame, agent: AgentText
) -> None:
    """003: also when the agent had begun to work and goes idle for it."""
    stage = house.stage("websocket", client, agent)
    talk = stage.open()
    events = stage.rest().events(talk.id)
    asked = talk.prompt("not this")
    prompt = talk.agent.asked()
    talk.agent.say(talk.agent.state("running"))
    talk.agent.agent.refuse(prompt, -32042, "I will not")
    talk.agent.say(talk.agent.state("idle", "error", error={"code": -32042, "message": "I will not"}))
    assert talk.client.response(asked)["error"]["code"] == -32042
    first = events.until("turn_error")["data"]["promptId"]
    talk.prompt("but this")
    prompt = talk.agent.asked()
    talk.agent.begin(prompt, "u-2")
    talk.agent.end(prompt)
    second = events.until("turn_complete")["data"]["promptId"]
    assert ends(events.heard.all()) == [first, second]


@EVERY_V2
def test_a_prompt_over_rest_that_the_agent_refuses_is_a_turn_error_behind_the_202(
    house: House, agent: AgentText
) -> None:
    """002, 003."""
    talk = house.rest_talk(agent)
    prompt_id = talk.prompt("not this")
    talk.agent.agent.refuse(talk.agent.asked(), -32042, "I will not")
    events = talk.events()
    terminal = events.terminal(prompt_id)
    assert terminal["type"] == "turn_error"
    assert terminal["data"]["agentError"]["code"] == -32042
    assert terminal["data"]["agentError"]["message"] == "I will not"
    assert not [each for each in events.updates() if is_user(each)]
    assert talk.turn(prompt_id)["promptText"] == "not this"


def begun(talk: Talk) -> Frame:
    """Return a first prompt that the agent works on."""
    talk.prompt("first")
    prompt = talk.agent.asked(words="first")
    talk.agent.begin(prompt, "u-1")
    talk.agent.say(talk.agent.chunk("working", "a-1"))
    return prompt


@EVERY_V2
def test_a_second_prompt_goes_to_a_v2_agent_at_once_and_may_join_the_work(house: House, agent: AgentText) -> None:
    """003: one idle, and each prompt has its own answer and its own end on REST."""
    stage = house.stage("websocket", V2, agent)
    talk = stage.open()
    events = stage.rest().events(talk.id)
    begun(talk)
    second = talk.prompt("second")
    joined = talk.agent.asked(words="second")
    talk.agent.say(talk.agent.user_message(joined, "u-2"))
    talk.agent.agent.send(talk.agent.accept(joined, "u-2"))
    talk.agent.say(talk.agent.chunk("for both", "a-2"))
    assert talk.client.response(second)["result"]["messageId"] == "u-2"
    talk.agent.say(talk.agent.state("idle", "end_turn"))
    talk.update("state_update", state="idle", stopReason="end_turn")
    terminals = events.heard.several(lambda event: event["type"] == "turn_complete", 2)
    assert {event["data"]["stopReason"] for event in terminals} == {"end_turn"}
    assert len(set(ends(terminals))) == 2
    stage.open()
    assert len(ends(events.heard.all())) == 2
    users = [each["messageId"] for each in talk.updates() if is_user(each)]
    assert users == ["u-1", "u-2"]


def test_a_second_prompt_goes_to_a_v2_agent_at_once_on_every_transport(house: House, transport: str) -> None:
    """003."""
    talk = house.stage(transport, V2, PUBLISHED).open()
    first = begun(talk)
    second = talk.prompt("second")
    prompt = talk.agent.asked(words="second")
    assert talk.client.heard.find(answers(second)) is None
    talk.agent.begin(prompt, "u-2")
    assert talk.client.response(second)["result"]["messageId"] == "u-2"
    talk.agent.end(first)
    talk.update("state_update", state="idle", stopReason="end_turn")


@EVERY_V2
def test_a_second_prompt_that_the_agent_holds_is_not_ended_by_the_end_of_the_first(
    house: House, agent: AgentText
) -> None:
    """003: inserted at the next break point, it has a separate idle."""
    stage = house.stage("websocket", V2, agent)
    talk = stage.open()
    events = stage.rest().events(talk.id)
    first = begun(talk)
    second = talk.prompt("second")
    held = talk.agent.asked(words="second")
    talk.agent.end(first, "max_tokens")
    one = events.until("turn_complete")["data"]
    assert one["stopReason"] == "max_tokens"
    assert talk.client.heard.find(answers(second)) is None
    talk.agent.begin(held, "u-2")
    talk.agent.say(talk.agent.chunk("now you", "a-2"))
    talk.agent.end(held, "end_turn")
    assert talk.client.response(second)["result"]["messageId"] == "u-2"
    two = events.heard.several(lambda event: event["type"] == "turn_complete", 2)[-1]["data"]
    assert two["stopReason"] == "end_turn"
    assert ends(events.heard.all()) == [one["promptId"], two["promptId"]]


@EVERY_V2
def test_a_second_prompt_that_the_agent_refuses_leaves_the_first_alone(house: House, agent: AgentText) -> None:
    """003."""
    stage = house.stage("websocket", V2, agent)
    talk = stage.open()
    events = stage.rest().events(talk.id)
    first = begun(talk)
    second = talk.prompt("second")
    talk.agent.agent.refuse(talk.agent.asked(words="second"), -32043, "one at a time")
    assert talk.client.response(second)["error"]["code"] == -32043
    refused = events.until("turn_error")["data"]
    assert refused["agentError"]["message"] == "one at a time"
    talk.agent.say(talk.agent.chunk("still there", "a-1"))
    talk.agent.end(first)
    done = events.until("turn_complete")["data"]
    assert done["stopReason"] == "end_turn"
    assert ends(events.heard.all()) == [refused["promptId"], done["promptId"]]


def test_over_rest_a_second_prompt_waits_unless_the_agent_is_to_decide(house: House) -> None:
    """002, 003: `whenBusy: "agent"` hands it over at once."""
    talk = house.rest_talk(PUBLISHED)
    first = talk.prompt("first")
    prompt = talk.agent.asked()
    talk.agent.begin(prompt)
    second = talk.prompt("second")
    third = talk.prompt("third", whenBusy="agent")
    joined = talk.agent.asked(words="third")
    assert talk.agent.prompts() == ["first", "third"]
    talk.agent.begin(joined, "u-3")
    talk.agent.end(prompt)
    events = talk.events()
    events.terminal(first)
    events.terminal(third)
    last = talk.agent.asked(words="second")
    talk.agent.begin(last, "u-2")
    talk.agent.end(last)
    events.terminal(second)
    assert sorted(ends(events.heard.all())) == sorted([first, second, third])


def test_over_rest_a_turn_that_waits_names_its_request_although_the_agent_asked_later(house: House) -> None:
    """003: the agent states `requires_action` first and sends the request after it."""
    talk = house.rest_talk(PUBLISHED)
    talk.prompt("ask me")
    prompt = talk.agent.asked()
    talk.agent.begin(prompt)
    events = talk.events()
    talk.agent.say(talk.agent.state("requires_action"))
    assert "waitsFor" not in events.until("state_changed", state="requires_action")["data"]
    asked = talk.agent.request_permission()
    request_id = events.until("permission_request")["data"]["requestId"]
    events.until(
        "state_changed", state="requires_action", waitsFor=[{"requestId": request_id, "kind": "permission"}]
    )
    answer = {"outcome": {"outcome": "selected", "optionId": "yes"}}
    assert talk.rest.ask("POST", f"/session/{talk.id}/permission/{request_id}", answer).status == 200
    talk.agent.agent.told(asked)
    talk.agent.end(prompt)
    assert events.until("turn_complete")["data"]["stopReason"] == "end_turn"


def test_a_second_prompt_of_a_v1_client_waits_for_its_turn(house: House, transport: str) -> None:
    """004: v1 cannot express two concurrent prompts; a v2 agent changes nothing for its client."""
    stage = house.stage(transport, NAMELESS, PUBLISHED)
    talk = stage.open()
    one = talk.prompt("first")
    prompt = talk.agent.asked()
    talk.agent.begin(prompt)
    two = talk.prompt("second")
    stage.open()
    assert talk.agent.prompts() == ["first"]
    talk.agent.end(prompt)
    assert talk.client.response(one)["result"]["stopReason"] == "end_turn"
    prompt = talk.agent.asked()
    talk.agent.begin(prompt, "u-2")
    talk.agent.end(prompt, "max_tokens")
    assert talk.client.response(two)["result"]["stopReason"] == "max_tokens"


@EVERY_V2
def test_a_cancel_of_a_v2_client_takes_back_what_the_agent_has_not_inserted(house: House, agent: AgentText) -> None:
    """003: the agent answers the held one with -32800; the work ends cancelled; each has one end."""
    stage = house.stage("websocket", V2, agent)
    talk = stage.open()
    events = stage.rest().events(talk.id)
    begun(talk)
    second = talk.prompt("second")
    held = talk.agent.asked(words="second")
    talk.cancel()
    talk.agent.asked("session/cancel")
    talk.agent.agent.refuse(held, -32800, "cancelled")
    talk.agent.say(talk.agent.state("idle", "cancelled"))
    assert talk.client.response(second)["error"]["code"] == -32800
    talk.update("state_update", state="idle", stopReason="cancelled")
    events.heard.several(lambda event: bool(ends([event])), 2)
    assert len(set(ends(events.heard.all()))) == len(ends(events.heard.all())) == 2
    assert not [each for each in talk.updates() if is_user(each) and each["content"] == [text_block("second")]]


def test_a_cancel_of_a_v2_client_takes_back_what_waits_for_a_v1_agent(house: House, transport: str) -> None:
    """003: the agent never receives it."""
    stage = house.stage(transport, V2, PLAIN)
    talk = stage.open()
    talk.prompt("first")
    prompt = talk.agent.asked()
    second = talk.prompt("second")
    talk.cancel()
    talk.agent.asked("session/cancel")
    talk.agent.end(prompt, "cancelled")
    assert talk.client.response(second)["error"]["code"] == -32800
    talk.update("state_update", state="idle", stopReason="cancelled")
    stage.open()
    assert talk.agent.prompts() == ["first"]


def test_a_cancel_leaves_what_another_client_has_waiting(house: House, served_by: str) -> None:
    """003: the same client's only."""
    stage = house.stage(served_by, V2, PLAIN)
    talk = stage.open()
    other = stage.join(talk, V2)
    talk.prompt("first")
    prompt = talk.agent.asked()
    theirs = other.prompt("theirs")
    stage.rest().events(talk.id).until("pending_prompt_added")
    talk.cancel()
    talk.agent.asked("session/cancel")
    talk.agent.end(prompt, "cancelled")
    talk.agent.end(talk.agent.asked(words="theirs"))
    assert "messageId" in other.client.response(theirs)["result"]
    other.update("state_update", state="idle", stopReason="end_turn")


@EVERY_V2
def test_a_prompt_that_was_never_inserted_shows_no_message_but_its_record_keeps_the_text(
    house: House, agent: AgentText
) -> None:
    """002, 003: it is cancelled before the agent answered."""
    talk = house.rest_talk(agent)
    prompt_id = talk.prompt("never mind")
    prompt = talk.agent.asked()
    assert talk.rest.ask("POST", f"/session/{talk.id}/cancel", {}).status == 204
    talk.agent.asked("session/cancel")
    talk.agent.agent.refuse(prompt, -32800, "cancelled")
    events = talk.events()
    events.terminal(prompt_id)
    assert not [each for each in events.updates() if is_user(each)]
    record = talk.turn(prompt_id)
    assert (record["state"], record["promptText"]) == ("cancelled", "never mind")


@EVERY_V2
def test_the_agents_own_message_id_is_on_rest_too(house: House, agent: AgentText) -> None:
    """002, 003: and the message follows the earlier updates."""
    talk: RestTalk = house.rest_talk(agent)
    prompt_id = talk.prompt("hello")
    prompt = talk.agent.asked()
    talk.agent.say(talk.agent.state("running"), talk.agent.chunk("thinking aloud", "a-0"))
    talk.agent.begin(prompt, "of-the-agent")
    talk.agent.say(talk.agent.chunk("hi", "a-1"))
    talk.agent.end(prompt)
    for query in ("", "?acp=2"):
        events = talk.events(query=query)
        events.terminal(prompt_id)
        spoken = [each for each in events.updates() if each["sessionUpdate"] != "state_update"]
        assert [each["messageId"] for each in spoken] == ["a-0", "of-the-agent", "a-1"]
