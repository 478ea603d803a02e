"""A database whose primary can be lost for good, repeatedly: its synchronous standby takes over each time.

The promoted server gets a standby at once, made from it. Until that follows, nothing else happens to the database:
an operator would not promote one that does not follow, either.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.cluster.nodes import Cluster
from tests.support.postgres import PostgresServer, need_postgres, postgres_server


class Standbys:
    """A primary and the standby without which it acknowledges nothing. They are killed: no other test has them."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._folders: dict[PostgresServer, ExitStack] = {}
        self.primary = self._start(None)
        self.standby = self._follow()

    def _start(self, primary: PostgresServer | None) -> PostgresServer:
        folder = ExitStack()
        server = folder.enter_context(postgres_server(self._programs, primary))
        self._folders[server] = folder
        return server

    def _follow(self) -> PostgresServer:
        standby = self._start(self.primary)
        self.primary.wait_for_standby()
        return standby

    def promote(self, cluster: Cluster) -> None:
        """The primary is lost, its standby is the database from now on, and gets a standby."""
        self.primary.wait_for_standby()
        lost, self.primary = self.primary, self.standby
        cluster.fail_over(self.primary)
        self._folders.pop(lost).close()
        self.standby = self._follow()

    def close(self) -> None:
        """End all of them."""
        for folder in reversed(self._folders.values()):
            folder.close()


@contextmanager
def open_standbys() -> Generator[Standbys]:
    """Run a pair until the end of the block; without PostgreSQL the test is skipped."""
    standbys = Standbys(need_postgres())
    try:
        yield standbys
    finally:
        standbys.close()
