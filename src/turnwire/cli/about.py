"""`turnwire completion`, `version` and `dialects`: what a shell, a script and a reader ask of the program."""

from __future__ import annotations

import platform
import sqlite3

import click
from click.shell_completion import get_completion_class

from turnwire import __version__
from turnwire.cli.commands import Command
from turnwire.cli.output import print_json, print_table

COMPLETION_EXAMPLES = """
turnwire completion bash > ~/.local/share/bash-completion/completions/turnwire
turnwire completion zsh > ~/.zfunc/_turnwire        with ~/.zfunc in your fpath
turnwire completion fish > ~/.config/fish/completions/turnwire.fish
"""
VERSION_EXAMPLES = """
turnwire version
turnwire version --json
"""


@click.command(cls=Command, examples=COMPLETION_EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell."""
    found = get_completion_class(shell)
    assert found is not None, "click has a script for each of the choices"
    click.echo(found(ctx.find_root().command, {}, "turnwire", "_TURNWIRE_COMPLETE").source())


@click.command(cls=Command, examples=VERSION_EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the versions of Python and SQLite.")
def version(as_json: bool) -> None:
    """Print the version."""
    if not as_json:
        click.echo(f"turnwire {__version__}")
        return
    print_json({"turnwire": __version__, "python": platform.python_version(), "sqlite": sqlite3.sqlite_version})


DIALECTS_EXAMPLES = """
turnwire dialects                                   what is lost between v1 and v2, and what comes instead
turnwire dialects --json | jq -r 'select(.direction == "v2 to v1").code'
"""


@click.command(cls=Command, examples=DIALECTS_EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def dialects(as_json: bool) -> None:
    """List what one version of ACP cannot say to the other.

    A client of one version and an agent of the other understand each other but for this.
    """
    from turnwire.core.translate.losses import LOSSES

    if as_json:
        for loss in LOSSES:
            print_json(loss._asdict())
        return
    print_table(("direction", "code", "what", "instead"), [(loss[1], loss[0], *loss[2:]) for loss in LOSSES])
