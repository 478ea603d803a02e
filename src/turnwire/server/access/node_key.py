"""The key that the nodes of a cluster share, and the proofs that they make with it.

The key comes from the settings and is never stored or sent. A node's row in the shared log has a digest that binds
its name and address to the key, so a row that another database user wrote or changed is not dialled. Each request
between nodes carries an HMAC over both incarnations, a counter, the request target and the caller. A proof that was
recorded opens nothing: its counter was used, and another incarnation or target needs another HMAC.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter

from starlette.types import Scope

from turnwire.errors import ConfigError, NodeUnreachable
from turnwire.log.owners import Life

PROOF = b"turnwire-node"
"""The header with the dialling incarnation, the counter and the HMAC, separated by dots."""
CALLER = b"turnwire-caller"
"""The header with the caller of a relayed request: the members of `Identity`, and the address."""
KEY_LENGTH = 32
"""The minimum length of a key. The digest in the database could be used to guess a shorter one."""
WINDOW = 4096
"""Counters that may arrive out of order, for each dialling incarnation."""

_DIGITS = 18
_ALL = (1 << WINDOW) - 1


class NodeKey:
    """The cluster key in the hands of one incarnation. Raises `ConfigError` for a key that is too short."""

    def __init__(self, key: str, life: int) -> None:
        self._key = checked_key(key)
        self.life = life
        self._sent: Counter[int] = Counter()
        self._received: dict[int, tuple[int, int]] = {}
        """For each dialling incarnation: the highest counter, and a bit for each of the `WINDOW` below it."""

    def check(self, there: Life) -> None:
        """Raise `NodeUnreachable` unless the row was written by a node that has this key."""
        if not hmac.compare_digest(there.digest, _row_digest(self._key, there.name, there.url)):
            raise NodeUnreachable(
                f"node {there.name!r} has another cluster_key, or its row was changed; give all nodes the same key",
                life=there.number,
            )

    def prove(self, there: int, target: bytes, caller: bytes = b"") -> bytes:
        """Return the value of the `PROOF` header for one request to an incarnation."""
        self._sent[there] += 1
        number = self._sent[there]
        return b"%d.%d.%b" % (self.life, number, self._mac(self.life, there, number, target, caller))

    def dialler(self, scope: Scope) -> int | None:
        """Return the incarnation that sent a request, or None if its proof is missing, wrong or used."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        parts = headers.get(PROOF, b"").split(b".")
        if len(parts) != 3 or not all(each.isdigit() and len(each) <= _DIGITS for each in parts[:2]):
            return None
        life, number = int(parts[0]), int(parts[1])
        expected = self._mac(life, self.life, number, target_of(scope), headers.get(CALLER, b""))
        if not hmac.compare_digest(parts[2], expected) or not self._is_fresh(life, number):
            return None
        return life

    def _is_fresh(self, life: int, number: int) -> bool:
        highest, seen = self._received.get(life, (0, 0))
        if number > highest:
            shift = min(number - highest, WINDOW)
            self._received[life] = number, ((seen << shift) | 1) & _ALL
            return True
        bit = 1 << (highest - number) if highest - number < WINDOW else 0
        if not bit or seen & bit:
            return False
        self._received[life] = highest, seen | bit
        return True

    def _mac(self, dialler: int, dialled: int, number: int, target: bytes, caller: bytes) -> bytes:
        said = b"request\n%d\n%d\n%d\n%b\n%b" % (dialler, dialled, number, target, caller)
        return hmac.digest(self._key, said, "sha256").hex().encode()


def checked_key(key: str) -> bytes:
    """Return the key as bytes. Raises `ConfigError`."""
    if len(key) < KEY_LENGTH:
        raise ConfigError(
            f"cluster_key has fewer than {KEY_LENGTH} characters; make one with `openssl rand -hex 32`"
        )
    return key.encode()


def row_digest(key: str, name: str, url: str) -> str:
    """Return the digest that a node writes into its row. Raises `ConfigError`."""
    return _row_digest(checked_key(key), name, url)


def _row_digest(key: bytes, name: str, url: str) -> str:
    return hmac.digest(key, f"row\n{url}\n{name}".encode(), hashlib.sha256).hex()


def target_of(scope: Scope) -> bytes:
    """Return the request target as it was sent: path and query."""
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope.get("query_string", b"")
    return path.partition(b"?")[0] + (b"?" + query if query else b"")
