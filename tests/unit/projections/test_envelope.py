"""Events as REST clients read them, and back: nothing is lost, and the names are those of the contract."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from tests.unit.session.driving import AT, ELICITATION, PERMISSION, REFUSED, chosen, content, raw
from tests.unit.session.random_events import KINDS, events_of

from turnwire.errors import LogCorrupt, LogVersionMismatch, RemoteProtocolError
from turnwire.ids import AgentSessionId, ClientId, MessageId, PermissionId, PromptId, SessionId
from turnwire.limits import Limits
from turnwire.projections.envelope import Shape, ShapeFold, read_envelope, stream_frame, to_envelope
from turnwire.session import events as ev
from turnwire.session.codec import encode
from turnwire.wire.sse import SseReader, encode_event, in_ascii

S1, P1, C1, Q1 = SessionId("s1"), PromptId("p1"), ClientId("c1"), PermissionId("q1")
CHUNK = raw({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "hi"}})

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def envelope_of(event: ev.AnyEvent, offset: int = 7) -> dict[str, Any]:
    return msgspec.json.decode(to_envelope(S1, offset, encode(event)), type=dict[str, Any])


def frame_of(offset: int, body: bytes) -> bytes:
    (frame,) = ShapeFold(S1, Shape.AGENT, offset - 1).project([body])
    return frame


def shown(event: ev.AnyEvent) -> dict[str, Any]:
    return envelope_of(event)["data"]


def without_secrets(event: ev.AnyEvent) -> ev.AnyEvent:
    if isinstance(event, ev.SessionCreated):
        event = msgspec.structs.replace(event, context=None)
    if isinstance(event, ev.SessionCreated | ev.SetupChanged):
        return msgspec.structs.replace(event, mcp_servers=Raw(b"[]"), meta=msgspec.UNSET)
    return event


@pytest.mark.guarantee("G13")
def test_the_keys_of_a_sessions_servers_are_shown_to_nobody() -> None:
    servers, meta = Raw(b'[{"name":"far","env":[{"name":"T","value":"sesame"}]}]'), Raw(b'{"key":"sesame"}')
    created = ev.SessionCreated(at=1, session_id=S1, cwd="/work", mcp_servers=servers, meta=meta)
    changed = ev.SetupChanged(at=2, mcp_servers=servers, meta=meta, additional_directories=("/more",))
    for event in (created, changed):
        assert b"sesame" not in to_envelope(S1, 7, encode(event))
    assert shown(changed)["additionalDirectories"] == ["/more"]


# -- every kind of event -------------------------------------------------------------------------------------


@every_kind
@given(choice=st.data())
def test_every_event_comes_back_from_its_envelope_as_it_was(kind: type[ev.Event], choice: st.DataObject) -> None:
    event = choice.draw(events_of(kind))
    offset = choice.draw(st.integers(1, 2**53))
    session_id = SessionId(choice.draw(st.text()))
    envelope = to_envelope(session_id, offset, encode(event))
    assert read_envelope(envelope) == (offset, without_secrets(event))
    assert read_envelope(envelope.decode()) == (offset, without_secrets(event))
    assert b"\n" not in envelope
    assert b"\r" not in envelope
    check_rules_of_clients(envelope_of(event, 1), event)
    check_frame(encode(event))


def check_rules_of_clients(envelope: dict[str, Any], event: ev.Event) -> None:
    assert envelope["v"] == 1
    assert envelope["id"] == 1
    assert isinstance(envelope["type"], str)
    assert envelope["_meta"]["serverTimestamp"] == event.at
    assert envelope["data"]["sessionId"] == getattr(event, "session_id", S1)
    assert envelope.get("promptId") == getattr(event, "prompt_id", None)
    assert envelope.get("author") == getattr(event, "author", None)
    assert envelope.get("originatorClientId") == getattr(event, "client_id", None)


def check_frame(body: bytes) -> None:
    """A frame is the envelope under its id and type."""
    envelope = to_envelope(S1, 42, body)
    shown_as = msgspec.json.decode(envelope)
    frame = frame_of(42, body)
    assert frame == in_ascii(encode_event(data=envelope, event=shown_as["type"], id=42))
    (read,) = SseReader(Limits().frame_bytes).feed(frame)
    assert (read.id, read.event, msgspec.json.decode(read.data)) == ("42", shown_as["type"], shown_as)


# -- updates -------------------------------------------------------------------------------------------------


def test_an_update_of_a_turn_has_the_payload_as_it_came() -> None:
    odd = Raw(b'{"sessionUpdate":"x",  "n":1.50, "n":2e0,"u":"\\u00e9%d"}')
    envelope = to_envelope(S1, 3, encode(ev.SessionUpdated(at=AT, kind="x", update=odd, prompt_id=P1)))
    assert envelope == (
        b'{"id":3,"v":1,"type":"session_update","data":{"sessionId":"s1","update":%b},'
        b'"promptId":"p1","_meta":{"serverTimestamp":%d}}' % (odd, AT)
    )


def test_an_update_whose_fields_are_stored_in_another_order_reads_the_same() -> None:
    event = ev.SessionUpdated(at=AT, kind="x", update=CHUNK, prompt_id=P1)
    turned = msgspec.json.encode(dict(reversed(msgspec.json.decode(encode(event), type=dict[str, Raw]).items())))
    assert turned != encode(event)
    assert to_envelope(S1, 1, turned) == to_envelope(S1, 1, encode(event))
    assert frame_of(1, turned) == frame_of(1, encode(event))


@pytest.mark.guarantee("G4")
def test_a_late_update_says_what_it_followed_and_belongs_to_no_turn() -> None:
    envelope = envelope_of(ev.SessionUpdated(at=AT, kind="plan", update=CHUNK, after=P1))
    assert envelope["late"] is True
    assert envelope["data"]["after"] == "p1"
    assert "promptId" not in envelope


def test_a_background_update_is_neither_late_nor_of_a_turn() -> None:
    envelope = envelope_of(ev.SessionUpdated(at=AT, kind="plan", update=CHUNK))
    assert set(envelope) == {"id", "v", "type", "data", "_meta"}
    assert set(envelope["data"]) == {"sessionId", "update"}


def test_an_echo_is_marked() -> None:
    envelope = envelope_of(ev.SessionUpdated(at=AT, kind="plan", update=CHUNK, prompt_id=P1, echo=True))
    assert (envelope["data"]["echo"], envelope["promptId"]) == (True, "p1")


@pytest.mark.parametrize("break_", ["\n", "\r\n", "\r"])
def test_line_ends_between_the_tokens_of_a_payload_become_spaces(break_: str) -> None:
    update = Raw(f'{{"sessionUpdate":{break_}"x"}}'.encode())
    blocks = Raw(f'[{break_}{{"type":"text",{break_}"text":"hi"}}]'.encode())
    for event in (
        ev.SessionUpdated(at=AT, kind="x", update=update),
        ev.UserMessage(at=AT, prompt_id=P1, message_id=MessageId("m1"), content=blocks),
        ev.PromptQueued(at=AT, prompt_id=P1, content=blocks, position=0),
    ):
        frame = frame_of(1, encode(event))
        assert frame.count(b"\n") == 4
        assert b"\r" not in frame
        assert read_envelope(to_envelope(S1, 1, encode(event)))[1] is not None


def test_a_session_id_is_escaped() -> None:
    odd = SessionId('a"%s\n\\')
    for event in (ev.SessionUpdated(at=AT, kind="x", update=CHUNK), ev.TurnBlocked(at=AT, prompt_id=P1)):
        envelope = msgspec.json.decode(to_envelope(odd, 1, encode(event)))
        assert envelope["data"]["sessionId"] == odd


# -- the names of the contract -------------------------------------------------------------------------------


def test_a_message_of_one_block_is_a_chunk_and_of_several_a_list() -> None:
    one = ev.UserMessage(
        at=AT, prompt_id=P1, message_id=MessageId("m1"), content=content("a"), author="ann", client_id=C1
    )
    envelope = envelope_of(one)
    assert envelope["type"] == "session_update"
    assert envelope["data"] == {
        "sessionId": "s1",
        "update": {
            "sessionUpdate": "user_message_chunk",
            "content": {"type": "text", "text": "a"},
            "messageId": "m1",
        },
    }
    assert (envelope["promptId"], envelope["author"], envelope["originatorClientId"]) == ("p1", "ann", "c1")
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    several = ev.UserMessage(at=AT, prompt_id=P1, message_id=MessageId("m1"), content=raw(blocks))
    assert shown(several)["update"] == {"sessionUpdate": "user_message", "content": blocks, "messageId": "m1"}


def test_an_agent_that_says_a_user_message_is_not_taken_for_a_prompt() -> None:
    said = raw({"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": "a"}, "messageId": "m1"})
    event = ev.SessionUpdated(at=AT, kind="user_message_chunk", update=said, prompt_id=P1)
    assert read_envelope(to_envelope(S1, 1, encode(event))) == (1, event)


def test_a_turn_changes_the_state_and_says_who_began_it() -> None:
    began = envelope_of(ev.TurnStarted(at=AT, prompt_id=P1))
    assert began["type"] == "state_changed"
    assert began["data"] == {"sessionId": "s1", "promptId": "p1", "state": "running", "origin": "client"}
    alone = shown(ev.TurnStarted(at=AT, prompt_id=PromptId("agent-4"), origin=ev.Origin.AGENT))
    assert (alone["promptId"], alone["origin"]) == ("agent-4", "agent")
    assert shown(ev.TurnBlocked(at=AT, prompt_id=P1))["state"] == "requires_action"
    assert shown(ev.TurnUnblocked(at=AT, prompt_id=P1))["state"] == "running"


def test_the_end_of_a_turn_names_its_prompt_and_reason() -> None:
    end = ev.TurnCompleted(at=AT, prompt_id=P1, stop_reason="end_turn", ending=ev.Ending.RESPONSE, usage=Raw(b"{}"))
    assert shown(end) == {
        "sessionId": "s1",
        "promptId": "p1",
        "stopReason": "end_turn",
        "ending": "response",
        "usage": {},
    }
    failed = ev.TurnFailed(at=AT, prompt_id=P1, code="agent_exited", message="gone", exit_code=9)
    assert shown(failed) == {
        "sessionId": "s1",
        "promptId": "p1",
        "code": "agent_exited",
        "message": "gone",
        "exitCode": 9,
    }


@pytest.mark.parametrize("number", [2, "2"])
def test_a_request_id_keeps_its_json_type(number: int | str) -> None:
    end = ev.TurnCompleted(
        at=AT, prompt_id=P1, stop_reason="end_turn", ending=ev.Ending.MARKER, prompt_request_id=number
    )
    assert shown(end)["promptRequestId"] == number
    back = read_envelope(to_envelope(S1, 1, encode(end)))[1]
    assert isinstance(back, ev.TurnCompleted)
    assert type(back.prompt_request_id) is type(number)


def test_a_waiting_prompt_shows_its_text_and_when_it_came() -> None:
    blocks = [{"type": "text", "text": "a"}, {"type": "image", "data": ""}, {"type": "text", "text": "b"}]
    queued = ev.PromptQueued(at=AT, prompt_id=P1, content=raw(blocks), position=2)
    assert shown(queued) == {
        "sessionId": "s1",
        "promptId": "p1",
        "content": blocks,
        "text": "ab",
        "position": 2,
        "steering": False,
        "state": "queued",
        "queuedAt": AT,
    }
    assert shown(ev.PromptUpdated(at=AT, prompt_id=P1, content=content("new")))["text"] == "new"
    assert "text" not in shown(ev.PromptUpdated(at=AT, prompt_id=P1, position=0))
    assert shown(ev.PromptDequeued(at=AT, prompt_id=P1))["state"] == "running"
    assert shown(ev.PromptFinished(at=AT, prompt_id=P1, state=ev.QueueExit.REMOVED))["state"] == "removed"


def test_a_permission_request_has_our_ids_and_the_agents_tool_call_and_options() -> None:
    tool, options = {"toolCallId": "t1"}, [{"optionId": "allow", "name": "Allow", "kind": "allow_once"}]
    params = {"sessionId": "agents-own", "toolCall": tool, "options": options}
    asked = ev.PermissionRequested(
        at=AT, request_id=Q1, agent_request_id=4, method=PERMISSION, params=raw(params), options=("allow",)
    )
    assert shown(asked) == {
        "sessionId": "s1",
        "requestId": "q1",
        "agentRequestId": 4,
        "method": PERMISSION,
        "toolCall": tool,
        "options": options,
        "optionIds": ["allow"],
        "params": params,
    }


@pytest.mark.parametrize("params", [b'{"message":"name?"}', b"[]", b"null"])
def test_a_form_has_its_params_and_no_options(params: bytes) -> None:
    asked = ev.PermissionRequested(
        at=AT, request_id=Q1, agent_request_id=4, method=ELICITATION, params=Raw(params), prompt_id=P1
    )
    assert shown(asked)["params"] == msgspec.json.decode(params)
    assert not {"options", "toolCall"} & set(shown(asked))


def test_an_answer_shows_its_outcome_and_who_gave_it() -> None:
    def resolved(answer: Raw, end: ev.PermissionEnd, client: ClientId | None = None) -> dict[str, Any]:
        return shown(ev.PermissionResolved(at=AT, request_id=Q1, end=end, answer=answer, client_id=client))

    allowed = resolved(chosen("allow"), ev.PermissionEnd.ANSWERED, C1)
    assert allowed["outcome"] == {"outcome": "selected", "optionId": "allow"}
    assert (allowed["voterClientId"], allowed["end"]) == ("c1", "answered")
    gone = resolved(REFUSED, ev.PermissionEnd.WITHDRAWN)
    assert gone["outcome"] == {"outcome": "cancelled"}
    assert "voterClientId" not in gone
    assert "outcome" not in resolved(raw({"action": "accept"}), ev.PermissionEnd.ANSWERED)


def test_a_new_title_is_the_display_name() -> None:
    assert shown(ev.SessionRenamed(at=AT, title="t"))["displayName"] == "t"
    assert shown(ev.SessionRenamed(at=AT, title=None)) == {"sessionId": "s1", "title": None, "displayName": None}


def test_a_mode_is_shown_by_both_names() -> None:
    changed = shown(ev.ModeChanged(at=AT, mode="plan", previous="ask"))
    modes = {"mode": "plan", "next": "plan", "previous": "ask"}
    assert changed == {"sessionId": "s1", **modes, "persisted": False}


def test_other_events_show_their_fields_and_what_is_default() -> None:
    started = ev.AgentStarted(
        at=AT, agent_session_id=AgentSessionId("a1"), protocol_version=1, turn_end=ev.TurnEnd.RESPONSE
    )
    envelope = envelope_of(started)
    assert envelope["type"] == "agent_started"
    assert envelope["data"] | {"how": "new", "steering": False, "turnEnd": "response"} == envelope["data"]


# -- what is not an event ------------------------------------------------------------------------------------


def test_a_frame_for_one_stream_has_no_id() -> None:
    frame = stream_frame("replay_complete", {"replayedCount": 3, "raw": Raw(b'{\n"a":1}')})
    data = b'{"v":1,"type":"replay_complete","data":{"replayedCount":3,"raw":{ "a":1}}}'
    assert frame == b"event: replay_complete\ndata: " + data + b"\n\n"
    assert read_envelope(data) == (None, None)


@pytest.mark.parametrize(
    "envelope",
    [
        b'{"id":5,"v":1,"type":"made_up","data":{}}',
        b'{"id":5,"v":1,"type":"made_up","data":null,"_meta":{"serverTimestamp":1,"event":"turn_started"}}',
        b'{"id":5,"v":1,"type":"state_changed","data":{}}',
        b'{"id":5,"v":1,"type":"state_changed","data":{},"_meta":{"serverTimestamp":1,"event":"turn_paused"}}',
        b'{"id":5,"v":1,"type":"turn_started","data":{"promptId":"p1"},"_meta":{"serverTimestamp":1}}',
    ],
)
def test_an_unknown_type_is_no_event_and_no_error(envelope: bytes) -> None:
    assert read_envelope(envelope) == (5, None)


def test_a_member_that_a_newer_version_added_is_passed_over() -> None:
    envelope = envelope_of(ev.TurnBlocked(at=AT, prompt_id=P1))
    envelope["more"] = envelope["data"]["why"] = "x"
    assert read_envelope(msgspec.json.encode(envelope)) == (7, ev.TurnBlocked(at=AT, prompt_id=P1))


@pytest.mark.parametrize(
    "envelope",
    [
        b"",
        b"[]",
        b"null",
        b"\xff",
        b'{"a":' * 5_000,
        b'{"v":1,"data":{}}',
        b'{"v":1,"type":5,"data":{}}',
        b'{"v":1,"type":"x"}',
        b'{"v":2,"type":"x","data":{}}',
        b'{"type":"x","data":{}}',
        b'{"id":0,"v":1,"type":"x","data":{}}',
        b'{"id":"5","v":1,"type":"x","data":{}}',
        b'{"id":1.5,"v":1,"type":"x","data":{}}',
        b'{"id":5,"v":1,"type":"turn_complete","data":{"promptId":"p1","stopReason":"x","ending":"response"}}',
        b'{"id":5,"v":1,"type":"turn_complete","data":{},"_meta":{"serverTimestamp":1}}',
        b'{"id":5,"v":1,"type":"turn_complete","data":[],"_meta":{"serverTimestamp":1}}',
        b'{"id":5,"v":1,"type":"session_update","data":{},"_meta":{"serverTimestamp":1}}',
        b'{"id":5,"v":1,"type":"session_update","data":{"update":{}},"_meta":{"serverTimestamp":1}}',
        b'{"id":5,"v":1,"type":"session_update","data":{"update":{"sessionUpdate":"user_message","content":[],'
        b'"messageId":"m1"}},"_meta":{"serverTimestamp":1,"event":"user_message"}}',
    ],
)
def test_what_is_no_envelope_is_the_peers_fault(envelope: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read_envelope(envelope)


@given(st.binary(max_size=60))
def test_any_bytes_are_an_envelope_or_a_typed_error(envelope: bytes) -> None:
    try:
        read_envelope(envelope)
    except RemoteProtocolError:
        return


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"{}", LogCorrupt),
        (b'{"type":"session_update","at":1', LogCorrupt),
        (b'{"type":"session_update","at":1}', LogCorrupt),
        (b'{"type":"turn_paused","at":1}', LogVersionMismatch),
    ],
)
def test_a_log_that_cannot_be_read_says_so(body: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        to_envelope(S1, 1, body)
    with pytest.raises(error):
        frame_of(1, body)
