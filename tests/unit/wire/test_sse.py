"""Server-sent events: the reader's rules, one by one, and the writer's output."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwire.errors import LimitExceeded, LocalProtocolError
from turnwire.wire.sse import SseEvent, SseReader, encode_comment, encode_event, in_ascii


def read(stream: bytes) -> list[SseEvent]:
    return SseReader(1000).feed(stream)


def message(data: str, ident: str | None = None) -> SseEvent:
    return SseEvent(ident, "message", data, None)


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", [message("a")]),
        (b"data:a\n\n", [message("a")]),
        (b"data:  a\n\n", [message(" a")]),
        (b"data\n\n", [message("")]),
        (b"data: a\r\n\r\n", [message("a")]),
        (b"data: a\r\r", [message("a")]),
        (b"data: a\ndata: b\ndata\n\n", [message("a\nb\n")]),
        (b"\xef\xbb\xbfdata: a\n\n", [message("a")]),
        (b"data: \xef\xbb\xbfa\n\n", [message("\ufeffa")]),
        (b"data: \xff\n\n", [message("\ufffd")]),
        (b": note\nunknown: x\ndata: a\n\n", [message("a")]),
        (b"event: tick\n\ndata: a\n\n", [message("a")]),
        (b"event: tick\ndata: a\n\n", [SseEvent(None, "tick", "a", None)]),
        (b"id: 1\ndata: a\n\ndata: b\n\n", [message("a", "1"), message("b", "1")]),
        (b"id: 1\n\ndata: b\n\n", [message("b", "1")]),
        (b"id: 1\nid\ndata: b\n\n", [message("b", "")]),
        (b"id: 1\nid: 2\0\ndata: b\n\n", [message("b", "1")]),
        (b"retry: 30\ndata: a\n\ndata: b\n\n", [SseEvent(None, "message", "a", 30), message("b")]),
        (b"retry: 3x\ndata: a\n\n", [message("a")]),
        (b"retry: " + b"9" * 99 + b"\ndata: a\n\n", [message("a")]),
        (b"data: a\n", []),
        (b"\n\n\n", []),
    ],
)
def test_a_stream_gives_its_events(stream: bytes, events: list[SseEvent]) -> None:
    assert read(stream) == events


def test_a_line_end_cut_in_two_is_one_line_end() -> None:
    reader = SseReader(1000)
    assert reader.feed(b"data: a\r") == []
    assert reader.feed(b"\n") == []
    assert reader.feed(b"data: b\r\n\r") == [message("a\nb")]
    assert reader.feed(b"") == []
    assert reader.feed(b"\ndata: c\n\n") == [message("c")]


def test_the_cursor_moves_at_the_end_of_a_block() -> None:
    reader = SseReader(1000)
    reader.feed(b"id: 1\nretry: 5\n")
    assert reader.last_event_id is None
    assert reader.retry == 5
    reader.feed(b"\n")
    assert reader.last_event_id == "1"


def test_an_unfinished_event_is_dropped_with_its_id_when_the_input_ends() -> None:
    reader = SseReader(1000)
    reader.feed(b"id: 1\ndata: a\n\nid: 2\ndata: b\n")
    reader.end()
    assert reader.last_event_id == "1"
    assert reader.feed(b"\n") == []
    assert reader.feed(b"data: c\n\n") == [message("c", "1")]


def test_an_event_over_the_limit_ends_the_stream_after_the_events_before_it() -> None:
    reader = SseReader(10)
    assert reader.feed(b"data: 1234\n\ndata: 12345\n\ndata: 1\n\n") == [message("1234")]
    for _ in range(2):
        with pytest.raises(LimitExceeded) as caught:
            reader.feed(b"data: 1\n\n")
        assert caught.value.context == {"limit": "frame_bytes", "value": 10}
    with pytest.raises(LimitExceeded):
        reader.end()


@pytest.mark.parametrize("stream", [b"data: 123456789", b"data: 12\ndata:12\n", b"x" * 11, b"\xef\xbb\xbfdata: 12"])
def test_an_event_over_the_limit_is_noticed_before_it_ends(stream: bytes) -> None:
    with pytest.raises(LimitExceeded):
        SseReader(10).feed(stream)


def test_comments_between_events_do_not_count() -> None:
    reader = SseReader(10)
    assert reader.feed(b": alive\n" * 100 + b"data: a\n\n") == [message("a")]


@pytest.mark.parametrize(
    ("event", "written"),
    [
        (encode_event(data=b"{}"), b"data: {}\n\n"),
        (encode_event(data=b""), b"data: \n\n"),
        (encode_event(data=b"a\nb\r\nc\rd\n"), b"data: a\ndata: b\ndata: c\ndata: d\ndata: \n\n"),
        (
            encode_event(data=b"a", event="tick", id=7, retry=3000),
            b"id: 7\nevent: tick\nretry: 3000\ndata: a\n\n",
        ),
        (encode_comment("alive"), b": alive\n\n"),
        (encode_comment("a\nb"), b": a\n: b\n\n"),
        (encode_comment(""), b": \n\n"),
    ],
)
def test_an_event_is_written_in_its_fields(event: bytes, written: bytes) -> None:
    assert event == written


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "a\0b"])
def test_an_id_or_a_name_of_more_than_one_line_is_refused(text: str) -> None:
    with pytest.raises(LocalProtocolError):
        encode_event(data=b"", id=text)
    with pytest.raises(LocalProtocolError):
        encode_event(data=b"", event=text)


WRITTEN = st.recursive(
    st.none() | st.integers(-9, 9) | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


@given(WRITTEN)
def test_json_in_ascii_means_the_same(value: object) -> None:
    written = msgspec.json.encode(value)
    escaped = in_ascii(written)
    assert escaped.isascii()
    assert json.loads(escaped) == json.loads(written)
    assert in_ascii(escaped) is escaped


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("\u00e9", rb"\u00e9"),
        ("\u0416", rb"\u0416"),
        ("\u4f60", rb"\u4f60"),
        ("\U0001f600", rb"\ud83d\ude00"),
        (r"\\xe9", rb"\\xe9"),
        ("\\\\\u00e9", rb"\\\u00e9"),
    ],
)
def test_a_character_is_escaped_as_json_does(text: str, escaped: bytes) -> None:
    assert in_ascii(f'"{text}"'.encode()) == b'"%b"' % escaped
