"""Receipts: what is hashed, how a chain goes on from a snapshot, and what a file of stored events tells."""

from __future__ import annotations

from hashlib import sha256

import pytest
from msgspec import Raw
from msgspec.structs import replace

from turnwire.core import events as ev
from turnwire.core.codec import decode_chain, decode_state, encode, encode_all, encode_state
from turnwire.core.receipts import LINK, Chain, without_receipt
from turnwire.core.state import NOTHING, STATE_VERSION, Phase
from turnwire.core.stored_file import Fault, Head, Report, StoredFile, check, read_head
from turnwire.ids import Epoch, PromptId, SessionId

SESSION, PROMPT = SessionId("s1"), PromptId("p")
CLOSED = ev.SessionClosed(at=1, reason="r")
FAILED = ev.TurnFailed(at=2, prompt_id=PROMPT, code="x", message="y")


def chunk(text: str) -> ev.AnyEvent:
    return ev.SessionUpdated(at=1, kind="k", update=Raw(b'{"t":"%b"}' % text.encode()), prompt_id=PROMPT)


def later(event: ev.AnyEvent) -> ev.AnyEvent:
    return replace(event, at=9)


def turn(chunks: int) -> list[ev.AnyEvent]:
    return [*(chunk(str(number)) for number in range(chunks)), FAILED]


def sealed(*turns: list[ev.AnyEvent], chain: Chain | None = None) -> list[bytes]:
    chain, stored = chain or Chain(), list[bytes]()
    for events in turns:
        bodies = encode_all(events)
        chain.seal(events, bodies)
        stored += bodies
    return stored


def report_of(bodies: list[bytes], first: int = 1) -> Report:
    head = Head(session_id=SESSION, epoch=Epoch("e"), first=first, last=first + len(bodies) - 1)
    file = StoredFile(head)
    lines = [file.head, *file.lines(enumerate(bodies, first)).splitlines()]
    assert read_head(lines[0]) == head
    return check(head, lambda: lines)


def test_the_hash_is_over_the_bodies_as_anybody_can_make_it() -> None:
    events: list[ev.AnyEvent] = [chunk("a"), chunk("b"), FAILED, chunk("c"), later(chunk("d")), FAILED]
    failed = encode(FAILED)
    around = b'\1{"type":"session_update","kind":"k","update":\0,"promptId":"p","at":%d}\0'
    head = b"turnwire receipt 1\0"

    first = sha256(head + b"1\0\0" + around % 1 + b'{"t":"a"}\n{"t":"b"}\n' + b"\2" + failed + b"\0").hexdigest()
    second = sha256(
        head
        + b"4\0"
        + first.encode()
        + b"\0"
        + around % 1
        + b'{"t":"c"}\n'
        + around % 9
        + b'{"t":"d"}\n'
        + b"\2"
        + failed
        + b"\0"
    ).hexdigest()
    bodies = sealed(events)
    assert [each.receipt for each in events if isinstance(each, ev.TurnFailed)] == [
        ev.Receipt(hash=first, events=3, first=1, last=3),
        ev.Receipt(hash=second, events=3, first=4, last=6, previous=first),
    ]
    assert bodies == encode_all(events)


def test_a_link_is_begun_behind_so_many_bodies_with_the_digest_of_those_before() -> None:
    around = b'\1{"type":"session_update","kind":"k","update":\0,"promptId":"p","at":1}\0'
    texts = [b'{"t":"%d"}\n' % number for number in range(LINK + 1)]
    link = sha256(b"turnwire receipt 1\0" + b"1\0" + b"\0" + around + b"".join(texts[:LINK])).digest()
    expected = sha256(link + around + texts[-1] + b"\2" + encode(FAILED) + b"\0").hexdigest()
    assert expected.encode() in sealed(turn(LINK + 1))[-1]


