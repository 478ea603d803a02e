"""`turnwire queue`, `cancel`, `settle` and `explain`: queued and running turns, and the reason why one is stuck."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import click
from msgspec import Struct
from rich.text import Text

from turnwire.cli.commands import Command
from turnwire.cli.output import (
    MAKE_ROOM,
    log_trouble,
    moment,
    print_block,
    print_json,
    print_table,
    printable,
    tell,
)
from turnwire.cli.permissions import answer_command, details, open_permissions, subject
from turnwire.cli.reach import LAST, Reach, ask, session_ids, tell_daemon, with_reach
from turnwire.client.http import segment
from turnwire.client.permission import PermissionRequest
from turnwire.errors import LogFull

QUEUE_EXAMPLES = """
turnwire queue                                  queued prompts of the last session, in order
turnwire queue last edit PROMPT "new words"     change one
turnwire queue last move PROMPT 1               make it the next
turnwire queue last remove PROMPT               remove it; it ends as cancelled
turnwire queue last hold                        start nothing; the running turn continues
turnwire queue last release                     continue
"""


class Queue(Struct, rename="camel"):
    """The queue of a session as the daemon shows it."""

    prompts: list[dict[str, Any]]
    held: bool = False
    held_reason: str | None = None


def read_queue(reach: Reach, session: str) -> Queue:
    """Return the queue of a session."""
    return ask(reach, "GET", _path(session), shape=Queue)


def _edit(reach: Reach, session: str, words: tuple[str, ...]) -> None:
    text = " ".join(words[1:])
    if not text.strip():
        raise click.UsageError("there are no words; give some, or take the prompt out with `remove`")
    content = [{"type": "text", "text": text}]
    tell_daemon(reach, "PATCH", _path(session, words[0]), {"content": content})


def _move(reach: Reach, session: str, words: tuple[str, ...]) -> None:
    if not words[1].isdecimal() or words[1] == "0":
        raise click.UsageError("a place is a number; 1 is the next to start")
    tell_daemon(reach, "PATCH", _path(session, words[0]), {"position": int(words[1]) - 1})


def _remove(reach: Reach, session: str, words: tuple[str, ...]) -> None:
    tell_daemon(reach, "DELETE", _path(session, words[0]))


def _hold(reach: Reach, session: str, words: tuple[str, ...]) -> None:
    tell_daemon(reach, "PATCH", _path(session), {"held": True})


def _release(reach: Reach, session: str, words: tuple[str, ...]) -> None:
    tell_daemon(reach, "PATCH", _path(session), {"held": False})


class _Action(NamedTuple):
    usage: str
    at_least: int
    at_most: int | None
    act: Callable[[Reach, str, tuple[str, ...]], None] | None


ACTIONS: Mapping[str, _Action] = {
    "list": _Action("", 0, 0, None),
    "edit": _Action("PROMPT TEXT", 2, None, _edit),
    "move": _Action("PROMPT PLACE", 2, 2, _move),
    "remove": _Action("PROMPT", 1, 1, _remove),
    "hold": _Action("", 0, 0, _hold),
    "release": _Action("", 0, 0, _release),
}


@click.command(cls=Command, examples=QUEUE_EXAMPLES)
@click.argument("session", default=LAST, shell_complete=session_ids)
@click.argument("action", type=click.Choice(list(ACTIONS)), default="list")
@click.argument("words", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print the queue as JSON.")
@with_reach
def queue(reach: Reach, session: str, action: str, words: tuple[str, ...], as_json: bool) -> None:
    """List and change queued prompts. Every action prints the queue afterwards."""
    row = ACTIONS[action]
    if not row.at_least <= len(words) <= (len(words) if row.at_most is None else row.at_most):
        raise click.UsageError(f"write: turnwire queue {session} {action} {row.usage}".rstrip())
    if row.act is not None:
        row.act(reach, session, words)
    _show(session, read_queue(reach, session), as_json)


def _show(session: str, found: Queue, as_json: bool) -> None:
    if as_json:
        print_json({"held": found.held, "heldReason": found.held_reason, "prompts": found.prompts})
        return
    print_table(("place", "prompt", "since", "from", "text"), [_row(*each) for each in enumerate(found.prompts, 1)])
    if found.held:
        tell(f"held ({found.held_reason or 'no reason'}): nothing starts until `turnwire queue {session} release`")
    elif not found.prompts:
        tell("no prompt is queued")


def _row(place: int, prompt: dict[str, Any]) -> tuple[str, ...]:
    since = moment(prompt.get("queuedAt"))
    return str(place), str(prompt["promptId"]), since, prompt.get("author") or "-", prompt.get("text") or ""


def _path(session: str, prompt: str | None = None) -> str:
    behind = "" if prompt is None else f"/{segment(prompt)}"
    return f"/session/{segment(session)}/queue{behind}"


CANCEL_EXAMPLES = """
turnwire cancel                    the running turn of the last session; queued prompts stay
turnwire cancel SESSION PROMPT     this prompt, running or queued
"""
SETTLE_EXAMPLES = """
turnwire explain                   first look whether it is really over
turnwire settle                    end the running turn of the last session
turnwire settle SESSION PROMPT
"""


class _Turn(Struct):
    state: str
    """`idle` if there is none."""


@click.command(cls=Command, examples=CANCEL_EXAMPLES)
@click.argument("session", default=LAST, shell_complete=session_ids)
@click.argument("prompt", required=False)
@with_reach
def cancel(reach: Reach, session: str, prompt: str | None) -> None:
    """Cancel the running turn, or a named prompt."""
    path = f"/session/{segment(session)}"
    # The daemon accepts a cancel without a turn, so that it can be sent twice; a person wants to know.
    named = "current" if prompt is None else segment(prompt)
    found = ask(reach, "GET", f"{path}/turns/{named}", shape=_Turn)
    tell_daemon(reach, "POST", f"{path}/cancel", {} if prompt is None else {"promptId": prompt})
    if found.state == "running":
        tell("cancelling; the turn ends when the agent confirms it, or is stopped")
    elif prompt is None:
        tell("no turn runs")
    elif found.state == "queued":
        tell("removed from the queue")
    else:
        tell("it had already ended")


@click.command(cls=Command, examples=SETTLE_EXAMPLES)
@click.argument("session", default=LAST, shell_complete=session_ids)
@click.argument("prompt", required=False)
@with_reach
def settle(reach: Reach, session: str, prompt: str | None) -> None:
    """End a turn whose agent never reported its end: the running one, or the named one."""
    if prompt is None:
        prompt = ask(reach, "GET", f"/session/{segment(session)}/explain", shape=Explanation).prompt_id
    if prompt is None:
        tell("no turn runs, so there is nothing to settle")
        return
    tell_daemon(reach, "POST", f"/session/{segment(session)}/settle", {"promptId": prompt})
    tell("settled; later output of the agent is stored and marked as late")


# -- `turnwire explain` -------------------------------------------------------------------------------------------


EXAMPLES = """
turnwire explain                   why does nothing happen in the last session?
turnwire explain SESSION --json    all details, for a report
"""
LONGEST = 300
"""Maximum characters of a frame."""


class Agent(Struct, frozen=True, rename="camel"):
    """The agent's side in the answer of `GET …/explain`."""

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
    """The state of a session."""

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
    """Attached clients, present or not."""
    attended: bool = True
    """True if a client that could answer is present."""
    log: str | None = None
    """The code of the error with which the log rejects events now."""


