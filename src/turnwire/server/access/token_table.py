"""Credentials and login links that all nodes of a database share.

A node caches the credentials that it has seen. Once a second, and whenever another node notifies it, it queries
which of these have ended, and ends all work under them. Unseen credentials are looked up; waiting lookups are
batched, so a flood of made-up ids costs one statement at a time.

Cached credentials are trusted for `TRUST_S` after the last check; after that, a credential is looked up before it
is accepted. While the database does not answer it remains trusted, up to `OUTAGE_S` after the last check: no
revocation can be stored meanwhile either, unless this node alone is cut off, and such a node stops serving well
before.
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

from turnwire.clock import Clock
from turnwire.errors import CredentialsNotStored, LogError
from turnwire.ids import SessionId
from turnwire.log.credentials import CredentialRow, Credentials
from turnwire.server.access.login import MOST_LINKS, Link
from turnwire.server.access.token_file import read_records, set_aside
from turnwire.server.access.tokens import ID_BYTES, Kind, Role, TokenRecord, has_expired

LOOK_S = 1.0
"""Interval between checks of the cached credentials: one small statement."""
TRUST_S = 2.0
"""Maximum delay of a revocation whose notification is lost."""
AWAY_S = 10.0
"""Trust after a failed check: longer than the next attempt needs, so that no request waits for it."""
OUTAGE_S = 300.0
"""Longer than a managed database needs to fail over; as long as a node continues without its database."""
MOST_ENDED = 10_000
"""Maximum number of ended ids remembered, so that a lookup in progress restores none of them."""

_KINDS: dict[str, Kind] = {each: each for each in get_args(Kind)}
_ID = re.compile(rf"[0-9a-f]{{{2 * ID_BYTES}}}")

logger = logging.getLogger(__name__)


class _Lookup:
    """A batch of ids to look up."""

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
        """Credentials that were revoked here but not yet in the database."""
        self._untold: set[str] = set()
        """Ended credentials found by a lookup and not yet reported."""
        self._looked_at = -math.inf
        """The time when the last successful check began."""
        self._trusted_until = -math.inf
        self._asking = anyio.Lock()
        """Serializes queries, so that a result never overtakes a later one."""
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
        """Check the cached credentials periodically."""
        while True:
            ended(await self._look())
            await self._pause()

    async def take_file(self, path: Path) -> None:
        """Move the credentials of a file into the table, once; the file is renamed.

        Raises `ConfigError`, `LogError`.
        """
        if records := read_records(path):
            await take_records(self._kept, records)
            set_aside(path)

    # -- queries -----------------------------------------------------------------------------------------------

    async def _look_up(self, token_id: str) -> None:
        """Refresh the cache entry of an id from the database. Raises `LogError`."""
        lookup = self._next
        lookup.ids.add(token_id)
        while not lookup.is_answered:
            async with self._asking:
                # Another waiter may have looked up the whole batch.
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
        """Return the cached credentials that have ended elsewhere since the last check, and forget them."""
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
        """Extend the trust, because the database does not answer."""
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
    """`Links` in the database of the log: a link that was created on one node can be used once on any."""

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
    """Move a file's credentials into a table, only once, so that none revoked there since returns."""
    ids = {each.id for each in records}
    rows = [_row(each) for each in records if each.granted_by is None or each.granted_by in ids]
    return await kept.take_over(rows, hashlib.sha256(msgspec.json.encode(list(records))).hexdigest())


async def table_records(kept: Credentials) -> list[TokenRecord]:
    """Return the records of a table, as a file would store them."""
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
