"""Peeking: the routed fields, the accepted spellings, and the tolerated errors."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from turnwire.errors import RemoteProtocolError
from turnwire.wire.jsonrpc import INVALID_PARAMS, Notification, decode, raw
from turnwire.wire.peek import UpdatePeek, peek_session_id, peek_update, peek_update_params, read_update_line


@pytest.mark.parametrize(
    ("update", "peek"),
    [
        (b'{"sessionUpdate":"x"}', UpdatePeek("x")),
        (
            b'{"sessionUpdate":"agent_message_chunk","messageId":"m","content":{"type":"text","text":"t"}}',
            UpdatePeek("agent_message_chunk", message_id="m"),
        ),
        (
            b'{"toolCallId":"t","status":"failed","sessionUpdate":"tool_call_update"}',
            UpdatePeek("tool_call_update", tool_call_id="t", status="failed"),
        ),
        (b'{"sessionUpdate":"terminal_update","terminalId":"t"}', UpdatePeek("terminal_update", terminal_id="t")),
        (
            b'{"sessionUpdate":"state_update","state":"idle","stopReason":"error","error":{"code": 1},'
            b'"usage":{"totalTokens": 3},"background":[ ]}',
            UpdatePeek(
                "state_update",
                state="idle",
                stop_reason="error",
                error=Raw(b'{"code": 1}'),
                usage=Raw(b'{"totalTokens": 3}'),
                background=Raw(b"[ ]"),
            ),
        ),
        (
            b'{"sessionUpdate":"turn_complete","promptRequestId":2,"stopReason":"end_turn"}',
            UpdatePeek("turn_complete", prompt_request_id=2, stop_reason="end_turn"),
        ),
        (b'{"sessionUpdate":"plan_removed","planId":"p"}', UpdatePeek("plan_removed", plan_id="p")),
        (
            b'{"sessionUpdate":"plan_update","plan":{"type":"items","planId":"p"}}',
            UpdatePeek("plan_update", plan_id="p"),
        ),
        (
            b'{"sessionUpdate":"current_mode_update","currentModeId":"a"}',
            UpdatePeek("current_mode_update", mode_id="a"),
        ),
        (b'{"sessionUpdate":"current_mode_update","modeId":"a"}', UpdatePeek("current_mode_update", mode_id="a")),
    ],
)
def test_an_update_shows_its_routed_fields(update: bytes, peek: UpdatePeek) -> None:
    assert peek_update(Raw(update)) == peek


def test_a_stop_reason_is_read_in_both_spellings() -> None:
    peek = peek_update(Raw(b'{"sessionUpdate":"state_change","state":"idle","stop_reason":"end_turn"}'))
    assert peek.stop_reason == "end_turn"
    peek = peek_update(Raw(b'{"sessionUpdate":"x","stop_reason":"old","stopReason":"new"}'))
    assert peek.stop_reason == "new"


@pytest.mark.parametrize(
    ("ident", "value"), [(b"2", 2), (b'"2"', "2"), (b"true", None), (b"2.0", None), (b"null", None)]
)
def test_a_prompt_request_id_keeps_its_json_type(ident: bytes, value: int | str | None) -> None:
    peek = peek_update(Raw(b'{"sessionUpdate":"turn_complete","promptRequestId":%b}' % ident))
    assert peek.prompt_request_id == value
    assert type(peek.prompt_request_id) is type(value)


def test_an_optional_field_of_a_wrong_type_reads_as_absent_and_spoils_no_other() -> None:
    update = (
        b'{"sessionUpdate":"x","messageId":7,"toolCallId":[],"terminalId":{},"status":true,"state":1.5,'
        b'"stopReason":{},"promptRequestId":{},"planId":1,"plan":5,"currentModeId":1,"usage":null}'
    )
    assert peek_update(Raw(update)) == UpdatePeek("x")
    assert peek_update(Raw(b'{"sessionUpdate":"x","status":1,"messageId":"m"}')) == UpdatePeek("x", message_id="m")


def test_a_kind_nobody_knows_is_no_error_and_stays_as_it_was() -> None:
    params = Raw(b'{ "sessionId":"s", "update":{ "sessionUpdate":"_vendor_thing" , "x":[1, 2.0] } , "more":1}')
    peeked = peek_update_params(params)
    assert peeked.session_id == "s"
    assert bytes(peeked.update) == b'{ "sessionUpdate":"_vendor_thing" , "x":[1, 2.0] }'
    assert peek_update(peeked.update).kind == "_vendor_thing"


@pytest.mark.parametrize("update", [b"", b"7", b"[]", b"{}", b'{"sessionUpdate":""}', b'{"sessionUpdate":7}', b"{"])
def test_an_update_without_a_kind_is_refused(update: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        peek_update(Raw(update))
    assert caught.value.context["jsonrpc"] == INVALID_PARAMS


@pytest.mark.parametrize(
    "params", [b"", b"7", b"{}", b'{"sessionId":"s"}', b'{"update":{}}', b'{"sessionId":7,"update":{}}']
)
def test_an_update_of_no_session_is_refused(params: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        peek_update_params(Raw(params))
    assert caught.value.context["jsonrpc"] == INVALID_PARAMS


@pytest.mark.parametrize(
    ("params", "session_id"),
    [
        (b'{"sessionId":"s","x":{}}', "s"),
        (b"{}", None),
        (b"", None),
        (b"[]", None),
        (b'{"sessionId":7}', None),
        (b"null", None),
    ],
)
def test_a_session_id_is_found_if_there_is_one(params: bytes, session_id: str | None) -> None:
    assert peek_session_id(Raw(params)) == session_id


FIELDS = [
    "sessionUpdate", "messageId", "toolCallId", "terminalId", "status", "state", "stopReason", "stop_reason",
    "promptRequestId", "usage", "error", "background", "planId", "plan", "currentModeId", "modeId",
]  # fmt: skip
members = (
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.floats(-1, 1)
    | st.text(max_size=2)
    | st.just({"planId": "p"})
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), members))
def test_any_mix_of_fields_is_read_or_refused_as_the_peers_fault(update: dict[str, object]) -> None:
    kind = update.get("sessionUpdate")
    if isinstance(kind, str) and kind:
        peek = peek_update(raw(update))
        assert peek.kind == kind
        assert peek.message_id == (update.get("messageId") if isinstance(update.get("messageId"), str) else None)
    else:
        with pytest.raises(RemoteProtocolError):
            peek_update(raw(update))


# -- the short cut -------------------------------------------------------------------------------------------

UPDATE_LINE = (
    b'{"jsonrpc":"2.0","method":"session/update",'
    b'"params":{"sessionId":"s","update":{"sessionUpdate":"x", "a" : 1}}}'
)


def test_the_short_cut_reads_what_the_long_way_reads() -> None:
    short = read_update_line(UPDATE_LINE)
    frame = decode(UPDATE_LINE)
    assert isinstance(frame, Notification)
    assert short is not None
    assert short == peek_update_params(frame.params)
    assert bytes(short.update) == b'{"sessionUpdate":"x", "a" : 1}'


@pytest.mark.parametrize(
    "line",
    [
        UPDATE_LINE.replace(b"2.0", b"1.0"),
        UPDATE_LINE.replace(b"session/update", b"session/other"),
        UPDATE_LINE.replace(b'"sessionId":"s"', b'"sessionId":1'),
        UPDATE_LINE.replace(b'"update":', b'"other":'),
        UPDATE_LINE.replace(b'"method"', b'"id":1,"method"'),
        UPDATE_LINE.replace(b'"method"', b'"result":{},"method"'),
        UPDATE_LINE.replace(b'"x"', b'"\xff"'),
        UPDATE_LINE.replace(b'"x",', b'"x",\n'),
        b"[" + UPDATE_LINE + b"]",
        b"nonsense",
        b"",
    ],
)
def test_the_short_cut_leaves_every_other_line_to_the_long_way(line: bytes) -> None:
    assert read_update_line(line) is None
