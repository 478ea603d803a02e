"""Child sessions in the frames for clients of each dialect, of agents of either version."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.unit.projections.encoder.frame_words import LIFECYCLE, MARKED, PLAIN, V2, seen
from tests.unit.session import driving as d

from turnwire.ids import SessionId
from turnwire.projections.encoder import Ask, Outgoing, SessionEncoder, Tell
from turnwire.projections.encoder.encoder import Dialect
from turnwire.session import events as ev
from turnwire.session import inputs as i

KNOWING = Dialect(version=1, children=True)
every_client = pytest.mark.parametrize(
    "dialect", [PLAIN, MARKED, LIFECYCLE, KNOWING, V2], ids=["plain", "marked", "lifecycle", "knowing", "v2"]
)
every_agent = pytest.mark.parametrize("end", [ev.TurnEnd.RESPONSE, ev.TurnEnd.IDLE], ids=["v1 agent", "v2 agent"])

INSERTED = (
    *(d.prompt(), d.has_prompt(), d.said("user_message", messageId="m1"), d.answered("p1", None, "m1")),
    d.agent_is("running"),
)


def begun(end: ev.TurnEnd = ev.TurnEnd.IDLE) -> d.Session:
    session = d.Session(end)
    session.take(*(INSERTED if end is ev.TurnEnd.IDLE else (d.prompt(), d.has_prompt())))
    session.take(announced(title="look"))
    return session


def ended(end: ev.TurnEnd) -> i.AnyInput:
    return d.agent_is("idle", stopReason="end_turn") if end is ev.TurnEnd.IDLE else d.answered()


def announced(name: str = "x", /, **fields: Any) -> i.AgentUpdate:
    return d.said("subagent_update", sessionId=name, **fields)


def of(update: i.AgentUpdate, name: str = "x") -> i.AgentUpdate:
    return replace(update, child=name)


def words(text: str, message: str = "1") -> i.AgentUpdate:
    return of(d.said("agent_message_chunk", messageId=message, content={"type": "text", "text": text}))


def updates(outgoing: list[Outgoing]) -> list[tuple[str | None, dict[str, Any]]]:
    return [(each.child, msgspec.json.decode(each.update)) for each in outgoing if isinstance(each, Tell)]


def calls(outgoing: list[Outgoing]) -> dict[str, dict[str, Any]]:
    """Return the tool calls that represent children, as a client has them in the end."""
    found: dict[str, dict[str, Any]] = {}
    for child, each in updates(outgoing):
        assert child is None
        if each["sessionUpdate"] == "tool_call" and each["toolCallId"].startswith("child:"):
            assert each["toolCallId"] not in found
            found[each["toolCallId"]] = each
        elif each["sessionUpdate"] == "tool_call_update" and each["toolCallId"].startswith("child:"):
            found[each["toolCallId"]] |= each
    return found


def shown(call: dict[str, Any]) -> str:
    return "".join(each["content"]["text"] for each in call.get("content", []))


@every_client
@every_agent
def test_what_a_child_says_reaches_every_client(dialect: Dialect, end: ev.TurnEnd) -> None:
    session = begun(end)
    session.take(words("found it"), of(d.tool("t1", "completed")), ended(end))
    outgoing = seen(dialect, session.log)
    if dialect in (V2, KNOWING):
        said = [each for child, each in updates(outgoing) if child == "s1.1"]
        assert {"agent_message_chunk"} <= {each["sessionUpdate"] for each in said}
        assert any(each.get("toolCallId") == "t1" for each in said)
    else:
        [call] = calls(outgoing).values()
        assert (call["title"], call["status"]) == ("look", "completed")
        assert shown(call) == "found it[completed] t1"


@every_client
def test_frames_of_a_child_come_behind_its_announcement_and_replay_is_the_same(dialect: Dialect) -> None:
    session = begun()
    session.take(words("a"), of(announced("y")), of(d.chunk("deep"), "y"), of(d.agent_is("idle")), words("b"))
    session.take(ended(ev.TurnEnd.IDLE), words("after"), d.gone())
    outgoing = seen(dialect, session.log)
    assert seen(dialect, session.log) == outgoing
    known: set[str | None] = {None}
    for child, each in updates(outgoing):
        assert child in known
        known |= {each["sessionId"]} if each["sessionUpdate"] == "subagent_update" else set()


def test_a_call_that_has_ended_is_followed_by_another() -> None:
    session = begun()
    session.take(words("one"), of(d.agent_is("idle", stopReason="error")), announced(state={"state": "idle"}))
    session.take(
        of(d.agent_is("running")), words("two", "2"), ended(ev.TurnEnd.IDLE), words("three", "3"), d.gone()
    )
    found = calls(seen(PLAIN, session.log))
    assert {name: (each["status"], shown(each)) for name, each in found.items()} == {
        "child:s1.1": ("failed", "one"),
        "child:s1.1:2": ("completed", "two"),
        "child:s1.1:3": ("failed", "three"),
    }


def test_a_cancelled_turn_leaves_no_call_open() -> None:
    session = begun()
    session.take(words("one"), d.cancel(), d.agent_is("idle", stopReason="cancelled"))
    [call] = calls(seen(PLAIN, session.log)).values()
    assert call["status"] == "failed"


def test_a_call_that_a_lost_agent_left_open_is_closed_where_it_is_shown() -> None:
    session = begun()
    session.take(of(d.tool("t1", "in_progress")), d.gone())
    [call] = calls(seen(PLAIN, session.log)).values()
    assert (call["status"], shown(call)) == ("failed", "[failed] t1")


def test_long_words_are_not_sent_again_with_every_piece() -> None:
    session = begun()
    for number in range(500):
        session.take(words(f"piece {number:04d} "))
    session.take(of(d.agent_is("idle")))
    outgoing = seen(PLAIN, session.log)
    sent = sum(len(bytes(each.update)) for each in outgoing if isinstance(each, Tell))
    [call] = calls(outgoing).values()
    assert len(shown(call)) == 500 * len("piece 0000 ")
    assert sent < 250_000


def test_a_request_of_a_child_is_about_the_call_that_stands_for_it() -> None:
    session = begun()
    asks = replace(
        d.asks(),
        child="x",
        params=d.raw(
            {"sessionId": "x", "subject": {"type": "tool_call", "toolCall": {"toolCallId": "t1", "title": "rm"}}}
        ),
    )
    session.take(words("may I?"), asks, d.answer())
    outgoing = seen(PLAIN, session.log)
    [ask] = [msgspec.json.decode(each.params) for each in outgoing if isinstance(each, Ask)]
    assert (ask["sessionId"], ask["toolCall"]["toolCallId"]) == ("s1", "child:s1.1")
    assert (ask["toolCall"]["title"], ask["_meta"]["turnwire"]["toolCallId"]) == ("look: rm", "t1")
    assert calls(outgoing)["child:s1.1"]["title"] == "look"
    for dialect in (V2, KNOWING):
        [told] = [msgspec.json.decode(each.params) for each in seen(dialect, session.log) if isinstance(each, Ask)]
        assert told["sessionId"] == "s1.1"


def test_messages_between_sessions_are_seen_where_children_are_not_known() -> None:
    session = begun()
    block = {"type": "text", "text": "look there"}
    session.take(
        d.said("session_message", messageId="s", senderSessionId="a1", recipientSessionId="x", content=[block])
    )
    session.take(d.said("session_message_chunk", messageId="s", content={"type": "text", "text": ", too"}))
    [call] = calls(seen(PLAIN, session.log)).values()
    assert shown(call) == "look there, too"


def test_a_v2_client_is_told_that_nobody_knows_what_children_of_a_lost_agent_do() -> None:
    session = begun()
    session.take(announced(state={"state": "running"}), announced("y", state={"state": "idle"}), d.gone())
    told = [each for _, each in updates(seen(V2, session.log)) if each.get("state", "") is None]
    assert [each["sessionId"] for each in told] == ["s1.1"]


@every_client
def test_who_comes_late_is_told_of_the_children_that_there_are(dialect: Dialect) -> None:
    session = begun()
    session.take(words("one"), of(announced("y", title="deep")))
    encoder = SessionEncoder(dialect, SessionId("s1"))
    for event in session.log:
        encoder.take(event, own=False)
    standing = updates(encoder.children())
    if dialect in (V2, KNOWING):
        assert [(child, each["sessionId"], each["title"]) for child, each in standing] == [
            (None, "s1.1", "look"),
            ("s1.1", "s1.2", "deep"),
        ]
    else:
        assert [(each["toolCallId"], shown(each)) for _, each in standing] == [
            ("child:s1.1", "one"),
            ("child:s1.2", ""),
        ]


def test_a_copy_of_the_fold_goes_on_by_itself() -> None:
    session = begun()
    encoder = SessionEncoder(V2, SessionId("s1"))
    for event in session.log:
        encoder.take(event, own=False)
    copy = encoder.copy()
    assert copy is not None
    session.take(announced("y", title="other"))
    encoder.take(session.log[-1], own=False)
    assert (len(encoder.children()), len(copy.children())) == (2, 1)
