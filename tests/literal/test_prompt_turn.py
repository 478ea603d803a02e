"""004, to the letter: the prompt turn of version 1, from the prompt to its answer, and how it is cancelled."""

from __future__ import annotations

import pytest
from tests.literal.agents import LIFECYCLE, PLAIN, PUBLISHED, AgentSession, AgentText, text_block
from tests.literal.clients import EDITOR, NAMELESS, V2, RawClient, ends, is_update, kinds, said
from tests.literal.heard import Frame, about, answers
from tests.literal.stages import House, Talk

REASONS = ("end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled")
PLAN: Frame = {
    "sessionUpdate": "plan",
    "entries": [{"content": "look", "priority": "high", "status": "in_progress"}],
}
CALL: Frame = {
    "sessionUpdate": "tool_call",
    "toolCallId": "call-1",
    "title": "Read notes",
    "kind": "read",
    "status": "pending",
}
OPEN_CALLS = {"call-pending": "pending", "call-running": "in_progress"}
EVERY_AGENT = pytest.mark.parametrize("agent", [PLAIN, LIFECYCLE, PUBLISHED], ids=lambda text: text.name)


def call_update(status: str, call_id: str = "call-1") -> Frame:
    return {"sessionUpdate": "tool_call_update", "toolCallId": call_id, "status": status}


def before(talk: Talk, response: Frame) -> list[Frame]:
    """The updates of the session that came before this answer."""
    frames = talk.client.heard.all()
    told = frames[: frames.index(response)]
    return [frame["params"]["update"] for frame in told if is_update(frame) and about(frame) == talk.id]


def test_a_turn_passes_as_the_agent_told_it_with_its_questions_in_their_place(house: House, transport: str) -> None:
    """004: plan, words, tool call, permission, file, result, words, answer."""
    talk = house.stage(transport, EDITOR, PLAIN).open()
    asked = talk.prompt("read the notes")
    agent = talk.agent
    prompt = agent.asked()
    assert prompt["params"]["prompt"] == [text_block("read the notes")]
    first = [PLAN, {"sessionUpdate": "agent_thought_chunk", "content": text_block("hm")}, CALL]
    agent.say(*first)
    question = agent.request_permission("call-1", "Read notes")
    request = talk.client.asked("session/request_permission", talk.id)
    assert [each["optionId"] for each in request["params"]["options"]] == ["yes", "no"]
    talk.client.answer(request, {"outcome": {"outcome": "selected", "optionId": "yes"}})
    assert agent.agent.told(question)["result"]["outcome"] == {"outcome": "selected", "optionId": "yes"}
    agent.say(call_update("in_progress"))
    path = str(talk.cwd / "notes.txt")
    reading = agent.agent.ask("fs/read_text_file", {"sessionId": agent.id, "path": path})
    request = talk.client.asked("fs/read_text_file", talk.id)
    assert request["params"]["path"] == path
    talk.client.answer(request, {"content": "unsaved text"})
    assert agent.agent.told(reading)["result"]["content"] == "unsaved text"
    done = call_update("completed") | {"content": [{"type": "content", "content": text_block("unsaved text")}]}
    last = [
        done,
        agent.chunk("All "),
        agent.chunk("read."),
        {"sessionUpdate": "usage_update", "used": 5, "size": 99},
    ]
    agent.say(*last)
    agent.end(prompt)
    assert talk.client.response(asked)["result"]["stopReason"] == "end_turn"
    told = [each for each in talk.updates() if each["sessionUpdate"] != "turn_complete"]
    assert told == [*first, call_update("in_progress"), *last]
    methods = [frame["method"] for frame in talk.client.frames(talk.id)]
    assert methods[3] == "session/request_permission"
    assert methods[5] == "fs/read_text_file"


@pytest.mark.parametrize("reason", REASONS)
@EVERY_AGENT
def test_a_turn_ends_with_the_agents_reason(house: House, agent: AgentText, reason: str) -> None:
    """004."""
    talk = house.stage("websocket", NAMELESS, agent).open()
    asked = talk.prompt("hello")
    prompt = talk.agent.asked()
    talk.agent.begin(prompt)
    talk.agent.end(prompt, reason)
    assert talk.client.response(asked)["result"]["stopReason"] == reason


def test_session_methods_before_initialize_are_refused(house: House) -> None:
    """004."""
    client = RawClient(house.served(PLAIN).daemon.socket())
    try:
        asked = client.request("session/new", {"cwd": str(house.folder()), "mcpServers": []})
        assert "error" in client.response(asked)
    finally:
        client.link.close()


def test_a_cancel_is_heard_while_the_prompt_runs_and_late_words_come_before_the_answer(
    house: House, transport: str
) -> None:
    """004."""
    talk = house.stage(transport, NAMELESS, PLAIN).open()
    asked = talk.prompt("work")
    prompt = talk.agent.asked()
    talk.agent.say(CALL, call_update("in_progress"), talk.agent.chunk("before "))
    talk.cancel()
    talk.agent.asked("session/cancel")
    talk.agent.say(call_update("completed"), talk.agent.chunk("after"))
    talk.agent.end(prompt, "cancelled")
    response = talk.client.response(asked)
    assert response["result"]["stopReason"] == "cancelled"
    assert said(before(talk, response)) == "before after"
    assert [each["status"] for each in talk.updates() if each.get("toolCallId") == "call-1"] == [
        "pending",
        "in_progress",
        "completed",
    ]


