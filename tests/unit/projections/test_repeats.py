"""An agent's repeats after a resume are recognized; every update that could be new is preserved."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw
from tests.unit.session.driving import raw

from turnwire.ids import AgentSessionId, MessageId, PromptId
from turnwire.projections.repeats import Repeats, Said
from turnwire.projections.view import View
from turnwire.session import events as ev
from turnwire.wire.peek import peek_update

Update = dict[str, Any]


def chunk(kind: str, text: str, message_id: str | None = None) -> Update:
    named = {} if message_id is None else {"messageId": message_id}
    return {"sessionUpdate": f"{kind}_chunk", "content": {"type": "text", "text": text}, **named}


def user(text: str, message_id: str | None = None) -> Update:
    return chunk("user_message", text, message_id)


def agent(text: str, message_id: str | None = None) -> Update:
    return chunk("agent_message", text, message_id)


def thought(text: str) -> Update:
    return chunk("agent_thought", text)


def tool(tool_call_id: str, title: str = "Run", status: str = "completed") -> Update:
    return {"sessionUpdate": "tool_call", "toolCallId": tool_call_id, "title": title, "status": status}


USAGE: Update = {"sessionUpdate": "usage_update", "used": 1, "size": 2}


def content(text: str) -> Raw:
    return raw([{"type": "text", "text": text}])


def log(*turns: tuple[str, list[Update], str | None]) -> View:
    """Return the log's content: prompts, output, and the end of each turn; with an error if no reason is given."""
    view = View()
    view.apply(
        ev.AgentStarted(
            at=1, agent_session_id=AgentSessionId("a"), protocol_version=1, turn_end=ev.TurnEnd.RESPONSE
        )
    )
    for number, (text, said, reason) in enumerate(turns):
        prompt_id = PromptId(f"p{number}")
        view.apply(ev.PromptAccepted(at=1, prompt_id=prompt_id, after_offset=0))
        view.apply(ev.UserMessage(at=1, prompt_id=prompt_id, message_id=MessageId("m"), content=content(text)))
        view.apply(ev.TurnStarted(at=1, prompt_id=prompt_id))
        for update in said:
            view.apply(
                ev.SessionUpdated(at=1, kind=update["sessionUpdate"], update=raw(update), prompt_id=prompt_id)
            )
        if reason is None:
            view.apply(ev.TurnFailed(at=1, prompt_id=prompt_id, code="agent_exited", message="gone"))
        else:
            view.apply(ev.TurnCompleted(at=1, prompt_id=prompt_id, stop_reason=reason, ending=ev.Ending.RESPONSE))
    return view


TWO = log(
    ("one", [thought("hm"), agent("first "), agent("answer"), tool("t1"), agent("done")], "end_turn"),
    ("two", [agent("second answer")], "end_turn"),
)


def news(repeats: Repeats, *updates: Update) -> list[Update]:
    """Return the new ones of these, in their order."""
    by_bytes = {bytes(raw(each)): each for each in updates}
    found: list[Said] = []
    for each in updates:
        found += repeats.take(Said(raw(each)), peek_update(raw(each)))
    return [by_bytes[bytes(each.update)] for each in found]


WHOLE = [user("one"), agent("first answer"), tool("t1"), agent("done"), user("two"), agent("second answer")]


@pytest.mark.parametrize("asked", [None, "three"])
def test_a_whole_replay_is_nothing_new_and_what_follows_it_is(asked: str | None) -> None:
    repeats = Repeats(TWO)
    if asked is not None:
        repeats.ask(content(asked))
    assert news(repeats, *WHOLE) == []
    assert news(repeats, agent("third"), tool("t1"), agent("answer")) == [
        agent("third"),
        tool("t1"),
        agent("answer"),
    ]
    assert repeats.finish(answered=True) == []
    assert repeats.found == (6, 6, 0, None)


def test_it_may_be_cut_into_other_pieces() -> None:
    repeats = Repeats(TWO)
    pieces = [user("o"), user("ne"), thought("hm"), agent("fir"), agent("st an"), agent("swer"), tool("t1")]
    assert news(repeats, *pieces, agent("done"), user("two"), agent("second "), agent("answer")) == []


def test_an_agent_that_replays_nothing_is_heard_at_once() -> None:
    repeats = Repeats(TWO)
    repeats.ask(content("three"))
    assert news(repeats, USAGE, agent("second answer")) == [USAGE, agent("second answer")]
    assert repeats.is_over
    assert repeats.found is None


def test_what_the_log_does_not_have_is_told_where_it_stands() -> None:
    repeats = Repeats(TWO)
    repeats.ask(content("three"))
    told = [user("one"), thought("another"), agent("first answer"), tool("t9"), agent("done"), user("two")]
    found = news(repeats, *told, agent("second answer"), agent("new"))
    assert found == [thought("another"), tool("t9"), agent("new")]
    assert repeats.found == (5, 5, 1, "the replay lacks 1 of the log's messages and tool calls")


