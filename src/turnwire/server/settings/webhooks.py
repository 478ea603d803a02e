"""Webhooks: `[[webhooks]]` in the settings file.

Each table becomes a `WebhookEntry`. Error messages show neither its secret nor its address, whose path is a secret
with some receivers.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast
from urllib.parse import urlsplit

import msgspec

from turnwire.errors import ConfigError
from turnwire.server.settings.kinds import Kind
from turnwire.session import events as ev

EVENTS: Final[Mapping[str, type[ev.Event]]] = {
    str(each.__struct_config__.tag): each
    for each in (
        ev.TurnCompleted,
        ev.TurnFailed,
        ev.PermissionRequested,
        ev.PermissionResolved,
        ev.SessionCreated,
        ev.SessionClosed,
    )
}
"""The events a receiver can subscribe to, by the type that REST shows."""
USUAL: Final = ("turn_complete", "turn_error", "permission_request")
"""Default events of a receiver."""

_PREFIX: Final = "whsec_"
_SECRET_BYTES: Final = range(24, 65)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")


@dataclass(frozen=True, kw_only=True)
class WebhookEntry:
    """One receiver, as the operator describes it."""

    name: str
    """Key of its delivery cursor in the log: with another name it is another receiver."""
    url: str = field(repr=False)
    events: tuple[str, ...] = USUAL
    secret: str = field(repr=False)

    def __str__(self) -> str:
        """Return the entry as `turnwire config` shows it, without possible secrets."""
        return f"{self.name}={self.origin} {','.join(self.events)}"

    @property
    def origin(self) -> str:
        """Its address without possible secrets."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def key(self) -> bytes:
        """The signing key."""
        return b64decode(self.secret.removeprefix(_PREFIX), validate=True)


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    url: str
    secret: str
    name: str | None = None
    events: tuple[str, ...] = USUAL


def webhook_tables() -> Kind:
    """Receivers: tables of a TOML file."""

    def refuse(value: str, base: Path) -> object:
        raise ValueError

    def check(value: object, base: Path) -> object:
        # A separate message: the one for other kinds shows the value, and this value holds secrets.
        if not isinstance(value, list | tuple):
            raise ConfigError("webhooks are tables; write [[webhooks]] with url and secret below it")
        entries = [_entry(number, each) for number, each in enumerate(cast("list[object]", value), 1)]
        names = [each.name for each in entries]
        twice = next((each for each in names if names.count(each) > 1), None)
        if twice is not None:
            raise ConfigError(f"two webhooks go by {twice}; give each a name of its own")
        return tuple(entries)

    return Kind("tables, each below a [[webhooks]]", refuse, check, is_many=True)


def _entry(number: int, table: object) -> WebhookEntry:
    try:
        given = msgspec.convert(table, _Table)
    except msgspec.ValidationError as error:
        raise ConfigError(f"webhook {number}: {error}") from None
    host = _checked_host(number, given.url)
    name = given.name or host
    if not _NAME.fullmatch(name):
        raise ConfigError(f"webhook {number} has no usable name; give one of letters, digits, `_`, `.` and `-`")
    unknown = [each for each in given.events if each not in EVENTS]
    if unknown or not given.events:
        told = f"has the event {unknown[0]!a}" if unknown else "has no events"
        raise ConfigError(f"webhook {name} {told}; give some of {', '.join(EVENTS)}")
    entry = WebhookEntry(name=name, url=given.url, events=tuple(dict.fromkeys(given.events)), secret=given.secret)
    if not given.secret.startswith(_PREFIX) or not _is_key(entry):
        raise ConfigError(
            f"the secret of webhook {name} is not usable; give {_PREFIX} and {_SECRET_BYTES[0]} to"
            f" {_SECRET_BYTES[-1]} random bytes in base64: echo {_PREFIX}$(openssl rand -base64 32)"
        )
    return entry


def _is_key(entry: WebhookEntry) -> bool:
    try:
        return len(entry.key) in _SECRET_BYTES
    except ValueError:
        return False


def _checked_host(number: int, url: str) -> str:
    """Return the host, with its port if it names one."""
    wrong = ConfigError(f"webhook {number} has no usable url; give one such as https://example.org/hook")
    if not (url.isascii() and url.isprintable()) or " " in url:
        raise wrong
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise wrong from None
    if not is_url:
        raise wrong
    if "@" in parts.netloc or parts.fragment:
        raise ConfigError(f"the url of webhook {number} has a user or a fragment; leave them out")
    return parts.netloc.replace("[", "").replace("]", "")