@pytest.mark.parametrize(
    "odd",
    [
        b'"text"',
        b'{"t":\n"a"}',
        rb'{"t":",\"update\":{"}',
        b'{"t":1,"promptId":"p","at":1}',
        b'{"a":{"b":1,"update":{"promptId":2},"promptId":"p"}}',
    ],
)
def test_an_update_that_is_no_object_in_one_line_or_looks_like_more_is_proven_as_any_other(odd: bytes) -> None:
    """Whatever a payload holds, what was known of a run beforehand and what is found in its bodies are one hash."""
    one = ev.SessionUpdated(at=1, kind="k", update=Raw(odd), prompt_id=PROMPT)
    events: list[ev.AnyEvent] = [chunk("a"), one, chunk("b"), later(one), one, FAILED]
    bodies = sealed(list(events))
    report = report_of(bodies)
    assert (report.problem, report.proven) == (None, ((1, 6),))
    swapped = report_of([bodies[1], bodies[0], *bodies[2:]])
    assert swapped.problem is not None


def test_what_is_around_an_update_is_in_the_hash_also_where_it_is_hashed_once() -> None:
    bodies = sealed(turn(3))
    for old, new in [
        (b'"kind":"k"', b'"kind":"x"'),
        (b'"at":1', b'"at":2'),
        (b'"promptId":"p"', b'"promptId":"q"'),
    ]:
        for place in range(3):
            altered = [*bodies]
            altered[place] = altered[place].replace(old, new)
            assert report_of(altered).problem is not None
        assert report_of([*(each.replace(old, new) for each in bodies[:3]), bodies[3]]).problem is not None


def test_bytes_that_no_json_has_do_not_make_one_event_of_two_or_another_of_one() -> None:
    """C5: somebody who writes a file by hand may put anything into it."""
    bodies = sealed([chunk("a"), CLOSED, CLOSED, chunk("b"), FAILED])
    front, back = b'{"type":"session_update","kind":"k","update":', b',"promptId":"p","at":1}'
    as_payload = front + b"\2" + bodies[1] + b"\0" + back
    for altered in (
        [bodies[0], as_payload, *bodies[2:]],
        [bodies[0], bodies[1] + b"\0\2" + bodies[2], *bodies[3:]],
        [bodies[0] + b"\n\2" + bodies[1], *bodies[2:]],
    ):
        proven = report_of(altered)
        assert proven.problem is not None or proven.proven == ()


@pytest.mark.parametrize("before", [0, 1, LINK - 1, LINK, LINK + 1, 2 * LINK, 3 * LINK + 7])
def test_a_chain_that_a_snapshot_kept_goes_on_as_if_nothing_had_been(before: int) -> None:
    whole = sealed(turn(2), turn(before + 5))
    chain = Chain()
    stored = sealed(turn(2), turn(before + 5)[:before], chain=chain)
    state = replace(NOTHING, phase=Phase.OPEN)
    snapshot = encode_state(state, chain)
    assert decode_state(snapshot, STATE_VERSION) == state
    mark = decode_chain(snapshot)
    assert mark is not None
    assert 0 <= len(stored) - mark.offset < LINK, "and little is read again"
    again = Chain.at(mark)
    again.take(stored[mark.offset :])
    assert sealed(turn(before + 5)[before:], chain=again) == whole[len(stored) :]


def test_a_snapshot_of_an_older_version_has_no_chain() -> None:
    assert decode_chain(encode_state(NOTHING)) is None
    assert decode_chain(b"nonsense") is None
    assert decode_chain(encode_state(NOTHING, Chain())) == Chain().mark


def test_a_copy_goes_its_own_way() -> None:
    chain = Chain()
    sealed(turn(3)[:3], chain=chain)
    sealed(turn(1), chain=chain.copy())
    assert sealed([FAILED], chain=chain) == sealed(turn(3))[3:]


def test_an_end_is_told_from_its_receipt_only_where_it_is_stored_like_that() -> None:
    (body,) = sealed([FAILED])
    receipt = ev.Receipt(hash="h", events=1, first=1, last=1)
    assert without_receipt(encode(replace(FAILED, receipt=receipt)), receipt) == encode(FAILED)
    assert without_receipt(body, receipt) is None


def test_a_chain_begins_anew_behind_an_end_without_a_receipt() -> None:
    chain = Chain()
    chain.pass_end(4, None)
    report = report_of(encode_all(turn(3)) + sealed(turn(1), turn(0), chain=chain))
    assert (report.problem, report.receipts) == (None, 2)
    assert (report.proven, report.unproven) == (((5, 7),), ((1, 4),))


