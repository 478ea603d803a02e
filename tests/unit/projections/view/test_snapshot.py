"""Snapshots of the view, its completeness over all events, and the cost of a long stream."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from turnwire.ids import (
    AgentSessionId,
    ChildId,
    ClientId,
    MessageId,
    PermissionId,
    PromptId,
    SessionId,
)
from turnwire.projections.view import VIEW_VERSION, Message, View, decode_view, encode_view
from turnwire.session import events as ev

P1, P2 = PromptId("p1"), PromptId("p2")


def said(kind: str, prompt_id: PromptId | None = P1, **fields: Any) -> ev.SessionUpdated:
    update = Raw(msgspec.json.encode({"sessionUpdate": kind, **fields}))
    return ev.SessionUpdated(at=5, kind=kind, update=update, prompt_id=prompt_id)


def chunk(text: str, **fields: Any) -> ev.SessionUpdated:
    return said("agent_message_chunk", content={"type": "text", "text": text}, **fields)


def named(kind: str, names: dict[str, str], **fields: Any) -> ev.SessionUpdated:
    return replace(said(kind, **fields), names=names)


def everything() -> list[ev.AnyEvent]:
    """Return a log with every kind of event."""
    hello = Raw(b'[{"type":"text","text":"hello"}]')
    question = PermissionId("q1")
    return [
        ev.SessionCreated(at=1, session_id=SessionId("s"), cwd="/w"),
        ev.ClientAttached(at=1, client_id=ClientId("c"), role="controller"),
        ev.ClientAttached(at=1, client_id=ClientId("d"), role="observer"),
        ev.ClientDetached(at=1, client_id=ClientId("d")),
        ev.PromptAccepted(at=2, prompt_id=P1, after_offset=3, prompt_request_id="7"),
        ev.UserMessage(at=2, prompt_id=P1, message_id=MessageId("m"), content=hello),
        ev.TurnStarted(at=2, prompt_id=P1),
        ev.AgentStarted(
            at=3,
            agent_session_id=AgentSessionId("s"),
            protocol_version=2,
            turn_end=ev.TurnEnd.IDLE,
        ),
        ev.HistoryCompared(at=3, replayed=0, matched=0, missing=1),
        ev.PromptSent(at=3, prompt_id=P1, agent_request_id=1),
        ev.PromptAnswered(at=3, prompt_id=P1),
        ev.PromptInserted(at=3, prompt_id=P1, agent_message_id="u1"),
        said("usage_update", used=1, size=2, cost={"amount": 1}),
        said("plan", entries=[]),
        said("available_commands_update", availableCommands=[]),
        said("state_update", state="running", background=[{"type": "tool_call", "toolCallId": "t"}]),
        said("tool_call_update", toolCallId="t", rawInput=None, rawOutput=[1], _meta={"k": 1}),
        said("terminal_output_chunk", terminalId="x", data="YQ=="),
        said("compaction_summary_chunk", compactionId="c", content={"type": "text", "text": "so"}),
        said("_vendor", x=1),
        named("subagent_update", {"inner": "s.1"}, sessionId="inner", title="look"),
        replace(chunk("in it", messageId="1"), child=ChildId("s.1")),
        replace(said("state_update", state="running"), child=ChildId("s.1")),
        chunk("hi", messageId="1"),
        ev.PromptAccepted(at=4, prompt_id=P2, after_offset=9),
        ev.PromptQueued(at=4, prompt_id=P2, content=hello, position=0, steering=True),
        ev.SteerDeclined(at=4, prompt_id=P2),
        ev.PromptUpdated(at=4, prompt_id=P2, position=0),
        ev.PromptOffered(at=4, prompt_id=P2),
        ev.PermissionRequested(
            at=5,
            request_id=question,
            agent_request_id=1,
            method="session/request_permission",
            params=Raw(b"{}"),
            options=("yes",),
            prompt_id=P1,
        ),
        ev.TurnBlocked(at=5, prompt_id=P1),
        ev.PermissionResolved(
            at=6,
            request_id=question,
            end=ev.PermissionEnd.ANSWERED,
            answer=Raw(b"{}"),
            prompt_id=P1,
        ),
        ev.PermissionAnsweredLate(at=6, request_id=question),
        ev.TurnUnblocked(at=6, prompt_id=P1),
        ev.SessionRenamed(at=6, title="mine"),
        ev.SessionUnarchived(at=6),
        ev.SessionArchived(at=6),
        ev.SetupChanged(at=6, mcp_servers=Raw(b"[]"), additional_directories=("/x",)),
        ev.ModeChanged(at=6, mode="plan"),
        ev.ModelSwitched(at=6, model_id="big"),
        ev.OptionSet(at=6, config_id="effort", value="high"),
        ev.ChoicesRestored(at=6),
        ev.ChoicesLost(at=6, lost=()),
        ev.QueueHeld(at=6, reason="asked"),
        ev.QueueReleased(at=6),
        chunk(" there", messageId="1"),
        ev.PromptDequeued(at=6, prompt_id=P2),
        ev.PromptInjected(at=6, prompt_id=P2, into=P1),
        ev.CancelAsked(at=7, prompt_id=P1, author="ann"),
        ev.CancelEscalated(at=8, prompt_id=P1, rung=ev.CancelRung.KILL),
        ev.ChildCancelAsked(at=8, child=ChildId("s.1")),
        ev.AgentExited(at=9, reason="agent_exited", exit_code=1),
        ev.TurnCompleted(at=9, prompt_id=P1, stop_reason="cancelled", ending=ev.Ending.CANCELLED),
        ev.PromptFinished(at=9, prompt_id=P2, state=ev.QueueExit.COMPLETED),
        ev.TurnFailed(at=9, prompt_id=P2, code="agent_exited", message="gone", agent_error=Raw(b"null")),
        ev.SessionClosed(at=10, reason="closed"),
    ]


def fold(events: list[ev.AnyEvent], view: View | None = None) -> View:
    view = view or View()
    for event in events:
        view.apply(event)
    return view


def test_every_kind_of_event_is_folded() -> None:
    assert {type(event) for event in everything()} == set(ev.AnyEvent.__args__)
    view = fold(everything())
    assert (view.result_text(P1), view.session.title) == ("hi there", "mine")


@pytest.mark.parametrize("cut", range(len(everything()) + 1))
def test_a_restored_view_goes_on_as_the_stored_one(cut: int) -> None:
    log = everything()
    restored = decode_view(encode_view(fold(log[:cut])), VIEW_VERSION)
    assert restored is not None
    assert encode_view(fold(log[cut:], restored)) == encode_view(fold(log))


def test_a_restored_view_does_not_know_ids_of_an_earlier_life() -> None:
    def agent(session: str) -> ev.AgentStarted:
        return ev.AgentStarted(
            at=3,
            agent_session_id=AgentSessionId(session),
            protocol_version=2,
            turn_end=ev.TurnEnd.IDLE,
        )

    call = said("tool_call_update", toolCallId="t")
    restored = decode_view(
        encode_view(fold([agent("s1"), chunk("a", messageId="1"), call, agent("s2")])), VIEW_VERSION
    )
    assert restored is not None
    assert len(fold([chunk("b", messageId="1"), call], restored).items) == 4


def test_a_snapshot_of_another_version_is_not_read() -> None:
    body = encode_view(fold(everything()))
    assert decode_view(body, VIEW_VERSION) is not None
    assert decode_view(body, VIEW_VERSION + 1) is None


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"session":{}}'])
def test_a_snapshot_that_cannot_be_read_is_none(body: bytes) -> None:
    assert decode_view(body, VIEW_VERSION) is None


def test_two_views_share_nothing() -> None:
    fold(everything())
    assert encode_view(View()) == encode_view(fold([]))
    assert View().items == []


# -- cost ----------------------------------------------------------------------------------------------------

CHUNKS = 50_000
PIECE = "twenty bytes of text"


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("ids", [[None], ["1"], ["1", "2"]], ids=["no id", "one id", "interleaved"])
def test_a_long_stream_of_small_chunks_needs_little_more_memory_than_its_text(ids: list[str | None]) -> None:
    events = [chunk(PIECE, messageId=message_id) for message_id in ids]
    view = View()
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    for number in range(CHUNKS):
        view.apply(events[number % len(events)])
    items = view.items
    _, peak = tracemalloc.get_traced_memory()
    # The buffer, and while it becomes a block the text and its encoding. Separate strings would need more.
    assert peak - before < 4 * CHUNKS * len(PIECE)
    texts = [item.content for item in items if isinstance(item, Message)]
    assert [len(content) for content in texts] == [1] * len(ids)
    assert sum(len(bytes(content[0])) for content in texts) > CHUNKS * len(PIECE)
