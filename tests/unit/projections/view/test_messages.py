"""Messages of the view: chunks, whole-message updates, prompts and their echoes, late text."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from turnwire.ids import AgentSessionId, ClientId, MessageId, PromptId
from turnwire.projections.view import Message, MessageRole, Unknown, View
from turnwire.session import events as ev

P1, P2 = PromptId("p1"), PromptId("p2")
IMAGE = {"type": "image", "data": "AA==", "mimeType": "image/png"}


def text(value: str, **more: object) -> dict[str, object]:
    return {"type": "text", "text": value, **more}


def said(
    kind: str,
    prompt_id: PromptId | None = P1,
    *,
    after: PromptId | None = None,
    echo: bool = False,
    **fields: Any,
) -> ev.SessionUpdated:
    update = Raw(msgspec.json.encode({"sessionUpdate": kind, **fields}))
    return ev.SessionUpdated(at=5, kind=kind, update=update, prompt_id=prompt_id, after=after, echo=echo)


def chunk(
    value: str, prompt_id: PromptId | None = P1, *, after: PromptId | None = None, **fields: Any
) -> ev.SessionUpdated:
    return said("agent_message_chunk", prompt_id, after=after, content=text(value), **fields)


def agent(version: int, session: str = "s1", how: str = "new") -> ev.AgentStarted:
    return ev.AgentStarted(
        at=0,
        agent_session_id=AgentSessionId(session),
        protocol_version=version,
        turn_end=ev.TurnEnd.RESPONSE,
        how=how,
    )


def began(prompt_id: PromptId, asked: str = "hello") -> list[ev.AnyEvent]:
    content = Raw(msgspec.json.encode([text(asked)]))
    return [
        ev.PromptAccepted(at=1, prompt_id=prompt_id, after_offset=0),
        ev.UserMessage(
            at=2,
            prompt_id=prompt_id,
            message_id=MessageId(f"msg-{prompt_id}"),
            content=content,
            author="ann",
            client_id=ClientId("c1"),
        ),
        ev.TurnStarted(at=3, prompt_id=prompt_id),
    ]


def ended(prompt_id: PromptId) -> ev.TurnCompleted:
    return ev.TurnCompleted(at=9, prompt_id=prompt_id, stop_reason="end_turn", ending=ev.Ending.RESPONSE)


def fold(*events: ev.AnyEvent) -> View:
    view = View()
    for event in events:
        view.apply(event)
    return view


def messages(view: View) -> list[Message]:
    return [item for item in view.items if isinstance(item, Message)]


def blocks(message: Message) -> list[Any]:
    return [msgspec.json.decode(block) for block in message.content]


def shown(view: View) -> list[tuple[str, list[Any]]]:
    return [(message.role.value, blocks(message)) for message in messages(view)]


# -- chunks --------------------------------------------------------------------------------------------------


def test_chunks_without_an_id_continue_the_last_message_of_their_role() -> None:
    view = fold(chunk("a"), chunk("b"), said("agent_thought_chunk", content=text("hm")), chunk("c"))
    assert shown(view) == [("agent", [text("ab")]), ("thought", [text("hm")]), ("agent", [text("c")])]


def test_a_chunk_without_an_id_does_not_reach_over_another_item() -> None:
    view = fold(chunk("a"), said("tool_call", toolCallId="t", title="x"), chunk("b"))
    assert shown(view) == [("agent", [text("a")]), ("agent", [text("b")])]


def test_an_update_of_an_existing_item_does_not_part_a_message() -> None:
    call = said("tool_call_update", toolCallId="t", status="completed")
    view = fold(said("tool_call", toolCallId="t", title="x"), chunk("a"), call, chunk("b"))
    assert shown(view) == [("agent", [text("ab")])]


def test_a_chunk_without_an_id_does_not_continue_the_message_of_another_turn() -> None:
    view = fold(chunk("a", P1), chunk("b", P2), chunk("c", None))
    assert [message.prompt_id for message in messages(view)] == [P1, P2, None]


def test_a_late_chunk_without_an_id_continues_only_what_followed_the_same_turn() -> None:
    view = fold(chunk("a", None, after=P1), chunk("b", None, after=P2), chunk("c", None))
    assert [message.after for message in messages(view)] == [P1, P2, None]


def test_chunks_with_ids_may_interleave() -> None:
    view = fold(
        chunk("a", messageId="1"), chunk("x", messageId="2"), chunk("b", messageId="1"), chunk("y", messageId="2")
    )
    assert shown(view) == [("agent", [text("ab")]), ("agent", [text("xy")])]


def test_one_id_in_two_roles_is_two_messages() -> None:
    thought = said("agent_thought_chunk", content=text("hm"), messageId="1")
    assert shown(fold(chunk("a", messageId="1"), thought)) == [("agent", [text("a")]), ("thought", [text("hm")])]


@pytest.mark.parametrize(
    "other",
    [text("!", annotations={"priority": 1}), text("!", _meta={}), IMAGE, {"type": "_new", "x": 1}],
    ids=["annotations", "meta", "image", "unknown"],
)
def test_only_blocks_with_nothing_but_text_merge(other: dict[str, object]) -> None:
    odd = said("agent_message_chunk", content=other)
    view = fold(chunk("a"), chunk("b"), odd, chunk("c"), chunk("d"))
    assert shown(view) == [("agent", [text("ab"), other, text("cd")])]


def test_a_block_that_is_not_merged_keeps_its_bytes() -> None:
    block = b'{"type" : "image","data":"AA==" , "x":1.50}'
    update = Raw(b'{"sessionUpdate":"agent_message_chunk","content":%b}' % block)
    [message] = messages(fold(ev.SessionUpdated(at=1, kind="agent_message_chunk", update=update)))
    assert [bytes(each) for each in message.content] == [block]


def test_a_message_id_of_a_wrong_type_reads_as_none() -> None:
    assert shown(fold(chunk("a"), chunk("b", messageId=7))) == [("agent", [text("ab")])]


@pytest.mark.parametrize("content", [None, 3, "a", [text("a")]])
def test_a_chunk_without_a_block_is_kept_as_unknown(content: object) -> None:
    event = said("agent_message_chunk", content=content)
    [item] = fold(event).items
    assert isinstance(item, Unknown)
    assert (item.kind, bytes(item.update)) == ("agent_message_chunk", bytes(event.update))


# -- whole messages ------------------------------------------------------------------------------------------


def test_updates_replace_and_chunks_append_in_the_order_they_come() -> None:
    a, b, c, d = text("A"), IMAGE, text("C", _meta={"k": 1}), text("D")
    steps = [
        (said("agent_message", messageId="1", content=[a]), [a]),
        (said("agent_message_chunk", messageId="1", content=b), [a, b]),
        (said("agent_message", messageId="1", content=[c]), [c]),
        (said("agent_message_chunk", messageId="1", content=d), [c, d]),
        (said("agent_message", messageId="1"), [c, d]),
    ]
    view = fold(agent(2))
    for event, expected in steps:
        view.apply(event)
        assert shown(view) == [("agent", expected)]


def test_text_after_a_plain_text_block_merges_with_it_and_is_dropped_by_a_replacement() -> None:
    view = fold(agent(2), said("agent_message", messageId="1", content=[text("A")]), chunk("B", messageId="1"))
    assert shown(view) == [("agent", [text("AB")])]
    view.apply(chunk("C", messageId="1"))
    view.apply(said("agent_message", messageId="1", content=[text("new")]))
    view.apply(chunk("!", messageId="1"))
    assert shown(view) == [("agent", [text("new!")])]


@pytest.mark.parametrize("content", [None, []])
def test_null_and_an_empty_list_clear_a_message(content: object) -> None:
    view = fold(agent(2), chunk("a", messageId="1"), said("agent_message", messageId="1", content=content))
    assert shown(view) == [("agent", [])]


def test_content_that_is_no_list_reads_as_omitted() -> None:
    view = fold(agent(2), chunk("a", messageId="1"), said("agent_message", messageId="1", content="x"))
    assert shown(view) == [("agent", [text("a")])]


def test_metadata_is_patched_by_key() -> None:
    view = fold(
        agent(2),
        said("agent_thought", messageId="1", _meta={"a": 1, "b": {"x": 1}, "gone": 2}),
        said("agent_thought", messageId="1", _meta={"b": {"y": 2}, "gone": None}),
    )
    [message] = messages(view)
    assert {key: bytes(value) for key, value in message.meta.items()} == {"a": b"1", "b": b'{"y":2}'}
    view.apply(said("agent_thought", messageId="1", _meta=None))
    assert message.meta == {}


def test_a_whole_message_without_an_id_is_kept_as_unknown() -> None:
    [item] = fold(agent(2), said("agent_message", content=[text("a")])).items
    assert isinstance(item, Unknown)


# -- prompts -------------------------------------------------------------------------------------------------


def test_a_prompt_is_shown_once_as_the_client_sent_it() -> None:
    view = fold(
        *began(P1),
        said("user_message_chunk", echo=True, content=text("hel"), messageId="u1"),
        said("user_message_chunk", echo=True, content=text("lo"), messageId="u1"),
        chunk("hi"),
    )
    assert shown(view) == [("user", [text("hello")]), ("agent", [text("hi")])]
    prompt = messages(view)[0]
    assert (prompt.message_id, prompt.agent_message_id) == ("msg-p1", "u1")
    assert (prompt.author, prompt.client_id, prompt.is_prompt) == ("ann", "c1", True)


@pytest.mark.parametrize("learnt", ["echo", "inserted"])
def test_a_replayed_copy_of_a_prompt_is_known_by_its_id_and_adds_nothing(learnt: str) -> None:
    bound = (
        said("user_message", echo=True, content=[text("hello")], messageId="u1")
        if learnt == "echo"
        else ev.PromptInserted(at=4, prompt_id=P1, agent_message_id="u1")
    )
    view = fold(agent(2), *began(P1), bound, ended(P1), agent(2, how="resume"))
    view.apply(said("user_message", None, after=P1, content=[text("replayed")], messageId="u1"))
    view.apply(said("user_message_chunk", None, after=P1, content=text("again"), messageId="u1"))
    view.apply(said("user_message_chunk", None, after=P1, content=IMAGE, messageId="u1"))
    assert shown(view) == [("user", [text("hello")])]
    assert not messages(view)[0].late


def test_the_id_of_a_prompt_that_was_asked_before_its_agent_started_is_known() -> None:
    echo = said("user_message", echo=True, content=[text("hello")], messageId="u1")
    replayed = said("user_message", None, after=P1, content=[text("hello")], messageId="u1")
    view = fold(*began(P1), agent(2), echo, ended(P1), replayed)
    assert shown(view) == [("user", [text("hello")])]


def test_a_replayed_whole_message_does_not_double() -> None:
    view = fold(agent(2), *began(P1), chunk("answer", messageId="m1"), ended(P1), agent(2, how="resume"))
    view.apply(said("agent_message", None, after=P1, content=[text("answer")], messageId="m1"))
    assert shown(view)[1:] == [("agent", [text("answer")])]


def test_user_messages_that_are_no_copy_are_shown() -> None:
    view = fold(agent(2), *began(P1), said("user_message", content=[text("from elsewhere")], messageId="u9"))
    assert shown(view) == [("user", [text("hello")]), ("user", [text("from elsewhere")])]


def test_a_users_chunk_without_an_id_is_not_written_into_a_prompt() -> None:
    view = fold(*began(P1), said("user_message_chunk", content=text("x")))
    assert shown(view) == [("user", [text("hello")]), ("user", [text("x")])]


def test_an_id_that_names_another_message_is_not_taken_for_the_prompts() -> None:
    view = fold(
        agent(2),
        said("user_message", None, content=[text("early")], messageId="u1"),
        *began(P1),
        said("user_message", echo=True, content=[text("hello")], messageId="u1"),
    )
    assert [message.agent_message_id for message in messages(view)] == [None, None]


def test_an_echo_in_a_turn_without_a_prompt_adds_nothing() -> None:
    assert fold(said("user_message", PromptId("agent-1"), echo=True, messageId="u1")).items == []


# -- late words ----------------------------------------------------------------------------------------------


def test_late_words_without_an_id_are_a_message_of_their_own() -> None:
    view = fold(*began(P1), chunk("in time"), ended(P1), chunk("la", None, after=P1), chunk("te", None, after=P1))
    _, in_time, late = messages(view)
    assert (blocks(in_time), in_time.prompt_id, in_time.late) == ([text("in time")], P1, False)
    assert (blocks(late), late.prompt_id, late.after, late.late) == ([text("late")], None, P1, True)
    assert view.result_text(P1) == "in time"


def test_late_words_with_the_id_of_a_message_continue_it_and_mark_it_late() -> None:
    view = fold(*began(P1), chunk("in time", messageId="m"), ended(P1))
    view.apply(chunk(", late", None, after=P1, messageId="m"))
    view.apply(chunk(", later", None, after=P1, messageId="m"))
    message = messages(view)[1]
    assert blocks(message) == [text("in time, late, later")]
    assert (message.prompt_id, message.after, message.late) == (P1, P1, True)


def test_what_a_turn_said_does_not_change_when_its_last_message_goes_on_late() -> None:
    view = fold(*began(P1), chunk("in time", messageId="m"), ended(P1))
    view.apply(chunk(", late", None, after=P1, messageId="m"))
    view.apply(said("agent_message", None, after=P1, messageId="m", content=[text("replaced")]))
    assert blocks(messages(view)[1]) == [text("replaced")]
    assert view.result_text(P1) == "in time"


def test_a_message_of_an_ended_turn_that_goes_on_in_the_next_turn_is_late() -> None:
    view = fold(*began(P1), chunk("one", messageId="m"), ended(P1), *began(P2), chunk("two", P2, messageId="m"))
    message = messages(view)[1]
    assert (message.prompt_id, message.after) == (P1, P1)
    assert (view.result_text(P1), view.result_text(P2)) == ("one", None)


def test_text_that_is_still_growing_is_part_of_what_was_said_in_time() -> None:
    [message] = messages(fold(chunk("one", P1, messageId="m"), chunk("two", P2, messageId="m")))
    assert message.in_time is not None
    assert [msgspec.json.decode(block) for block in message.in_time] == [text("one")]
    assert blocks(message) == [text("onetwo")]


# -- another agent -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        (agent(1), agent(1, how="load"), False),
        (agent(2), agent(2, "s2"), False),
        (agent(2), agent(2, how="resume"), True),
        (agent(1), agent(2), True),
    ],
    ids=["v1 load", "v2 another session", "v2 resume", "v1 to v2"],
)
def test_ids_mean_the_same_only_within_one_life_of_the_agents_session(
    before: ev.AgentStarted, now: ev.AgentStarted, same: bool
) -> None:
    view = fold(before, chunk("a", messageId="1"), now, chunk("b", messageId="1"))
    expected = [[text("ab")]] if same else [[text("a")], [text("b")]]
    assert [blocks(message) for message in messages(view)] == expected


def test_a_chunk_without_an_id_does_not_continue_another_agents_message() -> None:
    view = fold(agent(1), chunk("a"), agent(1, "s2"), chunk("b"))
    assert [blocks(message) for message in messages(view)] == [[text("a")], [text("b")]]


def test_roles_are_kept_apart_by_kind() -> None:
    view = fold(
        said("user_message", messageId="1"),
        said("agent_message", messageId="1"),
        said("agent_thought", messageId="1"),
    )
    told = [message.role for message in messages(view)]
    assert told == [MessageRole.USER, MessageRole.AGENT, MessageRole.THOUGHT]


@pytest.mark.parametrize("named", [{}, {"messageId": "m"}])
def test_every_piece_of_a_message_is_the_last_event_of_it_when_it_comes(named: dict[str, Any]) -> None:
    view = fold(*began(P1), chunk("a", **named), chunk("b", **named), chunk("c", **named))
    assert [(each.first_event_id, each.last_event_id) for each in view.items] == [(2, 2), (4, 6)]