def answer_otherwise(agent: AgentSession, prompt: Frame) -> None:
    agent.end(prompt, "end_turn")


def answer_with_an_error(agent: AgentSession, prompt: Frame) -> None:
    if agent.text.is_accepting:
        agent.say(agent.state("idle", "error", error={"code": -32603, "message": "aborted"}))
    else:
        agent.agent.refuse(prompt, -32603, "aborted")


@EVERY_AGENT
@pytest.mark.parametrize("answer", [answer_otherwise, answer_with_an_error])
def test_after_a_cancel_the_turn_is_cancelled_whatever_the_agent_says(
    house: House, agent: AgentText, answer: object
) -> None:
    """004: an abort never appears as an error; the agent's own message is also stored."""
    stage = house.stage("websocket", NAMELESS, agent)
    talk = stage.open()
    events = stage.rest().events(talk.id)
    asked = talk.prompt("work")
    prompt = talk.agent.asked()
    talk.agent.begin(prompt)
    talk.cancel()
    talk.agent.asked("session/cancel")
    assert callable(answer)
    answer(talk.agent, prompt)
    assert talk.client.response(asked)["result"]["stopReason"] == "cancelled"
    assert talk.update("turn_complete")["stopReason"] == "cancelled"
    terminal = events.until("turn_complete")["data"]
    assert terminal["stopReason"] == "cancelled"
    if answer is answer_otherwise:
        assert terminal["agentStopReason"] == "end_turn"
    assert events.until("prompt_cancelled")["author"]


def test_after_a_cancel_the_turn_is_cancelled_on_every_transport(house: House, transport: str) -> None:
    """004."""
    talk = house.stage(transport, NAMELESS, PLAIN).open()
    asked = talk.prompt("work")
    prompt = talk.agent.asked()
    talk.cancel()
    talk.agent.asked("session/cancel")
    talk.agent.end(prompt, "end_turn")
    assert talk.client.response(asked)["result"]["stopReason"] == "cancelled"


def test_an_open_question_is_answered_cancelled_once_when_the_turn_is_cancelled(
    house: House, transport: str
) -> None:
    """004: the client answers it as it must; the agent receives one answer."""
    talk = house.stage(transport, NAMELESS, PLAIN).open()
    asked = talk.prompt("ask me")
    prompt = talk.agent.asked()
    question = talk.agent.request_permission()
    request = talk.client.asked("session/request_permission", talk.id)
    talk.cancel()
    talk.client.answer(request, {"outcome": {"outcome": "cancelled"}})
    assert talk.agent.agent.told(question)["result"]["outcome"] == {"outcome": "cancelled"}
    talk.agent.end(prompt, "cancelled")
    assert talk.client.response(asked)["result"]["stopReason"] == "cancelled"
    assert len([frame for frame in talk.agent.agent.heard.all() if answers(question)(frame)]) == 1


def with_open_calls(talk: Talk) -> Frame:
    """Return the prompt of a turn with two open tool calls and one completed."""
    agent = talk.agent
    prompt = agent.asked()
    agent.begin(prompt)
    first = "tool_call" if agent.text.version == 1 else "tool_call_update"
    for call_id in (*OPEN_CALLS, "call-done"):
        agent.say({"sessionUpdate": first, "toolCallId": call_id, "title": "Work", "status": "pending"})
    agent.say(call_update("in_progress", "call-running"), call_update("completed", "call-done"))
    return prompt


def last_statuses(updates: list[Frame]) -> Frame:
    return {each["toolCallId"]: each["status"] for each in updates if "toolCallId" in each}


CLOSED = {"call-done": "completed"}


@pytest.mark.parametrize(("client", "status"), [(NAMELESS, "failed"), (V2, "cancelled")], ids=["v1", "v2"])
def test_tool_calls_that_a_cancel_left_open_are_closed_before_the_end(
    house: House, transport: str, client: Frame, status: str
) -> None:
    """004: in the form of the client's version."""
    talk = house.stage(transport, client, PLAIN).open()
    asked = talk.prompt("work")
    prompt = with_open_calls(talk)
    talk.cancel()
    talk.agent.asked("session/cancel")
    talk.agent.end(prompt, "cancelled")
    if client is V2:
        talk.update("state_update", state="idle", stopReason="cancelled")
        end = "state_update"
    else:
        talk.client.response(asked)
        end = "turn_complete"
    told = talk.updates()
    assert last_statuses(told) == CLOSED | dict.fromkeys(OPEN_CALLS, status)
    closing = [place for place, each in enumerate(told) if each.get("status") == status]
    assert len(closing) == 2
    assert max(closing) < len(told) - 1
    assert told[-1]["sessionUpdate"] == end


