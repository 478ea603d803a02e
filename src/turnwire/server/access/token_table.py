"""Credentials and login links that all nodes of a database share.

What a node has met it keeps in mind, and looks after: once a second, and whenever another node rings, it asks which
of these have ended, and what runs under them is cut. What it has not met it looks up; lookups that wait go
together, so a flood of made-up ids costs one statement at a time.

What is kept in mind is believed for `TRUST_S` after the last look; then a credential is looked up before anybody
gets in by it. While the database does not answer it is believed on, up to `OUTAGE_S` after the last look: nobody
can store a revocation meanwhile either, unless this node alone is cut off, and that one stops serving well before.
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import get_args

import anyio
import msgspec

from turnwire.errors import CredentialsNotStored, LogError
from turnwire.ids import SessionId
from turnwire.log.credentials import CredentialRow, Credentials
from turnwire.runtime.clock import Clock
from turnwire.server.access.identity import Role
from turnwire.server.access.login import MOST_LINKS, Link
from turnwire.server.access.token_file import read_records, set_aside
from turnwire.server.access.tokens import ID_BYTES, Kind, TokenRecord, has_expired

LOOK_S = 1.0
"""Between two looks at what is kept in mind: one small statement."""
TRUST_S = 2.0
"""How long a revocation may go unnoticed when no ring of it arrives."""
AWAY_S = 10.0
"""What a try that failed spares requests: longer than the next try takes, so that nobody waits for that."""
OUTAGE_S = 300.0
"""Longer than a managed database needs to fail over; as long as a node goes on without its database."""
MOST_ENDED = 10_000
"""Ids of credentials that have ended, so that a lookup that was under way brings none back."""

_KINDS: dict[str, Kind] = {each: each for each in get_args(Kind)}
_ID = re.compile(rf"[0-9a-f]{{{2 * ID_BYTES}}}")

logger = logging.getLogger(__name__)


class _Lookup:
    """Ids that are asked for together."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.is_answered = False
        self.failure: LogError | None = None


