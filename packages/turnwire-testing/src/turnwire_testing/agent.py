"""A scripted agent that speaks ACP v1 or v2 and executes the commands in the text of a prompt.

In a test: `async with scripted_agent("v1") as link`. As a program on standard input and output: `python -m
turnwire_testing.agent --help`. The program writes only frames to standard output. It exits with 0 when the client
closes standard input, with 2 for an invalid command line, and with 78 for an invalid script. The commands are in
`turnwire_testing.scripted.script`; the components are in `turnwire_testing.scripted`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import anyio

from turnwire.errors import ConfigError
from turnwire.hosting.stdio import StdioLink
from turnwire.limits import Limits, MiB
from turnwire_testing.scripted.agent import ScriptedAgent, scripted_agent
from turnwire_testing.scripted.host import FLUSH_S, Gates, ProcessHost
from turnwire_testing.scripted.options import ORDER, PROFILES, AgentOptions, Profile, Step
from turnwire_testing.scripted.script import command_list

__all__ = ["PROFILES", "AgentOptions", "Gates", "Profile", "ScriptedAgent", "main", "scripted_agent"]

EPILOG = """examples:
  a v1 agent that does what each prompt says, for example `say 3 "hello "`:
      python -m turnwire_testing.agent
  a v2 agent that dies in the middle of every turn:
      printf 'say 2 "so far "\\nexit 3\\n' > dies.script
      python -m turnwire_testing.agent --profile v2 --script dies.script
  an agent that speaks about a session before it has answered session/new:
      python -m turnwire_testing.agent --before 'commands plan,review' --before 'usage 0 200000'
  by hand:
      printf '%s\\n' '{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}' \\
        | python -m turnwire_testing.agent

A prompt whose first word is a command is a script, one command per line, quoted as in a shell.
Any other prompt is echoed. The commands:

"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the agent until its client is gone."""
    try:
        profile, options = read_arguments(arguments)
    except ConfigError as error:
        sys.stderr.write(f"turnwire_testing.agent: {error}\n")
        return error.exit_status
    anyio.run(_run, profile, options)
    return 0


def read_arguments(arguments: Sequence[str] | None) -> tuple[Profile, AgentOptions]:
    """The agent a command line asks for. Raises `ConfigError`."""
    given = _parser().parse_args(arguments)
    options = AgentOptions(
        script=_read(given.script),
        before="\n".join(given.before),
        inside="\n".join(given.inside),
        after="\n".join(given.after),
        history=_read(given.history),
        auth_required=given.auth_required,
        steering=given.steering,
        accept_v1=given.accept_v1,
        order=cast("tuple[Step, ...]", tuple(given.order.split(","))),
        repeat_idle=given.repeat_idle,
        session_prefix=given.session_prefix,
    )
    return given.profile, options


LIMITS = Limits(link_buffer_bytes=1 * MiB, stop_eof_s=FLUSH_S)
"""Limits that make a flood wait for its reader instead of filling this process's memory."""


async def _run(profile: Profile, options: AgentOptions) -> None:
    link = StdioLink(limits=LIMITS)
    try:
        await ScriptedAgent(link, profile, options, ProcessHost(link)).run()
    finally:
        await link.aclose()


def _read(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {str(path)!r}: {type(error).__name__}") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m turnwire_testing.agent",
        description="An ACP agent that does what the text of a prompt tells it.",
        epilog=EPILOG + command_list(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--profile", choices=PROFILES, default="v1", help="what it speaks; v1plus has turn_complete and ready")
    add("--script", type=Path, metavar="FILE", help="commands for every prompt, whatever its text")
    for when, meaning in (
        ("before", "before the answer to session/new"),
        ("inside", "right behind that answer, in the same burst"),
        ("after", "after that answer, in a burst of its own"),
    ):
        add(f"--{when}", action="append", default=[], metavar="COMMAND", help=f"{meaning}; may be repeated")
    add("--history", type=Path, metavar="FILE", help="commands that session/load of an unknown session replays")
    add("--auth-required", action="store_true", help="refuse sessions until authenticated by method `token`")
    add("--steering", action="store_true", help="offer _session/steering")
    add("--accept-v1", action="store_true", help="a v2 agent asked for version 1 speaks it")
    add("--order", default=",".join(ORDER), metavar="A,B,C", help="how a v2 agent acknowledges a prompt")
    add("--repeat-idle", type=int, default=0, metavar="N", help="how often a v2 agent repeats its idle")
    add("--session-prefix", default="session", metavar="TEXT", help="session ids are this and a number")
    return parser


if __name__ == "__main__":
    sys.exit(main())
