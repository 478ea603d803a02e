"""`turnwire record`: run an agent's command and record all its traffic in a file.

The client starts this command in the agent's place. Only the agent's bytes are written to stdout.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from io import FileIO
from itertools import count
from pathlib import Path

import click

from turnwire.cli.commands import WithAgent, agent_of
from turnwire.cli.export import RULES, redaction_options, rules_of
from turnwire.cli.output import tell

EXAMPLES = """
turnwire record -- my-agent --flag               in an editor's settings, in place of: my-agent --flag
turnwire record -o bug.jsonl -- my-agent         into this file; a second start writes bug-2.jsonl
turnwire record -o ~/recordings -- my-agent      each start into a file of its own in this folder
turnwire record --redact token --redact env -- my-agent
turnwire serve -- turnwire record -- my-agent    what a daemon and its agent say to each other
"""


@click.command(cls=WithAgent, examples=EXAMPLES)
@click.option(
    "-o", "--output", metavar="FILE", help="The file to write, or a folder for them.  [default: this folder]"
)
@redaction_options("all")
@click.pass_context
def record(ctx: click.Context, output: str | None, redact: tuple[str, ...], no_redact: bool) -> None:
    """Record the frames between an agent and its client.

    A client starts this command in the agent's place. Frames pass unchanged in both directions; redaction applies
    to the file only. It ends with the agent and returns the agent's exit code. `turnwire replay FILE` plays the
    recording back.
    """
    agent = agent_of(ctx)
    if not agent:
        raise click.UsageError("put the agent's command behind `--`", ctx)
    from turnwire.clock import SystemClock
    from turnwire.errors import AgentLaunchFailed
    from turnwire.limits import Limits
    from turnwire.server.telemetry.redaction import Redactor, Rule
    from turnwire_testing.recording.proxy import Recorder, run_agent

    rules = [Rule(each) for each in rules_of(redact, no_redact, RULES)]
    limits = Limits()
    with _new_file(Path(output or "."), Path(agent[0]).name) as file:
        recorder = Recorder(file, Redactor(rules, os.environ), SystemClock.monotonic, limits)
        try:
            code = run_agent(agent, recorder, *_pipes())
        except AgentLaunchFailed:
            # Nothing was recorded, so the empty file is removed.
            Path(file.name).unlink()
            raise
    why = "" if recorder.failure is None else f"; then it could not be written any more: {recorder.failure}"
    tell(f"recorded {recorder.count} frames in {file.name}{why}")
    # A shell's word for a signal.
    ctx.exit(code if code >= 0 else 128 - code)


def _pipes() -> tuple[FileIO, FileIO]:
    """Reserve standard input and output for the agent; our own output goes to stderr."""
    sys.stdout.flush()
    pipes = FileIO(os.dup(0), "rb"), FileIO(os.dup(1), "wb")
    os.dup2(2, 1)
    return pipes


def _new_file(path: Path, agent: str) -> FileIO:
    """Create a new file: an editor may start its agent at any time, and each start gets its own recording."""
    from turnwire.clock import SystemClock
    from turnwire_testing.recording.proxy import private

    if path.is_dir():
        begun = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
        path /= f"{agent}-{begun:%Y%m%d-%H%M%S}.jsonl"
    for number in count(1):
        try:
            return FileIO(path if number == 1 else path.with_stem(f"{path.stem}-{number}"), "xb", opener=private)
        except FileExistsError:
            continue
    raise AssertionError("there is a number that is free")
