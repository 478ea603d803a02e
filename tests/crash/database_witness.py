"""The independent reader of a log in PostgreSQL: by PostgreSQL's own client, `psql`, and nothing of turnwire.

It reads the tables in the state after a daemon's kill. Statements that the daemon had sent may still be stored
after its death; they are then after the heads that were read, and the next read finds them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from tests.crash.witness import Head, Witness
from tests.support.postgres import PostgresServer, schema_of

SESSIONS = "select id, name, epoch, first, head, unsettled::int from tw_sessions"
EVENTS = """select session, "offset", encode(body, 'hex') from tw_events order by 1, 2"""


class DatabaseWitness(Witness):
    """Everything ever seen of one schema."""

    def __init__(self, server: PostgresServer, address: str) -> None:
        super().__init__(Path("in a database"))
        self._server = server
        self._schema = schema_of(address)

    def look(self) -> list[str]:
        """Read the tables as they are now. They are there from the first start on."""
        if not self._server.ask("select 1 where to_regclass('tw_sessions') is not null", self._schema):
            return [f"G1 session {name} is gone" for name in self.sessions]
        bodies: defaultdict[int, list[tuple[int, bytes]]] = defaultdict(list)
        # Read the heads first: an append in transit only adds after them.
        heads = [
            Head(int(key), name, epoch, int(first), int(head), int(unsettled))
            for key, name, epoch, first, head, unsettled in self._server.ask(SESSIONS, self._schema)
        ]
        for key, offset, body in self._server.ask(EVENTS, self._schema):
            bodies[int(key)].append((int(offset), bytes.fromhex(body)))

        def events(head: Head) -> Sequence[tuple[int, bytes]]:
            return [each for each in bodies[head.key] if each[0] <= head.head]

        return list(self.compare(heads, events))
