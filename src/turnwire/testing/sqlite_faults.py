"""Connections of SQLite that a test can watch, hold or break, statement by statement.

Takes a function that sees each statement in the thread that runs it, before it runs; what it raises, the
statement raises. Gives nothing back. Never touches a connection that was opened before or after.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from turnwire.testing.patience import WAIT_S


class Faults:
    """What happens to the statements of the connections opened under `sqlite_faults`."""

    def __init__(self) -> None:
        self.before: Callable[[sqlite3.Connection, str], None] | None = None
        """Called with every single statement; not with those that run many times."""
        self.reached = threading.Event()
        self._go_on = threading.Event()

    def fail(self, statement: str, code: int) -> None:
        """From now on a statement that begins so fails with this result code of SQLite."""

        def raise_it(_: sqlite3.Connection, sql: str) -> None:
            if sql.strip().startswith(statement):
                error = sqlite3.OperationalError("words of SQLite")
                error.sqlite_errorcode = code
                raise error

        self.before = raise_it

    def hold(self, statement: str) -> None:
        """The next statement that begins so sets `reached` and waits for `release`."""

        def wait(_: sqlite3.Connection, sql: str) -> None:
            if sql.strip().startswith(statement) and not self.reached.is_set():
                self.reached.set()
                assert self._go_on.wait(WAIT_S), "nobody released the statement"

        self.before = wait

    def release(self) -> None:
        """Let what is held go on, and whatever comes after."""
        self._go_on.set()


@contextmanager
def sqlite_faults() -> Generator[Faults]:
    """Every connection opened inside is under these faults."""
    faults = Faults()
    connect = sqlite3.connect

    class Faulty(sqlite3.Connection):
        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            if faults.before is not None:
                faults.before(self, sql)
            return super().execute(sql, parameters)

    def connect_faulty(path: str, **options: Any) -> sqlite3.Connection:
        return connect(path, factory=Faulty, **options)

    with patch.object(sqlite3, "connect", connect_faulty):
        yield faults
    faults.before = None
