"""The results of a run, for people and for programs: lines, JSON, JUnit's XML, a page, a badge; and against a
baseline.

Two runs with the same outcomes give the same JSON: it has no times. `Tally` decides which failures count. A
baseline is the list of known failures: only a new one fails a run. An entry that no longer fails also fails the
run, because an outdated entry would hide the next failure of that case.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from turnwire.errors import ConfigError
from turnwire_check.case import Case
from turnwire_check.catalogue import EVERY
from turnwire_check.frozen import digest_of
from turnwire_check.plain_text import plain
from turnwire_check.run import Outcome
from turnwire_check.tape import Frame, at, items

SHOWN = 400
"""Characters of a frame in lines and in JSON."""
STDERR_LINES = 5
AROUND = 3
"""Number of frames shown before and after those that prove a failure, on the page."""


@dataclass(frozen=True)
class Tally:
    """The outcomes of a run, and which of them count."""

    outcomes: Sequence[Outcome]
    peer: str
    """The peer's reported name and version."""
    sets: Sequence[str]
    strict: bool = False
    """True if broken recommendations count as failures as well."""
    known: frozenset[str] = frozenset()
    """The ids of cases whose failures are in the baseline."""

    def counts(self, outcome: Outcome) -> bool:
        """Return True if this failure counts against the peer. A peer must conform to everything it claims."""
        if outcome.verdict == "unanswered":
            return True
        return outcome.verdict == "failed" and (self.strict or outcome.case.severity != "should")

    @property
    def failed(self) -> list[Outcome]:
        """Broken rules that count."""
        return [each for each in self.outcomes if each.verdict == "failed" and self.counts(each)]

    @property
    def failures(self) -> list[Outcome]:
        """Everything that fails the run: broken rules, and cases without an answer."""
        return [each for each in self.outcomes if self.counts(each)]

    def is_known(self, outcome: Outcome) -> bool:
        """Return True if the baseline has this failure."""
        return self.counts(outcome) and outcome.case.id in self.known

    @property
    def advised(self) -> list[Outcome]:
        return [each for each in self.outcomes if each.verdict == "failed" and not self.counts(each)]

    @property
    def passed(self) -> list[Outcome]:
        return [each for each in self.outcomes if each.verdict == "passed"]

    @property
    def unanswered(self) -> list[Outcome]:
        """The cases that the peer did not answer. They fail the run."""
        return [each for each in self.outcomes if each.verdict == "unanswered"]

    @property
    def unscored(self) -> list[Outcome]:
        return [each for each in self.outcomes if each.verdict == "not_scored" and not each.is_fault]

    @property
    def faults(self) -> list[Outcome]:
        """Errors of the judge itself."""
        return [each for each in self.outcomes if each.is_fault]

    def in_words(self) -> str:
        words = f"{len(self.passed)} passed, {len(self.failed)} failed"
        if self.unanswered:
            words += f", {len(self.unanswered)} not answered"
        if known := sum(map(self.is_known, self.failures)):
            words += f" ({known} known)"
        if self.advised:
            words += f", {len(self.advised)} not as they should be"
        words += f", {len(self.unscored)} not scored"
        return f"{words}, {len(self.faults)} errors of the judge" if self.faults else words


def proof_of(outcome: Outcome) -> list[Frame]:
    return [outcome.frames[each] for each in sorted(set(outcome.proof)) if each < len(outcome.frames)]


def shown(frame: Frame, length: int = SHOWN) -> str:
    words = frame.raw.decode(errors="backslashreplace")
    return words if len(words) <= length else f"{words[: length - 1]}…"


def failure_lines(outcome: Outcome) -> Iterator[str]:
    """Return a failure for a terminal: the rule, the event, the frames."""
    case = outcome.case
    yield f"{case.id} ({case.severity}): {case.rule}"
    yield f"  {outcome.words}"
    yield from map(_frame_line, proof_of(outcome))
    yield from (f"  stderr: {each}" for each in stderr_lines(outcome))
    yield f"  {case.source}"


def stderr_lines(outcome: Outcome) -> list[str]:
    """Return the end of a peer's stderr, if it exited: it is the most likely place of the reason."""
    return plain(outcome.stderr).splitlines()[-STDERR_LINES:] if outcome.has_left else []


def fault_lines(outcome: Outcome) -> Iterator[str]:
    """Return the lines of a checker's error: the case, the known details, and the last frames before it."""
    yield f"{outcome.case.id}: {outcome.words}"
    yield from (_frame_line(each) for each in outcome.frames[-AROUND:])


def _frame_line(frame: Frame) -> str:
    place = f"[{frame.channel}] " if frame.channel else ""
    return f"  {'sent' if frame.is_ours else 'got '} {place}{shown(frame)}"