def test_a_message_that_goes_on_otherwise_is_told_whole() -> None:
    repeats = Repeats(TWO)
    repeats.ask(content("three"))
    said = [agent("first "), agent("answer"), agent(" and more"), agent("done")]
    assert news(repeats, user("one"), *said) == said


@pytest.mark.parametrize("known", ["two", "one"])
def test_what_may_be_a_copy_of_the_prompt_is_not_taken_for_history(known: str) -> None:
    repeats = Repeats(TWO, echoes=True)
    repeats.ask(content(f"{known} more"))
    echoed = [user(known), user(" more"), agent("second answer")]
    assert news(repeats, *echoed) == echoed


def test_an_agent_that_never_copies_a_prompt_may_be_asked_the_same_again() -> None:
    repeats = Repeats(TWO)
    repeats.ask(content("two"))
    assert news(repeats, *WHOLE) == []
    assert news(repeats, agent("second answer")) == [agent("second answer")]


def test_an_interrupted_turn_may_be_said_again() -> None:
    view = log(("one", [agent("Let me look."), tool("t1")], None))
    repeats = Repeats(view)
    repeats.ask(content("go on"))
    again = [agent("Let me look."), tool("t1")]
    assert news(repeats, user("one"), *again) == again


def test_an_interrupted_turn_that_is_told_before_any_prompt_is_history() -> None:
    view = log(("one", [agent("Let me look."), tool("t1")], None))
    assert news(Repeats(view), user("one"), agent("Let me look."), tool("t1")) == []


def test_if_only_repetitions_came_before_the_answer_the_last_is_the_answer() -> None:
    view = log(("one", [agent("OK")], "end_turn"))
    repeats = Repeats(view)
    repeats.ask(content("two"))
    assert news(repeats, user("one"), agent("OK")) == []
    assert repeats.finish(answered=True) == [Said(raw(agent("OK")))]


def test_what_is_held_when_the_agent_goes_is_told() -> None:
    repeats = Repeats(TWO)
    repeats.ask(content("three"))
    assert news(repeats, user("one"), agent("first")) == []
    assert repeats.finish(answered=False) == [Said(raw(agent("first")))]


def test_a_tool_call_of_the_same_id_with_another_title_is_another() -> None:
    repeats = Repeats(TWO)
    repeats.ask(content("three"))
    assert news(repeats, user("one"), agent("first answer"), tool("t1", "Read")) == [tool("t1", "Read")]


def test_names_of_messages_tell_the_last_answer_from_the_next() -> None:
    repeats = Repeats(TWO)
    repeats.ask(content("three"))
    first = [user("one", "u1"), agent("first ", "a1"), agent("answer", "a1"), agent("new", "a2")]
    assert news(repeats, *first) == [agent("new", "a2")]


def test_an_answer_in_the_middle_of_a_replay_ends_a_message() -> None:
    repeats = Repeats(TWO)
    assert news(repeats, user("one"), agent("first answer")) == []
    repeats.pause()
    repeats.ask(content("three"))
    assert news(repeats, agent("first answer")) == [agent("first answer")]


def test_the_turn_that_the_agent_has_not_been_told_of_is_no_history() -> None:
    view = log(("one", [agent("OK")], "end_turn"), ("two", [], "end_turn"))
    repeats = Repeats(view, PromptId("p1"), echoes=True)
    repeats.ask(content("two"))
    assert news(repeats, user("one"), agent("OK"), user("two")) == [user("two")]


def test_a_picture_told_as_words_stands_for_the_message_in_the_log() -> None:
    repeats = Repeats(TWO)
    repeats.ask(content("three"))
    told = [user("[image] "), user("one!"), agent("first answer"), tool("t1"), agent("done"), user("two")]
    assert news(repeats, *told, agent("second answer"), agent("third")) == [agent("third")]


def test_whatever_follows_a_user_message_before_any_prompt_is_history() -> None:
    repeats = Repeats(TWO)
    told = [user("other"), thought("x"), agent("first answer"), agent("differs"), tool("t9"), user("and")]
    assert news(repeats, *told, user("one"), agent("more"), tool("t8"), agent("still")) == []
    assert repeats.finish(answered=False) == []


BROKEN_OFF = log(
    ("one", [agent("first")], "end_turn"),
    ("hang", [agent("I begin.")], None),
    ("again", [tool("t1"), agent("I begin again.")], "cancelled"),
    ("two", [agent("second")], "end_turn"),
)


@pytest.mark.parametrize("asked", [None, "three"])
def test_messages_of_a_user_may_come_as_one_where_what_was_between_them_is_lost(asked: str | None) -> None:
    repeats = Repeats(BROKEN_OFF)
    if asked is not None:
        repeats.ask(content(asked))
    told = [user("one"), agent("first"), user("hang\n\nagain\n\n"), user("two"), agent("second")]
    assert news(repeats, *told) == []
    assert news(repeats, agent("third")) == [agent("third")]


def test_they_do_not_where_what_was_between_them_was_said_to_its_end() -> None:
    repeats = Repeats(TWO, echoes=True)
    repeats.ask(content("three"))
    assert news(repeats, user("one\n\ntwo"), agent("second answer")) == [user("one\n\ntwo"), agent("second answer")]
