"""Laws of the view, over made-up logs: a snapshot changes nothing, joining text loses nothing, nothing raises.

The logs are wilder than any runtime writes: events come in any order and payloads are any JSON, so that a law
that holds here holds for every log.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Raw
from msgspec.structs import replace

from turnwire.ids import AgentSessionId, ClientId, MessageId, PermissionId, PromptId
from turnwire.projections.view import VIEW_VERSION, Message, View, decode_view, encode_view
from turnwire.session import events as ev
from turnwire.session.codec import decode, encode

KINDS = [
    *("user_message_chunk", "agent_message_chunk", "agent_thought_chunk"),
    *("user_message", "agent_message", "agent_thought"),
    *("tool_call", "tool_call_update", "tool_call_content_chunk"),
    *("terminal_update", "terminal_output_chunk", "compaction_update", "compaction_summary_chunk"),
    *("plan", "plan_update", "plan_removed", "available_commands_update", "current_mode_update"),
    *("config_option_update", "session_info_update", "usage_update", "state_update", "notice"),
    *("turn_complete", "subagent_update", "_custom"),
]
IDS = st.sampled_from(["a", "b"])
PROMPTS = st.sampled_from([PromptId("p1"), PromptId("p2"), PromptId("p3")])
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
ANY_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
BLOCK: st.SearchStrategy[Any] = st.one_of(
    TEXT.map(lambda text: {"type": "text", "text": text}),
    TEXT.map(lambda text: {"type": "text", "text": text, "annotations": None}),
    st.just({"type": "image", "data": "AA==", "mimeType": "image/png"}),
    st.just({"type": "terminal", "terminalId": "a"}),
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "messageId": IDS,
    "toolCallId": IDS,
    "terminalId": IDS,
    "compactionId": IDS,
    "planId": IDS,
    "content": BLOCK | st.lists(BLOCK, max_size=3),
    "summary": st.lists(BLOCK, max_size=2),
    "entries": st.lists(ANY_JSON, max_size=2),
    "locations": st.lists(ANY_JSON, max_size=2),
    "plan": IDS.map(lambda plan_id: {"type": "items", "planId": plan_id, "entries": []}),
    "status": st.sampled_from(["pending", "in_progress", "completed", "odd"]),
    "kind": st.sampled_from(["read", "other"]),
    "title": TEXT,
    "rawInput": ANY_JSON,
    "output": st.sampled_from(["YWI=", "!!"]).map(lambda encoded: {"data": encoded}),
    "data": st.sampled_from(["YWI=", "YQ==", "!!"]),
    "availableCommands": st.lists(ANY_JSON, max_size=2),
    "configOptions": st.lists(ANY_JSON, max_size=2),
    "currentModeId": TEXT,
    "used": st.integers(0, 9),
    "size": st.integers(0, 9),
    "cost": ANY_JSON,
    "background": st.lists(IDS.map(lambda key: {"type": "tool_call", "toolCallId": key}), max_size=2),
    "_meta": st.dictionaries(IDS, ANY_JSON, max_size=2),
}


def members(wrong: bool) -> st.SearchStrategy[dict[str, Any]]:
    """Fields of an update, all optional; if `wrong`, of any JSON type."""
    values = {name: value | st.none() | ANY_JSON if wrong else value | st.none() for name, value in FIELDS.items()}
    return st.fixed_dictionaries({}, optional=values)


def raw(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))


@st.composite
def updates(draw: st.DrawFn, *, wrong: bool = False) -> ev.SessionUpdated:
    kind = draw(st.sampled_from(KINDS))
    fields = draw(members(wrong))
    update = raw({"sessionUpdate": kind, **fields})
    if wrong and draw(st.booleans()):
        update = raw(draw(ANY_JSON))
    prompt_id, after = draw(
        st.sampled_from([(PromptId("p1"), None), (PromptId("p2"), None), (None, PromptId("p1")), (None, None)])
    )
    return ev.SessionUpdated(
        at=1, kind=kind, update=update, prompt_id=prompt_id, after=after, echo=draw(st.integers(0, 9)) == 0
    )


def turn_events() -> st.SearchStrategy[ev.AnyEvent]:
    content = st.lists(BLOCK, max_size=2).map(raw)
    return st.one_of(
        st.builds(ev.PromptAccepted, at=st.just(1), prompt_id=PROMPTS, after_offset=st.just(0)),
        st.builds(ev.PromptQueued, at=st.just(2), prompt_id=PROMPTS, content=content, position=st.just(0)),
        st.builds(ev.PromptUpdated, at=st.just(3), prompt_id=PROMPTS, content=st.one_of(st.just(UNSET), content)),
        st.builds(
            ev.UserMessage,
            at=st.just(4),
            prompt_id=PROMPTS,
            message_id=st.just(MessageId("m")),
            content=content,
        ),
        st.builds(ev.PromptInjected, at=st.just(5), prompt_id=PROMPTS, into=PROMPTS),
        st.builds(ev.PromptInserted, at=st.just(5), prompt_id=PROMPTS, agent_message_id=IDS),
        st.builds(ev.TurnStarted, at=st.just(6), prompt_id=PROMPTS, origin=st.sampled_from(list(ev.Origin))),
        st.builds(ev.TurnBlocked, at=st.just(7), prompt_id=PROMPTS),
        st.builds(ev.CancelAsked, at=st.just(8), prompt_id=PROMPTS, author=st.just("ann")),
        st.builds(
            ev.TurnCompleted,
            at=st.just(9),
            prompt_id=PROMPTS,
            stop_reason=st.just("end_turn"),
            ending=st.just(ev.Ending.RESPONSE),
        ),
        st.builds(ev.TurnFailed, at=st.just(9), prompt_id=PROMPTS, code=st.just("agent_error"), message=TEXT),
    )


def session_events() -> st.SearchStrategy[ev.AnyEvent]:
    questions = st.sampled_from([PermissionId("q1"), PermissionId("q2")])
    return st.one_of(
        st.builds(ev.SessionRenamed, at=st.just(1), title=st.none() | TEXT),
        st.builds(ev.ClientAttached, at=st.just(1), client_id=st.just(ClientId("c")), role=st.just("observer")),
        st.builds(ev.ClientDetached, at=st.just(1), client_id=st.just(ClientId("c"))),
        st.builds(
            ev.AgentStarted,
            at=st.just(1),
            agent_session_id=st.sampled_from([AgentSessionId("s1"), AgentSessionId("s2")]),
            protocol_version=st.sampled_from([1, 2]),
            turn_end=st.just(ev.TurnEnd.RESPONSE),
        ),
        st.builds(ev.AgentExited, at=st.just(1), reason=st.just("agent_exited")),
        st.builds(
            ev.PermissionRequested,
            at=st.just(1),
            request_id=questions,
            agent_request_id=st.just(1),
            method=st.just("session/request_permission"),
            params=members(wrong=True).map(lambda call: raw({"toolCall": call})) | ANY_JSON.map(raw),
            prompt_id=st.none() | PROMPTS,
        ),
        st.builds(
            ev.PermissionResolved,
            at=st.just(1),
            request_id=questions,
            end=st.just(ev.PermissionEnd.WITHDRAWN),
            answer=st.just(Raw(b"{}")),
        ),
    )


LOGS = st.lists(st.one_of(updates(), updates(), turn_events(), session_events()), max_size=30)


def fold(events: list[ev.AnyEvent], view: View | None = None) -> View:
    view = view or View()
    for event in events:
        view.apply(event)
    return view


@settings(max_examples=200, deadline=None)
@given(log=LOGS, cuts=st.sets(st.integers(0, 30)))
def test_a_view_restored_from_a_snapshot_at_any_cut_folds_on_as_if_nothing_had_happened(
    log: list[ev.AnyEvent], cuts: set[int]
) -> None:
    restored = View()
    for index, event in enumerate(log):
        if index in cuts:
            found = decode_view(encode_view(restored), VIEW_VERSION)
            assert found is not None
            restored = found
        restored.apply(event)
    assert encode_view(restored) == encode_view(fold(log))


@settings(max_examples=200, deadline=None)
@given(log=LOGS)
def test_events_that_were_stored_fold_to_the_same_view_as_events_that_were_not(
    log: list[ev.AnyEvent],
) -> None:
    assert encode_view(fold([decode(encode(event)) for event in log])) == encode_view(fold(log))


@settings(max_examples=200, deadline=None)
@given(log=LOGS, reads=st.sets(st.integers(0, 30)))
def test_reading_a_view_does_not_change_what_it_becomes(log: list[ev.AnyEvent], reads: set[int]) -> None:
    view = View()
    for index, event in enumerate(log):
        view.apply(event)
        if index in reads:
            _ = view.items, view.state, view.result_text(PromptId("p1")), view.user_text(PromptId("p1"))
    assert encode_view(view) == encode_view(fold(log))


@settings(max_examples=200, deadline=None)
@given(log=LOGS)
def test_an_item_names_the_event_that_it_appeared_with_and_every_event_that_changes_it(
    log: list[ev.AnyEvent],
) -> None:
    """Each beginning of the log is folded by itself: reading a view is no part of folding it."""
    before: list[bytes] = []
    for offset in range(1, len(log) + 1):
        items = fold(log[:offset]).items
        shown = [msgspec.json.encode(replace(each, first_event_id=0, last_event_id=0)) for each in items]
        for place, item in enumerate(items):
            assert (item.first_event_id == offset) == (place >= len(before))
            if place >= len(before) or shown[place] != before[place]:
                assert item.last_event_id == offset
        before = shown


@settings(max_examples=300, deadline=None)
@given(
    log=st.lists(st.one_of(updates(wrong=True), updates(wrong=True), turn_events()), max_size=12),
    version=st.sampled_from([1, 2]),
)
def test_no_update_whatever_its_payload_raises_or_makes_a_view_that_cannot_be_stored(
    log: list[ev.AnyEvent], version: int
) -> None:
    started = ev.AgentStarted(
        at=0,
        agent_session_id=AgentSessionId("s1"),
        protocol_version=version,
        turn_end=ev.TurnEnd.RESPONSE,
    )
    view = fold([started, *log])
    assert decode_view(encode_view(view), VIEW_VERSION) is not None


@settings(max_examples=200, deadline=None)
@given(pieces=st.lists(TEXT, min_size=1), message_id=st.none() | st.just("m1"))
def test_text_in_pieces_is_one_block_with_the_concatenation(pieces: list[str], message_id: str | None) -> None:
    view = View()
    for piece in pieces:
        fields = {"content": {"type": "text", "text": piece}, "messageId": message_id}
        update = raw({"sessionUpdate": "agent_message_chunk", **fields})
        view.apply(ev.SessionUpdated(at=1, kind="agent_message_chunk", update=update, prompt_id=PromptId("p1")))
    [message] = view.items
    assert isinstance(message, Message)
    assert [msgspec.json.decode(block) for block in message.content] == [{"type": "text", "text": "".join(pieces)}]


@settings(max_examples=100, deadline=None)
@given(
    said=st.lists(updates(), max_size=8),
    later=st.lists(st.one_of(updates(), updates(), turn_events(), session_events()), max_size=12),
)
def test_the_record_of_an_ended_turn_never_changes_again(
    said: list[ev.SessionUpdated], later: list[ev.AnyEvent]
) -> None:
    ended = PromptId("p1")
    began: list[ev.AnyEvent] = [
        ev.PromptAccepted(at=1, prompt_id=ended, after_offset=0),
        ev.UserMessage(at=1, prompt_id=ended, message_id=MessageId("m"), content=raw([])),
        ev.TurnStarted(at=1, prompt_id=ended),
    ]
    in_turn = [msgspec.structs.replace(each, prompt_id=ended, after=None) for each in said]
    end = ev.TurnCompleted(at=9, prompt_id=ended, stop_reason="end_turn", ending=ev.Ending.RESPONSE)
    view = fold([*began, *in_turn, end])

    def told() -> object:
        return msgspec.json.encode(view.turns[ended]), view.user_text(ended), view.result_text(ended)

    before = told()
    # The turn's table prevents updates of an ended turn in every log.
    fold([each for each in later if not isinstance(each, ev.SessionUpdated) or each.prompt_id != ended], view)
    assert told() == before
