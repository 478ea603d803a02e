"""Credentials stored with a shared log, where every node finds them. Only the port: it does not interpret them.

Permissions, the format of secrets and the effects of a credential's end are defined in `turnwire.server.access`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from turnwire.log.base import EventLog


class CredentialRow(NamedTuple):
    """One credential. Only the digest of its secret is stored."""

    id: str
    name: str
    role: str
    digest: str
    created_at: int
    """Milliseconds since 1970, like `expires_at`."""
    expires_at: int | None
    session_id: str | None
    kind: str
    granted_by: str | None
    """The credential that this one ends with."""


class Credentials(Protocol):
    """The credentials and login links of all nodes. Any method may raise `LogError` even though it succeeded."""

    async def find(self, ids: Collection[str]) -> list[CredentialRow]:
        """Return those of `ids` that exist and have not expired."""
        ...

    async def missing(self, ids: Collection[str]) -> list[str]:
        """Return those of `ids` that do not exist or have expired."""
        ...

    async def all(self) -> list[CredentialRow]:
        """Return every credential that has not expired, oldest first."""
        ...

    async def add(self, row: CredentialRow, most: int) -> bool:
        """Add a credential if there are fewer than `most`. Return true if it was added."""
        ...

    async def add_first(self, row: CredentialRow) -> bool:
        """Add an owner's token if there is no token. Of several concurrent callers one gets true."""
        ...

    async def take_over(self, rows: Sequence[CredentialRow], mark: str) -> bool:
        """Import credentials stored elsewhere, unless that was done before under the same mark. Return true if done
        now.
        """
        ...

    async def remove(self, token_id: str) -> list[str]:
        """Remove a credential with all that it granted, and notify the other nodes. Return the ids of those that
        existed.
        """
        ...

    async def heard(self) -> None:
        """Return when another node has sent that notification since the last return, or when it may have been
        missed.
        """
        ...

    async def put_link(self, digest: bytes, seconds: float, granted_by: str | None, most: int) -> None:
        """Store a login link; beyond `most` the oldest are removed."""
        ...

    async def take_link(self, digest: bytes) -> tuple[float, str | None] | None:
        """Consume a link and return its remaining seconds and its grantor; `None` if it was used or is too old."""
        ...


class LogWithCredentials(EventLog, Protocol):
    """A log whose engine stores the credentials as well."""

    @property
    def credentials(self) -> Credentials: ...