def listed_json(cases: Sequence[Case]) -> str:
    """Cases as they are listed."""
    rows = [
        {"id": each.id, "severity": each.severity, "rule": each.rule, "source": each.source}
        | {"capability": each.capability, "scenes": list(each.scenes)}
        | {"carriers": list(each.carriers), "digest": each.digest()}
        for each in cases
    ]
    return json.dumps({"turnwire": version("turnwire"), "cases": rows}, ensure_ascii=False, indent=1) + "\n"


def as_json(tally: Tally) -> str:
    cases = [_case_json(each, tally) for each in tally.outcomes]
    counts = {
        "passed": len(tally.passed),
        "failed": len(tally.failed),
        "unanswered": len(tally.unanswered),
        "advised": len(tally.advised),
        "notScored": len(tally.unscored),
        "judgeErrors": len(tally.faults),
    }
    sets = [{"name": each, "digest": digest_of(each)} for each in tally.sets]
    whole = {"turnwire": version("turnwire"), "peer": tally.peer, "sets": sets, "counts": counts, "cases": cases}
    return json.dumps(whole, ensure_ascii=False, indent=1) + "\n"


def _case_json(outcome: Outcome, tally: Tally) -> dict[str, Any]:
    case = outcome.case
    found: dict[str, Any] = {"id": case.id, "verdict": outcome.verdict, "severity": case.severity}
    found |= {"rule": case.rule, "source": case.source}
    found["capability"] = case.capability
    if lines := stderr_lines(outcome):
        found["stderr"] = lines
    if outcome.verdict in ("not_scored", "unanswered"):
        found["reason"] = outcome.words
    if outcome.is_fault:
        found |= {"judgeError": True, "frames": [_frame_json(each) for each in outcome.frames[-AROUND:]]}
    if outcome.verdict in ("failed", "unanswered"):
        found |= {"counts": tally.counts(outcome), "known": tally.is_known(outcome)}
    if outcome.verdict == "failed":
        frames = [_frame_json(each) for each in proof_of(outcome)]
        found |= {"what": outcome.words, "proof": frames}
    return found


def _frame_json(frame: Frame) -> dict[str, Any]:
    told = {"from": "suite" if frame.is_ours else "peer", "frame": shown(frame)}
    return told | ({"channel": frame.channel} if frame.channel else {})


def as_junit(tally: Tally) -> str:
    """Return the report for tools that display test results. Failures that do not count, or are known, are skipped
    with their text.
    """
    known = sum(map(tally.is_known, tally.failures))
    suite = ElementTree.Element(
        "testsuite",
        name=plain(f"turnwire check {tally.peer}".strip()),
        tests=str(len(tally.outcomes)),
        failures=str(len(tally.failures) - known),
        errors=str(len(tally.faults)),
        skipped=str(len(tally.unscored) + len(tally.advised) + known),
    )
    for each in tally.outcomes:
        part, _, _ = each.case.id.rpartition(".")
        row = ElementTree.SubElement(suite, "testcase", classname=part, name=f"{each.case.id}: {each.case.rule}")
        if tally.is_known(each):
            ElementTree.SubElement(row, "skipped", message=plain(f"known failure: {each.words}"))
        elif tally.counts(each):
            failure = ElementTree.SubElement(row, "failure", message=plain(each.words), type=each.case.severity)
            failure.text = plain("\n".join(failure_lines(each)))
        elif each.is_fault:
            fault = ElementTree.SubElement(row, "error", message=plain(each.words), type="judge")
            fault.text = plain("\n".join(fault_lines(each)))
        elif each.verdict != "passed":
            words = f"should, and does not: {each.words}" if each.verdict == "failed" else each.words
            skipped = ElementTree.SubElement(row, "skipped", message=plain(words))
            skipped.text = "\n".join(stderr_lines(each)) or None
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


BADGE = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img"
 aria-label="{label}: {words}">
<title>{label}: {words}</title>
<rect width="{left}" height="20" fill="#444"/><rect x="{left}" width="{right}" height="20" fill="{colour}"/>
<g fill="#fff" font-family="Verdana,sans-serif" font-size="11" text-anchor="middle">
<text x="{left_middle}" y="14">{label}</text><text x="{right_middle}" y="14">{words}</text></g></svg>
"""


def as_badge(tally: Tally) -> str:
    """Return a picture: the sets, and the share of the checked rules that passed."""
    label = ", ".join(tally.sets) or "ACP"
    judged = len(tally.passed) + len(tally.failed) + len(tally.advised)
    judged += len(tally.unanswered)
    words = f"{len(tally.passed)}/{judged}" if judged else "not judged"
    left, right = 7 * len(label) + 12, 7 * len(words) + 12
    colour = "#b3261e" if tally.failures else "#9a6700" if tally.advised else "#1a7f37" if judged else "#6e7781"
    return BADGE.format(
        width=left + right,
        left=left,
        right=right,
        label=html.escape(label),
        words=words,
        colour=colour,
        left_middle=left / 2,
        right_middle=left + right / 2,
    )


PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }}
body {{ max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; width: 100%; }}
td, th {{ text-align: left; vertical-align: top; padding: .25rem .5rem; border-bottom: 1px solid #8884; }}
code {{ font-size: 12px; overflow-wrap: anywhere; }}
.failed, .unanswered {{ color: #c62828; }} .advised {{ color: #b26a00; }} .passed {{ color: #2e7d32; }}
.ours {{ opacity: .75; }} .proof {{ background: #c6282822; }}
summary {{ cursor: pointer; }}
</style>
<h1>{title}</h1>
<p>{words}. {sets}</p>
{body}
</html>
"""