class TokenTable:
    """A `TokenStore` in the database of the log."""

    def __init__(self, kept: Credentials, clock: Clock) -> None:
        self._kept = kept
        self._clock = clock
        self._known: dict[str, TokenRecord] = {}
        self._ended: dict[str, None] = {}
        self._owed: set[str] = set()
        """Those that were revoked here, and the database has not taken it."""
        self._untold: set[str] = set()
        """Those that a lookup has found to have ended."""
        self._looked_at = -math.inf
        """When the last look that was answered began."""
        self._trusted_until = -math.inf
        self._asking = anyio.Lock()
        """One question at a time: an answer never overtakes a later one."""
        self._next = _Lookup()

    def known(self, token_id: str) -> TokenRecord | None:
        return self._known.get(token_id)

    async def find(self, token_id: str) -> TokenRecord | None:
        if _ID.fullmatch(token_id) is None or token_id in self._ended:
            return None
        record = self._known.get(token_id)
        if record is not None and self._clock.monotonic() <= self._trusted_until:
            return record
        try:
            await self._look_up(token_id)
        except LogError:
            if record is None or self._clock.monotonic() > self._trusted_until:
                raise
        return self._known.get(token_id)

    async def all(self) -> list[TokenRecord]:
        return [_record(each) for each in await self._kept.all() if each.id not in self._ended]

    async def add(self, record: TokenRecord, most: int) -> bool:
        try:
            is_kept = await self._kept.add(_row(record), most)
        except LogError as error:
            raise _not_stored(
                error, "the credential was not made: the database did not take it; try again"
            ) from error
        if is_kept:
            self._known[record.id] = record
        return is_kept

    async def add_first(self, record: TokenRecord) -> bool:
        return await self._kept.add_first(_row(record))

    def forget(self, token_id: str) -> set[str]:
        gone = {token_id}
        while more := {each.id for each in self._known.values() if each.granted_by in gone} - gone:
            gone |= more
        gone &= self._known.keys()
        self._end(gone)
        return gone

    async def remove(self, token_id: str) -> set[str]:
        if _ID.fullmatch(token_id) is None:
            return set()
        try:
            gone = set(await self._kept.remove(token_id))
        except LogError as error:
            self._owed.add(token_id)
            self._end({token_id})
            raise _not_stored(
                error,
                "the credential has ended on this node; the database has not taken it yet, and it is tried again"
                " until it does",
            ) from error
        self._owed.discard(token_id)
        self._end(gone)
        return gone

    async def run(self, ended: Callable[[Collection[str]], None]) -> None:
        """Look after what is kept in mind."""
        while True:
            ended(await self._look())
            await self._pause()

    async def take_file(self, path: Path) -> None:
        """Bring the credentials of a file into the table, once; the file gets another name.

        Raises `ConfigError`, `LogError`.
        """
        if records := read_records(path):
            await take_records(self._kept, records)
            set_aside(path)

    # -- asking ------------------------------------------------------------------------------------------------

    async def _look_up(self, token_id: str) -> None:
        """Bring to mind what the database says of an id now. Raises `LogError`."""
        lookup = self._next
        lookup.ids.add(token_id)
        while not lookup.is_answered:
            async with self._asking:
                # Another one of those that wait together may have asked for all of them.
                if not lookup.is_answered:
                    await self._answer(lookup)
        if lookup.failure is not None:
            raise lookup.failure

    async def _answer(self, lookup: _Lookup) -> None:
        if lookup is self._next:
            self._next = _Lookup()
        try:
            rows = await self._kept.find(lookup.ids)
        except LogError as error:
            lookup.failure = error
            self._believe_on()
        else:
            found = {each.id: _record(each) for each in rows if each.id not in self._ended}
            gone = lookup.ids & self._known.keys() - found.keys()
            self._end(gone)
            self._untold |= gone
            self._known |= found
        lookup.is_answered = True

    async def _look(self) -> set[str]:
        """Which of those in mind have ended elsewhere since the last look. They are forgotten."""
        async with self._asking:
            began, now_ms = self._clock.monotonic(), self._clock.now_ms()
            try:
                for each in list(self._owed):
                    await self._kept.remove(each)
                    self._owed.discard(each)
                self._known = {each.id: each for each in self._known.values() if not has_expired(each, now_ms)}
                gone = set(await self._kept.missing(self._known.keys())) if self._known else set[str]()
            except LogError:
                self._believe_on()
                return set()
            self._looked_at = began
            self._trusted_until = began + TRUST_S
        self._end(gone)
        gone, self._untold = gone | self._untold, set()
        return gone

    def _believe_on(self) -> None:
        """The database does not answer."""
        self._trusted_until = min(self._clock.monotonic() + AWAY_S, self._looked_at + OUTAGE_S)

    async def _pause(self) -> None:
        async with anyio.create_task_group() as tasks:

            async def hear() -> None:
                await self._kept.heard()
                tasks.cancel_scope.cancel()

            tasks.start_soon(hear)
            await self._clock.sleep(LOOK_S)
            tasks.cancel_scope.cancel()

    def _end(self, ids: Collection[str]) -> None:
        for each in ids:
            self._known.pop(each, None)
            self._ended[each] = None
        while len(self._ended) > MOST_ENDED:
            del self._ended[next(iter(self._ended))]


class TableLinks:
    """`Links` in the database of the log: a link that was made on one node is used once on any."""

    def __init__(self, kept: Credentials) -> None:
        self._kept = kept

    async def put(self, digest: bytes, link: Link) -> None:
        try:
            await self._kept.put_link(digest, link.seconds, link.granted_by, MOST_LINKS)
        except LogError as error:
            raise _not_stored(error, "the link was not made: the database did not take it; try again") from error

    async def take(self, digest: bytes) -> Link | None:
        found = await self._kept.take_link(digest)
        return None if found is None else Link(*found)


async def take_records(kept: Credentials, records: Collection[TokenRecord]) -> bool:
    """Bring credentials of a file into a table; once, so that none comes back that was revoked there since."""
    ids = {each.id for each in records}
    rows = [_row(each) for each in records if each.granted_by is None or each.granted_by in ids]
    return await kept.take_over(rows, hashlib.sha256(msgspec.json.encode(list(records))).hexdigest())


async def table_records(kept: Credentials) -> list[TokenRecord]:
    """What a table holds, as a file would."""
    return [_record(each) for each in await kept.all()]


def _row(record: TokenRecord) -> CredentialRow:
    return CredentialRow(*(getattr(record, name) for name in CredentialRow._fields))


def _record(row: CredentialRow) -> TokenRecord:
    return TokenRecord(
        id=row.id,
        name=row.name,
        role=Role(row.role),
        digest=row.digest,
        created_at=row.created_at,
        expires_at=row.expires_at,
        session_id=None if row.session_id is None else SessionId(row.session_id),
        kind=_KINDS[row.kind],
        granted_by=row.granted_by,
    )


def _not_stored(error: LogError, message: str) -> CredentialsNotStored:
    logger.error(
        "credentials were not stored: %s", error, extra={"event": "credentials_not_stored", "why": error.code}
    )
    return CredentialsNotStored(message, why=error.code)
