"""002, to the letter: a prompt over REST is accepted at once, and its end is an event that every reader
receives.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, cast

import pytest
from tests.literal.agents import LIFECYCLE, PLAIN, PUBLISHED, AgentText, RawAgent, text_block
from tests.literal.clients import NAMELESS, TERMINALS, EventReader, ends, kinds
from tests.literal.heard import Frame
from tests.literal.stages import House, RestTalk

STRICT = ("--when-busy", "reject", "--no-blocking")
EVERY_AGENT = pytest.mark.parametrize("agent", [PLAIN, LIFECYCLE, PUBLISHED], ids=lambda text: text.name)


def played(talk: RestTalk, text: str = "hello", **more: Any) -> str:
    """Run one whole turn with a text chunk and a tool call; return its `promptId`."""
    prompt_id = talk.prompt(text, **more)
    agent = talk.agent
    prompt = agent.asked(words=text)
    agent.begin(prompt, f"u-{prompt_id}")
    agent.say(agent.chunk("hi", f"a-{prompt_id}"), *tool_call(agent.text, f"call-{prompt_id}"))
    agent.end(prompt)
    return prompt_id


def tool_call(text: AgentText, call_id: str) -> list[Frame]:
    """Send a tool call from its announcement to its end, in the version of the agent."""
    first = "tool_call" if text.version == 1 else "tool_call_update"
    return [
        {"sessionUpdate": first, "toolCallId": call_id, "title": "Look", "kind": "read", "status": "pending"},
        {"sessionUpdate": "tool_call_update", "toolCallId": call_id, "status": "in_progress"},
        {"sessionUpdate": "tool_call_update", "toolCallId": call_id, "status": "completed"},
    ]


def of_turn(reader: EventReader, prompt_id: str) -> list[Frame]:
    return [event for event in reader.heard.all() if event.get("promptId") == prompt_id]


@EVERY_AGENT
def test_a_prompt_is_accepted_before_the_agent_has_said_anything(house: House, agent: AgentText) -> None:
    """002."""
    talk = house.rest_talk(agent)
    reply = talk.rest.post_prompt(talk.id, "take your time")
    assert reply.status == 202
    assert isinstance(reply.json()["promptId"], str)
    prompt = talk.agent.asked()
    talk.agent.begin(prompt)
    talk.agent.end(prompt)
    assert talk.events().terminal(reply.json()["promptId"])["data"]["stopReason"] == "end_turn"


@EVERY_AGENT
def test_everybody_hears_the_same_events_and_one_end_behind_them_all(house: House, agent: AgentText) -> None:
    """002."""
    talk = house.rest_talk(agent)
    sender, passive = talk.events(), talk.events()
    prompt_id = played(talk)
    for reader in (sender, passive):
        terminal = reader.terminal(prompt_id)
        assert (terminal["type"], terminal["data"]["stopReason"]) == ("turn_complete", "end_turn")
        assert of_turn(reader, prompt_id)[-1] == terminal
        assert ends(reader.heard.all()) == [prompt_id]
    assert [event["id"] for event in of_turn(sender, prompt_id)] == [
        event["id"] for event in of_turn(passive, prompt_id)
    ]


def test_a_turn_that_fails_ends_with_turn_error(house: House) -> None:
    """002."""
    talk = house.rest_talk(PLAIN)
    prompt_id = talk.prompt("fail")
    talk.agent.agent.refuse(talk.agent.asked(), -32603, "the model is gone")
    terminal = talk.events().terminal(prompt_id)
    assert terminal["type"] == "turn_error"
    assert terminal["data"]["sessionId"] == talk.id
    assert isinstance(terminal["data"]["code"], str)
    assert isinstance(terminal["data"]["message"], str)


def test_the_loss_of_the_prompting_client_does_not_touch_the_turn(house: House) -> None:
    """002: its connection is closed with the 202."""
    talk = house.rest_talk(PLAIN)
    prompt_id = talk.prompt("work")
    prompt = talk.agent.asked()
    talk.rest.close()
    talk.agent.end(prompt)
    assert talk.events().terminal(prompt_id)["type"] == "turn_complete"


REFUSED: list[tuple[str, Any, int]] = [
    ("/session/nobody-knows-it/prompt", {"prompt": [text_block("x")]}, 404),
    ("/session/{id}/prompt", {"prompt": []}, 400),
    ("/session/{id}/prompt", {"prompt": ["x"]}, 400),
    ("/session/{id}/prompt", {"words": "x"}, 400),
    ("/session/{id}/prompt", [], 400),
]


@pytest.mark.parametrize(("path", "body", "status"), REFUSED)
def test_a_submission_that_is_wrong_is_refused_at_once_and_starts_nothing(
    house: House, path: str, body: Any, status: int
) -> None:
    """002."""
    talk = house.rest_talk(PLAIN)
    reply = talk.rest.ask("POST", path.format(id=talk.id), body)
    assert reply.status == status
    assert isinstance(reply.json()["error"], str)
    played(talk, "right")
    assert talk.agent.prompts() == ["right"]


def test_a_busy_session_refuses_where_the_daemon_is_set_so(house: House) -> None:
    """002: the issue's own answer, and nothing is started."""
    talk = house.rest_talk(PLAIN, *STRICT)
    first = talk.prompt("first")
    prompt = talk.agent.asked()
    assert talk.rest.post_prompt(talk.id, "second").status == 409
    talk.agent.end(prompt)
    events = talk.events()
    events.terminal(first)
    third = played(talk, "third")
    events.terminal(third)
    assert ends(events.heard.all()) == [first, third]
    assert talk.agent.prompts() == ["first", "third"]


