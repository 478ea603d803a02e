"""`turnwire explain`: why a session is stuck, and the command to run next.

What the daemon knows of a session becomes findings, the likeliest cause first, then the evidence. That a turn is
over is never guessed: it says what speaks for it, and a person settles it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import click
from msgspec import Struct
from rich.text import Text

from turnwire.cli.answer import open_permissions
from turnwire.cli.asking import answer_command, details, subject
from turnwire.cli.commands import Command
from turnwire.cli.completion import session_ids
from turnwire.cli.output import print_block, print_json, printable
from turnwire.cli.reach import Reach, ask, with_reach
from turnwire.cli.turns import Queue, read_queue
from turnwire.client.http import segment
from turnwire.client.permission import PermissionRequest

EXAMPLES = """
turnwire explain SESSION           why does nothing happen?
turnwire explain SESSION --json    all that is known, for a report
"""
LONGEST = 300
"""Characters of a frame that are shown."""


class Agent(Struct, frozen=True, rename="camel"):
    """The agent's side, as `GET …/explain` tells it."""

    connected: bool = False
    opened: str | None = None
    refused: list[str] = []
    pid: int | None = None
    open_requests: int = 0
    breaches: dict[str, int] = {}
    strays: dict[str, int] = {}
    last_received: list[str] = []
    last_sent: list[str] = []
    broken_lines: list[str] = []
    stderr_tail: str | None = None


class Explanation(Struct, rename="camel"):
    """Where a session stands."""

    state: str
    suspected_complete: bool = False
    reasons: list[str] = []
    prompt_id: str | None = None
    quiet_s: float | None = None
    tools_in_flight: list[str] = []
    queued: list[str] = []
    background: list[dict[str, Any]] = []
    agent: Agent = Agent()
    clients: dict[str, str] = {}
    """Clients that are attached, there or not."""
    attended: bool = True
    """Somebody is there who could answer."""


class Finding(NamedTuple):
    """Something that keeps the session from going on, and what to do about it."""

    words: str
    next: str | None = None
    details: Text | None = None
    """What is shown between the two."""


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("session", shell_complete=session_ids)
@click.option("--json", "as_json", is_flag=True, help="Print all that is known as JSON.")
@with_reach
def explain(reach: Reach, session: str, as_json: bool) -> None:
    """Say why a session is stuck, and what to do next."""
    path = f"/session/{segment(session)}/explain"
    if as_json:
        print_json(ask(reach, "GET", path, shape=dict[str, Any]))
        return
    known = ask(reach, "GET", path, shape=Explanation)
    permissions, queue = open_permissions(reach, session), read_queue(reach, session)
    click.echo(f"session {session}: {known.state}{_quiet(known)}")
    for number, each in enumerate(findings(session, known, permissions, queue), 1):
        click.echo(f"{number}. {printable(each.words)}")
        if each.details is not None:
            print_block(each.details)
        if each.next is not None:
            click.echo(f"   next: {printable(each.next)}")
    for name, value in _evidence(known):
        click.echo(f"{name}: {printable(value)}")


def findings(session: str, known: Explanation, permissions: list[PermissionRequest], queue: Queue) -> list[Finding]:
    """What keeps the session from going on, the likeliest cause first."""
    found = [*_waits_for_people(session, permissions, queue), *_waits_for_agent(session, known, bool(permissions))]
    if found:
        return found
    if known.state == "idle":
        return [Finding("nothing is stuck: no turn runs", f'turnwire prompt -s {session} "..."')]
    return [Finding("nothing looks stuck: the agent works", f"turnwire attach {session}")]


def _waits_for_people(session: str, permissions: list[PermissionRequest], queue: Queue) -> Iterator[Finding]:
    for each in permissions:
        yield Finding(f"the agent waits for an answer: {subject(each)}", answer_command(each), details(each))
    if queue.held and queue.prompts:
        count, why = len(queue.prompts), queue.held_reason or "no reason"
        yield Finding(f"the queue is held ({why}), {count} prompts wait", f"turnwire queue {session} release")


def _waits_for_agent(session: str, known: Explanation, is_asked: bool) -> Iterator[Finding]:
    if known.prompt_id is None:
        return
    cancel, settle = (f"turnwire {each} {session} {known.prompt_id}" for each in ("cancel", "settle"))
    because = "; ".join(known.reasons)
    if known.suspected_complete:
        yield Finding(f"the turn may be over although the agent never said so: {because}", settle)
    if known.state == "cancelling":
        yield Finding("a cancel was asked for and is not confirmed; harder means follow by themselves", settle)
    elif not known.agent.connected:
        why = because or "it is being started, or cannot be"
        yield Finding(f"the agent is not there; {why}", "turnwire doctor")
    elif known.tools_in_flight and not is_asked:
        yield Finding(f"a tool call is not finished: {', '.join(known.tools_in_flight)}", cancel)
    elif known.agent.open_requests and not known.suspected_complete and not is_asked:
        yield Finding(f"the agent has not answered {known.agent.open_requests} of our requests", cancel)


def _quiet(known: Explanation) -> str:
    return "" if known.quiet_s is None else f", nothing has happened for {known.quiet_s:.0f} s"


def _memory(agent: Agent) -> Iterator[tuple[str, str]]:
    if agent.opened == "lost":
        yield "its memory", "gone: it came back without it, and began the session anew"
    for each in agent.refused:
        yield "it refused to bring the session back by", each


def _evidence(known: Explanation) -> Iterator[tuple[str, str]]:
    agent = known.agent
    yield "agent", f"process {agent.pid or 'unknown'}, {'there' if agent.connected else 'not there'}"
    yield from _memory(agent)
    if known.prompt_id is not None:
        yield "turn", known.prompt_id
    if known.queued:
        yield "queued", ", ".join(known.queued)
    for each in known.background:
        yield "in the background", f"{each.get('kind')} {each.get('id') or ''}".rstrip()
    for name, counted in (("broken lines", agent.breaches), ("frames for nobody", agent.strays)):
        if counted:
            yield name, ", ".join(f"{count}x {reason}" for reason, count in counted.items())
    present = "one of them is there" if known.attended else "none of them is there"
    yield "clients", f"{len(known.clients)} attached, {present}" if known.clients else "none attached"
    for name, frames in (("last from the agent", agent.last_received), ("last to the agent", agent.last_sent)):
        if frames:
            yield name, frames[-1][:LONGEST]
    if agent.broken_lines:
        yield "its last broken line", agent.broken_lines[-1][:LONGEST]
    if agent.stderr_tail:
        yield "last words of the agent before", agent.stderr_tail[-LONGEST:]
