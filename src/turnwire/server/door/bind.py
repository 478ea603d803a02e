"""Where a daemon may listen: on loopback freely, elsewhere only with a credential.

Takes the host of `--host`; gives nothing, or refuses to start. Never looks a name up: what it resolves to changes.
"""

from __future__ import annotations

import ipaddress

from turnwire.errors import ConfigError


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def is_wildcard(host: str) -> bool:
    """Whether `host` stands for every address of this machine."""
    try:
        return not host or ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def check_bind(host: str, has_token: bool, no_auth: bool) -> None:
    """Raises `ConfigError` when others could use the daemon without a credential."""
    if is_loopback(host):
        return
    if no_auth:
        raise ConfigError(
            f"--no-auth would let anybody who reaches {host!r} run the agent; bind 127.0.0.1, or leave it out"
        )
    if not has_token:
        raise ConfigError(
            f"{host!r} can be reached from outside; give --token or TURNWIRE_TOKEN, or bind 127.0.0.1"
        )