def test_a_log_without_receipts_is_no_failure_and_proves_nothing() -> None:
    report = report_of(encode_all(turn(3)))
    assert (report.problem, report.receipts, report.hash) == (None, 0, None)
    assert report.unproven == ((1, 4),)


def test_a_chain_that_begins_in_the_middle_of_a_turn_proves_the_rest_of_it() -> None:
    report = report_of(sealed(turn(2)) + encode_all(turn(4)[:2]) + sealed(turn(2), chain=Chain(6)))
    assert (report.problem, report.proven, report.unproven) == (None, ((1, 3), (6, 8)), ((4, 5),))


def test_a_trimmed_log_is_proven_from_the_first_receipt_on_whose_events_are_there() -> None:
    bodies = sealed(turn(3), turn(2), turn(1))
    cut = report_of(bodies[2:], first=3)
    assert (cut.problem, cut.proven, cut.unproven) == (None, ((5, 9),), ((3, 4),))
    at_an_end = report_of(bodies[4:], first=5)
    assert (at_an_end.problem, at_an_end.proven, at_an_end.unproven) == (None, ((5, 9),), ())
    altered = report_of([*bodies[2:4], bodies[5], *bodies[5:]], first=3)
    assert altered.problem is not None


def test_bodies_with_line_ends_are_kept_byte_for_byte() -> None:
    pretty: ev.AnyEvent = ev.SessionUpdated(at=1, kind="k", update=Raw(b'{\r\n "a":\n 1}'))
    bodies = sealed([pretty, FAILED])
    assert b"\n" in bodies[0]
    assert report_of(bodies).proven == ((1, 2),)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"events":2', b'"events":3'),
        (b'"first":1', b'"first":2'),
        (b'"last":2', b'"last":1'),
        (b'"hash":"', b'"hash":"0'),
        (b'"last":2', b'"last":2,"previous":"00"'),
        (b'"receipt":{', b'"receipt": {'),
        (b'"code":"x"', b'"code":"z"'),
        (b'"code":"x"', b'"code":7'),
    ],
)
def test_no_member_of_an_end_or_its_receipt_can_be_another(old: bytes, new: bytes) -> None:
    bodies = sealed(turn(1))
    assert bodies[-1].count(old) == 1
    report = report_of([bodies[0], bodies[1].replace(old, new)])
    assert report.problem is not None


def test_a_receipt_that_is_gone_is_missed_by_the_next() -> None:
    bodies = sealed(turn(1), turn(1))
    report = report_of([bodies[0], encode(FAILED), *bodies[2:]])
    assert report.problem is not None
    assert (report.problem.fault, report.problem.event) == (Fault.CHANGED, 2)


def test_a_line_that_is_no_line_and_a_file_that_is_cut_are_faults() -> None:
    head = Head(session_id=SESSION, epoch=Epoch("e"), first=1, last=2)
    file = StoredFile(head)
    lines = [file.head, *file.lines(enumerate(sealed(turn(1)), 1)).splitlines()]

    def fault(*altered: bytes) -> tuple[Fault, int]:
        problem = check(head, lambda: altered).problem
        assert problem is not None
        return problem.fault, problem.event

    assert fault(lines[0], b"{", lines[2]) == (Fault.CHANGED, 1)
    assert fault(lines[0], lines[1], b'{"offset":2,"sum":"","base64":"!"}') == (Fault.CHANGED, 2)
    assert fault(lines[0], lines[1], b'{"offset":2,"sum":""}') == (Fault.CHANGED, 2)
    assert fault(*lines[:2]) == (Fault.DROPPED, 2)
    assert fault() == (Fault.DROPPED, 1)
    assert fault(*lines, b'{"offset":3,"sum":"","body":{}}') == (Fault.ADDED, 3)
    assert fault(lines[0].replace(b"s1", b"s2"), *lines[1:]) == (Fault.CHANGED, 1)


def test_other_files_are_told_from_files_of_stored_events() -> None:
    assert read_head(b'{"id":1,"v":1,"type":"session_created","data":{}}\n') is None
    assert read_head(b'{"form":"another","sessionId":"s","epoch":"e","first":1,"last":2}') is None
    assert read_head(b"") is None
