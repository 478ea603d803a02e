"""The environment of an agent: the variables it needs to run on this machine, and those it was explicitly given.

This is an allow list, not a deny list: an unexpected secret stays with the daemon. If the agent effectively is its
user's own child process, everything passes, as it would without turnwire. Variables named `TURNWIRE_…` never pass;
they are the daemon's own. Names may be logged, values never.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from turnwire.errors import ConfigError

OWN_PREFIX = "TURNWIRE_"

HARMLESS = frozenset(
    {
        # finding programs, files and the user's own settings
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TMP", "TEMP"),
        # language, time and terminal, so that tools use the user's formats
        *("LANG", "LANGUAGE", "TZ", "TERM", "COLORTERM", "NO_COLOR"),
        # opening a browser for a login
        *("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"),
        # certificates of a company network
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        # locations of Node's programs; most agents are npm packages. Not `NODE_*`: that includes `NODE_AUTH_TOKEN`
        *("NODE_PATH", "NODE_OPTIONS", "NVM_DIR", "VOLTA_HOME", "FNM_DIR", "PNPM_HOME", "BUN_INSTALL", "DENO_DIR"),
        *("NPM_CONFIG_PREFIX", "NPM_CONFIG_CACHE", "npm_config_prefix", "npm_config_cache"),
        # locations of Python and uv. Not `PYTHONPATH` and `PYTHONHOME`: they describe the daemon's own
        *("VIRTUAL_ENV", "PYENV_ROOT", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONUNBUFFERED"),
        *("UV_CACHE_DIR", "UV_TOOL_DIR", "UV_TOOL_BIN_DIR", "UV_PYTHON_INSTALL_DIR", "PIPX_HOME"),
    }
)
"""Variables that pass and may be shown."""

HARMLESS_PREFIXES = ("LC_", "XDG_")

PROXIES = frozenset(
    name for each in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY") for name in (each, each.lower())
)
"""They pass, because the network may be unreachable without them; they may hold a password, so they are never
shown.
"""

SHELLS_OWN = frozenset({"PWD", "OLDPWD", "_"})
"""Variables of a shell's own state. They are no secrets, and redacting them would make tracebacks unreadable."""

SHORTEST_SECRET = 6
"""Minimum length of a value that is redacted in text: a value such as `1` or `true` would redact half of it."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def agent_environment(
    own: Mapping[str, str],
    *,
    additions: Sequence[str] = (),
    pass_through: Sequence[str] = (),
    everything: bool = False,
) -> dict[str, str]:
    """Return the variables of an agent.

    Args:
        own: The daemon's environment.
        additions: `KEY=VALUE` each; they override everything else.
        pass_through: Names to copy from `own` if they are set there.
        everything: Copy all of `own` except the daemon's variables.

    Raises:
        ConfigError: A name is invalid, or is one of the daemon's own.
    """
    variables = {name: value for name, value in own.items() if (everything and not is_own(name)) or _passes(name)}
    variables |= {name: own[name] for name in map(_checked, pass_through) if name in own}
    for addition in additions:
        name, equals, value = addition.partition("=")
        if not equals:
            # Without an equals sign it may be a misplaced value, so it is not shown.
            raise ConfigError("an addition to the agent's environment has no `=`; write KEY=VALUE")
        if "\0" in value:
            raise ConfigError(f"the value of {_checked(name)} holds a zero byte; no program can be given that")
        variables[_checked(name)] = value
    return variables


def redacted(env: Mapping[str, str]) -> list[str]:
    """Return an environment as it may be logged: names only."""
    return sorted(env)


def secrets(env: Mapping[str, str]) -> list[bytes]:
    """Return the values that must not appear in an agent's visible output, longest first."""
    hidden = {
        os.fsencode(value)
        for name, value in env.items()
        if not _is_harmless(name) and name not in SHELLS_OWN and len(value) >= SHORTEST_SECRET
    }
    return sorted(hidden, key=lambda value: (-len(value), value))


def is_own(name: str) -> bool:
    """Return true if a variable belongs to the daemon."""
    return name.upper().startswith(OWN_PREFIX)


def is_variable(name: str) -> bool:
    """Return true if an agent may receive a variable of this name."""
    return _NAME.fullmatch(name) is not None and not is_own(name)


def _passes(name: str) -> bool:
    return _is_harmless(name) or name in PROXIES


def _is_harmless(name: str) -> bool:
    return name in HARMLESS or name.startswith(HARMLESS_PREFIXES)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name of a variable; use letters, digits and `_`")
    if is_own(name):
        raise ConfigError(f"{name} belongs to the daemon and is not given to agents; use another name")
    return name
