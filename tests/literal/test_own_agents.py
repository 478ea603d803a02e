"""turnwire's own agents, to the letter: one written with the agent SDK, and the built-in one, over their pipes."""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.literal.agents import text_block
from tests.literal.clients import FLAGGED, KNOWN, NAMELESS, V2, RawClient, kinds
from tests.literal.heard import Frame, about, answers, member
from tests.literal.stages import TURNWIRE, House

SDK_AGENT = str(Path(__file__).with_name("sdk_agent.py"))


class Own(NamedTuple):
    """The command that starts an agent of ours, and the prompts that trigger its actions."""

    name: str
    command: tuple[str, ...]
    say: str
    ask: str
    wait: str
    fail: str
    yes: str


SDK = Own("sdk", (sys.executable, SDK_AGENT), "say", "ask", "wait", "fail", "allow_once")
BUILTIN = Own(
    "built-in",
    (TURNWIRE, "agent", "--data", ":memory:"),
    "who are you?",
    "/demo permission",
    "/demo long 120s",
    "/demo error",
    "allow_once",
)


@pytest.fixture(params=[SDK, BUILTIN], ids=lambda own: own.name)
def own(request: pytest.FixtureRequest) -> Own:
    found: Own = request.param
    return found


class Session:
    """One session of such an agent."""

    def __init__(self, client: RawClient, cwd: Path) -> None:
        self.client = client
        self.id = client.new_session(cwd)

    def prompt(self, text: str) -> int | str:
        return self.client.request("session/prompt", {"sessionId": self.id, "prompt": [text_block(text)]})

    def updates(self) -> list[Frame]:
        return self.client.updates(self.id)

    def states(self, word: str) -> list[str]:
        told = [each["state"] for each in self.updates() if each["sessionUpdate"] == word]
        return [state for state, _ in groupby(told)]


def opened(house: House, own: Own, client: Frame, *, is_fresh: bool = False) -> Session:
    return Session(house.piped(own.name, own.command, client, is_fresh=is_fresh), house.folder())


def is_end(update: Frame | None) -> bool:
    """Return True if it is idle with a reason, in either spelling."""
    return member(update, "state") == "idle" and bool({"stopReason", "stop_reason"} & (update or {}).keys())


def markers(session: Session) -> list[Frame]:
    return [each for each in session.updates() if each["sessionUpdate"] == "turn_complete"]


def test_it_offers_turn_complete_and_ends_each_turn_with_it(house: House, own: Own) -> None:
    """000: to a client that asked for nothing."""
    session = opened(house, own, NAMELESS)
    assert session.client.initialized["agentCapabilities"]["sessionCapabilities"]["turnComplete"] == {}
    for text in (own.say, own.say):
        asked = session.prompt(text)
        response = session.client.response(asked)
        assert response["result"]["stopReason"] == "end_turn"
        marker = markers(session)[-1]
        assert (marker["promptRequestId"], marker["stopReason"]) == (asked, "end_turn")
        frames = session.client.heard.all()
        assert frames[frames.index(response) - 1]["params"]["update"] == marker
    assert len(markers(session)) == 2
    assert not [frame for frame in session.client.frames(session.id) if frame["method"].startswith("_")]


def test_a_turn_that_fails_has_a_marker_with_its_error_before_the_response(house: House, own: Own) -> None:
    """000."""
    session = opened(house, own, NAMELESS)
    asked = session.prompt(own.fail)
    failure = session.client.response(asked)["error"]
    [marker] = markers(session)
    assert marker["promptRequestId"] == asked
    assert (marker["stopReason"], marker["error"], "usage" in marker) == ("refusal", failure, False)


def test_a_released_client_is_neither_offered_nor_sent_what_it_does_not_have(house: House, own: Own) -> None:
    """000, 001."""
    session = opened(house, own, KNOWN)
    offered = session.client.initialized["agentCapabilities"]["sessionCapabilities"]
    assert not {"turnComplete", "ready"} & offered.keys()
    session.client.update(session.id, "available_commands_update")
    asked = session.prompt(own.say)
    session.client.response(asked)
    assert markers(session) == []


@pytest.mark.parametrize(
    ("which", "client", "news"),
    [
        (SDK, NAMELESS, "session_info_update"),
        (SDK, V2, "session_info_update"),
        (BUILTIN, NAMELESS, "available_commands_update"),
    ],
    ids=["sdk-v1", "sdk-v2", "built-in-v1"],
)
def test_it_offers_ready_and_holds_its_news_until_then(house: House, which: Own, client: Frame, news: str) -> None:
    """001: a slow client loses nothing."""
    session = opened(house, which, client, is_fresh=True)
    assert session.client.initialized["capabilities"]["session"]["ready"] is True
    other = Session(session.client, house.folder())
    assert news not in kinds(session.updates())
    session.client.notify("session/ready", {"sessionId": session.id})
    session.client.update(session.id, news)
    assert news not in kinds(other.updates())


def test_its_author_hears_of_ready(house: House) -> None:
    """001: so that a backend can be notified; once."""
    session = opened(house, SDK, NAMELESS, is_fresh=True)
    session.client.notify("session/ready", {"sessionId": session.id})
    session.client.update(session.id, "session_info_update", title="the author heard: ready")
    session.client.notify("session/ready", {"sessionId": session.id})
    session.client.response(session.prompt("say"))
    titles = [each for each in session.updates() if each.get("title") == "the author heard: ready"]
    assert len(titles) == 1


