"""`turnwire answer`, and permission requests of the agent at a terminal: told, listed and asked.

Who sits at the terminal answers, or leaves the request open. Without a terminal it is said how to answer from
elsewhere. Nothing is ever allowed by itself.
"""

from __future__ import annotations

import os
import shlex
import sys
from typing import Any

import anyio
import click
import msgspec
from msgspec import Raw, Struct

from turnwire.cli.commands import Command
from turnwire.cli.completion import option_ids, request_ids, session_ids
from turnwire.cli.failure import tell, tell_next
from turnwire.cli.output import print_table, printable
from turnwire.cli.reach import Reach, ask, run, with_reach
from turnwire.client.http import Http, segment
from turnwire.client.permission import REJECT, Option, PermissionRequest, Reply
from turnwire.client.remote import RemoteDaemon
from turnwire.core.events import PermissionRequested
from turnwire.errors import PermissionNotFound
from turnwire.ids import PermissionId, SessionId

ANSWER_EXAMPLES = """
turnwire answer SESSION                          what is asked, and how to answer
turnwire answer SESSION REQUEST allow_once       by the id of an option
turnwire answer SESSION REQUEST reject           no, in the softest way that is offered
turnwire answer SESSION REQUEST --form '{"action": "accept", "content": {"name": "x"}}'
"""


@click.command(cls=Command, examples=ANSWER_EXAMPLES)
@click.argument("session", shell_complete=session_ids)
@click.argument("request", required=False, shell_complete=request_ids)
@click.argument("option", required=False, shell_complete=option_ids)
@click.option("--form", metavar="JSON", help="The answer to a question that takes a free one.")
@with_reach
def answer(reach: Reach, session: str, request: str | None, option: str | None, form: str | None) -> None:
    """Answer a permission request of the agent."""
    permissions = open_permissions(reach, session)
    if request is None or (option is None and form is None):
        rows = [(each.request_id, subject(each), answer_command(each)) for each in permissions]
        print_table(("request", "asks", "answer"), rows)
        if not rows:
            tell("nothing is asked")
        return
    permission = next((each for each in permissions if each.request_id == request), None)
    if permission is None:
        raise PermissionNotFound(f"no open question {request!r}; `turnwire answer {session}` lists what is asked")
    reply = permission.reply(_form(form) if option is None else option)
    has_won = run(reach, lambda http: _answer(http, permission, reply))
    tell("answered" if has_won else "somebody else had answered before")


def _form(text: str | None) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text or "", type=dict[str, Any])
    except msgspec.DecodeError:
        raise click.UsageError("--form is no JSON object") from None


async def _answer(http: Http, permission: PermissionRequest, reply: Reply) -> bool:
    session = await RemoteDaemon(http).find(permission.session_id)
    return await session.answer(permission.request_id, reply.answer, reply.option_id)


class _Listed(Struct, rename="camel"):
    request_id: PermissionId
    method: str
    params: Raw
    options: list[Option] = []


class _OpenPermissions(Struct):
    permissions: list[_Listed]


def open_permissions(reach: Reach, session: str) -> list[PermissionRequest]:
    """What the agent of a session asks now."""
    found = ask(reach, "GET", f"/session/{segment(session)}/permissions", shape=_OpenPermissions)
    return [_permission(each, SessionId(session)) for each in found.permissions]


def _permission(listed: _Listed, session_id: SessionId) -> PermissionRequest:
    event = PermissionRequested(
        at=0,
        request_id=listed.request_id,
        # The agent's own id is the daemon's business.
        agent_request_id=0,
        method=listed.method,
        params=listed.params,
        options=tuple(each.option_id for each in listed.options),
    )
    return PermissionRequest(event, session_id)


class _Titled(Struct, frozen=True):
    title: str = ""


class _Asked(Struct, rename="camel"):
    tool_call: _Titled = _Titled()
    message: str = ""


def subject(permission: PermissionRequest) -> str:
    """What is asked, in a line."""
    try:
        asked = msgspec.json.decode(permission.params, type=_Asked)
    except msgspec.DecodeError:
        return permission.method
    return " ".join((asked.tool_call.title or asked.message or permission.method).split())


def answer_command(permission: PermissionRequest) -> str:
    """How to answer from another shell."""
    ids = "|".join(shlex.quote(each.option_id) for each in permission.options) or "--form JSON"
    return f"turnwire answer {permission.session_id} {permission.request_id} {ids}"


def tell_open(permission: PermissionRequest) -> None:
    """Say what is asked, and how to answer."""
    tell(f"the agent asks: {subject(permission)}; it waits for an answer")
    tell_next(answer_command(permission))


class Asker:
    """Asks one permission request at a time."""

    def __init__(self, *, alone: bool) -> None:
        self._alone = alone
        """Nobody else can answer: the agent is ours."""
        self._turn = anyio.Lock()

    async def ask(self, event: PermissionRequested, session_id: SessionId) -> Reply | None:
        """The answer; none leaves the request open."""
        permission = PermissionRequest(event, session_id)
        if permission.options and sys.stdin.isatty() and sys.stderr.isatty():
            async with self._turn:
                return await _ask_here(permission)
        if self._alone:
            tell(f"the agent asks: {subject(permission)}; nobody can answer here, so it hears no")
            return permission.reply(REJECT)
        tell_open(permission)
        return None


async def _ask_here(permission: PermissionRequest) -> Reply | None:
    options = permission.options
    click.echo(f"the agent asks: {printable(subject(permission))}", err=True)
    for number, option in enumerate(options, 1):
        click.echo(f"  {number}. {printable(option.name or option.option_id)}", err=True)
    while True:
        click.echo(f"answer 1-{len(options)}: ", err=True, nl=False)
        line = await _line()
        if line is None:
            tell("the question stays open")
            tell_next(answer_command(permission))
            return None
        if line.isdecimal() and 1 <= int(line) <= len(options):
            return permission.reply(options[int(line) - 1].option_id)


async def _line() -> str | None:
    """A line of the terminal, without a thread that would outlive us; none at its end."""
    await anyio.wait_readable(sys.stdin)
    # A terminal gives whole lines.
    line = os.read(sys.stdin.fileno(), 4096)
    return line.decode(errors="replace").strip() if line else None
