"""`turnwire stdio`: an ACP agent on stdin and stdout, for an editor. Every frame is relayed to a daemon.

The daemon is the one of the agent's data folder, which is started if it does not run, or the one of `--daemon`.
Editors of one folder share its daemon. A daemon that was started here ends by itself (`turnwire.cli.daemon`). Only
ACP is written to stdout; messages for the user go to stderr.
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
"""Settings of the listener, which is always a free port of the loopback interface here."""
FOR_DAEMON = frozenset({"agents", "data", "limits", "config", "log_format", "log_level"})
"""Flags that can be combined with --daemon."""


@click.command(
    cls=WithAgent, examples=EXAMPLES, params=[each for each in setting_options() if each.name not in UNUSED]
)
@click.option("--daemon", metavar="URL", help="The daemon to use, instead of the one of the data folder.")
@click.option("--session", metavar="ID", help="With --daemon: a new session is this one instead.")
@click.option("--token-file", metavar="FILE", help="With --daemon: a file with a token; else TURNWIRE_TOKEN.")
@click.pass_context
def stdio(
    ctx: click.Context, daemon: str | None, session: str | None, token_file: str | None, **flags: Any
) -> None:
    """Act as an ACP agent on stdio, for editors.

    The agent runs in a daemon of its data folder, which is started if needed and shared by all editors of that
    folder. Turns continue when the editor closes. The daemon ends soon after its last client and turn.
    """
    agent = agent_of(ctx)
    if daemon is None:
        if session is not None or token_file is not None:
            raise click.UsageError("--session and --token-file are for --daemon URL; give that, too", ctx)
        from turnwire.cli.relay import relay_to_folder

        relay_to_folder(flags, agent)
        return
    named: tuple[str, ...] = flags.pop("agents", None) or ()
    foreign = [each for each, value in flags.items() if value not in (None, ()) and each not in FOR_DAEMON]
    if foreign:
        raise click.UsageError(f"{foreign[0]} is a setting of the daemon; leave it out, or leave --daemon out", ctx)
    if len(named) > 1 or any("=" in each for each in named):
        raise click.UsageError("with --daemon, --agent is the name of one of its agents; give just that", ctx)
    if agent:
        raise click.UsageError("the daemon has its own agent; give either --daemon or an agent's command", ctx)
    from turnwire.cli.relay import relay_to_daemon

    relay_to_daemon(daemon, session, token_file, flags, agent=next(iter(named), None))
