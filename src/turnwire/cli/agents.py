"""`turnwire agents`: the agents that this machine can start, and logging in to an agent of a daemon.

The list starts no agent and contacts no daemon: `turnwire doctor --agent NAME` tests one. It shows the known agents
and those of the settings; of a key it shows only whether its variable is set.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import click
from msgspec import Struct

from turnwire.cli.agent_source import BUILT_IN_NAME, in_words
from turnwire.cli.commands import Command, Group
from turnwire.cli.known_agents import KNOWN_AGENTS, KnownAgent, NoStart, how_to_start, known
from turnwire.cli.output import print_json, print_table, progress, tell
from turnwire.cli.reach import Reach, ask, tell_daemon, with_reach
from turnwire.client.http import segment
from turnwire.ids import UNNAMED
from turnwire.server.settings.agents import AgentEntry
from turnwire.server.settings.sources import load_settings

EXAMPLES = """
turnwire agents                       which agents can be started here, and how
turnwire agents --json                for programs
turnwire serve --agent claude         run the daemon with one of them
turnwire doctor --agent claude        try one: does it start and answer?
turnwire agents login claude          log in at an agent of the daemon
"""
LOGIN_EXAMPLES = """
turnwire agents login claude          the ways that it offers, or the only one
turnwire agents login claude METHOD   log in by this one
"""


class _Row(NamedTuple):
    """One agent in the list."""

    name: str
    label: str
    can_start: bool
    how: str
    """The program that starts it; or why it cannot be started, and what to do."""
    keys: tuple[str, ...]
    """The variables that may hold its key."""
    configured: bool

    @property
    def key(self) -> str:
        found = [each for each in self.keys if os.environ.get(each)]
        return f"{found[0]} is set" if found else ", ".join(self.keys)

    @property
    def start(self) -> str:
        if not self.can_start:
            return "no"
        return "no key" if self.keys and "is set" not in self.key else "yes"


class _Way(Struct, rename="camel"):
    method_id: str
    name: str | None = None
    description: str | None = None


class _Ways(Struct, rename="camel"):
    methods: list[_Way]


@click.group(cls=Group, examples=EXAMPLES, invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line per agent.")
@click.pass_context
def agents(ctx: click.Context, as_json: bool) -> None:
    """List the agents that this machine can start; log in at one.

    Agents of the settings come first, then all known agents.
    """
    if ctx.invoked_subcommand is not None:
        return
    rows = _rows()
    if as_json:
        for each in rows:
            print_json(_as_json(each))
        return
    print_table(
        ("name", "agent", "start", "key", "by"),
        [(each.name, each.label, each.start, each.key, each.how) for each in rows],
    )
    if any(each.start == "no key" for each in rows):
        tell("no key: none of its variables is set in this shell; it may still have its own login")


def _rows() -> list[_Row]:
    settings = load_settings({"cwd": [os.getcwd()]}, os.environ).settings
    entries = [each for each in settings.hosted() if each.name != UNNAMED]
    named = {each.name for each in entries}
    own = [_own_row(each) for each in entries]
    builtin = _Row(BUILT_IN_NAME, "the built-in agent", True, "turnwire", (), BUILT_IN_NAME in named)
    others = [_known_row(each, configured=False) for each in KNOWN_AGENTS if each.name not in named]
    return [*own, *([] if builtin.configured else [builtin]), *others]


def _own_row(entry: AgentEntry) -> _Row:
    agent = None if entry.is_described else known(entry.name)
    if agent is not None:
        return _known_row(agent, configured=True)
    return _Row(entry.name, entry.label or entry.name, True, in_words(entry), entry.env, True)


def _known_row(agent: KnownAgent, *, configured: bool) -> _Row:
    start = how_to_start(agent)
    if isinstance(start, NoStart):
        return _Row(agent.name, agent.label, False, start.why, agent.keys, configured)
    return _Row(agent.name, agent.label, True, start.by, agent.keys, configured)


def _as_json(row: _Row) -> dict[str, Any]:
    return {**row._asdict(), "keysSet": [each for each in row.keys if os.environ.get(each)]}


@agents.command(cls=Command, examples=LOGIN_EXAMPLES)
@click.argument("name")
@click.argument("method", required=False)
@with_reach
def login(reach: Reach, name: str, method: str | None) -> None:
    """Log in at an agent of the daemon, by one of the methods that it offers.

    Without METHOD, the only method is used; if there are several, they are listed.
    """
    path = f"/agents/{segment(name)}/auth"
    if method is None:
        ways = ask(reach, "GET", path, shape=_Ways).methods
        if not ways:
            click.echo(f"{name} offers no way to log in; it may have all it needs")
            return
        if len(ways) > 1:
            print_table(
                ("method", "name", "about"),
                [(each.method_id, each.name or "", each.description or "") for each in ways],
            )
            click.echo(f"\nlog in by one of them: turnwire agents login {name} METHOD")
            return
        method = ways[0].method_id
    with progress(f"logging in at {name}"):
        tell_daemon(reach, "POST", path, {"methodId": method})
    click.echo(f"logged in at {name}")
