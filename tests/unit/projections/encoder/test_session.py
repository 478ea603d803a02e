"""A session as ACP clients of all dialects see it, and of agents of either version."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import Raw
from tests.unit.projections.encoder.frame_words import (
    DIALECTS,
    MARKED,
    PLAIN,
    V2,
    V2_INPUTS,
    seen,
    told,
    words,
)
from tests.unit.session import driving as d

from turnwire.ids import AgentSessionId, PermissionId, PromptId, SessionId
from turnwire.projections.encoder import Ask, SessionEncoder, Tell
from turnwire.projections.encoder.encoder import Dialect
from turnwire.session import events as ev

every_dialect = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS.keys())


@every_dialect
def test_an_update_of_an_agent_of_the_same_version_passes_byte_for_byte(dialect: Dialect) -> None:
    encoder = SessionEncoder(dialect, SessionId("s1"))
    end = ev.TurnEnd.IDLE if dialect.version == 2 else ev.TurnEnd.RESPONSE
    for event in d.Session(end).log:
        encoder.take(event, own=False)
    given = Raw(b'{ "sessionUpdate":"plan_update", "x":1.0,"x":2 }')
    assert encoder.take(ev.SessionUpdated(at=1, kind="plan_update", update=given), own=False) == [Tell(given)]


@every_dialect
@pytest.mark.parametrize("kind", ["turn_complete", "_turn_complete", "user_message"])
def test_markers_and_copies_of_prompts_are_not_told_again(dialect: Dialect, kind: str) -> None:
    update = d.raw({"sessionUpdate": kind, "messageId": "m"})
    event = ev.SessionUpdated(at=1, kind=kind, update=update, echo=kind == "user_message")
    assert SessionEncoder(dialect, SessionId("s1")).take(event, own=True) == []


@every_dialect
def test_every_kind_of_event_is_taken(dialect: Dialect) -> None:
    encoder = SessionEncoder(dialect, SessionId("s1"))
    for event in d.SAMPLES:
        for own in (True, False):
            assert isinstance(encoder.take(event, own=own), list)


@every_dialect
def test_a_new_name_is_told_as_the_sessions_title(dialect: Dialect) -> None:
    outgoing = SessionEncoder(dialect, SessionId("s1")).take(ev.SessionRenamed(at=1, title="new"), own=False)
    assert told(outgoing, "session_info_update") == [{"sessionUpdate": "session_info_update", "title": "new"}]


MODES = {"currentModeId": "ask", "availableModes": [{"id": "ask", "name": "Ask"}, {"id": "code", "name": "Code"}]}
MODE_OPTION = {"configId": "m", "name": "M", "category": "mode", "type": "select", "currentValue": "ask"}


def started(version: int, offers: object, agent_session_id: str = "a1") -> ev.AgentStarted:
    return ev.AgentStarted(
        at=1,
        agent_session_id=AgentSessionId(agent_session_id),
        protocol_version=version,
        turn_end=ev.TurnEnd.IDLE if version == 2 else ev.TurnEnd.RESPONSE,
        offers=d.raw(offers),
    )


@pytest.mark.parametrize("agent", [1, 2])
@pytest.mark.parametrize("client", [1, 2])
def test_row_23_a_mode_that_a_client_set_is_told_to_all(agent: int, client: int) -> None:
    encoder = SessionEncoder(Dialect(version=client), SessionId("s1"))
    options = [{**MODE_OPTION, "options": [{"value": "ask", "name": "Ask"}]}]
    encoder.take(started(agent, {"modes": MODES} if agent == 1 else {"configOptions": options}), own=False)
    outgoing = encoder.take(ev.ModeChanged(at=1, mode="code"), own=False)
    if client == 1:
        assert [each["currentModeId"] for each in told(outgoing, "current_mode_update")] == ["code"]
    else:
        [update] = told(outgoing, "config_option_update")
        assert [each["currentValue"] for each in update["configOptions"]] == ["code"]


def test_options_that_the_agent_changed_are_the_ones_that_a_new_mode_is_told_with() -> None:
    encoder = SessionEncoder(V2, SessionId("s1"))
    encoder.take(started(2, {}), own=False)
    update = d.raw({"sessionUpdate": "config_option_update", "configOptions": [{**MODE_OPTION, "name": "Newer"}]})
    encoder.take(ev.SessionUpdated(at=1, kind="config_option_update", update=update), own=False)
    [after] = told(encoder.take(ev.ModeChanged(at=1, mode="code"), own=False), "config_option_update")
    assert [(each["name"], each["currentValue"]) for each in after["configOptions"]] == [("Newer", "code")]


def test_row_5_commands_that_a_v2_agent_opened_with_are_told_to_a_v1_client() -> None:
    commands = [{"type": "command", "name": "go", "description": "Go"}]
    encoder = SessionEncoder(PLAIN, SessionId("s1"))
    outgoing = encoder.take(started(2, {"availableCommands": commands}), own=False)
    assert told(outgoing, "available_commands_update")[0]["availableCommands"] == [
        {"name": "go", "description": "Go"}
    ]
    assert SessionEncoder(V2, SessionId("s1")).take(started(2, {"availableCommands": commands}), own=False) == []


def chunk(message_id: str | None, words: str) -> ev.SessionUpdated:
    content = {"type": "text", "text": words}
    update = {"sessionUpdate": "agent_message_chunk", "content": content, "messageId": message_id}
    return ev.SessionUpdated(at=1, kind="agent_message_chunk", update=d.raw(update), prompt_id=PromptId("p1"))


def test_row_13_a_v1_agent_that_comes_back_and_counts_anew_writes_into_no_old_message() -> None:
    encoder, ids = SessionEncoder(V2, SessionId("s1")), list[str]()
    for event in (started(1, {}), chunk("m1", "a"), started(1, {}), chunk("m1", "b")):
        ids += [each["messageId"] for each in told(encoder.take(event, own=False), "agent_message_chunk")]
    assert len(set(ids)) == 2


def test_row_14_a_v2_agent_that_resumes_goes_on_with_what_a_v1_client_was_sent() -> None:
    encoder = SessionEncoder(PLAIN, SessionId("s1"))
    whole = {"sessionUpdate": "agent_message", "messageId": "m1", "content": [{"type": "text", "text": "a"}]}
    again = ev.SessionUpdated(at=1, kind="agent_message", update=d.raw(whole))
    for event in (started(2, {}), chunk("m1", "a"), started(2, {})):
        encoder.take(event, own=False)
    assert encoder.take(again, own=False) == []
    encoder.take(started(2, {}, "another"), own=False)
    assert len(encoder.take(again, own=False)) == 1


def test_row_13_words_after_the_end_of_a_turn_are_another_message() -> None:
    encoder, ids = SessionEncoder(V2, SessionId("s1")), list[str]()
    end = ev.TurnCompleted(at=1, prompt_id=PromptId("p1"), stop_reason="end_turn", ending=ev.Ending.RESPONSE)
    late = chunk(None, "late")
    late = msgspec.structs.replace(late, prompt_id=None, after=PromptId("p1"))
    begun = ev.TurnStarted(at=1, prompt_id=PromptId("p1"))
    for event in (started(1, {}), begun, chunk(None, "a"), chunk(None, "b"), end, late):
        ids += [each["messageId"] for each in told(encoder.take(event, own=False), "agent_message_chunk")]
    assert ids[0] == ids[1] != ids[2]


def test_content_that_was_held_back_is_told_before_the_end_of_the_turn() -> None:
    session = d.Session(ev.TurnEnd.IDLE)
    session.take(d.prompt("p1"), *V2_INPUTS[:2])
    item = {"type": "content", "content": {"type": "text", "text": "x" * 500}}
    for _ in range(50):
        session.take(d.said("tool_call_content_chunk", toolCallId="t1", content=item))
    session.take(V2_INPUTS[2])
    outgoing = seen(MARKED, session.log)
    assert len(told(outgoing, "tool_call_update")[-1]["content"]) == 50
    assert words(outgoing)[-2:] == ["turn_complete", "answer p1"]


def test_a_question_is_asked_about_our_session_in_the_clients_words() -> None:
    question = ev.PermissionRequested(
        at=1,
        request_id=PermissionId("q1"),
        agent_request_id=1,
        method=d.PERMISSION,
        params=d.raw({"sessionId": "theirs", "toolCall": {"toolCallId": "t", "title": "Rm"}, "options": []}),
    )
    encoder = SessionEncoder(V2, SessionId("s1"))
    encoder.take(started(1, {}), own=False)
    [ask] = encoder.take(question, own=False)
    assert isinstance(ask, Ask)
    params = msgspec.json.decode(ask.params)
    assert (params["sessionId"], params["title"]) == ("s1", "Rm")
