"""The flags of the daemon's settings, made from the table of settings: none is written by hand.

Takes `SETTINGS` of `turnwire.server.settings`; gives click options, and the settings that a command line leads to.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from turnwire.server.settings.declared import SETTINGS, Setting
from turnwire.server.settings.sources import Loaded, load_settings

LIMITS = "limits"
CONFIG = "config"


def setting_options() -> list[click.Parameter]:
    """An option for each setting that has a flag, one for all limits, and one for the file of settings."""
    flags: list[click.Parameter] = [_option(each) for each in SETTINGS if each.flag is not None]
    limit = click.Option(
        ["--limit", LIMITS],
        multiple=True,
        metavar="NAME=VALUE",
        help="Change a limit; may be given several times. `turnwire config` lists them.",
    )
    config = click.Option(
        ["--config", CONFIG], metavar="FILE", help="The TOML file with settings; also TURNWIRE_CONFIG."
    )
    return [*flags, limit, config]


def settings_from(flags: dict[str, Any], agent: Sequence[str]) -> Loaded:
    """The settings in force. Raises `ConfigError`."""
    given = {name: value for name, value in flags.items() if name != CONFIG}
    config = flags.get(CONFIG)
    return load_settings({**given, "agent": tuple(agent)}, os.environ, None if config is None else Path(config))


def _option(row: Setting) -> click.Option:
    words = row.about[0].upper() + row.about[1:] + "."
    if row.kind.is_switch:
        about = f"Do not {row.about}." if row.flag_value is False else words
        return click.Option(
            [str(row.flag), row.name], is_flag=True, flag_value=row.flag_value, default=None, help=about
        )
    default = "" if row.default in (None, ()) else f"  [default: {row.default}]"
    return click.Option(
        [str(row.flag), row.name],
        multiple=row.kind.is_many,
        default=None,
        metavar=_metavar(row),
        help=words + default,
    )


def _metavar(row: Setting) -> str:
    kind, _, words = row.kind.allowed.partition("one of ")
    return words.replace(", ", "|") if not kind else row.name.removeprefix("allow_").upper()
