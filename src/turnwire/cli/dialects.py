"""`turnwire dialects`: what one version of ACP has no words for, and what is said instead.

It is the list that translation keeps to, as a table or as JSON.
"""

from __future__ import annotations

import click

from turnwire.cli.commands import Command
from turnwire.cli.output import print_json, print_table

EXAMPLES = """
turnwire dialects                                   what is lost between v1 and v2, and what comes instead
turnwire dialects --json | jq -r 'select(.direction == "v2 to v1").code'
"""


@click.command(cls=Command, examples=EXAMPLES)
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
