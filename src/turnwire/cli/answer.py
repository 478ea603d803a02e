"""`turnwire answer`: what the agent of a session asks, shown whole, and answered from any shell.

An answer that the request does not take is refused with what it takes, and the request stays open.
"""

from __future__ import annotations

from typing import Any, cast

import click
import msgspec
from msgspec import Raw, Struct

from turnwire.cli.asking import answer_command, details, show_details, subject
from turnwire.cli.commands import Command
from turnwire.cli.completion import option_ids, request_ids, session_ids
from turnwire.cli.failure import tell
from turnwire.cli.output import print_block, printable
from turnwire.cli.reach import Reach, ask, run, with_reach
from turnwire.client.form import Form
from turnwire.client.http import Http, segment
from turnwire.client.permission import Option, PermissionRequest, Reply
from turnwire.client.remote import RemoteDaemon
from turnwire.client.stream import AS_SAID
from turnwire.core.events import PermissionRequested
from turnwire.core.view import Terminal, ToolCall
from turnwire.errors import PermissionNotFound
from turnwire.ids import PermissionId, SessionId

ANSWER_EXAMPLES = """
turnwire answer SESSION                            what is asked, and how to answer
turnwire answer SESSION allow_once                 by the id of an option, if only one thing is asked
turnwire answer SESSION REQUEST allow_once         by the id of an option
turnwire answer SESSION REQUEST reject             no, in the softest way that is offered
turnwire answer SESSION REQUEST --field name=x     a form, field by field
turnwire answer SESSION REQUEST --form '{"action": "accept", "content": {"name": "x"}}'
"""


@click.command(cls=Command, examples=ANSWER_EXAMPLES)
@click.argument("session", shell_complete=session_ids)
@click.argument("request", required=False, shell_complete=request_ids)
@click.argument("option", required=False, shell_complete=option_ids)
@click.option("--field", "fields", metavar="NAME=VALUE", multiple=True, help="A field of a form; once for each.")
@click.option("--form", metavar="JSON", help="The answer to a permission request that takes a free one.")
@with_reach
def answer(
    reach: Reach, session: str, request: str | None, option: str | None, fields: tuple[str, ...], form: str | None
) -> None:
    """Answer a permission request of the agent.

    REQUEST may be left out if only one is open.
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
    """A line for each that `awk` can read, and below it, indented, all of what is asked."""
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
    """What the agent of a session asks now, in its own words."""
    path = f"/session/{segment(session)}"
    found = ask(reach, "GET", f"{path}/permissions?acp={AS_SAID}", shape=_OpenPermissions)
    asked = [PermissionRequest(_event(each), SessionId(session)) for each in found.permissions]
    if all(each.tool_call_id is None for each in asked):
        return asked
    # A request need not repeat what the agent told of its tool call before.
    told = ask(reach, "GET", f"{path}/transcript?acp={AS_SAID}", shape=_Items)
    calls = {each.tool_call_id: each for each in map(_call, told.items) if each is not None}
    return [
        PermissionRequest(_event(listed), SessionId(session), calls.get(each.tool_call_id or ""), told.terminals)
        for listed, each in zip(found.permissions, asked, strict=True)
    ]


def _call(item: Raw) -> ToolCall | None:
    is_call = msgspec.json.decode(item, type=_Item).item == "tool_call"
    return msgspec.json.decode(item, type=ToolCall) if is_call else None


def _event(listed: _Listed) -> PermissionRequested:
    return PermissionRequested(
        at=0,
        request_id=listed.request_id,
        # The agent's own id is the daemon's business.
        agent_request_id=0,
        method=listed.method,
        params=listed.params,
        options=tuple(each.option_id for each in listed.options),
    )
