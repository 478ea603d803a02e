"""Frames: the results of decoding, rejections and their codes, and that payloads retain their bytes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from turnwire.errors import RemoteProtocolError
from turnwire.wire.jsonrpc import (
    INVALID_REQUEST,
    PARSE_ERROR,
    Batch,
    ErrorObject,
    Failure,
    Notification,
    Request,
    Result,
    Unknown,
    decode,
    encode,
    raw,
)


def refusal(line: bytes) -> RemoteProtocolError:
    with pytest.raises(RemoteProtocolError) as caught:
        decode(line)
    return caught.value


@pytest.mark.parametrize(
    ("line", "frame"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":1}}', Request(1, "m", Raw(b'{"a":1}'))),
        (b'{"jsonrpc":"2.0","id":"1","method":"m"}', Request("1", "m")),
        (b'{"jsonrpc":"2.0","id":-9223372036854775808,"method":"m"}', Request(-(2**63), "m")),
        (b'{"jsonrpc":"2.0","method":"m","params":null}', Notification("m", Raw(b"null"))),
        (b'{"method":"m","jsonrpc":"2.0"}', Notification("m")),
        (b'{"jsonrpc":"2.0","id":1,"result":null}', Result(1, Raw(b"null"))),
        (b'{"jsonrpc":"2.0","id":"x","result":{}}', Result("x", Raw(b"{}"))),
        (
            b'{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"no"}}',
            Failure(1, ErrorObject(-32000, "no")),
        ),
        (
            b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no","data":[1, 2]}}',
            Failure(None, ErrorObject(-32700, "no", Raw(b"[1, 2]"))),
        ),
        (b' {"jsonrpc":"2.0","method":"m","unknown":{"x":1}} ', Notification("m")),
    ],
)
def test_a_frame_decodes_to_its_kind(line: bytes, frame: object) -> None:
    assert decode(line) == frame


@pytest.mark.parametrize(
    ("line", "code", "reason"),
    [
        (b"", PARSE_ERROR, "not_json"),
        (b"nonsense", PARSE_ERROR, "not_json"),
        (b'{"jsonrpc":"2.0","method":"m"', PARSE_ERROR, "not_json"),
        (b'{"jsonrpc":"2.0","id":true,"method":"m"', PARSE_ERROR, "not_json"),
        (b'{"jsonrpc":"2.0","method":"m"}{}', PARSE_ERROR, "not_json"),
        (b'{"jsonrpc":"2.0","method":"m","params":"a\nb"}x', PARSE_ERROR, "not_json"),
        (b"[1", PARSE_ERROR, "not_json"),
        (b'{"jsonrpc":"2.0","method":"m","params":{"a":"\xff"}}', PARSE_ERROR, "not_utf8"),
        (b'{"jsonrpc":"2.0","method":"m","\xc3":1}', PARSE_ERROR, "not_utf8"),
        (
            b'{"jsonrpc":"2.0","method":"m","params":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            PARSE_ERROR,
            "too_deep",
        ),
        (b"[]", INVALID_REQUEST, "empty_batch"),
        (b"7", INVALID_REQUEST, "not_an_object"),
        (b'"text"', INVALID_REQUEST, "not_an_object"),
        (b"null", INVALID_REQUEST, "not_an_object"),
        (b"{}", INVALID_REQUEST, "no_version"),
        (b'{"id":1,"method":"m"}', INVALID_REQUEST, "no_version"),
        (b'{"jsonrpc":"1.0","id":1,"method":"m"}', INVALID_REQUEST, "no_version"),
        (b'{"jsonrpc":2.0,"id":1,"method":"m"}', INVALID_REQUEST, "no_version"),
        (b'{"jsonrpc":"2.0"}', INVALID_REQUEST, "not_one_kind"),
        (b'{"jsonrpc":"2.0","id":1}', INVALID_REQUEST, "not_one_kind"),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","result":{}}', INVALID_REQUEST, "not_one_kind"),
        (b'{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":""}}', INVALID_REQUEST, "not_one_kind"),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', INVALID_REQUEST, "bad_method"),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":"1","message":""}}', INVALID_REQUEST, "bad_error"),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":2147483648,"message":""}}', INVALID_REQUEST, "bad_error"),
        (b'{"jsonrpc":"2.0","id":null,"error":7}', INVALID_REQUEST, "bad_error"),
        (b'{"jsonrpc":"2.0","result":{}}', INVALID_REQUEST, "bad_id"),
        (b'{"jsonrpc":"2.0","id":null,"result":{}}', INVALID_REQUEST, "bad_id"),
    ],
)
def test_what_is_no_frame_is_refused_with_its_code_and_reason(line: bytes, code: int, reason: str) -> None:
    assert refusal(line).context == refusal(line).context | {"jsonrpc": code, "reason": reason}


@pytest.mark.parametrize("ident", [b"true", b"2.0", b"2e0", b"null", b"{}", b"[2]", b"9223372036854775808"])
def test_an_id_that_is_neither_integer_nor_string_is_refused(ident: bytes) -> None:
    error = refusal(b'{"jsonrpc":"2.0","id":%b,"method":"m"}' % ident)
    assert error.context == {"jsonrpc": INVALID_REQUEST, "reason": "bad_id"}


@pytest.mark.parametrize("ident", [2, "2", 0, "", -1, "a\nb", "é", 2**63 - 1])
def test_an_id_keeps_its_value_and_its_json_type(ident: int | str) -> None:
    frame = decode(encode(Request(ident, "m")))
    assert isinstance(frame, Request)
    assert frame.id == ident
    assert type(frame.id) is type(ident)


def test_a_malformed_request_names_its_id_so_that_it_can_be_answered() -> None:
    assert refusal(b'{"jsonrpc":"2.0","id":"7","method":7}').context["request_id"] == "7"
    assert refusal(b'{"id":7,"method":"m"}').context["request_id"] == 7


def test_a_malformed_answer_is_not_taken_for_a_request() -> None:
    context = refusal(b'{"jsonrpc":"2.0","id":7,"error":"broken"}').context
    assert context["response_id"] == 7
    assert "request_id" not in context


def test_a_refusal_repeats_nothing_of_the_peer() -> None:
    for line in (b'{"jsonrpc":"2.0","id":1,"method":{"secret":1}}', b'"secret"', b"secret"):
        error = refusal(line)
        assert "secret" not in str(error)
        assert "secret" not in repr(error.context)
        assert error.__cause__ is None


def test_a_batch_is_recognised_and_not_interpreted() -> None:
    assert decode(b' [ {"x": 1}, 7 ]') == Batch((Raw(b'{"x": 1}'), Raw(b"7")))


@pytest.mark.parametrize(
    "payload",
    [
        b'{ "sessionId" : "s" , "update":{"sessionUpdate":"never_heard_of","x":[1,  2.50, 1e3, "\\u00e9"]} }',
        '{"text":"é\u2028€😀","_meta":{"k":null}}'.encode(),
        b'{"a":1,"a":2}',
        b"[1,\t2]",
        b'"\\ud83d\\ude00 \\\\ud83d"',
    ],
)
def test_a_payload_leaves_byte_for_byte_as_it_came(payload: bytes) -> None:
    for line in (
        b'{"jsonrpc":"2.0","method":"m","params":%b}' % payload,
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":%b}' % payload,
        b'{"jsonrpc":"2.0","id":1,"result":%b}' % payload,
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m","data":%b}}' % payload,
    ):
        frame = decode(line)
        assert not isinstance(frame, Batch)
        assert encode(frame) == line


def test_line_ends_between_tokens_become_spaces_so_that_a_frame_is_one_line() -> None:
    frame = decode(b'{\r\n "jsonrpc":"2.0",\n "method":"m",\n "params":{\n  "a":\r1\n }\n}')
    assert frame == Notification("m", Raw(b'{   "a": 1  }'))
    assert decode(b'{"jsonrpc":"2.0","method":"m","params":{\r}}') == Notification("m", Raw(b"{ }"))


def test_a_lone_surrogate_becomes_the_replacement_character() -> None:
    frame = decode(
        rb'{"jsonrpc":"2.0","method":"m","params":["\ud83d","\uDE00x","\ud83d\ude00","\\ud83d","\ud83d\u0041"]}'
    )
    assert frame == Notification("m", Raw(rb'["\ufffd","\ufffdx","\ud83d\ude00","\\ud83d","\ufffd\u0041"]'))


def test_text_is_checked_across_the_pieces_it_is_checked_in() -> None:
    text = "€" * 400_000
    frame = decode(encode(Notification("m", raw(text))))
    assert frame == Notification("m", raw(text))
    assert refusal(encode(Notification("m", raw(text)))[:-1] + b"\xe2").context["reason"] == "not_utf8"


def test_a_value_holding_something_unknown_is_written_with_the_same_bytes() -> None:
    assert bytes(raw({"a": Unknown("x", Raw(b'{"type": "x"}'))})) == b'{"a":{"type": "x"}}'
    with pytest.raises(TypeError):
        raw({"a": object()})


ids = st.integers(-(2**63), 2**63 - 1) | st.text()
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
payloads = values.map(raw)
errors = st.builds(ErrorObject, st.integers(-(2**31), 2**31 - 1), st.text(), payloads)
frames = st.one_of(
    st.builds(Request, ids, st.text(), payloads | st.just(Raw(b""))),
    st.builds(Notification, st.text(), payloads | st.just(Raw(b""))),
    st.builds(Result, ids, payloads),
    st.builds(Failure, ids | st.none(), errors),
)


@settings(deadline=None)
@given(frames)
def test_every_frame_comes_back_as_it_was_written(frame: Request | Notification | Result | Failure) -> None:
    line = encode(frame)
    assert b"\n" not in line
    assert decode(line) == frame


near_frames = st.lists(
    st.sampled_from(
        [b'"jsonrpc":"2.0"', b'"id":1', b'"id":null', b'"method":"m"', b'"params":{}', b'"result":1', b'"error":{}']
    ),
    max_size=5,
).map(lambda members: b"{" + b",".join(members) + b"}")


def attempt(line: bytes) -> Request | Notification | Result | Failure | Batch | RemoteProtocolError:
    try:
        return decode(line)
    except RemoteProtocolError as error:
        return error


@settings(deadline=None, max_examples=300)
@given(st.binary() | values.map(lambda value: bytes(raw(value))) | near_frames)
def test_any_bytes_decode_or_are_refused_as_the_peers_fault(line: bytes) -> None:
    outcome = attempt(line)
    if isinstance(outcome, RemoteProtocolError):
        assert outcome.context["jsonrpc"] in (PARSE_ERROR, INVALID_REQUEST)
    else:
        assert isinstance(outcome, Batch) or decode(encode(outcome)) == outcome
