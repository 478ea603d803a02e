"""What the agent asks, as a person reads it before answering: title, command, change, form.

Used wherever a permission request is shown, so that nobody is asked to allow what they cannot see.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from rich.text import Text

from turnwire.cli.output import printable
from turnwire.cli.tool_view import bounded, diff_text, indented, unfenced
from turnwire.client.form import Field, Form
from turnwire.client.permission import PermissionRequest
from turnwire.client.tool_call import ToolCall

ASKED_LINES = 200
"""Lines of a command or a change that somebody is asked to allow."""
TEXT_LINES = 20
"""Lines of what else a tool call says of itself."""


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
