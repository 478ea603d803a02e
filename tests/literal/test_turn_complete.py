"""000, to the letter: an agent that offers `turnComplete` reports at the end of every turn that it is complete.

The text has one capability, the agent's. So no client here requests anything.
"""

from __future__ import annotations

import pytest
from tests.literal.agents import MARKER, PLAIN, AgentSession
from tests.literal.clients import EDITOR, KNOWN, NAMELESS, UNKNOWN, V2, RawClient, kinds, said
from tests.literal.heard import Frame, about, answers, member
from tests.literal.stages import House, Talk

USAGE = {"totalTokens": 12, "inputTokens": 7, "outputTokens": 5}


def offers(initialized: Frame) -> Frame:
    """Return the agent's capability, in the position that the text names."""
    found: Frame = initialized["agentCapabilities"].get("sessionCapabilities") or {}
    return found


def of_turn(talk: Talk, request_id: int | str) -> list[Frame]:
    """Everything about the session, with the answer to this prompt."""
    is_answer = answers(request_id)
    frames = talk.client.heard.all()
    return [frame for frame in frames if is_answer(frame) or about(frame) == talk.id]


def markers(client: RawClient, session_id: str) -> list[Frame]:
    return [each for each in client.updates(session_id) if each["sessionUpdate"] == "turn_complete"]


def test_a_client_that_asked_for_nothing_is_offered_turn_complete(house: House, transport: str) -> None:
    """000: the capability is the agent's; a client may rely on it."""
    assert offers(house.stage(transport, NAMELESS, PLAIN).client.initialized)["turnComplete"] == {}


def test_a_client_with_a_name_that_nobody_knows_is_taken_at_the_texts_word(house: House) -> None:
    """000."""
    stage = house.stage("websocket", UNKNOWN, PLAIN)
    assert offers(stage.client.initialized)["turnComplete"] == {}
    talk = stage.open()
    asked = talk.prompt("hello")
    talk.agent.end(talk.agent.asked())
    talk.client.response(asked)
    assert len(markers(talk.client, talk.id)) == 1


@pytest.mark.parametrize("request_id", [77001, "77001"], ids=["number", "string"])
def test_a_turn_ends_with_one_marker_behind_its_updates_and_before_its_answer(
    house: House, transport: str, request_id: int | str
) -> None:
    """000."""
    talk = house.stage(transport, NAMELESS, PLAIN).open()
    talk.prompt("hello", request_id)
    agent = talk.agent
    prompt = agent.asked()
    agent.say(*(agent.chunk(f"{number} ") for number in range(20)))
    agent.end(prompt, "max_tokens")
    assert talk.client.response(request_id)["result"]["stopReason"] == "max_tokens"
    frames = of_turn(talk, request_id)
    assert [frame.get("method") for frame in frames] == ["session/update"] * 21 + [None]
    marker = frames[-2]["params"]["update"]
    assert said(talk.updates()) == "".join(f"{number} " for number in range(20))
    assert (marker["sessionUpdate"], marker["stopReason"]) == ("turn_complete", "max_tokens")
    assert marker["promptRequestId"] == request_id
    assert type(marker["promptRequestId"]) is type(request_id)


def test_each_turn_of_a_session_has_a_marker_of_its_own(house: House, transport: str) -> None:
    """000."""
    talk = house.stage(transport, NAMELESS, PLAIN).open()
    asked: list[int | str] = []
    for text in ("one", "two", "three"):
        asked.append(talk.prompt(text))
        talk.agent.end(talk.agent.asked())
        talk.client.response(asked[-1])
    assert [each["promptRequestId"] for each in markers(talk.client, talk.id)] == asked