@EVERY_AGENT
def test_tool_calls_that_a_cancel_left_open_are_closed_for_everybody_and_in_the_history(
    house: House, agent: AgentText
) -> None:
    """004: other viewers in either version, REST, and later clients."""
    stage = house.stage("websocket", NAMELESS, agent)
    talk = stage.open()
    live = {version: stage.join(talk, client) for version, client in ((1, NAMELESS), (2, V2))}
    events = stage.rest().events(talk.id)
    talk.prompt("work")
    prompt = with_open_calls(talk)
    talk.cancel()
    talk.agent.asked("session/cancel")
    talk.agent.end(prompt, "cancelled")
    events.until("turn_complete", stopReason="cancelled")
    live[1].update("turn_complete")
    live[2].update("state_update", state="idle", stopReason="cancelled")
    talk.update("turn_complete")
    failed, cancelled = (CLOSED | dict.fromkeys(OPEN_CALLS, word) for word in ("failed", "cancelled"))
    assert last_statuses(talk.updates()) == failed
    assert last_statuses(live[1].updates()) == failed
    assert last_statuses(live[2].updates()) == cancelled
    assert last_statuses(events.updates()) == failed
    assert last_statuses(stage.join(talk, NAMELESS).updates()) == failed
    assert last_statuses(stage.join(talk, V2).updates()) == cancelled


def test_a_cancel_of_a_v1_client_leaves_what_it_has_waiting(house: House, transport: str) -> None:
    """004: it is for the turn; the next prompt runs."""
    talk = house.stage(transport, NAMELESS, PLAIN).open()
    first = talk.prompt("first")
    prompt = talk.agent.asked()
    second = talk.prompt("second")
    talk.cancel()
    talk.agent.asked("session/cancel")
    talk.agent.end(prompt, "cancelled")
    assert talk.client.response(first)["result"]["stopReason"] == "cancelled"
    prompt = talk.agent.asked()
    talk.agent.say(talk.agent.chunk("for the second"))
    talk.agent.end(prompt)
    assert talk.client.response(second)["result"]["stopReason"] == "end_turn"
    assert talk.agent.prompts() == ["first", "second"]


def test_a_cancel_over_rest_is_told_and_ends_the_turn_once(house: House) -> None:
    """004, 002."""
    talk = house.rest_talk(PLAIN)
    prompt_id = talk.prompt("work")
    prompt = talk.agent.asked()
    assert talk.rest.ask("POST", f"/session/{talk.id}/cancel", {}).status == 204
    talk.agent.asked("session/cancel")
    talk.agent.end(prompt, "max_tokens")
    events = talk.events()
    terminal = events.terminal(prompt_id)["data"]
    assert (terminal["stopReason"], terminal["agentStopReason"]) == ("cancelled", "max_tokens")
    assert ends(events.heard.all()) == [prompt_id]
    told = [event["type"] for event in events.heard.all()]
    assert told.index("prompt_cancelled") < told.index("turn_complete")


def test_a_prompt_after_the_end_is_a_turn_of_its_own(house: House, transport: str) -> None:
    """004: and the messages of each come before its answer."""
    talk = house.stage(transport, NAMELESS, PLAIN).open()
    for text in ("one", "two"):
        asked = talk.prompt(text)
        prompt = talk.agent.asked()
        talk.agent.say(talk.agent.chunk(text))
        talk.agent.end(prompt)
        response = talk.client.response(asked)
        assert said(before(talk, response)).endswith(text)
    assert kinds(talk.updates()) == ["agent_message_chunk", "turn_complete"] * 2


@pytest.mark.parametrize("agent", [PLAIN, PUBLISHED], ids=["v1 agent", "v2 agent"])
def test_a_call_that_began_with_a_permission_request_is_announced_in_the_history(
    house: House, agent: AgentText
) -> None:
    """004: a client learns of a tool call by `tool_call`; updates of it follow."""
    stage = house.stage("websocket", NAMELESS, agent)
    talk = stage.open()
    asked = talk.prompt("delete it")
    prompt = talk.agent.asked()
    talk.agent.begin(prompt)
    question = talk.agent.request_permission("call-9", "Delete it")
    request = talk.client.asked("session/request_permission", talk.id)
    talk.client.answer(request, {"outcome": {"outcome": "selected", "optionId": "yes"}})
    talk.agent.agent.told(question)
    talk.agent.say(call_update("in_progress", "call-9"), call_update("completed", "call-9") | {"rawOutput": "gone"})
    talk.agent.end(prompt)
    talk.client.response(asked)
    joined = stage.join(talk, NAMELESS)
    told = [each for each in joined.updates() if each.get("toolCallId") == "call-9"]
    assert [each["sessionUpdate"] for each in told] == ["tool_call", "tool_call_update"]
    assert (told[0]["status"], told[1]["status"], told[1]["rawOutput"]) == ("in_progress", "completed", "gone")
    if agent is PLAIN:
        assert (told[0]["title"], told[0]["kind"]) == ("Delete it", "delete")
