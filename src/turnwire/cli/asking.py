"""Questions of the agent, asked at the terminal.

Takes a permission request; gives the answer of whoever sits there, or none to leave it open. Without a terminal it
says how to answer from elsewhere. Never allows anything by itself.
"""

from __future__ import annotations

import os
import shlex
import sys

import anyio
import click
import msgspec
from msgspec import Struct

from turnwire.cli.failing import printable, tell, tell_next
from turnwire.client.question import REJECT, Question, Reply
from turnwire.core.events import PermissionRequested
from turnwire.ids import SessionId


class _Titled(Struct, frozen=True):
    title: str = ""


class _Asked(Struct, rename="camel"):
    tool_call: _Titled = _Titled()
    message: str = ""


class Asker:
    """Asks one question at a time."""

    def __init__(self, *, alone: bool) -> None:
        self._alone = alone
        """Nobody else can answer: the agent is ours."""
        self._turn = anyio.Lock()

    async def ask(self, event: PermissionRequested, session_id: SessionId) -> Reply | None:
        """The answer; none leaves the question open."""
        question = Question(event, session_id)
        if question.options and sys.stdin.isatty() and sys.stderr.isatty():
            async with self._turn:
                return await _ask_here(question)
        if self._alone:
            tell(f"the agent asks: {subject(question)}; nobody can answer here, so it hears no")
            return question.reply(REJECT)
        tell_open(question)
        return None


def tell_open(question: Question) -> None:
    """Say what is asked, and how to answer."""
    tell(f"the agent asks: {subject(question)}; it waits for an answer")
    tell_next(answer_command(question))


def subject(question: Question) -> str:
    """What is asked, in a line."""
    try:
        asked = msgspec.json.decode(question.params, type=_Asked)
    except msgspec.DecodeError:
        return question.method
    return " ".join((asked.tool_call.title or asked.message or question.method).split())


def answer_command(question: Question) -> str:
    """How to answer from another shell."""
    ids = "|".join(shlex.quote(each.option_id) for each in question.options) or "--form JSON"
    return f"turnwire answer {question.session_id} {question.request_id} {ids}"


async def _ask_here(question: Question) -> Reply | None:
    options = question.options
    click.echo(f"the agent asks: {printable(subject(question))}", err=True)
    for number, option in enumerate(options, 1):
        click.echo(f"  {number}. {printable(option.name or option.option_id)}", err=True)
    while True:
        click.echo(f"answer 1-{len(options)}: ", err=True, nl=False)
        line = await _line()
        if line is None:
            tell("the question stays open")
            tell_next(answer_command(question))
            return None
        if line.isdecimal() and 1 <= int(line) <= len(options):
            return question.reply(options[int(line) - 1].option_id)


async def _line() -> str | None:
    """A line of the terminal, without a thread that would outlive us; none at its end."""
    await anyio.wait_readable(sys.stdin)
    # A terminal gives whole lines.
    given = os.read(sys.stdin.fileno(), 4096)
    return given.decode(errors="replace").strip() if given else None
