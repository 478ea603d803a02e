"""Credentials beside a shared log, where every node finds them: the port, without a word on what they are good for.

Who may do what, what a secret looks like and what ends with a credential is `turnwire.server.access`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from turnwire.log.base import EventLog


class CredentialRow(NamedTuple):
    """One credential. Of its secret only the digest is known."""

    id: str
    name: str
    role: str
    digest: str
    created_at: int
    """Milliseconds since 1970, as `expires_at`."""
    expires_at: int | None
    session_id: str | None
    kind: str
    granted_by: str | None
    """The credential that this one ends with."""


class Credentials(Protocol):
    """The credentials and login links of all nodes. Any method may raise `LogError`; then it may have been done."""

    async def find(self, ids: Collection[str]) -> list[CredentialRow]:
        """Those of `ids` that there are and that have not expired."""
        ...

    async def missing(self, ids: Collection[str]) -> list[str]:
        """The others of `ids`."""
        ...

    async def all(self) -> list[CredentialRow]:
        """Every one that has not expired, oldest first."""
        ...

    async def add(self, row: CredentialRow, most: int) -> bool:
        """Keep one more, if there are less than `most`. Whether it is kept."""
        ...

    async def add_first(self, row: CredentialRow) -> bool:
        """Keep an owner's token if there is none. Of several who ask at once one hears that it is kept."""
        ...

    async def take_over(self, rows: Sequence[CredentialRow], mark: str) -> bool:
        """Keep what was kept elsewhere, unless that was done before under the same mark. Whether it was now."""
        ...

    async def remove(self, token_id: str) -> list[str]:
        """End one with all that it granted, and tell the other nodes. Gives the ids of those that there were."""
        ...

    async def heard(self) -> None:
        """Return when another node has told so since this last returned, or when that may have been missed."""
        ...

    async def put_link(self, digest: bytes, seconds: float, granted_by: str | None, most: int) -> None:
        """Keep a login link; beyond `most` the oldest are forgotten."""
        ...

    async def take_link(self, digest: bytes) -> tuple[float, str | None] | None:
        """Use a link up: the seconds it had left, and who granted it. None if it was used or is too old."""
        ...


class LogWithCredentials(EventLog, Protocol):
    """A log whose engine keeps the credentials as well."""

    @property
    def credentials(self) -> Credentials: ...
