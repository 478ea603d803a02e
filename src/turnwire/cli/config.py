"""`turnwire config`: every setting that is in force, and where it came from.

Takes the same flags as `turnwire serve`; prints a table or JSON. Never shows a secret.
"""

from __future__ import annotations

from typing import Any

import click

from turnwire.cli.examples import WithAgent, agent_of
from turnwire.cli.flags import setting_options, settings_from
from turnwire.cli.showing import print_json, print_table

EXAMPLES = """
turnwire config                       what a plain `turnwire serve` would use
turnwire config --changed             only what is not a default
turnwire config --port 0 -- my-agent  what these flags would change
turnwire config --json                for programs
"""


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
