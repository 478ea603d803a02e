"""Receipts: the hash of a turn, and the check of an exported file."""

from __future__ import annotations

from hashlib import sha256

import pytest
from msgspec import Raw

from turnwire.ids import Epoch, PromptId, SessionId
from turnwire.session import events as ev
from turnwire.session.codec import decode_chain, decode_state, encode, encode_all, encode_state
from turnwire.session.receipts import Chain, seal
from turnwire.session.state import NOTHING, STATE_VERSION
from turnwire.session.stored_file import Head, Report, StoredFile, check, read_body, read_head

SESSION, PROMPT = SessionId("s1"), PromptId("p")
FAILED = ev.TurnFailed(at=2, prompt_id=PROMPT, code="x", message="y")


def chunk(text: str) -> ev.AnyEvent:
    return ev.SessionUpdated(at=1, kind="k", update=Raw(b'{"t":"%b"}' % text.encode()), prompt_id=PROMPT)


def turn(chunks: int) -> list[ev.AnyEvent]:
    return [*(chunk(str(number)) for number in range(chunks)), FAILED]


def sealed(*turns: list[ev.AnyEvent], chain: Chain | None = None) -> list[bytes]:
    chain, stored = chain or Chain(), list[bytes]()
    for events in turns:
        bodies = encode_all(events)
        chain = seal(chain, events, bodies)
        assert bodies == encode_all(events)
        stored += bodies
    return stored


def file_of(bodies: list[bytes], first: int = 1) -> bytes:
    file = StoredFile(Head(session_id=SESSION, epoch=Epoch("e"), first=first))
    return file.head + file.lines(bodies) + file.last_line()


def checked(file: bytes, expected: str | None = None) -> Report:
    lines = file.splitlines(keepends=True)
    head = read_head(lines[0])
    assert head is not None
    return check(head, lines, expected)


def problem(bodies: list[bytes]) -> str:
    """Return the problem that the receipts find; the last line of the file is right."""
    return checked(file_of(bodies)).problem or ""


def test_the_hash_is_a_sha256_over_the_previous_hash_and_the_stored_bytes() -> None:
    failed = encode(FAILED)
    first = sha256(b"\0" + encode(chunk("0")) + b"\0" + failed + b"\0").hexdigest()
    second = sha256(first.encode() + b"\0" + failed + b"\0").hexdigest()
    events = [*turn(1), *turn(0)]
    sealed(events)
    assert [each.receipt for each in events if isinstance(each, ev.TurnFailed)] == [
        ev.Receipt(first),
        ev.Receipt(second),
    ]


def test_the_hash_does_not_depend_on_the_batches_in_which_events_are_stored() -> None:
    assert sealed(turn(4)[:1], [], turn(4)[1:3], turn(4)[3:]) == sealed(turn(4))
    assert sealed([*turn(4), *turn(2)]) == sealed(turn(4), turn(2))


def test_an_unchanged_file_is_ok_and_events_after_the_last_turn_have_no_receipt() -> None:
    bodies = sealed(turn(3), turn(0), [chunk("a"), chunk("b")])
    report = checked(file_of(bodies))
    assert (report.problem, report.turns, report.first, report.last) == (None, 2, 1, 7)
    assert report.unproven == [(6, 7)]
    assert report.hash is not None
    assert report.hash.encode() in bodies[4]
    assert checked(file_of(bodies), report.hash).problem is None


@pytest.mark.parametrize("place", range(3, 7))
@pytest.mark.parametrize("way", ["changed", "missing", "moved", "added"])
def test_the_first_broken_turn_is_named(way: str, place: int) -> None:
    """Turn 2 of 3 is broken; the last line of the file was computed again."""
    bodies = sealed(turn(2), turn(4), turn(2))
    match way:
        case "changed":
            bodies[place] = bodies[place].replace(b'"t":"', b'"t":"x')
        case "missing":
            del bodies[place]
        case "moved":
            bodies[place], bodies[place + 1] = bodies[place + 1], bodies[place]
        case _:
            bodies.insert(place, bodies[place])
    assert problem(bodies).startswith("turn 2 (prompt p, events 4-")


