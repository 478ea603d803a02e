"""Turn records of the view, the running turn, open requests and attached clients."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw

from turnwire.ids import ClientId, MessageId, PermissionId, PromptId, RequestId
from turnwire.projections.view import Outcome, TurnError, View
from turnwire.session import events as ev
from turnwire.session.turn import TurnState

P1, P2 = PromptId("p1"), PromptId("p2")


def content(text: str) -> Raw:
    return Raw(msgspec.json.encode([{"type": "text", "text": text}]))


def accepted(prompt_id: PromptId = P1, prompt_request_id: RequestId = 7) -> ev.PromptAccepted:
    return ev.PromptAccepted(
        at=1,
        prompt_id=prompt_id,
        after_offset=0,
        author="ann",
        client_id=ClientId("c1"),
        prompt_request_id=prompt_request_id,
    )


def asked(prompt_id: PromptId = P1, text: str = "hello") -> ev.UserMessage:
    message_id = MessageId(f"m-{prompt_id}")
    return ev.UserMessage(at=3, prompt_id=prompt_id, message_id=message_id, content=content(text))


def started(prompt_id: PromptId = P1) -> ev.TurnStarted:
    return ev.TurnStarted(at=4, prompt_id=prompt_id)


def began(prompt_id: PromptId = P1) -> list[ev.AnyEvent]:
    return [accepted(prompt_id), asked(prompt_id), started(prompt_id)]


def completed(
    prompt_id: PromptId = P1, stop_reason: str = "end_turn", ending: ev.Ending = ev.Ending.RESPONSE
) -> ev.TurnCompleted:
    return ev.TurnCompleted(at=9, prompt_id=prompt_id, stop_reason=stop_reason, ending=ending)


def said(kind: str, prompt_id: PromptId | None = P1, **fields: Any) -> ev.SessionUpdated:
    update = Raw(msgspec.json.encode({"sessionUpdate": kind, **fields}))
    return ev.SessionUpdated(at=5, kind=kind, update=update, prompt_id=prompt_id)


def chunk(text: str, prompt_id: PromptId | None = P1, kind: str = "agent_message_chunk") -> ev.SessionUpdated:
    return said(kind, prompt_id, content={"type": "text", "text": text})


def fold(*events: ev.AnyEvent) -> View:
    view = View()
    for event in events:
        view.apply(event)
    return view


@pytest.mark.parametrize("prompt_request_id", [7, "7"])
def test_a_turn_can_be_told_from_the_log_alone(prompt_request_id: RequestId) -> None:
    usage = Raw(b'{"totalTokens":3}')
    end = msgspec.structs.replace(completed(), usage=usage)
    sent = ev.PromptSent(at=5, prompt_id=P1, agent_request_id=prompt_request_id)
    view = fold(accepted(P1, prompt_request_id), asked(), started(), sent, chunk("hi"), end)
    record = view.turns[P1]
    assert (record.origin, record.author, record.client_id) == (ev.Origin.CLIENT, "ann", "c1")
    for kept in (record.prompt_request_id, record.agent_request_id):
        assert (kept, type(kept)) == (prompt_request_id, type(prompt_request_id))
    assert (record.accepted_at, record.queued_at, record.started_at, record.ended_at) == (1, None, 4, 9)
    assert record.state is TurnState.ENDED
    assert record.outcome == Outcome(stop_reason="end_turn", ending=ev.Ending.RESPONSE, usage=usage)
    assert (view.user_text(P1), view.result_text(P1)) == ("hello", "hi")
    assert [item.prompt_id for item in view.items] == [P1, P1]


def test_a_failed_turn_tells_why() -> None:
    failed = ev.TurnFailed(
        at=9,
        prompt_id=P1,
        code="agent_exited",
        message="the agent exited",
        exit_code=1,
        signal="SIGSEGV",
        stderr_tail="boom",
        agent_error=Raw(b'{"code":-32603}'),
    )
    outcome = fold(*began(), failed).turns[P1].outcome
    error = TurnError("agent_exited", "the agent exited", 1, "SIGSEGV", "boom", Raw(b'{"code":-32603}'))
    assert outcome == Outcome(error=error)


def test_the_foreground_follows_the_events_of_the_active_turn() -> None:
    view = fold()
    for event, state, active in [
        (accepted(), "idle", None),
        (asked(), "idle", None),
        (started(), "running", P1),
        (said("state_update", state="idle"), "running", P1),
        (ev.TurnBlocked(at=5, prompt_id=P1), "requires_action", P1),
        (ev.TurnUnblocked(at=5, prompt_id=P1), "running", P1),
        (ev.CancelAsked(at=6, prompt_id=P1), "cancelling", P1),
        (ev.CancelEscalated(at=7, prompt_id=P1, rung=ev.CancelRung.KILL), "cancelling", P1),
        (completed(stop_reason="cancelled"), "idle", None),
        (said("state_update", None, state="running"), "idle", None),
    ]:
        view.apply(event)
        assert (view.state, view.active) == (state, active)


def test_a_turn_that_the_agent_began_has_a_record_without_a_prompt() -> None:
    agents = PromptId("agent-1")
    begins = ev.TurnStarted(at=4, prompt_id=agents, origin=ev.Origin.AGENT)
    view = fold(begins, chunk("unasked", agents), completed(agents))
    record = view.turns[agents]
    assert (record.origin, record.accepted_at, record.started_at) == (ev.Origin.AGENT, None, 4)
    assert (view.user_text(agents), view.result_text(agents)) == (None, "unasked")


def test_a_waiting_prompt_shows_what_it_asks_before_it_is_a_message() -> None:
    view = fold(*began(), accepted(P2))
    view.apply(ev.PromptQueued(at=2, prompt_id=P2, content=content("first"), position=0))
    assert (view.turns[P2].state, view.turns[P2].queued_at, view.user_text(P2)) == (TurnState.QUEUED, 2, "first")
    view.apply(ev.PromptUpdated(at=3, prompt_id=P2, content=content("second")))
    view.apply(ev.PromptUpdated(at=3, prompt_id=P2, position=0))
    assert (view.user_text(P2), len(view.items)) == ("second", 1)
    view.apply(completed())
    view.apply(ev.PromptDequeued(at=3, prompt_id=P2))
    view.apply(asked(P2, "second"))
    view.apply(started(P2))
    assert (view.turns[P2].place.waiting, view.user_text(P2), view.active) == (UNSET, "second", P2)


def test_a_prompt_that_was_removed_has_an_end_and_no_message() -> None:
    view = fold(*began(), accepted(P2))
    view.apply(ev.PromptQueued(at=2, prompt_id=P2, content=content("never"), position=0))
    view.apply(ev.PromptFinished(at=3, prompt_id=P2, state=ev.QueueExit.REMOVED))
    view.apply(completed(P2, "cancelled", ev.Ending.REMOVED))
    assert (view.turns[P2].state, view.user_text(P2), view.result_text(P2)) == (TurnState.ENDED, "never", None)
    assert (view.active, len(view.items)) == (P1, 1)


def test_a_prompt_that_joined_a_turn_is_a_message_in_it_and_ends_beside_it() -> None:
    view = fold(*began(), chunk("a"), accepted(P2))
    view.apply(ev.PromptInjected(at=5, prompt_id=P2, into=P1))
    view.apply(asked(P2, "also this"))
    view.apply(chunk("b"))
    view.apply(completed(P1))
    view.apply(completed(P2, ending=ev.Ending.JOINED))
    assert (view.turns[P2].joined_into, view.turns[P2].started_at) == (P1, None)
    assert [item.prompt_id for item in view.items] == [P1, P1, P2, P1]
    assert (view.result_text(P1), view.result_text(P2)) == ("b", None)


@pytest.mark.parametrize(
    ("by", "end_says", "expected"), [("bob", None, "bob"), (None, None, "c2"), ("bob", "carol", "carol")]
)
def test_who_cancelled_is_in_the_record(by: str | None, end_says: str | None, expected: str) -> None:
    end = msgspec.structs.replace(completed(stop_reason="cancelled"), cancelled_by=end_says)
    view = fold(*began(), ev.CancelAsked(at=6, prompt_id=P1, author=by, client_id=ClientId("c2")), end)
    assert view.turns[P1].cancelled_by == expected


@pytest.mark.parametrize(
    "repeat",
    [
        said("state_update", None, state="idle", stopReason="refusal"),
        said("turn_complete", None, stopReason="refusal", promptRequestId=7),
        completed(stop_reason="refusal"),
        ev.TurnFailed(at=99, prompt_id=P1, code="agent_error", message="late"),
        started(),
        asked(text="again"),
        accepted(),
        ev.CancelAsked(at=99, prompt_id=P1, author="eve"),
        ev.PromptInserted(at=99, prompt_id=P1, agent_message_id="u1"),
    ],
    ids=lambda event: type(event).__name__ if not isinstance(event, ev.SessionUpdated) else event.kind,
)
def test_nothing_that_is_repeated_after_the_end_changes_the_record_or_counts_as_another(
    repeat: ev.AnyEvent,
) -> None:
    view = fold(*began(), chunk("hi"), completed())
    before = msgspec.json.encode(view.turns), msgspec.json.encode(view.items)
    view.apply(repeat)
    assert (msgspec.json.encode(view.turns), msgspec.json.encode(view.items)) == before
    assert (view.state, view.active) == ("idle", None)


# -- the result ----------------------------------------------------------------------------------------------


def test_the_result_is_the_last_message_of_the_agent_while_it_runs_and_after() -> None:
    view = fold(*began(), chunk("first"), chunk("hm", kind="agent_thought_chunk"))
    assert view.result_text(P1) == "first"
    view.apply(chunk("sec"))
    view.apply(chunk("ond"))
    view.apply(chunk("hm", kind="agent_thought_chunk"))
    assert view.result_text(P1) == "second"
    view.apply(completed())
    assert view.result_text(P1) == "second"


def test_the_result_has_the_text_of_all_text_blocks_and_of_no_other() -> None:
    blocks: list[dict[str, Any]] = [
        {"type": "text", "text": "a", "annotations": {}},
        {"type": "image", "data": "AA==", "mimeType": "image/png"},
        {"type": "text", "text": "b"},
    ]
    view = fold(*began(), said("agent_message", messageId="1", content=blocks), completed())
    assert view.result_text(P1) == "ab"


@pytest.mark.parametrize("prompt_id", [P1, PromptId("never heard of")])
def test_a_turn_in_which_the_agent_said_nothing_has_no_result(prompt_id: PromptId) -> None:
    view = fold(chunk("background", None), *began(), completed())
    assert view.result_text(prompt_id) is None


def test_an_unknown_turn_asked_nothing() -> None:
    assert fold().user_text(P1) is None


def test_a_prompt_whose_content_is_no_list_is_kept_as_one_block() -> None:
    odd = msgspec.structs.replace(asked(), content=Raw(b'{"type":"text","text":"bare"}'))
    assert fold(accepted(), odd).user_text(P1) == "bare"


# -- questions and clients -----------------------------------------------------------------------------------


def question(request_id: str) -> ev.PermissionRequested:
    return ev.PermissionRequested(
        at=5,
        request_id=PermissionId(request_id),
        agent_request_id=1,
        method="elicitation/create",
        params=Raw(b"{}"),
        prompt_id=P1,
    )


def test_permissions_are_the_questions_that_are_open() -> None:
    first, second = question("q1"), question("q2")
    view = fold(*began(), first, second)
    assert list(view.permissions.values()) == [first, second]
    resolved = ev.PermissionResolved(
        at=6,
        request_id=first.request_id,
        end=ev.PermissionEnd.ANSWERED,
        answer=Raw(b"{}"),
        prompt_id=P1,
    )
    late = ev.PermissionAnsweredLate(at=7, request_id=first.request_id)
    for event in (resolved, resolved, late):
        view.apply(event)
    assert list(view.permissions) == ["q2"]


def test_clients_are_those_that_are_attached_in_their_last_role() -> None:
    def attached(client_id: str, role: str) -> ev.ClientAttached:
        return ev.ClientAttached(at=1, client_id=ClientId(client_id), role=role)

    view = fold(attached("a", "observer"), attached("b", "observer"), attached("a", "controller"))
    assert {each: found.role for each, found in view.clients.items()} == {"a": "controller", "b": "observer"}
    view.apply(ev.ClientDetached(at=2, client_id=ClientId("b")))
    view.apply(ev.ClientDetached(at=2, client_id=ClientId("never there")))
    assert list(view.clients) == ["a"]
    view.apply(ev.SessionClosed(at=3, reason="closed"))
    assert view.clients == {}


def plan(*steps: str, prompt_id: PromptId | None = P1) -> ev.SessionUpdated:
    return said("plan", prompt_id, entries=[{"content": each, "status": "pending"} for each in steps])


def test_a_turn_keeps_the_plan_that_it_reported_last() -> None:
    view = fold(*began(), plan("read"), plan("read", "write"), completed(), *began(P2), completed(P2))
    # An update without a turn is late, and changes the current plan only.
    view.apply(plan("read", "write", "test", prompt_id=None))
    one, two = view.turns.values()
    assert [len(msgspec.json.decode(each)["entries"]) for each in one.plans.values()] == [2]
    assert two.plans == {}
    assert len(msgspec.json.decode(view.latest.plans["main"])["entries"]) == 3


@pytest.mark.parametrize(
    ("option_id", "end", "allowed"),
    [
        ("yes", ev.PermissionEnd.ANSWERED, True),
        ("no", ev.PermissionEnd.ANSWERED, False),
        ("odd", ev.PermissionEnd.ANSWERED, None),
        ("yes", ev.PermissionEnd.WITHDRAWN, None),
    ],
)
def test_a_turn_keeps_who_allowed_or_rejected_a_tool_call(
    option_id: str, end: ev.PermissionEnd, allowed: bool | None
) -> None:
    options = [{"optionId": "yes", "kind": "allow_once"}, {"optionId": "no", "kind": "reject_once"}]
    request = ev.PermissionRequested(
        at=5,
        request_id=PermissionId("q1"),
        agent_request_id=1,
        method="session/request_permission",
        params=Raw(msgspec.json.encode({"toolCall": {"toolCallId": "t1"}, "options": options})),
        prompt_id=P1,
    )
    resolved = ev.PermissionResolved(
        at=6,
        request_id=PermissionId("q1"),
        end=end,
        answer=Raw(msgspec.json.encode({"outcome": {"outcome": "selected", "optionId": option_id}})),
        author="ann",
        prompt_id=P1,
    )
    view = fold(*began(), request, resolved, completed())
    found = [(each.tool_call_id, each.allowed, each.author) for each in view.turns[P1].asked.values()]
    assert found == ([] if allowed is None else [("t1", allowed, "ann")])