def test_a_cancelled_turn_has_its_marker_too(house: House, transport: str) -> None:
    """000, 004."""
    talk = house.stage(transport, NAMELESS, PLAIN).open()
    asked = talk.prompt("work")
    prompt = talk.agent.asked()
    talk.cancel()
    talk.agent.asked("session/cancel")
    talk.agent.end(prompt, "cancelled")
    assert talk.client.response(asked)["result"]["stopReason"] == "cancelled"
    assert [(each["promptRequestId"], each["stopReason"]) for each in markers(talk.client, talk.id)] == [
        (asked, "cancelled")
    ]


def test_a_turn_that_fails_has_a_marker_with_a_readable_reason_and_the_error_before_the_answer(
    house: House, transport: str
) -> None:
    """000."""
    talk = house.stage(transport, NAMELESS, PLAIN).open()
    asked = talk.prompt("fail")
    prompt = talk.agent.asked()
    talk.agent.say(talk.agent.chunk("so far"))
    talk.agent.agent.refuse(prompt, -32603, "the model is gone")
    assert "error" in talk.client.response(asked)
    *_, marker, error = of_turn(talk, asked)
    assert marker["params"]["update"]["sessionUpdate"] == "turn_complete"
    assert marker["params"]["update"]["promptRequestId"] == asked
    assert marker["params"]["update"]["stopReason"] == "refusal"
    assert marker["params"]["update"]["error"] == error["error"]
    assert error["error"]["message"] == "the model is gone"


def test_a_prompt_that_is_refused_at_once_has_no_marker(house: House, transport: str) -> None:
    """000."""
    talk = house.stage(transport, NAMELESS, PLAIN).open()
    asked = talk.client.request("session/prompt", {"sessionId": talk.id, "prompt": "no list"})
    assert talk.client.response(asked)["error"]["code"] == -32602
    assert markers(talk.client, talk.id) == []


def test_a_released_client_that_does_not_have_it_is_neither_offered_nor_sent_it(
    house: House, transport: str
) -> None:
    """000: its turn ends by the answer, as it always did."""
    stage = house.stage(transport, KNOWN, PLAIN)
    assert "turnComplete" not in offers(stage.client.initialized)
    talk = stage.open()
    asked = talk.prompt("hello")
    prompt = talk.agent.asked()
    talk.agent.say(talk.agent.chunk("hi"))
    talk.agent.end(prompt)
    assert talk.client.response(asked)["result"]["stopReason"] == "end_turn"
    assert [frame.get("method") for frame in of_turn(talk, asked)] == ["session/update", None]
    assert kinds(talk.updates()) == ["agent_message_chunk"]


def test_who_looks_on_can_tell_whose_turn_ended(house: House, served_by: str) -> None:
    """000: the daemon's id of the prompt, which cannot be a request id of the reader's own."""
    stage = house.stage(served_by, NAMELESS, PLAIN)
    talk = stage.open()
    onlooker = stage.join(talk, NAMELESS)
    asked = talk.prompt("hello", "of-the-sender")
    talk.agent.end(talk.agent.asked())
    talk.client.response(asked)
    heard = onlooker.update("turn_complete")
    assert heard["stopReason"] == "end_turn"
    assert heard["_meta"]["turnwire"]["own"] is False
    assert heard["promptRequestId"] == heard["_meta"]["turnwire"]["promptId"] != "of-the-sender"
    [own] = markers(talk.client, talk.id)
    assert member(own, "_meta", "turnwire", "own") is not False


def test_the_end_of_another_clients_turn_never_has_an_id_that_the_reader_used(house: House, served_by: str) -> None:
    """000: clients count from the same number, so ids collide as a rule. Only its own end may release a client."""
    stage = house.stage(served_by, NAMELESS, PLAIN)
    talk = stage.open()
    reader = stage.join(talk, NAMELESS)
    reader.prompt("mine, which ends first", 424242)
    talk.agent.end(talk.agent.asked())
    reader.client.response(424242)
    talk.prompt("the same id from another connection", 424242)
    prompt = talk.agent.asked()
    reader.prompt("mine again, queued with the same digits", "424242")
    talk.agent.end(prompt)
    talk.client.response(424242)
    talk.agent.end(talk.agent.asked())
    reader.client.response("424242")
    own, strange, last = markers(reader.client, talk.id)
    assert (own["promptRequestId"], last["promptRequestId"]) == (424242, "424242")
    assert strange["promptRequestId"] == strange["_meta"]["turnwire"]["promptId"]
    # The history of a client that comes later has no id that it could be using either.
    late = stage.join(talk, NAMELESS)
    assert [each["promptRequestId"] for each in markers(late.client, talk.id)] == [
        each["_meta"]["turnwire"]["promptId"] for each in (own, strange, last)
    ]