@pytest.mark.parametrize(
    ("old", "new"), [(b'"code":"x"', b'"code":"z"'), (b'"hash":"', b'"hash":"0'), (b'"receipt":', b'"receipt": ')]
)
def test_a_changed_end_breaks_its_turn(old: bytes, new: bytes) -> None:
    bodies = sealed(turn(1))
    assert problem([bodies[0], bodies[1].replace(old, new)]).startswith("turn 1 ")


def test_a_turn_without_its_receipt_or_its_end_or_altogether_is_missed() -> None:
    bodies = sealed(turn(1), turn(1), turn(1))
    assert problem([*bodies[:3], encode(FAILED), *bodies[4:]]).startswith("turn 2 ")
    assert problem([*bodies[:3], *bodies[4:]]).startswith("turn 2 ")
    assert problem([*bodies[:2], *bodies[4:]]).startswith("turn 2 ")


def test_two_events_cannot_be_joined_by_the_byte_between_them() -> None:
    bodies = sealed(turn(2))
    assert problem([bodies[0] + b"\0" + bodies[1], bodies[2]]).startswith("turn 1 ")


def test_every_changed_byte_of_a_file_is_found() -> None:
    file = file_of([*sealed(turn(2)), encode(chunk("after"))])
    for place in range(len(file)):
        changed = file[:place] + bytes([file[place] ^ 1]) + file[place + 1 :]
        head = read_head(changed.splitlines(keepends=True)[0])
        assert head is None or checked(changed).problem is not None, place


def test_a_file_that_is_cut_off_or_continued_is_found() -> None:
    file = file_of(sealed(turn(2), turn(2)))
    lines = file.splitlines(keepends=True)
    for count in range(1, len(lines)):
        assert checked(b"".join(lines[:count])).problem == f"the file is cut off after event {count - 1}"
    assert checked(file + lines[1]).problem is not None


def test_the_expected_receipt_finds_removed_turns() -> None:
    bodies = sealed(turn(1), turn(1))
    last = checked(file_of(bodies)).hash
    assert checked(file_of(bodies[:2])).problem is None
    assert "not the expected one" in (checked(file_of(bodies[:2]), last).problem or "")
    assert "missing" in (checked(file_of([]), last).problem or "")


def test_a_trimmed_log_is_checked_from_the_second_end_on() -> None:
    bodies = sealed(turn(3), turn(2), turn(1))[2:]
    report = checked(file_of(bodies, first=3))
    assert (report.problem, report.turns, report.unproven) == (None, 2, [(3, 4)])
    del bodies[3]
    assert (checked(file_of(bodies, first=3)).problem or "").startswith("turn 1 ")


def test_bodies_with_line_ends_are_kept_byte_for_byte() -> None:
    pretty: ev.AnyEvent = ev.SessionUpdated(at=1, kind="k", update=Raw(b'{\r\n "a":\n 1}'))
    bodies = sealed([pretty, FAILED])
    assert b"\n" in bodies[0]
    file = file_of(bodies)
    assert checked(file).turns == 1
    assert [read_body(line) for line in file.splitlines(keepends=True)[1:]] == [*bodies, None]
    assert problem([b'{"base64":"A"}', *bodies]).startswith("turn 1 ")


def test_a_chain_continues_from_a_snapshot() -> None:
    whole = sealed(turn(2), turn(5))
    chain = seal(Chain(), turn(2), encode_all(turn(2)))
    chain.take(whole[3:6])
    snapshot = encode_state(NOTHING, chain)
    assert decode_state(snapshot, STATE_VERSION) == NOTHING
    mark = decode_chain(snapshot)
    assert mark is not None
    again = Chain(mark.first, mark.previous)
    again.take(whole[again.offset : 6])
    assert sealed(turn(5)[3:], chain=again) == whole[6:]
    assert decode_chain(encode_state(NOTHING)) is None
    assert decode_chain(b"nonsense") is None


def test_a_copy_of_a_chain_is_independent() -> None:
    chain = Chain()
    chain.take(encode_all(turn(3)[:3]))
    sealed(turn(1), chain=chain.copy())
    assert sealed([FAILED], chain=chain) == sealed(turn(3))[3:]


def test_other_files_are_not_exports() -> None:
    assert read_head(b'{"id":1,"v":1,"type":"session_created","data":{}}\n') is None
    assert read_head(b'{"form":"another","sessionId":"s","epoch":"e","first":1}') is None
    assert read_head(b"") is None
