"""`turnwire cancel` and `turnwire settle`: how a person ends a turn. The daemon decides."""

from __future__ import annotations

import click
from msgspec import Struct

from turnwire.cli.commands import Command
from turnwire.cli.failure import tell
from turnwire.cli.reach import Reach, ask, tell_daemon, with_reach
from turnwire.client.http import segment

CANCEL_EXAMPLES = """
turnwire cancel SESSION            the turn that runs; prompts that wait stay
turnwire cancel SESSION PROMPT     this one, whether it runs or waits
"""
SETTLE_EXAMPLES = """
turnwire explain SESSION           look first: is it really over?
turnwire settle SESSION PROMPT     say that it is
"""


class _Turn(Struct):
    state: str
    """`idle` if there is none."""


@click.command(cls=Command, examples=CANCEL_EXAMPLES)
@click.argument("session")
@click.argument("prompt", required=False)
@with_reach
def cancel(reach: Reach, session: str, prompt: str | None) -> None:
    """Stop the running turn, or one that is named."""
    path = f"/session/{segment(session)}"
    # The daemon takes a cancel that meets nothing, so that it can be sent twice; a person wants to know.
    named = "current" if prompt is None else segment(prompt)
    found = ask(reach, "GET", f"{path}/turns/{named}", shape=_Turn)
    tell_daemon(reach, "POST", f"{path}/cancel", {} if prompt is None else {"promptId": prompt})
    if found.state == "running":
        tell("asked to stop; the turn ends when the agent says so, or is made to")
    elif prompt is None:
        tell("nothing runs, so there was nothing to stop")
    elif found.state == "queued":
        tell("it waited, and is taken out of the queue")
    else:
        tell("it had ended before, so there was nothing to stop")


@click.command(cls=Command, examples=SETTLE_EXAMPLES)
@click.argument("session")
@click.argument("prompt")
@with_reach
def settle(reach: Reach, session: str, prompt: str) -> None:
    """End a turn whose agent never said that it ended."""
    tell_daemon(reach, "POST", f"/session/{segment(session)}/settle", {"promptId": prompt})
    tell("settled; what the agent still says is kept and marked as late")