def test_a_history_tells_the_end_of_each_turn_before_it_is_answered(house: House, served_by: str) -> None:
    """000."""
    stage = house.stage(served_by, NAMELESS, PLAIN)
    talk = stage.open()
    for text in ("one", "two"):
        asked = talk.prompt(text)
        prompt = talk.agent.asked()
        talk.agent.say(talk.agent.chunk(f"to {text}"))
        talk.agent.end(prompt)
        talk.client.response(asked)
    later = stage.join(talk, NAMELESS)
    told = [each for each in later.updates() if each["sessionUpdate"] != "session_info_update"]
    assert kinds(told) == ["user_message_chunk", "agent_message_chunk", "turn_complete"] * 2
    ends = [each["_meta"]["turnwire"] for each in told if each["sessionUpdate"] == "turn_complete"]
    assert [each["own"] for each in ends] == [False, False]
    assert len({each["promptId"] for each in ends}) == 2


def test_a_queued_prompt_that_is_removed_does_not_look_like_the_end_of_the_running_one(
    house: House, served_by: str
) -> None:
    """000: its end is reported to its sender only."""
    stage = house.stage(served_by, NAMELESS, PLAIN)
    talk = stage.open()
    onlooker = stage.join(talk, NAMELESS)
    rest = stage.rest()
    running = talk.prompt("runs")
    prompt = talk.agent.asked()
    waiting = talk.prompt("waits")
    events = rest.events(talk.id)
    added = events.until("pending_prompt_added")["data"]["promptId"]
    assert rest.ask("DELETE", f"/session/{talk.id}/pending-prompts/{added}").json() == {"removed": True}
    assert talk.client.response(waiting)["result"]["stopReason"] == "cancelled"
    assert [each["promptRequestId"] for each in markers(talk.client, talk.id)] == [waiting]
    talk.agent.end(prompt)
    talk.client.response(running)
    onlooker.update("turn_complete")
    assert [each["promptRequestId"] for each in markers(talk.client, talk.id)] == [waiting, running]
    [seen] = markers(onlooker.client, talk.id)
    assert seen["promptRequestId"] == seen["_meta"]["turnwire"]["promptId"]


def end_marker_first(agent: AgentSession, prompt: Frame) -> None:
    agent.end(prompt, usage=USAGE)


def end_answer_first(agent: AgentSession, prompt: Frame) -> None:
    agent.agent.answer(prompt, {"stopReason": "end_turn", "usage": USAGE})
    agent.say(agent.marker(prompt, "end_turn"))


@pytest.mark.parametrize("end", [end_marker_first, end_answer_first])
@pytest.mark.parametrize("client", [NAMELESS, V2], ids=["v1", "v2"])
def test_the_usage_in_an_answer_beside_a_marker_is_kept(house: House, client: Frame, end: object) -> None:
    """000: whichever of them comes first."""
    stage = house.stage("websocket", client, MARKER)
    talk = stage.open()
    events = stage.rest().events(talk.id)
    asked = talk.prompt("count")
    prompt = talk.agent.asked()
    talk.agent.say(talk.agent.chunk("hi"))
    assert callable(end)
    end(talk.agent, prompt)
    terminal = events.until("turn_complete")["data"]
    assert (terminal["stopReason"], terminal["usage"]) == ("end_turn", USAGE)
    if client is V2:
        assert talk.update("state_update", state="idle", stopReason="end_turn")["usage"] == USAGE
    else:
        assert talk.client.response(asked)["result"]["usage"] == USAGE


