"""The address of a log: `sqlite`, `memory`, `sqlite:///path` or a database URL, in a form that is safe to show.

This module knows nothing of the engines and imports none: without a database no driver is needed.
"""

from __future__ import annotations

import os
from itertools import repeat
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from turnwire.errors import ConfigError

DATABASES = ("postgresql", "postgres")
"""Schemes of PostgreSQL's addresses."""
HOW = "postgresql://USER@HOST/DATABASE"
NO_DRIVER = "the package for PostgreSQL is missing; install it (pip install '.[postgres]'), or set log to sqlite"


def is_database(place: str) -> bool:
    """Return true if the text is meant as the address of a database."""
    return place.partition(":")[0] in DATABASES


def check_database(address: str) -> str:
    """Return the address of a database. Raises `ConfigError`, which never shows it: it may hold a password."""
    try:
        parts = urlsplit(address)
        has_place = bool(parts.netloc) or "host=" in parts.query or "service=" in parts.query
        # An invalid port raises here; several hosts are parsed by the driver.
        _ = parts.port if "," not in parts.netloc else None
    except ValueError:
        has_place = False
    if not is_database(address) or not has_place or not address.isprintable():
        raise ConfigError(f"the address of the log cannot be read; write {HOW}, with %40 for an @ in a password")
    return address


def sqlite_file(address: str) -> Path | None:
    """Return the file of `sqlite:///path`: the named file, or `turnwire.db` in the named folder."""
    if not address.startswith("sqlite:///"):
        return None
    path = Path(unquote(address.removeprefix("sqlite://")))
    return path / "turnwire.db" if path.is_dir() else path


def each_host(address: str) -> list[str]:
    """Return one address per host of the same database, in order."""
    if "," in os.environ.get("PGPORT", ""):
        # The driver pairs the ports with the hosts only in the complete address.
        return [address]
    parts = urlsplit(address)
    user, at, hosts = parts.netloc.rpartition("@")
    if "," in hosts:
        return [urlunsplit(parts._replace(netloc=f"{user}{at}{each}")) for each in hosts.split(",")]
    query = dict(parse_qsl(parts.query))
    named, ports = query.get("host", "").split(","), query.get("port", "").split(",")
    if hosts or len(named) == 1 or len(ports) not in (1, len(named)):
        return [address]
    pairs = zip(named, ports if len(ports) > 1 else repeat(ports[0]), strict=False)
    given = [{**query, "host": host} | ({"port": port} if port else {}) for host, port in pairs]
    return [urlunsplit(parts._replace(query=urlencode(each))) for each in given]


def password_of(address: str) -> str | None:
    """Return the password in an address, which must not be shown."""
    if not is_database(address):
        return None
    parts = urlsplit(address)
    given = dict(parse_qsl(parts.query)).get("password")
    if given is None and parts.password is not None:
        given = unquote(parts.password)
    return given or None


def shown(place: str) -> str:
    """Return the address without its password."""
    if not is_database(place):
        return place
    parts = urlsplit(place)
    user, at, hosts = parts.netloc.rpartition("@")
    query = urlencode([(name, value) for name, value in parse_qsl(parts.query) if "password" not in name])
    return f"{parts.scheme}://{user.partition(':')[0]}{at}{hosts}{parts.path}{'?' if query else ''}{query}"