def test_a_busy_session_rejects_over_acp_where_the_daemon_is_set_so(house: House, served_by: str) -> None:
    talk = house.stage(served_by, NAMELESS, PLAIN, "--when-busy", "reject").open()
    first = talk.prompt("one")
    prompt = talk.agent.asked()
    error = talk.client.response(talk.prompt("two"))["error"]
    assert error["data"]["code"] == "busy", error
    talk.agent.end(prompt)
    assert talk.client.response(first)["result"]["stopReason"] == "end_turn"
    assert talk.agent.prompts() == ["one"]


def test_a_busy_session_queues_by_default_and_refuses_who_asks_for_that(house: House) -> None:
    """002."""
    talk = house.rest_talk(PLAIN)
    first = talk.prompt("first")
    prompt = talk.agent.asked()
    second = talk.prompt("second")
    assert talk.rest.post_prompt(talk.id, "third", whenBusy="reject").status == 409
    talk.agent.end(prompt)
    talk.agent.end(talk.agent.asked(words="second"))
    events = talk.events()
    events.terminal(second)
    assert ends(events.heard.all()) == [first, second]


def test_a_daemon_without_blocking_replies_answers_202_to_who_wants_to_wait(house: House) -> None:
    """002: the wish is ignored, not refused."""
    talk = house.rest_talk(PLAIN, *STRICT)
    reply = talk.rest.post_prompt(talk.id, "work", {"Prefer": "wait=60"})
    assert reply.status == 202
    talk.agent.end(talk.agent.asked())
    assert talk.events().terminal(reply.json()["promptId"])["type"] == "turn_complete"


@pytest.mark.parametrize(("cursor", "headers", "detail"), [(10_000, {}, "ahead"), (0, {"epoch": "x"}, None)])
def test_a_cursor_that_cannot_be_honoured_is_answered_in_the_words_of_the_contract(
    house: House, cursor: int, headers: Frame, detail: str | None
) -> None:
    """002: and the stream continues."""
    talk = house.rest_talk(PLAIN)
    first = played(talk)
    talk.events().terminal(first)
    named = {"X-Qwen-Event-Epoch": "another-life"} if headers else {}
    reader = talk.rest.events(talk.id, cursor, headers=named)
    marker = reader.until("state_resync_required")["data"]
    assert marker["reason"] == "epoch_reset"
    assert marker["lastDeliveredId"] == cursor
    assert isinstance(marker["earliestAvailableId"], int)
    assert detail is None or marker["detail"] == detail
    second = played(talk, "go on")
    assert reader.terminal(second)["data"]["stopReason"] == "end_turn"


def test_a_full_queue_is_what_the_published_sdk_reads_as_its_pending_limit(house: House) -> None:
    """002: it looks at the status, the code and three members."""
    talk = house.rest_talk(PLAIN, "--limit", "queue_length=1")
    first = talk.prompt("first")
    prompt = talk.agent.asked()
    second = talk.prompt("second")
    reply = talk.rest.post_prompt(talk.id, "third")
    body = reply.json()
    assert (reply.status, body["code"], body["sessionId"]) == (503, "prompt_queue_full", talk.id)
    assert body["limit"] == 1
    assert body["pendingCount"] >= 1
    assert int(reply.headers["retry-after"]) > 0
    talk.agent.end(prompt)
    talk.agent.end(talk.agent.asked(words="second"))
    events = talk.events()
    events.terminal(second)
    assert ends(events.heard.all()) == [first, second]


