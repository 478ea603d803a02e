"""The stored form of a verdict about a client: written by the checking agent, read by the process that started the
client.

A file of verdicts holds the newest of each case, so that a client can be checked one start after the other. A pipe
gets each on a separate line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from turnwire.errors import ConfigError
from turnwire_check.case import Case
from turnwire_check.run import Outcome, Verdict
from turnwire_check.tape import Frame, at, items, read

VERDICTS: Mapping[str, Verdict] = {each: each for each in ("passed", "failed", "unanswered", "not_scored")}


class ClientVerdict(NamedTuple):
    """The outcome of one case, and the client it is about."""

    client: str
    """The client's reported name and version."""
    outcome: Outcome


def written(verdict: ClientVerdict) -> str:
    """Return one line. Invalid UTF-8 bytes are read back unchanged."""
    found = verdict.outcome
    frames = [
        {"ours": each.is_ours, "raw": each.raw.decode(errors="surrogateescape"), "at": each.at_s}
        for each in found.frames
    ]
    whole = {"case": found.case.id, "client": verdict.client, "verdict": found.verdict, "words": found.words}
    return json.dumps({**whole, "proof": list(found.proof), "frames": frames, "fault": found.is_fault})


def of_line(line: str | bytes, cases: Mapping[str, Case]) -> ClientVerdict | None:
    """Parse a verdict; None if the line is not one, or is about an unknown case."""
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
    """Return the newest verdict of each case; empty if the file does not exist yet. Raises `ConfigError`."""
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
        # A pipe without a reader fails at once; a pipe with a reader accepts the whole line, however long.
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o666)
        os.set_blocking(descriptor, True)
        with open(descriptor, "a", encoding="utf-8") as file:
            file.write(written(verdict) + "\n")
    except OSError as error:
        raise ConfigError(f"--report {path} cannot be written: {error.strerror}") from None
