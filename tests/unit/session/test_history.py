"""An agent's replay compared with the log: the definition of equal, and the report of the first difference."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import Raw

from turnwire.ids import MessageId, PromptId
from turnwire.projections.repeats import Comparison, compare
from turnwire.projections.view import View
from turnwire.session import events as ev

USER, AGENT, THOUGHT = "user_message_chunk", "agent_message_chunk", "agent_thought_chunk"


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def update(kind: str, **fields: object) -> ev.SessionUpdated:
    return ev.SessionUpdated(at=1, kind=kind, update=Raw(msgspec.json.encode({"sessionUpdate": kind, **fields})))


def tool(tool_call_id: str, title: str | None = None) -> ev.SessionUpdated:
    return update("tool_call", toolCallId=tool_call_id, **({} if title is None else {"title": title}))


def replay(*parts: tuple[str, str] | ev.SessionUpdated) -> View:
    """Return a view of an agent's output: kind and text each, or a whole update."""
    view = View()
    for part in parts:
        view.apply(part if isinstance(part, ev.SessionUpdated) else update(part[0], content=text(part[1])))
    return view


def logged(*turns: tuple[str, str], active: bool = False) -> View:
    """Return a view of turns as our log has them: prompts and answers. The last one may still run."""
    view = View()
    for number, (asked, answered) in enumerate(turns, 1):
        prompt_id = PromptId(f"p{number}")
        content = Raw(msgspec.json.encode([text(asked)]))
        view.apply(ev.PromptAccepted(at=1, prompt_id=prompt_id, after_offset=0))
        view.apply(ev.UserMessage(at=1, prompt_id=prompt_id, message_id=MessageId(f"m{number}"), content=content))
        view.apply(ev.TurnStarted(at=1, prompt_id=prompt_id))
        chunk = msgspec.json.encode({"sessionUpdate": AGENT, "content": text(answered)})
        if answered:
            view.apply(ev.SessionUpdated(at=1, kind=AGENT, update=Raw(chunk), prompt_id=prompt_id))
        if not (active and number == len(turns)):
            ending = ev.Ending.RESPONSE
            view.apply(ev.TurnCompleted(at=1, prompt_id=prompt_id, stop_reason="end_turn", ending=ending))
    return view


LOG = logged(("one", "1"), ("two", "2"))
SAME = [(USER, "one"), (AGENT, "1"), (USER, "two"), (AGENT, "2")]


def test_a_replay_of_all_that_was_said_matches() -> None:
    assert compare(LOG, replay(*SAME)) == Comparison(4, 4, 0, None)


def test_two_empty_histories_match() -> None:
    assert compare(View(), View()) == Comparison(0, 0, 0, None)


@pytest.mark.parametrize(
    "told",
    [
        [(USER, "o"), (USER, "ne"), (AGENT, "1"), (USER, "two"), (AGENT, "2")],
        [(USER, "one"), (AGENT, " 1\n"), (USER, "two "), (AGENT, "2")],
        [(USER, "one"), (THOUGHT, "hm"), (AGENT, "1"), (USER, "two"), (THOUGHT, "hm"), (AGENT, "2")],
    ],
    ids=["cut otherwise", "with other spaces", "with thoughts"],
)
def test_how_a_text_is_cut_and_what_was_thought_makes_no_difference(told: list[tuple[str, str]]) -> None:
    assert compare(LOG, replay(*told)) == Comparison(4, 4, 0, None)


def test_the_end_that_an_agent_has_forgotten_is_missing() -> None:
    found = compare(LOG, replay(*SAME[:3]))
    assert found == Comparison(3, 3, 1, "entry 4: the log has an agent message, the replay has nothing")


def test_an_agent_that_remembers_nothing_misses_everything() -> None:
    found = compare(LOG, View())
    assert found == Comparison(0, 0, 4, "entry 1: the log has a user message, the replay has nothing")


def test_what_only_the_agent_remembers_is_shown() -> None:
    found = compare(LOG, replay(*SAME, (USER, "three")))
    assert found == Comparison(5, 4, 0, "entry 5: the log has nothing, the replay has a user message")


def test_another_text_is_the_first_difference_and_all_behind_it_is_missing() -> None:
    found = compare(LOG, replay(SAME[0], (AGENT, "uno"), *SAME[2:]))
    difference = "entry 2: the log has an agent message, the replay has an agent message with another text"
    assert found == Comparison(4, 1, 3, difference)


def test_a_turn_that_the_agent_was_not_told_of_yet_is_left_out() -> None:
    running = logged(("one", "1"), ("two", ""), active=True)
    told = replay((USER, "one"), (AGENT, "1"))
    assert running.active == "p2"
    assert compare(running, told, without=running.active) == Comparison(2, 2, 0, None)
    assert compare(running, told).missing == 1


def test_tool_calls_are_compared_one_by_one_by_their_title() -> None:
    ours = replay((USER, "go"), tool("a", "Read x"), tool("b", "Write y"))
    assert compare(ours, replay((USER, "go"), tool("7", "Read x"), tool("8", "Write y"))).first_difference is None
    found = compare(ours, replay((USER, "go"), tool("7", "Read x")))
    assert found == Comparison(2, 2, 1, "entry 3: the log has a tool call, the replay has nothing")


def test_a_tool_call_without_a_title_is_known_by_its_id() -> None:
    assert compare(replay(tool("a")), replay(tool("a"))).matched == 1
    assert compare(replay(tool("a")), replay(tool("b"))).matched == 0


def test_content_that_is_no_text_is_compared_by_its_place() -> None:
    image = {"type": "image", "mimeType": "image/png", "content": "AA=="}
    ours, theirs = replay(update(USER, content=image)), replay(update(USER, content={**image, "content": "BB=="}))
    assert compare(ours, theirs) == Comparison(1, 1, 0, None)