@EVERY_AGENT
def test_every_event_of_a_turn_names_who_prompted_it(house: House, agent: AgentText) -> None:
    """002: the client that prompted, and the user it acted for; including the end."""
    talk = house.rest_talk(agent)
    client_id = talk.created["clientId"]
    events = talk.events()
    prompt_id = talk.prompt("hello", headers={"X-Qwen-Client-Id": client_id})
    session = talk.agent
    prompt = session.asked()
    session.begin(prompt)
    session.say(session.chunk("hi"))
    asked = session.request_permission()
    question = events.until("permission_request")["data"]["requestId"]
    answer = {"outcome": {"outcome": "selected", "optionId": "yes"}}
    assert talk.rest.ask("POST", f"/session/{talk.id}/permission/{question}", answer).status == 200
    session.agent.told(asked)
    session.end(prompt)
    events.terminal(prompt_id)
    told = of_turn(events, prompt_id)
    assert {"session_update", "permission_request", "permission_resolved", "turn_complete"} <= {
        event["type"] for event in told
    }
    assert {event.get("originatorClientId") for event in told} == {client_id}
    authors = [event.get("author") for event in told]
    assert authors[0]
    assert authors == authors[:1] * len(authors)


def test_a_prompt_over_acp_names_its_author_on_every_event_too(house: House, served_by: str) -> None:
    """002."""
    stage = house.stage(served_by, NAMELESS, PLAIN)
    talk = stage.open()
    events = stage.rest().events(talk.id)
    asked = talk.prompt("hello")
    prompt = talk.agent.asked()
    talk.agent.say(talk.agent.chunk("hi"))
    talk.agent.end(prompt)
    talk.client.response(asked)
    terminal = events.until("turn_complete")
    told = of_turn(events, terminal["data"]["promptId"])
    assert terminal["author"]
    assert [event.get("author") for event in told] == [terminal["author"]] * len(told)


def test_a_prompt_over_rest_is_heard_with_its_end_over_acp(house: House, served_by: str) -> None:
    """002, 000."""
    stage = house.stage(served_by, NAMELESS, PLAIN)
    talk = stage.open()
    talk.client.notify("session/ready", {"sessionId": talk.id})
    stage.rest().prompt(talk.id, "over REST")
    prompt = talk.agent.asked()
    talk.agent.say(talk.agent.chunk("hi"))
    talk.agent.end(prompt)
    talk.update("turn_complete", stopReason="end_turn")
    assert kinds(talk.updates()) == ["user_message_chunk", "agent_message_chunk", "turn_complete"]


def test_who_comes_back_with_a_cursor_hears_what_it_missed_once_the_end_included(house: House) -> None:
    """002."""
    talk = house.rest_talk(PLAIN)
    reader = talk.events()
    prompt_id = talk.prompt("work")
    prompt = talk.agent.asked()
    talk.agent.say(talk.agent.chunk("before"))
    seen = reader.heard.until(lambda event: "before" in event["sse"]["data"])["id"]
    reader.close()
    talk.agent.say(talk.agent.chunk("while away"))
    talk.agent.end(prompt)
    back = talk.events(after=seen)
    back.terminal(prompt_id)
    numbers = [event["id"] for event in back.heard.all() if "id" in event]
    assert numbers == list(range(seen + 1, seen + 1 + len(numbers)))
    assert [each["content"]["text"] for each in back.updates()] == ["while away"]


def test_how_a_prompt_stands_is_told_without_any_stream(house: House) -> None:
    """002."""
    talk = house.rest_talk(PLAIN)
    prompt_id = talk.prompt("work")
    prompt = talk.agent.asked()
    path = f"/session/{talk.id}/prompt-status?promptId={prompt_id}"
    assert talk.rest.get(path)["state"] == "running"
    talk.agent.end(prompt, "max_tokens")
    talk.events().terminal(prompt_id)
    status = talk.rest.get(path)
    assert (status["state"], status["stopReason"]) == ("completed", "max_tokens")


def test_the_stream_is_one_that_proxies_leave_alone(house: House) -> None:
    """002."""
    reader = house.rest_talk(PLAIN).events()
    assert reader.headers["content-type"].startswith("text/event-stream")
    assert reader.headers["x-accel-buffering"] == "no"


V1_KINDS = {"user_message_chunk", "agent_message_chunk", "tool_call", "tool_call_update"}
V2_KINDS = {"user_message", "user_message_chunk", "agent_message_chunk", "tool_call_update", "state_update"}


