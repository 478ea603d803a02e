"""A command that is checked case by case, for synchronous callers: a test suite, for example."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import anyio

from turnwire_check.case import Case
from turnwire_check.client_run import ClientCommand, run_client
from turnwire_check.provocation import read_provocation
from turnwire_check.raw_client import Subject
from turnwire_check.run import Bounds, Outcome, judge, probe, unharmed
from turnwire_check.transport import process_opener


class JudgedCommand:
    """An agent's or a client's command. An agent's identity is requested once; then each case starts it
    separately.
    """

    def __init__(
        self, words: Sequence[str], *, of_clients: bool, provoke: Sequence[str] = (), patience_s: float = 10.0
    ) -> None:
        self._words = words
        self._of_clients = of_clients
        self._given = dict(map(read_provocation, provoke))
        self._bounds = Bounds(patience_s)
        self._folder = tempfile.TemporaryDirectory(prefix="turnwire-check-")
        self._place = os.path.realpath(self._folder.name)
        self._subject: Subject | None = None
        self.peer = ""
        """The peer's reported name and version; empty before the first case."""

    def judged(self, case: Case) -> Outcome:
        return anyio.run(self._judged, case)

    async def _judged(self, case: Case) -> Outcome:
        if self._of_clients:
            [verdict] = await run_client([case], ClientCommand(self._words, Path(self._place), self._bounds))
            self.peer = self.peer or verdict.client
            return verdict.outcome
        opener = process_opener(self._words, os.getcwd())
        if self._subject is None:
            self._subject = await probe(opener, self._place, given=self._given, bounds=self._bounds)
            self.peer = self._subject.name
        return await unharmed(case, judge(case, opener, self._subject))

    def close(self) -> None:
        self._folder.cleanup()
