"""Reports of a run: the failures that count, and each format."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from turnwire import __version__
from turnwire.errors import ConfigError
from turnwire_check.catalogue import CASES
from turnwire_check.frozen import digest_of
from turnwire_check.report import (
    Tally,
    as_badge,
    as_html,
    as_json,
    as_junit,
    compare,
    failure_lines,
    read_baseline,
    written_baseline,
)
from turnwire_check.run import Outcome
from turnwire_check.tape import Tape

MUST, SHOULD, DRAFT = CASES["v1.turn.once"], CASES["v1.tool.over"], CASES["v1.ready.held"]


def failure(name: str, words: str = "it was <answered> twice\x07") -> Outcome:
    tape = Tape(clock=lambda: 1.0)
    tape.add(b'{"jsonrpc":"2.0","id":1,"method":"session/prompt"}', is_ours=True)
    tape.add(b'{"jsonrpc":"2.0","id":1,"result":{"text":"</script>"}}', is_ours=False)
    return Outcome(CASES[name], "failed", words, (1,), tuple(tape.frames))


def tally(*outcomes: Outcome, strict: bool = False) -> Tally:
    return Tally(outcomes, "an agent 1", ("acp-v1/2026-11",), strict)


def test_what_should_be_counts_only_when_that_is_wanted_and_what_is_claimed_always() -> None:
    outcomes = [failure(each.id) for each in (MUST, SHOULD, DRAFT)]
    assert [each.case for each in tally(*outcomes).failed] == [MUST, DRAFT]
    assert [each.case for each in tally(*outcomes).advised] == [SHOULD]
    assert len(tally(*outcomes, strict=True).failed) == 3


def test_a_failure_shows_its_rule_and_the_frames_that_prove_it() -> None:
    lines = list(failure_lines(failure(MUST.id)))
    assert lines[0] == f"{MUST.id} (must): {MUST.rule}"
    assert [each for each in lines if "</script>" in each] == [
        '  got  {"jsonrpc":"2.0","id":1,"result":{"text":"</script>"}}'
    ]


def test_json_has_every_case_with_its_reason_or_its_proof() -> None:
    found = json.loads(
        as_json(tally(failure(MUST.id), Outcome(SHOULD, "not_scored", "why"), Outcome(DRAFT, "passed")))
    )
    assert found["counts"] == {
        "passed": 1,
        "failed": 1,
        "unanswered": 0,
        "advised": 0,
        "notScored": 1,
        "judgeErrors": 0,
    }
    first, second, third = found["cases"]
    assert (first["id"], first["counts"], first["proof"][0]["from"]) == (MUST.id, True, "peer")
    assert (second["reason"], third["verdict"]) == ("why", "passed")


def test_junit_has_failures_that_count_and_skips_the_rest_with_the_reason() -> None:
    read = ElementTree.fromstring(
        as_junit(tally(failure(MUST.id), failure(SHOULD.id), Outcome(DRAFT, "not_scored", "why")))
    )
    assert (read.get("tests"), read.get("failures"), read.get("skipped")) == ("3", "1", "2")
    assert [each.get("message") for each in read.iter("skipped")] == [
        "should, and does not: it was <answered> twice\N{REPLACEMENT CHARACTER}",
        "why",
    ]


def test_a_page_needs_nothing_else_and_what_a_peer_says_is_text_in_it() -> None:
    page = as_html(tally(failure(MUST.id), Outcome(DRAFT, "passed")))
    assert "</script>" not in page
    assert "&lt;/script&gt;" in page
    assert "http" not in page
    assert MUST.id in page
    assert DRAFT.id in page


@pytest.mark.parametrize(
    ("outcomes", "colour"),
    [([failure(MUST.id)], "#b3261e"), ([failure(SHOULD.id)], "#9a6700"), ([Outcome(MUST, "passed")], "#1a7f37")],
)
def test_a_badge_has_the_set_the_score_and_a_colour(outcomes: list[Outcome], colour: str) -> None:
    badge = as_badge(tally(*outcomes, Outcome(DRAFT, "passed")))
    assert colour in badge
    assert "acp-v1/2026-11" in badge
    ElementTree.fromstring(badge)


def test_with_a_baseline_only_what_is_new_fails_and_what_is_gone(tmp_path: Path) -> None:
    known = tmp_path / "known.json"
    known.write_text(written_baseline(tally(failure(MUST.id))))
    assert read_baseline(known) == {MUST.id}
    assert compare(against(known, failure(MUST.id))) == ([], [])
    assert compare(against(known, failure(MUST.id), failure(DRAFT.id))).new == [DRAFT.id]
    assert compare(against(known, Outcome(MUST, "passed"))).stale == [MUST.id]


def test_what_did_not_run_is_not_stale_and_what_is_no_case_is(tmp_path: Path) -> None:
    known = tmp_path / "known.json"
    known.write_text(json.dumps({"knownFailures": [MUST.id, "v1.turn.renamed"]}))
    assert compare(against(known, Outcome(DRAFT, "passed"))).stale == ["v1.turn.renamed"]
    assert compare(against(known, Outcome(MUST, "not_scored", "why"))).stale == ["v1.turn.renamed"]


def test_a_known_failure_is_told_as_known_and_fails_nowhere(tmp_path: Path) -> None:
    known = tmp_path / "known.json"
    known.write_text(json.dumps({"knownFailures": [MUST.id]}))
    whole = against(known, failure(MUST.id), failure(DRAFT.id))
    assert "0 passed, 2 failed (1 known), 0 not scored" in whole.in_words()
    read = ElementTree.fromstring(as_junit(whole))
    assert (read.get("failures"), read.get("skipped")) == ("1", "1")
    assert [each["known"] for each in json.loads(as_json(whole))["cases"]] == [True, False]


def against(known: Path, *outcomes: Outcome) -> Tally:
    return replace(tally(*outcomes), known=read_baseline(known))


def test_a_badge_of_nothing_is_grey() -> None:
    badge = as_badge(tally(Outcome(MUST, "not_scored", "why")))
    assert "#6e7781" in badge
    assert "not judged" in badge


def test_json_says_what_judged_by_which_sets_and_what_each_case_needs() -> None:
    found = json.loads(as_json(tally(Outcome(DRAFT, "passed"))))
    assert found["turnwire"] == __version__
    assert found["sets"] == [{"name": "acp-v1/2026-11", "digest": digest_of("acp-v1/2026-11")}]
    assert found["cases"][0]["capability"] == DRAFT.capability


def test_the_end_of_stderr_is_told_of_a_peer_that_went_away() -> None:
    left = Outcome(MUST, "not_scored", "it left", stderr="a\nb\nc\nd\ne\nno such module\n", has_left=True)
    assert json.loads(as_json(tally(left)))["cases"][0]["stderr"] == ["b", "c", "d", "e", "no such module"]
    assert "no such module" in as_junit(tally(left))


@pytest.mark.parametrize("text", ["no json", "[]", '{"knownFailures": 5}', '{"knownFailures": [5]}'])
def test_a_baseline_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "known.json").write_text(text)
    with pytest.raises(ConfigError):
        read_baseline(tmp_path / "known.json")
