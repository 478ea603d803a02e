"""`turnwire stdio`: turnwire as an agent on stdin and stdout, for an editor.

It hosts an agent's command with a log of its own, or carries every frame to a daemon. Nothing but ACP is ever on
stdout; what it has to say goes to stderr.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import click

from turnwire.cli.commands import WithAgent, agent_of
from turnwire.cli.config import setting_options
from turnwire.server.settings.declared import Access, ForClients, Listening

EXAMPLES = """
turnwire stdio -- my-agent --flag                    in an editor's settings, in place of: my-agent --flag
turnwire stdio --data ~/notes/log -- my-agent        with its log elsewhere
turnwire stdio --daemon http://127.0.0.1:4170        the agent of a daemon that runs already
turnwire stdio --daemon http://127.0.0.1:4170 --agent codex        another agent of that daemon
turnwire stdio --daemon https://agents.example --session SESSION   one session of it, whatever is opened
"""

USED = frozenset({"cwd", "protocol", "turn_complete", "ready_timeout", "log_format", "log_level"})
UNUSED = frozenset(each.name for group in (Listening, Access, ForClients) for each in fields(group)) - USED
"""Settings that are about listening, which this does not do."""

FOR_DAEMON = frozenset({"agents", "data", "limits", "config", "log_format", "log_level"})
"""Flags that mean something when the daemon runs elsewhere."""


@click.command(
    cls=WithAgent, examples=EXAMPLES, params=[each for each in setting_options() if each.name not in UNUSED]
)
@click.option("--daemon", metavar="URL", help="Carry everything to this daemon, instead of hosting an agent.")
@click.option("--session", metavar="ID", help="With --daemon: a new session is this one instead.")
@click.option("--token-file", metavar="FILE", help="With --daemon: a file with a token; else TURNWIRE_TOKEN.")
@click.pass_context
def stdio(
    ctx: click.Context, daemon: str | None, session: str | None, token_file: str | None, **flags: Any
) -> None:
    """Be an agent on stdin and stdout, for an editor.

    Sessions are kept, so an editor that was restarted can load them. When stdin ends, running turns get time to end
    (limit drain_s) and the process ends with them; what does not end in time is ended.
    """
    agent = agent_of(ctx)
    named: tuple[str, ...] = flags.get("agents") or ()
    if daemon is None:
        if session is not None or token_file is not None:
            raise click.UsageError("--session and --token-file are for --daemon URL; give that, too", ctx)
        from turnwire.cli.stdio_host import run_host

        run_host(flags, agent)
        return
    foreign = [
        each for each, value in flags.items() if value not in (None, ()) and each not in (*FOR_DAEMON, "agents")
    ]
    if foreign:
        raise click.UsageError(f"{foreign[0]} is a setting of the daemon; leave it out, or leave --daemon out", ctx)
    if len(named) > 1 or any("=" in each for each in named):
        raise click.UsageError("with --daemon, --agent is the name of one of its agents; give just that", ctx)
    if agent:
        raise click.UsageError("the daemon has its own agent; give either --daemon or an agent's command", ctx)
    from turnwire.cli.relay import relay_to_daemon

    del flags["agents"]
    relay_to_daemon(daemon, session, token_file, flags, agent=next(iter(named), None))
