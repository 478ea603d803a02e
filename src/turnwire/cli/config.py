"""The daemon's settings on the command line: a flag for each, and `turnwire config`, which explains them.

Flags are made from the table `SETTINGS` of `turnwire.server.settings`; none is written by hand. A secret is never
shown.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from turnwire.cli.commands import WithAgent, agent_of
from turnwire.cli.output import print_json, print_table
from turnwire.server.settings.declared import SETTINGS, Setting
from turnwire.server.settings.sources import Loaded, load_settings

EXAMPLES = """
turnwire config                       what a plain `turnwire serve` would use
turnwire config --changed             only what is not a default
turnwire config --port 0 -- my-agent  what these flags would change
turnwire config --json                for programs
"""

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
        shell_complete=_known_agents if row.name == "agents" else None,
        help=words + default,
    )


def _known_agents(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Agents that can be named without a command."""
    from turnwire.cli.known_agents import KNOWN_AGENTS

    return [CompletionItem(each.name, help=each.label) for each in KNOWN_AGENTS if each.name.startswith(incomplete)]


def _metavar(row: Setting) -> str:
    kind, _, words = row.kind.allowed.partition("one of ")
    return words.replace(", ", "|") if not kind else row.name.removeprefix("allow_").upper()


def settings_from(flags: dict[str, Any], agent: Sequence[str]) -> Loaded:
    """The settings in force. Raises `ConfigError`."""
    values = {name: value for name, value in flags.items() if name != CONFIG}
    config = flags.get(CONFIG)
    return load_settings({**values, "agent": tuple(agent)}, os.environ, None if config is None else Path(config))


@click.command(cls=WithAgent, examples=EXAMPLES, params=setting_options())
@click.option("--changed", is_flag=True, help="Leave the defaults out.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def config(ctx: click.Context, changed: bool, as_json: bool, **flags: Any) -> None:
    """Show every setting that is in force, and why.

    Strongest first: the command line, TURNWIRE_* variables, one TOML file, the default.
    """
    loaded = settings_from(flags, agent_of(ctx))
    rows = [each for each in loaded.explained() if each.where or not changed]
    if as_json:
        file = None if loaded.config is None else str(loaded.config)
        print_json({"file": file, "settings": [each._asdict() for each in rows]})
        return
    click.echo(f"file: {loaded.config or 'none'}\n")
    print_table(
        ("setting", "value", "source"),
        [(each.name, each.value, each.where or "default") for each in rows],
    )
