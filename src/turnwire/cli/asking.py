"""Permission requests and forms: as a person reads them, and asked of whoever sits at the terminal, one at a time.

What is asked is shown whole first, wherever it is shown: nobody is asked to allow what they cannot see. An answer
that does not fit is asked again, with what does. Nobody is made to answer: the end of input leaves the request
open. Nothing is ever allowed by itself.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import anyio
from rich.text import Text

from turnwire.cli.output import print_block, printable, tell, tell_next
from turnwire.cli.tool_view import bounded, diff_text, indented, unfenced
from turnwire.client.form import Field, Form
from turnwire.client.permission import REJECT, PermissionRequest, Reply
from turnwire.client.tool_call import ToolCall

ASKED_LINES = 200
"""Lines of a command or a change that somebody is asked to allow."""
TEXT_LINES = 20
"""Lines of what else a tool call says of itself."""


# -- as a person reads it ------------------------------------------------------------------------------------


def subject(permission: PermissionRequest) -> str:
    """What is asked, in a line."""
    call = permission.tool_call
    words = " ".join((permission.title or permission.method).split())
    return f"{words} ({call.kind})" if call is not None and call.kind != "other" else words


def answer_command(permission: PermissionRequest) -> str:
    """How to answer from another shell."""
    ids = "|".join(shlex.quote(each.option_id) for each in permission.options)
    form = permission.form
    if not ids and form is not None and form.fields:
        wanted = [each for each in form.fields if each.is_required] or form.fields[:1]
        ids = " ".join(f"--field {shlex.quote(each.name)}=…" for each in wanted)
    if not ids and permission.url is not None:
        ids = """--form '{"action": "accept"}'"""
    return f"turnwire answer {permission.session_id} {permission.request_id} {ids or '--form JSON'}"


def details(permission: PermissionRequest) -> Text | None:
    """All that is known of what is asked, below its line; none if that is nothing."""
    parts = list(_parts(permission))
    return Text("\n").join(parts) if parts else None


def _parts(permission: PermissionRequest) -> Iterator[Text]:
    call = permission.tool_call
    if call is not None and call.title and " ".join(call.title.split()) not in subject(permission):
        yield indented([printable(call.title)])
    if permission.description:
        yield indented(bounded(printable(permission.description).split("\n"), TEXT_LINES))
    if permission.command:
        first, *more = bounded(printable(permission.command).strip("\n").split("\n"), ASKED_LINES)
        yield indented([f"$ {first}", *(f"  {each}" for each in more)], "bold")
    if permission.cwd:
        yield indented([f"in {printable(permission.cwd)}"], "dim")
    if call is not None:
        yield from _of_call(call)
    if permission.url is not None:
        yield indented([f"open {printable(permission.url)}"], "bold")
    if permission.form is not None:
        yield from form_parts(permission.form)


def _of_call(call: ToolCall) -> Iterator[Text]:
    if call.diff:
        yield diff_text(call.diff, ASKED_LINES)
    elif call.locations:
        yield indented([printable(f"at {each}") for each in call.locations[:TEXT_LINES]], "dim")
    if call.text.strip():
        yield indented(bounded(printable(unfenced(call.text)).strip("\n").split("\n"), TEXT_LINES), "dim")


def form_parts(form: Form) -> Iterator[Text]:
    """A form, field by field."""
    for each in (form.title, form.description):
        if each and each != form.message:
            yield indented([printable(each)])
    for field in form.fields:
        yield field_part(field)


def field_part(field: Field) -> Text:
    """One field: its name, what it is and what it takes."""
    shown = Text(f"  {printable(field.name)}", style="bold")
    if field.title and field.title != field.name:
        shown.append(printable(f" · {field.title}"), style="not bold")
    shown.append(printable(f": {field.takes}") + (", required" if field.is_required else ""), style="not bold")
    if field.default is not None:
        shown.append(printable(f" [default: {default_words(field)}]"), style="not bold dim")
    if field.description:
        shown.append("\n    " + printable(" ".join(field.description.split())), style="not bold dim")
    for number, each in enumerate(field.choices, 1):
        if each.title and each.title != each.value:
            shown.append(printable(f"\n    {number}. {each.value}: {each.title}"), style="not bold")
    return shown


def default_words(field: Field) -> str:
    """The default as a person would write it."""
    value = field.default
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


DECLINE, CANCEL = "/decline", "/cancel"
FORM_HINT = f"empty takes the default; {DECLINE} says no, {CANCEL} puts it away, Ctrl-D leaves it open"
URL_CHOICES = (("done", "accept"), ("no", "decline"), ("not now", "cancel"))


# -- asking --------------------------------------------------------------------------------------------------


class Dialogue(Protocol):
    """Whoever can be asked."""

    def show(self, block: Text) -> None:
        """Show something finished."""
        ...

    async def line(self, prompt: str) -> str | None:
        """A line that was written; none at the end of input."""
        ...

    async def choose(self, choices: Sequence[str]) -> int | None:
        """Which one was chosen; none at the end of input."""
        ...


class PlainDialogue:
    """The terminal of this process, without any line editor."""

    def __init__(self) -> None:
        self.is_in_a_line = False
        """What was asked for stands there, and the answer is being written behind it."""

    def show(self, block: Text) -> None:
        print_block(block, err=True)

    async def line(self, prompt: str) -> str | None:
        sys.stderr.write(prompt)
        sys.stderr.flush()
        self.is_in_a_line = True
        try:
            # No thread, because one would outlive us.
            await anyio.wait_readable(sys.stdin)
        finally:
            self.is_in_a_line = False
        # A terminal gives whole lines.
        line = os.read(sys.stdin.fileno(), 4096)
        return line.decode(errors="replace").rstrip("\r\n") if line else None

    async def choose(self, choices: Sequence[str]) -> int | None:
        for number, words in enumerate(choices, 1):
            self.show(Text(f"  {number}. {printable(words)}"))
        while True:
            line = await self.line(f"answer 1-{len(choices)}: ")
            if line is None:
                return None
            chosen = line.strip()
            if chosen.isdecimal() and 1 <= int(chosen) <= len(choices):
                return int(chosen) - 1
            self.show(Text(f"give a number from 1 to {len(choices)}; Ctrl-D leaves the permission request open"))


def tell_open(permission: PermissionRequest) -> None:
    """Say what is asked, and how to answer."""
    tell(f"the agent asks: {subject(permission)}; it waits for an answer")
    show_details(permission)
    tell_next(answer_command(permission))


def show_details(permission: PermissionRequest) -> None:
    """All of what is asked, for whoever runs the command."""
    block = details(permission)
    if block is not None:
        print_block(block, err=True)


class Asker:
    """Asks one permission request at a time."""

    def __init__(self, *, alone: bool) -> None:
        self._alone = alone
        """Nobody else can answer: the agent is ours."""
        self._turn = anyio.Lock()
        self._dialogue = PlainDialogue()

    def stop_line(self) -> None:
        """What is told next begins a line of its own, also while somebody is being asked."""
        if self._dialogue.is_in_a_line:
            self._dialogue.is_in_a_line = False
            sys.stderr.write("\n")

    async def ask(self, permission: PermissionRequest) -> Reply | None:
        """The answer; none leaves the request open."""
        if can_be_asked(permission) and sys.stdin.isatty() and sys.stderr.isatty():
            async with self._turn:
                return await ask_here(permission, self._dialogue)
        if self._alone:
            tell(f"the agent asks: {subject(permission)}; nobody can answer here, so it hears no")
            show_details(permission)
            return permission.reply(REJECT)
        tell_open(permission)
        return None


def can_be_asked(permission: PermissionRequest) -> bool:
    """Whether it has options, a form or a page; an answer to anything else is written as JSON."""
    form = permission.form
    return bool(permission.options) or permission.url is not None or (form is not None and bool(form.fields))


async def ask_here(permission: PermissionRequest, dialogue: Dialogue) -> Reply | None:
    """The answer of whoever is asked; none leaves the request open."""
    dialogue.show(Text(f"the agent asks: {printable(subject(permission))}", style="bold"))
    if permission.form is not None and not permission.options:
        reply = await _ask_form(permission, permission.form, dialogue)
    else:
        block = details(permission)
        if block is not None:
            dialogue.show(block)
        reply = await _ask_choice(permission, dialogue)
    if reply is None:
        dialogue.show(Text("turnwire: the permission request stays open"))
        dialogue.show(Text(f"  next: {printable(answer_command(permission))}"))
    return reply


async def _ask_choice(permission: PermissionRequest, dialogue: Dialogue) -> Reply | None:
    choices: list[tuple[str, Any]] = [(each.name or each.option_id, each.option_id) for each in permission.options]
    if permission.url is not None:
        choices = [(words, {"action": action}) for words, action in URL_CHOICES]
    chosen = await dialogue.choose([words for words, _ in choices])
    return None if chosen is None else permission.reply(choices[chosen][1])


# -- forms -------------------------------------------------------------------------------------------------------


async def _ask_form(permission: PermissionRequest, form: Form, dialogue: Dialogue) -> Reply | None:
    for each in (form.title, form.description):
        if each and each != form.message:
            dialogue.show(Text(f"  {printable(each)}"))
    dialogue.show(Text(f"  {FORM_HINT}", style="dim"))
    content: dict[str, Any] = {}
    for field in form.fields:
        dialogue.show(field_part(field))
        line = await _ask_field(field, content, dialogue)
        if line is None:
            return None
        if line in (DECLINE, CANCEL):
            return permission.reply({"action": line.removeprefix("/")})
    return permission.reply({"action": "accept", "content": content})


async def _ask_field(field: Field, content: dict[str, Any], dialogue: Dialogue) -> str | None:
    """Ask until the field has what it takes, or may go without; gives the line, none at the end of input."""
    usual = "" if field.default is None else f" [{default_words(field)}]"
    while True:
        line = await dialogue.line(printable(f"  {field.name}{usual}: "))
        if line is None or line.strip() in (DECLINE, CANCEL):
            return None if line is None else line.strip()
        if line.strip():
            value = field.read(line)
            problem = field.problem(value)
        elif field.default is not None:
            value, problem = field.default, None
        elif not field.is_required:
            return line
        else:
            value, problem = None, f"{field.name} is required; it takes {field.takes}"
        if problem is None:
            content[field.name] = value
            return line
        dialogue.show(Text(f"  {printable(problem)}", style="red"))
