"""A verdict about a client as it is written down: by the agent that judged, for whoever started the client.

A file of verdicts holds the newest of each case, so that a client can be judged one start after the other. A pipe
gets each on a line of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from turnwire.conformance.case import Case
from turnwire.conformance.run import Outcome, Verdict
from turnwire.conformance.tape import Frame, at, items, read
from turnwire.errors import ConfigError

VERDICTS: Mapping[str, Verdict] = {"passed": "passed", "failed": "failed", "not_scored": "not_scored"}


class ClientVerdict(NamedTuple):
    """What became of one case, and whom it was about."""

    client: str
    """Its name and version, as it gives them."""
    outcome: Outcome


def written(verdict: ClientVerdict) -> str:
    """One line. Bytes that are no UTF-8 come back as they were."""
    found = verdict.outcome
    frames = [
        {"ours": each.is_ours, "raw": each.raw.decode(errors="surrogateescape"), "at": each.at_s}
        for each in found.frames
    ]
    whole = {"case": found.case.id, "client": verdict.client, "verdict": found.verdict, "words": found.words}
    return json.dumps({**whole, "proof": list(found.proof), "frames": frames, "fault": found.is_fault})


def of_line(line: str | bytes, cases: Mapping[str, Case]) -> ClientVerdict | None:
    """A verdict as it was written; nothing if it is none, or about a case that is not there."""
    try:
        whole: object = json.loads(line)
    except ValueError:
        return None
    case, verdict = cases.get(str(at(whole, "case"))), VERDICTS.get(str(at(whole, "verdict")))
    if case is None or verdict is None:
        return None
    frames = tuple(_frame(number, each) for number, each in enumerate(items(at(whole, "frames"))))
    words, proof = str(at(whole, "words")), tuple(map(int, items(at(whole, "proof"))))
    outcome = Outcome(case, verdict, words, proof, frames, is_fault=bool(at(whole, "fault")))
    return ClientVerdict(str(at(whole, "client")), outcome)


def _frame(number: int, kept: Any) -> Frame:
    raw = str(at(kept, "raw")).encode(errors="surrogateescape")
    value, flaw = read(raw)
    return Frame(number, bool(at(kept, "ours")), raw, value, flaw, float(at(kept, "at") or 0.0))


def read_verdicts(path: Path, cases: Mapping[str, Case]) -> dict[str, ClientVerdict]:
    """The newest of each case; none where there is no file yet. Raises `ConfigError`."""
    if not path.is_file():
        return {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise ConfigError(f"--report {path} cannot be read; name another file") from None
    found = [each for each in (of_line(line, cases) for line in lines) if each is not None]
    return {each.outcome.case.id: each for each in found}


def keep_verdict(path: Path, verdict: ClientVerdict) -> None:
    """Add it at the end. Raises `ConfigError`."""
    try:
        # A pipe that nobody reads any more is refused at once; one that is read takes all of it, however long.
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o666)
        os.set_blocking(descriptor, True)
        with open(descriptor, "a", encoding="utf-8") as file:
            file.write(written(verdict) + "\n")
    except OSError as error:
        raise ConfigError(f"--report {path} cannot be written: {error.strerror}") from None
