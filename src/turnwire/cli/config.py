"""The daemon's settings on the command line: a flag for each, and `turnwire config`, which explains them.

Flags are made from the table `SETTINGS` of `turnwire.server.settings`; none is written by hand. A secret is never
shown.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from turnwire import __version__
from turnwire.cli.commands import SettingOption, WithAgent, agent_of
from turnwire.cli.output import print_json, print_table, tell
from turnwire.hosting.local_daemon import running
from turnwire.server.settings.agents import AgentEntry
from turnwire.server.settings.declared import SETTINGS, Setting, Settings
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
    """Add an option for each setting that has a flag, one for all limits, and one for the settings file."""
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
        return SettingOption(
            row.group, [str(row.flag), row.name], is_flag=True, flag_value=row.flag_value, default=None, help=about
        )
    default = "" if row.default in (None, ()) else f"  [default: {row.default}]"
    return SettingOption(
        row.group,
        [str(row.flag), row.name],
        multiple=row.kind.is_many,
        default=None,
        metavar=_metavar(row),
        shell_complete=_known_agents if row.name == "agents" else None,
        help=words + default,
    )


def _known_agents(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the agents that can be named without a command."""
    from turnwire.cli.known_agents import KNOWN_AGENTS

    return [CompletionItem(each.name, help=each.label) for each in KNOWN_AGENTS if each.name.startswith(incomplete)]


def _metavar(row: Setting) -> str:
    kind, _, words = row.kind.allowed.partition("one of ")
    return words.replace(", ", "|") if not kind else row.name.removeprefix("allow_").upper()


def settings_from(flags: dict[str, Any], agent: Sequence[str]) -> Loaded:
    """Return the effective settings. Raises `ConfigError`."""
    values = {name: value for name, value in flags.items() if name != CONFIG}
    config = flags.get(CONFIG)
    return load_settings({**values, "agent": tuple(agent)}, os.environ, None if config is None else Path(config))


# -- a daemon for editors ------------------------------------------------------------------------------------


FOLDER = "stdio"
"""Folder below the data folder, with one folder per agent, unless --data names one."""

RUNNERS = r"(npx|pnpm|bunx?|deno|node|uvx?|pipx|python[0-9.]*)"
"""Programs that run others: the agent is the word after their flags."""


def editor_settings(flags: dict[str, Any], agent: Sequence[str]) -> Loaded:
    """Return the settings of the daemon that is started for editors with these flags. Raises `ConfigError`."""
    # An editor opens folders as its user does; the folder in which it was started is irrelevant.
    loaded = settings_from({**flags, "cwd": flags.get("cwd") or ("/",)}, agent)
    # The editor starts turnwire in place of the agent, so the agent gets the environment it would have had.
    agents = tuple(replace(each, env_all=True) for each in loaded.settings.hosted())
    settings = replace(
        loaded.settings,
        agent=(),
        agents=agents,
        host="127.0.0.1",
        port=0,
        tls_cert=None,
        tls_key=None,
        token=None,
        no_auth=False,
        cluster_listen=None,
    )
    if loaded.is_default("log_level"):
        settings = replace(settings, log_level="warning")
    if flags.get("data") is None and settings.data is not None:
        # A folder for each agent: an editor has several agents, and a log has one process.
        settings = replace(settings, data=settings.data / FOLDER / agent_folder(agents[0]))
    return replace(loaded, settings=settings)


OWN_SETTINGS = frozenset({"data", "log_format", "log_level"})
"""Settings in which editors that share a daemon may differ."""


def settings_hash(settings: Settings) -> str:
    """Return a hash that is equal for two daemons that would host the same agents in the same way."""
    same = {each.name: getattr(settings, each.name) for each in fields(settings) if each.name not in OWN_SETTINGS}
    # A relative path means another file in another folder.
    files = [os.path.abspath(word) for entry in settings.hosted() for word in entry.command if os.path.exists(word)]
    return hashlib.sha256(repr((__version__, same, files)).encode()).hexdigest()


def agent_folder(entry: AgentEntry) -> str:
    """Return the name of the folder for an agent's daemon; it does not depend on the agent's flags."""
    from turnwire.cli.known_agents import known

    if entry.is_described:
        words = [entry.imported or entry.url or ""] if not entry.command else _program_of(entry.command)
    else:
        words = [entry.name if known(entry.name) is not None else "builtin"]
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename(words[-1].rstrip("/"))).strip("-.")[:40]
    # Agents that differ only in characters that a folder's name cannot hold need two folders.
    return f"{plain or 'agent'}-{hashlib.sha256(repr(words).encode()).hexdigest()[:8]}"


def _program_of(command: Sequence[str]) -> list[str]:
    """Return the program of a command and, if that is a runner, the package it runs: `npx -y PACKAGE`."""
    program = os.path.basename(command[0])
    run = [each for each in command[1:] if not each.startswith("-")]
    return [program, *run[:1]] if re.fullmatch(RUNNERS, program) else [program]


# -- `turnwire config` ---------------------------------------------------------------------------------------


@click.command(cls=WithAgent, examples=EXAMPLES, params=setting_options())
@click.option("--changed", is_flag=True, help="Leave the defaults out.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def config(ctx: click.Context, changed: bool, as_json: bool, **flags: Any) -> None:
    """Show every setting and its source, for a daemon started from this shell.

    Strongest first: the command line, TURNWIRE_* variables, one TOML file, the default.
    """
    loaded = settings_from(flags, agent_of(ctx))
    rows = [each for each in loaded.explained() if each.where or not changed]
    if as_json:
        file = None if loaded.config is None else str(loaded.config)
        print_json({"file": file, "settings": [each._asdict() for each in rows]})
        return
    for each in running(os.environ):
        tell(f"these are not the settings of your daemon at {each.url}, which may have been started with others")
    click.echo(f"file: {loaded.config or 'none'}\n")
    print_table(
        ("setting", "value", "source"),
        [(each.name, each.value, each.where or "default") for each in rows],
    )
