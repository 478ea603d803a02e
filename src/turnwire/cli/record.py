"""`turnwire record`: an agent's command with everything it says and hears in a file.

For a client it is the agent: it starts this in the agent's place. Nothing but the agent's own bytes is on stdout.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from io import FileIO
from itertools import count
from pathlib import Path
from typing import Any

import click

from turnwire.cli.commands import WithAgent, agent_of
from turnwire.cli.failure import tell

EXAMPLES = """
turnwire record -- my-agent --flag               in an editor's settings, in place of: my-agent --flag
turnwire record -o bug.jsonl -- my-agent         into this file; a second start writes bug-2.jsonl
turnwire record -o ~/recordings -- my-agent      each start into a file of its own in this folder
turnwire record --redact token --redact env -- my-agent
turnwire serve -- turnwire record -- my-agent    what a daemon and its agent say to each other
"""
ALL = ("token", "secret", "env", "home", "email")
"""The rules, as `turnwire.recording.redaction` has them; that is imported when a command runs."""


def redaction_options(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--redact` and `--no-redact`."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        chosen = click.option(
            "--redact",
            multiple=True,
            type=click.Choice(("all", *ALL)),
            help=f"What to take out; may be given several times.  [default: {default}]",
        )
        kept = click.option("--no-redact", is_flag=True, help="Take nothing out.")
        return chosen(kept(function))

    return decorate


def rules_of(redact: Collection[str], no_redact: bool, default: Collection[str]) -> tuple[str, ...]:
    """The rules that the flags name. Raises `UsageError`."""
    if redact and no_redact:
        raise click.UsageError("--redact and --no-redact exclude each other; give one of them")
    wanted = () if no_redact else redact or default
    return ALL if "all" in wanted else tuple(each for each in ALL if each in wanted)


@click.command(cls=WithAgent, examples=EXAMPLES)
@click.option(
    "-o", "--output", metavar="FILE", help="The file to write, or a folder for them.  [default: this folder]"
)
@redaction_options("all")
@click.pass_context
def record(ctx: click.Context, output: str | None, redact: tuple[str, ...], no_redact: bool) -> None:
    """Record what an agent and its client say to each other.

    A client starts this in the agent's place. Frames pass untouched in both directions; what is taken out is
    taken out of the file alone. Ends with the agent, and with its exit code. `turnwire replay FILE` plays it
    back.
    """
    agent = agent_of(ctx)
    if not agent:
        raise click.UsageError("put the agent's command behind `--`", ctx)
    from turnwire.errors import AgentLaunchFailed
    from turnwire.limits import Limits
    from turnwire.recording.proxy import Recorder, run_agent
    from turnwire.recording.redaction import Redactor, Rule
    from turnwire.runtime.clock import SystemClock

    rules = [Rule(each) for each in rules_of(redact, no_redact, ALL)]
    limits = Limits()
    with _new_file(Path(output or "."), Path(agent[0]).name) as file:
        recorder = Recorder(file, Redactor(rules, os.environ), SystemClock.monotonic, limits)
        try:
            code = run_agent(agent, recorder, *_pipes(), limits)
        except AgentLaunchFailed:
            # Nothing was said, so there is nothing to keep.
            Path(file.name).unlink()
            raise
    try:
        recorder.look_again(Path(file.name))
    except OSError as error:
        why = error.strerror or type(error).__name__
        tell(f"{file.name} may have secrets that were spelt in pieces: it could not be written again: {why}")
    why = "" if recorder.failure is None else f"; then it could not be written any more: {recorder.failure}"
    tell(f"recorded {recorder.count} frames in {file.name}{why}")
    # A shell's word for a signal.
    ctx.exit(code if code >= 0 else 128 - code)


def _pipes() -> tuple[FileIO, FileIO]:
    """Standard input and output, for the agent alone: what we say goes to stderr."""
    sys.stdout.flush()
    pipes = FileIO(os.dup(0), "rb"), FileIO(os.dup(1), "wb")
    os.dup2(2, 1)
    return pipes


def _new_file(path: Path, agent: str) -> FileIO:
    """A file that was not there before: an editor may start its agent at any time, and each start is kept."""
    from turnwire.recording.proxy import private
    from turnwire.runtime.clock import SystemClock

    if path.is_dir():
        begun = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
        path /= f"{agent}-{begun:%Y%m%d-%H%M%S}.jsonl"
    for number in count(1):
        try:
            return FileIO(path if number == 1 else path.with_stem(f"{path.stem}-{number}"), "xb", opener=private)
        except FileExistsError:
            continue
    raise AssertionError("there is a number that is free")