@EVERY_AGENT
def test_rest_shows_the_shapes_of_v1_whatever_the_agent_speaks_and_of_v2_to_who_asks(
    house: House, agent: AgentText
) -> None:
    """002, the contract: on the stream, on the stream of many, and with the same numbers."""
    talk = house.rest_talk(agent)
    prompt_id = played(talk)
    shown = {query: talk.events(query=query) for query in ("", "?acp=2")}
    for reader in shown.values():
        reader.terminal(prompt_id)
    v1, v2 = (kinds(reader.updates()) for reader in shown.values())
    assert v1 == ["user_message_chunk", "agent_message_chunk", "tool_call", "tool_call_update", "tool_call_update"]
    assert set(v2) <= V2_KINDS
    assert "tool_call" not in v2
    assert "user_message" in v2
    numbers = [
        {event["id"]: event["type"] for event in reader.heard.all() if "id" in event} for reader in shown.values()
    ]
    assert {number: kind for number, kind in numbers[0].items() if kind in TERMINALS} == {
        number: kind for number, kind in numbers[1].items() if kind in TERMINALS
    }
    shared = numbers[0].keys() & numbers[1].keys()
    assert {number: numbers[0][number] for number in shared} == {number: numbers[1][number] for number in shared}


@EVERY_AGENT
def test_the_stream_of_many_sessions_shows_v1_and_v2_alike(house: House, agent: AgentText) -> None:
    """002, the contract."""
    talk = house.rest_talk(agent)
    readers = [talk.rest.follow(f"/events?session={talk.id}{more}") for more in ("", "&acp=2")]
    prompt_id = played(talk)
    for reader in readers:
        reader.terminal(prompt_id)
    v1, v2 = (set(kinds(reader.updates())) for reader in readers)
    assert v1 <= V1_KINDS
    assert {"user_message_chunk", "tool_call"} <= v1
    assert v2 <= V2_KINDS
    assert "user_message" in v2


def told_kinds(value: Any) -> Iterator[str]:
    """Return every kind of update anywhere in an answer. An event about omitted updates shows none."""
    if isinstance(value, dict):
        found = cast("Frame", value)
        if found.get("type") == "session_update_omitted":
            return
        if isinstance(kind := found.get("sessionUpdate"), str):
            yield kind
        for each in found.values():
            yield from told_kinds(each)
    elif isinstance(value, list):
        for each in cast("list[Any]", value):
            yield from told_kinds(each)


@EVERY_AGENT
def test_what_is_told_again_has_the_shapes_of_the_stream(house: House, agent: AgentText) -> None:
    """002, the contract: the replay of a load and the transcript."""
    talk = house.rest_talk(agent)
    talk.events().terminal(played(talk))
    for query, allowed in (("", V1_KINDS), ("?acp=2", V2_KINDS)):
        replay = talk.rest.ask("POST", f"/session/{talk.id}/load{query}", {}).json()
        told = set(told_kinds([replay["compactedReplay"], replay["liveJournal"]]))
        assert told
        assert told <= allowed
        assert set(told_kinds(talk.rest.get(f"/session/{talk.id}/transcript{query}"))) <= allowed


def test_a_cursor_of_one_shape_is_a_cursor_of_the_other(house: House) -> None:
    """002, the contract: a reader that switches shapes loses nothing and receives nothing twice."""
    talk = house.rest_talk(PUBLISHED)
    first = played(talk, "one")
    position = talk.events().terminal(first)["id"]
    second = played(talk, "two")
    for query in ("", "?acp=2"):
        reader = talk.events(after=position, query=query)
        reader.terminal(second)
        assert ends(reader.heard.all()) == [second]
        assert "one" not in "".join(str(update) for update in reader.updates())


def test_an_agent_that_counts_its_sessions_anew_is_asked_once_more(house: House) -> None:
    """002: after a restart it gives a new session the id of one that was resumed."""
    served = house.serve(PLAIN)
    with served:
        numbers = count(1)

        def counted(agent: RawAgent, frame: Frame) -> None:
            served.agents.open(agent, frame, f"session-{next(numbers)}")

        served.agents.replies["session/new"] = counted
        old = house.rest_talk(PLAIN, served=served)
        lost = old.prompt("first life")
        old.agent.asked()
        old.agent.agent.kill()
        assert old.events().terminal(lost)["type"] == "turn_error"
        numbers = count(1)
        kept = old.prompt("second life")
        back = served.agents.returned(old.agent.id, 1)
        back.end(back.asked())
        assert old.events().terminal(kept)["type"] == "turn_complete"
        new = house.rest_talk(PLAIN, served=served)
        prompt_id = new.prompt("a new one")
        again = served.agents.session(new.cwd, occurrence=1)
        assert (old.agent.id, again.id) == ("session-1", "session-2")
        again.end(again.asked())
        assert new.events().terminal(prompt_id)["type"] == "turn_complete"
