"""Permission requests and forms: shown, asked at the terminal one at a time, and answered by `turnwire answer`.

The whole request is shown before the question: nothing is cut, and text longer than a screen is paged. An invalid
answer is asked again. The end of input leaves the request open. Nothing is allowed without an answer.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, cast

import anyio
import click
import msgspec
from msgspec import Raw, Struct
from rich.cells import cell_len
from rich.text import Text

from turnwire.cli.commands import Command
from turnwire.cli.output import has_hidden, print_block, printable, tell, tell_next
from turnwire.cli.reach import LAST, Reach, ask, run, session_ids, with_reach
from turnwire.cli.tool_view import diff_text, indented, unfenced
from turnwire.client.form import Field, Form
from turnwire.client.http import Http, segment
from turnwire.client.permission import REJECT, Option, PermissionRequest, Reply
from turnwire.client.remote import RemoteDaemon
from turnwire.client.stream import AS_SAID
from turnwire.client.tool_call import ToolCall
from turnwire.errors import PermissionNotFound
from turnwire.ids import PermissionId, SessionId
from turnwire.projections.view import Terminal
from turnwire.projections.view import ToolCall as FoldedCall
from turnwire.session.events import PermissionRequested

HIDDEN = "Warning: this has invisible or reordering characters, shown as ⟨U+…⟩. Read it with care."


# -- as a person reads it ------------------------------------------------------------------------------------


def subject(permission: PermissionRequest) -> str:
    """Return the subject of the request in one line."""
    call = permission.tool_call
    words = " ".join((permission.title or permission.method).split())
    return f"{words} ({call.kind})" if call is not None and call.kind != "other" else words


def answer_command(permission: PermissionRequest) -> str:
    """Return the command that answers from another shell."""
    ids = "|".join(shlex.quote(each.option_id) for each in permission.options)
    form = permission.form
    if not ids and form is not None and form.fields:
        wanted = [each for each in form.fields if each.is_required] or form.fields[:1]
        ids = " ".join(f"--field {shlex.quote(each.name)}=…" for each in wanted)
    if not ids and permission.url is not None:
        ids = """--form '{"action": "accept"}'"""
    return f"turnwire answer {permission.session_id} {permission.request_id} {ids or '--form JSON'}"


def details(permission: PermissionRequest) -> Text | None:
    """Return everything that is known of the request, except its subject line. Nothing is cut."""
    parts = list(_parts(permission))
    if has_hidden(printable(subject(permission))) or any(has_hidden(each.plain) for each in parts):
        parts.insert(0, indented([HIDDEN], "bold red"))
    return Text("\n").join(parts) if parts else None


def _parts(permission: PermissionRequest) -> Iterator[Text]:
    call = permission.tool_call
    if call is not None and call.title and " ".join(call.title.split()) not in subject(permission):
        yield indented([printable(call.title)])
    if permission.description:
        yield indented(printable(permission.description).split("\n"))
    if permission.command:
        first, *more = printable(permission.command).strip("\n").split("\n")
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
        yield diff_text(call.diff)
    elif call.locations:
        yield indented([printable(f"at {each}") for each in call.locations], "dim")
    if call.text.strip():
        yield indented(printable(unfenced(call.text)).strip("\n").split("\n"), "dim")


def form_parts(form: Form) -> Iterator[Text]:
    """Return a form, field by field."""
    for each in (form.title, form.description):
        if each and each != form.message:
            yield indented([printable(each)])
    for field in form.fields:
        yield field_part(field)


def field_part(field: Field) -> Text:
    """Return one field: its name, its description and its allowed values."""
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
    """Return the default as a person would write it."""
    value = field.default
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


DECLINE, CANCEL = "/decline", "/cancel"
FORM_HINT = f"empty takes the default; {DECLINE} says no, {CANCEL} puts it away, Ctrl-D leaves it open"
URL_CHOICES = (("done", "accept"), ("no", "decline"), ("not now", "cancel"))


# -- asking --------------------------------------------------------------------------------------------------


class Dialogue(Protocol):
    """A user interface that can ask questions."""

    def show(self, block: Text) -> None:
        """Show a finished block."""
        ...

    async def line(self, prompt: str) -> str | None:
        """Return the entered line, or `None` at the end of input."""
        ...

    async def choose(self, choices: Sequence[str]) -> int | None:
        """Return the chosen index, or `None` at the end of input."""
        ...


class PlainDialogue:
    """The terminal of this process, without any line editor."""

    def __init__(self) -> None:
        self.is_in_a_line = False
        """True while a question is printed and its answer is being typed on the same line."""

    def show(self, block: Text) -> None:
        print_block(block, err=True)

    async def line(self, prompt: str) -> str | None:
        sys.stderr.write(prompt)
        sys.stderr.flush()
        self.is_in_a_line = True
        try:
            # Not in a thread, because a blocked one would outlive the command.
            await anyio.wait_readable(sys.stdin)
        finally:
            self.is_in_a_line = False
        # A terminal returns whole lines.
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
    """Print an open request, and how to answer it."""
    tell(f"the agent asks: {subject(permission)}; it waits for an answer")
    show_details(permission)
    tell_next(answer_command(permission))


def show_details(permission: PermissionRequest) -> None:
    """Print the whole request for the user."""
    block = details(permission)
    if block is not None:
        print_block(block, err=True)


class Asker:
    """Asks one permission request at a time."""

    def __init__(self, *, alone: bool) -> None:
        self.alone = alone
        """True if no other client can answer, because the agent belongs to this process."""
        self._turn = anyio.Lock()
        self._dialogue = PlainDialogue()

    def stop_line(self) -> None:
        """Start a new line for the next message if a question is being answered."""
        if self._dialogue.is_in_a_line:
            self._dialogue.is_in_a_line = False
            sys.stderr.write("\n")

    async def ask(self, permission: PermissionRequest) -> Reply | None:
        """Ask the request and return the answer; `None` leaves it open."""
        if can_be_asked(permission) and sys.stdin.isatty() and sys.stderr.isatty():
            async with self._turn:
                return await ask_here(permission, self._dialogue)
        if self.alone:
            tell(f"the agent asks: {subject(permission)}; nobody can answer here, so it hears no")
            show_details(permission)
            return permission.reply(REJECT)
        tell_open(permission)
        return None


def can_be_asked(permission: PermissionRequest) -> bool:
    """Return whether it has options, a form or a page; an answer to anything else is written as JSON."""
    form = permission.form
    return bool(permission.options) or permission.url is not None or (form is not None and bool(form.fields))


async def ask_here(permission: PermissionRequest, dialogue: Dialogue) -> Reply | None:
    """Ask the user and return the answer; `None` leaves the request open."""
    dialogue.show(Text(f"the agent asks: {printable(subject(permission))}", style="bold"))
    if permission.form is not None and not permission.options:
        reply = await _ask_form(permission, permission.form, dialogue)
    else:
        block = details(permission)
        is_seen = block is None or await _show_whole(block, dialogue)
        reply = await _ask_choice(permission, dialogue) if is_seen else None
    if reply is None:
        dialogue.show(Text("turnwire: the permission request stays open"))
        dialogue.show(Text(f"  next: {printable(answer_command(permission))}"))
    return reply


async def _show_whole(block: Text, dialogue: Dialogue) -> bool:
    """Show the whole request, one screen at a time; return whether the user paged to its end."""
    columns, rows = shutil.get_terminal_size()
    room = max(1, rows - 3)
    page, left = list[Text](), room
    for line in _rows(block, columns * room):
        height = 1 + max(0, cell_len(line.plain) - 1) // columns
        if height > left and page:
            dialogue.show(Text("\n").join(page))
            if await dialogue.line("  more: Enter shows it, Ctrl-D leaves the permission request open ") is None:
                return False
            page, left = [], room
        page.append(line)
        left -= height
    dialogue.show(Text("\n").join(page))
    return True


def _rows(block: Text, most: int) -> Iterator[Text]:
    """Yield its lines; a line longer than a screen comes in parts."""
    for line in block.split("\n", allow_blank=True):
        # A character can be two columns wide.
        step = max(1, most // 2) if cell_len(line.plain) > most else most
        yield from (line[start : start + step] for start in range(0, max(1, len(line)), step))


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
    """Ask until the line is valid, or empty for an optional field; `None` at the end of input."""
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


# -- `turnwire answer` --------------------------------------------------------------------------------------------


ANSWER_EXAMPLES = """
turnwire answer SESSION                            what is asked, and how to answer
turnwire answer SESSION allow_once                 by the id of an option, if only one thing is asked
turnwire answer SESSION REQUEST allow_once         by the id of an option
turnwire answer SESSION REQUEST reject             no, in the softest way that is offered
turnwire answer SESSION REQUEST --field name=x     a form, field by field
turnwire answer SESSION REQUEST --form '{"action": "accept", "content": {"name": "x"}}'
"""


@click.command(cls=Command, examples=ANSWER_EXAMPLES)
@click.argument("session", default=LAST, shell_complete=session_ids)
@click.argument("request", required=False)
@click.argument("option", required=False)
@click.option("--field", "fields", metavar="NAME=VALUE", multiple=True, help="A field of a form; once for each.")
@click.option("--form", metavar="JSON", help="The answer to a permission request that takes a free one.")
@with_reach
def answer(
    reach: Reach, session: str, request: str | None, option: str | None, fields: tuple[str, ...], form: str | None
) -> None:
    """Answer a permission request of the agent.

    REQUEST may be omitted if only one is open.
    """
    permissions = open_permissions(reach, session)
    if len(permissions) == 1 and option is None and request != permissions[0].request_id:
        request, option = permissions[0].request_id, request
    has_answer = option is not None or form is not None or bool(fields)
    permission = next((each for each in permissions if each.request_id == request), None)
    if not has_answer and (request is None or permission is not None):
        _list(permissions if permission is None else [permission])
        return
    if permission is None:
        raise PermissionNotFound(
            f"no open permission request {request!r}; `turnwire answer {session}` lists what is asked"
        )
    tell(f"the agent asks: {subject(permission)}")
    show_details(permission)
    if sum((option is not None, form is not None, bool(fields))) > 1:
        raise click.UsageError("give an option, --field or --form; one answer counts")
    given = option if option is not None else _form(permission, form) if form else _filled(permission, fields)
    reply = permission.reply(given)
    has_won = run(reach, lambda http: _answer(http, permission, reply))
    tell("answered" if has_won else "somebody else had answered before")


def _list(permissions: list[PermissionRequest]) -> None:
    """Print a line for each request that `awk` can read, and below it, indented, the whole request."""
    for each in permissions:
        cells = (each.request_id, subject(each), answer_command(each))
        click.echo("\t".join(printable(cell).replace("\n", " ").replace("\t", " ") for cell in cells))
        block = details(each)
        if block is not None:
            print_block(block)
    if not permissions:
        tell("nothing is asked")


# -- what is given -----------------------------------------------------------------------------------------------


def _form(permission: PermissionRequest, text: str) -> dict[str, Any]:
    try:
        given = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        raise click.UsageError("--form is no JSON object") from None
    content: object = given.get("content")
    if permission.form is not None and given.get("action") == "accept":
        _check(permission.form, cast("dict[str, Any]", content) if isinstance(content, dict) else {})
    return given


def _filled(permission: PermissionRequest, fields: tuple[str, ...]) -> dict[str, Any]:
    form = permission.form
    if form is None:
        raise click.UsageError(f"this is no form; answer with {answer_command(permission)}")
    known = {each.name: each for each in form.fields}
    content: dict[str, Any] = {each.name: each.default for each in form.fields if each.default is not None}
    for each in fields:
        name, equals, text = each.partition("=")
        if not equals:
            raise click.UsageError(f"--field {each}: give NAME=VALUE; the fields are: {', '.join(known)}")
        content[name] = known[name].read(text) if name in known else text
    _check(form, content)
    return {"action": "accept", "content": content}


def _check(form: Form, content: dict[str, Any]) -> None:
    problems = form.problems(content)
    if problems:
        raise click.UsageError(printable("; ".join(problems) + ". The permission request stays open."))


async def _answer(http: Http, permission: PermissionRequest, reply: Reply) -> bool:
    session = await RemoteDaemon(http).find(permission.session_id)
    return await session.answer(permission.request_id, reply.answer, reply.option_id)


# -- what is asked -----------------------------------------------------------------------------------------------


class _Listed(Struct, rename="camel"):
    request_id: PermissionId
    method: str
    params: Raw
    options: list[Option] = []


class _OpenPermissions(Struct):
    permissions: list[_Listed]


class _Items(Struct):
    items: list[Raw]
    terminals: dict[str, Terminal] = {}


class _Item(Struct):
    item: str


def open_permissions(reach: Reach, session: str) -> list[PermissionRequest]:
    """Return the open requests of a session in the agent's form."""
    path = f"/session/{segment(session)}"
    found = ask(reach, "GET", f"{path}/permissions?acp={AS_SAID}", shape=_OpenPermissions)
    asked = [PermissionRequest(_event(each), SessionId(session)) for each in found.permissions]
    if all(each.tool_call_id is None for each in asked):
        return asked
    # A request need not repeat the data that the agent sent about its tool call before.
    told = ask(reach, "GET", f"{path}/transcript?acp={AS_SAID}", shape=_Items)
    calls = {each.tool_call_id: each for each in map(_call, told.items) if each is not None}
    return [
        PermissionRequest(_event(listed), SessionId(session), calls.get(each.tool_call_id or ""), told.terminals)
        for listed, each in zip(found.permissions, asked, strict=True)
    ]


def _call(item: Raw) -> FoldedCall | None:
    is_call = msgspec.json.decode(item, type=_Item).item == "tool_call"
    return msgspec.json.decode(item, type=FoldedCall) if is_call else None


def _event(listed: _Listed) -> PermissionRequested:
    return PermissionRequested(
        at=0,
        request_id=listed.request_id,
        # Only the daemon needs the agent's own id.
        agent_request_id=0,
        method=listed.method,
        params=listed.params,
        options=tuple(each.option_id for each in listed.options),
    )
