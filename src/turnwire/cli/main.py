"""The entry of the command line: one command, and the process ends with its exit code.

Whatever a command raises comes through `turnwire.cli.failure`.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import NoReturn

import click

from turnwire import __version__
from turnwire.cli.commands import Lazy, write_examples
from turnwire.cli.failure import fail

EXAMPLES = """
turnwire serve                              run the daemon with the built-in agent
turnwire serve -- my-agent --flag           run it with an agent of yours
turnwire prompt "what does this project do?"   ask, in a new session of this folder
turnwire chat                               talk to the agent
turnwire prompt "say hello" -- my-agent     ask without a daemon
turnwire explain SESSION                    why does nothing happen?
turnwire doctor                             is everything in place?
"""


class _Overview(Lazy):
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(formatter, EXAMPLES)


def _set_debug(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Before any command is looked for: finding it may fail, too."""
    ctx.find_root().obj["debug"] = value
    if not value:
        # What libraries log is for operators; a daemon sets it up for itself.
        logging.getLogger("turnwire").addHandler(logging.NullHandler())


@click.group(cls=_Overview, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="turnwire %(version)s")
@click.option(
    "--debug", is_flag=True, callback=_set_debug, expose_value=False, help="Show where an error came from."
)
def cli() -> None:
    """The runtime for agent turns: every accepted prompt has exactly one end."""


def main() -> NoReturn:
    """Run the command of this process's arguments."""
    open_closed_streams()
    switches, output = {"debug": False}, sys.stdout
    try:
        code = cli.main(prog_name="turnwire", standalone_mode=False, obj=switches)
        sys.stdout.flush()
    except SystemExit as ended:
        # When nobody reads our output any more, click replaces it and ends with a code that says nothing.
        code = ended.code if sys.stdout is output else fail(BrokenPipeError(), debug=False)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  The last one that can say what went wrong.
        code = fail(error, debug=switches["debug"])
    sys.exit(code if isinstance(code, int) else 0)


def open_closed_streams() -> None:
    """See that all three streams are there. Call it before anything else is opened."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest number that is free: it is the stream's own, so that no file of ours is taken for it.
            nothing = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(nothing, True)
            setattr(sys, name, os.fdopen(nothing, mode, encoding="utf-8", errors="backslashreplace"))