def test_it_offers_the_lifecycle_flag_and_keeps_it(house: House, own: Own) -> None:
    """003: answered `{}` at acceptance; user message, states, the reason and the usage."""
    session = opened(house, own, FLAGGED)
    assert session.client.initialized["agentCapabilities"]["sessionCapabilities"]["lifecycle"] == {}
    asked = session.prompt(own.say)
    response = session.client.response(asked)
    assert response["result"] == {}
    idle = session.client.update(session.id, "state_change", state="idle")
    assert idle["stop_reason"] == "end_turn"
    assert idle["usage"]["inputTokens"] > 0
    assert session.states("state_change") == ["running", "idle"]
    message = session.client.update(session.id, "user_message")
    assert message["content"] == [text_block(own.say)]
    frames = session.client.heard.all()
    assert frames.index(response) < frames.index(
        next(frame for frame in frames if member(frame, "params", "update") == idle)
    )


@pytest.mark.parametrize(("client", "word"), [(FLAGGED, "state_change"), (V2, "state_update")], ids=["flag", "v2"])
def test_its_requires_action_names_what_it_waits_for(house: House, own: Own, client: Frame, word: str) -> None:
    """003."""
    session = opened(house, own, client)
    session.prompt(own.ask)
    request = session.client.asked("session/request_permission", session.id)
    blocked = session.client.update(session.id, word, state="requires_action")
    [awaited] = blocked["_meta"]["turnwire"]["waitsFor"]
    assert (awaited["requestId"], awaited["kind"]) == (request["id"], "permission")
    session.client.answer(request, {"outcome": {"outcome": "selected", "optionId": own.yes}})
    session.client.heard.until(
        lambda frame: (
            frame.get("method") == "session/update"
            and frame["params"]["sessionId"] == session.id
            and frame["params"]["update"].get("state") == "idle"
            and {"stopReason", "stop_reason"} & frame["params"]["update"].keys() != set()
        )
    )
    assert session.states(word)[-4:] == ["running", "requires_action", "running", "idle"]


def test_v2_is_answered_with_the_id_of_the_message_that_it_shows(house: House, own: Own) -> None:
    """003."""
    session = opened(house, own, V2)
    message_id = session.client.response(session.prompt(own.say))["result"]["messageId"]
    idle = session.client.update(session.id, "state_update", state="idle", stopReason="end_turn")
    assert idle["usage"]["outputTokens"] > 0
    [shown] = [each for each in session.updates() if each["sessionUpdate"] == "user_message"]
    assert (shown["messageId"], shown["content"]) == (message_id, [text_block(own.say)])


def test_a_cancel_ends_the_turn_and_closes_its_tool_calls_and_leaves_what_waits(house: House, own: Own) -> None:
    """004: on v1 a cancel is for the turn; the next prompt runs."""
    session = opened(house, own, NAMELESS)
    first = session.prompt(own.wait)
    session.client.update(session.id, "agent_message_chunk")
    second = session.prompt(own.say)
    session.client.notify("session/cancel", {"sessionId": session.id})
    assert session.client.response(first)["result"]["stopReason"] == "cancelled"
    assert session.client.response(second)["result"]["stopReason"] == "end_turn"
    assert [(each["promptRequestId"], each["stopReason"]) for each in markers(session)] == [
        (first, "cancelled"),
        (second, "end_turn"),
    ]
    calls = {each["toolCallId"]: each["status"] for each in session.updates() if each.get("status")}
    assert set(calls.values()) <= {"failed", "completed"}
    if own is SDK:
        assert list(calls.values()) == ["failed"]


def test_a_cancel_of_v2_takes_back_what_is_not_in_the_conversation_yet(house: House, own: Own) -> None:
    """003."""
    session = opened(house, own, V2)
    session.prompt(own.wait)
    session.client.update(session.id, "agent_message_chunk")
    second = session.prompt(own.say)
    session.client.notify("session/cancel", {"sessionId": session.id})
    session.client.update(session.id, "state_update", state="idle", stopReason="cancelled")
    assert session.client.response(second)["error"]["code"] == -32800


def test_words_beside_a_turn_never_have_the_id_of_another_message(house: House) -> None:
    """003: also not of one in an earlier turn."""
    session = opened(house, SDK, V2)
    for number in (1, 2, 3):
        session.client.response(session.prompt("aside"))
        session.client.heard.several(
            lambda frame: (
                about(frame) == session.id and member(frame, "params", "update", "stopReason") == "end_turn"
            ),
            number,
        )
    session.client.heard.several(
        lambda frame: (
            about(frame) == session.id and member(frame, "params", "update", "content") == text_block("aside")
        ),
        3,
    )
    chunks = [each for each in session.updates() if each["sessionUpdate"] == "agent_message_chunk"]
    assert sorted(each["content"]["text"] for each in chunks) == ["aside"] * 3 + ["in the turn"] * 3
    assert len({each["messageId"] for each in chunks}) == 6


def test_a_request_id_comes_back_with_its_type(house: House, own: Own) -> None:
    """000: `2` is not `"2"`."""
    session = opened(house, own, NAMELESS)
    params = {"sessionId": session.id, "prompt": [text_block(own.say)]}
    for request_id in (70002, "70002"):
        session.client.request("session/prompt", params, request_id)
        session.client.heard.until(answers(request_id))
    assert [(each["promptRequestId"]) for each in markers(session)] == [70002, "70002"]