@pytest.mark.parametrize("way", ["http", "websocket", "stdio"])
def test_an_agents_own_marker_reaches_the_client_with_the_clients_id(house: House, way: str) -> None:
    """000: the id of the request that the client made, never the one that the agent got; and once."""
    talk = house.stage(way, NAMELESS, MARKER).open()
    asked = talk.prompt("hello", "mine")
    prompt = talk.agent.asked()
    assert prompt["id"] != "mine"
    talk.agent.say(talk.agent.chunk("hi"))
    talk.agent.end(prompt)
    assert talk.client.response(asked)["result"]["stopReason"] == "end_turn"
    assert [each["promptRequestId"] for each in markers(talk.client, talk.id)] == ["mine"]


@pytest.mark.parametrize("name", ["promptRequestId", "nothing"])
def test_a_client_settles_a_turn_whose_agent_never_sends_its_marker(
    house: House, transport: str, name: str
) -> None:
    """000: the agent offers `turnComplete` and answers the prompt, and the marker does not come."""
    talk = house.stage(transport, NAMELESS, MARKER).open()
    asked = talk.prompt("hello")
    prompt = talk.agent.asked()
    talk.agent.say(talk.agent.chunk("hi"))
    talk.agent.agent.answer(prompt, {"stopReason": "end_turn"})
    talk.update("agent_message_chunk")
    which = {"promptRequestId": asked} if name == "promptRequestId" else {}
    assert talk.client.call("_turnwire/session/settle", {"sessionId": talk.id, **which}) == {}
    assert talk.client.response(asked)["result"]["stopReason"] == "end_turn"
    assert [each["promptRequestId"] for each in markers(talk.client, talk.id)] == [asked]
    again = talk.client.request("_turnwire/session/settle", {"sessionId": talk.id, "promptRequestId": asked})
    assert talk.client.response(again)["error"]["code"] == -32002


CHUNKS = 321
REQUESTS = {
    "fs/read_text_file": {"path": "/nowhere/notes.txt"},
    "terminal/create": {"command": "true"},
}


@pytest.mark.parametrize("method", REQUESTS)
def test_a_file_or_terminal_request_keeps_its_place_behind_what_was_said_before_it(
    house: House, transport: str, method: str
) -> None:
    """000, 004."""
    talk = house.stage(transport, EDITOR, PLAIN).open()
    asked = talk.prompt("read it")
    agent = talk.agent
    prompt = agent.asked()
    fetch = agent.agent.request(method, {"sessionId": agent.id, **REQUESTS[method]})
    agent.agent.send(*(agent.update(agent.chunk(f"{number} ")) for number in range(CHUNKS)), fetch)
    request = talk.client.asked(method, talk.id)
    frames = talk.client.frames(talk.id)
    assert (
        kinds([each["params"]["update"] for each in frames[: frames.index(request)]])
        == ["agent_message_chunk"] * CHUNKS
    )
    talk.client.answer(request, {"content": "all of it", "terminalId": "t-1"})
    told = agent.agent.told(fetch["id"])
    assert told["result"]["terminalId" if method == "terminal/create" else "content"] in ("all of it", "t-1")
    agent.end(prompt)
    talk.client.response(asked)


def test_an_update_of_a_kind_that_nobody_knows_ends_nothing(house: House, transport: str) -> None:
    """000."""
    talk = house.stage(transport, NAMELESS, PLAIN).open()
    asked = talk.prompt("hello")
    prompt = talk.agent.asked()
    talk.agent.say({"sessionUpdate": "something_new", "of": 1}, talk.agent.chunk("still here"))
    talk.agent.end(prompt)
    assert talk.client.response(asked)["result"]["stopReason"] == "end_turn"
    assert said(talk.updates()) == "still here"
