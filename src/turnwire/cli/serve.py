"""`turnwire serve`: run the daemon.

The module of the command is small, so that its help does not load the server; the work is in
`turnwire.cli.daemon`.
"""

from __future__ import annotations

from typing import Any

import click

from turnwire.cli.commands import WithAgent, agent_of
from turnwire.cli.config import editor_settings, setting_options, settings_from

EXAMPLES = """
turnwire serve                                       the built-in agent, on http://127.0.0.1:4170
turnwire serve --open                                and its page in the browser
turnwire serve -- my-agent --flag                    an agent of yours
turnwire serve --port 0 --json -- my-agent           for scripts: one JSON line once it accepts requests
turnwire serve --log memory --no-auth                for a quick try: nothing is kept, nobody is asked
turnwire serve --cwd ~/work --limit drain_s=5        where sessions may work; a shorter stop
TURNWIRE_TOKEN=... turnwire serve --host 0.0.0.0     for other machines; put TLS in front, or give --tls-cert
"""


@click.command(cls=WithAgent, examples=EXAMPLES, params=setting_options())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line instead: url, token, pid, data.")
@click.option("--open", "is_opened", is_flag=True, help="Open the page in the browser once it listens.")
@click.option("--for-editors", is_flag=True, hidden=True, help="As `turnwire stdio` starts it.")
@click.pass_context
def serve(ctx: click.Context, as_json: bool, is_opened: bool, for_editors: bool, **flags: Any) -> None:
    """Run the daemon: host an agent and serve its sessions.

    SIGTERM or Ctrl-C stops it in order: running turns get time to end (limit drain_s), queued prompts run after the
    next start. A second signal stops it at once.
    """
    loaded = (editor_settings if for_editors else settings_from)(flags, agent_of(ctx))
    if is_opened and not loaded.settings.page:
        raise click.UsageError("--open opens the page, and that is turned off; leave one of them out", ctx)
    from turnwire.cli.daemon import run_daemon

    run_daemon(loaded, as_json=as_json, is_opened=is_opened, for_editors=for_editors)
