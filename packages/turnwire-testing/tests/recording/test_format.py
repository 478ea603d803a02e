"""The file of a recording: it is read as it was written, and other files are rejected with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnwire.errors import RecordingUnreadable
from turnwire_testing.recording.format import Entry, entry_line, first_line, read_recording

ODD = b'{"jsonrpc" : "2.0", "id":1e0,"method":"a/b","params":{"x":"\\u00e9","x":1.50}}'


def written(path: Path, *entries: Entry, redacted: tuple[str, ...] = ()) -> Path:
    path.write_bytes(first_line(redacted) + b"".join(map(entry_line, entries)))
    return path


def test_a_frame_is_kept_byte_for_byte(tmp_path: Path) -> None:
    entries = [
        Entry(1, 0, "client", ODD),
        Entry(2, 5, "agent", b"Loading models... 50%"),
        Entry(3, 7, "agent", b'{"half": '),
        Entry(4, 8, "client", b"", closed=True),
        Entry(5, 9, "agent", b"", -9),
    ]
    found = read_recording(written(tmp_path / "a", *entries, redacted=("env",)))

    assert found.entries == entries
    assert found.header.redacted == ("env",)
    assert ODD in (tmp_path / "a").read_bytes()


def test_a_file_that_was_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    path = written(tmp_path / "a", Entry(1, 0, "client", b"{}"), Entry(2, 0, "agent", b"{}"))
    path.write_bytes(path.read_bytes()[:-9])

    assert [each.number for each in read_recording(path).entries] == [1]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "does not begin as a recording"),
        (b'{"jsonrpc":"2.0"}\n', "does not begin as a recording"),
        (b'{"format":"har","version":1}\n', "is no recording"),
        (b'{"format":"turnwire-recording","version":2}\n', "is of version 2"),
        (first_line() + b"nonsense\n" + entry_line(Entry(1, 0, "agent", b"{}")), "line 2"),
    ],
)
def test_what_is_no_recording_is_refused_with_its_reason(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content)

    with pytest.raises(RecordingUnreadable, match=words):
        read_recording(tmp_path / "a")


def test_a_member_that_is_not_known_is_passed_over(tmp_path: Path) -> None:
    line = b'{"n":1,"ms":0,"from":"agent","frame":{"a":1},"colour":"red"}\n'
    (tmp_path / "a").write_bytes(first_line() + line)

    assert read_recording(tmp_path / "a").entries == [Entry(1, 0, "agent", b'{"a":1}')]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":"initialize"}', "frame 3 (client: initialize)"),
        (b'{"jsonrpc":"2.0","id":1,"result":{}}', "frame 3 (client: answer to 1)"),
        (b'{"jsonrpc":"2.0","id":"a","error":{"code":1,"message":"x"}}', "frame 3 (client: error to 'a')"),
        (
            b'{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{"prompt":[{"type":"text","text":"hi"}]}}',
            "frame 3 (client: session/prompt 'hi')",
        ),
        (
            b'{"jsonrpc":"2.0","method":"session/update","params":{"update":{"sessionUpdate":"plan"}}}',
            "frame 3 (client: session/update plan)",
        ),
        (b"nothing", "frame 3 (client: no message)"),
    ],
)
def test_a_frame_is_named_by_its_number_and_what_it_is(line: bytes, words: str) -> None:
    assert str(Entry(3, 0, "client", line)) == words
