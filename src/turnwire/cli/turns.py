"""`turnwire queue`, `cancel` and `settle`: what a person does about turns that wait or run. The daemon decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import click
from msgspec import Struct

from turnwire.cli.commands import Command
from turnwire.cli.completion import queued_prompts, session_ids
from turnwire.cli.failure import tell
from turnwire.cli.output import moment, print_json, print_table
from turnwire.cli.reach import Reach, ask, tell_daemon, with_reach
from turnwire.client.http import segment

QUEUE_EXAMPLES = """
turnwire queue SESSION                          what waits, the next one first
turnwire queue SESSION edit PROMPT "new words"  change one that waits
turnwire queue SESSION move PROMPT 1            let it be the next
turnwire queue SESSION remove PROMPT            take it out; it ends as cancelled
turnwire queue SESSION hold                     start nothing; what runs goes on
turnwire queue SESSION release                  go on
"""


class Queue(Struct, rename="camel"):
    """The queue of a session as the daemon shows it."""

    prompts: list[dict[str, Any]]
    held: bool = False
    held_reason: str | None = None


def read_queue(reach: Reach, session: str) -> Queue:
    """The queue of a session."""
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
@click.argument("session", shell_complete=session_ids)
@click.argument("action", type=click.Choice(list(ACTIONS)), default="list")
@click.argument("words", nargs=-1, shell_complete=queued_prompts)
@click.option("--json", "as_json", is_flag=True, help="Print the queue as JSON.")
@with_reach
def queue(reach: Reach, session: str, action: str, words: tuple[str, ...], as_json: bool) -> None:
    """List and change the prompts that wait. Every action shows the queue as it is then."""
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
        tell("nothing waits")


def _row(place: int, prompt: dict[str, Any]) -> tuple[str, ...]:
    since = moment(prompt.get("queuedAt"))
    return str(place), str(prompt["promptId"]), since, prompt.get("author") or "-", prompt.get("text") or ""


def _path(session: str, prompt: str | None = None) -> str:
    behind = "" if prompt is None else f"/{segment(prompt)}"
    return f"/session/{segment(session)}/queue{behind}"


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
@click.argument("session", shell_complete=session_ids)
@click.argument("prompt", required=False, shell_complete=queued_prompts)
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
@click.argument("session", shell_complete=session_ids)
@click.argument("prompt")
@with_reach
def settle(reach: Reach, session: str, prompt: str) -> None:
    """End a turn whose agent never said that it ended."""
    tell_daemon(reach, "POST", f"/session/{segment(session)}/settle", {"promptId": prompt})
    tell("settled; what the agent still says is kept and marked as late")