class Finding(NamedTuple):
    """A reason why the session is stuck, and what to do about it."""

    words: str
    next: str | None = None
    details: Text | None = None
    """Shown between the two."""


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("session", default=LAST, shell_complete=session_ids)
@click.option("--json", "as_json", is_flag=True, help="Print all that is known as JSON.")
@with_reach
def explain(reach: Reach, session: str, as_json: bool) -> None:
    """Explain why a session is stuck, and what to do next."""
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
    """Return the reasons why the session is stuck, the likeliest cause first."""
    found = list(_waits_for_people(session, permissions, queue))
    if known.log is not None:
        # The agent may have ended the turn, so that nothing is known about it.
        words = f"the daemon cannot store events: {log_trouble(known.log)}"
        return [Finding(words, MAKE_ROOM if known.log == LogFull.code else "turnwire doctor"), *found]
    found += _waits_for_agent(session, known, bool(permissions))
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
        yield Finding(f"the turn may be over although its agent did not report it: {because}", settle)
    if known.state == "cancelling":
        yield Finding("the agent has not confirmed the cancel; it is stopped harder step by step", settle)
    elif not known.agent.connected:
        why = because or "it is being started, or cannot be"
        yield Finding(f"the agent is not connected: {why}", "turnwire doctor")
    elif known.tools_in_flight and not is_asked:
        yield Finding(f"a tool call is not finished: {', '.join(known.tools_in_flight)}", cancel)
    elif known.agent.open_requests and not known.suspected_complete and not is_asked:
        yield Finding(f"the agent has not answered {known.agent.open_requests} of our requests", cancel)


def _quiet(known: Explanation) -> str:
    return "" if known.quiet_s is None else f", nothing has happened for {known.quiet_s:.0f} s"


def _memory(agent: Agent) -> Iterator[tuple[str, str]]:
    if agent.opened == "lost":
        yield "its memory", "lost: it restarted without the session's history"
    for each in agent.refused:
        yield "it could not restore the session by", each


def _evidence(known: Explanation) -> Iterator[tuple[str, str]]:
    agent = known.agent
    yield "agent", f"process {agent.pid or 'unknown'}, {'connected' if agent.connected else 'not connected'}"
    yield from _memory(agent)
    if known.prompt_id is not None:
        yield "turn", known.prompt_id
    if known.queued:
        yield "queued", ", ".join(known.queued)
    for each in known.background:
        yield "in the background", f"{each.get('kind')} {each.get('id') or ''}".rstrip()
    for name, counted in (("broken lines", agent.breaches), ("unexpected frames", agent.strays)):
        if counted:
            yield name, ", ".join(f"{count}x {reason}" for reason, count in counted.items())
    present = "one of them connected" if known.attended else "none of them connected"
    yield "clients", f"{len(known.clients)} attached, {present}" if known.clients else "none attached"
    for name, frames in (("last from the agent", agent.last_received), ("last to the agent", agent.last_sent)):
        if frames:
            yield name, frames[-1][:LONGEST]
    if agent.broken_lines:
        yield "its last broken line", agent.broken_lines[-1][:LONGEST]
    if agent.stderr_tail:
        yield "last output of the previous agent", agent.stderr_tail[-LONGEST:]