def as_html(tally: Tally) -> str:
    """Return a self-contained page: the failures with their frames in time, then all results."""
    parts: list[str] = []
    for name, found in (("failed", tally.failed), ("advised", tally.advised)):
        parts += [_failure_html(each, name) for each in found]
    parts += [_failure_html(each, "failed") for each in tally.faults]
    rows = [_row_html(each, tally) for each in tally.outcomes]
    head = "<tr><th>case<th>verdict<th>rule<th>source"
    parts.append(f"<h2>All cases</h2><table>{head}{''.join(rows)}</table>")
    title = html.escape(f"turnwire check: {tally.peer}".removesuffix(": "))
    return PAGE.format(
        title=title, words=tally.in_words(), sets=html.escape(", ".join(tally.sets)), body="\n".join(parts)
    )


def _failure_html(outcome: Outcome, name: str) -> str:
    case = outcome.case
    proof = set(outcome.proof)
    near = {place for each in proof for place in range(each - AROUND, each + AROUND + 1)}
    rows: list[str] = []
    left_out = False
    for each in outcome.frames:
        if each.number not in near and proof:
            left_out = True
            continue
        if left_out:
            rows.append("<tr><td colspan=3>…")
            left_out = False
        marks = " ".join((["ours"] if each.is_ours else []) + (["proof"] if each.number in proof else []))
        way = f"{'suite →' if each.is_ours else '← peer'} {html.escape(each.channel)}".strip()
        cells = f"<td>{each.at_s * 1000:.0f} ms<td>{way}<td><code>{html.escape(shown(each, 4000))}</code>"
        rows.append(f'<tr class="{marks}">{cells}')
    errors = f"<p>stderr: <code>{html.escape(outcome.stderr)}</code>" if outcome.stderr else ""
    return (
        f'<h2 class="{name}">{html.escape(case.id)} ({case.severity})</h2><p>{html.escape(case.rule)}'
        f"<br>{html.escape(case.source)}<p><strong>{html.escape(outcome.words)}</strong>"
        f"<details open><summary>frames</summary><table>{''.join(rows)}</table></details>{errors}"
    )


def _row_html(outcome: Outcome, tally: Tally) -> str:
    case = outcome.case
    name = "advised" if outcome in tally.advised else outcome.verdict
    told = outcome.verdict.replace("_", " ") + (f": {outcome.words}" if outcome.words else "")
    return (
        f'<tr><td><code>{html.escape(case.id)}</code><td class="{name}">{html.escape(told)}'
        f"<td>{html.escape(case.rule)}<td>{html.escape(case.source)}"
    )


# -- a baseline ------------------------------------------------------------------------------------------------


class Difference(NamedTuple):
    """The difference between a run and its baseline."""

    new: list[str]
    """Failures that the baseline does not know."""
    stale: list[str]
    """Entries that the baseline has and the run does not."""


def read_baseline(path: Path) -> frozenset[str]:
    """The ids of cases that are known to fail. Raises `ConfigError`."""
    try:
        whole: object = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--baseline {path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise ConfigError(f"--baseline {path} is no JSON; write one with --write-baseline") from None
    known = items(at(whole, "knownFailures"))
    if not isinstance(at(whole, "knownFailures"), list) or not all(isinstance(each, str) for each in known):
        raise ConfigError(f"--baseline {path} has no list `knownFailures`; write one with --write-baseline")
    return frozenset(known)


def written_baseline(tally: Tally) -> str:
    known = {"knownFailures": [each.case.id for each in tally.failures]}
    return json.dumps(known, indent=1) + "\n"


def compare(tally: Tally) -> Difference:
    """Compare the checked cases with the baseline. An id without a case is stale as well: no case can fail under it
    again.
    """
    new = [each.case.id for each in tally.failures if not tally.is_known(each)]
    kept = {each.case.id for each in (*tally.passed, *tally.advised)}
    return Difference(new, sorted(each for each in tally.known if each in kept or each not in EVERY))
